//! The first bytes on a connection: who is there, in which version, as what.
//!
//! ```text
//! client → server   "LSHD"  version: u16  role: u8                                     (numbers big-endian)
//! server → client   "LSHD"  version: u16  0: accepted  founder: u64  nonce: u128
//!                   "LSHD"  version: u16  1: refused   length: u16  that many bytes of UTF-8: why
//! ```
//!
//! All versions share this layout, apart from what follows *accepted* (founder and nonce): so
//! versions that cannot talk can still say so. Whoever says nothing, or something else, is told the
//! reason and disconnected, within [`HANDSHAKE_TIMEOUT`] and [`REFUSAL_TIMEOUT`].
//!
//! A server that accepts names its cluster ([`ClusterId`]), so that a client with endpoints of two
//! clusters notices. Both numbers are 0 while the server takes part in none. Once named, a server's
//! cluster stays the same.

use std::{future::Future, io, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};

use crate::{cluster::ClusterId, socket, warn};

/// What every connection begins with, from both sides.
pub const MAGIC: [u8; 4] = *b"LSHD";

/// The version of everything that follows the handshake: of what clients, servers and replicas say
/// to each other. Versions must be equal. Raise it when the bytes of a message change
/// (`server/tests/replica/formats.rs` says so).
pub const PROTOCOL_VERSION: u16 = 3;

/// How long a handshake may take: long enough for two packets that were lost and sent again after 1
/// and 2 seconds, short enough that sockets on which nobody speaks do not pile up.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long somebody who is refused may take to hear it: a packet lost once.
pub const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest reason for a refusal: a sentence, in a buffer that anybody can afford.
pub const REASON_MAX_BYTES: usize = 512;

/// What is read, and thrown away, of what a refused client still had to say: if it were left
/// unread, closing would reset the connection and might take the refusal with it.
const REFUSED_DRAIN_MAX_BYTES: u64 = 64 << 10;

const HELLO_BYTES: usize = 7;

/// The length of the cluster's id in the answer of a server that accepts.
pub const CLUSTER_BYTES: usize = 8 + 16;
const ACCEPTED: u8 = 0;
const REFUSED: u8 = 1;

/// What the side that opened the connection wants to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// A client: [`client_connection`](crate::client_connection) and
    /// [`server_connection`](crate::server_connection).
    Client = 1,
    /// Another server: [`peer_transport`](crate::peer_transport).
    Peer = 2,
}

/// A connection whose handshake went well, on the side that accepted it.
#[derive(Debug)]
pub struct Accepted<S = TcpStream> {
    /// What the other side is.
    pub role: Role,
    /// What follows.
    pub stream: S,
}

/// A connection whose handshake went well, on the side that opened it.
#[derive(Debug)]
pub struct Introduced<S = TcpStream> {
    /// The server's cluster. None while it takes part in none.
    pub cluster: Option<ClusterId>,
    /// What follows.
    pub stream: S,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The socket failed.
    #[error("the connection failed during the handshake: {0}")]
    Io(#[from] io::Error),
    /// The other side was too slow.
    #[error("the handshake took longer than {after:?}")]
    Timeout {
        /// How long it was waited for.
        after: Duration,
    },
    /// The other side closed the connection before the handshake was complete.
    #[error("the other side closed the connection during the handshake")]
    Closed,
    /// The other side does not speak this protocol at all.
    #[error("the connection began with {got:02x?}: expected {MAGIC:02x?} (\"LSHD\")")]
    Magic {
        /// The first four bytes.
        got: [u8; 4],
    },
    /// The other side speaks another version.
    #[error("the other side speaks protocol version {theirs}: expected {ours}")]
    Version {
        /// Its version.
        theirs: u16,
        /// Our version.
        ours: u16,
    },
    /// The client wants to be something that there is not.
    #[error("the client asked for role {got}: expected 1 (client) or 2 (peer)")]
    Role {
        /// What it asked for.
        got: u8,
    },
    /// The server refused.
    #[error("the server refused the connection: {reason}")]
    Refused {
        /// The server's words.
        reason: String,
    },
    /// The server has no room for another connection: the server's side.
    #[error("{reason}")]
    NotAdmitted {
        /// What there is no room for, with the limit.
        reason: String,
    },
    /// The server's answer is neither yes nor no.
    #[error("the server's answer to the handshake is {got}: expected 0 (accepted) or 1 (refused)")]
    Verdict {
        /// The answer.
        got: u8,
    },
    /// The server's reason is longer than reasons can be.
    #[error("the reason for the refusal has {got} bytes: expected at most {expected}")]
    Reason {
        /// Its length in bytes.
        got: usize,
        /// The bound in bytes.
        expected: usize,
    },
}

/// Why a client could not connect.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The address does not resolve, or nobody listens there.
    #[error("cannot connect to {address}: {source}")]
    Connect {
        /// The address.
        address: String,
        /// What the system says.
        source: io::Error,
    },
    /// Nobody answered in time.
    #[error("cannot connect to {address}: no answer within {after:?}")]
    Timeout {
        /// The address.
        address: String,
        /// How long it was waited for.
        after: Duration,
    },
    /// Somebody answered, but not as a server of ours.
    #[error("cannot connect to {address}: {source}")]
    Handshake {
        /// The address.
        address: String,
        /// What went wrong.
        source: HandshakeError,
    },
}

/// Opens a connection to `address` ("host:port") and introduces itself, all within `timeout`.
///
/// # Errors
///
/// [`DialError`] names the address, and why.
pub async fn connect(address: &str, role: Role, timeout: Duration) -> Result<Introduced, DialError> {
    let attempt = async {
        let stream =
            socket::open(address).await.map_err(|source| DialError::Connect { address: address.to_owned(), source })?;
        introduce(stream, role).await.map_err(|source| DialError::Handshake { address: address.to_owned(), source })
    };
    match tokio::time::timeout(timeout, attempt).await {
        Ok(outcome) => outcome,
        Err(_) => Err(DialError::Timeout { address: address.to_owned(), after: timeout }),
    }
}

/// Sets up a socket that a listener has just given, hears who is there, and names this server's
/// cluster. See [`receive`].
///
/// # Errors
///
/// As [`receive`].
pub async fn accept(stream: TcpStream, cluster: Option<ClusterId>) -> Result<Accepted, HandshakeError> {
    socket::tune(&stream)?;
    receive(stream, cluster).await
}

/// Sets up a socket that a listener has just given, and admits whoever is there if there is room.
/// See [`receive_if`].
///
/// # Errors
///
/// As [`receive_if`].
pub async fn accept_if<T>(
    stream: TcpStream,
    cluster: Option<ClusterId>,
    admit: impl FnOnce(Role) -> Result<T, String>,
) -> Result<(Accepted, T), HandshakeError> {
    socket::tune(&stream)?;
    receive_if(stream, cluster, admit).await
}

/// The client's side of the handshake, on any stream.
///
/// # Errors
///
/// [`HandshakeError`]; the stream is closed.
pub async fn introduce<S>(mut stream: S, role: Role) -> Result<Introduced<S>, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let cluster = within(HANDSHAKE_TIMEOUT, async {
        stream.write_all(&opening(PROTOCOL_VERSION, role as u8)).await?;
        stream.flush().await?;
        let (version, verdict) = read_opening(&mut stream).await?;
        match verdict {
            _ if version != PROTOCOL_VERSION => {
                Err(HandshakeError::Version { theirs: version, ours: PROTOCOL_VERSION })
            }
            ACCEPTED => Ok(read_cluster(&mut stream).await?),
            REFUSED => Err(HandshakeError::Refused { reason: read_reason(&mut stream).await? }),
            got => Err(HandshakeError::Verdict { got }),
        }
    })
    .await?;
    Ok(Introduced { cluster, stream })
}

/// The server's side of the handshake, on any stream. Whoever cannot be accepted is told why before
/// the stream is closed; what is wrong with it is logged here.
///
/// # Errors
///
/// [`HandshakeError`]; the stream is closed.
pub async fn receive<S>(stream: S, cluster: Option<ClusterId>) -> Result<Accepted<S>, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    receive_if(stream, cluster, |_| Ok(())).await.map(|(accepted, ())| accepted)
}

/// As [`receive`]. `admit` hears what the other side is, and says whether there is room for it, or
/// why not. What it returns belongs to the connection.
///
/// # Errors
///
/// [`HandshakeError`]; the stream is closed. [`HandshakeError::NotAdmitted`] if `admit` refused:
/// the other side is told why.
pub async fn receive_if<S, T>(
    mut stream: S,
    cluster: Option<ClusterId>,
    admit: impl FnOnce(Role) -> Result<T, String>,
) -> Result<(Accepted<S>, T), HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let outcome = within(HANDSHAKE_TIMEOUT, async {
        let role = read_opening(&mut stream).await.and_then(|(version, role)| match (version, role) {
            (PROTOCOL_VERSION, 1) => Ok(Role::Client),
            (PROTOCOL_VERSION, 2) => Ok(Role::Peer),
            (PROTOCOL_VERSION, got) => Err(HandshakeError::Role { got }),
            (theirs, _) => Err(HandshakeError::Version { theirs, ours: PROTOCOL_VERSION }),
        })?;
        let admitted = admit(role).map_err(|reason| HandshakeError::NotAdmitted { reason })?;
        stream.write_all(&accepted(cluster)).await?;
        stream.flush().await?;
        Ok((role, admitted))
    })
    .await;
    match outcome {
        Ok((role, admitted)) => Ok((Accepted { role, stream }, admitted)),
        Err(error @ (HandshakeError::Io(_) | HandshakeError::Closed)) => Err(error),
        Err(error) => {
            match &error {
                HandshakeError::NotAdmitted { reason } => warn::not_admitted(reason),
                error => warn::violation(error),
            }
            // If it cannot be told, the reason for the refusal is still what matters.
            let _ = within(REFUSAL_TIMEOUT, refuse(stream, &refusal(&error))).await;
            Err(error)
        }
    }
}

/// What the refused side is told, from its point of view.
fn refusal(error: &HandshakeError) -> String {
    match error {
        HandshakeError::Version { theirs, ours } => {
            format!("the client speaks protocol version {theirs}, the server {ours}: they must be equal")
        }
        HandshakeError::Magic { got } => {
            format!("this is a Leasehold server: expected the connection to begin with \"LSHD\", got {got:02x?}")
        }
        other => other.to_string(),
    }
}

async fn refuse<S>(mut stream: S, reason: &str) -> Result<(), HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let end = (0..=reason.len().min(REASON_MAX_BYTES)).rev().find(|&end| reason.is_char_boundary(end));
    let reason = &reason[..end.unwrap_or(0)];
    let mut answer = opening(PROTOCOL_VERSION, REFUSED).to_vec();
    // At most REASON_MAX_BYTES.
    answer.extend_from_slice(&(reason.len() as u16).to_be_bytes());
    answer.extend_from_slice(reason.as_bytes());
    stream.write_all(&answer).await?;
    stream.shutdown().await?;
    tokio::io::copy(&mut stream.take(REFUSED_DRAIN_MAX_BYTES), &mut tokio::io::sink()).await?;
    Ok(())
}

fn opening(version: u16, last: u8) -> [u8; HELLO_BYTES] {
    let [m0, m1, m2, m3] = MAGIC;
    let [v0, v1] = version.to_be_bytes();
    [m0, m1, m2, m3, v0, v1, last]
}

fn accepted(cluster: Option<ClusterId>) -> Vec<u8> {
    let (founder, nonce) = cluster.map_or((0, 0), |cluster| (cluster.founder, cluster.nonce));
    let opening = opening(PROTOCOL_VERSION, ACCEPTED);
    [&opening[..], &founder.to_be_bytes(), &nonce.to_be_bytes()].concat()
}

async fn read_cluster(stream: &mut (impl AsyncRead + Unpin)) -> Result<Option<ClusterId>, HandshakeError> {
    let (mut founder, mut nonce) = ([0; 8], [0; 16]);
    read_exact(stream, &mut founder).await?;
    read_exact(stream, &mut nonce).await?;
    let cluster = ClusterId { founder: u64::from_be_bytes(founder), nonce: u128::from_be_bytes(nonce) };
    Ok((cluster != ClusterId::default()).then_some(cluster))
}

/// The version, and the byte after it.
async fn read_opening(stream: &mut (impl AsyncRead + Unpin)) -> Result<(u16, u8), HandshakeError> {
    // The magic by itself: whoever speaks something else may wait for us after fewer bytes than
    // ours has.
    let mut got = [0; MAGIC.len()];
    read_exact(stream, &mut got).await?;
    if got != MAGIC {
        return Err(HandshakeError::Magic { got });
    }
    let mut rest = [0; HELLO_BYTES - MAGIC.len()];
    read_exact(stream, &mut rest).await?;
    let [v0, v1, last] = rest;
    Ok((u16::from_be_bytes([v0, v1]), last))
}

async fn read_reason(stream: &mut (impl AsyncRead + Unpin)) -> Result<String, HandshakeError> {
    let mut length = [0; 2];
    read_exact(stream, &mut length).await?;
    let got = usize::from(u16::from_be_bytes(length));
    if got > REASON_MAX_BYTES {
        return Err(HandshakeError::Reason { got, expected: REASON_MAX_BYTES });
    }
    let mut reason = [0; REASON_MAX_BYTES];
    read_exact(stream, &mut reason[..got]).await?;
    Ok(String::from_utf8_lossy(&reason[..got]).into_owned())
}

async fn read_exact(stream: &mut (impl AsyncRead + Unpin), into: &mut [u8]) -> Result<(), HandshakeError> {
    match stream.read_exact(into).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(HandshakeError::Closed),
        Err(error) => Err(error.into()),
    }
}

async fn within<T>(
    after: Duration,
    work: impl Future<Output = Result<T, HandshakeError>>,
) -> Result<T, HandshakeError> {
    match tokio::time::timeout(after, work).await {
        Ok(outcome) => outcome,
        Err(_) => Err(HandshakeError::Timeout { after }),
    }
}

#[cfg(test)]
mod tests;
