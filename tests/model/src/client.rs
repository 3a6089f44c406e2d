//! The shell of a client: a holder, the copies that it knows of, and what the application waits
//! for. It does what the library's driver does.
//!
//! The world steps the holder and passes each effect to [`ClientShell::carry_out`]. What that does
//! not finish comes back as an event for the world.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
};

use leasehold_protocol::{
    command::{AnyLease, Write, Written},
    holder::{Holder, HolderConfig, HolderEffect, HolderInput, ReadId, SessionNews, WriteFailure, WriteId},
    id::{Incarnation, LeaseId, Stamp},
    lease_policy::LeaseRequest,
    object::{Content, Object},
    state::State,
    time::Instant,
};

use crate::cache::Cache;

/// A read that the application waits for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OpenRead {
    /// What is read.
    pub object: Object,
    /// The oldest [version](crate::versions::Versions) that it may return.
    pub begun: usize,
    /// The world's step in which it began.
    pub since: u64,
}

/// A write that the application waits for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OpenWrite {
    /// What is written.
    pub change: Write,
    /// The world's step in which it began.
    pub since: u64,
}

/// What an application knows of key leases.
#[derive(Debug, Clone, Default, Hash)]
pub struct KeyLeases {
    /// The leases that it renews.
    pub renewed: BTreeSet<LeaseId>,
    /// Until when it counts on each lease, by its own clock.
    pub until: BTreeMap<LeaseId, (Incarnation, Instant)>,
}

/// A client without its network and its application.
#[derive(Debug, Clone, Hash)]
pub struct ClientShell {
    /// The rules.
    pub holder: Holder,
    /// The copies.
    pub cache: Cache,
    /// The process runs, and its session was not closed.
    pub is_open: bool,
    /// The reads that the application waits for.
    pub reads: BTreeMap<ReadId, OpenRead>,
    /// The writes that the application waits for.
    pub writes: BTreeMap<WriteId, OpenWrite>,
    /// The key leases of the application.
    pub key_leases: KeyLeases,
    /// The last number of a read, a write or a watch. A restart does not reset it.
    pub numbers: u64,
    reported: Option<SessionNews>,
}

/// What is left for the world of an effect of a holder.
#[derive(Debug)]
pub enum ClientEvent {
    /// Nothing: the effect was about copies.
    Done,
    /// These reads of the application return this content.
    Served(Vec<(ReadId, OpenRead)>, Arc<Content>),
    /// A write has ended. The application may no longer wait for it.
    WriteDone(WriteId, Option<OpenWrite>, Result<Written, WriteFailure>),
    /// Carry out this effect: send a message, change the connection, or tell the application.
    Effect(HolderEffect),
    /// The holder broke an invariant.
    Wrong(String),
}

/// Checks that a consent among the effects, or a notice of its delay, replies to a recall. The
/// driver of the library has no other way to send it.
///
/// # Errors
///
/// A sentence about the consent.
pub fn check_consents(recalled: Option<Stamp>, effects: &[HolderEffect]) -> Result<(), String> {
    let replies = effects.iter().filter_map(|effect| match effect {
        HolderEffect::Consent(consent) => Some(consent.stamp),
        HolderEffect::ConsentDelayed(notice) => Some(notice.stamp),
        _ => None,
    });
    let replies: Vec<Stamp> = replies.collect();
    if replies.len() > 1 {
        return Err(format!("more than one reply to a recall: {replies:?}"));
    }
    let wrong = replies.into_iter().find(|stamp| Some(*stamp) != recalled);
    wrong.map_or(Ok(()), |stamp| Err(format!("the consent to {stamp} replies to no recall")))
}

/// The stamp of the recall, if the input is one.
pub fn recalled(input: &HolderInput) -> Option<Stamp> {
    match input {
        HolderInput::Recalled(recall) => Some(recall.stamp),
        _ => None,
    }
}

impl ClientShell {
    /// A client that has just started. If `asks_holder`, its cache lets the holder decide.
    pub fn new(config: HolderConfig, asks_holder: bool) -> Self {
        Self {
            holder: Holder::new(config),
            cache: Cache { asks_holder, ..Cache::default() },
            is_open: true,
            reads: BTreeMap::new(),
            writes: BTreeMap::new(),
            key_leases: KeyLeases::default(),
            numbers: 0,
            reported: None,
        }
    }

    /// A new process starts, with nothing in memory.
    pub fn restart(&mut self, config: HolderConfig, asks_holder: bool) {
        *self = Self { numbers: self.numbers, ..Self::new(config, asks_holder) };
    }

    /// The process has ended. Nobody waits for its requests.
    pub fn end(&mut self) {
        self.is_open = false;
        self.cache.clear();
        self.key_leases = KeyLeases::default();
        self.reads.clear();
        self.writes.clear();
    }

    /// The next number of a read, a write or a watch.
    pub fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// The content of the copy, if the cache may serve a read of the object now.
    pub fn hit(&mut self, object: &Object, now: Instant) -> Option<Arc<Content>> {
        if !self.cache.may_use(object, now, &self.holder) {
            return None;
        }
        let copy = self.cache.copies.get(object)?;
        self.cache.used.insert(copy.validity.volume.clone());
        Some(Arc::clone(&copy.content))
    }

    /// The application waits for a read from now on. Returns the read and the holder's input.
    pub fn begin_read(
        &mut self,
        object: Object,
        lease: LeaseRequest,
        (begun, since): (usize, u64),
    ) -> (ReadId, HolderInput) {
        let read = ReadId(self.next_number());
        self.reads.insert(read, OpenRead { object: object.clone(), begun, since });
        (read, HolderInput::Read { read, object, lease })
    }

    /// The application waits for a write from now on. Returns the write and the holder's input.
    pub fn begin_write(&mut self, change: Write, since: u64) -> (WriteId, HolderInput) {
        let write = WriteId(self.next_number());
        self.writes.insert(write, OpenWrite { change: change.clone(), since });
        (write, HolderInput::Write { write, change })
    }

    /// The latest write with this content that the application waits for.
    pub fn open_write(&self, change: &Write) -> Option<WriteId> {
        self.writes.iter().rev().find(|(_, open)| open.change == *change).map(|(write, _)| *write)
    }

    /// The cache drops a copy, as if it lacked room. Returns the holder's input if there was one.
    pub fn evict(&mut self, object: Object) -> Option<HolderInput> {
        let copy = self.cache.copies.remove(&object)?;
        Some(HolderInput::Evicted { object, stamp: copy.validity.stamp })
    }

    /// The holder's deadline has come. Returns its input.
    pub fn timeout(&mut self) -> HolderInput {
        HolderInput::Timeout { used: std::mem::take(&mut self.cache.used) }
    }

    /// Carries out an effect of the holder, as far as it concerns this shell. Adds the holder's
    /// inputs that follow.
    pub fn carry_out(&mut self, effect: HolderEffect, inputs: &mut VecDeque<HolderInput>) -> ClientEvent {
        match effect {
            HolderEffect::Install { .. }
            | HolderEffect::CopyValidated { .. }
            | HolderEffect::SelectWanted(_)
            | HolderEffect::Drop(_)
            | HolderEffect::DropAll
            | HolderEffect::VolumeValidityChanged { .. } => {
                inputs.extend(self.cache.carry_out(effect));
                return ClientEvent::Done;
            }
            HolderEffect::Serve { reads, object, content, .. } => return self.serve(reads, &object, content),
            HolderEffect::ServeCached { reads, object, stamp, .. } => {
                let copy = self.cache.copies.get(&object).filter(|copy| copy.validity.stamp == stamp);
                if let Some(content) = copy.map(|copy| Arc::clone(&copy.content)) {
                    return self.serve(reads, &object, content);
                }
                inputs.push_back(HolderInput::Evicted { object: object.clone(), stamp });
                let lease = LeaseRequest::Implicit;
                inputs.extend(reads.into_iter().map(|read| HolderInput::Read { read, object: object.clone(), lease }));
                return ClientEvent::Done;
            }
            HolderEffect::WriteDone { write, result } => {
                return ClientEvent::WriteDone(write, self.writes.remove(&write), result);
            }
            HolderEffect::ReadFailed { ref reads, .. } => self.reads.retain(|read, _| !reads.contains(read)),
            HolderEffect::Connection(ref news) if self.reported.replace(news.clone()).as_ref() == Some(news) => {
                return ClientEvent::Wrong(format!("the report {news:?} came twice"));
            }
            // The latest promise counts, whichever answer brought it.
            HolderEffect::KeyLeaseRenewed { id, incarnation, until, .. } => {
                let known = self.key_leases.until.entry(id).or_insert((incarnation, until));
                *known = (incarnation, until).max(*known);
            }
            HolderEffect::KeyLeaseLost { id } => {
                self.key_leases.until.remove(&id);
                if !self.key_leases.renewed.remove(&id) {
                    return ClientEvent::Wrong(format!("key lease {id} is reported lost: it does not renew that"));
                }
            }
            HolderEffect::FindLeader { .. } => inputs.push_back(HolderInput::Disconnected),
            HolderEffect::Closed => self.is_open = false,
            _ => {}
        }
        ClientEvent::Effect(effect)
    }

    fn serve(&mut self, reads: Vec<ReadId>, object: &Object, content: Arc<Content>) -> ClientEvent {
        let mut served = Vec::with_capacity(reads.len());
        for read in reads {
            match self.reads.remove(&read) {
                Some(open) if open.object == *object => served.push((read, open)),
                other => return ClientEvent::Wrong(format!("{read:?} is served with {object}: {other:?}")),
            }
        }
        ClientEvent::Served(served, content)
    }

    /// The holder is sound. A lapsed volume lease makes each copy under it unusable until it is
    /// validated again (S1; Yin, Alvisi, Dahlin, Lin 1999). The cache decides that by itself, and
    /// must decide as the holder does.
    pub fn check(&self, now: Instant) -> Result<(), String> {
        self.holder.check(now)?;
        for (object, copy) in &self.cache.copies {
            let by_cache = self.cache.holds(object, now);
            if by_cache && now >= self.cache.volume(&copy.validity.volume).until {
                return Err(format!("the copy of {object} is used without a volume lease"));
            }
            if by_cache != self.holder.may_serve(object, now) && !self.cache.asks_holder {
                return Err(format!("cache and rules differ on the copy of {object}"));
            }
        }
        Ok(())
    }

    /// A write takes effect only after each conflicting lease was given up, or had ended (S2; Gray
    /// and Cheriton 1989).
    ///
    /// This is its strong form, which needs no read. A usable copy must equal the last committed
    /// content, by its client's clock, also while the client is paused. The lessor gathers consents
    /// before it proposes a write. So this holds from the commit on, not only from the
    /// acknowledgement.
    pub fn check_copies(&self, truth: &State, now: Instant) -> Result<(), String> {
        for (object, copy) in &self.cache.copies {
            if !self.cache.may_use(object, now, &self.holder) {
                continue;
            }
            let current = truth.content(object);
            if *copy.content != current {
                return Err(format!(
                    "a usable copy of {object} is old: {:?}, {:?}; committed is {current:?}",
                    copy.content, copy.validity
                ));
            }
        }
        Ok(())
    }

    /// A lease ends only after its client stopped counting on it (T3, T5; Gray and Cheriton 1989).
    /// By then it has ended on the client's own clock, whatever clocks, elections and pauses did.
    /// See the issues etcd 9888 and 12528, and consul 1172.
    pub fn check_ended(&self, lease: &AnyLease, incarnation: Incarnation, now: Instant) -> Result<(), String> {
        let left = match lease {
            AnyLease::Volume(session, volume) if self.holder.session() == Some(*session) => {
                self.holder.volume_remaining(volume, now)
            }
            AnyLease::KeyLease(id) => match self.key_leases.until.get(id) {
                Some((counted, until)) if *counted == incarnation => until.since(now),
                _ => return Ok(()),
            },
            AnyLease::Volume(..) | AnyLease::Session(_) | AnyLease::LockDelay(_) => return Ok(()),
        };
        if self.is_open && !left.is_zero() {
            return Err(format!("{lease:?} has ended, but the client counts on it for another {left:?}"));
        }
        Ok(())
    }
}
