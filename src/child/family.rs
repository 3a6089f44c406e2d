//! The processes that a process has begun, and their end.
//!
//! The kernel makes orphans children of the nearest subreaper above them. So whatever a subreaper's
//! children begin stays below it: also what has a session of its own, or was forked twice.

use std::{collections::BTreeSet, fs, io, os::unix::process::ExitStatusExt, process::ExitStatus};

use nix::{sys::signal, unistd::Pid};
use rustix::{
    io::Errno,
    process::{WaitOptions, wait},
};

/// A child that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Exited {
    pub(super) id: u32,
    pub(super) status: ExitStatus,
}

/// Children that have ended.
#[derive(Debug)]
pub(super) struct Reaped {
    pub(super) ended: Vec<Exited>,
    /// Whether there is no child left. Then there is no descendant either.
    pub(super) is_childless: bool,
}

/// Takes note of all children that have ended.
///
/// Not by nix, which loses the status of a process that a real-time signal has ended.
pub(super) fn reap() -> io::Result<Reaped> {
    let mut ended = Vec::new();
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((id, status))) => {
                let id = u32::try_from(id.as_raw_nonzero().get()).expect("process ids are positive");
                ended.push(Exited { id, status: ExitStatus::from_raw(status.as_raw()) });
            }
            Ok(None) => return Ok(Reaped { ended, is_childless: false }),
            Err(Errno::CHILD) => return Ok(Reaped { ended, is_childless: true }),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Kills what this process has begun, but for these children, and takes note of what has ended.
/// Whether nothing of it is left: a process can begin others while this looks, so it is done again
/// until then.
///
/// To find no running process is no proof. The look may have seen a process that had just ended,
/// and missed its children.
pub(super) fn kill_once(spared: &BTreeSet<u32>) -> io::Result<bool> {
    let this = std::process::id();
    kill_below(this, spared)?;
    if reap()?.is_childless {
        return Ok(true);
    }
    Ok(!spared.is_empty() && children(this)?.iter().all(|id| spared.contains(id)))
}

/// Each is killed as soon as it is found: a process that forks and ends over and over is met in
/// time.
fn kill_below(of: u32, spared: &BTreeSet<u32>) -> io::Result<()> {
    let mut found = BTreeSet::from([of]);
    let mut parents = vec![of];
    while let Some(parent) = parents.pop() {
        let children = match children(parent) {
            Ok(children) => children,
            Err(error) if parent == of => return Err(error),
            // It has ended, and its children are this process's by now.
            Err(_) => continue,
        };
        for child in children {
            if !spared.contains(&child) && found.insert(child) {
                send(child, signal::Signal::SIGKILL);
                parents.push(child);
            }
        }
    }
    Ok(())
}

/// The children of a process, those that have ended included.
pub(super) fn children(of: u32) -> io::Result<BTreeSet<u32>> {
    let mut found: Option<BTreeSet<u32>> = None;
    for thread in fs::read_dir(format!("/proc/{of}/task"))? {
        // A thread that ends meanwhile has handed its children on to another.
        let Ok(children) = fs::read_to_string(thread?.path().join("children")) else { continue };
        let children = children.split_ascii_whitespace().filter_map(|id| id.parse::<u32>().ok());
        found.get_or_insert_default().extend(children);
    }
    found.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// One that has gone needs no signal.
pub(super) fn send(id: u32, what: signal::Signal) {
    if let Ok(id) = i32::try_from(id) {
        let _ = signal::kill(Pid::from_raw(id), what);
    }
}
