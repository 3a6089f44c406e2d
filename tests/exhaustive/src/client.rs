//! A client: a holder, a cache and an application. The shell around the rules does what the
//! library's driver does.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use leasehold_model::{
    client::{ClientEvent, ClientShell, OpenWrite, check_consents, recalled},
    committed::WriteKey,
};
use leasehold_protocol::{
    command::{GrantedKeyLease, Write, Written},
    holder::{
        HolderConfig, HolderEffect, HolderInput, ReadFailure, WriteFailure, WriteId,
        validity::{CopyLease, VolumeValidity, may_use},
    },
    id::{Incarnation, LeaseId},
    lease_policy::LeaseRequest,
    message::{Body, Request},
    object::{Content, Object},
    path::NodePath,
    time::Instant,
};

use crate::{
    part::Part,
    run::Run,
    situation::{Link, LinkId},
    world::Op,
};

/// The state of one thread of an application.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Thread {
    /// Its next operation is the one at this place.
    Idle(usize),
    /// It has looked up a copy, and has not read the clock yet. Its next operation is the one at
    /// `next`.
    LookedUp { next: usize, object: Object, begun: usize, content: Arc<Content>, copy: CopyLease, volume: VolumeLookup },
    /// It waits for the read or the write of this number.
    Waits(usize, u64),
}

/// A volume's validity when a copy was looked up.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct VolumeLookup {
    path: NodePath,
    validity: VolumeValidity,
}

/// One client.
#[derive(Debug, Clone, Hash)]
pub(crate) struct Client {
    pub(crate) shell: ClientShell,
    pub(crate) link: Option<LinkId>,
    pub(crate) links: u32,
    /// It looks for the leader.
    pub(crate) seeks: bool,
    pub(crate) threads: Vec<Thread>,
    /// The names in the log of open writes that were sent.
    keys: BTreeMap<WriteId, WriteKey>,
}

impl Client {
    pub(crate) fn new(config: HolderConfig, is_planted: bool, threads: usize) -> Self {
        Self {
            shell: ClientShell::new(config, is_planted),
            link: None,
            links: 0,
            seeks: false,
            threads: vec![Thread::Idle(0); threads],
            keys: BTreeMap::new(),
        }
    }

    /// Whether a thread holds the mutex of a copy.
    pub(crate) fn is_locked(&self) -> bool {
        self.threads.iter().any(|thread| matches!(thread, Thread::LookedUp { .. }))
    }
}

impl Run<'_> {
    /// A thread of the application starts its next operation.
    pub(crate) fn begin(&mut self, place: usize, thread: usize) {
        let Thread::Idle(next) = self.at.clients[place].threads[thread] else { return };
        let op = self.world.members[place].threads[thread][next].clone();
        self.say(|| format!("    client {place}: {op:?}"));
        self.at.clients[place].change().threads[thread] = Thread::Idle(next + 1);
        match op {
            Op::Read(object) => self.read(place, Some((thread, next + 1)), object),
            Op::Write(change) => self.write(place, Some((thread, next + 1)), change),
            Op::Evict(object) => {
                let evicted = self.at.clients[place].change().shell.evict(object);
                evicted.into_iter().for_each(|input| self.step_holder(place, input));
            }
            Op::Keep(id) => {
                self.at.clients[place].change().shell.key_leases.renewed.insert(id);
                self.step_holder(place, HolderInput::KeepAlive(id));
            }
            Op::Close => self.step_holder(place, HolderInput::Close),
            Op::Vanish => self.vanish(place),
        }
    }

    /// The client's process has ended. Its messages in flight may still arrive.
    fn vanish(&mut self, place: usize) {
        if let Some(link) = self.at.clients[place].link.and_then(|id| self.at.link_mut(id)) {
            link.is_broken = true;
        }
        let client = self.at.clients[place].change();
        client.shell.end();
        (client.link, client.seeks) = (None, false);
        client.keys.clear();
        client.threads.iter_mut().for_each(|thread| *thread = Thread::Idle(usize::MAX));
    }

    /// The application writes: in a thread, or in the beginning of the world.
    pub(crate) fn write(&mut self, place: usize, thread: Option<(usize, usize)>, change: Write) {
        let client = self.at.clients[place].change();
        let (write, input) = client.shell.begin_write(change, 0);
        if let Some((thread, next)) = thread {
            client.threads[thread] = Thread::Waits(next, write.0);
        }
        self.step_holder(place, input);
    }

    /// The application reads: in a thread, or in the beginning of the world.
    pub(crate) fn read(&mut self, place: usize, thread: Option<(usize, usize)>, object: Object) {
        let begun = self.at.oracle.versions.begin_read(&object);
        let clock = self.client_clock(place);
        let client = &self.at.clients[place];
        if let (Some((thread, next)), true) = (thread, self.world.splits_hits)
            && let Some(copy) = client.shell.cache.copies.get(&object)
        {
            let path = copy.validity.volume.clone();
            let volume = VolumeLookup { validity: client.shell.cache.volume(&path), path };
            let (content, copy) = (Arc::clone(&copy.content), copy.validity.lease());
            let looked_up = Thread::LookedUp { next, object, begun, content, copy, volume };
            self.at.clients[place].change().threads[thread] = looked_up;
            return;
        }
        match self.at.clients[place].change().shell.hit(&object, clock) {
            Some(content) => self.returns(place, &object, begun, &content),
            None => self.miss(place, thread, object, begun),
        }
    }

    /// A thread that has looked up a copy reads the clock, and uses the copy if it may (S1).
    pub(crate) fn finish(&mut self, place: usize, thread: usize) {
        let looked_up = self.at.clients[place].threads[thread].clone();
        let Thread::LookedUp { next, object, begun, content, copy, volume } = looked_up else { return };
        self.at.clients[place].change().threads[thread] = Thread::Idle(next);
        let (clock, client) = (self.client_clock(place), &self.at.clients[place]);
        let may_use = if client.shell.cache.asks_holder {
            client.shell.holder.may_serve(&object, clock)
        } else {
            may_use(copy, &volume.validity, clock)
        };
        if may_use {
            self.at.clients[place].change().shell.cache.used.insert(volume.path);
            self.returns(place, &object, begun, &content);
        } else {
            self.miss(place, Some((thread, next)), object, begun);
        }
    }

    fn miss(&mut self, place: usize, thread: Option<(usize, usize)>, object: Object, begun: usize) {
        let client = self.at.clients[place].change();
        let (read, input) = client.shell.begin_read(object, LeaseRequest::Implicit, (begun, 0));
        if let Some((thread, next)) = thread {
            client.threads[thread] = Thread::Waits(next, read.0);
        }
        self.step_holder(place, input);
    }

    /// A read returns.
    fn returns(&mut self, place: usize, object: &Object, begun: usize, content: &Content) {
        self.say(|| format!("    client {place} reads {object}: {content:?}"));
        let held = self.at.oracle.change().versions.end_read(object, begun, content);
        self.demand_of(place, held);
    }

    pub(crate) fn client_timer(&mut self, place: usize) {
        let input = self.at.clients[place].change().shell.timeout();
        self.step_holder(place, input);
        let clock = self.client_clock(place);
        if self.at.clients[place].shell.holder.next_deadline().is_some_and(|deadline| deadline <= clock) {
            self.demand(Err(format!("client {place} requests a deadline at {clock} that has passed")));
        }
        self.ends_were_reported(place, clock);
    }

    /// The client notices that its connection is broken.
    pub(crate) fn notice(&mut self, place: usize) {
        self.step_holder(place, HolderInput::Disconnected);
        self.find_leader(place);
    }

    fn find_leader(&mut self, place: usize) {
        if let Some(link) = self.at.clients[place].link.and_then(|id| self.at.link_mut(id)) {
            link.is_broken = true;
        }
        let client = self.at.clients[place].change();
        (client.link, client.seeks) = (None, true);
    }

    pub(crate) fn connect(&mut self, place: usize, server: usize) {
        if !self.at.leads(server) {
            self.at.left.misdirections -= 1;
        }
        let client = self.at.clients[place].change();
        client.links += 1;
        let id = LinkId { client: place, number: client.links };
        (client.link, client.seeks) = (Some(id), false);
        self.at.links.push(Part::new(Link::new(id, server)));
        self.step_holder(place, HolderInput::Connected);
    }

    /// One step of a client's holder. Carries out its effects in order, and the steps that they
    /// cause.
    pub(crate) fn step_holder(&mut self, place: usize, input: HolderInput) {
        let clock = self.client_clock(place);
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            self.say(|| format!("    client {place} <- {input:?}"));
            let recalled = recalled(&input);
            let effects = self.at.clients[place].change().shell.holder.step(input, clock);
            self.demand_of(place, check_consents(recalled, &effects));
            for effect in effects {
                self.say(|| format!("    client {place} -> {effect:?}"));
                self.carry_out_at_client(place, effect, &mut inputs);
            }
            self.demand_of(place, self.at.clients[place].shell.check(clock));
            self.copies_are_true(place);
        }
    }

    fn carry_out_at_client(&mut self, place: usize, effect: HolderEffect, inputs: &mut VecDeque<HolderInput>) {
        match self.at.clients[place].change().shell.carry_out(effect, inputs) {
            ClientEvent::Done => {}
            ClientEvent::Served(reads, content) => {
                for (read, open) in reads {
                    self.returns(place, &open.object, open.begun, &content);
                    self.resume(place, read.0);
                }
            }
            ClientEvent::WriteDone(write, open, result) => self.write_done(place, write, open, &result),
            ClientEvent::Effect(effect) => self.carry_out_for_shell(place, effect),
            ClientEvent::Wrong(what) => self.complain(place, what),
        }
    }

    /// Carries out an effect that the client's shell has left.
    fn carry_out_for_shell(&mut self, place: usize, effect: HolderEffect) {
        match effect {
            HolderEffect::Send { send_id, request } => {
                self.note_sent(place, &request);
                if let Some(link) = self.carrying_link(place) {
                    link.requests.push_back((send_id, Arc::new(request)));
                }
            }
            HolderEffect::Consent(consent) => {
                if let Some(link) = self.carrying_link(place) {
                    link.consents.push_back(consent);
                }
            }
            HolderEffect::ReadFailed { reads, error } => {
                reads.iter().for_each(|read| self.resume(place, read.0));
                if error != ReadFailure::Closed {
                    self.complain(place, format!("a read failed: {error}"));
                }
            }
            HolderEffect::KeyLeaseRenewed { id, incarnation, .. } => self.key_lease_renewed(place, id, incarnation),
            HolderEffect::FindLeader { .. } => self.find_leader(place),
            HolderEffect::Closed => {
                self.find_leader(place);
                self.at.clients[place].change().seeks = false;
            }
            HolderEffect::Connection(_)
            | HolderEffect::KeyLeaseLost { .. }
            | HolderEffect::ClockExcessChanged { .. } => {}
            // No world attaches nodes to sessions, and none has locks or watches.
            report => self.complain(place, format!("it got the report {report:?}, but requested none")),
        }
    }

    /// A client hears only of key leases that it has granted or renews (S7b).
    fn key_lease_renewed(&mut self, place: usize, id: LeaseId, incarnation: Incarnation) {
        let (client, granted) = (&self.at.clients[place], GrantedKeyLease { id, incarnation });
        let is_known = client.shell.key_leases.renewed.contains(&id);
        if !is_known && !self.at.oracle.has_granted(client.shell.holder.session(), granted) {
            self.complain(place, format!("it got a report of {granted:?}, which it did not grant"));
        }
    }

    /// After a step at its deadline, the client has reported each key lease that has ended by its
    /// clock.
    fn ends_were_reported(&mut self, place: usize, clock: Instant) {
        let leases = &self.at.clients[place].shell.key_leases;
        let is_over = |id: &&LeaseId| leases.until.get(id).is_some_and(|(_, until)| *until <= clock);
        if let Some(id) = leases.renewed.iter().find(is_over).copied() {
            self.complain(place, format!("it got no report that key lease {id} is lost"));
        }
    }

    fn carrying_link(&mut self, place: usize) -> Option<&mut Link> {
        let id = self.at.clients[place].link?;
        self.at.link_mut(id).filter(|link| link.carries())
    }

    /// A write gets its name in the log when it is first sent.
    fn note_sent(&mut self, place: usize, request: &Request) {
        let Body::Write { write, .. } = &request.body else { return };
        let key = (request.header.session, request.header.sequence);
        // No two writes of a world are equal.
        let client = self.at.clients[place].change();
        let named = client.shell.open_write(write).map(|open| *client.keys.entry(open).or_insert(key));
        let held = match named {
            Some(named) if named == key => Ok(()),
            Some(named) => Err(format!("it sends {write:?} as {named:?} and then as {key:?}")),
            None => Err(format!("it sends {write:?}, for which no call waits")),
        };
        self.demand_of(place, held);
    }

    fn write_done(
        &mut self,
        place: usize,
        write: WriteId,
        open: Option<OpenWrite>,
        result: &Result<Written, WriteFailure>,
    ) {
        let key = self.at.clients[place].change().keys.remove(&write);
        let held = match open {
            Some(_) => self.at.oracle.change().end_write(key, result),
            None => Err(format!("write {write:?} ended twice: {result:?}")),
        };
        self.demand_of(place, held);
        self.resume(place, write.0);
    }

    /// The request that a thread waited for has ended.
    fn resume(&mut self, place: usize, number: u64) {
        for thread in &mut self.at.clients[place].change().threads {
            if let Thread::Waits(next, waited) = *thread
                && waited == number
            {
                *thread = Thread::Idle(next);
            }
        }
    }
}
