//! The simulator: the rules that are shipped, run in virtual time.
//!
//! Real are [`State`](leasehold_protocol::state::State),
//! [`Lessor`](leasehold_protocol::lessor::Lessor) and
//! [`Holder`](leasehold_protocol::holder::Holder). Stand-ins, as thin as they can be, are Raft
//! (`raft`), the network, clocks, disks and applications. A seed decides everything, also which
//! faults there are and how often: the same seed is the same run. Faults come first; then they
//! stop, and everything must heal.
//!
//! `cargo run --release -p leasehold-simulation -- --seed 7` runs one seed; `--seeds 100000`
//! searches. What must hold is in `invariants`, a file for each, looked at after every step. What
//! clients were told is judged once more, by a checker that knows nothing of all this: [`history`].
//! That the simulator would notice is shown by putting known mistakes back
//! (`protocol/src/planted.rs`): each must be found.
//!
//! Not modelled: snapshots and logs that are cut off, disks that fail or lie, more than one group.

mod application;
mod cache;
mod caching;
mod churn;
mod client;
mod clock;
mod event;
mod faults;
pub mod history;
mod invariants;
mod judges;
mod judging;
mod locks;
mod network;
mod oracle;
mod profile;
mod raft;
mod reached;
pub mod rng;
mod search;
mod server;
mod swarm;
mod tally;
mod trace;
mod transactions;
mod watching;
mod world;

pub use judges::Judge;
pub use profile::Fault;
pub use reached::{BY_TESTS_OF_RULES, Bound};
pub use search::{Findings, repeat_command, search, search_as, search_on, shrink, tail, tally_of};
pub use tally::Tally;
pub use world::{Plan, Report, run};
