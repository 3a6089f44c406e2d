//! The handshake: the first bytes on a connection. Each side names its version, the client its
//! role, and the server its cluster.
//!
//! ```text
//! client → server   "LSHD"  version: u16  role: u8                                     (numbers big-endian)
//! server → client   "LSHD"  version: u16  0: accepted  founder: u64  nonce: u128
//!                   "LSHD"  version: u16  1: refused   length: u16  that many bytes of UTF-8: why
//! ```
//!
//! All versions share this layout, apart from the fields after *accepted*. So different versions
//! can still refuse each other with a reason. The server sends a reason to a client that is silent
//! or sends anything else, and disconnects it, within [`HANDSHAKE_TIMEOUT`] and
//! [`REFUSAL_TIMEOUT`].
//!
//! A server that accepts names its cluster ([`ClusterId`]). So a client with endpoints of two
//! clusters notices. Both numbers are 0 while the server is in no cluster. Once named, a server's
//! cluster stays the same.

use std::{future::Future, io, time::Duration};

use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};

use crate::{cluster::ClusterId, socket, warn};

/// The first bytes of each connection, from both sides.
pub const MAGIC: [u8; 4] = *b"LSHD";

/// The version of all messages after the handshake, between clients, servers and replicas. Both
/// sides must have the same version. Raise it when the bytes of a message change
/// (`server/tests/replica/formats.rs` checks this).
pub const PROTOCOL_VERSION: u16 = 11;

/// The longest time of a handshake. Two packets may be lost and sent again, after 1 and 2 seconds.
/// Yet sockets with silent peers do not pile up.
pub const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest time of sending a refusal: one packet may be lost.
pub const REFUSAL_TIMEOUT: Duration = Duration::from_secs(1);

/// The longest reason for a refusal: a sentence, in a small buffer.
pub const REASON_MAX_BYTES: usize = 512;

/// The most bytes of a refused client that the server reads and discards. If they stayed unread,
/// closing would reset the connection, and might discard the refusal.
const REFUSED_DRAIN_MAX_BYTES: u64 = 64 << 10;

const HELLO_BYTES: usize = 7;

/// The length of the cluster id in the answer of a server that accepts.
pub const CLUSTER_BYTES: usize = 8 + 16;
const ACCEPTED: u8 = 0;
const REFUSED: u8 = 1;

/// The role of the side that opens the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// A client: [`client_connection`](crate::client_connection) and
    /// [`server_connection`](crate::server_connection).
    Client = 1,
    /// Another server: [`peer_transport`](crate::peer_transport).
    Peer = 2,
}

/// A connection after a successful handshake, on the accepting side.
#[derive(Debug)]
pub struct Accepted<S = TcpStream> {
    /// The role of the other side.
    pub role: Role,
    /// The stream after the handshake.
    pub stream: S,
}

/// A connection after a successful handshake, on the opening side.
#[derive(Debug)]
pub struct Introduced<S = TcpStream> {
    /// The server's cluster. None while the server is in no cluster.
    pub cluster: Option<ClusterId>,
    /// The stream after the handshake.
    pub stream: S,
}

/// Why a handshake failed.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The socket failed.
    #[error("handshake: connection failed: {0}")]
    Io(#[from] io::Error),
    /// The other side was too slow.
    #[error("handshake: not finished within {after:?}")]
    Timeout {
        /// The time allowed.
        after: Duration,
    },
    /// The other side closed the connection before the handshake was complete.
    #[error("handshake: the other side closed the connection")]
    Closed,
    /// The other side does not speak this protocol.
    #[error("handshake: the connection began with {got:02x?}; expected {MAGIC:02x?} (\"LSHD\")")]
    Magic {
        /// The first four bytes.
        got: [u8; 4],
    },
    /// The other side speaks another version.
    #[error("handshake: the other side speaks protocol version {theirs}; expected version {ours}")]
    Version {
        /// The version of the other side.
        theirs: u16,
        /// The version of this side.
        ours: u16,
    },
    /// The client asked for an unknown role.
    #[error("handshake: unknown role {got}; expected 1 (client) or 2 (peer)")]
    Role {
        /// The requested role.
        got: u8,
    },
    /// The server refused.
    #[error("the server refused the connection: {reason}")]
    Refused {
        /// The server's reason.
        reason: String,
    },
    /// On the server: it has no room for another connection.
    #[error("{reason}")]
    NotAdmitted {
        /// The limit that is reached.
        reason: String,
    },
    /// The server's answer is neither *accepted* nor *refused*.
    #[error("handshake: unknown answer {got}; expected 0 (accepted) or 1 (refused)")]
    Verdict {
        /// The answer.
        got: u8,
    },
    /// The server's reason is too long.
    #[error("handshake: a reason of {got} bytes exceeds the limit of {expected}")]
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
    #[error("connect to {address}: {source}")]
    Connect {
        /// The address.
        address: String,
        /// The error of the operating system.
        source: io::Error,
    },
    /// No answer came in time.
    #[error("connect to {address}: no answer within {after:?}")]
    Timeout {
        /// The address.
        address: String,
        /// The time allowed.
        after: Duration,
    },
    /// The handshake failed: the peer may not be a Leasehold server.
    #[error("connect to {address}: {source}")]
    Handshake {
        /// The address.
        address: String,
        /// The error of the handshake.
        source: HandshakeError,
    },
}

/// Opens a connection to `address` ("host:port") and does the handshake, all within `timeout`.
///
/// # Errors
///
/// [`DialError`] with the address and the reason.
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

/// Sets the options of a socket from a listener, and does the server's side of the handshake. See
/// [`receive`].
///
/// # Errors
///
/// As [`receive`].
pub async fn accept(stream: TcpStream, cluster: Option<ClusterId>) -> Result<Accepted, HandshakeError> {
    socket::tune(&stream)?;
    receive(stream, cluster).await
}

/// As [`accept`], with a check for room. See [`receive_if`].
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
/// [`HandshakeError`]. The stream is closed.
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

/// The server's side of the handshake, on any stream. If the server cannot accept the client, it
/// sends the reason, closes the stream, and logs the error here.
///
/// # Errors
///
/// [`HandshakeError`]. The stream is closed.
pub async fn receive<S>(stream: S, cluster: Option<ClusterId>) -> Result<Accepted<S>, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    receive_if(stream, cluster, |_| Ok(())).await.map(|(accepted, ())| accepted)
}

/// As [`receive`]. `admit` gets the role of the other side, and returns an error if there is no
/// room for it. Its result belongs to the connection.
///
/// # Errors
///
/// [`HandshakeError`]; the stream is closed. [`HandshakeError::NotAdmitted`] if `admit` refused.
/// The other side gets the reason.
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
            // A failure to send the refusal is ignored: the caller needs the reason for the
            // refusal.
            let _ = within(REFUSAL_TIMEOUT, refuse(stream, &refusal(&error))).await;
            Err(error)
        }
    }
}

/// The reason that the refused side gets, from its point of view.
fn refusal(error: &HandshakeError) -> String {
    match error {
        HandshakeError::Version { theirs, ours } => {
            format!("the client speaks protocol version {theirs}, the server version {ours}; they must be equal")
        }
        HandshakeError::Magic { got } => {
            format!("this is a Leasehold server; expected the connection to begin with \"LSHD\", got {got:02x?}")
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
    // Reads the magic alone: a client of another protocol may send fewer bytes than a whole
    // opening, and wait.
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
