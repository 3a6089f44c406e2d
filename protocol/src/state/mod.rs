//! The replicated state: what every replica computes from the log.
//!
//! Only [`State::apply`] changes the state. It takes one log entry. It returns one [`Outcome`] for
//! each command and the [rows](RowKey) that the entry changed. The same entries in the same order
//! give equal states and equal rows on every replica. Nothing here reads a clock: time is the
//! cluster time in proposals (T4, T7 in docs/PROTOCOL.md).
//!
//! # What it guarantees
//!
//! - A command of another epoch than the current one changes nothing (S2). The cluster time of its
//!   proposal does not count either. Otherwise a deposed leader could hasten the end of a lease
//!   that its successor renews. A proposal that begins an epoch moves cluster time, because it
//!   belongs to the new epoch.
//! - A write changes exactly the objects in its [footprint](State::footprint), and only if its
//!   consents cover them (S2, S8).
//! - A write takes effect at most once, even if it is sent again, and gets the first outcome (S9).
//! - A lease ends by a command only (T5). No command moves a horizon back (T6).
//! - A command takes effect as a whole, or changes nothing.
//! - The rows are the whole state. [`State::from_rows`] rebuilds an equal state from
//!   [`State::rows`]. `touched` names each row that an entry changed, so a store writes only those.
//!
//! # What it does not know
//!
//! The state does not know which sessions have cached copies, when a lease ends within its horizon,
//! or which writes are pending. The lessor knows these facts, and a new lessor starts without them.
//! The state trusts the proposer in two points: the consents in a command were given, and the time
//! of an expired lease has passed.
//!
//! # Costs
//!
//! - A put of an existing node takes a few look-ups in ordered maps. A put of a new node takes as
//!   many for each created node, at most the depth of its path.
//! - A transaction takes the sum of its operations, whose number is bounded.
//! - The cost of a delete or a purge depends on the number of nodes: at most
//!   [`State::REMOVED_NODES_MAX`]. A purge may have a few more: as many as one transaction has
//!   operations. Later entries free the memory of purged nodes in parts.
//! - The cost of a volume's creation depends on the number of nodes in its subtree, because they
//!   are counted (`quotas`).
//! - The end of a lease ends its locks: at most as many as a lease may have nodes.
//! - The cost of a volume's removal depends on the number of leases on it. That of a session's end
//!   depends on its leases and remembered outcomes.

mod attachments;
mod history;
mod intended;
mod invariant;
mod leases;
mod locks;
mod nodes;
mod quotas;
mod row;
mod row_key;
mod sessions;
mod touched;
mod transactions;
mod volumes;
mod write_leases;
mod writes;

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod random;

use std::{
    collections::{BTreeMap, BTreeSet, btree_map},
    ops::Bound,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use self::{attachments::Attachments, history::History, locks::LockTable, quotas::VolumeUses, touched::Touched};
pub(crate) use self::{
    attachments::FEW_NODES,
    history::{HistoryScan, ScanBounds},
};
pub use self::{
    leases::LeaseRecord,
    locks::{LOCKS_PER_NODE_MAX, LockRecord},
    nodes::{Attachment, NodeRecord},
    row_key::{RowError, RowKey},
    sessions::{RequestStatus, SessionRecord},
    volumes::VolumeRecord,
};
use crate::{
    command::{AnyLease, Command, Outcome, Proposal},
    id::{Epoch, Incarnation, LeaseId, LockId, Revision, Sequence, SessionId, WriteLeaseId},
    lease_name::LeaseName,
    path::NodePath,
    planted::{Bug, Planted},
    time::ClusterTime,
    volume::VolumeSettings,
};

/// The replicated state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    meta: Meta,
    nodes: BTreeMap<NodePath, NodeRecord>,
    volumes: BTreeMap<NodePath, VolumeRecord>,
    sessions: BTreeMap<SessionId, SessionRecord>,
    /// The number of operation results in remembered outcomes. Derived from the sessions.
    result_count: usize,
    leases: BTreeMap<AnyLease, LeaseRecord>,
    /// The named key leases. Derived from the leases.
    lease_names: BTreeMap<LeaseName, LeaseId>,
    /// The attached nodes by lease. Derived from the nodes and the leases, except for tombstones
    /// and the orphans of closed sessions.
    attachments: Attachments,
    locks: LockTable,
    history: History,
    /// The sessions with a lease on each volume. Derived from the leases.
    volume_lease_holders: BTreeMap<NodePath, BTreeSet<SessionId>>,
    /// The number of volumes that need each tick. Derived from the volumes.
    tick_counts: BTreeMap<Duration, usize>,
    /// The nodes and bytes of each volume. Derived from the nodes and the volumes.
    volume_uses: VolumeUses,
    /// The shortest tick in `tick_counts`. Stored because each step of the lessor reads it.
    tick: Duration,
    planted: Planted,
}

/// The counters, the epoch and the cluster time.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct Meta {
    applied_index: u64,
    epoch: Epoch,
    cluster_time: ClusterTime,
    revision: Revision,
    next_session: SessionId,
    next_incarnation: Incarnation,
    /// The last compacted revision: the history has all changes after it.
    compacted_through: Revision,
    /// The highest number of a lock or a token so far.
    last_lock_number: u64,
    last_write_lease: WriteLeaseId,
    /// The most changes in the history.
    history_max: u64,
}

/// The effects of one log entry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Applied {
    /// The outcome of each command, in order.
    pub outcomes: Vec<Outcome>,
    /// The rows to write, or to remove if [`State::row`] is `None`. Each once, in order.
    pub changed_rows: Vec<RowKey>,
    /// The leases that ended and left orphans.
    pub new_orphans: Vec<Incarnation>,
}

/// Locks that an entry has granted, changed or ended, by their nodes.
pub type ChangedLocks = BTreeMap<NodePath, BTreeSet<LockId>>;

impl Applied {
    /// The locks that have changed. The shell passes them to the lessor with the outcomes.
    pub fn changed_locks(&self) -> ChangedLocks {
        // The rows of locks are adjacent.
        let first = self.changed_rows.partition_point(|key| *key < RowKey::Lock(LockId(0), NodePath::root()));
        let locks = self.changed_rows[first..].iter().map_while(|key| match key {
            RowKey::Lock(id, path) => Some((path, *id)),
            _ => None,
        });
        let mut changed = ChangedLocks::new();
        for (path, id) in locks {
            changed.entry(path.clone()).or_default().insert(id);
        }
        changed
    }
}

impl State {
    /// The term of a session, if there are few sessions. It is long, because the loss of a session
    /// means *outcome unknown* for its writes in flight (S9), and a session takes little memory.
    /// See [`State::session_term`].
    pub const SESSION_TERM: Duration = Duration::from_secs(600);

    /// The longest term of a session. It bounds how many sessions of dead clients the state keeps.
    pub const SESSION_TERM_MAX: Duration = Duration::from_secs(3600);

    /// If the session leases would need more renewals than this in a second, new sessions get a
    /// longer term.
    pub const SESSION_RENEWALS_PER_SECOND: u32 = 5;

    /// The most requests of one session with remembered outcomes (S9). It is the size of the window
    /// of sequences that a session may use. It is more than a client usually has in flight, and
    /// takes little memory for each session.
    pub const ANSWERS_MAX: u64 = Sequence::WINDOW;

    /// The most changes in the history: about a minute of a busy cluster. A client that missed no
    /// more changes can still revive its copies or resume a watch.
    pub const HISTORY_MAX: usize = 100_000;

    /// The approximate bound on the history in bytes, including values. It is enough for
    /// [`HISTORY_MAX`](Self::HISTORY_MAX) small changes, and less than the nodes of a large state
    /// take.
    pub const HISTORY_BYTES_MAX: usize = 64 << 20;

    /// The heaviest change that watchers receive, in bytes. It fits into one answer as a whole.
    pub const CHANGE_BYTES_MAX: usize = 8 << 20;

    /// The most nodes that one command removes, because a replica applies nothing else meanwhile. A
    /// client must delete a larger subtree in parts. A lease with this many attached nodes takes no
    /// more.
    pub const REMOVED_NODES_MAX: usize = 1 << 16;

    /// The state before any entry. It has the node `/`, which is a volume with these settings.
    /// Every replica must start with the same settings.
    pub fn new(root: VolumeSettings) -> Self {
        let origin = Revision(0);
        let created = nodes::Moment { revision: origin, time: ClusterTime::ZERO };
        let mut state = Self {
            meta: Meta {
                applied_index: 0,
                epoch: Epoch(0),
                cluster_time: ClusterTime::ZERO,
                revision: origin,
                next_session: SessionId(1),
                next_incarnation: Incarnation(1),
                compacted_through: origin,
                last_lock_number: 0,
                last_write_lease: WriteLeaseId(0),
                history_max: Self::HISTORY_MAX as u64,
            },
            nodes: BTreeMap::from([(NodePath::root(), NodeRecord::new(Default::default(), created))]),
            volumes: BTreeMap::from([(NodePath::root(), VolumeRecord::new(root, origin))]),
            sessions: BTreeMap::new(),
            result_count: 0,
            leases: BTreeMap::new(),
            lease_names: BTreeMap::new(),
            attachments: Attachments::default(),
            locks: LockTable::default(),
            history: History::default(),
            volume_lease_holders: BTreeMap::new(),
            tick_counts: BTreeMap::new(),
            volume_uses: VolumeUses::new(),
            tick: Duration::ZERO,
            planted: Planted::default(),
        };
        state.index_volumes();
        state
    }

    /// Plants a mistake, to show that the tests find it.
    #[cfg(any(test, feature = "planted-bugs"))]
    pub fn plant(&mut self, planted: Planted) {
        self.planted = planted;
    }

    /// Limits the history to this many changes, from 1 to [`HISTORY_MAX`](Self::HISTORY_MAX). Every
    /// replica must start with the same limit.
    #[must_use]
    pub fn with_history(mut self, changes: usize) -> Self {
        self.meta.history_max = changes.clamp(1, Self::HISTORY_MAX) as u64;
        self
    }

    /// Applies one log entry. `index` is its position in the log.
    ///
    /// # Panics
    ///
    /// If the entry is not later than all applied entries. Applying an entry twice would make
    /// replicas diverge unnoticed.
    pub fn apply(&mut self, index: u64, proposal: &Proposal) -> Applied {
        assert!(
            index > self.meta.applied_index,
            "entry {index} is applied after entry {}: expected each once, in order",
            self.meta.applied_index
        );
        self.meta.applied_index = index;
        let begins = proposal.commands.iter().any(|command| matches!(command, Command::BeginEpoch { .. }));
        if begins || proposal.epoch == self.meta.epoch {
            self.meta.cluster_time = self.meta.cluster_time.max(proposal.time);
        }
        let mut touched = Touched::default();
        touched.insert(RowKey::Meta);
        let outcomes = proposal
            .commands
            .iter()
            .map(|command| self.execute(index, proposal.epoch, command, &mut touched))
            .collect();
        self.reclaim_purged(&mut touched);
        let (changed_rows, new_orphans) = touched.into_parts();
        Applied { outcomes, changed_rows, new_orphans }
    }

    fn execute(&mut self, index: u64, epoch: Epoch, command: &Command, touched: &mut Touched) -> Outcome {
        if let Command::BeginEpoch { .. } = command {
            self.begin_epoch(Epoch(index));
            return Outcome::EpochBegun { epoch: self.meta.epoch };
        }
        let is_write = matches!(command, Command::Write { .. });
        if epoch != self.meta.epoch && !(is_write && self.planted.has(Bug::ConsentsOfEarlierEpoch)) {
            return Outcome::EpochEnded;
        }
        match command {
            Command::BeginEpoch { .. } => Outcome::EpochBegun { epoch: self.meta.epoch },
            Command::OpenSession { name } => self.open_session(name, touched),
            Command::CloseSession { session } => self.close_session(*session, touched),
            Command::AcquireVolume { session, path } => self.acquire_volume(*session, path, touched),
            Command::Tick { renewals } => self.move_horizons(renewals, touched),
            Command::Expire { lease, incarnation, horizon } => self.expire(lease, *incarnation, *horizon, touched),
            Command::Purge { leases } => self.purge_orphans(leases, touched),
            Command::Write { session, sequence, unanswered_from, write, consented, intended, attached_through } => {
                let request =
                    sessions::RequestId { session: *session, sequence: *sequence, unanswered_from: *unanswered_from };
                self.write_once(request, write, (consented, intended, *attached_through), touched)
            }
        }
    }

    fn begin_epoch(&mut self, epoch: Epoch) {
        self.meta.epoch = epoch;
    }

    /// The log index of the last applied entry.
    pub fn applied_index(&self) -> u64 {
        self.meta.applied_index
    }

    /// The epoch whose commands count.
    pub fn epoch(&self) -> Epoch {
        self.meta.epoch
    }

    /// The highest cluster time in an applied proposal of its epoch (T4).
    pub fn cluster_time(&self) -> ClusterTime {
        self.meta.cluster_time
    }

    /// The revision of the last change.
    pub fn revision(&self) -> Revision {
        self.meta.revision
    }
}

/// The entries strictly below `path`, in order.
fn below<'a, V>(map: &'a BTreeMap<NodePath, V>, path: &NodePath) -> btree_map::Range<'a, NodePath, V> {
    let lower = path.prefix_below();
    let upper = after_all_below(&lower);
    map.range::<str, _>((Bound::Excluded(lower.as_str()), Bound::Excluded(upper.as_str())))
}

/// The end of the range of paths that begin with `lower`, a text that ends in `/`. The byte after
/// `/` is `0`.
fn after_all_below(lower: &str) -> String {
    let mut upper = lower.strip_suffix('/').unwrap_or(lower).to_owned();
    upper.push('0');
    upper
}

#[cfg(test)]
mod tests {
    use super::{fixture::*, *};
    use crate::id::VolumeGeneration;

    fn begin(replica: u64) -> Command {
        Command::BeginEpoch { replica, attempt: 1 }
    }

    #[test]
    fn a_new_state_is_a_root_that_is_a_volume_and_nothing_else() {
        let state = State::new(VolumeSettings::DEFAULT);
        assert_eq!(state.check(), Ok(()));
        assert_eq!(state.nodes_from(&NodePath::root()).count(), 1);
        let root = state.volume(&NodePath::root()).expect("a volume");
        assert_eq!((root.generation, root.settings), (VolumeGeneration(1), VolumeSettings::DEFAULT));
        assert_eq!((state.sessions().count(), state.leases().count()), (0, 0));
        assert_eq!((state.applied_index(), state.epoch(), state.revision()), (0, Epoch(0), Revision(0)));
        assert_eq!(state.tick(), crate::volume::TICK_MAX, "a tenth of the default term is longer");
    }

    #[test]
    fn beginning_an_epoch_names_it_by_the_index_and_moves_the_clock() {
        let mut state = State::new(VolumeSettings::DEFAULT);
        let proposal = Proposal { epoch: Epoch(77), number: 1, time: seconds(5), commands: vec![begin(1)] };
        let applied = state.apply(3, &proposal);
        assert_eq!(applied.outcomes, [Outcome::EpochBegun { epoch: Epoch(3) }]);
        assert_eq!(applied.changed_rows, [RowKey::Meta]);
        assert_eq!((state.epoch(), state.applied_index(), state.cluster_time()), (Epoch(3), 3, seconds(5)));
    }

    #[test]
    fn proposal_of_other_epoch_changes_nothing_not_even_clock() {
        let mut fixture = Fixture::new();
        let before = fixture.state.clone();
        let stale = Proposal {
            epoch: Epoch(0),
            number: 9,
            time: before.cluster_time().after(Duration::from_secs(3600)),
            commands: vec![Command::OpenSession { name: "late".to_owned() }, fixture.put_command("/a", "1")],
        };
        let applied = fixture.apply(&stale);
        assert_eq!(applied.outcomes, [Outcome::EpochEnded, Outcome::EpochEnded]);
        assert_eq!(applied.changed_rows, [RowKey::Meta]);
        let index = fixture.state.applied_index();
        let expected = State { meta: Meta { applied_index: index, ..before.meta.clone() }, ..before };
        assert_eq!(fixture.state, expected);
    }

    #[test]
    fn commands_behind_the_beginning_of_another_epoch_are_over() {
        let mut fixture = Fixture::new();
        let proposal = Proposal {
            epoch: fixture.state.epoch(),
            number: 9,
            time: ClusterTime::ZERO,
            commands: vec![begin(2), Command::OpenSession { name: "late".to_owned() }],
        };
        let applied = fixture.apply(&proposal);
        let epoch = Epoch(fixture.state.applied_index());
        assert_eq!(applied.outcomes, [Outcome::EpochBegun { epoch }, Outcome::EpochEnded]);
    }

    #[test]
    fn cluster_time_never_goes_back() {
        let mut fixture = Fixture::new();
        fixture.time = seconds(50);
        fixture.run(Command::Tick { renewals: vec![] });
        fixture.time = seconds(40);
        fixture.run(Command::Tick { renewals: vec![] });
        assert_eq!(fixture.state.cluster_time(), seconds(50));
    }

    #[test]
    #[should_panic(expected = "entry 1 is applied after entry 1")]
    fn an_entry_cannot_be_applied_twice() {
        let mut state = State::new(VolumeSettings::DEFAULT);
        let proposal = Proposal { epoch: Epoch(0), number: 1, time: ClusterTime::ZERO, commands: vec![begin(1)] };
        state.apply(1, &proposal);
        state.apply(1, &proposal);
    }

    #[test]
    fn a_put_of_an_existing_node_touches_only_its_own_rows() {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        fixture.put(session, "/a/b", "1");
        let command = fixture.put_command_of(session, "/a/b", "2");
        let applied = fixture.apply_command(command);
        let expected = [
            RowKey::Meta,
            RowKey::Node(path("/a/b")),
            RowKey::Answer(session, crate::id::Sequence(2)),
            RowKey::Change(Revision(2)),
        ];
        assert_eq!(applied.changed_rows, expected);
    }
}
