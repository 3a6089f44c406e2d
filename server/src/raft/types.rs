//! The types that Raft is instantiated with.
//!
//! Only this module, its neighbours and [`crate::store`] name openraft. It is pinned to one
//! version, and a change of its interface must not spread further.
//!
//! Leader ids are those of the Raft paper: at most one leader in a Raft term. openraft's default
//! allows several leaders in one Raft term, which engineers do not expect.

use std::{fmt, sync::Arc};

use bytes::Bytes;
use leasehold_protocol::command::Proposal;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

/// One proposal with its encoding.
///
/// It is encoded once, when it is proposed or received. The log and the network copy the bytes.
/// Clones are cheap.
#[derive(Clone, PartialEq, Eq)]
pub struct Logged {
    proposal: Arc<Proposal>,
    encoded: Bytes,
}

impl Logged {
    /// Encodes a proposal.
    ///
    /// # Errors
    ///
    /// The codec cannot represent the proposal. That does not happen to proposals that this server
    /// makes.
    pub fn new(proposal: Proposal) -> Result<Self, postcard::Error> {
        let encoded = postcard::to_allocvec(&proposal)?.into();
        Ok(Self { proposal: Arc::new(proposal), encoded })
    }

    /// The proposal.
    pub fn proposal(&self) -> &Proposal {
        &self.proposal
    }

    /// The length of its encoding.
    pub fn encoded_bytes(&self) -> usize {
        self.encoded.len()
    }
}

impl fmt::Debug for Logged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.proposal.fmt(f)
    }
}

impl fmt::Display for Logged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Proposal { epoch, number, commands, .. } = &*self.proposal;
        write!(f, "proposal {number} of epoch {epoch} with {} commands", commands.len())
    }
}

impl Serialize for Logged {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.encoded.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Logged {
    /// Decodes the proposal too, so that invalid bytes are refused on arrival.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let encoded = Bytes::deserialize(deserializer)?;
        let (proposal, rest) = postcard::take_from_bytes::<Proposal>(&encoded).map_err(D::Error::custom)?;
        if !rest.is_empty() {
            return Err(D::Error::custom(format!("proposal: {} bytes after the end; expected none", rest.len())));
        }
        Ok(Self { proposal: Arc::new(proposal), encoded })
    }
}

openraft::declare_raft_types!(
    /// The types that Raft replicates.
    pub TypeConfig:
        D = Logged,
        R = (),
        LeaderId = openraft::impls::leader_id_std::LeaderId<u64, u64>,
);

pub(crate) mod alias {
    //! Raft's types, instantiated.

    use openraft::type_config::alias as generic;

    use super::TypeConfig;

    pub(crate) type RaftEntry = generic::EntryOf<TypeConfig>;
    pub(crate) type LogId = generic::LogIdOf<TypeConfig>;
    pub(crate) type Vote = generic::VoteOf<TypeConfig>;
    pub(crate) type StoredMembership = generic::StoredMembershipOf<TypeConfig>;
    pub(crate) type SnapshotMeta = generic::SnapshotMetaOf<TypeConfig>;
}

#[cfg(test)]
mod tests {
    use leasehold_protocol::{command::Command, id::Epoch, time::ClusterTime};
    use openraft::raft::{AppendEntriesRequest, VoteRequest};

    use super::{
        alias::{LogId, RaftEntry, Vote},
        *,
    };

    fn proposal() -> Proposal {
        Proposal {
            epoch: Epoch(3),
            number: 9,
            time: ClusterTime::from_micros(77),
            commands: vec![Command::OpenSession { name: "web".into() }],
        }
    }

    #[test]
    fn rafts_messages_survive_the_codec() {
        let log_id = LogId::new(openraft::vote::leader_id_std::CommittedLeaderId::new(4), 12);
        let entry =
            RaftEntry { log_id, payload: openraft::EntryPayload::Normal(Logged::new(proposal()).expect("encodes")) };
        let append = AppendEntriesRequest::<TypeConfig> {
            vote: Vote::new_committed(4, 2),
            prev_log_id: Some(log_id),
            entries: vec![entry.clone()],
            leader_commit: None,
        };
        let bytes = postcard::to_allocvec(&append).expect("encodes");
        let back: AppendEntriesRequest<TypeConfig> = postcard::from_bytes(&bytes).expect("decodes");
        assert_eq!((back.vote, back.prev_log_id, back.entries), (append.vote, append.prev_log_id, vec![entry]));

        let mut vote = VoteRequest::<TypeConfig>::new(Vote::new(5, 1), Some(log_id));
        vote.leadership_transfer = true;
        let bytes = postcard::to_allocvec(&vote).expect("encodes");
        assert_eq!(postcard::from_bytes::<VoteRequest<TypeConfig>>(&bytes).expect("decodes"), vote);
    }

    #[test]
    fn bytes_that_are_no_proposal_are_refused() {
        let mut encoded = postcard::to_allocvec(&proposal()).expect("encodes");
        encoded.push(0);
        let wrapped = postcard::to_allocvec(&Bytes::from(encoded)).expect("encodes");
        assert!(postcard::from_bytes::<Logged>(&wrapped).is_err(), "trailing bytes");
        let wrapped = postcard::to_allocvec(&Bytes::from_static(b"\xff\xff\xff")).expect("encodes");
        assert!(postcard::from_bytes::<Logged>(&wrapped).is_err(), "garbage");
    }
}
