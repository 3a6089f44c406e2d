//! A leader that gives its leadership to another, for a planned stop.
//!
//! **From the beginning on it leads no more.** Raft takes no proposal from a leader that has told
//! its successor to campaign, and there is no way back within its term, whatever becomes of the
//! successor. So the leader lays its term down first: it counts as no leader of that term for good
//! ([`ReplicaNode::step_down`]), its lessor ends, once, and nobody is sent to it. Nothing answers
//! in between: there is no lessor, and the next one, here or elsewhere, begins an epoch of a later
//! term.
//!
//! **The successor has just answered.** A replica that is gone has matched as much as one that is
//! there when nothing was proposed since. So the leader goes on leading until a voter has
//! acknowledged a message that was sent after the transfer was asked for, and gives leadership to
//! no other. If nobody does, the leader keeps its term.
//!
//! **If nobody takes over**, Raft would leave it at that: a leader whose heartbeats keep the others
//! from electing, and which takes no proposals. So it gives its vote for the next term to the
//! successor, as if that had asked for it. With that it follows, and everybody may stand for
//! election again, itself too. A vote that nobody asked for elects nobody, and should the successor
//! still ask, it is what it would have been given: each replica has one vote in each term, as ever.

use openraft::{
    Instant as _, RaftMetrics, async_runtime::WatchReceiver, raft::VoteRequest, type_config::alias::InstantOf,
};

use super::{
    node::ReplicaNode,
    types::{
        TypeConfig,
        alias::{Raft, Vote},
    },
};

/// A successor is waited for this many of the longest election times.
const ELECTIONS: u32 = 2;

/// Why leadership was not handed over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// No other voter has answered in time. This replica leads as before.
    #[error("no successor: none of the other voters {voters:?} answered within {} ms", within.as_millis())]
    NobodyAnswers {
        /// The other voters.
        voters: Vec<u64>,
        /// How long the leader waited for an answer.
        within: std::time::Duration,
    },
    /// The named successor is not another voter. This replica leads as before.
    #[error("replica {successor}: expected another voter, one of {voters:?}")]
    NotAVoter {
        /// The named successor.
        successor: u64,
        /// The other voters.
        voters: Vec<u64>,
    },
    /// The successor did not take over in time. Everybody may stand for election again, this
    /// replica too.
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

impl ReplicaNode {
    /// See [`Replica::hand_over`](super::Replica::hand_over).
    pub(super) async fn transfer_leadership(&self) -> Result<(), TransferError> {
        let Some((raft, term)) = self.led() else { return Ok(()) };
        let voters = other_voters(&raft, self.config.id);
        if voters.is_empty() {
            return Ok(());
        }
        // Who is silent for longer stands for election: it does not count as one that follows.
        let within = self.config.timings.election_min;
        match answering_successor(&raft, self.config.id, within).await? {
            Some(successor) => self.hand_over_term(&raft, term, successor).await,
            None => Err(TransferError::NobodyAnswers { voters, within }),
        }
    }

    /// See [`Replica::transfer_leadership_to`](super::Replica::transfer_leadership_to).
    pub(super) async fn transfer_leadership_to(&self, successor: u64) -> Result<(), TransferError> {
        let Some((raft, term)) = self.led() else { return Ok(()) };
        let voters = other_voters(&raft, self.config.id);
        if !voters.contains(&successor) {
            return Err(TransferError::NotAVoter { successor, voters });
        }
        self.hand_over_term(&raft, term, successor).await
    }

    /// Raft, and the term that this replica leads, if it does.
    fn led(&self) -> Option<(Raft, u64)> {
        let leadership = self.leadership.borrow();
        let term = leadership.is_leader.then_some(leadership.term)?;
        drop(leadership);
        Some((self.raft()?, term))
    }

    async fn hand_over_term(&self, raft: &Raft, term: u64, successor: u64) -> Result<(), TransferError> {
        let mut leadership = self.leadership.subscribe();
        if leadership.borrow_and_update().term != term {
            // Another one was elected while this one looked for a successor.
            return Ok(());
        }
        tracing::info!(successor, raft_term = term, "transferring leadership");
        self.step_down(term);
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
        Err(TransferError::NobodyTookOver { successor, within })
    }
}

fn fatal(error: &dyn std::fmt::Display) -> TransferError {
    TransferError::Fatal { reason: error.to_string() }
}

fn other_voters(raft: &Raft, replica: u64) -> Vec<u64> {
    let metrics = raft.metrics();
    let metrics = metrics.borrow_watched();
    metrics.membership_config.voter_ids().filter(|voter| *voter != replica).collect()
}

/// Waits for a voter that answers a message sent from now on: the one that is furthest along of
/// all, or, when `within` is over, of those that have answered. None if nobody has.
async fn answering_successor(
    raft: &Raft,
    replica: u64,
    within: std::time::Duration,
) -> Result<Option<u64>, TransferError> {
    let (asked, mut metrics) = (InstantOf::<TypeConfig>::now(), raft.metrics());
    raft.trigger().heartbeat().await.map_err(|error| fatal(&error))?;
    loop {
        let (furthest, answering) = {
            let metrics = metrics.borrow_watched();
            (
                furthest(&metrics, replica, |_| true),
                furthest(&metrics, replica, |voter| answers(&metrics, voter, asked)),
            )
        };
        if let (Some((matched, successor)), Some((most, _))) = (answering, furthest)
            && matched >= most
        {
            return Ok(Some(successor));
        }
        let left = within.saturating_sub(asked.elapsed());
        match tokio::time::timeout(left, metrics.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return Err(fatal(&"Raft has stopped")),
            Err(_) => return Ok(answering.map(|(_, voter)| voter)),
        }
    }
}

/// The other voter that is furthest along among some, and how far that is.
fn furthest(
    metrics: &RaftMetrics<TypeConfig>,
    replica: u64,
    counts: impl Fn(u64) -> bool,
) -> Option<(Option<u64>, u64)> {
    let matched = |voter: &u64| Some(metrics.replication.as_ref()?.get(voter).copied().flatten()?.index);
    let others = metrics.membership_config.voter_ids().filter(|voter| *voter != replica && counts(*voter));
    others.map(|voter| (matched(&voter), voter)).max()
}

/// Whether a voter has acknowledged a message that was sent at that time or later.
fn answers(metrics: &RaftMetrics<TypeConfig>, voter: u64, asked: InstantOf<TypeConfig>) -> bool {
    let sent = metrics.heartbeat.as_ref().and_then(|sent| *sent.get(&voter)?);
    sent.is_some_and(|sent| sent.into_inner() >= asked)
}
