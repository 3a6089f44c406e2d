//! The replica's Raft and store, on real disks and sockets.

mod cluster;
mod formats;
mod handover;
mod log;
mod restart;
mod snapshot;
mod store_identity;
mod suite;
mod support;
