//! Exhaustive exploration of small worlds: everything that can happen in them under the shipped
//! rules.
//!
//! [`State`](leasehold_protocol::state::State), [`Lessor`](leasehold_protocol::lessor::Lessor) and
//! [`Holder`](leasehold_protocol::holder::Holder) are the shipped code. Raft, the network, clocks
//! and applications are stand-ins, as in the simulator.
//!
//! The simulator tries long random runs of large worlds. This crate takes a small [`World`] with at
//! most three clients, a few objects, faults and moments. It visits every situation that any order
//! of steps leads to. Its result covers that world only, but completely.
//!
//! The clients and servers are those of `leasehold-model`, and so are the checks of each client's
//! copies and leases. They run in every situation, like `oracle` and the invariants of the rules.
//! `ending` checks where nothing more can happen by itself. To test the harness, known mistakes are
//! put back (`protocol/src/planted.rs`).
//!
//! Not modelled: Raft itself and disks; more steps, faults and moments than a world declares;
//! clocks at other rates than the worst; requests that overtake each other on one connection,
//! except in worlds that allow one to.
//!
//! Why no existing model checker: stateright could explore this, but identifies situations by 64
//! bits of one hash of everything. Here each part keeps its own hash of 128 bits. With several
//! threads stateright promises no shortest path. It also brings a web server.

mod action;
mod beginning;
mod client;
mod ending;
mod explore;
mod oracle;
mod part;
mod run;
mod server;
mod situation;
pub mod world;
mod worlds;

pub use explore::{Report, Search, Violation, explore, walk};
pub use world::World;
pub use worlds::{all, named};

/// An exploration clones small maps at each step. With this allocator it takes a third less
/// processor time than with that of the C library.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
