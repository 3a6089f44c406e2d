//! Replays the peak of Yin, Alvisi, Dahlin and Lin (1999): very many clients have cached an object,
//! few of them are in use, and it is written.
//!
//! With callbacks, the server asks every client that has a copy. With short volume leases, it asks
//! only clients in use: the leases of all others have ended.

use std::time::Duration;

use leasehold_model::rng::Rng;
use leasehold_protocol::{
    command::Write,
    lease_policy::ObjectTerm,
    object::Object,
    path::NodePath,
    time::DriftAllowance,
    volume::{TICK_MAX, Tracking, VolumeSettings, margin_of_drift},
};

use crate::world::{Applications, COMMIT, World};

/// Clients that have cached the object.
pub const CLIENTS: usize = 10_000;
/// Those that still read when it is written.
pub const LIVE: usize = 500;

/// What happened after the write.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Run {
    /// The volume term.
    pub term: Duration,
    /// The most recalls and consents in any second.
    pub peak: u64,
    /// How long the write waited.
    pub wait: Duration,
}

/// Clients connect and read once, at different times.
const CONNECTING: Duration = Duration::from_secs(60);
/// All leases of idle clients end meanwhile.
const IDLE: Duration = Duration::from_secs(60);
/// Messages after the write.
const AFTER: Duration = Duration::from_secs(20);
/// How often a live client reads.
const READ_EVERY: Duration = Duration::from_secs(1);

enum Operation {
    Make,
    /// The client reads once.
    Read(usize),
    /// The client reads again and again.
    ReadOn(usize),
    Write,
}

struct Popular;

fn object() -> NodePath {
    NodePath::parse("/popular").expect("a path")
}

impl Applications for Popular {
    type Operation = Operation;

    fn act(&mut self, operation: Operation, world: &mut World<Operation>) {
        match operation {
            Operation::Make | Operation::Write => world.write(0, Write::put(object(), "content".into())),
            Operation::Read(client) => world.read(client, Object::data(object())),
            Operation::ReadOn(client) => {
                world.read(client, Object::data(object()));
                world.plan(READ_EVERY, Operation::ReadOn(client));
            }
        }
    }
}

/// Runs one volume term. Object leases end only by a recall, or with their volume lease.
///
/// # Panics
///
/// If the term is out of bounds, or if something happens that is impossible without a fault.
pub fn run(seed: u64, term: Duration) -> Run {
    let drift = DriftAllowance::DEFAULT;
    let margin = margin_of_drift(term, TICK_MAX, drift).max(Duration::from_millis(100));
    let settings = VolumeSettings::new(term, ObjectTerm::Infinite, margin, Tracking::Objects, drift);
    let before = CONNECTING + IDLE;
    let mut world = World::new(settings.expect("within bounds"), CLIENTS, before, COMMIT);
    let mut rng = Rng::new(seed);
    world.plan(Duration::from_millis(100), Operation::Make);
    for client in 0..CLIENTS {
        // The first client makes the object before the others read it.
        let connecting = Duration::from_micros(if client == 0 { 0 } else { rng.between(1_000_000, 50_000_000) });
        world.connect(client, connecting);
        let reading = connecting + Duration::from_secs(1);
        world.plan(reading, if client < LIVE { Operation::ReadOn(client) } else { Operation::Read(client) });
    }
    world.plan(before + Duration::from_millis(500), Operation::Write);
    world.run(&mut Popular, before + AFTER);
    let counts = world.counts();
    assert_eq!(counts.written, 1, "the write has ended");
    Run { term, peak: counts.recalls_peak, wait: counts.write_delay }
}

/// Callbacks, whose volume lease outlasts the run, and volume leases of 10 s.
pub fn runs(seed: u64) -> [Run; 2] {
    [VolumeSettings::TERM_MAX, Duration::from_secs(10)].map(|term| run(seed, term))
}

/// The runs as a table of Markdown. The first are callbacks.
pub fn table(runs: &[Run]) -> String {
    let mut text = "| leases | most recalls and consents in a second | of callbacks | the write waits |\n".to_owned();
    text += "| --- | ---: | ---: | ---: |\n";
    for run in runs {
        let name = match run.term {
            VolumeSettings::TERM_MAX => "callbacks".to_owned(),
            term => format!("volume term {term:?}"),
        };
        let share = run.peak as f64 / runs[0].peak as f64 * 100.0;
        text += &format!("| {name} | {} | {share:.1} % | {:.1} ms |\n", run.peak, run.wait.as_secs_f64() * 1e3);
    }
    text
}
