//! Runs a command only as long as the lock or lease that it needs.
//!
//! The *owner* is this process: `lock`, `elect` or `edit`. It starts the command through a
//! [`guard`]. The guard kills the command with all its descendants if the owner dies or stops
//! prolonging the deadline. The owner kills them if the guard dies, and when the lock or lease
//! ends.
//!
//! Owner and guard are subreapers. A descendant of the command stays below them, whatever its
//! process group, session or parent. Out of reach are processes of another user. If owner and guard
//! are killed at the same moment, the kernel kills the command, but not its descendants.

mod family;
mod feed;
pub(crate) mod guard;

use std::{collections::BTreeSet, ffi::OsString, future, io, os::unix::process::ExitStatusExt, time::Duration};

use nix::sys::prctl;
use tokio::{
    io::AsyncReadExt,
    net::unix::pipe::Receiver,
    process,
    signal::unix::{Signal, SignalKind, signal as listen},
};

use crate::{exit::CommandFailure, output::Output};
use family::{children, kill_once};
use feed::{FeedMessage, Feeder, bequeath, boot_time};

/// The deadline of a command that needs no lock. Each message postpones it.
pub(crate) const UNLIMITED: Duration = Duration::from_secs(365 * 24 * 3600);

/// The guard needs a moment to kill. It begins this long before the lock or lease ends, or an
/// eighth of the remaining time before, if that is shorter.
const LEAD_MAX: Duration = Duration::from_millis(50);

/// How often the owner asks how long the command may run. A client renews a lease at half its term,
/// so an eighth of the remaining time is often enough.
const ASK_EVERY_MIN: Duration = Duration::from_millis(5);
const ASK_EVERY_MAX: Duration = Duration::from_millis(250);

/// How often to check whether killed processes have ended. The kernel rarely takes longer.
const GONE_EVERY: Duration = Duration::from_millis(1);

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChildEnd {
    /// Its exit status as a shell reports it: 128 plus the signal's number if a signal ended it.
    Status(u8),
    /// The guard killed it, because the owner did not prolong the deadline in time.
    Overdue,
}

/// A running command.
#[derive(Debug)]
pub(crate) struct Child {
    guard: process::Child,
    feeder: Feeder,
    /// The pipe on which the guard asks, once, whether the command's descendants may continue.
    question: Option<Receiver>,
    /// The owner's own deadline. The guard has an earlier one.
    fed_until: Duration,
    /// Children that this process had before: the program that `exec`ed this one may have started
    /// some.
    others: BTreeSet<u32>,
    terminate: Signal,
    interrupt: Signal,
}

impl Child {
    /// Starts a command with these variables added to its environment. The command begins when
    /// [`Child::wait`] is polled. With JSON its standard output is this process's standard error,
    /// because standard output is for the document.
    pub(crate) fn start(
        command: &[OsString],
        variables: &[(&str, OsString)],
        output: Output,
    ) -> Result<Self, CommandFailure> {
        let child = Self::try_start(command, variables, output);
        child.map_err(|error| CommandFailure::io("cannot run the command", &error))
    }

    fn try_start(command: &[OsString], variables: &[(&str, OsString)], output: Output) -> io::Result<Self> {
        prctl::set_child_subreaper(true)?;
        let (terminate, interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
        let others = children(std::process::id())?;
        let (food, feeder) = Feeder::pipe()?;
        let (question, asks) = io::pipe()?;
        let question = Some(Receiver::from_owned_fd(question.into())?);
        let mut command_line = process::Command::new(std::env::current_exe()?);
        command_line.arg("guard").arg(bequeath(&food)?.to_string()).arg(bequeath(&asks)?.to_string());
        command_line.arg("--").args(command);
        command_line.envs(variables.iter().map(|(name, value)| (name, value)));
        if output.json {
            command_line.stdout(io::stderr());
        }
        let guard = command_line.spawn()?;
        Ok(Self { guard, feeder, question, fed_until: Duration::ZERO, others, terminate, interrupt })
    }

    /// Waits until the command has ended, and prolongs its deadline by `remaining`. It passes
    /// SIGTERM on to the command; SIGINT comes from the terminal, which signals the command too. If
    /// this future is dropped, nothing prolongs the deadline, and the guard kills the command when
    /// it passes.
    pub(crate) async fn wait(&mut self, remaining: impl Fn() -> Duration) -> Result<ChildEnd, CommandFailure> {
        loop {
            let ask_after = self.feed(&remaining);
            tokio::select! {
                status = self.guard.wait() => {
                    let status = status.map_err(|error| CommandFailure::io("cannot wait for the command", &error))?;
                    return match (status.code(), status.signal()) {
                        (Some(code), _) => Ok(ChildEnd::Status(u8::try_from(code).unwrap_or(u8::MAX))),
                        (None, by) => {
                            self.kill_all().await?;
                            if by == Some(guard::OVERDUE as i32) { Ok(ChildEnd::Overdue) } else { Err(unguarded()) }
                        }
                    };
                }
                () = asked(self.question.as_mut()) => {
                    self.question = None;
                    self.feeder.send(FeedMessage::Leave);
                }
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => self.feeder.send(FeedMessage::Terminate),
                () = tokio::time::sleep(ask_after) => {}
            }
        }
    }

    /// Sends the guard a new deadline, if it is enough later than the last one. Returns when to
    /// call again.
    fn feed(&mut self, remaining: impl Fn() -> Duration) -> Duration {
        // Reads the clock before `remaining`: a delay between the two makes the deadline no later.
        let now = boot_time();
        let certain = remaining();
        let until = now.saturating_add(certain);
        // A remaining time of zero starts no command and prolongs nothing.
        if !certain.is_zero() && until.saturating_sub(self.fed_until) > certain / 16 {
            self.fed_until = until;
            self.feeder.send(FeedMessage::Until(until.saturating_sub(LEAD_MAX.min(certain / 8))));
        }
        (certain / 8).clamp(ASK_EVERY_MIN, ASK_EVERY_MAX)
    }

    /// Kills the command, its descendants and its guard, and waits until all have ended.
    pub(crate) async fn kill_all(&mut self) -> Result<(), CommandFailure> {
        let cannot = |error: io::Error| CommandFailure::io("cannot list the command's descendants", &error);
        while !kill_once(&self.others).map_err(cannot)? {
            tokio::time::sleep(GONE_EVERY).await;
        }
        Ok(())
    }
}

/// Waits until the guard asks or has ended. Never returns after the first time.
async fn asked(question: Option<&mut Receiver>) {
    match question {
        // The end of the guard counts as a question too; nobody reads the answer then.
        Some(question) => drop(question.read_u8().await),
        None => future::pending().await,
    }
}

fn unguarded() -> CommandFailure {
    let text = "guard killed; the command and its descendants were killed too";
    CommandFailure::refused("guard_killed", text)
}
