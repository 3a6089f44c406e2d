//! Wide worlds: their applications do more than read and write a few nodes, and leaders have lower
//! limits.
//!
//! *Swarm testing*, as in [`profile`](crate::profile): each wide world draws its operations, its
//! number of clients, and which bounds of the lessor are low. A few clients can reach a low bound.
//! The bound of a real server would need as many clients as it says. The draws use their own random
//! stream, so that the other worlds stay the same.

use std::time::Duration;

use leasehold_model::rng::Rng;
use leasehold_protocol::{holder, id::LeaseId, lessor::LessorBounds, object::Object, path::NodePath};

use crate::{
    churn::MANY,
    event::Host,
    locks::NODES,
    profile::{MS, Profile, SECOND},
};

/// An operation of an application.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Grants a key lease under a name that others use too.
    GrantNamed,
    /// Grants a key lease under a name that the servers choose.
    GrantAutomatic,
    Revoke,
    Keep,
    LetGo,
    /// Attaches a node to a lease.
    Attach,
    /// Puts a node without a lease, or removes it.
    Detach,
    /// Attaches so many nodes to one lease that they are recalled as a subtree.
    AttachMany,
    /// A transaction with many comparisons and little content.
    CompareMany,
    /// Makes, changes or removes one of several nested volumes, or changes the root's settings.
    Volume,
    Lock,
    /// Puts the client's own registration node under the session's lease.
    Register,
    Read,
    Watch,
    List,
    Inspect,
    /// Opens a session that no client will use.
    OpenSession,
    /// Reads all nodes that applications lock.
    ReadHeld,
    /// Sends a request with a list that is too long.
    AskTooMuch,
    /// Drops all copies, as if the cache lacked room.
    EvictAll,
}

impl Operation {
    pub(crate) const ALL: [Operation; 20] = [
        Operation::GrantNamed,
        Operation::GrantAutomatic,
        Operation::Revoke,
        Operation::Keep,
        Operation::LetGo,
        Operation::Attach,
        Operation::Detach,
        Operation::AttachMany,
        Operation::CompareMany,
        Operation::Volume,
        Operation::Lock,
        Operation::Register,
        Operation::Read,
        Operation::Watch,
        Operation::List,
        Operation::Inspect,
        Operation::OpenSession,
        Operation::ReadHeld,
        Operation::AskTooMuch,
        Operation::EvictAll,
    ];
}

/// The parameters of one wide world.
#[derive(Debug, Clone)]
pub(crate) struct Swarm {
    /// How many of a thousand application steps are these operations.
    pub(crate) share: u64,
    /// The weight of each operation, in the order of [`Operation::ALL`].
    pub(crate) weights: [u64; Operation::ALL.len()],
    /// The most operations of one step.
    pub(crate) burst: u64,
    /// The most reads and writes that one client has open at once.
    pub(crate) open_max: usize,
    /// The most watches of one client.
    pub(crate) watches_max: usize,
    /// The names of key leases. Some are names that the servers would choose.
    pub(crate) names: Vec<LeaseId>,
    /// The shortest and the longest TTL of a key lease, in microseconds.
    pub(crate) ttl: (u64, u64),
    /// How many of a thousand granted leases their clients renew from then on.
    pub(crate) keeps: u64,
    /// The nodes that are attached and detached. Their histories are not judged.
    pub(crate) leaves: Vec<NodePath>,
    /// The volumes that are made and removed.
    pub(crate) volumes: Vec<NodePath>,
    /// The longest extra delay of an epoch's first entry on its way to Raft.
    pub(crate) first_late: u64,
    /// The mean time between cuts of a leader from the other servers, but from no client; 0 for
    /// never.
    pub(crate) alone_every: u64,
    pub(crate) bounds: LessorBounds,
    pub(crate) client_bounds: holder::HolderBounds,
    /// How many of a thousand of these steps cancel several writes at once instead.
    pub(crate) cancels: u64,
    /// How many of a thousand messages between clients and servers arrive twice.
    pub(crate) twice: u64,
    /// The most bytes that the shell proposes at once. As at a real server, about four times the
    /// lessor's own limit.
    pub(crate) proposal_max_bytes: usize,
}

impl Swarm {
    /// Draws the parameters of a wide world.
    pub(crate) fn random(rng: &mut Rng) -> Self {
        let mut weights = [0; Operation::ALL.len()];
        for weight in &mut weights {
            if rng.chance(500) {
                *weight = 1 << rng.below(5);
            }
        }
        // Most of this is about key leases, and each of these operations needs the others.
        for operation in [Operation::GrantNamed, Operation::Revoke, Operation::Attach, Operation::Read] {
            weights[operation as usize] += 2 + rng.below(6);
        }
        let path = |text: &str| NodePath::parse(text).expect("a path");
        let mut leaves: Vec<NodePath> = ["/k/a", "/k/b", "/c", "/a/y", "/v/k", "/v/w/k"].map(path).to_vec();
        leaves.truncate(1 + rng.index(leaves.len()));
        let volumes = ["/", "/v", "/v/w", "/k", "/v/w/z"].map(path).to_vec();
        let names = *rng.pick(&[1, 2, 6]);
        let first = *rng.pick(&[3, 12, 60]);
        let bounds = bounds(rng);
        Self {
            share: *rng.pick(&[300, 600, 900]),
            weights,
            burst: *rng.pick(&[1, 1, 3, 12]),
            open_max: *rng.pick(&[12, 40]),
            watches_max: *rng.pick(&[4, 10]),
            names: (0..names).map(|name| LeaseId(first + name)).collect(),
            ttl: *rng.pick(&[(200 * MS, 800 * MS), (400 * MS, 2 * SECOND), (SECOND, 6 * SECOND)]),
            keeps: *rng.pick(&[0, 300, 900]),
            leaves,
            volumes,
            first_late: *rng.pick(&[0, 0, 50 * MS, 2500 * MS]),
            alone_every: *rng.pick(&[0, 0, 2 * SECOND]),
            bounds,
            client_bounds: client_bounds(rng),
            cancels: 0,
            twice: 0,
            proposal_max_bytes: 4 * bounds.proposal_bytes_max + COMMAND_MAX_BYTES,
        }
    }

    /// Whether leaders have a low limit on leases.
    pub(crate) fn has_few_leases(&self) -> bool {
        self.bounds.renewals_per_second_max < LessorBounds::DEFAULT.renewals_per_second_max
    }

    /// A random TTL of a key lease.
    pub(crate) fn ttl(&self, rng: &mut Rng) -> Duration {
        Duration::from_micros(rng.between(self.ttl.0, self.ttl.1))
    }
}

/// No single command of these applications has more encoded bytes.
const COMMAND_MAX_BYTES: usize = 5 << 10;

/// How many renewals per second fit into ticks of this size. Ticks follow one another with each
/// commit if necessary. A server never grants more leases than that (S10b), so these bounds belong
/// together (seed 1845). A server with a nearly doubled clock rate has half as many ticks in one of
/// its seconds (seed 20656).
fn renewals_in_time(bounds: &LessorBounds, rogue: Option<Host>) -> usize {
    const RENEWAL_BYTES: usize = 32;
    let ticks_per_second = if matches!(rogue, Some(Host::Server(_))) { 20 } else { 40 };
    (bounds.tick_bytes_max / RENEWAL_BYTES).max(1) * ticks_per_second
}

/// Bounds of the lessor, some of them low.
fn bounds(rng: &mut Rng) -> LessorBounds {
    let mut bounds = LessorBounds::DEFAULT;
    let mut low = |bound: &mut usize, values: &[usize]| {
        if rng.chance(300) {
            *bound = *rng.pick(values);
        }
    };
    low(&mut bounds.writes_max, &[4, 12]);
    // About two writes, or ten: each counts for 1 KiB or more.
    low(&mut bounds.writes_bytes_max, &[2 << 10, 12 << 10]);
    low(&mut bounds.write_requesters_max, &[1, 2]);
    low(&mut bounds.content_bytes_max, &[12, 64]);
    low(&mut bounds.reads_max, &[2, 6]);
    low(&mut bounds.blocked_reads_max, &[1]);
    low(&mut bounds.tick_bytes_max, &[1, 64, 320]);
    low(&mut bounds.list_bytes_max, &[1, 200]);
    low(&mut bounds.watches_max, &[2, 8]);
    low(&mut bounds.session_watches_max, &[1, 3]);
    low(&mut bounds.watch_scan_max, &[1, 5]);
    low(&mut bounds.watch_events_per_step, &[1, 3]);
    low(&mut bounds.sweep_max, &[1, 4]);
    low(&mut bounds.expiries_waiting_max, &[1, 3]);
    low(&mut bounds.expiry_scan_max, &[1, 3]);
    low(&mut bounds.purge_leases_max, &[1, 2]);
    low(&mut bounds.purges_max, &[1, 2]);
    low(&mut bounds.purge_sets_max, &[1, 3]);
    low(&mut bounds.rows_max, &[1, 3]);
    low(&mut bounds.scan_max, &[3, 16]);
    low(&mut bounds.departed_max, &[1, 4]);
    // Few requests reach these bounds.
    if rng.chance(700) {
        bounds.revival_bytes_max = *rng.pick(&[1, 1, 20]);
    }
    if rng.chance(600) {
        bounds.inspection_bytes_max = *rng.pick(&[1, 10]);
    }
    // In a real server's proportion, so that even commands without content fit the shell's limit.
    if rng.chance(400) {
        let commands = *rng.pick(&[2, 8, 24]);
        bounds.proposal_commands_max = commands;
        bounds.proposal_commands_full = commands.div_ceil(2);
        bounds.proposal_bytes_max = commands * 512;
    }
    bounds
}

/// More low bounds. They are drawn last, so that everything else in a world stays as it was.
fn more_bounds(bounds: &mut LessorBounds, rng: &mut Rng) {
    let mut low = |bound: &mut usize, values: &[usize]| {
        if rng.chance(200) {
            *bound = *rng.pick(values);
        }
    };
    low(&mut bounds.requests_waiting_max, &[1, 2]);
    low(&mut bounds.object_leases_max, &[2, 6]);
    // The largest transaction fits, once other results are forgotten (seed 1401).
    let most = usize::try_from(MANY).expect("small");
    low(&mut bounds.results_max, &[most, 2 * most]);
    low(&mut bounds.reads_per_step, &[1, 2]);
    low(&mut bounds.recalls_again_max, &[1, 2]);
    low(&mut bounds.renewals_waiting_max, &[0, 2]);
    low(&mut bounds.renewals_answered_per_step, &[1, 2]);
    low(&mut bounds.recall_sets_max, &[1, 2]);
    low(&mut bounds.claims_max, &[1, 4]);
    // Few worlds reach these bounds, so most have them low.
    if rng.chance(700) {
        bounds.blocked_reads_max = 1;
    }
    if rng.chance(500) {
        bounds.purges_max = 1;
    }
    let mut low = |bound: &mut usize, values: &[usize]| {
        if rng.chance(200) {
            *bound = *rng.pick(values);
        }
    };
    low(&mut bounds.watch_bytes_in_flight_max, &[1, 1000]);
    low(&mut bounds.session_watch_bytes_in_flight_max, &[1, 500]);
}

/// Bounds of clients, some of them low.
fn client_bounds(rng: &mut Rng) -> holder::HolderBounds {
    let mut bounds = holder::HolderBounds::DEFAULT;
    let mut low = |bound: &mut usize, values: &[usize]| {
        if rng.chance(250) {
            *bound = *rng.pick(values);
        }
    };
    low(&mut bounds.recalls_remembered_max, &[1, 4]);
    low(&mut bounds.volumes_max, &[1, 2]);
    low(&mut bounds.returns_waiting_max, &[1, 3]);
    if rng.chance(250) {
        (bounds.writes_out_max, bounds.flushes_out_max) = *rng.pick(&[(4, 2), (12, 2)]);
    }
    if rng.chance(250) {
        bounds.read_waits_max = 1;
    }
    bounds
}

impl Profile {
    /// Makes the world wide, or leaves it as it is.
    pub(crate) fn widen(&mut self, rng: &mut Rng) {
        if self.is_long || !rng.chance(500) {
            return;
        }
        let mut swarm = Swarm::random(rng);
        self.clients = usize::try_from(rng.between(1, 8)).expect("small");
        if rng.chance(300) {
            // Room for all clients' sessions and volume leases, and for a few more leases.
            swarm.bounds.renewals_per_second_max = self.clients * 4 + 3;
        }
        swarm.bounds.renewals_per_second_max =
            swarm.bounds.renewals_per_second_max.min(renewals_in_time(&swarm.bounds, self.rogue));
        self.mute = self.mute.filter(|client| *client < self.clients);
        self.busy_until = rng.between(3, 8) * SECOND;
        self.act_every = *rng.pick(&[4 * MS, 15 * MS, 40 * MS, 120 * MS]);
        self.leases_or_none(rng);
        // One entry makes more changes in a wide world. The history must have room for them.
        self.history = self.history.max(800);
        if self.inner.is_empty() && swarm.weights[Operation::Volume as usize] > 0 {
            self.inner = (0..2).map(|_| crate::profile::settings(self.drift, self.policies, rng)).collect();
        }
        self.objects.extend(swarm.leaves.iter().take(3).cloned().map(Object::data));
        let lists = swarm.leaves.iter().take(2).filter_map(NodePath::parent).map(Object::children);
        let new: Vec<Object> = lists.filter(|list| !self.objects.contains(list)).collect();
        self.objects.extend(new);
        if swarm.weights[Operation::ReadHeld as usize] > 0 {
            self.objects.extend(NODES.map(|path| Object::data(NodePath::parse(path).expect("a path"))));
            self.locks = self.locks.max(250);
        }
        self.objects.sort();
        self.objects.dedup();
        swarm.twice = *rng.pick(&[0, 0, 20, 200]);
        more_bounds(&mut swarm.bounds, rng);
        swarm.cancels = *rng.pick(&[0, 0, 30, 150]);
        if rng.chance(200) {
            swarm.bounds.key_leases_max = *rng.pick(&[2, 6]);
        }
        self.swarm = Some(swarm);
    }

    /// A wide world has the same rate of lease operations as other worlds, or none.
    fn leases_or_none(&mut self, rng: &mut Rng) {
        self.lease_writes = *rng.pick(&[0, self.lease_writes]);
    }
}
