//! Measures what papers on leases predict in numbers, and compares that with the rules of
//! Leasehold.
//!
//! The rules are the shipped holders, lessor and state. They run in virtual time, on a network that
//! only delays (`world`). A workload says what the applications do, and when (`workload`). A seed
//! decides everything: the same seed is the same run.
//! `cargo run --release -p leasehold-papers` prints the curves.

pub mod advise;
pub mod by_use;
pub mod chubby;
pub mod gray_cheriton;
pub mod popular;
pub mod replay_1989;
pub mod tiers;
pub mod updates;
pub mod volume_terms;
pub mod yin;

mod counts;
mod plot;
mod workload;
mod world;

pub use counts::Counts;
pub use plot::{Curve, Plot};
pub use workload::{Workload, run};
