//! The whole system, in real processes on this machine: what users are promised (docs, "who fails,
//! and what users see") when processes are killed, stopped, wiped and spoken to in garbage,
//! networks are cut, disks are full and clocks are wrong.
//!
//! Servers and command lines are processes of the binary, on free ports with data in temporary
//! directories; where networks are cut, each in a network namespace of its own ([`world`]). Where a
//! test wants to see every moment of a cache, it is a client itself, or starts clients that write
//! down what they are told ([`workload`]), which is then checked for linearizability ([`history`]).
//! One test runs at a time: what is measured is time, and the machine may be small. Nothing waits
//! for a fixed time for something to happen; deadlines are generous, because the machine may be
//! busy too.
//!
//! `cargo test --test processes -- --nocapture` prints what was measured. A test that fails prints
//! the ends of its servers' logs. A test that lacks what it needs (root, iproute2, libfaketime,
//! etcd) fails, or is skipped and noted as such where `LEASEHOLD_ALLOW_SKIPS=1` allows that
//! ([`skips`]).

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

/// To be held by each test while it runs.
pub(crate) struct Alone {
    _turn: MutexGuard<'static, ()>,
}

/// Waits for the test's turn. It blocks its thread, on which nothing else runs.
pub(crate) fn alone() -> Alone {
    // A test that failed leaves nothing behind.
    Alone { _turn: ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner) }
}

/// A path that is known to be one.
pub(crate) fn path(text: &str) -> NodePath {
    NodePath::parse(text).expect("a valid path")
}

/// A number that the surroundings may set: how much is done.
pub(crate) fn number(name: &str, unless_set: u64) -> u64 {
    let set = std::env::var(name).ok();
    set.map_or(unless_set, |text| text.parse().unwrap_or_else(|_| panic!("{name}={text:?}: expected a number")))
}
