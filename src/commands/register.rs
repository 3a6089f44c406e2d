//! `register PATH VALUE`: registers a service as a node that is attached to a lease.

use std::{ffi::OsString, os::unix::ffi::OsStringExt, time::Duration};

use bytes::Bytes;
use clap::Args;
use leasehold_client_cache::{Condition, NodePath};
use serde::Serialize;

use super::waits;
use crate::{
    arguments,
    background::{BackgroundTask, RegisteredNode},
    context::Context,
    duration,
    exit::CommandFailure,
    failure::{lease_failure, write_failure},
    lease_id,
    output::{Text, visible},
};

/// `register PATH VALUE`
#[derive(Debug, Args)]
pub(crate) struct RegisterArgs {
    /// Node that shows that the service runs
    #[arg(value_parser = arguments::path)]
    pub(crate) path: NodePath,
    /// Value of the node, such as an address
    #[arg(allow_negative_numbers = true)]
    value: OsString,
    /// Replace a service that is registered there
    #[arg(long)]
    replace: bool,
    /// How long the node outlives a crash: seconds, or 500ms, 10s, 2m, 1h [default: the term of its
    /// volume]
    #[arg(long, value_name = "D", value_parser = duration::seconds)]
    term: Option<Duration>,
}

/// A service registration.
#[derive(Debug, Serialize)]
pub(crate) struct RegisterAnswer {
    path: NodePath,
    /// Grows from one registration of the node to the next, also of different services.
    revision: u64,
    /// The key lease that the node is attached to, if it has a term of its own.
    lease: Option<String>,
    /// How long the registration certainly lasts without a further renewal.
    remaining_ms: u64,
}

impl Text for RegisterAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        let path = visible(self.path.as_str());
        out.extend_from_slice(format!("registered {path} at revision {}\n", self.revision).as_bytes());
    }
}

impl RegisterArgs {
    pub(crate) async fn run(self, context: &Context) -> Result<RegisterAnswer, CommandFailure> {
        let (path, value) = (self.path, Bytes::from(self.value.into_vec()));
        let node = match self.term {
            None => with_session(context, &path, value, self.replace).await?,
            Some(term) => with_lease(context, &path, value, self.replace, term).await?,
        };
        let answer = RegisterAnswer {
            path,
            revision: node.revision().0,
            lease: node.lease().map(lease_id::hex),
            remaining_ms: duration::millis(node.remaining()),
        };
        context.set_background_task(BackgroundTask::Registration(node));
        Ok(answer)
    }
}

/// Attaches the node to the session's lease on its volume.
async fn with_session(
    context: &Context,
    path: &NodePath,
    value: Bytes,
    replace: bool,
) -> Result<RegisteredNode, CommandFailure> {
    let register = context.client().await?.register(path, value).replace(replace);
    let registration = waits::write(context, &[path], register).await?;
    Ok(RegisteredNode::Session(registration))
}

/// Attaches the node to a key lease of its own.
async fn with_lease(
    context: &Context,
    path: &NodePath,
    value: Bytes,
    replace: bool,
    term: Duration,
) -> Result<RegisteredNode, CommandFailure> {
    let client = context.client().await?;
    let granted = client.grant_lease(term).await.map_err(|error| write_failure(&error))?;
    let kept = client.keep_lease_alive(granted).await.map_err(|error| lease_failure(&error))?;
    let condition = if replace { Condition::Any } else { Condition::Absent };
    let put = client.put(path, value).condition(condition).lease(granted);
    match waits::write(context, &[path], put).await {
        Ok(written) => Ok(RegisteredNode::Lease { path: path.clone(), revision: written.revision, lease: kept }),
        Err(failure) => {
            // If the revocation is lost, the lease expires by itself. That also undoes a put that
            // takes effect later.
            let _ = kept.revoke().await;
            Err(failure)
        }
    }
}
