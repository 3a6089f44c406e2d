//! Replays a cell of Chubby (Burrows 2006): 22,000 clients that have cached about 230,000 entries
//! for 24,000 files and 32,000 names without a file.
//!
//! 93 % of the cell's requests were KeepAlives, because each client sends one in each lease,
//! whether or not its application does anything. Of the others, the paper counts for each thousand
//! requests: 34 reads (`GetStat` 20, `Open` 10, `GetContentsAndStat` 4), 10 new sessions, and 0.68
//! writes. This module takes these rates, for 1,500 requests in a second.
//!
//! The paper does not say what clients read from memory. Here a client reads all its cached
//! entries in each visit, then one file that it has not cached. So the visits are as frequent as
//! the paper's reads. A client's session lasts as long as the rate of new sessions allows.

use std::time::Duration;

use leasehold_model::rng::Rng;
use leasehold_protocol::{
    command::Write,
    holder::RenewalMode,
    lease_policy::ObjectTerm,
    object::Object,
    path::NodePath,
    time::DriftAllowance,
    volume::{TICK_MAX, Tracking, VolumeSettings, VolumeTerm, margin_of_drift},
};

use crate::{
    counts::Counts,
    world::{Applications, COMMIT, World},
};

/// The clients of the cell.
pub const CLIENTS: usize = 22_000;
/// The requests of the paper's cell in a second: 1,000 to 2,000.
pub const REQUESTS: f64 = 1_500.0;
/// The paper's share of KeepAlives among all requests.
pub const KEEP_ALIVES: f64 = 0.93;
/// Clients that the paper saw on one master.
pub const CLIENTS_MAX: usize = 90_000;

/// The shares of the paper's requests.
const READS: f64 = 0.034;
const NEW_SESSIONS: f64 = 0.010;
const WRITES: f64 = 0.000_68;

const FILES: u64 = 24_000;
const ABSENT: u64 = 32_000;
/// The cached files of a client, 230,000 of all clients together, and its cached absent names.
const FILES_OF_CLIENT: usize = 10;
const ABSENT_OF_CLIENT: usize = 1;
/// The pause between two reads of a visit.
const PAUSE: Duration = Duration::from_millis(100);

/// The files are made meanwhile.
const MAKING: Duration = Duration::from_secs(60);
/// All clients have opened a session after half of this time.
const WARM_UP: Duration = Duration::from_secs(600);
/// How long requests are counted.
pub const MEASURED: Duration = Duration::from_secs(60);

/// How clients renew, and for how long they get a lease on the volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Policy {
    /// When clients renew.
    pub renewal: RenewalMode,
    /// The term of the volume.
    pub term: VolumeTerm,
}

impl Policy {
    /// Chubby's terms: 12 s, and up to 60 s under load.
    const CHUBBY: VolumeTerm = VolumeTerm::Adaptive {
        least: Duration::from_secs(12),
        most: Duration::from_secs(60),
        renewals_per_second: VolumeTerm::RENEWALS_PER_SECOND,
    };

    /// Chubby's terms, renewed ahead and on demand.
    pub const ALL: [Self; 2] = [
        Self { renewal: RenewalMode::Ahead, term: Self::CHUBBY },
        Self { renewal: RenewalMode::OnDemand, term: Self::CHUBBY },
    ];

    fn settings(self) -> VolumeSettings {
        let drift = DriftAllowance::DEFAULT;
        let margin = margin_of_drift(self.term.longest(), TICK_MAX, drift).max(Duration::from_millis(100));
        VolumeSettings::new(self.term, ObjectTerm::Infinite, margin, Tracking::Objects, drift).expect("within bounds")
    }
}

/// What one policy costs.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// The policy.
    pub policy: Policy,
    /// The clients.
    pub clients: usize,
    /// The messages, by purpose.
    pub counts: Counts,
    /// For how long.
    pub measured: Duration,
    /// The cached entries of all clients in the end, valid or not.
    pub entries: u64,
    /// The processor time of the leader's rules while requests were counted.
    pub leader_time: Duration,
}

impl Run {
    /// Requests of all clients in a second. A consent is a reply, so it is none.
    pub fn requests(&self) -> f64 {
        let Counts { renewals, acquisitions, lists, validations, fetches, writes, openings, .. } = self.counts;
        let messages = renewals + acquisitions + lists + validations + fetches + writes + openings;
        messages as f64 / 2.0 / self.measured.as_secs_f64()
    }

    /// Heartbeats of all clients in a second.
    pub fn heartbeats(&self) -> f64 {
        self.counts.renewals as f64 / 2.0 / self.measured.as_secs_f64()
    }

    /// The share of heartbeats among all requests.
    pub fn share(&self) -> f64 {
        self.heartbeats() / self.requests()
    }
}

#[derive(Debug, Clone, Copy)]
enum Operation {
    Make(u64),
    /// A client opens a session.
    Open(usize),
    /// A client visits, unless it has another session since.
    Visit(usize, u32),
    /// The next read of a visit.
    Read(usize, u32, usize),
    Write,
    /// A client closes its session, and opens another.
    Replace,
}

struct Cell {
    rng: Rng,
    seed: u64,
    /// The number of each client's session; none if it is closed.
    sessions: Vec<Option<u32>>,
    opened: u32,
    /// Visits of a client in a second.
    visits: f64,
    new_sessions: f64,
    writes: f64,
}

fn file(number: u64) -> NodePath {
    NodePath::parse(&format!("/f{number}")).expect("a path")
}

fn absent(number: u64) -> NodePath {
    NodePath::parse(&format!("/n{number}")).expect("a path")
}

impl Cell {
    /// The entry that the client reads at this place in a visit, always the same. `None` after the
    /// last one.
    fn entry(&self, client: usize, place: usize) -> Option<Object> {
        let mut rng = Rng::new(self.seed ^ ((client as u64) << 8 | place as u64));
        if place < FILES_OF_CLIENT {
            return Some(Object::data(file(rng.below(FILES))));
        }
        (place < FILES_OF_CLIENT + ABSENT_OF_CLIENT).then(|| Object::data(absent(rng.below(ABSENT))))
    }
}

impl Applications for Cell {
    type Operation = Operation;

    fn act(&mut self, operation: Operation, world: &mut World<Operation>) {
        match operation {
            // The first client writes, so it stays.
            Operation::Make(number) => world.write(0, Write::put(file(number), "content".into())),
            Operation::Write => {
                world.write(0, Write::put(file(self.rng.below(FILES)), "content".into()));
                world.plan_poisson(&mut self.rng, self.writes, Operation::Write);
            }
            Operation::Open(client) => {
                world.reopen(client);
                self.opened += 1;
                self.sessions[client] = Some(self.opened);
                world.plan(Duration::from_secs(1), Operation::Visit(client, self.opened));
            }
            Operation::Visit(client, session) => {
                if self.sessions[client] == Some(session) {
                    self.act(Operation::Read(client, session, 0), world);
                    world.plan_poisson(&mut self.rng, self.visits, Operation::Visit(client, session));
                }
            }
            Operation::Read(client, session, place) => {
                if self.sessions[client] != Some(session) {
                    return;
                }
                match self.entry(client, place) {
                    Some(object) => {
                        world.read(client, object);
                        world.plan(PAUSE, Operation::Read(client, session, place + 1));
                    }
                    None => world.read(client, Object::data(file(self.rng.below(FILES)))),
                }
            }
            Operation::Replace => {
                let client = 1 + self.rng.index(self.sessions.len() - 1);
                if self.sessions[client].take().is_some() {
                    world.close(client);
                    world.plan(Duration::from_secs(10), Operation::Open(client));
                }
                world.plan_poisson(&mut self.rng, self.new_sessions, Operation::Replace);
            }
        }
    }
}

/// Runs the cell with this policy and this many clients. The rates grow with the clients.
///
/// # Panics
///
/// If something happens that is impossible without a fault.
pub fn run(seed: u64, policy: Policy, clients: usize, measured: Duration) -> Run {
    let cells = clients as f64 / CLIENTS as f64;
    let mut world = World::renewing(policy.settings(), clients, WARM_UP, COMMIT, policy.renewal);
    let mut cell = Cell {
        rng: Rng::new(seed),
        seed,
        sessions: vec![None; clients],
        opened: 0,
        visits: REQUESTS * READS / CLIENTS as f64,
        new_sessions: REQUESTS * NEW_SESSIONS * cells,
        writes: REQUESTS * WRITES * cells,
    };
    for client in 0..clients {
        let opening = Duration::from_micros(if client == 0 { 0 } else { cell.rng.between(60_000_000, 300_000_000) });
        world.plan(opening, Operation::Open(client));
    }
    for number in 0..FILES {
        world.plan(
            Duration::from_secs(2) + MAKING * u32::try_from(number).expect("few") / 25_000,
            Operation::Make(number),
        );
    }
    world.plan_poisson(&mut cell.rng, cell.writes, Operation::Write);
    world.plan(MAKING, Operation::Replace);
    world.run(&mut cell, WARM_UP + measured);
    Run { policy, clients, counts: world.counts(), measured, entries: world.copies(), leader_time: world.leader_time() }
}

/// The runs of all policies.
pub fn runs(seed: u64, measured: Duration) -> Vec<Run> {
    Policy::ALL.into_iter().map(|policy| run(seed, policy, CLIENTS, measured)).collect()
}

/// The runs as a table of Markdown, below what the paper says.
pub fn table(runs: &[Run]) -> String {
    let mut text = "| | clients | cached entries | requests/s | heartbeats/s | of all requests |\n".to_owned();
    text += &format!("| --- |{}\n", " ---: |".repeat(5));
    text += &format!(
        "| Chubby, the paper | {CLIENTS} | 262000 | {REQUESTS} | {:.0} | {:.0} % |\n",
        REQUESTS * KEEP_ALIVES,
        KEEP_ALIVES * 100.0
    );
    runs.iter().for_each(|run| text += &row(run));
    text
}

/// One run as a row of the table.
pub fn row(run: &Run) -> String {
    let renewal = match run.policy.renewal {
        RenewalMode::Ahead => "renewed ahead",
        RenewalMode::OnDemand => "renewed on demand",
        RenewalMode::Never => "never renewed",
    };
    format!(
        "| {renewal} | {} | {} | {:.0} | {:.1} | {:.1} % |\n",
        run.clients,
        run.entries,
        run.requests(),
        run.heartbeats(),
        run.share() * 100.0
    )
}

/// The cell with as many clients as the paper saw on one master.
pub fn many_sessions(seed: u64, measured: Duration) -> Run {
    run(seed, Policy::ALL[1], CLIENTS_MAX, measured)
}

/// The processor time of the leader's rules, in a sentence.
pub fn processor_time(run: &Run) -> String {
    format!(
        "{} clients, {:.0} requests/s, of them {:.1} heartbeats/s ({:.1} %): the leader's rules take {:.1} ms of processor time in a second\n",
        run.clients,
        run.requests(),
        run.heartbeats(),
        run.share() * 100.0,
        run.leader_time.as_secs_f64() * 1e3 / run.measured.as_secs_f64()
    )
}
