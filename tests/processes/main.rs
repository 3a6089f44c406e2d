//! The whole system, in real processes on this machine. The tests check what users see
//! (`tests/processes/README.md`) when processes are killed, stopped or wiped, and input is garbage.
//! They also cut networks, fill disks and set clocks wrong.
//!
//! Servers and commands are processes of the binary, on free ports, with data in temporary
//! directories. Where networks are cut, each is in its own network namespace ([`world`]). To see
//! every moment of a cache, a test is a client itself, or starts clients that record their
//! operations ([`workload`]). The records are then checked for linearizability ([`history`]).
//!
//! One test runs at a time, because tests measure time and the machine may be small. No test waits
//! for a fixed time for an event. Deadlines are generous, because the machine may be busy too.
//!
//! `cargo test --test processes -- --nocapture` prints what was measured. A failed test prints the
//! ends of its servers' logs. A test that lacks a tool (root, iproute2, libfaketime, etcd) fails.
//! With `LEASEHOLD_ALLOW_SKIPS=1` it is skipped instead, and noted ([`skips`]).

#[path = "../common/mod.rs"]
mod common;

mod abandoned;
mod bad_input;
mod candidate;
mod changes;
mod clocks;
mod consent;
mod crash;
mod cuts;
mod day;
mod demo;
mod descriptors;
mod disk;
mod drift;
mod elections;
mod ends;
mod etcd;
mod failover;
mod figures;
mod files;
mod history;
mod identity;
mod lease_clocks;
mod lines;
mod loss;
mod nemesis;
mod network;
mod partition;
mod pause;
mod pushes;
mod quorum;
mod reattach;
mod rebuild;
mod registrations;
mod reigns;
mod remaining;
mod restart;
mod skips;
mod snapshot;
mod stalls;
mod standbys;
mod stop;
mod strangers;
mod watching;
mod worker;
mod workload;
mod world;

use std::sync::{Mutex, MutexGuard, PoisonError};

use leasehold_client_cache::NodePath;

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Each test holds this while it runs.
pub(crate) struct Alone {
    _turn: MutexGuard<'static, ()>,
}

/// Waits until no other test runs. This blocks its thread, on which nothing else runs.
pub(crate) fn alone() -> Alone {
    // A failed test leaves nothing behind.
    Alone { _turn: ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner) }
}

/// A path that must be valid.
pub(crate) fn path(text: &str) -> NodePath {
    NodePath::parse(text).expect("a valid path")
}

/// A number from the environment that says how much is done.
pub(crate) fn number(name: &str, unless_set: u64) -> u64 {
    let set = std::env::var(name).ok();
    set.map_or(unless_set, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text:?}: expected a number")))
}
