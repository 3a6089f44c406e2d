//! Every order in which threads can use the client's cache, explored by loom.
//!
//! These parts are real:
//!
//! - the files of the cache, included unchanged: lookup and comparison of a hit (`cache.rs`), the
//!   end of a copy and changes that wait for readers (`copy_map.rs`), the deadlines of the volume
//!   leases (`volume_leases.rs`), the contents;
//! - the rules, [`Holder`](leasehold_protocol::holder::Holder).
//!
//! These parts are stand-ins, because loom must see them: atomic numbers, locks, the clock, and the
//! concurrent map (`sync`). The map is one shard of dashmap: a read-write lock that a reader holds
//! while it has an entry. The driver (`client`) is a stand-in too. Like the real one it carries out
//! effects in order under one lock.
//!
//! loom repeats a model until it has seen every interleaving, and every older value that a relaxed
//! load may still see. [`models`] has the properties. `cargo test -p leasehold-interleavings` runs
//! them. It also plants mistakes, and checks that each is found.
//!
//! Not explored: the internals of moka and dashmap, more than one shard, the gate at which
//! readers make room (no rule depends on it), the connection.

// The included files have items that no model uses.
#![allow(dead_code)]

#[path = "../../../client-cache/src/cache.rs"]
mod cache;
#[path = "../../../client-cache/src/cache_counters.rs"]
mod cache_counters;
#[path = "../../../client-cache/src/copy_map.rs"]
mod copy_map;
#[path = "../../../client-cache/src/dropped_copies.rs"]
mod dropped_copies;
#[path = "../../../client-cache/src/eviction.rs"]
mod eviction;
#[path = "../../../client-cache/src/path_hash.rs"]
mod path_hash;
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
