//! Compares writes that only recall with writes that also bring the new value to the holders
//! (`OnWrite::Update`): the share of reads from memory, and the messages. The rates are ours.

use std::time::Duration;

use leasehold_model::rng::Rng;
use leasehold_protocol::{
    command::Write,
    lease_policy::{GrantPolicy, ObjectTerm, OnWrite},
    object::Object,
    path::NodePath,
    volume::VolumeSettings,
};

use crate::world::{Applications, COMMIT, World};

/// The clients that read. One more client writes.
pub const READERS: usize = 20;
/// Reads of one client in a second.
pub const READS: f64 = 1.0;
/// For how long messages are counted.
pub const MEASURED: Duration = Duration::from_secs(3600);
/// Writes in a second.
pub const WRITES: [f64; 5] = [0.01, 0.1, 0.5, 1.0, 2.0];

const WARM_UP: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// What was counted with one rate of writes.
#[derive(Debug, Clone, Copy)]
pub struct UpdateRun {
    /// Writes in a second.
    pub writes: f64,
    /// What a write does.
    pub on_write: OnWrite,
    /// The share of the reads that were answered from memory, from 0 to 1.
    pub from_memory: f64,
    /// Messages per second, except writes and their answers.
    pub messages: f64,
}

enum Operation {
    Make,
    Read(usize),
    Write,
}

struct Readers {
    rng: Rng,
    writes: f64,
}

fn path() -> NodePath {
    NodePath::parse("/price").expect("a path")
}

impl Applications for Readers {
    type Operation = Operation;

    fn act(&mut self, operation: Operation, world: &mut World<Operation>) {
        match operation {
            Operation::Make => world.write(READERS, Write::put(path(), "content".into())),
            Operation::Read(client) => {
                world.read(client, Object::data(path()));
                world.plan_poisson(&mut self.rng, READS, operation);
            }
            Operation::Write => {
                world.write(READERS, Write::put(path(), "content".into()));
                world.plan_poisson(&mut self.rng, self.writes, operation);
            }
        }
    }
}

/// Runs one rate of writes.
///
/// # Panics
///
/// If something happens that is impossible without a fault.
pub fn run(seed: u64, writes: f64, on_write: OnWrite, measured: Duration) -> UpdateRun {
    let hour = ObjectTerm::Fixed(SECOND * 3600);
    let settings = VolumeSettings::DEFAULT.with_policy(hour, on_write, GrantPolicy::All);
    let mut world = World::new(settings.expect("within bounds"), READERS + 1, WARM_UP, COMMIT);
    (0..=READERS).for_each(|client| world.connect(client, Duration::from_millis(10)));
    world.plan(SECOND, Operation::Make);
    (0..READERS).for_each(|client| world.plan(2 * SECOND, Operation::Read(client)));
    world.plan(2 * SECOND, Operation::Write);
    world.run(&mut Readers { rng: Rng::new(seed), writes }, WARM_UP + measured);
    let counts = world.counts();
    UpdateRun {
        writes,
        on_write,
        from_memory: counts.hits as f64 / counts.reads as f64,
        messages: (counts.consistency() + counts.fetches) as f64 / measured.as_secs_f64(),
    }
}

/// Each rate of writes with recalls alone, and with updates.
pub fn runs(seed: u64, measured: Duration) -> Vec<[UpdateRun; 2]> {
    WRITES.map(|writes| [OnWrite::Recall, OnWrite::Update].map(|on_write| run(seed, writes, on_write, measured))).into()
}

/// The runs as a table of Markdown.
pub fn table(runs: &[[UpdateRun; 2]]) -> String {
    let mut text = "| writes /s | reads from memory: recall | update | messages /s: recall | update |\n".to_owned();
    text += "| ---: | ---: | ---: | ---: | ---: |\n";
    for [recall, update] in runs {
        text += &format!(
            "| {} | {:.1} % | {:.1} % | {:.1} | {:.1} |\n",
            recall.writes,
            100.0 * recall.from_memory,
            100.0 * update.from_memory,
            recall.messages,
            update.messages,
        );
    }
    text
}
