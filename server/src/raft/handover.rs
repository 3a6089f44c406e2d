//! A leader that gives its leadership to another, for a planned stop.
//!
//! **From the beginning on it leads no more.** Raft takes no proposal from a leader that has told its successor to campaign, and
//! there is no way back within its term, whatever becomes of the successor. So the leader lays its term down first: it counts as no
//! leader of that term for good ([`Node::lay_down`]), its lessor ends, once, and nobody is sent to it. Nothing answers
//! in between: there is no lessor, and the next one, here or elsewhere, begins an epoch of a later term.
//!
//! **If nobody takes over**, Raft would leave it at that: a leader whose heartbeats keep the others from electing, and which takes no
//! proposals. So it gives its vote for the next term to the successor, as if that had asked for it. With that it follows,
//! and everybody may stand for election again, itself too. A vote that nobody asked for elects nobody, and should the
//! successor still ask, it is what it would have been given: each replica has one vote in each term, as ever.

use openraft::{async_runtime::WatchReceiver, raft::VoteRequest};

use super::{
    node::Node,
    types::alias::{Raft, Vote},
};

/// A successor is waited for this many of the longest election times.
const ELECTIONS: u32 = 2;

/// Why leadership was not handed over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HandOverError {
    /// The successor did not take over in time. Everybody may stand for election again, this replica too.
    #[error("replica {successor} did not take over within {} ms: expected it to be elected", within.as_millis())]
    NobodyTookOver {
        /// Who should have.
        successor: u64,
        /// How long it was waited for.
        within: std::time::Duration,
    },
    /// This replica has ended.
    #[error("this replica has ended: {reason}")]
    Fatal {
        /// Why.
        reason: String,
    },
}

impl Node {
    /// See [`Replica::hand_over`](super::Replica::hand_over).
    pub(super) async fn hand_over(&self) -> Result<(), HandOverError> {
        let fatal = |error: &dyn std::fmt::Display| HandOverError::Fatal { reason: error.to_string() };
        let mut leadership = self.leadership.subscribe();
        let term = match &*leadership.borrow_and_update() {
            leadership if leadership.leads => leadership.term,
            _ => return Ok(()),
        };
        let Some(raft) = self.raft() else { return Ok(()) };
        let Some(successor) = successor(&raft, self.config.id) else { return Ok(()) };
        tracing::info!(successor, term, "handing over");
        self.lay_down(term);
        raft.trigger().transfer_leader(successor).await.map_err(|error| fatal(&error))?;
        let within = self.config.timings.election_max * ELECTIONS;
        // A later term has another leader, or none yet; this one's is over either way.
        let is_over = leadership.wait_for(|leadership| leadership.term != term);
        match tokio::time::timeout(within, is_over).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => return Err(fatal(&error)),
            Err(_) => {}
        }
        let vote = VoteRequest {
            vote: Vote::new(term + 1, successor),
            last_log_id: self.log.last_and_vote().0,
            leadership_transfer: true,
        };
        raft.vote(vote).await.map_err(|error| fatal(&error))?;
        Err(HandOverError::NobodyTookOver { successor, within })
    }
}

/// The other voter that is furthest along.
fn successor(raft: &Raft, replica: u64) -> Option<u64> {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    let replication = metrics.replication.clone().unwrap_or_default();
    let others = metrics.membership_config.voter_ids().filter(|voter| *voter != replica);
    others.max_by_key(|voter| replication.get(voter).copied().flatten())
}
