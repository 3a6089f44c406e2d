//! Every order in which threads can use the client's cache, explored by loom.
//!
//! Real are the files of the cache, taken in as they are: lookup and comparison of a hit
//! (`cache.rs`), the deadlines of the volume leases (`volume_leases.rs`), the contents; and the
//! rules, [`Holder`](leasehold_protocol::holder::Holder). Stand-ins are what loom has to see:
//! atomic numbers, locks, and the concurrent map (`sync`), which is one shard of dashmap: a lock
//! for reading and writing that a reader holds for as long as it has an entry. So are the clock,
//! and the driver (`client`), which carries effects out in order under one lock as the real one
//! does.
//!
//! loom runs a model again and again until every interleaving was seen, and every older value that
//! a relaxed load may still see. What the models show is in [`models`];
//! `cargo test -p leasehold-interleavings` runs them, and puts mistakes back to see that each is
//! found.
//!
//! Not explored: moka's and dashmap's own insides, more than one shard, the connection.

// Each model needs some of the files' items; the library needs them all.
#![allow(dead_code)]

#[path = "../../../client-cache/src/cache.rs"]
mod cache;
#[path = "../../../client-cache/src/path_hash.rs"]
mod path_hash;
#[path = "../../../client-cache/src/policy.rs"]
mod policy;
#[path = "../../../client-cache/src/shared_content.rs"]
mod shared_content;
#[path = "../../../client-cache/src/stats.rs"]
mod stats;
#[path = "../../../client-cache/src/volume_leases.rs"]
mod volume_leases;

mod client;
mod clock;
pub mod models;
mod sync;
