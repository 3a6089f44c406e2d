//! What a seed's world is like: how long leases last, how bad clocks and networks are, what goes
//! wrong how often.
//!
//! *Swarm testing* (Groce, Zhang, Eide, Chen, Regehr 2012): each seed draws which faults exist in
//! its world and how often they are, instead of all worlds having a bit of everything; what one
//! kind of fault would hide is seen where that one is missing.

use std::time::Duration;

use leasehold_protocol::{
    limits::Limits,
    object::{Object, ObjectKind},
    path::NodePath,
    state::State,
    time::DriftAllowance,
    volume::{Tracking, VolumeSettings},
};

use crate::{event::Host, rng::Rng, swarm::Swarm};

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A client's process stands still, between two steps or in the middle of one.
    PauseClient,
    /// A server's process stands still.
    PauseServer,
    /// The leader stands still for long enough for another to be elected, and wakes up not knowing.
    PauseLeader,
    /// A connection ends. What was on it is lost or late.
    BreakConnection,
    /// A connection loses everything, in one direction or both, and nobody is told.
    CutConnection,
    /// A connection loses recalls, and nothing else.
    DeafenConnection,
    /// A client reaches nobody for a while.
    IsolateClient,
    /// A server that does not lead stands for election though there is a leader.
    Election,
    /// The leader stands for election again: what its shell had not handed to Raft may follow
    /// later.
    Reelection,
    /// The leader's shell gives its lessor up and begins anew, in the same term.
    GiveUpLessor,
    /// What one server sends to another is lost for a while, in one direction or both.
    CutServers,
    /// What is sent to a server by the others is late for a while.
    SlowServer,
    /// A server's disk, and the handing over of proposals, are held up for a while.
    StallDisk,
    /// A server's process ends. What it had not synced is lost.
    RestartServer,
    /// Two servers of three are down for a while.
    LoseMajority,
    /// A server's disk is lost.
    WipeServer,
    /// A client's process ends without a word, and another begins.
    RestartClient,
    /// A client leaves, and another comes.
    CloseClient,
    /// A cache drops a copy for lack of room.
    Evict,
    /// A machine's wall clock is set. Nothing may notice.
    StepWallClock,
}

impl Fault {
    /// All of them.
    pub const ALL: [Fault; 20] = [
        Fault::PauseClient,
        Fault::PauseServer,
        Fault::PauseLeader,
        Fault::BreakConnection,
        Fault::CutConnection,
        Fault::DeafenConnection,
        Fault::IsolateClient,
        Fault::Election,
        Fault::Reelection,
        Fault::GiveUpLessor,
        Fault::CutServers,
        Fault::SlowServer,
        Fault::StallDisk,
        Fault::RestartServer,
        Fault::LoseMajority,
        Fault::WipeServer,
        Fault::RestartClient,
        Fault::CloseClient,
        Fault::Evict,
        Fault::StepWallClock,
    ];

    /// The fault of a name.
    pub fn of_name(name: &str) -> Option<Fault> {
        Self::ALL.into_iter().find(|fault| fault.name() == name)
    }

    /// What it is called in tallies and options.
    pub fn name(self) -> &'static str {
        match self {
            Self::PauseClient => "pause-client",
            Self::PauseServer => "pause-server",
            Self::PauseLeader => "pause-leader",
            Self::BreakConnection => "break-connection",
            Self::CutConnection => "cut-connection",
            Self::DeafenConnection => "deafen-connection",
            Self::IsolateClient => "isolate-client",
            Self::Election => "election",
            Self::Reelection => "reelection",
            Self::GiveUpLessor => "give-up-lessor",
            Self::CutServers => "cut-servers",
            Self::SlowServer => "slow-server",
            Self::StallDisk => "stall-disk",
            Self::RestartServer => "restart-server",
            Self::LoseMajority => "lose-majority",
            Self::WipeServer => "wipe-server",
            Self::RestartClient => "restart-client",
            Self::CloseClient => "close-client",
            Self::Evict => "evict",
            Self::StepWallClock => "step-wall-clock",
        }
    }
}

/// One seed's world.
#[derive(Debug, Clone)]
pub(crate) struct Profile {
    /// How often each fault is, in the order of [`Fault::ALL`].
    pub(crate) weights: [u64; Fault::ALL.len()],
    /// Sessions can expire in it: it lasts for several of their terms, and less happens in a
    /// second.
    pub(crate) is_long: bool,
    pub(crate) drift: DriftAllowance,
    /// A machine whose clock is worse than the allowance. What is stale then is put down to it;
    /// everything else must hold.
    pub(crate) rogue: Option<Host>,
    /// A client whose consents never arrive, while everything else that it says does.
    pub(crate) mute: Option<usize>,
    pub(crate) volume: VolumeSettings,
    /// What a second volume may be set to, where there is one.
    pub(crate) inner: Vec<VolumeSettings>,
    pub(crate) limits: Limits,
    pub(crate) clients: usize,
    /// Faults happen and clients are busy until then, in true time.
    pub(crate) busy_until: u64,
    pub(crate) fault_every: u64,
    pub(crate) act_every: u64,
    pub(crate) delay: u64,
    /// How many messages in a thousand are not kept in order on their connection.
    pub(crate) overtaking: u64,
    /// An election is held after this to twice this without a leader.
    pub(crate) election: u64,
    pub(crate) peer_delay: u64,
    /// Of a thousand messages between servers, so many are lost, come twice, are slow.
    pub(crate) peer_loss: u64,
    pub(crate) peer_twice: u64,
    pub(crate) peer_slow: u64,
    pub(crate) sync: u64,
    pub(crate) apply: u64,
    /// Until a shell hears that its Raft leads no more.
    pub(crate) learn: u64,
    /// How many of a thousand application steps are writes.
    pub(crate) writes: u64,
    /// How many of a thousand writes are about volumes.
    pub(crate) volume_writes: u64,
    /// How many of a thousand are about key leases; of the puts, three times as many attach their
    /// node to a lease.
    pub(crate) lease_writes: u64,
    pub(crate) objects: Vec<Object>,
    /// How many of a thousand application steps are about holds.
    pub(crate) holds: u64,
    /// How many of a thousand writes are transactions.
    pub(crate) transactions: u64,
    /// How many of a thousand application steps are about watches.
    pub(crate) watches: u64,
    /// How many changes the history keeps: more than one entry makes.
    pub(crate) history: usize,
    /// What there is more of, if there is.
    pub(crate) swarm: Option<Swarm>,
}

/// The longest that one message, commit or application is held up by itself, as a multiple of its
/// mean; see [`Rng::wait`].
pub(crate) const WAIT_MOST: u64 = 5;

pub(crate) const MS: u64 = 1_000;

pub(crate) const SECOND: u64 = 1_000 * MS;

impl Profile {
    pub(crate) fn random(rng: &mut Rng) -> Self {
        let is_long = rng.chance(25);
        let drift = DriftAllowance::from_ppm(*rng.pick(&[1_000, 10_000, 50_000])).expect("within bounds");
        let volume = settings(drift, rng);
        let has_inner = rng.chance(400);
        let inner = if has_inner { (0..3).map(|_| settings(drift, rng)).collect() } else { Vec::new() };
        let limits = Limits {
            session_objects_max: if rng.chance(100) { 1 } else { Limits::default().session_objects_max },
            ..Limits::default()
        };
        let clients = 3;
        let rogue = rng.chance(40).then(|| match rng.index(clients + crate::raft::SERVERS) {
            client if client < clients => Host::Client(client),
            server => Host::Server(server - clients),
        });
        let objects = objects(has_inner, rng);
        Self {
            weights: weights(rng),
            is_long,
            drift,
            rogue,
            mute: rng.chance(60).then(|| rng.index(clients)),
            volume,
            inner,
            limits,
            clients,
            busy_until: if is_long { rng.between(1300, 1500) * SECOND } else { rng.between(8, 16) * SECOND },
            fault_every: if is_long { 40 * SECOND } else { *rng.pick(&[200 * MS, 500 * MS, 1500 * MS]) },
            act_every: if is_long { 5 * SECOND } else { *rng.pick(&[15 * MS, 40 * MS, 120 * MS]) },
            delay: *rng.pick(&[2 * MS, 10 * MS, 40 * MS]),
            overtaking: *rng.pick(&[0, 50, 200]),
            election: if is_long { SECOND } else { *rng.pick(&[100 * MS, 200 * MS, 400 * MS]) },
            peer_delay: *rng.pick(&[MS, 4 * MS]),
            peer_loss: *rng.pick(&[0, 0, 5, 30]),
            peer_twice: *rng.pick(&[0, 20]),
            peer_slow: *rng.pick(&[0, 10, 60]),
            sync: *rng.pick(&[MS, 6 * MS]),
            apply: *rng.pick(&[MS / 5, 5 * MS]),
            learn: *rng.pick(&[2 * MS, 50 * MS, 400 * MS]),
            writes: *rng.pick(&[50, 200, 400]),
            volume_writes: if has_inner { *rng.pick(&[0, 30, 150]) } else { 0 },
            lease_writes: *rng.pick(&[0, 0, 40, 150]),
            objects,
            holds: *rng.pick(&[0, 0, 60, 250]),
            transactions: *rng.pick(&[0, 100, 400]),
            watches: *rng.pick(&[0, 60, 250]),
            history: *rng.pick(&[80, State::HISTORY_MAX]),
            swarm: None,
        }
    }

    pub(crate) fn fault(&self, rng: &mut Rng) -> Fault {
        Fault::ALL[rng.weighted(&self.weights)]
    }

    fn all_settings(&self) -> impl Iterator<Item = &VolumeSettings> {
        self.inner.iter().chain([&self.volume])
    }

    /// The longest volume term that any volume has.
    pub(crate) fn term_max(&self) -> Duration {
        self.all_settings().map(VolumeSettings::term).max().unwrap_or_default()
    }

    pub(crate) fn margin_max(&self) -> Duration {
        self.all_settings().map(VolumeSettings::skew_margin).max().unwrap_or_default()
    }

    /// The longest that an entry takes from being appended to being committed, while a quorum lives
    /// and nothing is slow or lost.
    pub(crate) fn commit_most(&self) -> u64 {
        (self.peer_delay * 2 + self.sync) * WAIT_MOST + 20 * MS
    }
}

/// Which faults exist, and how often they are.
fn weights(rng: &mut Rng) -> [u64; Fault::ALL.len()] {
    let mut weights = [0; Fault::ALL.len()];
    for weight in &mut weights {
        if rng.chance(350) {
            *weight = 1 << rng.below(5);
        }
    }
    weights[rng.index(Fault::ALL.len())] += 4;
    weights
}

pub(crate) fn settings(drift: DriftAllowance, rng: &mut Rng) -> VolumeSettings {
    let term = Duration::from_millis(*rng.pick(&[500, 800, 1200]));
    let object_term = match rng.below(4) {
        0 => term,
        1 => term * 13 / 10,
        2 => term * 2,
        _ => term * 6,
    };
    // The least margin that is accepted, half of the time.
    let least = drift.over(term + term / 10) * 2 + Duration::from_micros(1);
    let margin = least + Duration::from_millis(*rng.pick(&[0, 0, 5, 20]));
    let tracking = if rng.chance(120) { Tracking::Covering } else { Tracking::Objects };
    VolumeSettings::new(term, object_term, margin, tracking, drift).expect("within bounds")
}

fn objects(has_inner: bool, rng: &mut Rng) -> Vec<Object> {
    let path = |text: &str| NodePath::parse(text).expect("a path");
    let mut all = vec![
        Object::data(path("/a")),
        Object::children(path("/")),
        Object::data(path("/a/x")),
        Object::children(path("/a")),
        Object::data(path("/b")),
    ];
    if has_inner {
        all.extend([
            Object::data(path("/v")),
            Object::data(path("/v/y")),
            Object { path: path("/v"), kind: ObjectKind::Children },
        ]);
    }
    let keep = usize::try_from(rng.between(2, 5)).expect("small");
    while all.len() > keep {
        let gone = rng.index(all.len());
        all.remove(gone);
    }
    all
}
