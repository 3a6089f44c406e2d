//! `register PATH VALUE`: a service shows that it lives, by a node that goes with a lease.

use std::{ffi::OsString, os::unix::ffi::OsStringExt, time::Duration};

use bytes::Bytes;
use clap::Args;
use leasehold_client_cache::{
    Attach, Client, Condition, LeaseOptions, NodePath, PutOptions, RegisterCondition, RegisterOptions,
};
use serde::Serialize;

use super::{
    background::{BackgroundTask, RegisteredNode},
    lease, write_failure,
};
use crate::{
    cli,
    context::Context,
    duration,
    exit::CommandFailure,
    output::{Text, visible},
};

/// `register PATH VALUE`
#[derive(Debug, Args)]
pub(crate) struct RegisterArgs {
    /// The node, which shows that this runs
    #[arg(value_parser = cli::path)]
    pub(crate) path: NodePath,
    /// Its value: an address, for instance
    #[arg(allow_negative_numbers = true)]
    value: OsString,
    /// Take the place of whoever is registered there
    #[arg(long)]
    replace: bool,
    /// How long the node outlives a crash, if not as long as the term of its volume: seconds, or
    /// 500ms, 10s, 2m, 1h
    #[arg(long, value_name = "D", value_parser = duration::seconds)]
    term: Option<Duration>,
}

/// A registration.
#[derive(Debug, Serialize)]
pub(crate) struct RegisterAnswer {
    path: NodePath,
    /// Grows from one registration to the next, whoever registers.
    revision: u64,
    /// The key lease that the node goes with, if it has a term of its own.
    lease: Option<String>,
    /// How long the registration is certain if nothing more is heard.
    certain_ms: u64,
}

impl Text for RegisterAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        let path = visible(self.path.as_str());
        out.extend_from_slice(format!("registered {path} at revision {}\n", self.revision).as_bytes());
    }
}

impl RegisterArgs {
    pub(crate) async fn run(self, context: &Context) -> Result<RegisterAnswer, CommandFailure> {
        let client = context.client().await?;
        let (path, value) = (self.path, Bytes::from(self.value.into_vec()));
        let node = match self.term {
            None => with_session(client, &path, value, self.replace).await?,
            Some(term) => with_lease(client, &path, value, self.replace, term).await?,
        };
        let answer = RegisterAnswer {
            path,
            revision: node.revision().0,
            lease: node.lease().map(lease::hex),
            certain_ms: duration::millis(node.remaining()),
        };
        context.set_background_task(BackgroundTask::Registration(node));
        Ok(answer)
    }
}

/// The node goes with the session's lease on its volume.
async fn with_session(
    client: &Client,
    path: &NodePath,
    value: Bytes,
    replace: bool,
) -> Result<RegisteredNode, CommandFailure> {
    let condition = if replace { RegisterCondition::Any } else { RegisterCondition::Absent };
    let options = RegisterOptions { condition, ..RegisterOptions::default() };
    let registration = client.register(path, value, options).await.map_err(|error| write_failure(&error))?;
    Ok(RegisteredNode::Session(registration))
}

/// The node goes with a key lease of its own.
async fn with_lease(
    client: &Client,
    path: &NodePath,
    value: Bytes,
    replace: bool,
    term: Duration,
) -> Result<RegisteredNode, CommandFailure> {
    let granted = client.grant_lease(term, LeaseOptions::default()).await.map_err(|error| write_failure(&error))?;
    let kept = client.keep_lease_alive(granted).await.map_err(|error| lease::lease_failure(&error))?;
    let condition = if replace { Condition::Any } else { Condition::Absent };
    let options = PutOptions { condition, attach: Attach::Lease(granted), ..PutOptions::default() };
    match client.put_with(path, value, options).await {
        Ok(written) => Ok(RegisteredNode::Lease { path: path.clone(), revision: written.revision, lease: kept }),
        Err(error) => {
            // If this is not heard of, the lease ends by itself, and with it what the put may still
            // do.
            let _ = kept.revoke().await;
            Err(write_failure(&error))
        }
    }
}
