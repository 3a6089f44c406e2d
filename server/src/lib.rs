//! A Leasehold replica: Raft, the store, connections and timers around the rules.
//!
//! It carries out what the rules in `leasehold-protocol` say, and decides nothing about leases.
//! [`Server`] is all of it. Inside: `core`, where the rules are stepped; [`raft`], which puts
//! proposals into one order on a majority's disks, and [`store`], which keeps them there;
//! `connections` and `leading`, the tasks around them; [`clock`], the only place that reads a
//! clock.

mod admission;
pub mod clock;
pub mod config;
mod connections;
mod core;
mod leading;
mod panic;
mod proposals;
pub mod raft;
mod server;
pub mod store;

pub use admission::raise_descriptor_limit;
pub use config::{ConfigError, RaftConfig, ServerConfig};
pub use panic::end_process_on_panic;
pub use server::{Server, StartError};
