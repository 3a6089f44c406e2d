//! Recalls and consents: the messages by which a client drops its copies before a write (S2).

use serde::{Deserialize, Serialize};

use crate::{
    id::{SessionId, Stamp},
    object::ObjectSet,
};

/// From a server to a client that may have copies: the client drops them, and consents.
///
/// The lessor sends it down the connection on which the session registered. Lost: the lessor sends
/// it again with a later request of the session, and when the session registers again. Twice: the
/// client consents twice, and the second consent has no effect.
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
    /// The recall is for a write that leaves new values, in volumes with
    /// [`OnWrite::Update`](crate::lease_policy::OnWrite::Update). The client may ask for them with
    /// [`Body::ReadNext`](super::Body::ReadNext).
    pub updates: bool,
}

/// From a client to the server that sent the recall: the copies are dropped. The client caches no
/// grant with an earlier stamp on these objects.
///
/// The reply to a [`Recall`], also piggybacked on requests. Lost or twice: see [`Recall`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Consent {
    /// The session that consents.
    pub session: SessionId,
    /// The stamp of the recall.
    pub stamp: Stamp,
}
