//! The parts of a world: its clients, their operations, the possible faults, and the moments at
//! which time stands still.
//!
//! A world is small, so that all of it can be explored. Time stands still at the moments named
//! here, and may jump to the next between any two steps. So any process may be paused between any
//! two of its steps, for as long as the moments reach. The moments lie around the deadlines that
//! matter; see [`TERM`].

use std::time::Duration;

use leasehold_model::clock::Clock;
use leasehold_protocol::{
    command::{Attach, Condition, Write},
    id::LeaseId,
    lease_policy::{GrantPolicy, ObjectTerm, OnWrite},
    object::Object,
    path::NodePath,
    time::{DriftAllowance, Instant},
    transaction::{Compare, Operation, Relation, Transaction},
    volume::{Tracking, VolumeSettings},
};

/// The volume term of the worlds, in milliseconds: the shortest that is allowed.
///
/// Clocks may drift by 1 %. A client counts 198 on its own clock, which are 200 of true time if it
/// is slow. The leader ends a lease after 205 on its own, which are 203 if it is fast. A horizon is
/// a tick of 20 further on.
pub const TERM: u64 = 200;
/// The skew margin of the worlds, in milliseconds.
pub const MARGIN: u64 = 5;
/// The drift allowance of all clocks, in parts per million.
const DRIFT_PPM: u32 = 10_000;
/// Every clock's reading when its world begins.
const ORIGIN: u64 = 1_000_000_000;

/// An operation of an application.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Op {
    /// Reads an object.
    Read(Object),
    /// Writes.
    Write(Write),
    /// Drops a copy, as if the cache lacked room.
    Evict(Object),
    /// Starts keep-alives of a key lease.
    Keep(LeaseId),
    /// Closes the session.
    Close,
    /// Ends the process without notice.
    Vanish,
}

/// One client: its clock, its first writes and copies, and the operations of its application.
#[derive(Debug, Clone, Default)]
pub struct Member {
    /// By how many parts per million its clock is fast; negative if it is slow.
    pub(crate) fast: i64,
    /// Its writes before anything else happens.
    pub(crate) first: Vec<Write>,
    /// The objects that it reads before the exploration begins.
    pub(crate) warm: Vec<Object>,
    /// Its threads. Each does its operations in order, at any time.
    pub(crate) threads: Vec<Vec<Op>>,
}

/// How often each fault may happen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// A server becomes leader in place of another, which does not know it at first.
    pub elections: u8,
    /// The leader is elected again. Its appended entries are committed, lost, or come late, behind
    /// the first entry of its new epoch.
    pub reelections: u8,
    /// A connection breaks. Messages in flight to the server may arrive late, or not.
    pub breaks: u8,
    /// A connection loses everything from now on, and neither side notices.
    pub cuts: u8,
    /// A recall is lost on a connection that otherwise works.
    pub lost_recalls: u8,
    /// A request or an answer overtakes the one before it.
    pub overtakings: u8,
    /// A client connects to a deposed leader.
    pub misdirections: u8,
}

/// A small world.
#[derive(Debug, Clone)]
pub struct World {
    /// Its name.
    pub name: &'static str,
    /// One sentence about what can happen in it.
    pub about: &'static str,
    pub(crate) settings: VolumeSettings,
    pub(crate) nodes: Vec<(NodePath, &'static str)>,
    pub(crate) volumes: Vec<NodePath>,
    pub(crate) members: Vec<Member>,
    /// By how many parts per million each server's clock is fast.
    pub(crate) servers: Vec<i64>,
    /// The moments at which time stands still, in milliseconds since the beginning. The first is
    /// mostly 0.
    pub(crate) moments: Vec<u64>,
    pub(crate) faults: Faults,
    /// How much time passes between the first writes and the first reads.
    pub(crate) age: Duration,
    /// How long no client sends anything before the exploration begins. The leader's clock runs on.
    pub(crate) silence: Duration,
    /// A hit takes two steps: look up the copy; then read the clock and use the copy.
    pub(crate) splits_hits: bool,
    /// Entries with nothing but a tick are committed at once.
    pub(crate) commits_ticks: bool,
    /// The least number of situations that it must have.
    pub least: usize,
    /// It takes too long for a test that runs with all others.
    pub is_large: bool,
}

impl World {
    /// A world with one server, whose clock is fast, and without clients.
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

    /// Adds a node.
    pub fn node(mut self, at: &str, value: &'static str) -> Self {
        self.nodes.push((path(at), value));
        self
    }

    /// Adds a volume.
    pub fn volume(mut self, at: &str) -> Self {
        self.volumes.push(path(at));
        self
    }

    /// Adds a client.
    pub fn member(mut self, member: Member) -> Self {
        self.members.push(member);
        self
    }

    /// Sets the servers, by how many parts per million each one's clock is fast.
    pub fn servers(mut self, fast: &[i64]) -> Self {
        self.servers = fast.to_vec();
        self
    }

    /// Adds moments to which time may jump, in milliseconds.
    pub fn moments(mut self, moments: &[u64]) -> Self {
        self.moments.extend(moments);
        self
    }

    /// Sets the first moment, in milliseconds: no process has run since time jumped there.
    pub fn first_moment(mut self, moment: u64) -> Self {
        self.moments[0] = moment;
        self
    }

    /// Sets the possible faults.
    pub fn faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// Sets the term of object leases, in milliseconds.
    pub fn object_term(mut self, millis: u64) -> Self {
        self.settings = settings(millis, self.settings.tracking());
        self
    }

    /// Makes every session covering: the lessor does not track objects one by one.
    pub fn covering(mut self) -> Self {
        self.settings = settings(TERM * 10, Tracking::Covering);
        self
    }

    /// Sets how long object leases last, and what a write does about them.
    pub fn policy(mut self, object_term: ObjectTerm, on_write: OnWrite) -> Self {
        let settings = self.settings.with_policy(object_term, on_write, GrantPolicy::All);
        self.settings = settings.unwrap_or(VolumeSettings::DEFAULT);
        self
    }

    /// Sets the age of the first writes when clients begin to read.
    pub fn age(mut self, age: Duration) -> Self {
        self.age = age;
        self
    }

    /// Sets how long no client sends anything at first.
    pub fn silence(mut self, silence: Duration) -> Self {
        self.silence = silence;
        self
    }

    /// Makes a hit take two steps.
    pub fn splits_hits(mut self) -> Self {
        self.splits_hits = true;
        self
    }

    /// Makes ticks wait for their commit like other entries.
    pub fn slow_ticks(mut self) -> Self {
        self.commits_ticks = false;
        self
    }

    /// Sets the least number of situations.
    pub fn least(mut self, situations: usize) -> Self {
        self.least = situations;
        self
    }

    /// Marks the world as one that takes minutes.
    pub fn large(mut self) -> Self {
        self.is_large = true;
        self
    }

    pub(crate) fn drift(&self) -> DriftAllowance {
        DriftAllowance::from_ppm(DRIFT_PPM).unwrap_or(DriftAllowance::DEFAULT)
    }

    /// The true time of its first moment, in microseconds.
    pub(crate) fn start(&self) -> u64 {
        u64::try_from((self.age + self.silence).as_micros()).unwrap_or_default()
    }

    /// The reading of a server's clock at a true time in microseconds.
    pub(crate) fn server_clock(&self, server: usize, now: u64) -> Instant {
        Clock::new(ORIGIN, self.servers[server]).read(now)
    }

    /// The reading of a client's clock at a true time in microseconds.
    pub(crate) fn client_clock(&self, client: usize, now: u64) -> Instant {
        Clock::new(ORIGIN, self.members[client].fast).read(now)
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
    /// A client whose clock is as slow as allowed: the worst case for the ends of its leases.
    pub fn slow() -> Self {
        Self { fast: -10_000, ..Self::default() }
    }

    /// Sets its writes before all reads.
    pub fn first(mut self, writes: &[Write]) -> Self {
        self.first = writes.to_vec();
        self
    }

    /// Sets the objects that it reads before the exploration begins.
    pub fn holds(mut self, objects: &[Object]) -> Self {
        self.warm = objects.to_vec();
        self
    }

    /// Adds a thread that does these operations in order, beside its other threads.
    pub fn does(mut self, ops: &[Op]) -> Self {
        self.threads.push(ops.to_vec());
        self
    }
}

pub(crate) fn settings(object_term: u64, tracking: Tracking) -> VolumeSettings {
    let drift = DriftAllowance::from_ppm(DRIFT_PPM).unwrap_or(DriftAllowance::DEFAULT);
    let millis = Duration::from_millis;
    let settings = VolumeSettings::new(millis(TERM), millis(object_term), millis(MARGIN), tracking, drift);
    settings.unwrap_or(VolumeSettings::DEFAULT)
}

/// A path. An invalid text gives the root, and no world has one.
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

/// Writes a value unconditionally. Every value of a world is unique.
pub fn put(at: &str, value: &'static str) -> Op {
    Op::Write(Write::put(path(at), value.as_bytes().into()))
}

/// Makes a node that does not exist.
pub fn create(at: &str, value: &'static str) -> Op {
    let (value, condition) = (value.as_bytes().into(), Condition::Absent);
    Op::Write(Write::Put { path: path(at), value, condition, attach: Attach::Nothing })
}

/// Removes a node.
pub fn delete(at: &str) -> Op {
    Op::Write(Write::Delete { path: path(at), recursive: false, condition: Condition::Any })
}

/// Removes a node and its subtree.
pub fn delete_all(at: &str) -> Op {
    Op::Write(Write::Delete { path: path(at), recursive: true, condition: Condition::Any })
}

/// Writes one pair of nodes if a node has this value, otherwise the other pair.
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

/// Grants [`LEASE`] with a TTL in milliseconds.
pub fn grant(ttl: u64) -> Write {
    Write::GrantLease { id: Some(LEASE), name: None, ttl: Duration::from_millis(ttl) }
}

/// Revokes [`LEASE`].
pub fn revoke() -> Write {
    Write::RevokeLease { id: LEASE, incarnation: None }
}

/// Writes a value, and attaches its node to [`LEASE`].
pub fn attach(at: &str, value: &'static str) -> Write {
    let (value, condition) = (value.as_bytes().into(), Condition::Any);
    Write::Put { path: path(at), value, condition, attach: Attach::Lease(LEASE) }
}
