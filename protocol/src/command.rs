//! What goes into the Raft log, and what comes of it.
//!
//! A [`Proposal`] is one log entry: several [`Command`]s that were ready at the same moment share
//! it, and with it one fsync. Each command has one [`Outcome`], the same on every replica.

mod refusal;
mod size;

use std::{collections::BTreeSet, time::Duration};

pub use refusal::WriteRefusal;
use serde::{Deserialize, Serialize};
pub(crate) use size::encoded_bytes_of_sets;

use crate::{
    id::{Epoch, Incarnation, LeaseId, LockId, Revision, Sequence, SessionId, Token, VolumeGeneration},
    lock::{LockGrant, LockMode},
    object::{ObjectSet, Stat, Value},
    path::NodePath,
    time::ClusterTime,
    transaction::{Transacted, Transaction},
    volume::VolumeSettings,
};

/// One log entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Proposal {
    /// The leadership that proposes. If another has begun by the time the entry is applied, none of
    /// its commands changes anything (S2).
    pub epoch: Epoch,
    /// Counts the proposals of this epoch, so that the proposer knows its own when it is applied.
    pub number: u64,
    /// The proposer's cluster time. Applying takes the maximum so far (T4).
    pub time: ClusterTime,
    /// What to do, in order.
    pub commands: Vec<Command>,
}

/// One change of the replicated state.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Command {
    /// A replica has become leader: from here on only commands of this leadership count. The index
    /// of the entry is the epoch. The only command that the epoch of its proposal does not bind.
    BeginEpoch {
        /// The replica that leads.
        replica: u64,
        /// Distinguishes its leaderships, over restarts too.
        attempt: u64,
    },
    /// A client wants an identity.
    OpenSession {
        /// What it calls itself, for people who look.
        name: String,
    },
    /// A client has no more use for its identity, and has dropped all its copies. Nodes that go
    /// with its leases are [removed](Command::Purge) after that.
    CloseSession {
        /// The client.
        session: SessionId,
    },
    /// A session wants a lease on the volume that a path belongs to. It has stopped using any that
    /// it had there. If that one carries nodes it is not replaced: the session gets it again, with
    /// more time.
    AcquireVolume {
        /// The session.
        session: SessionId,
        /// Any path in the volume.
        path: NodePath,
    },
    /// Moves the horizons of renewed leases (T6).
    Tick {
        /// The leases that were renewed since the last tick.
        renewals: Vec<Renewal>,
    },
    /// Ends a lease (T5). Changes nothing if the lease's horizon is not the one named here. The
    /// nodes that it carries are still there: they are [removed](Command::Purge) when everyone has
    /// consented who may hold copies of them.
    Expire {
        /// The lease.
        lease: LeaseKey,
        /// Which of its incarnations.
        incarnation: Incarnation,
        /// The horizon that the proposer saw pass.
        horizon: ClusterTime,
    },
    /// Removes the nodes that went with leases which have ended, those of each lease with one
    /// change. Consents were gathered for all of them, and for the lists that they are in (S2, S8);
    /// nothing can have been attached to such a lease since.
    Purge {
        /// The leases.
        leases: Vec<Incarnation>,
    },
    /// A client's write (S2, S9).
    Write {
        /// Who writes.
        session: SessionId,
        /// The request's number in the session.
        sequence: Sequence,
        /// All requests of the session below this have been answered: their outcomes can be
        /// forgotten.
        unanswered_from: Sequence,
        /// The write.
        write: Write,
        /// The objects that consents were gathered for. If it would change another, it changes
        /// nothing.
        consented: Vec<ObjectSet>,
        /// Which leases and which volume the write names (S7b). If one of them has been replaced,
        /// it changes nothing.
        intended: IntendedLeases,
        /// Of a [revocation](Write::RevokeLease): consents were gathered for each node that was
        /// attached to the lease that is meant up to this change, and the lists that it is in. If
        /// the lease carries another, it changes nothing.
        attached_through: Revision,
    },
}

/// What a write means by the names in it that can be given to another lease or volume (S7b).
/// [`State::meant`] says it when the request arrives at the lessor; a request that arrives again,
/// and had no outcome, may mean others.
///
/// Not named here, because they are never used again: sessions, holds, tokens, incarnations,
/// revisions.
///
/// [`State::meant`]: crate::state::State::meant
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct IntendedLeases {
    /// The leases that the write revokes, attaches nodes to or places a hold under. Each
    /// incarnation belongs to one name. A name whose lease is not among them had none.
    pub leases: BTreeSet<Incarnation>,
    /// The volume that the write changes or removes: the generation that it was made with. None if
    /// there was no such volume.
    pub volume: Option<VolumeGeneration>,
}

/// Names a replicated lease.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum LeaseKey {
    /// The session itself: how long it is remembered without a sign of life.
    Session(SessionId),
    /// A session's lease on the volume with this path.
    Volume(SessionId, NodePath),
    /// A key lease, which is nobody's but whoever keeps it alive (etcd).
    Key(LeaseId),
    /// What is left of a hold whose session lost its lease: until it ends, nobody gets the node
    /// (Chubby's lock delay). It is never renewed.
    LockDelay(LockId),
}

impl LeaseKey {
    /// Whose lease it is. A key lease is no session's, nor is a delay.
    pub fn session(&self) -> Option<SessionId> {
        match self {
            Self::Session(session) | Self::Volume(session, _) => Some(*session),
            Self::Key(_) | Self::LockDelay(_) => None,
        }
    }

    /// The top of the volume that it is a lease on.
    pub fn volume(&self) -> Option<&NodePath> {
        match self {
            Self::Volume(_, top) => Some(top),
            Self::Session(_) | Self::Key(_) | Self::LockDelay(_) => None,
        }
    }
}

/// A lease that was renewed in the leader's memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Renewal {
    /// The lease.
    pub lease: LeaseKey,
    /// Which of its incarnations.
    pub incarnation: Incarnation,
    /// When it was last renewed.
    pub renewed_at: ClusterTime,
}

/// A change that users ask for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Write {
    /// Sets a node's value; makes the node and the nodes above it that do not exist.
    Put {
        /// The node.
        path: NodePath,
        /// Its new value.
        value: Value,
        /// What must hold for the write to take effect.
        condition: Condition,
        /// The lease that the node goes with from now on.
        attach: Attach,
    },
    /// Removes a node.
    Delete {
        /// The node.
        path: NodePath,
        /// With all that lies below it; otherwise a node with children is not removed.
        recursive: bool,
        /// What must hold for the write to take effect.
        condition: Condition,
    },
    /// Makes the subtree at `path` a volume. Its node is made if it does not exist.
    CreateVolume {
        /// The top of the volume.
        path: NodePath,
        /// What it promises.
        settings: VolumeSettings,
    },
    /// Changes what a volume promises.
    SetVolume {
        /// The top of the volume.
        path: NodePath,
        /// What it promises from now on.
        settings: VolumeSettings,
    },
    /// Lets the subtree belong to the volume above again. The nodes stay. Refused while a lease on
    /// the volume carries nodes.
    RemoveVolume {
        /// The top of the volume.
        path: NodePath,
    },
    /// Grants a key lease (etcd). No node changes.
    GrantLease {
        /// Its name; none to be given one.
        id: Option<LeaseId>,
        /// How long it lasts from its grant, and from each renewal.
        ttl: Duration,
    },
    /// Ends a key lease and removes the nodes that it carries, all at once.
    RevokeLease {
        /// The lease.
        id: LeaseId,
    },
    /// Asks for a hold on a node, under the writer's lease on the volume that the node belongs to.
    /// The node need not exist, and no node changes.
    Lock {
        /// The node.
        path: NodePath,
        /// Whether others may hold it too.
        mode: LockMode,
        /// To wait in the node's queue if it cannot be had now; otherwise it is refused.
        wait: bool,
        /// How long nobody gets the node if the lease ends under which it is held (Chubby's lock
        /// delay). Not if it is given back.
        delay: Duration,
    },
    /// Makes a shared hold exclusive, or the other way round. One that waits to be exclusive is
    /// held shared until then.
    ChangeLockMode {
        /// The node.
        path: NodePath,
        /// The hold.
        lock: LockId,
        /// What it is to be.
        mode: LockMode,
        /// To wait for the other holders to leave; otherwise it is refused if there are any.
        wait: bool,
    },
    /// Gives a hold back, or withdraws from the queue.
    Unlock {
        /// The node.
        path: NodePath,
        /// The hold.
        lock: LockId,
    },
    /// Compares, and does one thing or the other: all of it as one change, or none of it.
    Transaction(Transaction),
    /// Lets the holder of an exclusive hold keep the node's data to itself from now on: a write
    /// lease. It reads and writes in its own memory; others' reads and writes of the data wait
    /// until it [ends](Write::Flush) that, or its lease. The node has to exist, and to go with no
    /// lease. Its data does not change, yet all copies of it are recalled, as if it did (S2).
    TakeWriteLease {
        /// The node.
        path: NodePath,
        /// The hold.
        lock: LockId,
    },
    /// What the holder of a write lease has written in its own memory. Waits for nobody's consent,
    /// and for no other write: nobody else has a copy of the node's data, or can write it, while
    /// the write lease is there (S10).
    Flush {
        /// The node.
        path: NodePath,
        /// The hold.
        lock: LockId,
        /// The token under which it is held: with another one it is refused.
        token: Token,
        /// The node's value from now on; none to leave it as it is.
        value: Option<Value>,
        /// The holder keeps the data to itself no longer. It goes on holding the node.
        ends_write_lease: bool,
    },
    /// Gives a hold, which nobody else has a part in, to one that waits in the node's queue, past
    /// those that came before it.
    HandOver {
        /// The node.
        path: NodePath,
        /// The hold.
        lock: LockId,
        /// Who is to have the node.
        successor: LockId,
    },
}

/// The lease that a put attaches its node to. A node goes with one lease at most, a lease carries
/// any number of nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Attach {
    /// None: the node stays until it is removed. A put that says nothing of leases means this, as
    /// in etcd.
    #[default]
    Nothing,
    /// The one that it goes with already, or none.
    Unchanged,
    /// This key lease.
    Lease(LeaseId),
    /// The writer's lease on the volume that the node belongs to: service liveness by heartbeat.
    Session,
}

impl Write {
    /// A put without conditions or lease.
    pub fn put(path: NodePath, value: Value) -> Self {
        Self::Put { path, value, condition: Condition::Any, attach: Attach::Nothing }
    }

    /// The node that the write is about, if it is about one only.
    pub fn path(&self) -> Option<&NodePath> {
        match self {
            Self::Put { path, .. }
            | Self::Delete { path, .. }
            | Self::CreateVolume { path, .. }
            | Self::SetVolume { path, .. }
            | Self::RemoveVolume { path }
            | Self::Lock { path, .. }
            | Self::ChangeLockMode { path, .. }
            | Self::Unlock { path, .. }
            | Self::TakeWriteLease { path, .. }
            | Self::Flush { path, .. }
            | Self::HandOver { path, .. } => Some(path),
            Self::GrantLease { .. } | Self::RevokeLease { .. } | Self::Transaction(_) => None,
        }
    }
}

/// What must hold of a node for a write to take effect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Condition {
    /// Nothing.
    #[default]
    Any,
    /// It does not exist.
    Absent,
    /// Its value was last changed at this revision.
    Revision(Revision),
}

/// What came of a command.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Outcome {
    /// The leadership has begun.
    EpochBegun {
        /// Its epoch: the index of this entry.
        epoch: Epoch,
    },
    /// The session exists.
    SessionOpened {
        /// Its identity.
        session: SessionId,
    },
    /// The session is gone, and all its leases.
    SessionClosed,
    /// The session has a new lease on the volume.
    VolumeAcquired {
        /// The volume that the path belongs to.
        volume: NodePath,
        /// The new lease.
        incarnation: Incarnation,
        /// The volume's generation.
        generation: VolumeGeneration,
        /// No promise goes beyond this.
        horizon: ClusterTime,
    },
    /// Horizons have moved.
    Ticked,
    /// The lease is gone.
    Expired,
    /// The lease was gone already, or is another incarnation's.
    LeaseNotFound,
    /// The lease's horizon had moved: it has not ended. The proposer tries again (T5).
    HorizonMoved {
        /// Where it is now.
        horizon: ClusterTime,
    },
    /// The write took effect, or was refused: remembered, and repeated to whoever sends the request
    /// again (S9).
    Written(Result<Written, WriteRefusal>),
    /// The write would change objects that its consents do not cover, and changed nothing. The
    /// proposer gathers consents for those too and tries again (S2).
    MissingConsents,
    /// The nodes are gone.
    Purged {
        /// How many there were.
        nodes: u64,
    },
    /// The session does not exist: nothing changed.
    SessionNotFound,
    /// The request's number lies below the window of remembered outcomes: nothing changed.
    BelowWindow {
        /// The lowest number that is still remembered.
        lowest: Sequence,
    },
    /// The request's number lies beyond the window: nothing changed.
    BeyondWindow {
        /// The highest number that would be accepted.
        highest: Sequence,
    },
    /// Another leadership has begun since the proposal was made: nothing changed.
    EpochEnded,
}

/// A key lease that was granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct GrantedKeyLease {
    /// Its name.
    pub id: LeaseId,
    /// Which lease of that name.
    pub incarnation: Incarnation,
}

/// A write that took effect.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Written {
    /// Its place in the order of all changes. Of what changed no node, that of the last change
    /// before it.
    pub revision: Revision,
    /// The node's stat after a put; none after other writes.
    pub stat: Option<Stat>,
    /// How many nodes were removed.
    pub removed: u64,
    /// The key lease that was granted. Remembered with the outcome, so that a repeated answer is
    /// about this one, whoever has its name by then (S9).
    pub lease: Option<GrantedKeyLease>,
    /// The hold that was asked for, or made another.
    pub lock: Option<Box<LockGrant>>,
    /// What a transaction did.
    pub transaction: Option<Box<Transacted>>,
    /// The writer's volume leases that nodes were attached to by [`Attach::Session`], each once
    /// (S7b). A node goes with the one whose volume is nearest above it.
    pub attached: Vec<VolumeLease>,
}

/// The lease of a session, known from elsewhere, on a volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VolumeLease {
    /// The top of the volume.
    pub volume: NodePath,
    /// Which lease on it.
    pub incarnation: Incarnation,
}

impl Written {
    /// The lease that a node went with when this write attached it by [`Attach::Session`].
    pub fn attached_to(&self, path: &NodePath) -> Option<&VolumeLease> {
        let around = self.attached.iter().filter(|lease| lease.volume.contains(path));
        around.max_by_key(|lease| lease.volume.depth())
    }
}
