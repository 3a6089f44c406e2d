//! A command that runs only as long as something is held.
//!
//! It is started by way of this program ([`become_command`]), which asks the kernel to kill it if this process dies: a holder that is
//! killed leaves no command running. All processes that the command has begun can be found, because those whose parent has gone
//! become this process's own children.

use std::{
    collections::BTreeSet,
    convert::Infallible,
    ffi::OsString,
    fs, io,
    os::unix::process::{CommandExt, ExitStatusExt},
    process::{Command, ExitStatus},
    time::Duration,
};

use nix::{
    errno::Errno,
    sys::{prctl, signal},
    unistd::Pid,
};
use tokio::{
    process,
    signal::unix::{Signal, SignalKind, signal as listen},
};

use crate::exit::{Failure, Status};

/// What shells say of a command that is not there, and of one that cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_RUNNABLE: u8 = 126;
/// What shells add to the number of the signal that ended a command.
const BY_SIGNAL: i32 = 128;

/// How often it is looked whether what was killed is gone. The kernel takes no longer, as a rule.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// A command that runs.
#[derive(Debug)]
pub(crate) struct Child {
    process: process::Child,
    terminate: Signal,
    interrupt: Signal,
}

impl Child {
    /// Starts a command with these variables in its environment, beside ours.
    pub(crate) fn start(command: &[OsString], variables: &[(&str, OsString)]) -> Result<Self, Failure> {
        let cannot = |error: io::Error| Failure::io("cannot run the command", &error);
        prctl::set_child_subreaper(true).map_err(|errno| cannot(errno.into()))?;
        let signals = listen(SignalKind::terminate()).and_then(|one| Ok((one, listen(SignalKind::interrupt())?)));
        let (terminate, interrupt) = signals.map_err(cannot)?;
        let program = std::env::current_exe().map_err(cannot)?;
        let mut command_line = process::Command::new(program);
        command_line.arg("run-tied").arg(std::process::id().to_string()).arg("--").args(command);
        command_line.envs(variables.iter().map(|(name, value)| (name, value)));
        let process = command_line.spawn().map_err(cannot)?;
        Ok(Self { process, terminate, interrupt })
    }

    /// Waits until it has ended, and gives its status: 128 and the signal's number if a signal ended it. What tells this process to stop is passed on to it; the terminal has told it already.
    pub(crate) async fn ended(&mut self) -> Result<u8, Failure> {
        loop {
            tokio::select! {
                status = self.process.wait() => {
                    let status = status.map_err(|error| Failure::io("cannot wait for the command", &error))?;
                    return Ok(code(status));
                }
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {
                    if let Some(id) = self.process.id() {
                        send(id, signal::Signal::SIGTERM);
                    }
                }
            }
        }
    }

    /// Kills it, with all that it has begun, and waits until nothing of it is left.
    pub(crate) async fn kill_all(&mut self) -> Result<(), Failure> {
        let cannot = |error: io::Error| Failure::io("cannot find out what the command has begun", &error);
        loop {
            let running = descendants(std::process::id()).map_err(cannot)?;
            running.iter().for_each(|id| send(*id, signal::Signal::SIGKILL));
            // It is ours to wait for; what it has left behind is counted until the kernel has ended it.
            if running.is_empty() {
                break;
            }
            self.process.wait().await.map_err(cannot)?;
            reap();
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Ok(())
    }
}

/// What a shell would say.
fn code(status: ExitStatus) -> u8 {
    let by_signal = status.signal().map(|signal| BY_SIGNAL + signal);
    let code = status.code().or(by_signal).unwrap_or(BY_SIGNAL);
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// One that has gone needs no signal.
fn send(id: u32, what: signal::Signal) {
    if let Ok(id) = i32::try_from(id) {
        let _ = signal::kill(Pid::from_raw(id), what);
    }
}

/// Takes note of orphans that have ended.
fn reap() {
    use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
    while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
        if status == WaitStatus::StillAlive {
            return;
        }
    }
}

/// The processes that a process has begun, and those that they have, but for what has ended.
fn descendants(of: u32) -> io::Result<BTreeSet<u32>> {
    let mut found = BTreeSet::new();
    let mut parents = vec![of];
    while let Some(parent) = parents.pop() {
        let Ok(threads) = fs::read_dir(format!("/proc/{parent}/task")) else { continue };
        for thread in threads {
            // A thread that ends meanwhile has handed its children on to another.
            let Ok(children) = fs::read_to_string(thread?.path().join("children")) else { continue };
            let children = children.split_ascii_whitespace().filter_map(|id| id.parse().ok());
            let new: Vec<u32> = children.filter(|id| is_running(*id) && found.insert(*id)).collect();
            parents.extend(new);
        }
    }
    Ok(found)
}

/// Whether a process has not ended.
fn is_running(id: u32) -> bool {
    let Ok(stat) = fs::read_to_string(format!("/proc/{id}/stat")) else { return false };
    // The state follows the name, which is in parentheses and may hold any.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Becomes the command, in a process that ends with its parent. Returns only if it cannot.
pub(crate) fn become_command(parent: u32, command: &[OsString]) -> Result<Infallible, (Failure, Status)> {
    let cannot = |errno: Errno| {
        (Failure::io("cannot tie the command to its lock", &errno.into()), Status::Command(NOT_RUNNABLE))
    };
    prctl::set_pdeathsig(signal::Signal::SIGKILL).map_err(cannot)?;
    // It may have died before the kernel knew.
    if nix::unistd::getppid().as_raw().try_into() != Ok(parent) {
        return Err(cannot(Errno::ESRCH));
    }
    let Some((program, arguments)) = command.split_first() else {
        return Err((Failure::usage("expected a command"), Status::Usage));
    };
    let error = Command::new(program).args(arguments).exec();
    let status = if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_RUNNABLE };
    Err((Failure::io(format!("cannot run {}", program.to_string_lossy()), &error), Status::Command(status)))
}
