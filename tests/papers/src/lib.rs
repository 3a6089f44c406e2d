//! What papers on leases say in numbers, beside what the rules of Leasehold do.
//!
//! The rules are those that are shipped: the real holders, lessor and state, in virtual time, on a
//! network that only delays. A seed decides everything: the same seed is the same run.
//! `cargo run --release -p leasehold-papers` prints the curves.

pub mod gray_cheriton;

mod world;

pub use world::{Counts, Workload, run};
