//! The process between an owner and its command. It ends the command in time, whatever happens to
//! the owner.
//!
//! The owner sends deadlines through a pipe. If the owner is stopped or cut off, the deadline
//! passes. In that case, and if the owner dies, the guard kills the command and all its
//! descendants. It is their subreaper.
//!
//! The guard has its own session and blocks every signal that can be blocked. So a signal to the
//! whole job (Ctrl-C, Ctrl-Z, a hangup, `kill -9 -- -PGID`) reaches the owner and the command, not
//! the guard. The command is in the owner's group, as if the owner had started it.
//!
//! Its own process group within the owner's session would not suffice. As the command's parent, the
//! guard would link the owner's group to the session. Suppose that nothing else links that group,
//! and that a process in it is stopped. Then the kernel sends a hangup to the group when the guard
//! exits (*orphaned process group* in setpgid(2)).
//!
//! If the command exits and leaves descendants, the guard asks the owner. If the owner lives, they
//! continue, as they would without a guard.
//!
//! If the guard is killed, the kernel kills the command (see [`become_command`]), and the owner
//! kills the descendants.
//!
//! It knows nothing of leases. It cannot act while it is itself stopped with the machine or
//! container.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    ffi::OsString,
    fs::File,
    io::{self, PipeWriter, Read, Write},
    os::{
        fd::AsFd,
        unix::process::{CommandExt, ExitStatusExt},
    },
    process::{Command, ExitStatus},
    time::Duration,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        prctl,
        signal::{SigSet, Signal, raise},
        signalfd::{SfdFlags, SignalFd},
        timerfd::{self, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags},
    },
    unistd::{getppid, setsid},
};

use super::{
    family::{Reaped, kill_once, reap, send},
    feed::{Feed, FeedMessage, bequeath, boot_time, inherited},
};
use crate::exit::{CliStatus, CommandFailure};

/// The statuses of shells for a command that is not found, and for one that cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;
/// Shells add this to the number of the signal that ended a command.
const BY_SIGNAL: i32 = 128;

/// The guard ends by this signal after a missed deadline: any exit status may be the command's.
pub(super) const OVERDUE: Signal = Signal::SIGALRM;

/// How often the guard checks whether killed processes have ended. Often at first, to catch
/// processes that fork over and over. Rarely later, as the rest is stuck in the kernel or belongs
/// to another user.
const CHECK_EVERY_AT_FIRST: Duration = Duration::from_millis(1);
const CHECK_EVERY_LATER: Duration = Duration::from_millis(100);
const CHECKS_AT_FIRST: u32 = 1000;

/// Guards a command until it ends or must be killed. Returns the command's status.
pub(crate) fn run(feed: i32, question: i32, command: &[OsString]) -> Result<CliStatus, (CommandFailure, CliStatus)> {
    let guarded = Guard::start(feed, question, command).and_then(|mut guard| {
        let end = guard.watch();
        if !matches!(end, Ok(GuardEnd::ByItself(_))) {
            guard.kill_all()?;
        }
        end
    });
    match guarded {
        Ok(GuardEnd::ByItself(status) | GuardEnd::Stopped(status)) => Ok(CliStatus::of_command(code(status))),
        Ok(GuardEnd::Overdue) => {
            SigSet::from(OVERDUE)
                .thread_unblock()
                .and_then(|()| raise(OVERDUE))
                .map_err(|errno| cannot(errno.into()))?;
            // This process ignores that signal, so it uses one that cannot be ignored.
            raise(Signal::SIGKILL).map_err(|errno| cannot(errno.into()))?;
            Ok(CliStatus::Refused)
        }
        Ok(GuardEnd::Orphaned) => Ok(CliStatus::Refused),
        Err(error) => Err(cannot(error)),
    }
}

fn cannot(error: io::Error) -> (CommandFailure, CliStatus) {
    (CommandFailure::io("cannot guard the command", &error), CliStatus::Command(NOT_RUNNABLE))
}

/// The status as a shell reports it.
fn code(status: ExitStatus) -> u8 {
    let by_signal = status.signal().map(|signal| BY_SIGNAL + signal);
    let code = status.code().or(by_signal).unwrap_or(BY_SIGNAL);
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// Why the guard stopped watching.
#[derive(Debug, Clone, Copy)]
enum GuardEnd {
    /// The command exited by itself. Its descendants continue, without the lock.
    ByItself(ExitStatus),
    /// A signal ended the command, or it exited after SIGTERM. Its descendants got no signal, so
    /// the guard kills them.
    Stopped(ExitStatus),
    /// The deadline passed.
    Overdue,
    /// The owner died.
    Orphaned,
}

#[derive(Debug)]
struct Guard {
    feed: Feed,
    /// The pipe on which the guard asks, once, whether the command's descendants may continue.
    question: Option<File>,
    command: u32,
    /// Lets the command begin.
    go: Option<PipeWriter>,
    until: Option<Duration>,
    is_told_to_stop: bool,
    status: Option<ExitStatus>,
    may_leave: bool,
    timer: TimerFd,
    children: SignalFd,
}

impl Guard {
    /// Starts the command, which waits for the first deadline.
    fn start(feed: i32, question: i32, command: &[OsString]) -> io::Result<Self> {
        let feed = Feed(inherited(feed, File::options().read(true))?);
        let question = Some(inherited(question, File::options().write(true))?);
        prctl::set_child_subreaper(true)?;
        let (waits, go) = io::pipe()?;
        let mut command_line = Command::new(std::env::current_exe()?);
        command_line.arg("run-tied").arg(std::process::id().to_string()).arg(bequeath(&waits)?.to_string());
        // The command starts in the owner's process group and with the owner's signals. The guard
        // leaves both afterwards.
        let command = command_line.arg("--").args(command).spawn()?.id();
        drop(waits);
        setsid()?;
        SigSet::all().thread_block()?;
        let children =
            SignalFd::with_flags(&SigSet::from(Signal::SIGCHLD), SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        let timer = TimerFd::new(timerfd::ClockId::CLOCK_BOOTTIME, TimerFlags::TFD_NONBLOCK | TimerFlags::TFD_CLOEXEC)?;
        let (until, status) = (None, None);
        let (go, is_told_to_stop, may_leave) = (Some(go), false, false);
        Ok(Self { feed, question, command, go, until, is_told_to_stop, status, may_leave, timer, children })
    }

    /// Waits until nothing is left to guard.
    fn watch(&mut self) -> io::Result<GuardEnd> {
        loop {
            // Also before the first wait: the command may have ended before its signal was watched.
            if let Some(end) = self.ended()? {
                return Ok(end);
            }
            let [is_fed, is_time] = self.wait()?;
            // A message that the owner sent in time counts, however late the guard reads it.
            if is_fed {
                let Some(messages) = self.feed.read()? else { return Ok(GuardEnd::Orphaned) };
                messages.into_iter().try_for_each(|message| self.hear(message))?;
            }
            let is_overdue = self.until.is_some_and(|until| until <= boot_time());
            if is_overdue || (is_time && !is_fed) {
                return Ok(GuardEnd::Overdue);
            }
            self.begin();
        }
    }

    /// Reaps children. `None` if there is still something to guard.
    fn ended(&mut self) -> io::Result<Option<GuardEnd>> {
        let Reaped { ended, is_childless } = reap()?;
        let command = ended.into_iter().find(|ended| ended.id == self.command);
        self.status = self.status.or(command.map(|ended| ended.status));
        let Some(status) = self.status else { return Ok(None) };
        if status.signal().is_some() || self.is_told_to_stop {
            return Ok(Some(GuardEnd::Stopped(status)));
        }
        if is_childless || self.may_leave {
            return Ok(Some(GuardEnd::ByItself(status)));
        }
        // A command may clean up and exit at a hangup that kills the owner a moment later. Only the
        // owner's answer shows that it lives.
        if let Some(mut question) = self.question.take() {
            // If writing fails, the owner has died; the feed soon shows it.
            let _ = question.write_all(&[0]);
        }
        Ok(None)
    }

    /// Waits for an event. Returns whether the feed is readable, and whether the deadline has come.
    fn wait(&self) -> io::Result<[bool; 2]> {
        let mut sources = [self.feed.0.as_fd(), self.timer.as_fd(), self.children.as_fd()]
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        loop {
            match poll(&mut sources, PollTimeout::NONE) {
                Ok(_) => break,
                Err(Errno::EINTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        // The end of a pipe makes it readable too.
        let [is_fed, is_time, _] = sources.map(|source| source.any().unwrap_or(true));
        while self.children.read_signal()?.is_some() {}
        Ok([is_fed, is_time])
    }

    fn hear(&mut self, message: FeedMessage) -> io::Result<()> {
        match message {
            FeedMessage::Until(until) => {
                self.until = Some(until);
                let timer = Expiration::OneShot(until.into());
                self.timer.set(timer, TimerSetTimeFlags::TFD_TIMER_ABSTIME)?;
            }
            FeedMessage::Terminate => {
                self.is_told_to_stop = true;
                // The process id of an ended command may belong to another process.
                if self.status.is_none() {
                    send(self.command, Signal::SIGTERM);
                }
            }
            FeedMessage::Leave => self.may_leave = true,
        }
        Ok(())
    }

    /// Lets the command begin once there is a deadline that has not passed.
    fn begin(&mut self) {
        if let Some(mut go) = self.go.take_if(|_| self.until.is_some()) {
            // If writing fails, the command has ended already.
            let _ = go.write_all(&[0]);
        }
    }

    /// Kills all descendants of the command and waits until they have ended.
    fn kill_all(&self) -> io::Result<()> {
        let mut checks = 0;
        while !kill_once(&BTreeSet::new())? {
            checks = CHECKS_AT_FIRST.min(checks + 1);
            std::thread::sleep(if checks < CHECKS_AT_FIRST { CHECK_EVERY_AT_FIRST } else { CHECK_EVERY_LATER });
        }
        Ok(())
    }
}

/// Becomes the command once the guard lets it begin. The kernel kills this process with the guard.
/// Returns only on failure.
pub(crate) fn become_command(
    guard: u32,
    go: i32,
    command: &[OsString],
) -> Result<Infallible, (CommandFailure, CliStatus)> {
    let cannot = |error: io::Error| {
        (CommandFailure::io("cannot tie the command to its lock", &error), CliStatus::Command(NOT_RUNNABLE))
    };
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(|errno| cannot(errno.into()))?;
    // The guard may have died before `set_pdeathsig`.
    if getppid().as_raw().try_into() != Ok(guard) {
        return Err(cannot(Errno::ESRCH.into()));
    }
    let mut go = inherited(go, File::options().read(true)).map_err(cannot)?;
    go.read_exact(&mut [0]).map_err(cannot)?;
    drop(go);
    let Some((program, arguments)) = command.split_first() else {
        return Err((CommandFailure::usage("command: missing"), CliStatus::Usage));
    };
    let error = Command::new(program).args(arguments).exec();
    let status = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUNNABLE };
    Err((CommandFailure::io(format!("cannot run {}", program.to_string_lossy()), &error), CliStatus::Command(status)))
}
