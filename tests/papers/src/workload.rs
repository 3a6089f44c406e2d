//! Applications that read and write as Poisson processes, in groups that share files.

use std::time::Duration;

use leasehold_model::rng::Rng;
use leasehold_protocol::{
    advice::CopyTerm,
    command::Write,
    lease_policy::ObjectTerm,
    message::VolumeStats,
    object::Object,
    path::NodePath,
    time::DriftAllowance,
    volume::{TICK_MAX, Tracking, VolumeSettings, margin_of_drift},
};

use crate::{
    counts::Counts,
    gray_cheriton::{Load, client_term},
    world::{Applications, COMMIT, DELAY, World},
};

/// The rates of reads and writes, the sharing of files, and the volume term.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Workload {
    /// Decides the times of all reads and writes.
    pub seed: u64,
    /// The number of clients.
    pub clients: usize,
    /// How many of them read and write the same files.
    pub sharing: usize,
    /// How many of each such group write.
    pub writing: usize,
    /// Files of each such group, all in one volume. Each read and each write picks one of them.
    pub files: u64,
    /// Whether some files are read and written more than others: half of the reads and writes pick
    /// one of an eighth of the files.
    pub is_uneven: bool,
    /// Reads per second by each client.
    pub reads: f64,
    /// Writes per second by each client that writes.
    pub writes: f64,
    /// The volume term.
    pub term: Duration,
    /// The object term.
    pub object_term: ObjectTerm,
    /// How long a commit takes, and a proof of leadership.
    pub commit: Duration,
    /// For how long messages are counted.
    pub measured: Duration,
}

impl Workload {
    /// The V system's rates: 20 clients, counted for 3,000 s.
    pub fn v_system(seed: u64, sharing: usize, files: u64, term: Duration) -> Self {
        let measured = Duration::from_secs(3000);
        let object_term = ObjectTerm::Fixed(OBJECT_TERM);
        let (reads, writes) = (0.864, 0.040);
        let (clients, writing, is_uneven, commit) = (20, sharing, false, COMMIT);
        Self { seed, clients, sharing, writing, files, is_uneven, reads, writes, term, object_term, commit, measured }
    }

    /// The V system's rates with a lease for each file, as in the paper: object leases with this
    /// term, under volume leases that outlast the run. One server without a log, so a commit takes
    /// no time. 20 clients, or as many as share each file.
    pub fn file_leases(seed: u64, sharing: usize, object_term: ObjectTerm) -> Self {
        let clients = sharing.max(20);
        let term = VolumeSettings::TERM_MAX;
        Self { clients, object_term, commit: Duration::ZERO, ..Self::v_system(seed, sharing, 1, term) }
    }

    /// From a request to its answer, if the server answers at once.
    pub fn round_trip() -> Duration {
        2 * DELAY
    }

    /// The load in the words of the paper, for one file of each group, if all of them write.
    pub fn load(&self) -> Load {
        let (clients, sharing) = (self.clients as f64, self.sharing as f64);
        Load { clients, reads: self.reads, writes: self.writes, sharing }
    }

    /// The settings of the volume.
    pub(crate) fn settings(&self) -> VolumeSettings {
        let drift = DriftAllowance::DEFAULT;
        // The paper's ε, or the least margin of a volume with a long term.
        let margin = MARGIN.max(margin_of_drift(self.term, TICK_MAX, drift));
        let settings = VolumeSettings::new(self.term, self.object_term, margin, Tracking::Objects, drift);
        settings.expect("terms within bounds")
    }

    /// How long an object lease lasts. The client's part is the paper's t_c.
    pub fn copy_term(&self) -> CopyTerm {
        CopyTerm::of(&self.settings(), self.object_term, Self::round_trip(), DriftAllowance::DEFAULT)
    }

    /// The paper's formula for this workload, in messages per second, with one lease for each file.
    /// A client of Leasehold counts a term from its request, and shortens it by the drift
    /// allowance. The server waits for the margin.
    pub fn formula(&self) -> f64 {
        let files = self.files as f64;
        let (clients, sharing) = (self.clients as f64, self.sharing as f64);
        let of_each = Load { clients, reads: self.reads / files, writes: self.writes / files, sharing };
        let allowance = DriftAllowance::DEFAULT.over(self.term).as_secs_f64();
        files * of_each.messages(client_term(self.term.as_secs_f64(), 2.0 * DELAY.as_secs_f64(), allowance))
    }

    /// A number of counted messages, per second.
    pub fn per_second(&self, messages: u64) -> f64 {
        messages as f64 / self.measured.as_secs_f64()
    }
}

/// The margin: the paper's ε.
const MARGIN: Duration = Duration::from_millis(100);
/// Object leases outlast every run.
const OBJECT_TERM: Duration = Duration::from_secs(24 * 3600);
/// The time before messages are counted: clients make the files, and all clients read some.
const WARM_UP: Duration = Duration::from_secs(60);

/// An operation of one client.
enum Operation {
    Read(usize),
    Write(usize),
    /// Makes the file of this number.
    Make(usize, u64),
}

struct Poisson {
    load: Workload,
    rng: Rng,
}

/// Runs the workload, and returns the counts.
///
/// # Panics
///
/// If the term is out of bounds, or if something happens that is impossible without a fault.
pub fn run(load: Workload) -> Counts {
    let (mut world, mut applications) = begun(load);
    world.run(&mut applications, WARM_UP + load.measured);
    world.counts()
}

/// Runs the workload. Returns the counts, and what the leader had counted when the counts began and
/// at their end.
pub(crate) fn run_with_stats(load: Workload) -> (Counts, [VolumeStats; 2]) {
    let (mut world, mut applications) = begun(load);
    let stats = [WARM_UP, load.measured].map(|span| {
        world.run(&mut applications, span);
        world.volume_stats()
    });
    (world.counts(), stats)
}

/// The beginning of a run.
fn begun(load: Workload) -> (World<Operation>, Poisson) {
    let mut world = World::new(load.settings(), load.clients, WARM_UP, load.commit);
    // All clients connect. The first of each group makes its files. Then all read and write.
    for client in 0..load.clients {
        world.connect(client, Duration::from_millis(10));
        if client % load.sharing == 0 {
            (0..load.files).for_each(|file| world.plan(Duration::from_millis(100), Operation::Make(client, file)));
        }
        world.plan(WARM_UP / 20, Operation::Read(client));
        if client % load.sharing < load.writing {
            world.plan(WARM_UP / 20, Operation::Write(client));
        }
    }
    (world, Poisson { load, rng: Rng::new(load.seed) })
}

impl Poisson {
    /// A file of the client's group.
    fn file(&self, client: usize, file: u64) -> NodePath {
        let text = format!("/group-{}/file-{file}", client / self.load.sharing);
        NodePath::parse(&text).expect("made of valid components")
    }

    fn any_file(&mut self, client: usize) -> NodePath {
        const PARTS: u64 = 1 << 20;
        let file = match self.load.is_uneven {
            false => self.rng.below(self.load.files),
            true => {
                let drawn = u128::from(self.rng.below(PARTS));
                (u128::from(self.load.files) * drawn.pow(3) / u128::from(PARTS).pow(3)) as u64
            }
        };
        self.file(client, file)
    }
}

impl Applications for Poisson {
    type Operation = Operation;

    fn act(&mut self, operation: Operation, world: &mut World<Operation>) {
        match operation {
            Operation::Read(client) => {
                world.read(client, Object::data(self.any_file(client)));
                world.plan_poisson(&mut self.rng, self.load.reads, operation);
            }
            Operation::Write(client) => {
                world.write(client, Write::put(self.any_file(client), "content".into()));
                world.plan_poisson(&mut self.rng, self.load.writes, operation);
            }
            Operation::Make(client, file) => {
                world.write(client, Write::put(self.file(client, file), "content".into()));
            }
        }
    }
}
