//! Values of the protocol, drawn from the fuzzer's bytes.
//!
//! Most values come from small sets of sessions, paths and numbers, so that inputs relate to each
//! other. Some are arbitrary. When the bytes are used up, each draw gives the first choice.

use std::time::Duration;

use arbitrary::Unstructured;
use leasehold_protocol::{
    change::WatchScope,
    command::{AnyLease, Attach, Command, Condition, IntendedLeases, Proposal, Renewal, Write},
    drift::{ClockQuestion, Excess},
    id::{
        CoveringNumber, Epoch, Incarnation, LeaseId, LockId, Revision, Sequence, SessionId, Stamp, Token,
        VolumeGeneration,
    },
    lease_name::LeaseName,
    lease_policy::{GrantPolicy, LeaseRequest, ObjectTerm, OnWrite},
    lock::{LockMode, LockStatus},
    message::{
        AwaitedLock, Body, Consent, FirstRead, HolderReportPart, Inspect, KeepAliveResult, KeyLeasePromise,
        KeyLeaseRenewal, LastValid, NodesAfter, Recall, Renew, Request, RequestHeader, Return,
    },
    object::{Object, ObjectKind, ObjectSet},
    path::NodePath,
    time::ClusterTime,
    transaction::{Compare, CompareTarget, Operation, Relation, Transaction},
    volume::{Tracking, VolumeSettings, VolumeTerm},
};

/// Paths with bytes that sort on both sides of the slash.
const PATHS: [&str; 8] = ["/", "/a", "/a/b", "/a-b", "/a0/c", "/v", "/v/a", "/v/w/a"];

/// The bytes that are left, from which choices are drawn.
#[derive(Debug)]
pub struct Draw<'a>(Unstructured<'a>);

impl<'a> Draw<'a> {
    /// Draws all choices from these bytes.
    pub fn new(data: &'a [u8]) -> Self {
        Self(Unstructured::new(data))
    }

    /// True if the bytes are used up.
    pub fn is_done(&self) -> bool {
        self.0.is_empty()
    }

    /// A number below `bound`, drawn from one byte. `bound` is at most 256.
    pub fn below(&mut self, bound: u64) -> u64 {
        u64::from(self.0.arbitrary::<u8>().unwrap_or_default()) % bound.max(1)
    }

    /// True once in `times` draws. False when the bytes are used up.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == times - 1
    }

    /// One of these values. `None` if there is none.
    pub fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        let at = self.below((from.len() as u64).clamp(1, 256)) as usize;
        from.get(at).cloned()
    }

    /// Any number, often near the limit of a counter.
    pub fn wild(&mut self) -> u64 {
        match self.below(4) {
            0 => u64::MAX - self.below(3),
            1 => (u64::MAX >> 1) - self.below(3),
            2 => u64::from(u32::MAX) + self.below(3),
            _ => self.0.arbitrary().unwrap_or_default(),
        }
    }

    /// A number below `below`, seldom any.
    pub fn number(&mut self, below: u64) -> u64 {
        if self.one_in(32) { self.wild() } else { self.below(below) }
    }

    /// At most `most` bytes.
    pub fn bytes(&mut self, most: u64) -> Vec<u8> {
        let wanted = self.below(most + 1) as usize;
        self.0.bytes(wanted.min(self.0.len())).unwrap_or_default().to_vec()
    }

    /// All bytes that are left.
    pub fn rest(self) -> &'a [u8] {
        self.0.take_rest()
    }

    /// A list of at most `most` values.
    pub fn list<T>(&mut self, most: u64, mut draw: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(most + 1)).map(|_| draw(self)).collect()
    }

    /// A drawn value, or `None`.
    pub fn maybe<T>(&mut self, draw: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.below(2) == 1 { Some(draw(self)) } else { None }
    }

    /// A name.
    pub fn name(&mut self) -> String {
        String::from_utf8_lossy(&self.bytes(12)).into_owned()
    }

    /// A path: one of a few, seldom any.
    pub fn path(&mut self) -> NodePath {
        let text = if self.one_in(24) { format!("/{}", self.name()) } else { PATHS[self.below(8) as usize].to_owned() };
        NodePath::parse(&text).unwrap_or_else(|_| NodePath::root())
    }

    /// A path that may be the top of a volume.
    pub fn top(&mut self) -> NodePath {
        let tops = ["/", "/v", "/v/w", "/a"];
        if self.one_in(16) {
            self.path()
        } else {
            NodePath::parse(tops[self.below(4) as usize]).unwrap_or_else(|_| NodePath::root())
        }
    }

    /// An object.
    pub fn object(&mut self) -> Object {
        let kind = if self.below(3) == 1 { ObjectKind::Children } else { ObjectKind::Data };
        Object { path: self.path(), kind }
    }

    /// A set of objects.
    pub fn set(&mut self) -> ObjectSet {
        if self.below(3) == 1 { ObjectSet::Subtree(self.path()) } else { ObjectSet::One(self.object()) }
    }

    /// A span of up to 43 s, seldom any.
    pub fn span(&mut self) -> Duration {
        match self.below(16) {
            15 => Duration::from_secs(self.wild()),
            14 => Duration::MAX,
            scale => Duration::from_millis(self.below(256) * (1 + scale * scale)),
        }
    }

    /// A session's id.
    pub fn session(&mut self) -> SessionId {
        SessionId(self.number(5))
    }

    /// A stamp, mostly of this epoch.
    pub fn stamp(&mut self, epoch: Epoch) -> Stamp {
        let epoch = if self.one_in(12) { Epoch(self.number(8)) } else { epoch };
        Stamp { epoch, sequence: self.number(24) }
    }

    /// Settings of a volume that decode. Decoding does not check the margin. The lessor does.
    pub fn settings(&mut self) -> VolumeSettings {
        let tracking = if self.below(3) == 1 { Tracking::Covering } else { Tracking::Objects };
        let (steps, usual) = (self.below(256), VolumeSettings::DEFAULT);
        let term = Duration::from_millis(200 + 50 * steps);
        let object_term = ObjectTerm::Fixed(if self.one_in(8) { self.span() } else { term * 4 });
        let margin = if self.one_in(8) { self.span() } else { term };
        let limit = |most| (steps % 4 == 3).then_some(steps % most);
        let policy = (usual.on_write(), usual.grants(), (limit(16), limit(16), limit(200)));
        let adaptive = VolumeTerm::Adaptive { least: term, most: term * 2, renewals_per_second: 1 };
        let volume_term = if steps % 8 == 5 { adaptive } else { term.into() };
        let raw = postcard::to_allocvec(&(volume_term, object_term, margin, tracking, policy));
        let settings: VolumeSettings = postcard::from_bytes(&raw.unwrap_or_default()).unwrap_or(usual);
        let object_term = match self.below(8) {
            0 => ObjectTerm::Zero,
            1 => ObjectTerm::Infinite,
            2 => ObjectTerm::Adaptive { percent: self.below(102) as u32, least: self.span(), most: self.span() },
            3 => ObjectTerm::ByUse { least: self.span(), most: self.span() },
            _ => settings.object_term(),
        };
        let on_write = [OnWrite::Wait, OnWrite::Update, OnWrite::Recall][self.below(6).min(2) as usize];
        let returning = GrantPolicy::Returning { first: self.span() };
        let grants = [GrantPolicy::OnRequest, returning, GrantPolicy::All][self.below(6).min(2) as usize];
        settings.with_policy(object_term, on_write, grants).unwrap_or(settings)
    }

    /// A write.
    pub fn write(&mut self, revision: Revision) -> Write {
        let condition = match self.below(6) {
            1 => Condition::Absent,
            2 => Condition::Revision(revision),
            3 => Condition::Revision(Revision(self.number(12))),
            _ => Condition::Any,
        };
        match self.below(24) {
            18.. => self.write_of_hold(),
            15..=17 => Write::Transaction(self.transaction(revision)),
            12 | 13 => {
                let (id, name) = (self.maybe(Self::lease_id), self.maybe(Self::lease_name));
                Write::GrantLease { id, name, ttl: self.span() }
            }
            14 => {
                let (id, incarnation) = (self.lease_id(), self.maybe(|draw| Incarnation(draw.number(12))));
                let by_name = self.maybe(Self::lease_name).map(|name| Write::RevokeLeaseNamed { name });
                by_name.unwrap_or(Write::RevokeLease { id, incarnation })
            }
            0..=5 => Write::Put { path: self.path(), value: self.bytes(6).into(), condition, attach: self.attach() },
            6 | 7 => Write::Delete { path: self.path(), recursive: self.below(2) == 1, condition },
            8 | 9 => Write::CreateVolume { path: self.top(), settings: self.settings() },
            10 => Write::SetVolume { path: self.top(), settings: self.settings() },
            _ => Write::RemoveVolume { path: self.top() },
        }
    }

    fn write_of_hold(&mut self) -> Write {
        let (path, lock, mode, wait) = (self.path(), LockId(self.number(8)), self.hold_mode(), self.below(4) != 3);
        match self.below(6) {
            5 => {
                let value = self.maybe(|draw| draw.bytes(6).into());
                Write::Flush { path, lock, token: Token(self.number(12)), value, ends_write_lease: self.one_in(2) }
            }
            4 => Write::TakeWriteLease { path, lock },
            3 if self.one_in(4) => Write::HandOver { path, lock, successor: LockId(self.number(8)) },
            3 => Write::Unlock { path, lock },
            2 => Write::ChangeLockMode { path, lock, mode, wait },
            _ => Write::Lock { path, mode, wait, delay: if self.one_in(4) { self.span() } else { Duration::ZERO } },
        }
    }

    /// The mode of a lock.
    pub fn hold_mode(&mut self) -> LockMode {
        if self.below(2) == 1 { LockMode::Exclusive } else { LockMode::Shared }
    }

    /// The status of a lock.
    pub fn hold_status(&mut self) -> LockStatus {
        match self.below(4) {
            0 => LockStatus::Ended,
            1 => LockStatus::Waiting,
            _ => LockStatus::Granted {
                token: Token(self.number(12)),
                mode: self.hold_mode(),
                is_contended: self.below(2) == 1,
            },
        }
    }

    /// A transaction.
    pub fn transaction(&mut self, revision: Revision) -> Transaction {
        let mut transaction = Transaction::new();
        for _ in 0..self.below(3) {
            transaction.compares.push(self.compare(revision));
        }
        for _ in 0..self.below(4) {
            transaction.then.push(self.operation());
        }
        for _ in 0..self.below(3) {
            transaction.otherwise.push(self.operation());
        }
        transaction
    }

    fn compare(&mut self, revision: Revision) -> Compare {
        let relation = match self.below(4) {
            1 => Relation::NotEqual,
            2 => Relation::Less,
            3 => Relation::Greater,
            _ => Relation::Equal,
        };
        let target = match self.below(6) {
            5 => CompareTarget::Locked(self.below(2) == 1, Token(self.number(12))),
            1 => CompareTarget::Value(relation, self.bytes(6).into()),
            2 => CompareTarget::Version(relation, self.number(4)),
            3 => CompareTarget::ModifyRevision(relation, revision),
            4 => CompareTarget::CreateRevision(relation, Revision(self.number(12))),
            _ => CompareTarget::Exists(self.below(2) == 1),
        };
        Compare { path: self.path(), target }
    }

    fn operation(&mut self) -> Operation {
        if self.below(3) == 1 {
            return Operation::Delete { path: self.path(), recursive: self.below(2) == 1 };
        }
        Operation::Put { path: self.path(), value: self.bytes(6).into(), attach: self.attach() }
    }

    /// The id of a key lease.
    pub fn lease_id(&mut self) -> LeaseId {
        LeaseId(self.number(4))
    }

    /// The name of a key lease.
    pub fn lease_name(&mut self) -> LeaseName {
        LeaseName::parse(&format!("lease-{}", self.below(3))).expect("a name")
    }

    /// What a node is attached to.
    pub fn attach(&mut self) -> Attach {
        match self.below(7) {
            6 => Attach::LeaseNamed(self.lease_name()),
            1 => Attach::Unchanged,
            2 | 3 => Attach::Lease(self.lease_id()),
            4 => Attach::Session,
            _ => Attach::Nothing,
        }
    }

    /// The result of a keep-alive for one key lease.
    pub fn kept(&mut self) -> KeyLeasePromise {
        KeyLeasePromise {
            id: self.lease_id(),
            incarnation: Incarnation(self.number(12)),
            ttl: self.span(),
            result: self.kept_span(),
        }
    }

    fn kept_span(&mut self) -> KeepAliveResult {
        match self.below(4) {
            1 => KeepAliveResult::Unconfirmed,
            2 => KeepAliveResult::NotFound,
            _ => KeepAliveResult::Renewed(self.span()),
        }
    }

    /// A replicated lease.
    pub fn lease(&mut self) -> AnyLease {
        let session = self.session();
        match self.below(4) {
            1 => AnyLease::Session(session),
            3 => AnyLease::KeyLease(self.lease_id()),
            _ => AnyLease::Volume(session, self.top()),
        }
    }

    /// A command.
    pub fn command(&mut self, revision: Revision) -> Command {
        match self.below(16) {
            0 | 1 => Command::OpenSession { name: self.name() },
            2 => Command::CloseSession { session: self.session() },
            3 => Command::BeginEpoch { replica: self.number(3), attempt: self.number(3) },
            4..=6 => Command::AcquireVolume { session: self.session(), path: self.path() },
            7 => Command::Tick {
                renewals: self.list(3, |draw| Renewal {
                    lease: draw.lease(),
                    incarnation: Incarnation(draw.number(12)),
                    renewed_at: ClusterTime::from_micros(draw.number(200).saturating_mul(100_000)),
                }),
            },
            8 => Command::Expire {
                lease: self.lease(),
                incarnation: Incarnation(self.number(12)),
                horizon: ClusterTime::from_micros(self.number(200).saturating_mul(100_000)),
            },
            9 => Command::Purge { leases: self.list(3, |draw| Incarnation(draw.number(12))) },
            _ => Command::Write {
                session: self.session(),
                sequence: Sequence(self.number(24)),
                unanswered_from: Sequence(self.number(8)),
                write: self.write(revision),
                consented: self.list(3, Self::set),
                intended: IntendedLeases {
                    leases: self.list(2, |draw| Incarnation(draw.number(12))).into_iter().collect(),
                    volume: self.one_in(2).then(|| VolumeGeneration(self.number(12))),
                },
                attached_through: Revision(self.number(12)),
            },
        }
    }

    /// A proposal, mostly of this epoch.
    pub fn proposal(&mut self, epoch: Epoch, revision: Revision) -> Proposal {
        let epoch = if self.one_in(12) { Epoch(self.number(6)) } else { epoch };
        let time = ClusterTime::from_micros(self.number(200).saturating_mul(100_000));
        Proposal { epoch, number: self.number(8), time, commands: self.list(3, |draw| draw.command(revision)) }
    }

    /// A header of this session, mostly in this epoch. It reports no reads.
    pub fn header(&mut self, session: SessionId, epoch: Epoch, registration: u64) -> RequestHeader {
        RequestHeader {
            session,
            epoch: if self.one_in(16) { Epoch(self.number(8)) } else { epoch },
            registration: if self.one_in(16) { self.number(4) } else { registration },
            sequence: Sequence(self.number(16)),
            unanswered_from: Sequence(self.number(8)),
            renew: self.list(2, |draw| Renew { volume: draw.top(), incarnation: Incarnation(draw.number(12)) }),
            consents: self.list(2, |draw| draw.stamp(epoch)),
            returns: self.list(1, |draw| Return { object: draw.object(), stamp: draw.stamp(epoch) }),
            cached_reads: Vec::new(),
            clocks: (session.0 % 3 == 2).then(|| Box::new(ClockQuestion { mark: registration, ..Default::default() })),
        }
    }

    fn first_read(&mut self) -> FirstRead {
        let known = |draw: &mut Self| Revision(draw.number(12));
        FirstRead { object: self.object(), known: self.maybe(known), lease: LeaseRequest::Implicit }
    }

    /// A comparison of clocks.
    fn clock_question(&mut self) -> ClockQuestion {
        let excess =
            |draw: &mut Self| Excess { client: draw.span(), server: draw.span(), allowed_ppm: draw.number(3) as u32 };
        ClockQuestion { mark: self.number(16), references: [0; 4].map(|_| self.number(16)), excess: self.maybe(excess) }
    }

    /// The body of a request.
    pub fn body(&mut self, epoch: Epoch, revision: Revision) -> Body {
        match self.below(28) {
            26 | 27 => Body::AwaitLockStatus {
                locks: self.list(3, |draw| AwaitedLock {
                    path: draw.path(),
                    lock: LockId(draw.number(8)),
                    known: draw.hold_status(),
                }),
            },
            22..=24 => Body::Watch {
                watched: self.watched(),
                after: self.maybe(|draw| Revision(draw.number(12))),
                wait: self.span(),
                bytes_max: self.number(200) as u32,
            },
            25 => Body::List { path: self.path(), after: self.maybe(Self::path), nodes_max: self.number(4) as u32 },
            20 | 21 => Body::KeepAlive {
                leases: self.list(3, |draw| KeyLeaseRenewal {
                    id: draw.lease_id(),
                    incarnation: draw.maybe(|draw| Incarnation(draw.number(12))),
                }),
            },
            0 => Body::Open { name: if self.one_in(8) { "x".repeat(300) } else { self.name() } },
            1 | 2 => Body::Register,
            3 => Body::Close,
            4 => Body::Heartbeat(self.clock_question()),
            5..=7 => Body::Acquire {
                path: self.path(),
                last_valid: self.maybe(|draw| LastValid {
                    incarnation: Incarnation(draw.number(12)),
                    generation: VolumeGeneration(draw.number(4)),
                    revision: Revision(draw.number(12)),
                }),
                read: self.maybe(Self::first_read),
            },
            8..=11 => match (self.first_read(), self.below(8)) {
                (FirstRead { object, known, lease }, 0 | 1) => Body::AwaitRead { object, known, lease },
                (FirstRead { object, lease, .. }, 2) => Body::ReadNextValue { object, lease },
                (FirstRead { object, known, lease }, _) => Body::Read { object, known, lease },
            },
            12..=16 => {
                Body::Write { write: self.write(revision), dropped: self.list(2, Self::set), seen: self.stamp(epoch) }
            }
            17 | 18 => Body::HolderReport(self.held()),
            _ => Body::Inspect(match self.below(10) {
                4 | 5 => {
                    let nodes_after = self.maybe(|draw| match draw.below(2) {
                        0 => NodesAfter::Nothing,
                        _ => NodesAfter::Path(draw.path()),
                    });
                    match self.maybe(Self::lease_name) {
                        Some(name) => Inspect::LeaseNamed { name, nodes_after },
                        None => Inspect::Lease { id: self.lease_id(), nodes_after },
                    }
                }
                7 => Inspect::Locks { path: self.path(), after: None },
                6 => Inspect::Leases { after: self.maybe(Self::lease_id) },
                0 => Inspect::Holders { path: self.path() },
                1 => Inspect::PendingWrites { path: self.path() },
                2 => Inspect::Volumes { path: self.path() },
                9 => Inspect::VolumeStats { path: self.path() },
                8 => Inspect::BlockedReads { path: self.path() },
                _ => Inspect::Cluster,
            }),
        }
    }

    /// The node or subtree of a watch.
    pub fn watched(&mut self) -> WatchScope {
        let path = self.path();
        if self.below(2) == 0 { WatchScope::Subtree(path) } else { WatchScope::Node(path) }
    }

    /// A part of a holder report.
    pub fn held(&mut self) -> HolderReportPart {
        HolderReportPart {
            volume: self.top(),
            incarnation: Incarnation(self.number(12)),
            covering: CoveringNumber(self.number(8)),
            part: self.number(3) as u32,
            parts: self.number(4) as u32,
            objects: self.list(3, Self::object),
        }
    }

    /// A request of this session.
    pub fn request(&mut self, session: SessionId, epoch: Epoch, registration: u64, revision: Revision) -> Request {
        Request { header: self.header(session, epoch, registration), body: self.body(epoch, revision) }
    }

    /// A recall.
    pub fn recall(&mut self, session: SessionId, epoch: Epoch) -> Recall {
        let (stamp, number, sets) = (self.stamp(epoch), self.number(8), self.list(3, Self::set));
        Recall { session, stamp, number, sets, offers_next_values: self.one_in(2) }
    }

    /// A consent.
    pub fn consent(&mut self, epoch: Epoch) -> Consent {
        Consent { session: self.session(), stamp: self.stamp(epoch) }
    }
}
