//! Finds and kills the descendants of a process.
//!
//! The kernel reparents orphans to the nearest subreaper above them. So each descendant of a
//! subreaper's child stays below it, also one that has its own session or was forked twice.

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
    /// Whether no child is left. Then no descendant is left either.
    pub(super) is_childless: bool,
}

/// Reaps all children that have ended.
///
/// It does not use nix, which loses the status of a process that a real-time signal ended.
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

/// Kills the descendants of this process except the spared children, and reaps those that have
/// ended. Returns whether none is left. Callers repeat it, as a process can fork during the search.
///
/// A search that finds no running process proves nothing: it may have seen a process that had just
/// ended, and missed its children.
pub(super) fn kill_once(spared: &BTreeSet<u32>) -> io::Result<bool> {
    let this = std::process::id();
    kill_below(this, spared)?;
    if reap()?.is_childless {
        return Ok(true);
    }
    Ok(!spared.is_empty() && children(this)?.iter().all(|id| spared.contains(id)))
}

/// Kills each process as soon as it finds it, to catch one that forks and ends over and over.
fn kill_below(of: u32, spared: &BTreeSet<u32>) -> io::Result<()> {
    let mut found = BTreeSet::from([of]);
    let mut parents = vec![of];
    while let Some(parent) = parents.pop() {
        let children = match children(parent) {
            Ok(children) => children,
            Err(error) if parent == of => return Err(error),
            // The process has ended. Its children belong to this process now.
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

/// The children of a process, including those that have ended.
pub(super) fn children(of: u32) -> io::Result<BTreeSet<u32>> {
    let mut found: Option<BTreeSet<u32>> = None;
    for thread in fs::read_dir(format!("/proc/{of}/task"))? {
        // A thread that has ended meanwhile passed its children on to another thread.
        let Ok(children) = fs::read_to_string(thread?.path().join("children")) else { continue };
        let children = children.split_ascii_whitespace().filter_map(|id| id.parse::<u32>().ok());
        found.get_or_insert_default().extend(children);
    }
    found.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Ignores errors: a process that has ended needs no signal.
pub(super) fn send(id: u32, what: signal::Signal) {
    if let Ok(id) = i32::try_from(id) {
        let _ = signal::kill(Pid::from_raw(id), what);
    }
}
