//! The wire between Leasehold's servers and clients: one TCP connection, which the client opens.
//!
//! ```text
//! handshake   who is there, of which cluster, in which version   7 bytes, 31 back, then the connection is one of
//!   ├ Client  [`service`]: requests up, recalls down            [`mux`]: two channels with flow control each
//!   └ Peer    what servers say to each other                    [`peer_transport`]: one channel
//! [`frame`]   length, then that many bytes, at most [`frame::FRAME_MAX_BYTES`]
//! [`codec`]   postcard, deadlines as durations
//! ```
//!
//! Guarantees:
//!
//! - Bad bytes from the other side end only that connection, with a [`ConnectionError`].
//! - The memory of a connection is bounded, and follows the bytes that have arrived.
//! - A slow consumer of requests delays no recall and no consent.
//!
//! Delivery is not guaranteed: a message in flight may or may not arrive before its connection
//! ends. This crate knows nothing of leases, sessions and leaders.

mod cluster;
pub mod codec;
mod error;
pub mod frame;
pub mod handshake;
pub mod mux;
pub mod service;
mod socket;
mod warn;

pub use cluster::ClusterId;
pub use error::{CodecError, ConnectionError};
pub use frame::peer_transport;
pub use handshake::{Accepted, DialError, HandshakeError, Introduced, Role, accept, accept_if, connect};
pub use mux::ConnectionTask;
pub use service::{
    Callback, CallbackClient, CallbackTransport, Leasehold, LeaseholdClient, LeaseholdTransport, client_connection,
    server_connection,
};
