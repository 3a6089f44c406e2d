//! The handle on a replica, for the rest of the server.

use std::{
    io,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
    time::Duration,
};

use leasehold_protocol::{
    command::{Command, Proposal},
    lessor::LessorBounds,
    message::MemberInfo,
};
use openraft::{
    ReadPolicy,
    async_runtime::WatchReceiver,
    errors::{ClientWriteError, ForwardReason, ForwardToLeader, LinearizableReadError, RaftError},
    impls::ProgressResponder,
    raft::ClientWriteResult,
};
use tokio::sync::watch;

use super::{
    config::ReplicaConfig,
    error::{LeadershipError, MembershipError, ProposeError, ReplicaStartError},
    leadership::RaftLeadership,
    leadership_transfer::TransferError,
    machine::Machine,
    machine::Raft,
    membership,
    node::ReplicaNode,
    peer::KnownMembers,
    peer_server::PeerServer,
    types::{Logged, TypeConfig},
};
use crate::store::store_identity::ClusterId;

/// The longest proposal, in bytes. The lessor makes no longer one. A frame must fit one, together
/// with the entries that one read of the log adds from memory, and the rest of the message.
pub const PROPOSAL_MAX_BYTES: usize = 8 << 20;

/// The head of a proposal: three numbers, and the number of commands.
const PROPOSAL_HEAD_MAX_BYTES: usize = 64;

const _: () = assert!(
    Command::BYTES_MAX + PROPOSAL_HEAD_MAX_BYTES <= PROPOSAL_MAX_BYTES
        && LessorBounds::DEFAULT.proposal_bytes_max + PROPOSAL_HEAD_MAX_BYTES <= PROPOSAL_MAX_BYTES,
    "whatever the lessor proposes fits"
);
/// How long a refused proposal is resubmitted. A leader that was just elected, or was paused, lacks
/// a quorum's acknowledgement and refuses proposals. One round of heartbeats ends that.
const REFUSED_MAX: Duration = Duration::from_secs(1);
const REFUSED_POLL: Duration = Duration::from_millis(5);

/// A replica's view of itself and its cluster, for operators.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaInfo {
    /// This replica.
    pub replica: u64,
    /// The leadership.
    pub leadership: RaftLeadership,
    /// All members.
    pub members: Vec<MemberInfo>,
}

/// One replica of the cluster: its log, its state, and its connections to the others. Clones are
/// the same replica.
#[derive(Clone)]
pub struct Replica {
    node: Arc<ReplicaNode>,
}

impl Replica {
    /// Opens the stores of a replica, and brings it into its cluster.
    ///
    /// Returns as soon as the stores are open. Serve [`peer_service`](Self::peer_service) from then
    /// on, because the other replicas must be able to ask one with an empty store. `machine` gets
    /// its state before the first entry is applied. [`fatal`](Self::fatal) reports later failures.
    ///
    /// # Errors
    ///
    /// [`ReplicaStartError`]: the replica cannot run on this data folder, and must not serve.
    pub async fn start(config: ReplicaConfig, machine: Arc<dyn Machine>) -> Result<Self, ReplicaStartError> {
        let opened = tokio::task::spawn_blocking(move || ReplicaNode::open(config, machine)).await;
        let node = Arc::new(opened.map_err(|error| ReplicaStartError::Store(io::Error::other(error)))??);
        if let Err(error) = node.check_identity().await {
            // Closing releases the folder, so the operator can restart the replica at once.
            let _ = node.close().await;
            return Err(error);
        }
        let bootstrapping = tokio::spawn(Arc::clone(&node).bootstrap());
        *node.bootstrapping.lock() = Some(bootstrapping);
        Ok(Self { node })
    }

    /// The service for other replicas. Serve it on connections of the role peer with
    /// [`PeerServer::serve_connection`].
    pub fn peer_service(&self) -> PeerServer {
        PeerServer::new(Arc::clone(&self.node))
    }

    /// Submits a proposal to Raft. Proposals enter the log in the order of these calls. Many can be
    /// in flight.
    pub async fn submit(&self, proposal: Proposal) -> Result<ProposedEntry, ProposeError> {
        self.submit_logged(logged(proposal)?).await
    }

    /// Waits a little, then submits a proposal again that was refused with [`ProposeError::Retry`].
    /// It enters the log behind all that were submitted meanwhile.
    ///
    /// # Errors
    ///
    /// [`ProposeError`]: nothing was proposed. It is [`ProposeError::Retry`] after a second of
    /// resubmission.
    pub async fn resubmit(&self, refused: ProposedEntry) -> Result<ProposedEntry, ProposeError> {
        let again_since = refused.again_since.unwrap_or_else(tokio::time::Instant::now);
        if again_since.elapsed() >= REFUSED_MAX {
            return Err(ProposeError::Retry);
        }
        tokio::time::sleep(REFUSED_POLL).await;
        let again = self.submit_logged(refused.logged).await?;
        Ok(ProposedEntry { again_since: Some(again_since), ..again })
    }

    async fn submit_logged(&self, logged: Logged) -> Result<ProposedEntry, ProposeError> {
        let Some(raft) = self.raft().map_err(|reason| ProposeError::Fatal { reason })? else {
            return Err(ProposeError::NotLeader { leader: None });
        };
        let (responder, outcome) = ProgressResponder::complete_only();
        raft.client_write_ff(logged.clone(), Some(responder))
            .await
            .map_err(|error| ProposeError::Fatal { reason: error.to_string() })?;
        Ok(ProposedEntry { outcome, replica: self.node.config.id, logged, again_since: None })
    }

    /// Proves that this replica leads, and that it has applied everything that was committed before
    /// the call (ReadIndex). A quorum answers a round of heartbeats that begins after the call.
    /// Waiting calls share rounds.
    ///
    /// # Errors
    ///
    /// [`LeadershipError`]: there is no proof.
    pub async fn prove_leadership(&self) -> Result<(), LeadershipError> {
        let Some(raft) = self.raft().map_err(|reason| LeadershipError::Fatal { reason })? else {
            return Err(LeadershipError::NotLeader { leader: None });
        };
        match raft.ensure_linearizable(ReadPolicy::ReadIndex).await {
            Ok(_) => Ok(()),
            Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => {
                match elsewhere(self.node.config.id, forward) {
                    Some(leader) => Err(LeadershipError::NotLeader { leader }),
                    None => Err(LeadershipError::Retry),
                }
            }
            Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => Err(LeadershipError::Retry),
            Err(RaftError::Fatal(error)) => Err(LeadershipError::Fatal { reason: error.to_string() }),
        }
    }

    /// The leadership as far as this replica knows, and each change of it.
    pub fn leadership(&self) -> watch::Receiver<RaftLeadership> {
        self.node.leadership.subscribe()
    }

    /// The cluster that this replica takes part in. `None` until it has voted or stored an entry
    /// there, because an earlier bootstrap may be abandoned. Once set, it stays the same.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.node.cluster()
    }

    /// The membership that removed this replica, and its entry, once another replica has reported
    /// it. Raft itself does not report it.
    pub fn removed(&self) -> Option<KnownMembers> {
        self.node.removed.lock().clone()
    }

    /// The committed members, and their positions, for operators.
    pub fn info(&self) -> ReplicaInfo {
        let replica = self.node.config.id;
        let leadership = self.node.leadership.borrow().clone();
        let Some(raft) = self.node.raft() else {
            let member = |(id, address): (&u64, &String)| MemberInfo {
                replica: *id,
                address: address.clone(),
                is_voter: false,
                matched: None,
                applied: None,
            };
            let members = self.node.config.members.iter().map(member).collect();
            return ReplicaInfo { replica, leadership, members };
        };
        let metrics = raft.metrics();
        let metrics = metrics.borrow_watched();
        let matched = |id: u64| match &metrics.replication {
            _ if id == replica => metrics.last_log_index,
            Some(replication) => replication.get(&id).copied().flatten().map(|matched| matched.index),
            None => None,
        };
        let members = membership::members(&metrics.committed_membership_config)
            .into_iter()
            .map(|(id, (address, is_voter))| MemberInfo {
                replica: id,
                address,
                is_voter,
                matched: matched(id),
                applied: metrics.last_applied.filter(|_| id == replica).map(|applied| applied.index),
            })
            .collect();
        ReplicaInfo { replica, leadership, members }
    }

    /// How often this replica has asked all others for their stages, in search of its cluster. A
    /// test that expects no bootstrap uses this to see that one was possible.
    pub fn rounds(&self) -> u64 {
        self.node.rounds.load(Ordering::Relaxed)
    }

    /// How long this replica heard from the leader of the latest entry, since that entry arrived.
    /// Zero if unknown. A new leader must call this once, before it proposes entries of its own.
    pub fn take_heard(&self) -> Duration {
        self.node.heard.lock().take()
    }

    /// If this replica leads, transfers leadership to another voter, and waits for it. For a
    /// planned stop.
    ///
    /// The successor is the voter with the longest log among those that answer now. This replica
    /// leads until one has answered. Then it no longer leads, unless it is elected again. If it is
    /// the only voter, it continues to lead.
    ///
    /// # Errors
    ///
    /// - [`TransferError::NobodyAnswers`]: no other voter answered within the shortest election
    ///   timeout. This replica still leads.
    /// - [`TransferError::NobodyTookOver`]: the successor answered, but did not take over in time.
    ///   Only time is lost: the running voters elect one of them, perhaps this replica.
    /// - [`TransferError::Fatal`]: this replica has ended.
    pub async fn transfer_leadership(&self) -> Result<(), TransferError> {
        self.node.transfer_leadership().await
    }

    /// Like [`Replica::transfer_leadership`], to this voter, whether it answers or not. From the
    /// call on, this replica no longer leads, unless it is elected again.
    ///
    /// # Errors
    ///
    /// [`TransferError`]: as for [`Replica::transfer_leadership`], or [`TransferError::NotAVoter`].
    pub async fn transfer_leadership_to(&self, successor: u64) -> Result<(), TransferError> {
        self.node.transfer_leadership_to(successor).await
    }

    /// Adds a replica that gets all entries and has no vote. Works only on the leader.
    ///
    /// # Errors
    ///
    /// [`MembershipError`]: this replica does not lead, or another change is in progress.
    pub async fn add_learner(&self, replica: u64, address: &str) -> Result<(), MembershipError> {
        let raft = self.raft_for_change()?;
        let _changing = self.node.membership_lock.lock().await;
        membership::add_learner(&raft, replica, address).await.map_err(|reason| MembershipError { reason })
    }

    /// Makes a learner a voter. Works only on the leader.
    ///
    /// # Errors
    ///
    /// [`MembershipError`]: this replica does not lead, another change is in progress, or there is
    /// no such learner.
    pub async fn promote(&self, replica: u64) -> Result<(), MembershipError> {
        let raft = self.raft_for_change()?;
        let _changing = self.node.membership_lock.lock().await;
        membership::promote(&raft, replica).await.map_err(|reason| MembershipError { reason })
    }

    /// Removes a member. Works only on the leader.
    ///
    /// # Errors
    ///
    /// [`MembershipError`]: this replica does not lead, another change is in progress, or there is
    /// no such member.
    pub async fn remove(&self, replica: u64) -> Result<(), MembershipError> {
        let raft = self.raft_for_change()?;
        let _changing = self.node.membership_lock.lock().await;
        membership::remove(&raft, replica).await.map_err(|reason| MembershipError { reason })
    }

    /// Resolves with the reason when this replica has ended: a store failed, Raft stopped, or it
    /// cannot enter its cluster. The process must then end, with an exit code that says so.
    pub async fn fatal(&self) -> Arc<str> {
        self.node.poison.reason().await
    }

    /// Stops Raft, and writes the state to the disk.
    ///
    /// # Errors
    ///
    /// The last write failed. The log still has every acknowledged write.
    pub async fn shutdown(self) -> io::Result<()> {
        self.node.close().await
    }

    fn raft(&self) -> Result<Option<Raft>, String> {
        self.node.poison.check().map_err(|error| error.to_string())?;
        Ok(self.node.raft())
    }

    fn raft_for_change(&self) -> Result<Raft, MembershipError> {
        let raft = self.raft().map_err(|reason| MembershipError { reason })?;
        raft.ok_or_else(|| MembershipError { reason: "this replica is not a member of a cluster yet".to_owned() })
    }
}

fn logged(proposal: Proposal) -> Result<Logged, ProposeError> {
    let logged = Logged::new(proposal).map_err(|error| ProposeError::Fatal { reason: error.to_string() })?;
    let got = logged.encoded_bytes();
    if got > PROPOSAL_MAX_BYTES {
        return Err(ProposeError::TooLarge { got, most: PROPOSAL_MAX_BYTES });
    }
    Ok(logged)
}

/// Where to send a request: the leader's address, if known. `None` means to retry it here.
fn elsewhere(replica: u64, forward: ForwardToLeader<TypeConfig>) -> Option<Option<String>> {
    let is_here = forward.leader_id == Some(replica) || forward.reason == ForwardReason::LeaseExpired;
    (!is_here).then(|| forward.leader_node.map(|node| node.addr))
}

/// A proposal that was submitted to Raft. Dropping this does not stop it.
///
/// Resolves once: with the log index when the proposal has been applied here, or with a
/// [`ProposeError`], which says whether it may still be applied.
#[must_use = "it may have been refused"]
pub struct ProposedEntry {
    outcome: tokio::sync::oneshot::Receiver<ClientWriteResult<TypeConfig>>,
    replica: u64,
    logged: Logged,
    /// When its resubmission began, if it was refused.
    again_since: Option<tokio::time::Instant>,
}

impl Future for ProposedEntry {
    type Output = Result<u64, ProposeError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let outcome = match ready!(Pin::new(&mut self.outcome).poll(context)) {
            Ok(Ok(response)) => Ok(response.log_id.index),
            Ok(Err(ClientWriteError::ForwardToLeader(forward))) => match elsewhere(self.replica, forward) {
                Some(leader) => Err(ProposeError::NotLeader { leader }),
                None => Err(ProposeError::Retry),
            },
            Ok(Err(_)) => Err(ProposeError::Unknown),
            Err(_) => Err(ProposeError::Fatal { reason: "Raft has stopped".to_owned() }),
        };
        Poll::Ready(outcome)
    }
}
