//! Recalls and consents: the messages by which a client drops its copies before a write (S2).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Body, Request, RequestHeader, Response};
use crate::{
    id::{SessionId, Stamp},
    lease_policy::LeaseRequest,
    object::{Object, ObjectSet},
};

/// From a server to a client that may have copies: the client drops them, and consents.
///
/// The lessor sends it down the connection on which the session registered. Lost: the lessor sends
/// it again when a later request of the session arrives, and when the session registers again.
/// Twice: the client replies twice. A second consent has no effect.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Recall {
    /// The session that receives the recall.
    pub session: SessionId,
    /// The position in the order of the session's grants and recalls. The consent names it.
    pub stamp: Stamp,
    /// Counts the recalls of this session in this epoch without gaps, from 1 (S5).
    pub number: u64,
    /// The objects whose copies to drop.
    pub sets: Vec<ObjectSet>,
    /// True if a put, a delete or a transaction caused the recall, and all its volumes have
    /// [`OnWrite::Update`](crate::lease_policy::OnWrite::Update). The client may ask for the next
    /// values with its consent: see [`PushRequest`].
    pub offers_next_values: bool,
}

/// From a client to the server that sent the recall: the copies are dropped. The client caches no
/// grant with an earlier stamp on these objects.
///
/// In the reply to a [`Recall`], also piggybacked on requests. Lost or twice: see [`Recall`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Consent {
    /// The session that consents.
    pub session: SessionId,
    /// The stamp of the recall.
    pub stamp: Stamp,
}

/// From a client to the server that sent the recall: the consent comes later, with a request.
///
/// In the reply to a [`Recall`], so it costs no message. No rule uses it: the server shows it to
/// people who ask why a write waits. Lost: the server shows no reason, until it sends the recall
/// again. Twice: the last one counts. After the consent has arrived, it has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct DelayNotice {
    /// The session that delays its consent.
    pub session: SessionId,
    /// The stamp of the recall.
    pub stamp: Stamp,
    /// The reason of the delay.
    pub reason: DelayReason,
}

impl DelayNotice {
    /// The consent that it delays.
    pub fn consent(&self) -> Consent {
        Consent { session: self.session, stamp: self.stamp }
    }
}

/// The reason why a client delays its consent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum DelayReason {
    /// It still uses its copy.
    InUse {
        /// For this time longer at most, as the client says.
        at_most: Duration,
    },
    /// It has the data under a write lease, and flushes it first (S10).
    Flushing,
}

/// From a client to a server: the reply to a [`Recall`]. The session and the stamp in it are those
/// of the recall. Lost or twice: see [`Recall`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum RecallReply {
    /// The copies are dropped.
    Consented {
        /// The consent.
        consent: Consent,
        /// The next values that the server shall push; at most [`PUSH_REQUESTS_MAX`].
        push_requests: Vec<PushRequest>,
    },
    /// The consent comes later.
    Delayed(DelayNotice),
    /// The recall is for an earlier session of this client.
    Ignored,
}

/// From a client to a server, with a consent: push the next value of an object.
///
/// The server handles it like a request with [`Body::ReadNextValue`]. It sends the response as a
/// [`Push`]. Lost: no push comes, and the client waits for it for [`PUSH_WAIT_MAX`] at most. Twice:
/// see [`Body::ReadNextValue`].
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PushRequest {
    /// The number of this sending. The push names it. A client uses each number once.
    pub send_id: u64,
    /// The header of the request.
    pub header: RequestHeader,
    /// The object.
    pub object: Object,
    /// As in [`Body::Read`].
    pub lease: LeaseRequest,
}

impl PushRequest {
    /// Makes a push request from a request with [`Body::ReadNextValue`].
    ///
    /// # Errors
    ///
    /// Gives any other request back.
    #[expect(clippy::result_large_err, reason = "the error is the argument")]
    pub fn from_request(send_id: u64, request: Request) -> Result<Self, Request> {
        match request {
            Request { header, body: Body::ReadNextValue { object, lease } } => {
                Ok(Self { send_id, header, object, lease })
            }
            other => Err(other),
        }
    }

    /// The number of the sending, and the request as the lessor handles it.
    pub fn into_request(self) -> (u64, Request) {
        let Self { send_id, header, object, lease } = self;
        (send_id, Request { header, body: Body::ReadNextValue { object, lease } })
    }
}

/// From a server to a client: the response to a [`PushRequest`]. Usually it brings the new value
/// and a lease on it.
///
/// The reply to a push is empty. Lost: the next read of the application asks. Twice: the client
/// ignores the second.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Push {
    /// The number of the push request.
    pub send_id: u64,
    /// The response, as to [`Body::ReadNextValue`].
    pub response: Response,
}

/// The most push requests in the reply to one recall. If there are more, the server ignores all of
/// them: the client breaks the protocol.
pub const PUSH_REQUESTS_MAX: usize = 256;

/// How long a client waits for a push. After that, the next read of the application asks.
pub const PUSH_WAIT_MAX: Duration = Duration::from_secs(60);
