//! A client: a holder, a cache and an application. The shell around the rules does what the
//! library's driver does.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use leasehold_protocol::{
    command::{Write, Written},
    holder::{
        ConnectionNews as Told, Holder, HolderConfig, HolderEffect, HolderInput, ReadFailure, ReadId, WriteFailure,
        WriteId,
        validity::{CopyLease, CopyValidity, VolumeValidity, may_use},
    },
    lease_policy::LeaseRequest,
    message::{Body, Request},
    object::{Content, Object},
    path::NodePath,
    time::Instant,
};

use crate::{
    keeping::Keeping,
    oracle::WriteKey,
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
    Looked { next: usize, object: Object, begun: usize, content: Arc<Content>, copy: CopyLease, volume: Looked },
    /// It waits for a read.
    Reads(usize, ReadId),
    /// It waits for a write.
    Writes(usize, WriteId),
}

/// A volume's validity when a copy was looked up.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Looked {
    path: NodePath,
    validity: VolumeValidity,
}

/// A read that the application waits for.
#[derive(Debug, Clone, Hash)]
pub(crate) struct OpenRead {
    object: Object,
    /// The place of the oldest version that it may return.
    begun: usize,
}

/// A write that the application waits for.
#[derive(Debug, Clone, Hash)]
pub(crate) struct OpenWrite {
    change: Write,
    /// Its name in the log, once it was sent.
    key: Option<WriteKey>,
}

/// One cached copy.
#[derive(Debug, Clone, Hash)]
pub(crate) struct Copy {
    pub(crate) content: Arc<Content>,
    pub(crate) validity: CopyValidity,
}

/// A client's copies, and the validity by which it may use them.
#[derive(Debug, Clone, Default, Hash)]
pub(crate) struct Cache {
    pub(crate) copies: BTreeMap<Object, Copy>,
    pub(crate) volumes: BTreeMap<NodePath, VolumeValidity>,
    used: BTreeSet<NodePath>,
}

/// One client.
#[derive(Debug, Clone, Hash)]
pub(crate) struct Client {
    pub(crate) holder: Holder,
    pub(crate) cache: Cache,
    pub(crate) link: Option<LinkId>,
    pub(crate) links: u32,
    /// It looks for the leader.
    pub(crate) seeks: bool,
    /// Its process runs, and was not closed.
    pub(crate) is_open: bool,
    pub(crate) threads: Vec<Thread>,
    pub(crate) reads: BTreeMap<ReadId, OpenRead>,
    pub(crate) writes: BTreeMap<WriteId, OpenWrite>,
    numbers: u64,
    told: Option<Told>,
    pub(crate) keeping: Keeping,
}

impl Cache {
    /// Whether the copy's leases hold (S1).
    pub(crate) fn holds(&self, object: &Object, now: Instant) -> bool {
        self.copies.get(object).is_some_and(|copy| {
            let volume = self.volumes.get(&copy.validity.volume).copied().unwrap_or_default();
            may_use(copy.validity.lease(), &volume, now)
        })
    }
}

impl Client {
    pub(crate) fn new(config: HolderConfig, threads: usize) -> Self {
        Self {
            holder: Holder::new(config),
            cache: Cache::default(),
            link: None,
            links: 0,
            seeks: false,
            is_open: true,
            threads: vec![Thread::Idle(0); threads],
            reads: BTreeMap::new(),
            writes: BTreeMap::new(),
            numbers: 0,
            told: None,
            keeping: Keeping::default(),
        }
    }

    /// Whether a thread holds the mutex of a copy.
    pub(crate) fn is_locked(&self) -> bool {
        self.threads.iter().any(|thread| matches!(thread, Thread::Looked { .. }))
    }

    /// Whether a read of the object would be served from memory. With a planted mistake, the holder
    /// itself decides.
    pub(crate) fn may_use(&self, object: &Object, now: Instant, is_planted: bool) -> bool {
        if is_planted {
            self.cache.copies.contains_key(object) && self.holder.may_serve(object, now)
        } else {
            self.cache.holds(object, now)
        }
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
                if let Some(copy) = self.at.clients[place].change().cache.copies.remove(&object) {
                    self.step_holder(place, HolderInput::Evicted { object, stamp: copy.validity.stamp });
                }
            }
            Op::Keep(id) => self.keep(place, id),
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
        (client.is_open, client.link, client.seeks) = (false, None, false);
        (client.cache, client.keeping) = (Cache::default(), Keeping::default());
        client.reads.clear();
        client.writes.clear();
        client.threads.iter_mut().for_each(|thread| *thread = Thread::Idle(usize::MAX));
    }

    /// The application writes: in a thread, or in the beginning of the world.
    pub(crate) fn write(&mut self, place: usize, thread: Option<(usize, usize)>, change: Write) {
        let client = self.at.clients[place].change();
        client.numbers += 1;
        let write = WriteId(client.numbers);
        client.writes.insert(write, OpenWrite { change: change.clone(), key: None });
        if let Some((thread, next)) = thread {
            client.threads[thread] = Thread::Writes(next, write);
        }
        self.step_holder(place, HolderInput::Write { write, change });
    }

    /// The application reads: in a thread, or in the beginning of the world.
    pub(crate) fn read(&mut self, place: usize, thread: Option<(usize, usize)>, object: Object) {
        let begun = self.at.oracle.begin_read(&object);
        let clock = self.world.client_clock(place, self.at.now);
        let client = &self.at.clients[place];
        if let (Some((thread, next)), true) = (thread, self.world.splits_hits)
            && let Some(copy) = client.cache.copies.get(&object)
        {
            let path = copy.validity.volume.clone();
            let validity = client.cache.volumes.get(&path).copied().unwrap_or_default();
            let volume = Looked { path, validity };
            let (content, copy) = (Arc::clone(&copy.content), copy.validity.lease());
            let looked = Thread::Looked { next, object, begun, content, copy, volume };
            self.at.clients[place].change().threads[thread] = looked;
            return;
        }
        if client.may_use(&object, clock, self.is_planted) {
            let copy = client.cache.copies.get(&object).cloned();
            return copy.into_iter().for_each(|copy| self.hit(place, &object, begun, &copy));
        }
        self.miss(place, thread, object, begun);
    }

    /// A thread that has looked up a copy reads the clock, and uses the copy if it may (S1).
    pub(crate) fn finish(&mut self, place: usize, thread: usize) {
        let looked = self.at.clients[place].threads[thread].clone();
        let Thread::Looked { next, object, begun, content, copy, volume } = looked else { return };
        self.at.clients[place].change().threads[thread] = Thread::Idle(next);
        let clock = self.world.client_clock(place, self.at.now);
        let may_use = if self.is_planted {
            self.at.clients[place].holder.may_serve(&object, clock)
        } else {
            may_use(copy, &volume.validity, clock)
        };
        if may_use {
            self.at.clients[place].change().cache.used.insert(volume.path);
            self.returns(place, &object, begun, &content);
        } else {
            self.miss(place, Some((thread, next)), object, begun);
        }
    }

    fn hit(&mut self, place: usize, object: &Object, begun: usize, copy: &Copy) {
        self.at.clients[place].change().cache.used.insert(copy.validity.volume.clone());
        self.returns(place, object, begun, &copy.content);
    }

    fn miss(&mut self, place: usize, thread: Option<(usize, usize)>, object: Object, begun: usize) {
        let client = self.at.clients[place].change();
        client.numbers += 1;
        let read = ReadId(client.numbers);
        client.reads.insert(read, OpenRead { object: object.clone(), begun });
        if let Some((thread, next)) = thread {
            client.threads[thread] = Thread::Reads(next, read);
        }
        self.step_holder(place, HolderInput::Read { read, object, lease: LeaseRequest::Implicit });
    }

    /// A read returns.
    fn returns(&mut self, place: usize, object: &Object, begun: usize, content: &Content) {
        self.say(|| format!("    client {place} reads {object}: {content:?}"));
        let held = self.at.oracle.change().end_read(object, begun, content);
        self.demand(held.map_err(|what| format!("client {place}: {what}")));
    }

    pub(crate) fn client_timer(&mut self, place: usize) {
        let used = std::mem::take(&mut self.at.clients[place].change().cache.used);
        self.step_holder(place, HolderInput::Timeout { used });
        let clock = self.world.client_clock(place, self.at.now);
        if self.at.clients[place].holder.next_deadline().is_some_and(|deadline| deadline <= clock) {
            self.demand(Err(format!("client {place} requests a deadline at {clock} that has passed")));
        }
        self.ends_were_told(place, clock);
    }

    /// The client notices that its connection is broken.
    pub(crate) fn notice(&mut self, place: usize) {
        self.step_holder(place, HolderInput::Disconnected);
        self.look_for_leader(place);
    }

    fn look_for_leader(&mut self, place: usize) {
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
        self.at.links.push(crate::part::Part::new(Link::new(id, server)));
        self.step_holder(place, HolderInput::Connected);
    }

    /// One step of a client's holder. Carries out its effects in order, and the steps that they
    /// cause.
    pub(crate) fn step_holder(&mut self, place: usize, input: HolderInput) {
        let clock = self.world.client_clock(place, self.at.now);
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            self.say(|| format!("    client {place} <- {input:?}"));
            let effects = self.at.clients[place].change().holder.step(input, clock);
            for effect in effects {
                self.say(|| format!("    client {place} -> {effect:?}"));
                self.carry_out_at_client(place, effect, &mut inputs);
            }
            self.client_is_sound(place);
            self.copies_are_true(place);
        }
    }

    fn carry_out_at_client(&mut self, place: usize, effect: HolderEffect, inputs: &mut VecDeque<HolderInput>) {
        let client = self.at.clients[place].change();
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
            HolderEffect::Install { object, content, validity } => {
                client.cache.copies.insert(object, Copy { content, validity });
            }
            HolderEffect::Revalidate { object, validity } => match client.cache.copies.get_mut(&object) {
                Some(copy) => copy.validity = validity,
                None => inputs.push_back(HolderInput::Evicted { object, stamp: validity.stamp }),
            },
            HolderEffect::Drop(objects) => client.cache.copies.retain(|object, _| !objects.contains(object)),
            HolderEffect::DropAll => client.cache = Cache::default(),
            HolderEffect::VolumeValidityChanged { volume, validity } => {
                client.cache.volumes.insert(volume, validity);
            }
            HolderEffect::Serve { reads, object, content, .. } => self.serve(place, &reads, &object, &content),
            HolderEffect::ServeCached { reads, object, stamp, .. } => {
                let copy = client.cache.copies.get(&object).filter(|copy| copy.validity.stamp == stamp).cloned();
                match copy {
                    Some(copy) => self.serve(place, &reads, &object, &copy.content),
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
            HolderEffect::Connection(told) => {
                if client.told.replace(told) == Some(told) {
                    self.demand(Err(format!("client {place} got the report {told:?} twice")));
                }
            }
            HolderEffect::KeyLeaseRenewed { id, incarnation, until, .. } => {
                self.lease_kept(place, id, (incarnation, until))
            }
            HolderEffect::KeyLeaseLost { id } => self.lease_over(place, id),
            // No world attaches nodes to sessions.
            HolderEffect::AttachedNodesLost { .. } => {
                self.demand(Err(format!("client {place} got a report of lost nodes, but attached none")));
            }
            // No world has locks.
            HolderEffect::LockChanged { .. }
            | HolderEffect::LocksLost { .. }
            | HolderEffect::WriteLeaseChanged { .. }
            | HolderEffect::FlushLost { .. } => {
                self.demand(Err(format!("client {place} got a report about a lock, but requested none")));
            }
            // No world has watches.
            HolderEffect::Changes { .. } | HolderEffect::WatchLost { .. } => {
                self.demand(Err(format!("client {place} got a report about a watch, but began none")));
            }
            HolderEffect::ClockExcessChanged { .. } => {}
            HolderEffect::FindLeader { .. } => {
                self.look_for_leader(place);
                inputs.push_back(HolderInput::Disconnected);
            }
            HolderEffect::Closed => {
                self.look_for_leader(place);
                let client = self.at.clients[place].change();
                (client.is_open, client.seeks) = (false, false);
            }
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
        let open = self.at.clients[place].change().writes.values_mut().find(|open| open.change == *write);
        let held = match open {
            Some(OpenWrite { key: Some(old), .. }) if *old != key => {
                Err(format!("client {place} sends {write:?} as {old:?} and then as {key:?}"))
            }
            Some(open) => {
                open.key = Some(key);
                Ok(())
            }
            None => Err(format!("client {place} sends {write:?}, for which no call waits")),
        };
        self.demand(held);
    }

    fn serve(&mut self, place: usize, reads: &[ReadId], object: &Object, content: &Content) {
        for read in reads {
            match self.at.clients[place].change().reads.remove(read) {
                Some(open) if open.object == *object => self.returns(place, object, open.begun, content),
                other => self.demand(Err(format!("client {place} serves {read:?} with {object}: {other:?}"))),
            }
            self.go_on(place, |thread| matches!(thread, Thread::Reads(_, other) if other == read));
        }
    }

    fn reads_failed(&mut self, place: usize, reads: &[ReadId], error: &ReadFailure) {
        for read in reads {
            self.at.clients[place].change().reads.remove(read);
            self.go_on(place, |thread| matches!(thread, Thread::Reads(_, other) if other == read));
        }
        if *error != ReadFailure::Closed {
            self.demand(Err(format!("client {place}: a read failed: {error}")));
        }
    }

    fn write_done(&mut self, place: usize, write: WriteId, result: &Result<Written, WriteFailure>) {
        let held = match self.at.clients[place].change().writes.remove(&write) {
            Some(open) => self.at.oracle.change().end_write(open.key, result),
            None => Err(format!("write {write:?} ended twice: {result:?}")),
        };
        self.demand(held.map_err(|what| format!("client {place}: {what}")));
        self.go_on(place, |thread| matches!(thread, Thread::Writes(_, other) if *other == write));
    }

    /// The request that a thread waited for has ended.
    fn go_on(&mut self, place: usize, waited: impl Fn(&Thread) -> bool) {
        for thread in &mut self.at.clients[place].change().threads {
            if waited(thread)
                && let Thread::Reads(next, _) | Thread::Writes(next, _) = *thread
            {
                *thread = Thread::Idle(next);
            }
        }
    }
}
