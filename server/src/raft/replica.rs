//! The handle that the rest of the server has on a replica.

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
    ConfigError, ReadPolicy,
    async_runtime::WatchReceiver,
    errors::{ClientWriteError, ForwardReason, ForwardToLeader, LinearizableReadError, RaftError},
    impls::ProgressResponder,
    raft::ClientWriteResult,
};
use tokio::sync::watch;

use super::{
    config::ReplicaConfig,
    leadership_transfer::TransferError,
    machine::Machine,
    membership,
    node::ReplicaNode,
    peer::{KnownMembers, PeerServer},
    types::{Logged, TypeConfig, alias::Raft},
};
use crate::store::{
    log::OpenLogError,
    state::OpenStateError,
    store_identity::{ClusterId, StoreIdentityError},
};

/// The longest proposal. With a message's other parts it must fit into a frame, together with as
/// much again that was read from the log's other end. The lessor makes none that is longer.
pub const PROPOSAL_MAX_BYTES: usize = 8 << 20;

/// The head of a proposal: three numbers, and how many commands there are.
const PROPOSAL_HEAD_MAX_BYTES: usize = 64;

const _: () = assert!(
    Command::BYTES_MAX + PROPOSAL_HEAD_MAX_BYTES <= PROPOSAL_MAX_BYTES
        && LessorBounds::DEFAULT.proposal_bytes_max + PROPOSAL_HEAD_MAX_BYTES <= PROPOSAL_MAX_BYTES,
    "whatever the lessor proposes fits"
);
/// A leader that was just elected, or has stood still, has no quorum's acknowledgement and refuses
/// proposals; that passes with one round of heartbeats.
const REFUSED_MAX: Duration = Duration::from_secs(1);
const REFUSED_POLL: Duration = Duration::from_millis(5);

/// Why a replica does not start, or cannot come into its cluster.
#[derive(Debug, thiserror::Error)]
pub enum ReplicaStartError {
    /// The replica is not among the members.
    #[error("replica {id} is not among the members: expected one of {members:?}")]
    NotAMember {
        /// The replica.
        id: u64,
        /// The members.
        members: Vec<u64>,
    },
    /// The timings contradict each other.
    #[error("the timings cannot work: {0}")]
    Timings(#[from] ConfigError),
    /// The data folder cannot be made or written.
    #[error("{}: cannot be used as the data folder: {error}", dir.display())]
    Directory {
        /// The folder.
        dir: std::path::PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Another process, or another replica of this one, uses the data directory.
    #[error(
        "{}: {} uses this data folder: stop that process, or give this replica a folder of its own",
        dir.display(),
        process.map_or_else(|| "another process".to_owned(), |process| format!("process {process}"))
    )]
    InUse {
        /// The directory.
        dir: std::path::PathBuf,
        /// Who, if that is known.
        process: Option<u32>,
    },
    /// The standing cannot be read.
    #[error(transparent)]
    Identity(#[from] StoreIdentityError),
    /// The log cannot be opened.
    #[error(transparent)]
    Log(#[from] OpenLogError),
    /// The state cannot be opened.
    #[error(transparent)]
    State(#[from] OpenStateError),
    /// A part of the data directory is missing.
    #[error(
        "{}: {part} is missing, the rest is there: expected all or nothing; bring back what is missing, or empty the \
         folder, which removes its data, and start it again: it comes back from the others, if there are any",
        dir.display()
    )]
    Incomplete {
        /// The directory.
        dir: std::path::PathBuf,
        /// What is missing.
        part: &'static str,
    },
    /// The state lacks entries that the log no longer has.
    #[error(
        "{}: the state ends at entry {}, the log begins after entry {}: expected no entry between them to be missing; \
         empty the folder, which removes its data, and start it again: it comes back from the others, if there are any",
        dir.display(),
        applied.map_or_else(|| "(none)".to_owned(), |entry| entry.to_string()),
        purged.map_or_else(|| "(none)".to_owned(), |entry| entry.to_string())
    )]
    Gap {
        /// The directory.
        dir: std::path::PathBuf,
        /// The last entry that the state has.
        applied: Option<u64>,
        /// The last entry that was purged.
        purged: Option<u64>,
    },
    /// The replica is started at another address than its cluster has recorded for it.
    #[error(
        "{}: replica {replica} of cluster {cluster} is recorded at {recorded}, and is started at {configured}; start \
         it with {replica}={recorded} in --cluster, and use --listen if this machine knows the address by another \
         name; to move it, have the new address recorded (leasehold cluster replace {replica} {configured}) and \
         empty its folder",
        dir.display()
    )]
    Address {
        /// The folder.
        dir: std::path::PathBuf,
        /// The replica.
        replica: u64,
        /// Its cluster.
        cluster: ClusterId,
        /// Its address in the cluster's membership.
        recorded: String,
        /// Its address in the configuration.
        configured: String,
    },
    /// The replica is started with other members than its cluster has.
    #[error(
        "{}: belongs to cluster {cluster}, bootstrapped with --cluster {recorded}, and is started with --cluster \
         {configured}; start it with the first list, or, if this replica is to take part in another cluster, empty \
         the folder, which removes its data, and start it again",
        dir.display()
    )]
    Members {
        /// The folder.
        dir: std::path::PathBuf,
        /// Its cluster.
        cluster: ClusterId,
        /// The members that are stored.
        recorded: String,
        /// The members in the configuration.
        configured: String,
    },
    /// Nothing says that the replica may take part.
    #[error("this replica has no record of its cluster: expected one before it takes part")]
    NoIdentity,
    /// It is being closed.
    #[error("this replica is closing")]
    Closing,
    /// A store failed.
    #[error("the store failed: {0}")]
    Store(io::Error),
    /// Raft does not start.
    #[error("Raft does not start: {0}")]
    Raft(String),
    /// Another replica listens where a member should.
    #[error("replica {got} listens at {address}: expected replica {expected}")]
    OtherReplica {
        /// Where.
        address: String,
        /// Who does.
        got: u64,
        /// Who should.
        expected: u64,
    },
    /// Two members are configured differently.
    #[error("replica {replica} is configured with {got}: expected {expected}")]
    Configuration {
        /// The other one.
        replica: u64,
        /// Its configuration.
        got: String,
        /// The one that it is compared with.
        expected: String,
    },
    /// The cluster does not let this replica in.
    #[error("the cluster does not let this replica in: {reason}")]
    Refused {
        /// Why.
        reason: String,
    },
}

/// Why a proposal was not applied, or is not known to be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// This replica does not lead. Nothing was proposed.
    #[error("this replica does not lead; the leader is {}", leader.as_deref().unwrap_or("not known"))]
    NotLeader {
        /// Where the leader listens, if that is known.
        leader: Option<String>,
    },
    /// It leads, but has no quorum at the moment. Nothing was proposed.
    #[error("no quorum has acknowledged this leader lately")]
    Retry,
    /// It was proposed, and then this replica stopped leading: it may still be applied.
    #[error("the leader changed after the proposal: it may still be applied")]
    Unknown,
    /// It is too long. Nothing was proposed.
    #[error("a proposal of {got} bytes: expected at most {most}")]
    TooLarge {
        /// Its length.
        got: usize,
        /// The bound.
        most: usize,
    },
    /// This replica has ended. It may have been proposed.
    #[error("this replica has ended: {reason}")]
    Fatal {
        /// Why.
        reason: String,
    },
}

/// Why leadership could not be proven.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LeadershipError {
    /// This replica does not lead.
    #[error("this replica does not lead; the leader is {}", leader.as_deref().unwrap_or("not known"))]
    NotLeader {
        /// Where the leader listens, if that is known.
        leader: Option<String>,
    },
    /// No quorum has answered in time.
    #[error("no quorum has acknowledged this leader in time")]
    Retry,
    /// This replica has ended.
    #[error("this replica has ended: {reason}")]
    Fatal {
        /// Why.
        reason: String,
    },
}

/// Why the members were not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the members were not changed: {reason}")]
pub struct MembershipError {
    /// Why.
    pub reason: String,
}

/// Who leads, as far as this replica knows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RaftLeadership {
    /// Raft's term. (Not an epoch: a leader's epoch is the index of its first entry.)
    pub term: u64,
    /// Whether this replica leads, a majority has answered it within four election times, and it is
    /// not handing over.
    pub is_leader: bool,
    /// The leader and where it listens, if known.
    pub leader: Option<(u64, String)>,
}

impl RaftLeadership {
    /// The replica does not lead, and nobody is sent to a leader that does not count as one.
    pub(super) fn renounce(&mut self, replica: u64) {
        self.is_leader = false;
        self.leader.take_if(|(leader, _)| *leader == replica);
    }
}

/// The replica as seen by itself, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicaInfo {
    /// This replica.
    pub replica: u64,
    /// Who leads.
    pub leadership: RaftLeadership,
    /// All members.
    pub members: Vec<MemberInfo>,
}

/// One replica of the cluster: log, state, and connections to the others. Clones are the same
/// replica.
#[derive(Clone)]
pub struct Replica {
    node: Arc<ReplicaNode>,
}

impl Replica {
    /// Opens the stores of a replica and brings it into its cluster.
    ///
    /// Returns as soon as the stores are open: a replica with an empty store has to be asked by the
    /// others, so [`peer_service`](Self::peer_service) must be served from now on. `machine` is
    /// told its state before the first entry is applied. What goes wrong later is told by
    /// [`fatal`](Self::fatal).
    ///
    /// # Errors
    ///
    /// [`ReplicaStartError`]: the stores cannot be used. The node must not serve.
    pub async fn start(config: ReplicaConfig, machine: Arc<dyn Machine>) -> Result<Self, ReplicaStartError> {
        let opened = tokio::task::spawn_blocking(move || ReplicaNode::open(config, machine)).await;
        let node = Arc::new(opened.map_err(|error| ReplicaStartError::Store(io::Error::other(error)))??);
        if let Err(error) = node.check_identity().await {
            // Its stores let go of the folder: whoever has read why may start the replica again at
            // once.
            let _ = node.close().await;
            return Err(error);
        }
        let bootstrapping = tokio::spawn(Arc::clone(&node).bootstrap());
        *node.bootstrapping.lock() = Some(bootstrapping);
        Ok(Self { node })
    }

    /// What other replicas call; to be served on connections of the role peer by
    /// [`PeerServer::serve_connection`].
    pub fn peer_service(&self) -> PeerServer {
        PeerServer::new(Arc::clone(&self.node))
    }

    /// Hands a proposal to Raft. Proposals enter the log in the order of these calls; many can be
    /// under way.
    ///
    /// # Errors
    ///
    /// [`ProposeError`]: nothing was proposed.
    pub async fn submit(&self, proposal: Proposal) -> Result<ProposedEntry, ProposeError> {
        self.submit_logged(logged(proposal)?).await
    }

    /// Submits a proposal again that was refused with [`ProposeError::Retry`], a little later. It
    /// comes behind all that were submitted meanwhile.
    ///
    /// # Errors
    ///
    /// [`ProposeError`]: nothing was proposed. It is [`ProposeError::Retry`] once it has been submitted again for a second.
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

    /// Proves that this replica leads, by a round of heartbeats that begins after the call and is
    /// answered by a quorum, and that it has applied all that was committed before the call
    /// (ReadIndex). Calls that wait together share rounds.
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

    /// Who leads, as far as this replica knows, and each change of that.
    pub fn leadership(&self) -> watch::Receiver<RaftLeadership> {
        self.node.leadership.subscribe()
    }

    /// The cluster that this replica takes part in. None until it has voted or stored an entry
    /// there: a founding before that may come to nothing. Once named it stays the same.
    pub fn cluster(&self) -> Option<ClusterId> {
        self.node.cluster()
    }

    /// The entry that removed this replica, and the members that are left, once it has learnt of
    /// that from another replica. Nobody tells it unasked.
    pub fn removed(&self) -> Option<KnownMembers> {
        self.node.removed.lock().clone()
    }

    /// Members, as this replica knows them to be agreed on, and positions; for people.
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

    /// How often this replica has asked all others where they stand, in search of its cluster.
    /// Whoever waits for a founding that must not come (tests do) knows by this that there was
    /// occasion for one.
    pub fn rounds(&self) -> u64 {
        self.node.rounds.load(Ordering::Relaxed)
    }

    /// How long this replica has heard from the leader that proposed the latest entry, since that
    /// came in; zero if it is not known. To be asked once by a replica that has become leader,
    /// before it proposes: what it proposes then is its own.
    pub fn take_heard(&self) -> Duration {
        self.node.heard.lock().take()
    }

    /// If this replica leads, has another voter take over, and waits a while for that. For a
    /// planned stop.
    ///
    /// The successor is the voter that is furthest along of those that answer now. This replica
    /// leads until one has answered, and from then on no more, unless it is elected anew. Alone, it
    /// goes on leading.
    ///
    /// # Errors
    ///
    /// - [`TransferError::NobodyAnswers`]: no other voter answered within the shortest election
    ///   time. This replica leads on.
    /// - [`TransferError::NobodyTookOver`]: the successor answered, and did not take over in time.
    ///   Nothing is lost but time: the voters that are there elect one of them, perhaps this
    ///   replica.
    pub async fn transfer_leadership(&self) -> Result<(), TransferError> {
        self.node.transfer_leadership().await
    }

    /// As [`Replica::hand_over`], to this voter, whether it answers or not. From the call on this
    /// replica leads no more, unless it is elected anew.
    ///
    /// # Errors
    ///
    /// [`TransferError`]: as for [`Replica::hand_over`], or [`TransferError::NotAVoter`].
    pub async fn transfer_leadership_to(&self, successor: u64) -> Result<(), TransferError> {
        self.node.transfer_leadership_to(successor).await
    }

    /// Adds a replica that gets all entries and has no vote. Only on the leader.
    ///
    /// # Errors
    ///
    /// [`MembershipError`]: this replica does not lead, or another change is under way.
    pub async fn add_learner(&self, replica: u64, address: &str) -> Result<(), MembershipError> {
        let raft = self.raft_for_change()?;
        let _changing = self.node.membership_lock.lock().await;
        membership::add_learner(&raft, replica, address).await.map_err(|reason| MembershipError { reason })
    }

    /// Makes a learner a voter. Only on the leader.
    ///
    /// # Errors
    ///
    /// [`MembershipError`]: this replica does not lead, or another change is under way, or there is no such learner.
    pub async fn promote(&self, replica: u64) -> Result<(), MembershipError> {
        let raft = self.raft_for_change()?;
        let _changing = self.node.membership_lock.lock().await;
        membership::promote(&raft, replica).await.map_err(|reason| MembershipError { reason })
    }

    /// Removes a member. Only on the leader.
    ///
    /// # Errors
    ///
    /// [`MembershipError`]: this replica does not lead, or another change is under way, or there is no such member.
    pub async fn remove(&self, replica: u64) -> Result<(), MembershipError> {
        let raft = self.raft_for_change()?;
        let _changing = self.node.membership_lock.lock().await;
        membership::remove(&raft, replica).await.map_err(|reason| MembershipError { reason })
    }

    /// Resolves with the reason when this replica has ended: a store failed, Raft stopped, or it
    /// cannot come into its cluster. The process must then end, and say so by its exit code.
    pub async fn fatal(&self) -> Arc<str> {
        self.node.poison.reason().await
    }

    /// Stops Raft, and writes the state to the disk.
    ///
    /// # Errors
    ///
    /// The last write failed. The log has all that was acknowledged.
    pub async fn shutdown(self) -> io::Result<()> {
        self.node.close().await
    }

    fn raft(&self) -> Result<Option<Raft>, String> {
        self.node.poison.check().map_err(|error| error.to_string())?;
        Ok(self.node.raft())
    }

    fn raft_for_change(&self) -> Result<Raft, MembershipError> {
        let raft = self.raft().map_err(|reason| MembershipError { reason })?;
        raft.ok_or_else(|| MembershipError { reason: "this replica takes part in no cluster yet".to_owned() })
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

/// Where a request has to go: none if it is to be tried again here.
fn elsewhere(replica: u64, forward: ForwardToLeader<TypeConfig>) -> Option<Option<String>> {
    let is_here = forward.leader_id == Some(replica) || forward.reason == ForwardReason::LeaseExpired;
    (!is_here).then(|| forward.leader_node.map(|node| node.addr))
}

/// A proposal that has been handed to Raft. It goes on whether this is awaited or dropped.
///
/// Resolves, once, with its log index when it has been applied here, or with a [`ProposeError`]
/// that says whether it may still be applied.
#[must_use = "it may have been refused"]
pub struct ProposedEntry {
    outcome: tokio::sync::oneshot::Receiver<ClientWriteResult<TypeConfig>>,
    replica: u64,
    logged: Logged,
    /// Since when it is submitted again and again, if it is.
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
