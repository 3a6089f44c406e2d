//! `lock PATH`: locks a node while a command runs, or until a stop signal.
//!
//! It follows flock(1): `--try` (its -n), `--wait` (its -w), `--read` (its -s), and the exit status
//! of the command.
//!
//! A guard process ([`crate::child`]) kills the command with all its descendants before another
//! session can own the lock. It uses this machine's clock. If no release reaches the servers,
//! they wait longer, by the volume's skew margin. A guard that is stopped together with the
//! command kills it on resumption. Only the fencing token refuses requests that the command sent
//! before: `LEASEHOLD_TOKEN`, for `put --token`.

use std::{ffi::OsString, time::Duration};

use clap::Args;
use leasehold_client_cache::{CancellationToken, LockGuard, LockMode, LockWait, NodePath};
use serde::Serialize;

use super::waits;
use crate::{
    arguments,
    background::BackgroundTask,
    child::{Child, ChildEnd},
    context::Context,
    duration,
    exit::{CliStatus, CommandFailure},
    failure::lock_lost_failure,
    output::{Output, Text, visible},
};

/// `lock PATH [-- COMMAND…]`
#[derive(Debug, Args)]
pub(crate) struct LockArgs {
    /// Node to lock; it need not exist
    #[arg(value_parser = arguments::path)]
    pub(crate) path: NodePath,
    /// Share the lock with other readers
    #[arg(long)]
    read: bool,
    #[command(flatten)]
    pub(crate) wait_args: LockWaitArgs,
}

/// How to wait for a lock, and the command to run under it: for `lock` and `elect`.
#[derive(Debug, Args)]
pub(crate) struct LockWaitArgs {
    /// Fail if another session has the lock
    #[arg(long = "try", conflicts_with = "wait")]
    tries: bool,
    /// Wait no longer than this: 500ms, 10s, 2m, 1h
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    wait: Option<Duration>,
    /// Lock delay: if the servers end the lock with its lease, the node stays taken for this time;
    /// at most 1m
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    delay: Option<Duration>,
    /// Command to run under the lock; it gets the token in LEASEHOLD_TOKEN. Without a command, wait
    /// until stopped
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl LockWaitArgs {
    /// Whether there is a command to run.
    pub(crate) fn has_command(&self) -> bool {
        !self.command.is_empty()
    }

    /// How to wait.
    pub(crate) fn wait(&self) -> LockWait {
        wait(self.tries, self.wait)
    }

    /// The lock delay.
    pub(crate) fn delay(&self) -> Duration {
        self.delay.unwrap_or_default()
    }

    /// Runs the command until it ends or the lock is lost. On a loss it kills the command and
    /// returns no status. The command runs only while the lock is certain.
    pub(crate) async fn run_until(
        &self,
        on_lost: &CancellationToken,
        remaining: impl Fn() -> Duration,
        variables: &[(&str, OsString)],
        output: Output,
    ) -> Result<Option<CliStatus>, CommandFailure> {
        let mut child = Child::start(&self.command, variables, output)?;
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

/// How to wait, by the options.
pub(crate) fn wait(tries: bool, most: Option<Duration>) -> LockWait {
    match (tries, most) {
        (true, _) => LockWait::No,
        (false, Some(most)) => LockWait::For(most),
        (false, None) => LockWait::Forever,
    }
}

/// The command under a lock or a leadership has ended. People see the command's own output.
#[derive(Debug, Serialize)]
pub(crate) struct CommandEnded {
    pub(crate) path: NodePath,
    /// The fencing token.
    pub(crate) token: u64,
    /// The command's exit status.
    pub(crate) status: u8,
}

impl Text for CommandEnded {
    fn text(&self, _: &mut Vec<u8>) {}
}

/// An acquired lock.
#[derive(Debug, Serialize)]
pub(crate) struct LockAnswer {
    path: NodePath,
    /// The fencing token. It grows from owner to owner.
    token: u64,
    /// The lock's id, as `holders` shows it.
    lock: u64,
    mode: LockMode,
    /// How long the lock certainly lasts without a further renewal.
    remaining_ms: u64,
}

impl Text for LockAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        let (path, token) = (visible(self.path.as_str()), self.token);
        out.extend_from_slice(format!("locked {path}: token {token}\n").as_bytes());
    }
}

impl LockAnswer {
    fn of(lock: &LockGuard) -> Self {
        Self {
            path: lock.path().clone(),
            token: lock.token().0,
            lock: lock.id().0,
            mode: lock.mode(),
            remaining_ms: duration::millis(lock.remaining()),
        }
    }
}

impl LockArgs {
    /// Owns the lock until this process ends.
    pub(crate) async fn run(self, context: &Context) -> Result<LockAnswer, CommandFailure> {
        let lock = self.take(context).await?;
        let answer = LockAnswer::of(&lock);
        context.set_background_task(BackgroundTask::Lock(lock));
        Ok(answer)
    }

    /// Owns the lock while the command runs. Returns the command's status.
    pub(crate) async fn run_command(self, context: &Context) -> Result<CliStatus, CommandFailure> {
        let subject = self.path.to_string();
        self.lock_and_run(context).await.map_err(|failure| failure.with_subject(&subject))
    }

    async fn lock_and_run(self, context: &Context) -> Result<CliStatus, CommandFailure> {
        let lock = self.take(context).await?;
        let variables = [
            ("LEASEHOLD_TOKEN", lock.token().to_string().into()),
            ("LEASEHOLD_ENDPOINTS", context.endpoints().join(",").into()),
        ];
        let status = self.wait_args.run_until(&lock.on_lost(), || lock.remaining(), &variables, context.output).await?;
        let status = status.ok_or_else(|| lock_lost_failure(&self.path))?;
        let token = lock.token().0;
        // Processes that the command left running no longer own the lock. If the release is lost,
        // the lease expires by itself.
        let _ = lock.release().await;
        context.output.answer(&CommandEnded { path: self.path, token, status: status.code() });
        Ok(status)
    }

    async fn take(&self, context: &Context) -> Result<LockGuard, CommandFailure> {
        let taking = context
            .client()
            .await?
            .lock(&self.path)
            .mode(if self.read { LockMode::Shared } else { LockMode::Exclusive })
            .wait(self.wait_args.wait())
            .lock_delay(self.wait_args.delay());
        waits::lock(context, &self.path, taking).await
    }
}
