//! Leadership transfer, for a planned stop.
//!
//! **A transfer ends the leadership at once.** Once a leader has asked its successor to campaign,
//! Raft takes no proposal from it, even if the successor fails. So the leader first steps down from
//! its Raft term for good ([`ReplicaNode::step_down`]). Its lessor ends, and it no longer names
//! itself as leader. No replica answers clients until the next lessor, here or elsewhere, begins an
//! epoch of a later Raft term.
//!
//! **The successor has just answered.** If nothing was proposed since a replica failed, its log is
//! as long as that of a running replica. So the leader first waits for a voter to acknowledge a
//! message that was sent after the request. It transfers leadership only to such a voter. If none
//! acknowledges, the leader continues to lead.
//!
//! **If the successor does not take over**, Raft alone would leave a leader whose heartbeats
//! prevent elections, and which takes no proposals. So the leader grants the successor its vote for
//! the next Raft term, as if requested. That makes the leader a follower, and every voter may
//! campaign, this one too. A vote that was not requested elects nobody. If the successor asks
//! later, it gets the same answer: each replica has one vote in each Raft term, as always.

use openraft::{
    Instant as _, RaftMetrics, async_runtime::WatchReceiver, raft::VoteRequest, type_config::alias::InstantOf,
};

use super::{
    machine::Raft,
    node::ReplicaNode,
    types::{TypeConfig, alias::Vote},
};

/// How long to wait for a successor, as a multiple of the longest election timeout.
const ELECTIONS: u32 = 2;

/// Why leadership was not transferred.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// No other voter answered in time. This replica still leads.
    #[error("no successor: no other voter of {voters:?} answered within {} ms", within.as_millis())]
    NobodyAnswers {
        /// The other voters.
        voters: Vec<u64>,
        /// How long the leader waited for an answer.
        within: std::time::Duration,
    },
    /// The named successor is not another voter. This replica still leads.
    #[error("replica {successor}: not another voter; expected one of {voters:?}")]
    NotAVoter {
        /// The named successor.
        successor: u64,
        /// The other voters.
        voters: Vec<u64>,
    },
    /// The successor did not take over in time. Every voter may campaign again, this replica too.
    #[error("replica {successor}: not elected within {} ms", within.as_millis())]
    NobodyTookOver {
        /// The chosen successor.
        successor: u64,
        /// How long the leader waited for it.
        within: std::time::Duration,
    },
    /// This replica has ended.
    #[error("this replica has stopped: {reason}")]
    Fatal {
        /// The reason.
        reason: String,
    },
}

impl ReplicaNode {
    /// See [`Replica::transfer_leadership`](super::Replica::transfer_leadership).
    pub(super) async fn transfer_leadership(&self) -> Result<(), TransferError> {
        let Some((raft, term)) = self.led() else { return Ok(()) };
        let voters = other_voters(&raft, self.config.id);
        if voters.is_empty() {
            return Ok(());
        }
        // A follower that hears nothing for longer than this campaigns.
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

    /// Raft, and the Raft term that this replica leads, if it leads one.
    fn led(&self) -> Option<(Raft, u64)> {
        let leadership = self.leadership.borrow();
        let term = leadership.is_leader.then_some(leadership.term)?;
        drop(leadership);
        Some((self.raft()?, term))
    }

    async fn hand_over_term(&self, raft: &Raft, term: u64, successor: u64) -> Result<(), TransferError> {
        let mut leadership = self.leadership.subscribe();
        if leadership.borrow_and_update().term != term {
            // Another replica was elected while this one searched for a successor.
            return Ok(());
        }
        tracing::info!(successor, raft_term = term, "transferring leadership");
        self.step_down(term);
        raft.trigger().transfer_leader(successor).await.map_err(|error| fatal(&error))?;
        let within = self.config.timings.election_max * ELECTIONS;
        // A later Raft term has another leader, or none yet. This leadership has ended either way.
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

/// Waits for a voter that answers a message sent from now on. Returns the voter with the longest
/// log as soon as that answers. After `within`, returns the one with the longest log of those that
/// answered.
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

/// The last index and the id of the voter with the longest log, among those that `counts` accepts.
fn furthest(
    metrics: &RaftMetrics<TypeConfig>,
    replica: u64,
    counts: impl Fn(u64) -> bool,
) -> Option<(Option<u64>, u64)> {
    let matched = |voter: &u64| Some(metrics.replication.as_ref()?.get(voter).copied().flatten()?.index);
    let others = metrics.membership_config.voter_ids().filter(|voter| *voter != replica && counts(*voter));
    others.map(|voter| (matched(&voter), voter)).max()
}

/// Whether a voter has acknowledged a message that was sent at `asked` or later.
fn answers(metrics: &RaftMetrics<TypeConfig>, voter: u64, asked: InstantOf<TypeConfig>) -> bool {
    let sent = metrics.heartbeat.as_ref().and_then(|sent| *sent.get(&voter)?);
    sent.is_some_and(|sent| sent.into_inner() >= asked)
}
