//! `lock PATH`: a node is held while a command runs, or until this is told to stop.
//!
//! The habits of flock(1): `--try` (its -n), `--wait` (its -w), `--read` (its -s), and the exit
//! status of the command.
//!
//! A guard process ([`crate::child`]) kills the command, with all that it has begun, before the
//! node can be somebody else's. This machine's clock says when, and the servers wait for the
//! volume's margin on top. If the guard stands still with the command, it kills when it goes on.
//! What the command may have sent by then only the token can keep out: the command gets it as
//! `LEASEHOLD_TOKEN`, for `put --token`.

use std::{ffi::OsString, time::Duration};

use clap::Args;
use leasehold_client_cache::{CancellationToken, LockError, LockGuard, LockMode, LockOptions, LockWait, NodePath};
use serde::Serialize;

use super::{background::BackgroundTask, write_failure};
use crate::{
    child::{Child, ChildEnd},
    cli,
    context::Context,
    duration,
    exit::{CliStatus, CommandFailure},
    output::{Text, visible},
};

/// `lock PATH [-- COMMAND…]`
#[derive(Debug, Args)]
pub(crate) struct LockArgs {
    /// The node to hold; it need not exist
    #[arg(value_parser = cli::path)]
    pub(crate) path: NodePath,
    /// Share it with others who read
    #[arg(long)]
    read: bool,
    #[command(flatten)]
    pub(crate) wait_args: LockWaitArgs,
}

/// How to wait for one's turn to hold a node, and what to do with it: of `lock` and of `elect`.
#[derive(Debug, Args)]
pub(crate) struct LockWaitArgs {
    /// Fail if it is somebody else's now
    #[arg(long = "try", conflicts_with = "wait")]
    tries: bool,
    /// Wait no longer than this: 500ms, 10s, 2m, 1h
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// If it is lost without a word, let nobody have it for so long; at most 1m
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    delay: Option<Duration>,
    /// What to run meanwhile; it finds the token in LEASEHOLD_TOKEN. Without one this goes on until
    /// it is told to stop
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl LockWaitArgs {
    /// Whether a command is to be run.
    pub(crate) fn has_command(&self) -> bool {
        !self.command.is_empty()
    }

    /// How long is to be waited.
    pub(crate) fn wait(&self) -> LockWait {
        wait(self.tries, self.wait)
    }

    /// How long nobody else gets it if it is lost.
    pub(crate) fn delay(&self) -> Duration {
        self.delay.unwrap_or_default()
    }

    /// Runs the command until it ends, or until what it needs is over: then nothing of it is left,
    /// and it has no status. It begins when what it needs is certain, and runs no longer than that.
    pub(crate) async fn run_until(
        &self,
        on_lost: &CancellationToken,
        remaining: impl Fn() -> Duration,
        variables: &[(&str, OsString)],
    ) -> Result<Option<CliStatus>, CommandFailure> {
        let mut child = Child::start(&self.command, variables)?;
        tokio::select! {
            biased;
            () = on_lost.cancelled() => {}
            ended = child.wait(remaining) => {
                if let ChildEnd::Status(code) = ended? {
                    return Ok(Some(CliStatus::of_command(code)));
                }
            }
        }
        child.kill_all().await?;
        Ok(None)
    }
}

/// How long is to be waited, by what was asked for.
pub(crate) fn wait(tries: bool, most: Option<Duration>) -> LockWait {
    match (tries, most) {
        (true, _) => LockWait::No,
        (false, Some(most)) => LockWait::For(most),
        (false, None) => LockWait::Forever,
    }
}

/// A node that is held.
#[derive(Debug, Serialize)]
pub(crate) struct LockAnswer {
    path: NodePath,
    /// The fencing token: grows from holder to holder.
    token: u64,
    hold: u64,
    mode: LockMode,
    /// How long it is certain if nothing more is heard.
    certain_ms: u64,
}

impl Text for LockAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("{}\n", self.token).as_bytes());
    }
}

impl LockAnswer {
    fn of(hold: &LockGuard) -> Self {
        Self {
            path: hold.path().clone(),
            token: hold.token().0,
            hold: hold.id().0,
            mode: hold.mode(),
            certain_ms: duration::millis(hold.remaining()),
        }
    }
}

impl LockArgs {
    /// Holds the node until this ends.
    pub(crate) async fn run(self, context: &Context) -> Result<LockAnswer, CommandFailure> {
        let lock = self.take(context).await?;
        let answer = LockAnswer::of(&lock);
        context.set_background_task(BackgroundTask::Lock(lock));
        Ok(answer)
    }

    /// Holds the node while the command runs. The status is the command's.
    pub(crate) async fn run_command(self, context: &Context) -> Result<CliStatus, CommandFailure> {
        let asked = format!("lock {}", visible(self.path.as_str()));
        self.lock_and_run(context).await.map_err(|failure| failure.with_subject(&asked))
    }

    async fn lock_and_run(self, context: &Context) -> Result<CliStatus, CommandFailure> {
        let lock = self.take(context).await?;
        let variables = [
            ("LEASEHOLD_TOKEN", lock.token().to_string().into()),
            ("LEASEHOLD_ENDPOINTS", context.endpoints().join(",").into()),
        ];
        let status = self.wait_args.run_until(&lock.on_lost(), || lock.remaining(), &variables).await?;
        let status = status.ok_or_else(|| lost_failure(&self.path))?;
        // What a command that exits has left running holds nothing. If nobody hears of it, the
        // lease ends by itself.
        let _ = lock.release().await;
        Ok(status)
    }

    async fn take(&self, context: &Context) -> Result<LockGuard, CommandFailure> {
        let options = LockOptions {
            mode: if self.read { LockMode::Shared } else { LockMode::Exclusive },
            wait: self.wait_args.wait(),
            lock_delay: self.wait_args.delay(),
            timeout: None,
        };
        context.client().await?.lock(&self.path, options).await.map_err(|error| lock_failure(&error))
    }
}

/// The hold is over though nobody gave it back.
pub(crate) fn lost_failure(path: &NodePath) -> CommandFailure {
    let path = visible(path.as_str());
    CommandFailure::refused(
        "lock_lost",
        format!("the hold on {path} is over: expected a server to be heard of in time"),
    )
}

/// A node that is not held.
pub(crate) fn lock_failure(error: &LockError) -> CommandFailure {
    match error {
        LockError::Write(error) => write_failure(error),
        LockError::TimedOut { .. } => CommandFailure::unavailable(error),
        LockError::NotGranted { .. } => CommandFailure::refused("not_granted", error),
        LockError::Lost { .. } => CommandFailure::refused("lock_lost", error),
    }
}
