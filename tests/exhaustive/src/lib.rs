//! Exhaustive exploration of small worlds: all that can happen in them, by the rules that are
//! shipped.
//!
//! Real are [`State`](leasehold_protocol::state::State),
//! [`Lessor`](leasehold_protocol::lessor::Lessor) and
//! [`Holder`](leasehold_protocol::holder::Holder). Stand-ins are Raft, the network, clocks and
//! applications, as in the simulator. Where that tries long random runs of large worlds, this takes
//! a small [`World`] (two or three clients, one or two objects, a fault or an election, a few
//! moments at which time stands) and visits every situation that any order of steps leads to. What
//! it guarantees of a world is of that world only; but there, nothing is left to chance.
//!
//! Checked in every situation: the rules' own invariants, and what is in `judge` and `oracle`.
//! Where nothing more can happen by itself: `ending`. That it would notice is shown by putting
//! known mistakes back (`protocol/src/planted.rs`).
//!
//! Not modelled: Raft itself and disks; more steps, faults and moments than a world declares;
//! clocks at other rates than the worst ones; requests that overtake each other on one connection,
//! but for the worlds that allow one to.
//!
//! Why not a model checker off the shelf: stateright takes situations like these, but tells them
//! apart by 64 bits of one hash of everything (here parts keep theirs, and it is 128), with several
//! threads promises no shortest path, and brings a web server.

mod action;
mod beginning;
mod client;
mod ending;
mod explore;
mod judge;
mod keeping;
mod oracle;
mod part;
mod planting;
mod run;
mod server;
mod situation;
pub mod world;
mod worlds;

pub use explore::{Report, Search, Violation, explore, walk};
pub use planting::CAN_PLANT;
pub use world::World;
pub use worlds::{all, named};
