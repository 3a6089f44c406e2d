//! The two services on a client's connection.

use leasehold_protocol::message::{Push, Recall, RecallReply, Request, Response};
use tarpc::{ClientMessage, client};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::mux::{ChannelTransport, ConnectionTask, split};

/// The most calls of one side in flight on a connection. More wait on the calling side. The bound
/// is above the number that a client makes. A write may wait for a volume term. Renewals must not
/// wait behind writes, nor recalls behind recalls.
const CALLS_IN_FLIGHT_MAX: usize = 1 << 16;

/// The most calls that wait for tarpc to send them. More wait in their callers.
const CALLS_PENDING_MAX: usize = 1024;

/// Calls from a client to a server.
#[tarpc::service]
pub trait Leasehold {
    /// Any request. If the call fails, the server may or may not have handled the request.
    async fn call(request: Request) -> Response;
}

/// Calls from a server to a client, on the connection that the client opened.
#[tarpc::service]
pub trait Callback {
    /// Recalls copies. If the call fails, the client may or may not have dropped them.
    async fn recall(recall: Recall) -> RecallReply;
    /// Brings the next value of an object. If the call fails, the client may or may not have it.
    async fn push(push: Push);
}

/// A server's transport for requests: for `BaseChannel::new`.
pub type LeaseholdTransport = ChannelTransport<ClientMessage<LeaseholdRequest>, tarpc::Response<LeaseholdResponse>>;

/// A client's transport for recalls and pushes: for `BaseChannel::new`.
pub type CallbackTransport = ChannelTransport<ClientMessage<CallbackRequest>, tarpc::Response<CallbackResponse>>;

/// The server's end of a connection whose other end is [`client_connection`].
///
/// The task does all the work, and must be polled: see [`ConnectionTask`]. The connection closes
/// when the transport is dropped, but not when all clones of the client are. Calls fail after the
/// connection has ended.
pub fn server_connection<S>(stream: S) -> (LeaseholdTransport, CallbackClient, ConnectionTask)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (requests, recalls, task) = split(stream);
    let client::NewClient { client, dispatch } = CallbackClient::new(calls(), recalls);
    (requests, client, task.with(dispatch))
}

/// The client's end of a connection whose other end is [`server_connection`].
///
/// The task does all the work, and must be polled: see [`ConnectionTask`]. The connection closes
/// when the transport is dropped, but not when all clones of the client are. Calls fail after the
/// connection has ended.
pub fn client_connection<S>(stream: S) -> (LeaseholdClient, CallbackTransport, ConnectionTask)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (requests, recalls, task) = split(stream);
    let client::NewClient { client, dispatch } = LeaseholdClient::new(calls(), requests);
    (client, recalls, task.with(dispatch))
}

fn calls() -> client::Config {
    let mut config = client::Config::default();
    config.max_in_flight_requests = CALLS_IN_FLIGHT_MAX;
    config.pending_request_buffer = CALLS_PENDING_MAX;
    config
}

#[cfg(test)]
mod tests;
