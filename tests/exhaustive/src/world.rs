//! What a world is made of: who is there, what they do, what may go wrong, and at which moments
//! time stands.
//!
//! A world is small so that all of it can be seen. Time stands at a few moments that are named
//! here, and jumps from one to the next whenever no step is in between: so any process may be
//! paused between any two of its steps, for as long as the moments reach. The moments are chosen
//! around the deadlines that matter; see [`TERM`].

use std::time::Duration;

use leasehold_protocol::{
    command::{Attach, Condition, Write},
    id::LeaseId,
    object::Object,
    path::NodePath,
    time::{DriftAllowance, Instant},
    transaction::{Compare, Operation, Relation, Transaction},
    volume::{Tracking, VolumeSettings},
};

/// The volume term of the worlds, in milliseconds, the shortest there is. Clocks may drift by 1 %:
/// a client counts 198 on its own clock, which is 200 by a clock that is slow by that; the leader
/// ends a lease after 205 by its own, which is 203 by a clock that is fast; a horizon is a tick of
/// 20 further on.
pub const TERM: u64 = 200;
/// What the leader waits beyond a term, in milliseconds.
pub const MARGIN: u64 = 5;
/// What clocks may drift.
const DRIFT_PPM: u32 = 10_000;
/// Every clock's reading when its world begins.
const ORIGIN: u64 = 1_000_000_000;

/// What an application does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Op {
    /// It reads.
    Read(Object),
    /// It writes.
    Write(Write),
    /// Its cache drops a copy for lack of room.
    Evict(Object),
    /// It wants a key lease kept alive from now on.
    Keep(LeaseId),
    /// It closes its session.
    Close,
    /// Its process ends, without a word.
    Vanish,
}

/// One client: its clock, what it holds in the beginning, and what its application does.
#[derive(Debug, Clone, Default)]
pub struct Member {
    /// By how many parts per million its clock is fast; negative if it is slow.
    pub(crate) fast: i64,
    /// It writes these first of all.
    pub(crate) first: Vec<Write>,
    /// It reads these before anything else happens.
    pub(crate) warm: Vec<Object>,
    /// Each thread does one thing after the other; threads do theirs at any time.
    pub(crate) threads: Vec<Vec<Op>>,
}

/// How often each thing may go wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// A server becomes leader in place of another, which does not know at first.
    pub elections: u8,
    /// The leader is elected again: what it had appended is committed, lost, or comes late, behind
    /// the first entry of its new epoch.
    pub reelections: u8,
    /// A connection breaks. What was on its way up may arrive, late, or not.
    pub breaks: u8,
    /// A connection loses everything from now on, and nobody is told.
    pub cuts: u8,
    /// A recall is lost on a connection that goes on.
    pub lost_recalls: u8,
    /// A request or an answer overtakes the one before it.
    pub overtakings: u8,
    /// A client connects to a leader that is none any more.
    pub misdirections: u8,
}

/// A small world.
#[derive(Debug, Clone)]
pub struct World {
    /// What it is called.
    pub name: &'static str,
    /// What can happen in it, in a sentence.
    pub about: &'static str,
    pub(crate) settings: VolumeSettings,
    pub(crate) nodes: Vec<(NodePath, &'static str)>,
    pub(crate) volumes: Vec<NodePath>,
    pub(crate) members: Vec<Member>,
    /// By how many parts per million each server's clock is fast.
    pub(crate) servers: Vec<i64>,
    /// The moments at which time stands, in milliseconds since the beginning; the first is
    /// mostly 0.
    pub(crate) moments: Vec<u64>,
    pub(crate) faults: Faults,
    /// So much time passes between the first writes and the reads that follow them.
    pub(crate) age: Duration,
    /// Nobody is heard of for so long before the exploration begins, but the leader keeps its time.
    pub(crate) silence: Duration,
    /// A hit is two steps: the copy is looked up; then the clock is read, and the copy used.
    pub(crate) splits_hits: bool,
    /// Entries that carry nothing but a tick are committed at once.
    pub(crate) commits_ticks: bool,
    /// The least number of situations that it must have.
    pub least: usize,
    /// It takes too long for a test that runs with all others.
    pub is_large: bool,
}

impl World {
    /// A world with one server, whose clock is fast, and nobody else.
    pub fn new(name: &'static str, about: &'static str) -> Self {
        Self {
            name,
            about,
            settings: settings(TERM * 10, Tracking::Objects),
            nodes: Vec::new(),
            volumes: Vec::new(),
            members: Vec::new(),
            servers: vec![10_000],
            moments: vec![0],
            faults: Faults::default(),
            age: Duration::ZERO,
            silence: Duration::ZERO,
            splits_hits: false,
            commits_ticks: true,
            least: 1,
            is_large: false,
        }
    }

    /// With a node.
    #[must_use]
    pub fn node(mut self, at: &str, value: &'static str) -> Self {
        self.nodes.push((path(at), value));
        self
    }

    /// With a volume.
    #[must_use]
    pub fn volume(mut self, at: &str) -> Self {
        self.volumes.push(path(at));
        self
    }

    /// With a client.
    #[must_use]
    pub fn member(mut self, member: Member) -> Self {
        self.members.push(member);
        self
    }

    /// With servers whose clocks are fast by so much.
    #[must_use]
    pub fn servers(mut self, fast: &[i64]) -> Self {
        self.servers = fast.to_vec();
        self
    }

    /// Time jumps from moment to moment.
    #[must_use]
    pub fn moments(mut self, moments: &[u64]) -> Self {
        self.moments.extend(moments);
        self
    }

    /// Time has jumped to this moment, in milliseconds, and nobody has noticed yet.
    #[must_use]
    pub fn first_moment(mut self, moment: u64) -> Self {
        self.moments[0] = moment;
        self
    }

    /// So much may go wrong.
    #[must_use]
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// Objects are leased for so many milliseconds.
    #[must_use]
    pub fn object_term(mut self, millis: u64) -> Self {
        self.settings = settings(millis, self.settings.tracking());
        self
    }

    /// Objects are not kept track of one by one.
    #[must_use]
    pub fn covering(mut self) -> Self {
        self.settings = settings(TERM * 10, Tracking::Covering);
        self
    }

    /// What clients write first is so old when they begin to read.
    #[must_use]
    pub fn age(mut self, age: Duration) -> Self {
        self.age = age;
        self
    }

    /// Nobody is heard of for so long at first.
    #[must_use]
    pub fn silence(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }

    /// Hits are two steps.
    #[must_use]
    pub fn splits_hits(mut self) -> Self {
        self.splits_hits = true;
        self
    }

    /// Ticks are entries like any other.
    #[must_use]
    pub fn slow_ticks(mut self) -> Self {
        self.commits_ticks = false;
        self
    }

    /// It has at least so many situations.
    #[must_use]
    pub fn least(mut self, situations: usize) -> Self {
        self.least = situations;
        self
    }

    /// It takes minutes.
    #[must_use]
    pub fn large(mut self) -> Self {
        self.is_large = true;
        self
    }

    pub(crate) fn drift(&self) -> DriftAllowance {
        DriftAllowance::from_ppm(DRIFT_PPM).unwrap_or(DriftAllowance::DEFAULT)
    }

    /// When its first moment is, in microseconds of true time.
    pub(crate) fn start(&self) -> u64 {
        u64::try_from((self.age + self.silence).as_micros()).unwrap_or_default()
    }

    /// What a server's clock shows at a true time, in microseconds.
    pub(crate) fn server_clock(&self, server: usize, now: u64) -> Instant {
        reading(self.servers[server], now)
    }

    /// What a client's clock shows at a true time, in microseconds.
    pub(crate) fn client_clock(&self, client: usize, now: u64) -> Instant {
        reading(self.members[client].fast, now)
    }

    /// Every object that the world is about.
    pub(crate) fn objects(&self) -> Vec<Object> {
        let mut objects: Vec<Object> = Vec::new();
        for member in &self.members {
            objects.extend(member.warm.iter().cloned());
            for op in member.threads.iter().flatten() {
                match op {
                    Op::Read(object) | Op::Evict(object) => objects.push(object.clone()),
                    Op::Write(Write::Transaction(all)) => objects.extend(all.paths().cloned().map(Object::data)),
                    Op::Write(write) => objects.extend(write.path().cloned().map(Object::data)),
                    Op::Keep(_) | Op::Close | Op::Vanish => {}
                }
            }
        }
        objects.sort();
        objects.dedup();
        objects
    }
}

impl Member {
    /// A client whose clock is slow by all that is allowed: the worst that can be for the end of
    /// its leases.
    pub fn slow() -> Self {
        Self { fast: -10_000, ..Self::default() }
    }

    /// It has written these before anything else happens, and before anything is read.
    #[must_use]
    pub fn first(mut self, writes: &[Write]) -> Self {
        self.first = writes.to_vec();
        self
    }

    /// It has read these before anything else happens.
    #[must_use]
    pub fn holds(mut self, objects: &[Object]) -> Self {
        self.warm = objects.to_vec();
        self
    }

    /// It does these one after the other, beside what its other threads do.
    #[must_use]
    pub fn does(mut self, ops: &[Op]) -> Self {
        self.threads.push(ops.to_vec());
        self
    }
}

fn reading(fast: i64, now: u64) -> Instant {
    let ahead = i128::from(now) * i128::from(fast) / 1_000_000;
    let micros = i128::from(ORIGIN) + i128::from(now) + ahead;
    Instant::from_micros(u64::try_from(micros).unwrap_or_default())
}

pub(crate) fn settings(object_term: u64, tracking: Tracking) -> VolumeSettings {
    let drift = DriftAllowance::from_ppm(DRIFT_PPM).unwrap_or(DriftAllowance::DEFAULT);
    let millis = Duration::from_millis;
    let settings = VolumeSettings::new(millis(TERM), millis(object_term), millis(MARGIN), tracking, drift);
    settings.unwrap_or(VolumeSettings::DEFAULT)
}

/// A path. Worlds name only valid ones: the root stands for any other.
pub fn path(text: &str) -> NodePath {
    NodePath::parse(text).unwrap_or_else(|_| NodePath::root())
}

/// A node's data.
pub fn data(at: &str) -> Object {
    Object::data(path(at))
}

/// A node's list of children.
pub fn children(at: &str) -> Object {
    Object::children(path(at))
}

/// Reads a node's data.
pub fn read(at: &str) -> Op {
    Op::Read(data(at))
}

/// Reads a node's list of children.
pub fn list(at: &str) -> Op {
    Op::Read(children(at))
}

/// Writes a value, whatever is there. No two writes of a world have the same.
pub fn put(at: &str, value: &'static str) -> Op {
    Op::Write(Write::put(path(at), value.as_bytes().into()))
}

/// Makes a node that is not there.
pub fn create(at: &str, value: &'static str) -> Op {
    let (value, condition) = (value.as_bytes().into(), Condition::Absent);
    Op::Write(Write::Put { path: path(at), value, condition, attach: Attach::Nothing })
}

/// Removes a node.
pub fn delete(at: &str) -> Op {
    Op::Write(Write::Delete { path: path(at), recursive: false, condition: Condition::Any })
}

/// Removes a node and all below it.
pub fn delete_all(at: &str) -> Op {
    Op::Write(Write::Delete { path: path(at), recursive: true, condition: Condition::Any })
}

/// Writes a pair if a node has this value, else the other pair.
pub fn either(
    at: &str,
    has: &'static str,
    then: [(&str, &'static str); 2],
    otherwise: [(&str, &'static str); 2],
) -> Op {
    let puts = |pair: [(&str, &'static str); 2]| pair.map(|(at, value)| Operation::put(path(at), value)).to_vec();
    let compares = vec![Compare::value(path(at), Relation::Equal, has)];
    Op::Write(Write::Transaction(Transaction { compares, then: puts(then), otherwise: puts(otherwise) }))
}

/// Makes a volume.
pub fn make_volume(at: &str) -> Op {
    Op::Write(Write::CreateVolume { path: path(at), settings: settings(TERM * 10, Tracking::Objects) })
}

/// Removes a volume.
pub fn remove_volume(at: &str) -> Op {
    Op::Write(Write::RemoveVolume { path: path(at) })
}

/// The key lease of all worlds that have one.
pub const LEASE: LeaseId = LeaseId(9);

/// Grants [`LEASE`] for so many milliseconds.
pub fn grant(ttl: u64) -> Write {
    Write::GrantLease { id: Some(LEASE), ttl: Duration::from_millis(ttl) }
}

/// Revokes [`LEASE`].
pub fn revoke() -> Write {
    Write::RevokeLease { id: LEASE }
}

/// Writes a value, and attaches its node to [`LEASE`].
pub fn attach(at: &str, value: &'static str) -> Write {
    let (value, condition) = (value.as_bytes().into(), Condition::Any);
    Write::Put { path: path(at), value, condition, attach: Attach::Lease(LEASE) }
}
