//! Compares lease policies on one synthetic mix of the web: fixed object terms, two tiers (Cao and
//! Liu 1998) and adaptive terms (Alex, Cate 1992). A policy costs messages and the leader's memory.
//!
//! The mix has the read rate, the stations and the mutability that Yin, Alvisi, Dahlin and Lin give
//! for the traces of Boston University: 33 clients, 977,899 reads in 30 days (the days are ours),
//! 2,000 objects by Zipf's law with exponent 0.9 (ours).
//!
//! A leader takes a step every 50 ms, so a month is slow to replay. Therefore time is shortened: a
//! day is 864 s here, and all rates and terms are changed alike. Only the delay of messages is not,
//! and it is far below every term.

use std::time::Duration;

use leasehold_model::rng::Rng;
use leasehold_protocol::{
    command::Write,
    lease_policy::{GrantPolicy, ObjectTerm, OnWrite},
    object::Object,
    path::NodePath,
    time::{DriftAllowance, Instant},
    volume::{TICK_MAX, Tracking, VolumeSettings, margin_of_drift},
};

use crate::{
    counts::Counts,
    plot::{Curve, Plot},
    world::{Applications, COMMIT, World},
};

/// A day is so many times as short as a real one.
const SHORTENED: u32 = 100;
const DAY: Duration = Duration::from_secs(24 * 3600 / SHORTENED as u64);
const HOUR: Duration = Duration::from_secs(3600 / SHORTENED as u64);
/// 100 s of the table.
const SHORT: Duration = Duration::from_secs(100 / SHORTENED as u64);

/// For how long messages are counted: 5 days.
pub const MEASURED: Duration = Duration::from_secs(5 * DAY.as_secs());

/// Clients.
pub(crate) const CLIENTS: usize = 33;
/// Objects.
pub(crate) const OBJECTS: usize = 2000;
/// Reads of one client in a second.
const READS: f64 = 977_899.0 / (30 * DAY.as_secs()) as f64 / CLIENTS as f64;
/// The exponent of Zipf's law.
const ZIPF: f64 = 0.9;
/// The objects are so old when clients begin to read.
const AGE: Duration = Duration::from_secs(5 * DAY.as_secs());
/// Clients read for so long before messages are counted.
const READING: Duration = Duration::from_secs(2 * DAY.as_secs());

/// A policy: its name, the object term, and who gets leases.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Policy {
    /// The name in the table.
    pub name: &'static str,
    /// The object term.
    pub term: ObjectTerm,
    /// Who gets leases.
    pub grants: GrantPolicy,
}

/// The policies that are compared.
pub const POLICIES: [Policy; 7] = [
    fixed("fixed, 100 s", SHORT),
    fixed("fixed, 1 h", HOUR),
    fixed("fixed, 6 h", Duration::from_secs(6 * HOUR.as_secs())),
    fixed("fixed, 24 h", DAY),
    Policy {
        name: "two tiers, 100 s and 24 h",
        term: ObjectTerm::Fixed(DAY),
        grants: GrantPolicy::Returning { first: SHORT },
    },
    Policy {
        name: "adaptive, 1 % of the age, 100 s to 24 h",
        term: ObjectTerm::Adaptive { percent: 1, least: SHORT, most: DAY },
        grants: GrantPolicy::All,
    },
    Policy {
        name: "adaptive, 20 % of the age, 100 s to 24 h",
        term: ObjectTerm::Adaptive { percent: 20, least: SHORT, most: DAY },
        grants: GrantPolicy::All,
    },
];

const fn fixed(name: &'static str, term: Duration) -> Policy {
    Policy { name, term: ObjectTerm::Fixed(term), grants: GrantPolicy::All }
}

/// What one policy costs.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// The policy.
    pub policy: Policy,
    /// The counted messages.
    pub counts: Counts,
    /// The mean number of object leases.
    pub leases: f64,
    /// How long was counted.
    pub measured: Duration,
}

impl Run {
    /// Messages for consistency and fetches, for each thousand reads.
    pub fn messages(&self) -> f64 {
        let Counts { fetches, reads, .. } = self.counts;
        (self.counts.consistency() + fetches) as f64 / reads as f64 * 1e3
    }

    /// Reads that were no hits, per second.
    pub fn misses(&self) -> f64 {
        (self.counts.reads - self.counts.hits) as f64 / self.measured.as_secs_f64()
    }
}

impl Policy {
    /// The term, if it is fixed and the same for all leases.
    pub fn fixed_term(&self) -> Option<Duration> {
        match (self.term, self.grants) {
            (ObjectTerm::Fixed(term), GrantPolicy::All) => Some(term),
            _ => None,
        }
    }
}

/// The misses per second and the mean number of leases with a fixed term, in seconds. For each
/// client and each object, a lease lasts for the term. The next read comes 1/R after its end.
pub fn formula(term: f64) -> (f64, f64) {
    let of = |rate: f64| (rate / (1.0 + rate * term), rate * term / (1.0 + rate * term));
    let all = shares().into_iter().map(|share| of(share * READS));
    let (misses, leases) = all.fold((0.0, 0.0), |(misses, leases), (miss, lease)| (misses + miss, leases + lease));
    (misses * CLIENTS as f64, leases * CLIENTS as f64)
}

/// The messages for each thousand reads with the fixed term that gives so many leases.
pub fn messages_of_fixed_term(leases: f64) -> f64 {
    // More leases need a longer term.
    let (mut below, mut above) = (0.0, 1e9);
    for _ in 0..100 {
        let middle = (below + above) / 2.0;
        if formula(middle).1 < leases { below = middle } else { above = middle }
    }
    // A request and an answer.
    formula(below).0 * 2.0 / (READS * CLIENTS as f64) * 1e3
}

/// The share of all reads that each object gets, the most popular first.
pub(crate) fn shares() -> Vec<f64> {
    let weights: Vec<f64> = (1..=OBJECTS).map(|rank| (rank as f64).powf(-ZIPF)).collect();
    let all: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / all).collect()
}

/// Changes of an object in a day, by its rank: the most popular tenth changes least.
pub(crate) fn changes_of(rank: usize) -> f64 {
    match rank % 100 {
        _ if rank < OBJECTS / 10 => 0.005,
        0..=2 => 0.20,
        3..=12 => 0.05,
        _ => 0.02,
    }
}

enum Operation {
    Make(usize),
    Read(usize),
    Change,
    Sample,
}

struct Web {
    rng: Rng,
    /// For each object, the share of reads of it and of all more popular ones.
    until: Vec<f64>,
    /// For each object, the share of changes of it and of all before it.
    changed_until: Vec<f64>,
    /// Changes of all objects, per second.
    changes: f64,
    samples: u64,
    leases: u64,
    counts_from: Instant,
}

pub(crate) fn path(object: usize) -> NodePath {
    NodePath::parse(&format!("/web/{object}")).expect("a path")
}

/// Sums up to each element, in shares of the whole.
pub(crate) fn cumulated(weights: &[f64]) -> Vec<f64> {
    let all: f64 = weights.iter().sum();
    weights
        .iter()
        .scan(0.0, |sum, weight| {
            *sum += weight / all;
            Some(*sum)
        })
        .collect()
}

/// Draws an object. `until` has the sum of the shares up to each.
pub(crate) fn drawn(rng: &mut Rng, until: &[f64]) -> usize {
    let share = (rng.bits() >> 11) as f64 / (1_u64 << 53) as f64;
    until.partition_point(|until| *until <= share).min(OBJECTS - 1)
}

impl Applications for Web {
    type Operation = Operation;

    fn act(&mut self, operation: Operation, world: &mut World<Operation>) {
        match operation {
            Operation::Make(object) => world.write(object % CLIENTS, Write::put(path(object), "content".into())),
            Operation::Read(client) => {
                let object = drawn(&mut self.rng, &self.until);
                world.read(client, Object::data(path(object)));
                world.plan_poisson(&mut self.rng, READS, operation);
            }
            Operation::Change => {
                let object = drawn(&mut self.rng, &self.changed_until);
                let writer = self.rng.index(CLIENTS);
                world.write(writer, Write::put(path(object), "content".into()));
                world.plan_poisson(&mut self.rng, self.changes, operation);
            }
            Operation::Sample => {
                if world.now() >= self.counts_from {
                    self.samples += 1;
                    self.leases += world.object_leases();
                }
                world.plan(HOUR, operation);
            }
        }
    }
}

/// Runs one policy.
///
/// # Panics
///
/// If a term is out of bounds, or if something happens that is impossible without a fault.
pub fn run(seed: u64, policy: Policy, measured: Duration) -> Run {
    let drift = DriftAllowance::DEFAULT;
    let margin = margin_of_drift(DAY, TICK_MAX, drift);
    let settings = VolumeSettings::new(DAY, policy.term, margin, Tracking::Objects, drift)
        .and_then(|settings| settings.with_policy(policy.term, OnWrite::Recall, policy.grants));
    let before = AGE + READING;
    let mut world = World::new(settings.expect("within bounds"), CLIENTS, before, COMMIT);
    let changes: Vec<f64> = (0..OBJECTS).map(changes_of).collect();
    let mut web = Web {
        rng: Rng::new(seed),
        until: cumulated(&shares()),
        changed_until: cumulated(&changes),
        changes: changes.iter().sum::<f64>() / DAY.as_secs_f64(),
        samples: 0,
        leases: 0,
        counts_from: world.now().after(before),
    };
    (0..OBJECTS).for_each(|object| world.plan(Duration::from_secs(1), Operation::Make(object)));
    for client in 0..CLIENTS {
        world.connect(client, Duration::from_millis(10));
        world.plan(AGE, Operation::Read(client));
    }
    world.plan(Duration::from_secs(60), Operation::Change);
    world.plan(HOUR, Operation::Sample);
    world.run(&mut web, before + measured);
    let counts = world.counts();
    Run { policy, counts, leases: web.leases as f64 / web.samples as f64, measured }
}

/// Runs all policies.
pub fn runs(seed: u64, measured: Duration) -> Vec<Run> {
    POLICIES.map(|policy| run(seed, policy, measured)).into()
}

/// The runs as a table of Markdown.
pub fn table(runs: &[Run]) -> String {
    let mut text =
        "| object leases | messages for 1,000 reads | reads from memory | object leases at a time |\n".to_owned();
    text += "| --- | ---: | ---: | ---: |\n";
    for run in runs {
        let Counts { hits, reads, .. } = run.counts;
        let memory = hits as f64 / reads as f64 * 100.0;
        text += &format!("| {} | {:.0} | {memory:.1} % | {:.0} |\n", run.policy.name, run.messages(), run.leases);
    }
    text
}

/// Messages by the number of leases.
pub fn plot(runs: &[Run]) -> Plot {
    let point = |run: &Run| (run.leases, run.messages());
    let is_fixed = |run: &&Run| run.policy.fixed_term().is_some();
    let fixed = Curve {
        name: "fixed terms: 100 s, 1 h, 6 h, 24 h".to_owned(),
        points: runs.iter().filter(is_fixed).map(point).collect(),
        is_dashed: false,
    };
    let others = runs.iter().filter(|run| !is_fixed(run));
    let others =
        others.map(|run| Curve { name: run.policy.name.to_owned(), points: vec![point(run)], is_dashed: false });
    Plot {
        title: "Two tiers and adaptive terms beside fixed terms",
        x: "object leases at a time",
        y: "messages for 1,000 reads",
        curves: std::iter::once(fixed).chain(others).collect(),
    }
}
