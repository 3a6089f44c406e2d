//! The simulator: the shipped rules run in virtual time, under faults.
//!
//! [`State`](leasehold_protocol::state::State), [`Lessor`](leasehold_protocol::lessor::Lessor) and
//! [`Holder`](leasehold_protocol::holder::Holder) are the shipped code. The shells around them, and
//! the judge of reads, are those of `leasehold-model`. Raft (`raft`), the network, disks and
//! applications are minimal stand-ins. A seed decides everything, also which faults occur and how
//! often. The same seed is the same run. Faults come first; then they stop, and everything must
//! heal.
//!
//! `cargo run --release -p leasehold-simulation -- --seed 7` runs one seed; `--seeds 100000`
//! searches. Module `invariants` has one file for each invariant and runs after every step. A
//! second checker, [`history`], judges what the servers answered the clients. It knows nothing of
//! the simulator. To test the harness, known mistakes are put back (`protocol/src/planted.rs`):
//! each must be found.
//!
//! Not modelled: Raft snapshots, truncated logs, disks that fail or lie, more than one Raft group.

mod adaptive_terms;
mod application;
mod caching;
mod churn;
mod client;
mod commits;
mod consent_delays;
mod event;
mod faults;
mod healing;
pub mod history;
mod invariants;
mod judges;
mod judging;
mod lease_names;
mod locks;
mod names;
mod network;
mod oracle;
mod profile;
mod quotas;
mod raft;
mod reached;
mod reported_reads;
mod search;
mod server;
mod swarm;
mod tally;
mod trace;
mod transactions;
mod update_policy;
mod watching;
mod world;

pub use judges::Judge;
pub use profile::Fault;
pub use reached::{BY_TESTS_OF_RULES, Bound};
pub use search::{Findings, repeat_command, search, search_as, search_on, shrink, tail, tally_of};
pub use tally::Tally;
pub use world::{Plan, Report, run};
