//! `elect PATH NAME`: leads an election while a command runs, or until a stop signal. `--observe`
//! prints the leaders.
//!
//! The elected leader owns a lock on the node. The rules of [`super::lock`] for commands, signals
//! and tokens apply here too.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt,
};

use clap::Args;
use leasehold_client_cache::{ElectedLeader, Leadership, NodePath, Value};
use serde::Serialize;

use super::{
    lock::{CommandEnded, LockWaitArgs},
    waits,
    watch::text_of,
};
use crate::{
    arguments,
    background::{
        BackgroundTask, StopSignal,
        leadership::{named, resign},
    },
    context::Context,
    duration,
    exit::{CliStatus, CommandFailure},
    failure::{leadership_lost_failure, watch_failure},
    output::{Text, reader_gone, visible},
};

/// `elect PATH NAME [-- COMMAND…]`, `elect PATH --observe`
#[derive(Debug, Args)]
pub(crate) struct ElectArgs {
    /// Node that the leader locks and writes its name to
    #[arg(value_parser = arguments::path)]
    pub(crate) path: NodePath,
    /// The candidate's name
    #[arg(required_unless_present = "observe")]
    name: Option<OsString>,
    /// Do not campaign: print the leader and each later one, a line each, until stopped
    #[arg(long, conflicts_with_all = ["name", "tries", "wait", "delay", "command"])]
    observe: bool,
    /// At the end hand over to this candidate, ahead of the lock queue: its name, or its session's
    /// number or name, as `holders` shows them. If it does not wait then, the next candidate leads
    #[arg(long, value_name = "TO", conflicts_with = "observe")]
    hand_over: Option<String>,
    #[command(flatten)]
    pub(crate) wait_args: LockWaitArgs,
}

/// An elected leader.
#[derive(Debug, Serialize)]
pub(crate) struct LeaderAnswer {
    path: NodePath,
    name: String,
    encoding: &'static str,
    /// The fencing token. It grows from leader to leader.
    token: u64,
    /// The revision of the name. `None` for this process's own leadership.
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
    /// The leader's session. `None` for this process's own leadership.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<u64>,
    /// How long this process's own leadership certainly lasts without a further renewal.
    #[serde(skip_serializing_if = "Option::is_none")]
    remaining_ms: Option<u64>,
}

impl LeaderAnswer {
    fn own(leadership: &Leadership, name: &OsStr) -> Self {
        let (name, encoding) = text_of(&Value::copy_from_slice(name.as_bytes()));
        Self {
            path: leadership.path().clone(),
            name,
            encoding,
            token: leadership.token().0,
            revision: None,
            session: None,
            remaining_ms: Some(duration::millis(leadership.remaining())),
        }
    }

    fn of(path: &NodePath, leader: &ElectedLeader) -> Self {
        let (name, encoding) = text_of(&leader.value);
        Self {
            path: path.clone(),
            name,
            encoding,
            token: leader.token.0,
            revision: Some(leader.revision.0),
            session: Some(leader.session.0),
            remaining_ms: None,
        }
    }
}

impl Text for LeaderAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        let word = if self.session.is_some() { "leader" } else { "elected" };
        out.extend_from_slice(format!("{word} {}: token {}\n", visible(&self.name), self.token).as_bytes());
    }
}

impl ElectArgs {
    /// Whether it only prints the leaders.
    pub(crate) fn observes(&self) -> bool {
        self.observe
    }

    /// Leads until this process ends.
    pub(crate) async fn run(self, context: &Context) -> Result<LeaderAnswer, CommandFailure> {
        let leadership = self.campaign(context).await?;
        let answer = LeaderAnswer::own(&leadership, self.name());
        context.set_background_task(BackgroundTask::Leadership(leadership, self.hand_over));
        Ok(answer)
    }

    /// Leads while the command runs. Returns the command's status.
    pub(crate) async fn run_command(self, context: &Context) -> Result<CliStatus, CommandFailure> {
        let subject = self.path.to_string();
        self.lead_and_run(context).await.map_err(|failure| failure.with_subject(&subject))
    }

    async fn lead_and_run(self, context: &Context) -> Result<CliStatus, CommandFailure> {
        let leadership = self.campaign(context).await?;
        let variables = [
            ("LEASEHOLD_TOKEN", leadership.token().to_string().into()),
            ("LEASEHOLD_ENDPOINTS", context.endpoints().join(",").into()),
        ];
        let (on_lost, output) = (leadership.on_lost(), context.output);
        let ended = self.wait_args.run_until(&on_lost, || leadership.remaining(), &variables, output).await?;
        let status = ended.ok_or_else(|| leadership_lost_failure(&self.path))?;
        let token = leadership.token().0;
        // Processes that the command left running no longer lead. If the resignation is lost, the
        // lease expires by itself.
        let ended = resign(leadership, self.hand_over.as_deref()).await;
        match (ended, self.hand_over, status) {
            (Err(failure), Some(_), CliStatus::Done) => Err(failure),
            _ => {
                output.answer(&CommandEnded { path: self.path, token, status: status.code() });
                Ok(status)
            }
        }
    }

    /// The session's name, which identifies the candidate.
    pub(crate) fn session_name(&self) -> String {
        named(&self.name().to_string_lossy())
    }

    fn name(&self) -> &OsStr {
        self.name.as_deref().unwrap_or_default()
    }

    async fn campaign(&self, context: &Context) -> Result<Leadership, CommandFailure> {
        let client = context.client().await?;
        let campaign = client
            .campaign(&self.path, self.name().as_bytes())
            .wait(self.wait_args.wait())
            .lock_delay(self.wait_args.delay());
        waits::lock(context, &self.path, campaign).await
    }

    /// Prints each leader until a stop signal, or until the reader closes the pipe.
    pub(crate) async fn run_observe(self, context: &Context) -> Result<(), CommandFailure> {
        let stop = StopSignal::listen()?;
        let observing = async {
            let mut leaders = context.client().await?.observe(&self.path);
            loop {
                let leader = leaders.next().await.map_err(|error| watch_failure(&error))?;
                context.output.answer(&LeaderAnswer::of(&self.path, &leader));
            }
        };
        tokio::select! {
            biased;
            () = stop.requested() => Ok(()),
            () = reader_gone() => Ok(()),
            failed = observing => failed,
        }
    }
}
