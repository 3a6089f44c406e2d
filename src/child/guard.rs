//! A process between a holder and its command: it ends the command in time, whatever becomes of the
//! holder.
//!
//! The holder feeds it deadlines through a pipe. If a deadline comes without the next one, because
//! the holder was stopped or is cut off, or if the holder has died, the guard kills the
//! command and all its descendants. It is their subreaper.
//!
//! It has a session of its own, and blocks all signals that it can. So what is sent to the job as a
//! whole (Ctrl-C, Ctrl-Z, a hangup, `kill -9 -- -PGID`) reaches the holder and the command, and not
//! the guard. The command is in the holder's group, as if the holder had started it.
//!
//! A process group of its own, in the holder's session, is not enough. As the command's parent, the
//! guard would then tie the holder's group to its session. When it exits, the kernel sends a hangup
//! to the whole group, if nothing else ties it and a process in it is stopped (see *orphaned
//! process group* in setpgid(2)).
//!
//! When the command has exited by itself and left something running, the guard asks the holder. If
//! the holder lives, that runs on, as it does without a guard.
//!
//! If the guard is killed, the kernel kills the command (see [`become_command`]), and the holder
//! kills the rest.
//!
//! It knows nothing of leases. What it cannot do: act while it stands still itself, with the whole
//! machine or container.

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

/// What shells say of a command that is not there, and of one that cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;
/// What shells add to the number of the signal that ended a command.
const BY_SIGNAL: i32 = 128;

/// A guard that was not fed in time ends by this signal: any exit status may be the command's.
pub(super) const OVERDUE: Signal = Signal::SIGALRM;

/// How often the guard looks whether killed processes are gone. Often at first, to meet processes
/// that fork over and over. Seldom later: what remains is stuck in the kernel, or is another
/// user's.
const LOOK_AT_FIRST: Duration = Duration::from_millis(1);
const LOOK_LATER: Duration = Duration::from_millis(100);
const LOOKS_AT_FIRST: u32 = 1000;

/// Guards a command until it ends or has to be killed. Returns the command's status.
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
            // Somebody has it ignored.
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

/// What a shell would say.
fn code(status: ExitStatus) -> u8 {
    let by_signal = status.signal().map(|signal| BY_SIGNAL + signal);
    let code = status.code().or(by_signal).unwrap_or(BY_SIGNAL);
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// Why there is nothing more to guard.
#[derive(Debug, Clone, Copy)]
enum GuardEnd {
    /// The command has exited by itself. What it has left running runs on, and holds nothing.
    ByItself(ExitStatus),
    /// The command was ended by a signal, or exited after it was told to stop. What it has left
    /// running was not told: it is killed.
    Stopped(ExitStatus),
    /// The deadline has passed.
    Overdue,
    /// The holder has died.
    Orphaned,
}

#[derive(Debug)]
struct Guard {
    feed: Feed,
    /// Where it asks the holder whether what the command has left running may run on. Once.
    question: Option<File>,
    command: u32,
    /// Lets the command begin.
    go: Option<PipeWriter>,
    until: Option<Duration>,
    is_told_to_stop: bool,
    /// How the command has ended, if it has.
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
        // It is started in the holder's process group and with the holder's signals. The guard
        // leaves both after that.
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

    /// Waits until there is nothing more to guard.
    fn watch(&mut self) -> io::Result<GuardEnd> {
        loop {
            // Also before the first wait: it may have ended before its signal was waited for.
            if let Some(end) = self.ended()? {
                return Ok(end);
            }
            let [is_fed, is_time] = self.wait()?;
            // What the holder has said in time counts, however late this process reads it.
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

    /// Takes note of what has ended. None if there is something to guard.
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
        // A hangup, say, makes commands exit that clean up, and kills the holder a moment later:
        // only the holder's answer shows that it lives.
        if let Some(mut question) = self.question.take() {
            // If nobody reads it, the holder has died, which the feed says soon.
            let _ = question.write_all(&[0]);
        }
        Ok(None)
    }

    /// Waits until something happens: whether there is something to be read, and whether it is
    /// time.
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
        // The end of a pipe is something to be read too.
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
                // The number of one that has ended may be another's.
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
            // If nobody reads it, the command has ended already.
            let _ = go.write_all(&[0]);
        }
    }

    /// Kills all that the command has begun, and waits until nothing of it is left.
    fn kill_all(&self) -> io::Result<()> {
        let mut looks = 0;
        while !kill_once(&BTreeSet::new())? {
            looks = LOOKS_AT_FIRST.min(looks + 1);
            std::thread::sleep(if looks < LOOKS_AT_FIRST { LOOK_AT_FIRST } else { LOOK_LATER });
        }
        Ok(())
    }
}

/// Becomes the command when the guard lets it begin, in a process that ends with the guard. Returns
/// only if it cannot.
pub(crate) fn become_command(
    guard: u32,
    go: i32,
    command: &[OsString],
) -> Result<Infallible, (CommandFailure, CliStatus)> {
    let cannot = |error: io::Error| {
        (CommandFailure::io("cannot tie the command to its lock", &error), CliStatus::Command(NOT_RUNNABLE))
    };
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(|errno| cannot(errno.into()))?;
    // It may have died before the kernel knew.
    if getppid().as_raw().try_into() != Ok(guard) {
        return Err(cannot(Errno::ESRCH.into()));
    }
    let mut go = inherited(go, File::options().read(true)).map_err(cannot)?;
    go.read_exact(&mut [0]).map_err(cannot)?;
    drop(go);
    let Some((program, arguments)) = command.split_first() else {
        return Err((CommandFailure::usage("expected a command"), CliStatus::Usage));
    };
    let error = Command::new(program).args(arguments).exec();
    let status = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUNNABLE };
    Err((CommandFailure::io(format!("cannot run {}", program.to_string_lossy()), &error), CliStatus::Command(status)))
}
