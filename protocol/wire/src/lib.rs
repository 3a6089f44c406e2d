//! How Leasehold's servers and clients talk over one TCP connection that the client opened.
//!
//! ```text
//! handshake   who is there, of which cluster, in which version   7 bytes, 31 back, then the connection is one of
//!   ├ Client  [`service`]: requests up, recalls down            [`mux`]: two channels with flow control each
//!   └ Peer    what servers say to each other                    [`peer_transport`]: one channel
//! [`frame`]   length, then that many bytes, at most [`frame::FRAME_MAX_BYTES`]
//! [`codec`]   postcard, deadlines as durations
//! ```
//!
//! Guaranteed: bad bytes from the other side end that connection with a [`ConnectionError`] and
//! nothing else; memory for a connection follows what has arrived and is bounded; a slow consumer
//! of requests delays no recall and no consent. Not guaranteed: that a message arrives. Whatever
//! was under way when a connection ends may or may not have been received.
//!
//! What this crate does not know: leases, sessions, leaders. It decides nothing about them.

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
pub use mux::MuxDriver;
pub use service::{
    Callback, CallbackClient, CallbackTransport, Leasehold, LeaseholdClient, LeaseholdTransport, client_connection,
    server_connection,
};
