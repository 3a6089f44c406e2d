//! The two services that run over a client's connection.

use leasehold_protocol::message::{Consent, Recall, Request, Response};
use tarpc::{ClientMessage, client};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::mux::{ChannelTransport, MuxDriver, split};

/// Calls of one side that are under way on a connection. A write may wait for a volume term, and a
/// renewal must not wait behind writes, nor a recall behind recalls: the bound is beyond what a
/// client of ours has under way. More than that wait on the calling side.
const CALLS_IN_FLIGHT_MAX: usize = 1 << 16;

/// Calls that wait for tarpc to send them; more wait in their callers.
const CALLS_PENDING_MAX: usize = 1024;

/// From a client to a server.
#[tarpc::service]
pub trait Leasehold {
    /// Any request. If the call fails, the request may or may not have been carried out.
    async fn call(request: Request) -> Response;
}

/// From a server to a client, on the connection that the client opened.
#[tarpc::service]
pub trait Callback {
    /// The copies are to be dropped. If the call fails, they may or may not have been.
    async fn recall(recall: Recall) -> Consent;
}

/// Where a server takes requests from: for `BaseChannel::new`.
pub type LeaseholdTransport = ChannelTransport<ClientMessage<LeaseholdRequest>, tarpc::Response<LeaseholdResponse>>;

/// Where a client takes recalls from: for `BaseChannel::new`.
pub type CallbackTransport = ChannelTransport<ClientMessage<CallbackRequest>, tarpc::Response<CallbackResponse>>;

/// The server's end of a connection whose other end is [`client_connection`].
///
/// The driver does all the work and has to be polled; see [`MuxDriver`]. Dropping the transport
/// closes the connection, dropping all clones of the client does not. Calls fail once the
/// connection has ended.
pub fn server_connection<S>(stream: S) -> (LeaseholdTransport, CallbackClient, MuxDriver)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (requests, recalls, driver) = split(stream);
    let client::NewClient { client, dispatch } = CallbackClient::new(calls(), recalls);
    (requests, client, driver.with(dispatch))
}

/// The client's end of a connection whose other end is [`server_connection`].
///
/// The driver does all the work and has to be polled; see [`MuxDriver`]. Dropping the transport
/// closes the connection, dropping all clones of the client does not. Calls fail once the
/// connection has ended.
pub fn client_connection<S>(stream: S) -> (LeaseholdClient, CallbackTransport, MuxDriver)
where
    S: AsyncRead + AsyncWrite + Send + 'static,
{
    let (requests, recalls, driver) = split(stream);
    let client::NewClient { client, dispatch } = LeaseholdClient::new(calls(), requests);
    (client, recalls, driver.with(dispatch))
}

fn calls() -> client::Config {
    let mut config = client::Config::default();
    config.max_in_flight_requests = CALLS_IN_FLIGHT_MAX;
    config.pending_request_buffer = CALLS_PENDING_MAX;
    config
}

#[cfg(test)]
mod tests;
