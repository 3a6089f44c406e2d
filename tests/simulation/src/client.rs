//! A client: a holder, a cache, and a connection to the presumed leader. It is the shell around the
//! rules.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use leasehold_protocol::{
    command::Write,
    holder::{
        ConnectionNews as Told, Holder, HolderConfig, HolderEffect, HolderInput, ReadFailure, ReadId, SendId, WriteId,
    },
    id::{Incarnation, LeaseId, LockId},
    lease_policy::LeaseRequest,
    limits::LimitError,
    lock::LockStatus,
    message::{AcquiredVolume, Answer, Body, Refusal, Request, Response, Revival},
    object::{Content, Object},
    path::NodePath,
    time::Instant,
};

use crate::{
    cache::{Cache, Copy},
    caching::WriteLeased,
    event::{Down, Event, Host, Up},
    invariants::{self, registrations::Registrations},
    network::Connection,
    profile::MS,
    watching::Watches,
    world::{Machine, World},
};

/// A read that the application waits for.
#[derive(Debug, Clone)]
pub(crate) struct OpenRead {
    pub(crate) object: Object,
    /// The place of the oldest version that it may return.
    begun: usize,
    /// The step in which it began.
    since: u64,
}

/// A write that the application waits for.
#[derive(Debug, Clone)]
pub(crate) struct OpenWrite {
    pub(crate) change: Write,
    /// The step in which it began.
    pub(crate) since: u64,
}

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) place: usize,
    pub(crate) machine: Machine,
    pub(crate) holder: Holder,
    pub(crate) cache: Cache,
    pub(crate) connection: Option<usize>,
    /// The number of this process, unique over all processes of all clients.
    pub(crate) life: u64,
    /// The holder exists, and was not closed.
    pub(crate) is_open: bool,
    is_connecting: bool,
    pub(crate) reads: BTreeMap<ReadId, OpenRead>,
    pub(crate) writes: BTreeMap<WriteId, OpenWrite>,
    /// The client reaches no server until this true time.
    pub(crate) isolated_until: u64,
    /// The key leases that it renews, and until when it counts on each.
    pub(crate) keeps: BTreeSet<LeaseId>,
    pub(crate) key_leases: BTreeMap<LeaseId, (Incarnation, Instant)>,
    /// Leases that it was granted in this step, and will renew.
    pub(crate) keeps_next: Vec<LeaseId>,
    /// Its registration nodes.
    pub(crate) registrations: Registrations,
    /// Its locks, each with the last reported status.
    pub(crate) locks: BTreeMap<LockId, (NodePath, LockStatus)>,
    /// Its data under write leases.
    pub(crate) write_leased: BTreeMap<LockId, WriteLeased>,
    /// The content that the last read of each object found.
    pub(crate) last_read: BTreeMap<Object, Content>,
    pub(crate) watches: Watches,
    pub(crate) numbers: u64,
    timer: u64,
    reported_state: Option<Told>,
    /// How often in a row the holder asked for a deadline that had already passed.
    spins: u32,
}

impl Client {
    pub(crate) fn new(place: usize, machine: Machine) -> Self {
        Self {
            place,
            machine,
            holder: Holder::new(HolderConfig::new("not begun")),
            cache: Cache::default(),
            connection: None,
            life: 0,
            is_open: false,
            is_connecting: false,
            reads: BTreeMap::new(),
            writes: BTreeMap::new(),
            isolated_until: 0,
            keeps: BTreeSet::new(),
            key_leases: BTreeMap::new(),
            keeps_next: Vec::new(),
            registrations: Registrations::default(),
            locks: BTreeMap::new(),
            write_leased: BTreeMap::new(),
            last_read: BTreeMap::new(),
            watches: Watches::default(),
            numbers: 0,
            timer: 0,
            reported_state: None,
            spins: 0,
        }
    }
}

impl World {
    /// The client's process starts, with nothing in memory.
    pub(crate) fn open(&mut self, place: usize, life: u64) {
        if self.clients[place].life != life {
            return;
        }
        self.lives += 1;
        self.forget_writes(place);
        self.forget_write_leases(place);
        let config = HolderConfig {
            drift_allowance: self.profile.drift,
            spread_permille: u16::try_from(self.rng.below(1001)).expect("small"),
            bounds: self.swarm().map(|swarm| swarm.client_bounds).unwrap_or_default(),
            planted: self.planted,
            ..HolderConfig::new(format!("client {place}"))
        };
        let client = &mut self.clients[place];
        client.life = self.lives;
        client.holder = Holder::new(config);
        client.cache = Cache { asks_holder: self.is_planted, ..Cache::default() };
        client.reads.clear();
        client.keeps.clear();
        client.key_leases.clear();
        client.keeps_next.clear();
        client.registrations = Registrations::default();
        client.locks.clear();
        client.watches = Watches::default();
        (client.is_open, client.is_connecting, client.reported_state, client.spins) = (true, false, None, 0);
        self.trace.say(self.now, || format!("client {place} begins"));
        self.look_for_leader(place, None);
    }

    /// Gives up the connection, if there is one, and tries another server.
    fn look_for_leader(&mut self, place: usize, hint: Option<usize>) {
        if let Some(connection) = self.clients[place].connection.take() {
            self.connections[connection].is_broken = true;
        }
        if std::mem::replace(&mut self.clients[place].is_connecting, true) {
            return;
        }
        let after = self.rng.between(MS, 40 * MS);
        let leader = self.apparent_leader();
        let any = self.rng.index(self.servers.len());
        let server = match (hint, leader) {
            (Some(server), _) if self.rng.chance(800) => server,
            (_, Some(leader)) if self.rng.chance(600) => leader,
            _ => any,
        };
        let life = self.clients[place].life;
        self.after(after, Event::Connect { client: place, life, server });
    }

    pub(crate) fn connect(&mut self, place: usize, life: u64, server: usize) {
        let client = &mut self.clients[place];
        if client.life != life || !client.is_connecting || !client.is_open {
            return;
        }
        client.is_connecting = false;
        if !self.servers[server].is_up || self.now < client.isolated_until {
            return self.look_for_leader(place, None);
        }
        client.connection = Some(self.connections.len());
        client.watches.asked_at = self.now;
        self.connections.push(Connection::new(place, life, server));
        self.step_holder(place, HolderInput::Connected);
    }

    pub(crate) fn disconnect(&mut self, place: usize, life: u64, connection: usize) {
        let client = &mut self.clients[place];
        if client.life == life && client.connection == Some(connection) {
            self.step_holder(place, HolderInput::Disconnected);
            self.look_for_leader(place, None);
        }
    }

    /// A message arrives on a connection. The client ignores messages on an earlier connection.
    pub(crate) fn client_hears(&mut self, connection: usize, message: Down) {
        let Connection { client: place, life, is_cut_down, .. } = self.connections[connection];
        let client = &self.clients[place];
        if client.life != life || client.connection != Some(connection) || is_cut_down {
            return;
        }
        if let Down::Response(_, response) = &message
            && let Response { result: Ok(Answer::Acquired(AcquiredVolume { revival, .. })), .. } = &**response
            && *revival != Revival::None
        {
            self.tally.add("copies revived");
        }
        match message {
            Down::Response(send_id, response) if self.handles_list_page(place, send_id, &response) => {}
            Down::Response(send_id, response) => {
                self.step_holder(place, HolderInput::Answered { send_id, response: *response })
            }
            Down::Recall(recall) => self.step_holder(place, HolderInput::Recalled(recall)),
        }
    }

    pub(crate) fn client_timer(&mut self, place: usize, life: u64, at: u64) {
        let client = &mut self.clients[place];
        if client.life == life && client.timer == at && client.is_open {
            let used = std::mem::take(&mut client.cache.used);
            self.step_holder(place, HolderInput::Timeout { used });
            let client = &mut self.clients[place];
            let clock = client.machine.clock.read(self.now);
            let spins = client.holder.next_deadline().is_some_and(|deadline| deadline <= clock);
            client.spins = if spins { client.spins + 1 } else { 0 };
            if client.spins > 3 {
                self.demand(Err(format!(
                    "client {place} requests a deadline at {clock} that has passed, again and again"
                )));
            }
        }
    }

    /// One step of a client's holder. Carries out its effects in order, and the steps that they
    /// cause.
    pub(crate) fn step_holder(&mut self, place: usize, input: HolderInput) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            self.trace.say(self.now, || format!("client {place} <- {input:?}"));
            let client = &mut self.clients[place];
            client.registrations.step();
            let clock = client.machine.clock.read(self.now);
            let effects = client.holder.step(input, clock);
            self.freeze(Host::Client(place));
            for effect in effects {
                self.trace.say(self.now, || format!("client {place} -> {effect:?}"));
                self.carry_out_at_client(place, effect, &mut inputs);
            }
            let client = &self.clients[place];
            let held = invariants::lapses::check(client, clock, self.is_planted);
            let is_current = invariants::consents::check(client, &self.oracle.truth, self.now);
            self.demand(held);
            self.demand_of(place, is_current);
            self.check_locks();
            self.check_write_leases();
        }
        if let Some(id) = self.clients[place].keeps_next.pop() {
            return self.keep(place, id);
        }
        self.look_after_holder(place);
    }

    fn look_after_holder(&mut self, place: usize) {
        let late = self.rng.below(MS);
        let client = &mut self.clients[place];
        if let Some(deadline) = client.holder.next_deadline().filter(|_| client.is_open) {
            let at = client.machine.clock.when(deadline).max(self.now) + late;
            client.timer = at;
            let life = client.life;
            self.at(at, Event::Timer { client: place, life, at });
        }
    }

    fn carry_out_at_client(&mut self, place: usize, effect: HolderEffect, inputs: &mut VecDeque<HolderInput>) {
        let client = &mut self.clients[place];
        match effect {
            HolderEffect::Send { send_id, request } => self.send_request(place, send_id, request),
            HolderEffect::Consent(consent) => {
                if let Some(connection) = client.connection {
                    self.send_up(connection, Up::Consent(consent));
                }
            }
            HolderEffect::Install { object, content, validity } => {
                client.cache.copies.insert(object, Copy { content, validity });
            }
            HolderEffect::Revalidate { object, validity } => match client.cache.copies.get_mut(&object) {
                Some(copy) => copy.validity = validity,
                None => inputs.push_back(HolderInput::Evicted { object, stamp: validity.stamp }),
            },
            HolderEffect::Drop(objects) => objects.iter().for_each(|object| {
                client.cache.copies.remove(object);
            }),
            HolderEffect::DropAll => {
                client.cache.copies.clear();
                client.cache.volumes.clear();
            }
            HolderEffect::VolumeValidityChanged { volume, validity } => {
                client.cache.volumes.insert(volume, validity);
            }
            HolderEffect::Serve { reads, object, content, .. } => self.serve(place, reads, &object, &content),
            HolderEffect::ServeCached { reads, object, stamp, .. } => {
                let copy = client.cache.copies.get(&object).filter(|copy| copy.validity.stamp == stamp);
                match copy.map(|copy| Arc::clone(&copy.content)) {
                    Some(content) => self.serve(place, reads, &object, &content),
                    None => {
                        inputs.push_back(HolderInput::Evicted { object: object.clone(), stamp });
                        let again =
                            |read| HolderInput::Read { read, object: object.clone(), lease: LeaseRequest::Implicit };
                        inputs.extend(reads.into_iter().map(again));
                    }
                }
            }
            HolderEffect::ReadFailed { reads, error } => self.reads_failed(place, &reads, &error),
            HolderEffect::WriteDone { write, result } => self.write_done(place, write, &result),
            HolderEffect::Connection(state) => self.state_reported(place, state),
            HolderEffect::ClockExcessChanged { excess } => self.clock_changed(place, excess),
            HolderEffect::FindLeader { hint } => {
                let hint = hint.and_then(|hint| hint.parse().ok());
                self.look_for_leader(place, hint);
                inputs.push_back(HolderInput::Disconnected);
            }
            // The latest promise counts, whichever answer brought it.
            HolderEffect::KeyLeaseRenewed { id, incarnation, until, .. } => {
                let known = client.key_leases.entry(id).or_insert((incarnation, until));
                *known = (incarnation, until).max(*known);
            }
            HolderEffect::KeyLeaseLost { id } => {
                client.key_leases.remove(&id);
                self.tally.add("key leases reported lost");
                if !self.clients[place].keeps.remove(&id) {
                    self.demand(Err(format!(
                        "client {place} got a report that key lease {id} is lost, which it does not renew"
                    )));
                }
            }
            HolderEffect::AttachedNodesLost { nodes } => {
                client.registrations.lost(&nodes);
                self.tally.add("reports of lost nodes");
            }
            HolderEffect::LockChanged { lock, status } => self.lock_changed(place, lock, status),
            HolderEffect::LocksLost { locks } => self.locks_lost(place, &locks, inputs),
            HolderEffect::WriteLeaseChanged { lock, status } => self.write_lease_changed(place, lock, status),
            HolderEffect::FlushLost { lock, value, may_be_there, .. } => {
                self.flush_lost(place, lock, &value, may_be_there)
            }
            HolderEffect::Closed => self.closed(place),
            HolderEffect::Changes { watch, changes } => {
                if self.changes_reported(place, watch, &changes) {
                    inputs.push_back(HolderInput::WatchMore(watch));
                }
            }
            HolderEffect::WatchLost { watch, error } => self.watch_lost(place, watch, &error),
        }
    }

    fn send_request(&mut self, place: usize, send_id: SendId, request: Request) {
        self.tally.add(match request.body {
            Body::HolderReport(_) => "holder report parts sent",
            Body::Write { .. } => "writes sent",
            Body::Heartbeat(_) => "renewals sent",
            Body::KeepAlive { .. } => "renewals of key leases sent",
            Body::Watch { .. } => "watches sent",
            Body::Read { known: Some(_), .. } => "copies to be validated",
            Body::AwaitRead { .. } => "reads that wait for write leases",
            _ => "other requests",
        });
        let client = &self.clients[place];
        if let Body::Write { write, .. } = &request.body {
            let key = (request.header.session, request.header.sequence);
            // The latest open write with this content.
            let named = client.writes.iter().rev().find(|(_, open)| open.change == *write);
            let held = match named {
                // A flush is the holder's own write. Its number identifies it when it is sent
                // again.
                None if matches!(write, Write::Flush { .. }) => {
                    let id = WriteId(1 << 62 | key.0.0 << 32 | key.1.0);
                    self.oracle.once.sent((client.life, id), key, write)
                }
                Some((id, _)) => self.oracle.once.sent((client.life, *id), key, write),
                None => Err(format!("client {place} sends write {key:?}, {write:?}, for which no call waits")),
            };
            self.demand(held);
        }
        if let Some(connection) = self.clients[place].connection {
            self.send_up(connection, Up::Request(send_id, Box::new(request)));
        }
    }

    fn serve(&mut self, place: usize, reads: Vec<ReadId>, object: &Object, content: &Content) {
        for read in reads {
            self.tally.add("reads from a server");
            let Some(open) = self.clients[place].reads.remove(&read) else {
                return self.demand(Err(format!("client {place} serves {read:?}, for which no call waits")));
            };
            if open.object != *object {
                self.demand(Err(format!("client {place} serves {read:?}, of {}, with {object}", open.object)));
            }
            let held = invariants::reads::check(&mut self.oracle, object, open.begun, content);
            self.demand_of(place, held.map_err(|what| format!("client {place}: {what}")));
            self.record_read(place, object, content, open.since);
        }
    }

    fn reads_failed(&mut self, place: usize, reads: &[ReadId], error: &ReadFailure) {
        for read in reads {
            self.clients[place].reads.remove(read);
        }
        let is_long = matches!(error, ReadFailure::Refused(Refusal::Limit(LimitError::Content { .. })));
        if is_long && self.has_short_contents() {
            self.tally.add("reads of contents that are too long");
        } else if *error != ReadFailure::Closed {
            self.demand(Err(format!("client {place}: a read failed: {error}")));
        }
    }

    /// The application hears of a change of its session. The holder must report each change once.
    fn state_reported(&mut self, place: usize, state: Told) {
        self.tally.add(match state {
            Told::Connected { .. } => "times connected",
            Told::Jeopardy => "times in jeopardy",
            Told::Expired { .. } => "sessions expired",
        });
        if let Told::Expired { .. } = state {
            self.clients[place].registrations.all_lost();
        }
        if self.clients[place].reported_state.replace(state) == Some(state) {
            self.demand(Err(format!("client {place} got the report {state:?} twice")));
        }
    }

    pub(crate) fn read(&mut self, place: usize, object: Object) {
        let begun = self.oracle.begin_read(&object);
        let client = &mut self.clients[place];
        let clock = client.machine.clock.read(self.now);
        if client.cache.may_use(&object, clock, &client.holder) {
            let Some(copy) = client.cache.copies.get(&object) else { return };
            client.cache.used.insert(copy.validity.volume.clone());
            self.tally.add("reads from a cache");
            let content = Arc::clone(&copy.content);
            let held = invariants::reads::check(&mut self.oracle, &object, begun, &content);
            self.demand_of(place, held.map_err(|what| format!("client {place}, from its cache: {what}")));
            self.record_read(place, &object, &content, self.steps);
            return;
        }
        client.numbers += 1;
        let read = ReadId(client.numbers);
        client.reads.insert(read, OpenRead { object: object.clone(), begun, since: self.steps });
        self.step_holder(place, HolderInput::Read { read, object, lease: LeaseRequest::Implicit });
    }

    /// Records the answer to a read that began in step `since`.
    fn record_read(&mut self, place: usize, object: &Object, content: &Content, since: u64) {
        // A client that knows of the wrong clock reads nothing from memory, so nothing stale.
        if !self.is_put_down_to_clocks(place) || self.clients[place].holder.clock_excess().is_some() {
            invariants::linearizability::read(&mut self.told, &object.path, content, (since, self.steps));
        }
        self.clients[place].last_read.insert(object.clone(), content.clone());
    }

    fn closed(&mut self, place: usize) {
        let client = &mut self.clients[place];
        client.is_open = false;
        let life = client.life;
        if let Some(connection) = client.connection.take() {
            self.connections[connection].is_broken = true;
        }
        let after = self.rng.between(MS, 300 * MS);
        self.after(after, Event::Open { client: place, life });
    }
}
