//! Replays the algorithms of Yin, Alvisi, Dahlin and Lin (1999) on a synthetic mix: clients visit,
//! and read k objects in each visit.
//!
//! An algorithm is counted twice on the same reads and writes: by the paper's rules, in a few lines
//! below (`Paper`), and by the shipped rules with the settings that stand for the algorithm.
//!
//! The objects, their popularity and their changes are those of [`tiers`](crate::tiers). Each of 33
//! clients makes 20 visits a day for 6 days. 2 s pass between two reads of a visit, on average. A
//! client of its own makes all writes, as the paper's server does.
//!
//! A leader takes a step every 50 ms, so days are slow to replay. Therefore time is shortened: a
//! second takes 50 ms here. The delay of messages and the leader's step are not shortened.

use std::{collections::BTreeMap, time::Duration};

use leasehold_model::rng::Rng;
use leasehold_protocol::{
    command::Write,
    holder::RenewalMode,
    lease_policy::ObjectTerm,
    object::Object,
    time::DriftAllowance,
    volume::{TICK_MAX, Tracking, VolumeSettings, margin_of_drift},
};

use crate::{
    counts::Counts,
    plot::{Curve, Plot},
    tiers::{CLIENTS, OBJECTS, changes_of, cumulated, drawn, path, shares},
    world::{Applications, COMMIT, World},
};

/// Objects that a client reads in each visit.
pub const READS_PER_VISIT: [u64; 4] = [2, 4, 8, 20];

/// The bounds on the wait of a write, in seconds of the table.
pub const BOUNDS_SECONDS: [u64; 2] = [10, 100];

/// The virtual time of one second of the table.
const SECOND: Duration = Duration::from_millis(50);
/// The virtual time of one day of the table.
const DAY: Duration = Duration::from_secs(24 * 3600 / 20);
/// For how long clients read, in days.
const DAYS: u32 = 6;
/// Visits of one client in a day, on average. All volume leases end between two visits, as a rule.
const VISITS: f64 = 20.0;
/// Clients begin to read after this time. Before it, the writer makes the objects.
const MAKING: Duration = Duration::from_secs(20);

/// Something that an application does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operation {
    Read { client: usize, object: usize },
    Write { object: usize },
}

/// The algorithms of the paper. A bound is the longest wait of a write for a client that has
/// failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Each read asks the server.
    PollEachRead,
    /// The server remembers all copies, and asks for each on a write.
    Callback,
    /// A lease on each object, of this term.
    Lease(Duration),
    /// A volume lease of this term, and object leases without end.
    Volume(Duration),
    /// The same, and a client whose volume lease has ended learns of writes when it renews.
    Delayed(Duration),
}

/// The messages of the algorithm by the paper's rules.
struct Paper {
    algorithm: Algorithm,
    messages: u64,
    /// The clients with a copy of each object, and the ends of their leases.
    copies: BTreeMap<usize, BTreeMap<usize, Duration>>,
    /// The ends of the volume leases.
    volumes: Vec<Duration>,
}

impl Paper {
    /// A request and its answer for each read that is no hit; a recall and a consent for each copy
    /// that is recalled.
    fn messages(algorithm: Algorithm, operations: &[(Duration, Operation)]) -> u64 {
        let (copies, volumes) = (BTreeMap::new(), vec![Duration::ZERO; CLIENTS]);
        let mut paper = Self { algorithm, messages: 0, copies, volumes };
        for (at, operation) in operations {
            match *operation {
                Operation::Read { client, object } => paper.read(client, object, *at),
                Operation::Write { object } => paper.write(object, *at),
            }
        }
        paper.messages
    }

    fn read(&mut self, client: usize, object: usize, at: Duration) {
        let holders = self.copies.entry(object).or_default();
        let has_lease = holders.get(&client).is_some_and(|end| at < *end);
        let is_hit = match self.algorithm {
            Algorithm::PollEachRead => false,
            Algorithm::Callback | Algorithm::Lease(_) => has_lease,
            Algorithm::Volume(_) | Algorithm::Delayed(_) => has_lease && at < self.volumes[client],
        };
        if is_hit {
            return;
        }
        self.messages += 2;
        let (object_term, volume_term) = match self.algorithm {
            Algorithm::PollEachRead => return,
            Algorithm::Callback => (Duration::MAX, Duration::MAX),
            Algorithm::Lease(term) => (term, Duration::MAX),
            // The renewal rides along.
            Algorithm::Volume(term) | Algorithm::Delayed(term) => (Duration::MAX, term),
        };
        holders.insert(client, at.saturating_add(object_term));
        self.volumes[client] = at.saturating_add(volume_term);
    }

    fn write(&mut self, object: usize, at: Duration) {
        let holders = self.copies.remove(&object).unwrap_or_default();
        let asked = holders.into_iter().filter(|(client, end)| match self.algorithm {
            Algorithm::PollEachRead => false,
            Algorithm::Callback | Algorithm::Lease(_) | Algorithm::Volume(_) => at < *end,
            Algorithm::Delayed(_) => at < self.volumes[*client],
        });
        self.messages += 2 * asked.count() as u64;
    }
}

/// What the clients of one mix do, in order.
fn operations(seed: u64, reads_per_visit: u64) -> Vec<(Duration, Operation)> {
    let mut rng = Rng::new(seed);
    let until = cumulated(&shares());
    let end = DAY * DAYS;
    let mut operations = Vec::new();
    let wait = |rng: &mut Rng, rate: f64| Duration::from_micros(rng.poisson_wait(rate).expect("a rate above zero"));
    for client in 0..CLIENTS {
        let mut at = wait(&mut rng, VISITS / DAY.as_secs_f64());
        while at < end {
            for _ in 0..reads_per_visit {
                operations.push((at, Operation::Read { client, object: drawn(&mut rng, &until) }));
                at += wait(&mut rng, 0.5 / SECOND.as_secs_f64());
            }
            at += wait(&mut rng, VISITS / DAY.as_secs_f64());
        }
    }
    let changes: Vec<f64> = (0..OBJECTS).map(changes_of).collect();
    let changed_until = cumulated(&changes);
    let rate = changes.iter().sum::<f64>() / DAY.as_secs_f64();
    let mut at = wait(&mut rng, rate);
    while at < end {
        operations.push((at, Operation::Write { object: drawn(&mut rng, &changed_until) }));
        at += wait(&mut rng, rate);
    }
    operations.sort_by_key(|(at, _)| *at);
    operations
}

/// Applications that carry out the planned operations.
struct Drawn;

/// The client that makes and writes the objects.
const WRITER: usize = CLIENTS;

impl Applications for Drawn {
    type Operation = Operation;

    fn act(&mut self, operation: Operation, world: &mut World<Operation>) {
        match operation {
            Operation::Read { client, object } => world.read(client, Object::data(path(object))),
            Operation::Write { object } => world.write(WRITER, Write::put(path(object), "content".into())),
        }
    }
}

impl Algorithm {
    /// The settings that stand for the algorithm.
    fn settings(self) -> VolumeSettings {
        let (term, object_term) = match self {
            Self::PollEachRead => (VolumeSettings::TERM_MAX, ObjectTerm::Zero),
            Self::Callback => (VolumeSettings::TERM_MAX, ObjectTerm::Infinite),
            Self::Lease(term) => (VolumeSettings::TERM_MAX, ObjectTerm::Fixed(term)),
            Self::Volume(term) | Self::Delayed(term) => (term, ObjectTerm::Infinite),
        };
        let drift = DriftAllowance::DEFAULT;
        let margin = margin_of_drift(term, TICK_MAX, drift).max(SECOND / 10);
        VolumeSettings::new(term, object_term, margin, Tracking::Objects, drift).expect("within bounds")
    }
}

/// Runs the shipped rules, and counts their messages.
fn rules(algorithm: Algorithm, renewal: RenewalMode, operations: &[(Duration, Operation)]) -> Counts {
    let mut world = World::renewing(algorithm.settings(), CLIENTS + 1, MAKING, COMMIT, renewal);
    (0..=CLIENTS).for_each(|client| world.connect(client, Duration::from_millis(10)));
    for object in 0..OBJECTS {
        world.plan(Duration::from_secs(1), Operation::Write { object });
    }
    for (at, operation) in operations {
        world.plan(MAKING + *at, *operation);
    }
    world.run(&mut Drawn, MAKING + DAY * DAYS);
    world.counts()
}

/// One algorithm with one k.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// The algorithm.
    pub algorithm: Algorithm,
    /// Reads of the applications.
    pub reads: u64,
    /// The messages by the paper's rules.
    pub paper: u64,
    /// The messages by the shipped rules, without heartbeats that renew no volume lease. Those keep
    /// sessions alive and compare clocks, and the paper has neither.
    pub rules: u64,
}

impl Run {
    fn of(algorithm: Algorithm, renewal: RenewalMode, operations: &[(Duration, Operation)]) -> Self {
        let counts = rules(algorithm, renewal, operations);
        Self {
            algorithm,
            reads: counts.reads,
            paper: Paper::messages(algorithm, operations),
            rules: counts.consistency() + counts.fetches - counts.idle,
        }
    }

    /// A number of messages, for each thousand reads.
    fn per_thousand(&self, messages: u64) -> f64 {
        messages as f64 / self.reads as f64 * 1e3
    }
}

/// The runs with one bound on the wait of a write.
#[derive(Debug, Clone, Copy)]
pub struct Bounded {
    /// The bound, in seconds of the table.
    pub seconds: u64,
    /// Leases on objects.
    pub lease: Run,
    /// Volume leases, by the paper's rules: a write asks all that have a copy.
    pub volume: u64,
    /// Volume leases with delayed invalidation. Reads and writes renew them.
    pub delayed: Run,
    /// The same. Heartbeats renew volume leases before they end.
    pub ahead: Run,
}

impl Bounded {
    /// The messages of volume leases, in shares of those of leases on objects.
    pub fn share(&self) -> f64 {
        self.delayed.rules as f64 / self.lease.rules as f64
    }
}

/// The runs with one k.
#[derive(Debug, Clone, Copy)]
pub struct Visits {
    /// k: objects that a client reads in each visit.
    pub reads_per_visit: u64,
    /// Each read asks.
    pub polling: Run,
    /// All copies are remembered.
    pub callback: Run,
    /// The runs with a bound.
    pub bounded: [Bounded; BOUNDS_SECONDS.len()],
}

/// Runs all algorithms with one k.
///
/// # Panics
///
/// If something happens that is impossible without a fault.
pub fn visits(seed: u64, reads_per_visit: u64) -> Visits {
    let operations = operations(seed, reads_per_visit);
    let on_demand = |algorithm| Run::of(algorithm, RenewalMode::OnDemand, &operations);
    let bounded = BOUNDS_SECONDS.map(|seconds| {
        let term = SECOND * u32::try_from(seconds).expect("a short term");
        Bounded {
            seconds,
            lease: on_demand(Algorithm::Lease(term)),
            volume: Paper::messages(Algorithm::Volume(term), &operations),
            delayed: on_demand(Algorithm::Delayed(term)),
            ahead: Run::of(Algorithm::Delayed(term), RenewalMode::Ahead, &operations),
        }
    });
    let (polling, callback) = (on_demand(Algorithm::PollEachRead), on_demand(Algorithm::Callback));
    Visits { reads_per_visit, polling, callback, bounded }
}

/// The runs with each k.
pub fn all(seed: u64) -> Vec<Visits> {
    READS_PER_VISIT.into_iter().map(|reads| visits(seed, reads)).collect()
}

/// The runs as tables of Markdown.
pub fn tables(all: &[Visits]) -> String {
    let mut text = "| reads in a visit | bound | lease, paper | lease, ours | volume, paper | delayed, paper | delayed, ours | of our leases | renewed ahead |\n".to_owned();
    text += &format!("|{}\n", " ---: |".repeat(9));
    for Visits { reads_per_visit, bounded, .. } in all {
        for at in bounded {
            let Bounded { seconds, lease, volume, delayed, ahead } = at;
            let [of_lease, lease, volume, of_delayed, renewed, ahead] = [
                lease.per_thousand(lease.paper),
                lease.per_thousand(lease.rules),
                lease.per_thousand(*volume),
                delayed.per_thousand(delayed.paper),
                delayed.per_thousand(delayed.rules),
                ahead.per_thousand(ahead.rules),
            ];
            text += &format!(
                "| {reads_per_visit} | {seconds} s | {of_lease:.0} | {lease:.0} | {volume:.0} | {of_delayed:.0} | {renewed:.0} | {:.2} | {ahead:.0} |\n",
                at.share()
            );
        }
    }
    text += "\n| reads in a visit | each read asks, paper | ours | callbacks, paper | ours |\n";
    text += &format!("|{}\n", " ---: |".repeat(5));
    for Visits { reads_per_visit, polling, callback, .. } in all {
        let [asks, asking, calls, calling] = [
            polling.per_thousand(polling.paper),
            polling.per_thousand(polling.rules),
            callback.per_thousand(callback.paper),
            callback.per_thousand(callback.rules),
        ];
        text += &format!("| {reads_per_visit} | {asks:.0} | {asking:.0} | {calls:.0} | {calling:.0} |\n");
    }
    text
}

/// The messages of volume leases beside those of leases on objects.
pub fn plot(all: &[Visits]) -> Plot {
    let curve = |place: usize, name: &str, value: fn(&Bounded) -> f64, is_dashed| Curve {
        name: format!("{name}, {} s", BOUNDS_SECONDS[place]),
        points: all.iter().map(|visits| (visits.reads_per_visit as f64, value(&visits.bounded[place]))).collect(),
        is_dashed,
    };
    let curves = (0..BOUNDS_SECONDS.len()).flat_map(|place| {
        let paper = |at: &Bounded| at.delayed.paper as f64 / at.lease.paper as f64;
        [curve(place, "paper", paper, true), curve(place, "Leasehold", Bounded::share, false)]
    });
    Plot {
        title: "Volume leases with delayed invalidation, beside leases on objects",
        x: "objects read in a visit",
        y: "messages, in shares of leases on objects",
        curves: curves.collect(),
    }
}
