//! A Leasehold replica: Raft, the store, connections and timers around the rules.
//!
//! It executes what the rules in `leasehold-protocol` decide. It decides nothing about leases.
//! [`Server`] is the whole of it. Inside:
//!
//! - `core` steps the rules; `connections`, `callbacks` and `leading` are the tasks around it.
//! - [`raft`] puts proposals into one order on a majority's disks; [`store`] persists them.
//! - [`clock`] is the only module that reads a clock (T7 in `docs/PROTOCOL.md`).

mod admission;
mod callbacks;
pub mod clock;
pub mod config;
mod connections;
mod core;
mod leading;
mod panic;
mod proposals;
pub mod raft;
mod server;
mod spawn;
pub mod store;

pub use admission::raise_descriptor_limit;
pub use config::{ConfigError, RaftConfig, ServerConfig};
pub use panic::end_process_on_panic;
pub use server::{Server, StartError};
