//! The profile of one seed's world: the terms of leases, the quality of clocks and networks, and
//! the rates of faults.
//!
//! *Swarm testing* (Groce, Zhang, Eide, Chen, Regehr 2012): each seed draws which faults its world
//! has, and how often, instead of giving every world some of each. One kind of fault can hide a bug
//! that shows where that kind is absent.

use std::time::Duration;

use leasehold_model::rng::Rng;
use leasehold_protocol::{
    holder::RenewalMode,
    lease_policy::{GrantPolicy, ObjectTerm, OnWrite},
    limits::Limits,
    object::{Object, ObjectKind},
    path::NodePath,
    state::State,
    time::DriftAllowance,
    volume::{Tracking, VolumeSettings, VolumeTerm},
};

use crate::{event::Host, names::named, swarm::Swarm};

named! {
    /// A kind of fault.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Fault {
        /// A client's process is paused, between two steps or in the middle of one.
        PauseClient = "pause-client",
        /// A server's process is paused.
        PauseServer = "pause-server",
        /// The leader is paused long enough for another to be elected. It resumes without knowing
        /// that.
        PauseLeader = "pause-leader",
        /// A connection ends. Its messages in flight are lost or late.
        BreakConnection = "break-connection",
        /// A connection loses everything, in one direction or both, and neither side notices.
        CutConnection = "cut-connection",
        /// A connection loses recalls, and nothing else.
        DeafenConnection = "deafen-connection",
        /// A client reaches no server for a while.
        IsolateClient = "isolate-client",
        /// A follower stands for election although there is a leader.
        Election = "election",
        /// The leader stands for election again. Proposals that its shell has not handed to Raft
        /// may follow later.
        Reelection = "reelection",
        /// The leader's shell gives its lessor up and starts a new one, in the same Raft term.
        GiveUpLessor = "give-up-lessor",
        /// Messages between one server and others are lost for a while, in one direction or both.
        CutServers = "cut-servers",
        /// Messages from the other servers to one server are late for a while.
        SlowServer = "slow-server",
        /// A server's disk stalls for a while, and so does the handing over of proposals.
        StallDisk = "stall-disk",
        /// A server's process ends. Unsynced entries are lost.
        RestartServer = "restart-server",
        /// Two servers of three are down for a while.
        LoseMajority = "lose-majority",
        /// A server's disk is lost.
        WipeServer = "wipe-server",
        /// A client's process ends without notice, and another starts.
        RestartClient = "restart-client",
        /// A client closes its session, and another starts.
        CloseClient = "close-client",
        /// A cache drops a copy, as if it lacked room.
        Evict = "evict",
        /// A machine's wall clock is set. Nothing may notice.
        StepWallClock = "step-wall-clock",
    }
}

/// Which lease policies the volumes of a world have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Policies {
    /// All leases are granted for a fixed term, and recalled.
    Usual,
    /// Any that recall.
    Recalling,
    /// Any. Writes of some volumes only wait. If such a write would change more than it did on
    /// arrival, the leader recalls. So it may wait a second time, and the writes behind it with
    /// it.
    Waiting,
}

/// One seed's world.
#[derive(Debug, Clone)]
pub(crate) struct Profile {
    /// The weight of each fault, in the order of [`Fault::ALL`].
    pub(crate) weights: [u64; Fault::ALL.len()],
    /// A world that lasts for several session terms, so that sessions can expire. Its events are
    /// rarer.
    pub(crate) is_long: bool,
    pub(crate) drift: DriftAllowance,
    /// The machine whose clock is beyond the allowance, if any. It explains staleness, and nothing
    /// else.
    pub(crate) rogue: Option<Host>,
    /// A client whose consents never arrive. Its other messages do.
    pub(crate) mute: Option<usize>,
    pub(crate) policies: Policies,
    /// When the clients renew their volume leases.
    pub(crate) renewal: RenewalMode,
    pub(crate) volume: VolumeSettings,
    /// Possible settings of a second volume, if there is one.
    pub(crate) inner: Vec<VolumeSettings>,
    pub(crate) limits: Limits,
    pub(crate) clients: usize,
    /// Faults and client load last until this true time.
    pub(crate) busy_until: u64,
    pub(crate) fault_every: u64,
    pub(crate) act_every: u64,
    pub(crate) delay: u64,
    /// How many messages in a thousand may overtake others on their connection.
    pub(crate) overtaking: u64,
    /// A server stands for election after this long to twice this long without a leader.
    pub(crate) election: u64,
    pub(crate) peer_delay: u64,
    /// Of a thousand messages between servers, how many are lost, arrive twice, are slow.
    pub(crate) peer_loss: u64,
    pub(crate) peer_twice: u64,
    pub(crate) peer_slow: u64,
    pub(crate) sync: u64,
    pub(crate) apply: u64,
    /// How long it takes a shell to learn that its Raft no longer leads.
    pub(crate) learn: u64,
    /// How many of a thousand application steps are writes.
    pub(crate) writes: u64,
    /// How many of a thousand writes are about volumes.
    pub(crate) volume_writes: u64,
    /// How many of a thousand steps and writes are about key leases. Three times as many of the
    /// puts attach their node to a lease.
    pub(crate) lease_writes: u64,
    pub(crate) objects: Vec<Object>,
    /// How many of a thousand application steps are about locks.
    pub(crate) locks: u64,
    /// How many of a thousand writes are transactions.
    pub(crate) transactions: u64,
    /// How many of a thousand application steps are about watches.
    pub(crate) watches: u64,
    /// How many changes the history keeps: more than one entry makes.
    pub(crate) history: usize,
    /// What makes the world wide, if it is.
    pub(crate) swarm: Option<Swarm>,
}

/// The longest delay of one message, commit or application, as a multiple of its mean; see
/// [`Rng::wait`].
pub(crate) const WAIT_MAX: u64 = 5;

pub(crate) const MS: u64 = 1_000;

pub(crate) const SECOND: u64 = 1_000 * MS;

impl Profile {
    pub(crate) fn random(rng: &mut Rng) -> Self {
        let is_long = rng.chance(25);
        let drift = DriftAllowance::from_ppm(*rng.pick(&[1_000, 10_000, 50_000])).expect("within bounds");
        let policies = match rng.below(10) {
            0..5 => Policies::Usual,
            5..8 => Policies::Recalling,
            _ => Policies::Waiting,
        };
        let volume = settings(drift, policies, rng);
        let volume = if rng.chance(100) { with_small_margin(&volume) } else { volume };
        let has_inner = rng.chance(400);
        let inner = if has_inner { (0..3).map(|_| settings(drift, policies, rng)).collect() } else { Vec::new() };
        let renewal = match rng.below(10) {
            0 => RenewalMode::Never,
            1 | 2 => RenewalMode::OnDemand,
            _ => RenewalMode::Ahead,
        };
        let limits = Limits {
            session_objects_max: if rng.chance(100) { 1 } else { Limits::default().session_objects_max },
            ..Limits::default()
        };
        let clients = 3;
        let rogue = rng.chance(80).then(|| match rng.index(clients + crate::raft::SERVERS) {
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
            policies,
            renewal,
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
            locks: *rng.pick(&[0, 0, 60, 250]),
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

    /// The longest term of any volume.
    pub(crate) fn term_max(&self) -> Duration {
        self.all_settings().map(VolumeSettings::longest_term).max().unwrap_or_default()
    }

    pub(crate) fn margin_max(&self) -> Duration {
        self.all_settings().map(|settings| settings.margin_with(self.drift)).max().unwrap_or_default()
    }

    /// The longest time from appending an entry to its commit, while a quorum lives and nothing is
    /// slow or lost.
    pub(crate) fn commit_max(&self) -> u64 {
        (self.peer_delay * 2 + self.sync) * WAIT_MAX + 20 * MS
    }
}

/// Draws which faults exist, and how often they occur.
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

pub(crate) fn settings(drift: DriftAllowance, policies: Policies, rng: &mut Rng) -> VolumeSettings {
    let term = Duration::from_millis(*rng.pick(&[500, 800, 1200]));
    let object_term = match rng.below(4) {
        0 => term,
        1 => term * 13 / 10,
        2 => term * 2,
        _ => term * 6,
    };
    // Half of the time, the least margin that is accepted.
    let least = drift.over(term + term / 10) * 2 + Duration::from_micros(1);
    let margin = least + Duration::from_millis(*rng.pick(&[0, 0, 5, 20]));
    let tracking = if rng.chance(120) { Tracking::Covering } else { Tracking::Objects };
    let settings = VolumeSettings::new(term, object_term, margin, tracking, drift).expect("within bounds");
    policy(settings, policies, rng)
}

/// The settings with a margin that does not cover the drift: the drift allowance was raised after
/// the volume got its margin. No server accepts such settings for a volume.
fn with_small_margin(settings: &VolumeSettings) -> VolumeSettings {
    with_term(settings, settings.term(), Duration::from_micros(1))
}

/// The settings with this volume term and margin.
pub(crate) fn with_term(settings: &VolumeSettings, term: VolumeTerm, margin: Duration) -> VolumeSettings {
    let no_drift = DriftAllowance::from_ppm(0).expect("within bounds");
    VolumeSettings::new(term, ObjectTerm::Zero, margin, settings.tracking(), no_drift)
        .and_then(|changed| changed.with_policy(settings.object_term(), settings.on_write(), settings.grants()))
        .expect("within bounds")
        .with_quota(settings.quota())
        .with_lease_limit(settings.lease_limit())
}

/// The settings with a lease policy.
pub(crate) fn policy(settings: VolumeSettings, policies: Policies, rng: &mut Rng) -> VolumeSettings {
    if policies == Policies::Usual {
        return settings;
    }
    let waits = policies == Policies::Waiting && rng.chance(500);
    let on_write = if waits { OnWrite::Wait } else { OnWrite::Recall };
    let least = VolumeSettings::TERM_MIN;
    // Without recalls, no object lease may outlast the shortest volume term.
    let most = if on_write == OnWrite::Recall { settings.longest_term() * 6 } else { settings.shortest_term() };
    let object_term = match rng.below(10) {
        0 => ObjectTerm::Zero,
        1 if on_write == OnWrite::Recall => ObjectTerm::Infinite,
        2 | 3 => ObjectTerm::Adaptive { percent: *rng.pick(&[1, 20, 100]), least, most },
        4 | 5 => ObjectTerm::Fixed(least),
        _ => match settings.object_term() {
            ObjectTerm::Fixed(usual) => ObjectTerm::Fixed(usual.clamp(least, most)),
            _ => ObjectTerm::Fixed(most),
        },
    };
    let grants = match rng.below(10) {
        0 => GrantPolicy::OnRequest,
        1 | 2 => GrantPolicy::Returning { first: VolumeSettings::TERM_MIN },
        _ => GrantPolicy::All,
    };
    settings.with_policy(object_term, on_write, grants).expect("within bounds")
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
