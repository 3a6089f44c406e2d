//! A command that runs only as long as something is held.
//!
//! It is started by way of a [`guard`], a process that kills the command and all that it has begun
//! when this process dies, or when this process stops saying that it may go on. This process does
//! the same if the guard dies, and when what is held is over.
//!
//! Both are subreapers: what a command has begun stays below them, whatever its process group,
//! session or parent. Out of reach are processes of another user, and the command's descendants if
//! this process and the guard are killed at the same moment. (The kernel then kills the command
//! itself.)

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

use crate::exit::CommandFailure;
use family::{children, kill_once};
use feed::{FeedMessage, Feeder, bequeath, boot_time};

/// The deadline of a command that needs no hold. It is moved on with each message.
pub(crate) const UNLIMITED: Duration = Duration::from_secs(365 * 24 * 3600);

/// To kill takes a guard a moment. It begins this much before what is held is over, or an eighth of
/// what is left when that is said, if that is less.
const LEAD_MAX: Duration = Duration::from_millis(50);

/// How often it is looked how long the command may go on: a lease is renewed at half of its term,
/// so an eighth is often enough.
const LOOK_MIN: Duration = Duration::from_millis(5);
const LOOK_MAX: Duration = Duration::from_millis(250);

/// How often it is looked whether what was killed is gone. The kernel takes no longer, as a rule.
const GONE_EVERY: Duration = Duration::from_millis(1);

/// How a command has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChildEnd {
    /// As a shell would say it: 128 and the signal's number if a signal ended it.
    Status(u8),
    /// It was killed because it was not known in time that it may go on.
    Overdue,
}

/// A command that runs.
#[derive(Debug)]
pub(crate) struct Child {
    guard: process::Child,
    feeder: Feeder,
    /// Where the guard asks whether what the command has left running may run on. Once.
    question: Option<Receiver>,
    /// The deadline that the holder knows. The guard was told an earlier one.
    fed_until: Duration,
    /// Children that this process had before: whoever became this program may have begun some.
    others: BTreeSet<u32>,
    terminate: Signal,
    interrupt: Signal,
}

impl Child {
    /// Starts a command with these variables in its environment, beside ours. It begins when
    /// [`Child::ended`] is waited for.
    pub(crate) fn start(command: &[OsString], variables: &[(&str, OsString)]) -> Result<Self, CommandFailure> {
        Self::try_start(command, variables).map_err(|error| CommandFailure::io("cannot run the command", &error))
    }

    fn try_start(command: &[OsString], variables: &[(&str, OsString)]) -> io::Result<Self> {
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
        let guard = command_line.spawn()?;
        Ok(Self { guard, feeder, question, fed_until: Duration::ZERO, others, terminate, interrupt })
    }

    /// Waits until it has ended, and lets it run for as long as this says at each look. What tells
    /// this process to stop is passed on to it; the terminal has told it already. If this future is
    /// dropped, no deadline is moved on, and the guard kills the command at the last one.
    pub(crate) async fn wait(&mut self, remaining: impl Fn() -> Duration) -> Result<ChildEnd, CommandFailure> {
        loop {
            let look_after = self.feed(&remaining);
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
                () = tokio::time::sleep(look_after) => {}
            }
        }
    }

    /// Tells the guard until when the command may run, if that is later than it knows by enough to
    /// be worth it. Returns when to look again.
    fn feed(&mut self, remaining: impl Fn() -> Duration) -> Duration {
        // Before it is asked how much is left, so that a delay in between makes the deadline no
        // later.
        let now = boot_time();
        let certain = remaining();
        let until = now.saturating_add(certain);
        // What is not certain starts no command, and prolongs nothing.
        if !certain.is_zero() && until.saturating_sub(self.fed_until) > certain / 16 {
            self.fed_until = until;
            self.feeder.send(FeedMessage::Until(until.saturating_sub(LEAD_MAX.min(certain / 8))));
        }
        (certain / 8).clamp(LOOK_MIN, LOOK_MAX)
    }

    /// Kills it, with all that it has begun and its guard, and waits until nothing of it is left.
    pub(crate) async fn kill_all(&mut self) -> Result<(), CommandFailure> {
        let cannot = |error: io::Error| CommandFailure::io("cannot find out what the command has begun", &error);
        while !kill_once(&self.others).map_err(cannot)? {
            tokio::time::sleep(GONE_EVERY).await;
        }
        Ok(())
    }
}

/// Waits until the guard asks, or has ended. For ever if it has done so before.
async fn asked(question: Option<&mut Receiver>) {
    match question {
        // That it has ended is a question too, but nobody is there for the answer.
        Some(question) => drop(question.read_u8().await),
        None => future::pending().await,
    }
}

fn unguarded() -> CommandFailure {
    let text = "the guard was killed, so the command and all that it began were killed too";
    CommandFailure::refused("guard_killed", text)
}
