//! A client: a holder, a cache, and a connection to the presumed leader. It is the shell around the
//! rules.

use std::collections::{BTreeMap, VecDeque};

use leasehold_model::client::{ClientEvent, ClientShell, check_consents, recalled};
use leasehold_protocol::{
    command::Write,
    holder::{HolderConfig, HolderEffect, HolderInput, ReadFailure, SendId, SessionNews, WriteId},
    id::{LeaseId, LockId},
    lease_policy::LeaseRequest,
    limits::LimitError,
    lock::LockStatus,
    message::{AcquiredVolume, Answer, Body, FirstRead, Refusal, Request, Response, Revival},
    object::{Content, Object},
    path::NodePath,
};

use crate::{
    caching::WriteLeased,
    event::{Down, Event, Host, Up},
    invariants::{self, registrations::Registrations},
    network::Connection,
    profile::MS,
    profile::Policies,
    reported_reads::UnreportedReads,
    watching::Watches,
    world::{Machine, World},
};

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) place: usize,
    pub(crate) machine: Machine,
    pub(crate) shell: ClientShell,
    pub(crate) connection: Option<usize>,
    /// The number of this process, unique over all processes of all clients.
    pub(crate) life: u64,
    is_connecting: bool,
    /// The client reaches no server until this true time.
    pub(crate) isolated_until: u64,
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
    pub(crate) unreported: UnreportedReads,
    timer: u64,
    /// How often in a row the holder asked for a deadline that had already passed.
    spins: u32,
}

impl Client {
    pub(crate) fn new(place: usize, machine: Machine) -> Self {
        let mut shell = ClientShell::new(HolderConfig::new("not begun"), false);
        shell.is_open = false;
        Self {
            place,
            machine,
            shell,
            connection: None,
            life: 0,
            is_connecting: false,
            isolated_until: 0,
            keeps_next: Vec::new(),
            registrations: Registrations::default(),
            locks: BTreeMap::new(),
            write_leased: BTreeMap::new(),
            last_read: BTreeMap::new(),
            watches: Watches::default(),
            unreported: UnreportedReads::default(),
            timer: 0,
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
        let mut config = HolderConfig {
            drift_allowance: self.profile.drift,
            spread_permille: u16::try_from(self.rng.below(1001)).expect("small"),
            renewal: self.profile.renewal,
            bounds: self.swarm().map(|swarm| swarm.client_bounds).unwrap_or_default(),
            planted: self.planted,
            ..HolderConfig::new(format!("client {place}"))
        };
        self.consent_delays.draw(&mut config);
        let client = &mut self.clients[place];
        client.life = self.lives;
        client.shell.restart(config, self.is_planted);
        client.keeps_next.clear();
        client.registrations = Registrations::default();
        client.locks.clear();
        client.watches = Watches::default();
        client.unreported = UnreportedReads::default();
        (client.is_connecting, client.spins) = (false, 0);
        self.trace.say(self.now, || format!("client {place} begins"));
        self.find_leader(place, None);
    }

    /// Gives up the connection, if there is one, and tries another server.
    fn find_leader(&mut self, place: usize, hint: Option<usize>) {
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
        if client.life != life || !client.is_connecting || !client.shell.is_open {
            return;
        }
        client.is_connecting = false;
        if !self.servers[server].is_up || self.now < client.isolated_until {
            return self.find_leader(place, None);
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
            self.find_leader(place, None);
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
        if client.life == life && client.timer == at && client.shell.is_open {
            let input = client.shell.timeout();
            self.step_holder(place, input);
            let clock = self.client_clock(place);
            let client = &mut self.clients[place];
            let spins = client.shell.holder.next_deadline().is_some_and(|deadline| deadline <= clock);
            client.spins = if spins { client.spins + 1 } else { 0 };
            if client.spins > 3 {
                self.complain(place, format!("it requests a deadline at {clock} that has passed, again and again"));
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
            let recalled = recalled(&input);
            let effects = client.shell.holder.step(input, clock);
            self.demand_at(place, check_consents(recalled, &effects));
            self.freeze(Host::Client(place));
            for effect in effects {
                self.trace.say(self.now, || format!("client {place} -> {effect:?}"));
                self.carry_out_at_client(place, effect, &mut inputs);
            }
            let held = self.clients[place].shell.check(clock);
            self.demand_at(place, held);
            self.check_copies(place);
            self.check_locks();
            self.check_write_leases();
        }
        if let Some(id) = self.clients[place].keeps_next.pop() {
            return self.keep(place, id);
        }
        self.set_holder_timer(place);
    }

    fn set_holder_timer(&mut self, place: usize) {
        let late = self.rng.below(MS);
        let client = &mut self.clients[place];
        if let Some(deadline) = client.shell.holder.next_deadline().filter(|_| client.shell.is_open) {
            let at = client.machine.clock.when(deadline).max(self.now) + late;
            client.timer = at;
            let life = client.life;
            self.at(at, Event::Timer { client: place, life, at });
        }
    }

    fn carry_out_at_client(&mut self, place: usize, effect: HolderEffect, inputs: &mut VecDeque<HolderInput>) {
        match self.clients[place].shell.carry_out(effect, inputs) {
            ClientEvent::Done => {}
            ClientEvent::Served(reads, content) => {
                for (_, open) in reads {
                    self.tally.add("reads from a server");
                    self.judge_read(place, &open.object, &content, (open.begun, open.since));
                }
            }
            ClientEvent::WriteDone(write, open, result) => self.write_done(place, write, open, &result),
            ClientEvent::Effect(effect) => self.carry_out_for_shell(place, effect, inputs),
            ClientEvent::Wrong(what) => self.complain(place, what),
        }
    }

    /// Carries out an effect that the client's shell has left.
    fn carry_out_for_shell(&mut self, place: usize, effect: HolderEffect, inputs: &mut VecDeque<HolderInput>) {
        match effect {
            HolderEffect::Send { send_id, request } => self.send_request(place, send_id, request),
            HolderEffect::Consent(consent) => {
                if let Some(connection) = self.clients[place].connection {
                    self.send_up(connection, Up::Consent(consent));
                }
            }
            HolderEffect::ConsentDelayed(notice) => {
                if let Some(connection) = self.clients[place].connection {
                    self.send_notice(connection, notice);
                }
            }
            HolderEffect::ReadFailed { error, .. } => self.reads_failed(place, &error),
            HolderEffect::Connection(news) => self.connection_changed(place, news),
            HolderEffect::KeyLeaseRenewed { .. } => {}
            HolderEffect::KeyLeaseLost { .. } => self.tally.add("key leases reported lost"),
            HolderEffect::FindLeader { hint } => {
                self.find_leader(place, hint.and_then(|hint| hint.parse().ok()));
            }
            HolderEffect::Closed => self.closed(place),
            HolderEffect::ClockExcessChanged { excess } => self.clock_changed(place, excess),
            HolderEffect::AttachedNodesLost { nodes } => {
                let nodes: Vec<NodePath> = nodes.into_iter().map(|(node, _)| node).collect();
                self.clients[place].registrations.lost(&nodes);
                self.tally.add("reports of lost nodes");
            }
            HolderEffect::LockChanged { lock, status } => self.lock_changed(place, lock, status),
            HolderEffect::LocksLost { locks, .. } => self.locks_lost(place, &locks, inputs),
            HolderEffect::WriteLeaseChanged { lock, status } => self.write_lease_changed(place, lock, status),
            HolderEffect::FlushLost { lock, value, may_be_written, .. } => {
                self.flush_lost(place, lock, &value, may_be_written)
            }
            HolderEffect::Changes { watch, changes } => {
                if self.changes_reported(place, watch, &changes) {
                    inputs.push_back(HolderInput::WatchMore(watch));
                }
            }
            HolderEffect::WatchLost { watch, error } => self.watch_lost(place, watch, &error),
            done => unreachable!("the shell has done it: {done:?}"),
        }
    }

    fn send_request(&mut self, place: usize, send_id: SendId, mut request: Request) {
        self.report_reads(place, &mut request);
        self.tally.add(match request.body {
            Body::HolderReport(_) => "holder report parts sent",
            Body::Write { .. } => "writes sent",
            Body::Heartbeat(_) => "renewals sent",
            Body::KeepAlive { .. } => "renewals of key leases sent",
            Body::Watch { .. } => "watches sent",
            Body::Read { known: Some(_), .. } | Body::Acquire { read: Some(FirstRead { known: Some(_), .. }), .. } => {
                "copies to be validated"
            }
            Body::AwaitRead { .. } => "reads that wait for write leases",
            // A server ignores a reply that comes too late, with the push requests in it.
            Body::ReadNextValue { .. } if send_id.0 % 16 == 7 => return self.tally.add("push requests lost"),
            Body::ReadNextValue { .. } => "push requests sent",
            _ => "other requests",
        });
        let client = &self.clients[place];
        if let Body::Write { write, .. } = &request.body {
            let key = (request.header.session, request.header.sequence);
            let held = match client.shell.open_write(write) {
                // A flush is the holder's own write. Its number identifies it when it is sent
                // again.
                None if matches!(write, Write::Flush { .. }) => {
                    let id = WriteId(1 << 62 | key.0.0 << 32 | key.1.0);
                    self.oracle.once.sent((client.life, id), key, write)
                }
                Some(id) => self.oracle.once.sent((client.life, id), key, write),
                None => Err(format!("client {place} sends write {key:?}, {write:?}, for which no call waits")),
            };
            self.demand(held);
        }
        if let Some(connection) = self.clients[place].connection {
            self.send_up(connection, Up::Request(send_id, Box::new(request)));
        }
    }

    fn reads_failed(&mut self, place: usize, error: &ReadFailure) {
        let is_long = matches!(error, ReadFailure::Refused(Refusal::Limit(LimitError::Content { .. })));
        if is_long && self.has_short_contents() {
            self.tally.add("reads of contents that are too long");
        } else if *error != ReadFailure::Closed {
            self.complain(place, format!("a read failed: {error}"));
        }
    }

    /// The application hears of a change of its session.
    fn connection_changed(&mut self, place: usize, news: SessionNews) {
        self.tally.add(match news {
            SessionNews::Connected { .. } => "times connected",
            SessionNews::Jeopardy { .. } => "times in jeopardy",
            SessionNews::Expired { .. } => "sessions expired",
        });
        if let SessionNews::Expired { .. } = news {
            self.clients[place].registrations.all_lost();
        }
    }

    pub(crate) fn read(&mut self, place: usize, object: Object) {
        let begun = self.oracle.versions.begin_read(&object);
        let (clock, since) = (self.client_clock(place), self.steps);
        if let Some(content) = self.clients[place].shell.hit(&object, clock) {
            self.read_from_memory(place, &object);
            return self.judge_read(place, &object, &content, (begun, since));
        }
        let lease = match self.profile.policies {
            Policies::Usual => LeaseRequest::Implicit,
            Policies::Recalling | Policies::Waiting => match self.rng.below(10) {
                0..3 => LeaseRequest::Explicit,
                3 => LeaseRequest::Unwanted,
                _ => LeaseRequest::Implicit,
            },
        };
        let (_, input) = self.clients[place].shell.begin_read(object, lease, (begun, since));
        self.step_holder(place, input);
    }

    /// Judges and records the answer to a read that must see the version `begun` or a later one. It
    /// began in step `since`.
    fn judge_read(&mut self, place: usize, object: &Object, content: &Content, (begun, since): (usize, u64)) {
        let held = self.oracle.versions.end_read(object, begun, content);
        self.demand_of(place, held);
        // A client that knows of the wrong clock reads nothing from memory, so nothing stale.
        if !self.is_put_down_to_clocks(place) || self.clients[place].shell.holder.clock_excess().is_some() {
            invariants::linearizability::read(&mut self.observations, &object.path, content, (since, self.steps));
        }
        self.clients[place].last_read.insert(object.clone(), content.clone());
    }

    fn closed(&mut self, place: usize) {
        let client = &mut self.clients[place];
        let life = client.life;
        if let Some(connection) = client.connection.take() {
            self.connections[connection].is_broken = true;
        }
        let after = self.rng.between(MS, 300 * MS);
        self.after(after, Event::Open { client: place, life });
    }
}
