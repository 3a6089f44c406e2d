//! Compares object terms that follow the use of a volume with fixed ones, on a mix whose ratio of
//! reads to writes changes.
//!
//! Ten clients share ten files. For an hour they mostly read, for an hour they mostly write, and
//! for an hour they do little, and hardly write. This repeats three times, after one hour of each
//! that is not counted. The rates are ours.

use std::time::Duration;

use leasehold_model::rng::Rng;
use leasehold_protocol::{
    command::Write,
    lease_policy::{GrantPolicy, ObjectTerm, OnWrite},
    object::Object,
    path::NodePath,
    volume::VolumeSettings,
};

use crate::{
    counts::Counts,
    world::{Applications, COMMIT, World},
};

const CLIENTS: usize = 10;
const FILES: usize = 10;
/// How often all parts of the mix are counted.
pub const ROUNDS: u32 = 3;
/// How long each part of the mix lasts.
pub const PART: Duration = Duration::from_secs(3600);

/// A part of the mix: its name, the reads of one client in a second, and the writes of all.
pub const PARTS: [(&str, f64, f64); 3] =
    [("mostly reads", 1.0, 0.01), ("mostly writes", 0.05, 1.0), ("few of both", 0.05, 0.0005)];

const SECOND: Duration = Duration::from_secs(1);

/// The term that follows the use.
pub const BY_USE: ObjectTerm = ObjectTerm::ByUse { least: Duration::from_secs(10), most: Duration::from_secs(3600) };

/// The terms that are compared.
pub fn terms() -> [ObjectTerm; 5] {
    let fixed = |seconds| ObjectTerm::Fixed(SECOND * seconds);
    [ObjectTerm::Zero, fixed(10), fixed(100), fixed(3600), BY_USE]
}

/// The messages with one term.
#[derive(Debug, Clone, Copy)]
pub struct UseRun {
    /// The term.
    pub term: ObjectTerm,
    /// Messages per second in each part, except writes and their answers.
    pub messages: [f64; PARTS.len()],
}

impl UseRun {
    /// Messages per second in all parts.
    pub fn all(&self) -> f64 {
        self.messages.iter().sum::<f64>() / PARTS.len() as f64
    }
}

enum Operation {
    Make(usize),
    Read(usize),
    Write,
    NextPart,
}

struct Mix {
    rng: Rng,
    /// The parts that have ended. The first ones are not counted.
    ended: usize,
    before: u64,
    messages: [u64; PARTS.len()],
}

fn path(file: usize) -> NodePath {
    NodePath::parse(&format!("/mix/{file}")).expect("a path")
}

fn all(counts: Counts) -> u64 {
    counts.consistency() + counts.fetches
}

impl Applications for Mix {
    type Operation = Operation;

    fn act(&mut self, operation: Operation, world: &mut World<Operation>) {
        let (_, reads, writes) = PARTS[self.ended % PARTS.len()];
        match operation {
            Operation::Make(file) => world.write(file % CLIENTS, Write::put(path(file), "content".into())),
            Operation::Read(client) => {
                let file = self.rng.index(FILES);
                world.read(client, Object::data(path(file)));
                world.plan_poisson(&mut self.rng, reads, operation);
            }
            Operation::Write => {
                let (writer, file) = (self.rng.index(CLIENTS), self.rng.index(FILES));
                world.write(writer, Write::put(path(file), "content".into()));
                world.plan_poisson(&mut self.rng, writes, operation);
            }
            Operation::NextPart => {
                let counted = all(world.counts());
                if self.ended >= PARTS.len() {
                    self.messages[self.ended % PARTS.len()] += counted - self.before;
                }
                self.before = counted;
                self.ended += 1;
                world.plan(PART, operation);
            }
        }
    }
}

/// Runs the mix with one term.
///
/// # Panics
///
/// If something happens that is impossible without a fault.
pub fn run(seed: u64, term: ObjectTerm) -> UseRun {
    let settings = VolumeSettings::DEFAULT.with_policy(term, OnWrite::Recall, GrantPolicy::All);
    let mut world = World::new(settings.expect("within bounds"), CLIENTS, Duration::ZERO, COMMIT);
    let mut mix = Mix { rng: Rng::new(seed), ended: 0, before: 0, messages: [0; PARTS.len()] };
    (0..CLIENTS).for_each(|client| world.connect(client, Duration::from_millis(10)));
    (0..FILES).for_each(|file| world.plan(SECOND, Operation::Make(file)));
    (0..CLIENTS).for_each(|client| world.plan(2 * SECOND, Operation::Read(client)));
    world.plan(2 * SECOND, Operation::Write);
    world.plan(PART, Operation::NextPart);
    let begun = world.now();
    let parts = (1 + ROUNDS) * PARTS.len() as u32;
    world.run(&mut mix, PART * parts + SECOND);
    assert!(world.now().since(begun) >= PART * parts && mix.ended == parts as usize, "all parts have ended");
    let seconds = f64::from(ROUNDS) * PART.as_secs_f64();
    UseRun { term, messages: mix.messages.map(|messages| messages as f64 / seconds) }
}

/// Runs the mix with each term.
pub fn runs(seed: u64) -> Vec<UseRun> {
    terms().map(|term| run(seed, term)).into()
}

/// The runs as a table of Markdown.
pub fn table(runs: &[UseRun]) -> String {
    let names = PARTS.map(|(name, ..)| name).join(" | ");
    let mut text = format!("| object term | messages /s: {names} | all |\n| --- |{}\n", " ---: |".repeat(4));
    for run in runs {
        let parts = run.messages.map(|messages| format!("{messages:.2}")).join(" | ");
        text += &format!("| {} | {parts} | {:.2} |\n", run.term, run.all());
    }
    text
}
