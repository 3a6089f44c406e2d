//! Arguments: any value that a parameter's type allows, and usual values more often.

use leasehold_protocol::lease_policy::LeaseRequest;
use std::time::Duration;

use leasehold_client_cache::{
    Attach, Compare, CompareTarget, Condition, DeleteBuilder, DriftAllowance, GrantLeaseBuilder, GrantPolicy, LeaseId,
    LeaseName, LeaseRef, LockBuilder, LockId, LockWait, NodePath, ObjectKind, ObjectTerm, OnWrite, Operation,
    PutBuilder, Quota, ReadBuilder, RegisterBuilder, Relation, Revision, SnapshotReadBuilder, Token, Tracking,
    Transaction, TransactionBuilder, UpdateBuilder, Value, VolumeSettings, VolumeTerm, WatchBuilder, WriteLeaseBuilder,
};
use rand::{Rng, rngs::StdRng, seq::IndexedRandom};

/// Few paths, so that callers meet. `/v` and `/v/w` become volumes.
const PATHS: [&str; 12] =
    ["/", "/a", "/a/b", "/a/b/c", "/d", "/e/f", "/v", "/v/x", "/v/y", "/v/w", "/v/w/z", "/services"];
/// The ids of key leases. Ids that the servers choose meet the first of them.
const LEASE_IDS: u64 = 6;
/// The number of names of key leases.
const LEASE_NAMES: u64 = 3;

/// The call with a timeout, or without one.
macro_rules! timed {
    ($draw:expr, $call:expr) => {{
        let call = $call;
        match $draw.timeout() {
            Some(timeout) => call.timeout(timeout),
            None => call,
        }
    }};
}

/// Draws arguments. One seed gives one sequence.
pub struct Draw {
    pub rng: StdRng,
    /// Numbers the values, so that no two are the same.
    next_value: u64,
    writer: u64,
}

impl Draw {
    pub fn new(rng: StdRng, writer: u64) -> Self {
        Self { rng, next_value: 0, writer }
    }

    pub fn chance(&mut self, one_in: u32) -> bool {
        self.rng.random_ratio(1, one_in)
    }

    pub fn path(&mut self) -> NodePath {
        if self.chance(60) {
            let components = *[40, 80, 700].choose(&mut self.rng).expect("not empty");
            return NodePath::parse(&"/deep".repeat(components)).expect("a path");
        }
        if self.chance(60) {
            return NodePath::parse(&format!("/{}", "n".repeat(255))).expect("a path");
        }
        NodePath::parse(PATHS.choose(&mut self.rng).expect("not empty")).expect("a path")
    }

    /// Every path that is drawn often.
    pub fn paths() -> impl Iterator<Item = NodePath> {
        PATHS.iter().map(|text| NodePath::parse(text).expect("a path"))
    }

    /// A new path that no other caller draws.
    pub fn own_path(&mut self) -> NodePath {
        self.next_value += 1;
        NodePath::parse(&format!("/own/{}/{}", self.writer, self.next_value)).expect("a path")
    }

    pub fn value(&mut self) -> Value {
        self.next_value += 1;
        match self.rng.random_range(0..40) {
            0 => Value::default(),
            1 => Value::from(vec![0xff; 2 << 20]),
            2 => Value::from(vec![7; 100_000]),
            _ => Value::from(format!("{}-{}", self.writer, self.next_value)),
        }
    }

    pub fn duration(&mut self) -> Duration {
        match self.rng.random_range(0..10) {
            0 => Duration::ZERO,
            1 => Duration::MAX,
            2 => Duration::from_nanos(1),
            3 => Duration::from_secs(self.rng.random_range(2..100_000)),
            _ => Duration::from_millis(self.rng.random_range(1..1500)),
        }
    }

    pub fn timeout(&mut self) -> Option<Duration> {
        self.rng.random_bool(0.3).then(|| self.duration())
    }

    pub fn number(&mut self) -> u64 {
        match self.rng.random_range(0..6_u8) {
            0 => u64::MAX,
            1 => self.rng.random(),
            _ => self.rng.random_range(0..40),
        }
    }

    pub fn lease_id(&mut self) -> LeaseId {
        LeaseId(if self.chance(20) { self.number() } else { self.rng.random_range(1..=LEASE_IDS) })
    }

    /// One of a few names, so that several callers want the same.
    pub fn lease_name(&mut self) -> LeaseName {
        LeaseName::parse(&format!("lease-{}", self.rng.random_range(1..=LEASE_NAMES))).expect("a name")
    }

    pub fn lease_ref(&mut self) -> LeaseRef {
        if self.chance(3) { self.lease_name().into() } else { self.lease_id().into() }
    }

    pub fn token(&mut self, known: Option<Token>) -> Token {
        let number = self.number();
        known.filter(|_| self.rng.random_bool(0.7)).unwrap_or(Token(number))
    }

    pub fn hold_id(&mut self, known: &[LockId]) -> LockId {
        let number = self.number();
        known.choose(&mut self.rng).copied().filter(|_| self.rng.random_bool(0.8)).unwrap_or(LockId(number))
    }

    pub fn kind(&mut self) -> ObjectKind {
        if self.rng.random() { ObjectKind::Data } else { ObjectKind::Children }
    }

    pub fn condition(&mut self) -> Condition {
        match self.rng.random_range(0..6_u8) {
            0 => Condition::Absent,
            1 => Condition::Revision(Revision(self.number())),
            _ => Condition::Any,
        }
    }

    pub fn attach(&mut self) -> Attach {
        match self.rng.random_range(0..7_u8) {
            0 => Attach::Unchanged,
            1 | 2 => Attach::Lease(self.lease_id()),
            3 => Attach::Session,
            4 => Attach::LeaseNamed(self.lease_name()),
            _ => Attach::Nothing,
        }
    }

    pub fn read<'a, T>(&mut self, call: ReadBuilder<'a, T>) -> ReadBuilder<'a, T> {
        let lease = *[LeaseRequest::Unwanted, LeaseRequest::Implicit, LeaseRequest::Explicit]
            .choose(&mut self.rng)
            .expect("not empty");
        timed!(self, call.lease(lease))
    }

    pub fn put<'a>(&mut self, call: PutBuilder<'a>) -> PutBuilder<'a> {
        timed!(self, call.condition(self.condition()).attach(self.attach()))
    }

    pub fn delete<'a>(&mut self, call: DeleteBuilder<'a>) -> DeleteBuilder<'a> {
        timed!(self, call.recursive(self.rng.random()).condition(self.condition()))
    }

    pub fn update<'a, F>(&mut self, call: UpdateBuilder<'a, F>) -> UpdateBuilder<'a, F> {
        timed!(self, call.attach(self.attach()))
    }

    pub fn snapshot<'a>(&mut self, call: SnapshotReadBuilder<'a>) -> SnapshotReadBuilder<'a> {
        timed!(self, call)
    }

    pub fn transact<'a>(&mut self, call: TransactionBuilder<'a>) -> TransactionBuilder<'a> {
        timed!(self, call)
    }

    pub fn grant<'a>(&mut self, call: GrantLeaseBuilder<'a>) -> GrantLeaseBuilder<'a> {
        let call = if self.rng.random() { call.id(self.lease_id()) } else { call };
        let call = if self.rng.random() { call.name(self.lease_name()) } else { call };
        timed!(self, call)
    }

    pub fn register<'a>(&mut self, call: RegisterBuilder<'a>) -> RegisterBuilder<'a> {
        timed!(self, call.replace(self.rng.random()))
    }

    pub fn watch<'a>(&mut self, call: WatchBuilder<'a>) -> WatchBuilder<'a> {
        let call = if self.rng.random() { call.from(Revision(self.number())) } else { call };
        let call = if self.chance(3) { call.buffer_bytes(self.rng.random()) } else { call };
        timed!(self, call.recursive(self.rng.random()))
    }

    pub fn lock<'a>(&mut self, call: LockBuilder<'a>) -> LockBuilder<'a> {
        let call = if self.rng.random() { call.shared() } else { call };
        let call = if self.chance(4) { call.lock_delay(self.duration()) } else { call };
        timed!(self, call.wait(self.wait()))
    }

    pub fn write_lease<'a>(&mut self, call: WriteLeaseBuilder<'a>) -> WriteLeaseBuilder<'a> {
        let call = if self.chance(4) { call.lock_delay(self.duration()) } else { call };
        timed!(self, call.wait(self.wait()))
    }

    pub fn wait(&mut self) -> LockWait {
        match self.rng.random_range(0..4) {
            0 => LockWait::Forever,
            1 => LockWait::For(self.duration()),
            _ => LockWait::No,
        }
    }

    /// Most terms end within the test. Some settings are refused, and some of those only by the
    /// servers.
    pub fn settings(&mut self) -> VolumeSettings {
        let tracking = if self.chance(4) { Tracking::Covering } else { Tracking::Objects };
        let term = Duration::from_millis(*[200, 1000, 2000, 5000, 60_000].choose(&mut self.rng).expect("not empty"));
        let object_term = Duration::from_millis(*[1, 500, 3_600_000].choose(&mut self.rng).expect("not empty"));
        let margin = Duration::from_millis(*[50, 100, 500].choose(&mut self.rng).expect("not empty"));
        let drift = DriftAllowance::DEFAULT;
        let volume_term = match self.chance(4) {
            true => VolumeTerm::Adaptive { least: term, most: 2 * term, renewals_per_second: 1 },
            false => VolumeTerm::Fixed(term),
        };
        let settings =
            VolumeSettings::new(volume_term, object_term, margin, tracking, drift).unwrap_or(VolumeSettings::DEFAULT);
        let second = Duration::from_secs(1);
        let object_term = match self.rng.random_range(0..7_u8) {
            0 => ObjectTerm::Zero,
            1 => ObjectTerm::Infinite,
            2 => ObjectTerm::Adaptive { percent: ObjectTerm::ADAPTIVE_PERCENT, least: term, most: 10 * term },
            3 => ObjectTerm::ByUse { least: term, most: 10 * term },
            _ => settings.object_term(),
        };
        let on_write = match self.rng.random_range(0..6_u8) {
            0 => OnWrite::Wait,
            1 => OnWrite::Update,
            _ => OnWrite::Recall,
        };
        let grants = match self.rng.random_range(0..6_u8) {
            0 => GrantPolicy::OnRequest,
            1 => GrantPolicy::Returning { first: second },
            _ => GrantPolicy::All,
        };
        let limit = |draw: &mut Self, most: u64| draw.chance(4).then(|| draw.rng.random_range(0..most));
        let quota = Quota { nodes: limit(self, 64), bytes: limit(self, 4096) };
        let settings = settings.with_policy(object_term, on_write, grants).unwrap_or(settings);
        let lease_limit = self.chance(4).then(|| self.rng.random_range(0..16));
        settings.with_lease_limit(lease_limit).with_quota(quota)
    }

    fn relation(&mut self) -> Relation {
        use Relation::{Equal, Greater, Less, NotEqual};
        *[Equal, NotEqual, Less, Greater].choose(&mut self.rng).expect("not empty")
    }

    fn compare(&mut self, token: Option<Token>) -> Compare {
        let target = match self.rng.random_range(0..6_u8) {
            0 => CompareTarget::Value(self.relation(), self.value()),
            1 => CompareTarget::Version(self.relation(), self.number()),
            2 => CompareTarget::ModifyRevision(self.relation(), Revision(self.number())),
            3 => CompareTarget::CreateRevision(self.relation(), Revision(self.number())),
            4 => CompareTarget::Exists(self.rng.random()),
            _ => CompareTarget::Locked(self.rng.random(), self.token(token)),
        };
        Compare { path: self.path(), target }
    }

    fn operation(&mut self) -> Operation {
        if self.rng.random_bool(0.7) {
            Operation::Put { path: self.path(), value: self.value(), attach: self.attach() }
        } else {
            Operation::Delete { path: self.path(), recursive: self.rng.random() }
        }
    }

    pub fn transaction(&mut self, token: Option<Token>) -> Transaction {
        let most = if self.chance(40) { 200 } else { 4 };
        let mut transaction = Transaction::new();
        for _ in 0..self.rng.random_range(0..=most) {
            transaction = transaction.when(self.compare(token));
        }
        for _ in 0..self.rng.random_range(0..=most) {
            transaction = transaction.then(self.operation());
        }
        for _ in 0..self.rng.random_range(0..=most) {
            transaction = transaction.otherwise(self.operation());
        }
        transaction
    }
}

/// Small draws.
impl Draw {
    pub fn rng_bool(&mut self) -> bool {
        self.rng.random()
    }

    pub fn below(&mut self, bound: usize) -> usize {
        self.rng.random_range(0..bound)
    }

    /// A number of permits or parties: also zero, and more than the bound.
    pub fn count(&mut self) -> u32 {
        match self.rng.random_range(0..10) {
            0 => 0,
            1 => u32::MAX,
            _ => self.rng.random_range(1..4),
        }
    }
}
