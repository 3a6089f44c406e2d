//! Histories like those of Raft, and what they leave. One seed determines both the child's steps
//! and the expected content.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_protocol::{
    command::{Command, Condition, IntendedLeases, Proposal, Write},
    id::{Epoch, Revision, Sequence, SessionId},
    object::ObjectSet,
    path::NodePath,
    state::State,
    time::ClusterTime,
    volume::VolumeSettings,
};
use leasehold_server::raft::types::{Logged, TypeConfig};
use openraft::{
    BasicNode, EntryPayload, Membership,
    type_config::alias::{EntryOf, LogIdOf, StoredMembershipOf, VoteOf},
    vote::RaftLeaderId,
};
use rand::{Rng, SeedableRng, rngs::SmallRng};

pub(crate) type Entry = EntryOf<TypeConfig>;
pub(crate) type LogId = LogIdOf<TypeConfig>;
pub(crate) type Vote = VoteOf<TypeConfig>;
pub(crate) type StoredMembership = StoredMembershipOf<TypeConfig>;

/// The index of the entry that begins the epoch of all others. Two sessions follow it.
const EPOCH: u64 = 1;
const SESSIONS: u64 = 2;
/// So few that each is written often.
const NODES: u64 = 12;

/// A call of Raft on its stores. Each is acknowledged before the next begins.
#[derive(Debug, Clone)]
pub(crate) enum Step {
    /// Opens the stores for the first time, and stores the state before the first entry.
    Begin,
    /// Saves a vote.
    Vote(Vote),
    /// Appends entries by several calls that wait together.
    Append(Vec<Vec<Entry>>),
    /// Truncates all entries after this one.
    Truncate(Option<LogId>),
    /// Applies the entries up to this index.
    Apply(u64),
    /// Builds a snapshot.
    Snapshot,
    /// Purges the entries up to this one, which a snapshot has.
    Purge(LogId),
    /// Installs a snapshot of another replica, which has applied these entries beyond this one.
    /// Then purges the log.
    Install(Vec<Entry>),
    /// Closes and opens both stores.
    Reopen,
}

/// The expected content of the stores.
#[derive(Debug, Clone, Default)]
pub(crate) struct Expected {
    /// Whether there is any content.
    pub(crate) has_begun: bool,
    pub(crate) vote: Option<Vote>,
    pub(crate) purged: Option<LogId>,
    /// The log's last entry, or the purge point if there is none.
    pub(crate) last: Option<LogId>,
    /// All entries: those of the log, and those that were purged or came in a snapshot.
    pub(crate) entries: BTreeMap<u64, Entry>,
    /// The last applied entry when the state was last certainly fsynced.
    pub(crate) persisted: Option<u64>,
    pub(crate) applied: Option<u64>,
}

impl Expected {
    /// The entries of the log.
    pub(crate) fn kept(&self) -> Vec<Entry> {
        let from = self.purged.map_or(0, |purged| purged.index + 1);
        let end = self.last.map_or(0, |last| last.index + 1);
        self.entries.range(from..end.max(from)).map(|(_, entry)| entry.clone()).collect()
    }

    /// The content after a step that was acknowledged.
    pub(crate) fn after(mut self, step: &Step) -> Self {
        match step {
            Step::Begin => self.has_begun = true,
            Step::Vote(vote) => self.vote = Some(*vote),
            Step::Append(batches) => {
                self.entries.extend(batches.iter().flatten().map(|entry| (entry.log_id.index, entry.clone())));
                self.last = batches.iter().flatten().last().map(|entry| entry.log_id);
            }
            Step::Truncate(last) => {
                self.entries.split_off(&last.map_or(0, |last| last.index + 1));
                self.last = *last;
            }
            Step::Apply(upto) => self.applied = Some(*upto),
            Step::Snapshot | Step::Reopen => self.persisted = self.applied,
            Step::Purge(upto) => self.purged = Some(*upto),
            Step::Install(entries) => {
                self.entries.extend(entries.iter().map(|entry| (entry.log_id.index, entry.clone())));
                self.applied = entries.last().map(|entry| entry.log_id.index);
                self.persisted = self.applied;
                self.purged = entries.last().map(|entry| entry.log_id);
                self.last = self.purged;
            }
        }
        self
    }

    /// The possible contents if it is unknown how far a step came.
    pub(crate) fn during(&self, step: &Step) -> Vec<Self> {
        let mut possible = vec![self.clone(), self.clone().after(step)];
        match step {
            Step::Append(batches) => {
                let all: Vec<Entry> = batches.iter().flatten().cloned().collect();
                possible
                    .extend((1..all.len()).map(|some| self.clone().after(&Step::Append(vec![all[..some].to_vec()]))));
            }
            // Applied and fsynced, but not purged yet: the log ends earlier.
            Step::Install(_) => {
                let mut installed = self.clone().after(step);
                installed.purged = self.purged;
                installed.last = self.last;
                possible.push(installed);
            }
            _ => {}
        }
        possible
    }
}

/// The state after the entries up to this index.
pub(crate) fn replayed(entries: &BTreeMap<u64, Entry>, upto: Option<u64>) -> (State, StoredMembership) {
    let mut state = State::new(VolumeSettings::DEFAULT);
    let mut membership = StoredMembership::default();
    let Some(upto) = upto else { return (state, membership) };
    for (index, entry) in entries.range(..=upto) {
        match &entry.payload {
            EntryPayload::Blank => {}
            EntryPayload::Normal(logged) => drop(state.apply(*index, logged.proposal())),
            EntryPayload::Membership(changed) => {
                membership = StoredMembership::new(Some(entry.log_id), changed.clone());
            }
        }
    }
    (state, membership)
}

/// Makes steps that follow from each other.
pub(crate) struct Author {
    random: SmallRng,
    pub(crate) expected: Expected,
    term: u64,
    /// The longest value to write, in bytes.
    value_max: usize,
}

/// The kinds of steps.
#[derive(Debug, Clone, Copy)]
enum Kind {
    Vote,
    Append,
    Truncate,
    Apply,
    Snapshot,
    Purge,
    Install,
    Reopen,
}

/// Each kind of step after each other kind that can influence it.
const ONCE: [Kind; 25] = [
    Kind::Vote,
    Kind::Append,
    Kind::Apply,
    Kind::Append,
    Kind::Truncate,
    Kind::Append,
    Kind::Apply,
    Kind::Snapshot,
    Kind::Append,
    Kind::Purge,
    Kind::Vote,
    Kind::Append,
    Kind::Reopen,
    Kind::Truncate,
    Kind::Append,
    Kind::Apply,
    Kind::Install,
    Kind::Append,
    Kind::Apply,
    Kind::Snapshot,
    Kind::Purge,
    Kind::Reopen,
    Kind::Append,
    Kind::Apply,
    Kind::Reopen,
];

/// A history with all kinds of steps: the same for the same seed.
pub(crate) fn ordinary(seed: u64) -> Vec<Step> {
    let mut author = Author::new(seed, Expected::default(), 3_000);
    let mut steps = vec![Step::Begin];
    author.expected = author.expected.after(&Step::Begin);
    steps.extend(ONCE.iter().map(|kind| author.step(*kind)));
    steps
}

/// A history with so much data that fjall writes tables and begins new journals.
pub(crate) fn heavy(seed: u64) -> Vec<Step> {
    let mut author = Author::new(seed, Expected::default(), 1_400_000);
    let mut steps = vec![Step::Begin];
    author.expected = author.expected.after(&Step::Begin);
    let rounds = [Kind::Append, Kind::Append, Kind::Append, Kind::Append, Kind::Apply];
    steps.push(author.step(Kind::Vote));
    for _ in 0..4 {
        steps.extend(rounds.iter().map(|kind| author.step(*kind)));
    }
    steps.extend([Kind::Snapshot, Kind::Purge, Kind::Append, Kind::Reopen].iter().map(|kind| author.step(*kind)));
    steps
}

/// The steps after a crash.
pub(crate) fn afterwards(seed: u64, expected: Expected) -> Vec<Step> {
    let mut author = Author::new(seed, expected, 3_000);
    let kinds = [Kind::Vote, Kind::Append, Kind::Apply, Kind::Append, Kind::Truncate, Kind::Append, Kind::Snapshot];
    let mut steps: Vec<Step> = kinds.iter().map(|kind| author.step(*kind)).collect();
    steps.extend([Kind::Purge, Kind::Apply, Kind::Reopen].iter().map(|kind| author.step(*kind)));
    steps
}

impl Author {
    pub(crate) fn new(seed: u64, expected: Expected, value_max: usize) -> Self {
        let term = expected.last.map_or(1, |last| last.committed_leader_id().term);
        let term = term.max(expected.vote.map_or(1, |vote| vote.leader_id.term));
        Self { random: SmallRng::seed_from_u64(seed), expected, term, value_max }
    }

    fn step(&mut self, kind: Kind) -> Step {
        let step = self.choose(kind);
        self.expected = self.expected.clone().after(&step);
        step
    }

    fn choose(&mut self, kind: Kind) -> Step {
        let next = self.expected.last.map_or(0, |last| last.index + 1);
        let unapplied = self.expected.applied.map_or(0, |applied| applied + 1);
        match kind {
            Kind::Vote => {
                self.term += 1;
                Step::Vote(Vote::new_committed(self.term, 1))
            }
            Kind::Append => {
                let mut batches = Vec::new();
                let mut index = next;
                for _ in 0..self.random.random_range(2..=4) {
                    let count = self.random.random_range(1..=8);
                    batches.push((index..index + count).map(|index| self.entry(index)).collect());
                    index += count;
                }
                Step::Append(batches)
            }
            Kind::Truncate => {
                let kept = self.expected.kept();
                let lasting = kept.iter().filter(|entry| entry.log_id.index < unapplied).count();
                let cut = self.random.random_range(lasting..kept.len().max(lasting + 1));
                let last = if cut == 0 { self.expected.purged } else { Some(kept[cut - 1].log_id) };
                self.term += 1;
                Step::Truncate(last)
            }
            Kind::Apply => Step::Apply(self.random.random_range(unapplied.min(next - 1)..next)),
            Kind::Snapshot => Step::Snapshot,
            Kind::Purge => {
                let upto = self.expected.persisted.expect("a snapshot comes first");
                let some = upto.saturating_sub(self.random.random_range(0..4));
                let entry = self.expected.entries.range(..=some).next_back().expect("it was applied").1;
                Step::Purge(self.expected.purged.map_or(entry.log_id, |purged| purged.max(entry.log_id)))
            }
            Kind::Install => {
                self.term += 1;
                let count = self.random.random_range(5..20);
                Step::Install((next..next + count).map(|index| self.entry(index)).collect())
            }
            Kind::Reopen => Step::Reopen,
        }
    }

    fn entry(&mut self, index: u64) -> Entry {
        let leader = openraft::impls::leader_id_std::LeaderId::new(self.term, 1);
        let log_id = LogId::new(leader.to_committed(), index);
        let payload = match index {
            0 => {
                let nodes = BTreeMap::from([(1, BasicNode::new("127.0.0.1:1"))]);
                EntryPayload::Membership(Membership::new(vec![BTreeSet::from([1])], nodes).expect("valid"))
            }
            _ if index % 17 == 9 => EntryPayload::Blank,
            _ => EntryPayload::Normal(Logged::new(self.proposal(index)).expect("encodes")),
        };
        Entry { log_id, payload }
    }

    fn proposal(&mut self, index: u64) -> Proposal {
        let command = match index {
            EPOCH => Command::BeginEpoch { replica: 1, attempt: 1 },
            _ if index <= EPOCH + SESSIONS => Command::OpenSession { name: format!("session {index}") },
            _ => {
                let path = NodePath::parse(&format!("/node-{}", self.random.random_range(0..NODES))).expect("a path");
                let write = if self.random.random_range(0..6) == 0 {
                    Write::Delete { path: path.clone(), recursive: true, condition: Condition::Any }
                } else {
                    // Mostly short, like real values.
                    let length = self.random.random_range(0..=self.value_max) >> self.random.random_range(0..3);
                    let value = vec![self.random.random(); length].into();
                    Write::put(path.clone(), value)
                };
                Command::Write {
                    session: SessionId(1 + index % SESSIONS),
                    sequence: Sequence(index),
                    unanswered_from: Sequence(index),
                    write,
                    consented: vec![ObjectSet::Subtree(NodePath::root())],
                    intended: IntendedLeases::default(),
                    attached_through: Revision(0),
                }
            }
        };
        Proposal { epoch: Epoch(EPOCH), number: index, time: ClusterTime::from_micros(index), commands: vec![command] }
    }
}
