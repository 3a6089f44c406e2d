//! What a seed's world is like: how long leases last, how bad clocks and networks are, what goes wrong how often.

use std::time::Duration;

use leasehold_protocol::{
    limits::Limits,
    object::{Kind, Object},
    path::Path,
    time::DriftAllowance,
    volume::{Tracking, VolumeSettings},
};

use crate::rng::Rng;

/// Something that goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    PauseClient,
    PauseServer,
    /// The leader is paused, another is elected meanwhile, and the first wakes up not knowing.
    PauseLeader,
    BreakConnection,
    /// A connection loses everything and nobody is told.
    CutConnection,
    /// A connection loses recalls, and nothing else.
    DeafenConnection,
    Election,
    /// The leader is elected again, at once or after another: what it had not appended may follow later.
    Reelection,
    RestartServer,
    RestartClient,
    CloseClient,
    Evict,
}

const FAULTS: [Fault; 12] = [
    Fault::PauseClient,
    Fault::PauseServer,
    Fault::PauseLeader,
    Fault::BreakConnection,
    Fault::CutConnection,
    Fault::DeafenConnection,
    Fault::Election,
    Fault::Reelection,
    Fault::RestartServer,
    Fault::RestartClient,
    Fault::CloseClient,
    Fault::Evict,
];

/// The faults' weights, by kind of world.
const WEIGHTS: [[u64; FAULTS.len()]; 6] = [
    // A bit of everything.
    [4, 2, 2, 4, 3, 2, 3, 2, 1, 1, 1, 6],
    // Clients that go away and come back.
    [8, 0, 0, 4, 8, 1, 1, 0, 0, 1, 0, 2],
    // Leaders that come and go.
    [1, 1, 2, 1, 1, 0, 8, 6, 2, 0, 0, 1],
    // Leaders that are paused and do not know that they were replaced.
    [1, 2, 12, 0, 1, 0, 2, 0, 0, 0, 0, 1],
    // Nothing but the network.
    [0, 0, 0, 8, 4, 4, 0, 0, 0, 0, 0, 4],
    // The same leader again and again.
    [1, 0, 0, 1, 1, 0, 1, 10, 0, 0, 0, 1],
];

/// One seed's world.
#[derive(Debug, Clone)]
pub(crate) struct Profile {
    pub(crate) kind: usize,
    pub(crate) drift: DriftAllowance,
    pub(crate) volume: VolumeSettings,
    /// Of the second volume, where there is one.
    pub(crate) inner: Option<VolumeSettings>,
    pub(crate) limits: Limits,
    pub(crate) servers: usize,
    pub(crate) clients: usize,
    /// Faults happen and clients are busy until then, in true time.
    pub(crate) busy_until: u64,
    pub(crate) fault_every: u64,
    pub(crate) act_every: u64,
    pub(crate) delay: u64,
    /// How many messages in a thousand are not kept in order on their connection.
    pub(crate) overtaking: u64,
    pub(crate) commit: u64,
    pub(crate) apply: u64,
    /// How many of a thousand application steps are writes.
    pub(crate) writes: u64,
    /// How many of a thousand writes are about volumes.
    pub(crate) volume_writes: u64,
    /// Until a deposed leader learns of it.
    pub(crate) learn: u64,
    pub(crate) objects: Vec<Object>,
}

/// The longest that one message, commit or application is held up by itself, as a multiple of its mean; see [`Rng::wait`].
pub(crate) const WAIT_MOST: u64 = 5;

pub(crate) const MS: u64 = 1_000;

impl Profile {
    pub(crate) fn random(seed: u64, rng: &mut Rng) -> Self {
        let kind = usize::try_from(seed % WEIGHTS.len() as u64).expect("small");
        let drift = DriftAllowance::from_ppm(*rng.pick(&[1_000, 10_000, 50_000])).expect("within bounds");
        let volume = settings(drift, rng);
        let has_inner = rng.chance(300);
        let inner = has_inner.then(|| settings(drift, rng));
        let limits = Limits {
            session_objects_max: if rng.chance(100) { 1 } else { Limits::default().session_objects_max },
            ..Limits::default()
        };
        let objects = objects(has_inner, rng);
        Self {
            kind,
            drift,
            volume,
            inner,
            limits,
            servers: if rng.chance(250) { 3 } else { 2 },
            clients: 3,
            busy_until: rng.between(8, 16) * 1000 * MS,
            fault_every: *rng.pick(&[200 * MS, 500 * MS, 1500 * MS]),
            act_every: *rng.pick(&[15 * MS, 40 * MS, 120 * MS]),
            delay: *rng.pick(&[2 * MS, 10 * MS, 40 * MS]),
            overtaking: *rng.pick(&[0, 50, 200]),
            commit: *rng.pick(&[2 * MS, 10 * MS]),
            apply: *rng.pick(&[MS / 5, 5 * MS]),
            writes: *rng.pick(&[50, 200, 400]),
            volume_writes: if has_inner { *rng.pick(&[0, 30, 150]) } else { 0 },
            learn: *rng.pick(&[20 * MS, 300 * MS, 1500 * MS]),
            objects,
        }
    }

    pub(crate) fn fault(&self, rng: &mut Rng) -> Fault {
        FAULTS[rng.weighted(&WEIGHTS[self.kind])]
    }

    /// The longest volume term that any volume has.
    pub(crate) fn term_max(&self) -> Duration {
        self.inner.map_or(self.volume.term(), |inner| inner.term().max(self.volume.term()))
    }

    pub(crate) fn margin_max(&self) -> Duration {
        self.inner.map_or(self.volume.skew_margin(), |inner| inner.skew_margin().max(self.volume.skew_margin()))
    }
}

fn settings(drift: DriftAllowance, rng: &mut Rng) -> VolumeSettings {
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
    let path = |text: &str| Path::parse(text).expect("a path");
    let mut all = vec![
        Object::data(path("/a")),
        Object::children(path("/")),
        Object::data(path("/a/x")),
        Object::children(path("/a")),
    ];
    if has_inner {
        all.extend([
            Object::data(path("/v")),
            Object::data(path("/v/y")),
            Object { path: path("/v"), kind: Kind::Children },
        ]);
    }
    let keep = usize::try_from(rng.between(2, 5)).expect("small");
    while all.len() > keep {
        let gone = rng.index(all.len());
        all.remove(gone);
    }
    all
}
