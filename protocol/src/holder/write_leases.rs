//! Write leases: nodes that the session reads and writes in its own memory (S10).
//!
//! Under an exclusive lock with a [write lease](Write::TakeWriteLease), the application sets and
//! reads the node's value here. It may do so only while the lock certainly holds on this clock
//! (T2), and until a recall names the data. Other clients' reads and writes of the data wait until
//! the write lease ends. The holder *flushes* the value to the servers:
//!
//! - when a recall names the data. The holder consents when the value is flushed and the servers
//!   have ended the write lease;
//! - when the application asks for a flush;
//! - when a renewal is late. If a server is reachable, the flush comes before the lease can end.
//!
//! One flush of a node is in flight at a time. If two were, the first could be sent again after the
//! second, and overwrite its value (S9). If the holder can no longer flush a value, it reports the
//! value as lost, and never drops it in silence.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Holder, HolderEffect, WriteFailure, WriteId,
    locks::OwnLock,
    own_write_lease::{FlushInFlight, OwnWriteLease, WriteLeaseStage},
};
use crate::{
    command::{Write, Written},
    id::{Epoch, LockId, Stamp},
    lock::{LockMode, LockStatus, WriteLeaseStatus},
    object::{Data, Object, ObjectSet, Value},
    path::NodePath,
    planted::Bug,
    time::Instant,
    work::{CountVisits, visit},
};

/// The write leases of the session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct WriteLeases {
    /// Locks with a write lease, or with a request for one.
    locks: BTreeSet<LockId>,
    /// The same locks with their nodes, so that a recall finds those that it names.
    by_path: BTreeSet<(NodePath, LockId)>,
    /// Those that end, and have no flush in flight.
    unflushed_ends: BTreeSet<LockId>,
    /// Consents that wait until locks no longer have write leases, and for how many locks each
    /// waits.
    pending_consents: BTreeMap<Stamp, usize>,
    /// The consents that wait for each lock.
    waiting: BTreeMap<LockId, BTreeSet<Stamp>>,
    /// Consents that no longer wait. Empty between steps.
    ready: BTreeSet<Stamp>,
}

impl WriteLeases {
    /// Removes consents of older epochs: a new leader does not know their recalls.
    pub(super) fn begin_epoch(&mut self, epoch: Epoch) {
        self.pending_consents.retain(|stamp, _| stamp.epoch >= epoch);
        self.waiting.values_mut().for_each(|stamps| stamps.retain(|stamp| stamp.epoch >= epoch));
        self.ready.retain(|stamp| stamp.epoch >= epoch);
    }

    /// Removes all waiting consents, because the session has ended.
    pub(super) fn clear_pending_consents(&mut self) {
        self.pending_consents.clear();
        self.waiting.clear();
        self.ready.clear();
    }

    fn begin(&mut self, id: LockId, path: &NodePath) {
        self.locks.insert(id);
        self.by_path.insert((path.clone(), id));
    }

    /// The lock has no write lease any longer. A consent that waited only for this lock is ready.
    /// It does not wait for a later write lease of the same lock.
    fn end(&mut self, id: LockId, path: &NodePath) {
        self.locks.remove(&id);
        self.by_path.remove(&(path.clone(), id));
        self.unflushed_ends.remove(&id);
        for stamp in self.waiting.remove(&id).unwrap_or_default() {
            visit(1);
            let Some(count) = self.pending_consents.get_mut(&stamp) else { continue };
            *count -= 1;
            if *count == 0 {
                self.pending_consents.remove(&stamp);
                self.ready.insert(stamp);
            }
        }
    }

    fn delay_consent(&mut self, stamp: Stamp, locks: &BTreeSet<LockId>) {
        let count = self.pending_consents.entry(stamp).or_default();
        for id in locks {
            *count += usize::from(self.waiting.entry(*id).or_default().insert(stamp));
        }
    }

    /// The locks whose data is in the set.
    fn within(&self, set: &ObjectSet) -> impl Iterator<Item = LockId> {
        let (path, is_subtree) = (set.path(), matches!(set, ObjectSet::Subtree(_)));
        let has_data = is_subtree || set.contains(&Object::data(path.clone()));
        let own = self.by_path.range((path.clone(), LockId(0))..).take_while(move |(at, _)| has_data && at == path);
        let below = self.by_path.range((path.bound_below(), LockId(0))..);
        let below = below.take_while(move |(at, _)| is_subtree && path.contains(at));
        own.chain(below).map(|(_, id)| *id).counted()
    }

    fn check(&self) -> Result<(), String> {
        let mut counts: BTreeMap<Stamp, usize> = BTreeMap::new();
        for (id, stamps) in &self.waiting {
            stamps.iter().for_each(|stamp| *counts.entry(*stamp).or_default() += 1);
            if !self.locks.contains(id) {
                return Err(format!("consents wait for lock {id}, which has no write lease"));
            }
        }
        if counts != self.pending_consents || !self.ready.is_empty() {
            return Err(format!("consents wait for locks: {counts:?}, expected {:?}", self.pending_consents));
        }
        if self.by_path.iter().map(|(_, id)| *id).collect::<BTreeSet<_>>() != self.locks {
            return Err(format!("write leases by path are {:?}, expected {:?}", self.by_path, self.locks));
        }
        Ok(())
    }
}

/// Adds the lock to a set, or removes it.
fn set_member(ids: &mut BTreeSet<LockId>, id: LockId, is_member: bool) {
    match is_member {
        true => ids.insert(id),
        false => ids.remove(&id),
    };
}

impl Holder {
    /// Notes whether the write lease of the lock has to be flushed at once, or when the renewal of
    /// the volume lease is late.
    fn note_unflushed(&mut self, id: LockId) {
        let Some(own) = self.locks.by_id.get(&id) else { return };
        let (ends, is_unflushed) = own.unflushed();
        set_member(&mut self.write_leases.unflushed_ends, id, ends);
        if let Some(mut volume) = self.volumes.get_mut(&own.volume) {
            set_member(&mut volume.unflushed, id, is_unflushed);
        }
    }
}

impl OwnLock {
    /// Whether the write lease ends and has no flush in flight, and whether it is open, dirty, and
    /// has no flush in flight.
    fn unflushed(&self) -> (bool, bool) {
        let write_lease = self.write_lease.as_ref().filter(|write_lease| write_lease.flush_in_flight.is_none());
        write_lease.map_or((false, false), |write_lease| match write_lease.stage {
            WriteLeaseStage::Requested => (false, false),
            WriteLeaseStage::Open => (false, write_lease.is_dirty()),
            WriteLeaseStage::Ending => (true, false),
        })
    }
}

impl WriteId {
    /// The flag of flushes. The ids of the driver are below it.
    const FLUSHES: u64 = 1 << 63;

    /// The id of the flush of a lock's write lease. There is at most one at a time.
    fn flush_of(lock: LockId) -> Self {
        Self(Self::FLUSHES | lock.0)
    }

    /// The lock, if the write is a flush.
    fn flushed_lock(self) -> Option<LockId> {
        (self.0 & Self::FLUSHES != 0).then_some(LockId(self.0 & !Self::FLUSHES))
    }
}

impl Holder {
    /// The node's value, if the application may read and set it in memory now, under the lock's
    /// write lease.
    pub fn write_lease_value(&self, id: LockId, now: Instant) -> Option<&Value> {
        let own = self.locks.by_id.get(&id)?;
        let write_lease = own.write_lease.as_ref().filter(|write_lease| write_lease.stage == WriteLeaseStage::Open)?;
        let is_certain = !self.lock_remaining(id, now).is_zero() && !self.is_clock_beyond();
        is_certain.then_some(&write_lease.value)
    }

    /// The value that was set last under the lock's write lease, if no flush of it is confirmed.
    pub fn unflushed_value(&self, id: LockId) -> Option<&Value> {
        let write_lease = self.locks.by_id.get(&id)?.write_lease.as_ref()?;
        write_lease.is_dirty().then_some(&write_lease.value)
    }

    /// Whether the lock has a write lease, or one was requested or is ending.
    pub fn has_write_lease(&self, id: LockId) -> bool {
        self.write_leases.locks.contains(&id)
    }

    /// The status of the lock's write lease. `None` if there is none, or if it is only requested.
    pub fn write_lease_status(&self, id: LockId) -> Option<WriteLeaseStatus> {
        let write_lease = self.locks.by_id.get(&id)?.write_lease.as_ref()?;
        (write_lease.stage != WriteLeaseStage::Requested).then_some(write_lease.status)
    }

    /// Sets a value under a write lease for the application. Does nothing if [that is not
    /// possible](Self::write_lease_value) now.
    pub(super) fn set_under_write_lease(&mut self, id: LockId, value: Value, now: Instant) {
        if self.write_lease_value(id, now).is_none() {
            return;
        }
        if let Some(write_lease) = self.write_lease_mut(id) {
            write_lease.value = value;
            write_lease.status.set_count += 1;
        }
        self.note_unflushed(id);
    }

    /// Starts a flush for the application, if there is a dirty value.
    pub(super) fn flush(&mut self, id: LockId) {
        if self
            .write_lease_mut(id)
            .is_some_and(|write_lease| write_lease.stage == WriteLeaseStage::Open && write_lease.is_dirty())
        {
            self.start_flush(id);
        }
    }

    /// Ends a write lease. Other clients can read and write the node when the value is flushed.
    pub(super) fn release_write_lease(&mut self, id: LockId) {
        let Some(write_lease) =
            self.write_lease_mut(id).filter(|write_lease| write_lease.stage == WriteLeaseStage::Open)
        else {
            return;
        };
        write_lease.stage = WriteLeaseStage::Ending;
        write_lease.status.is_open = false;
        self.note_unflushed(id);
        self.notify_write_lease(id);
        self.start_flush(id);
    }

    /// Records a request for a write lease. Returns false if the lock is not exclusive, is being
    /// changed, or has a write lease.
    pub(super) fn request_write_lease(&mut self, id: LockId) -> bool {
        let Some(own) = self.locks.by_id.get_mut(&id) else { return true };
        let is_exclusive = matches!(own.status, LockStatus::Granted { mode: LockMode::Exclusive, .. });
        if !is_exclusive || own.requested_mode.is_some() || own.is_handing_over || own.write_lease.is_some() {
            return false;
        }
        own.write_lease = Some(Box::new(OwnWriteLease::requested()));
        self.write_leases.begin(id, &own.path);
        true
    }

    /// Handles the answer to a request for a write lease. Without data, there is no write lease.
    ///
    /// If a recall of the data has overtaken the answer, the write lease ends at once. The holder
    /// has already consented to that recall. The servers ignore that consent, and wait for the end
    /// of the write lease.
    pub(super) fn handle_write_lease_answer(&mut self, id: LockId, data: Option<Data>, stamp: Stamp) {
        let Some(write_lease) = self.write_lease_mut(id) else { return };
        let Some(Data { value, stat }) = data else { return self.end_write_lease(id) };
        write_lease.value = value;
        write_lease.stage = WriteLeaseStage::Open;
        write_lease.status = WriteLeaseStatus { is_open: true, stat: Some(stat), set_count: 0, flushed_count: 0 };
        self.notify_write_lease(id);
        let object = self.locks.by_id.get(&id).map(|own| Object::data(own.path.clone()));
        if object.is_some_and(|object| self.recalls.overtook(&object, stamp)) {
            self.release_write_lease(id);
        }
    }

    /// Ends the write leases whose data a recall names. Returns true if there are any: the consent
    /// then waits until they have ended. Write leases that are only requested do not count: the
    /// recall may be for an earlier write. If not, the servers ignore the consent and recall again.
    pub(super) fn end_recalled_write_leases(&mut self, stamp: Stamp, sets: &[ObjectSet]) -> bool {
        let is_write_leased = |id: &LockId| {
            let own = self.locks.by_id.get(id);
            let is_granted = |own: &&OwnLock| {
                own.write_lease.as_ref().is_some_and(|write_lease| write_lease.stage != WriteLeaseStage::Requested)
            };
            own.filter(is_granted).is_some()
        };
        let named = sets.iter().flat_map(|set| self.write_leases.within(set));
        let write_leased: BTreeSet<LockId> = named.filter(is_write_leased).collect();
        if write_leased.is_empty() {
            return false;
        }
        for id in &write_leased {
            self.release_write_lease(*id);
        }
        self.write_leases.delay_consent(stamp, &write_leased);
        true
    }

    /// Starts the flushes that are due. Returns whether consents no longer wait for a flush.
    pub(super) fn flush_when_due(&mut self, now: Instant) -> bool {
        let mut due = self.volumes.flushes_due(now);
        due.extend(&self.write_leases.unflushed_ends);
        due.into_iter().for_each(|id| self.start_flush(id));
        let ready = std::mem::take(&mut self.write_leases.ready);
        ready.iter().for_each(|stamp| self.piggyback.consent_late(*stamp));
        !ready.is_empty()
    }

    /// When the next flush is due.
    pub(super) fn flush_deadline(&self) -> Option<Instant> {
        self.volumes.flush_deadline()
    }

    /// Starts a flush, unless one is in flight. The next flush then has the values set meanwhile.
    fn start_flush(&mut self, id: LockId) {
        let Some(own) = self.locks.by_id.get_mut(&id) else { return };
        let LockStatus::Granted { token, .. } = own.status else { return };
        let path = own.path.clone();
        let Some(write_lease) = own.write_lease.as_mut() else { return };
        if write_lease.flush_in_flight.is_some() {
            return;
        }
        let (ends_write_lease, is_dirty) = (write_lease.stage == WriteLeaseStage::Ending, write_lease.is_dirty());
        let value = is_dirty.then(|| write_lease.value.clone());
        write_lease.flush_in_flight =
            Some(FlushInFlight { through: write_lease.status.set_count, has_value: is_dirty, ends_write_lease });
        self.note_unflushed(id);
        self.write(WriteId::flush_of(id), Write::Flush { path, lock: id, token, value, ends_write_lease });
    }

    /// A write has ended. Notifies the application, or the write lease if the write was its flush.
    pub(super) fn write_done(&mut self, write: WriteId, result: Result<Written, WriteFailure>) {
        match write.flushed_lock() {
            Some(lock) => self.flushed(lock, result),
            None => self.effects.push(HolderEffect::WriteDone { write, result }),
        }
    }

    fn flushed(&mut self, id: LockId, result: Result<Written, WriteFailure>) {
        let Some(write_lease) = self.write_lease_mut(id) else { return };
        let Some(FlushInFlight { through, has_value, ends_write_lease }) = write_lease.flush_in_flight.take() else {
            return;
        };
        match result {
            Ok(written) => {
                write_lease.status.flushed_count = through;
                write_lease.status.stat = written.stat.or(write_lease.status.stat);
                match ends_write_lease {
                    true => self.end_write_lease(id),
                    false => self.notify_write_lease(id),
                }
            }
            // Either the session has expired, or a later flush follows if it is still needed.
            Err(WriteFailure::NotSent) => {}
            Err(WriteFailure::OutcomeUnknown) => write_lease.is_outcome_unknown |= has_value,
            Err(WriteFailure::Refused(refusal)) => {
                write_lease.stage = WriteLeaseStage::Ending;
                write_lease.status.is_open = false;
                write_lease.status.flushed_count = write_lease.status.set_count;
                let (value, may_be_written) = (write_lease.value.clone(), write_lease.is_outcome_unknown);
                if has_value {
                    self.effects.push(HolderEffect::FlushLost {
                        lock: id,
                        value,
                        may_be_written,
                        refusal: Some(refusal),
                    });
                }
                // Servers refuse a flush without a value only if there is no such write lease.
                match has_value {
                    true => self.notify_write_lease(id),
                    false => self.end_write_lease(id),
                }
            }
        }
        self.note_unflushed(id);
    }

    /// Handles the loss or release of a lock with a write lease: reports a dirty value as lost.
    pub(super) fn lose_write_lease(&mut self, id: LockId, own: &OwnLock) {
        self.write_leases.end(id, &own.path);
        let Some(write_lease) = own.write_lease.as_ref() else { return };
        // The holder sends no further flush, so it reports the value now.
        let was_sent = self.writes.was_sent(WriteId::flush_of(id));
        self.abandon_write(WriteId::flush_of(id));
        if write_lease.is_dirty() && !self.planted(Bug::LostInSilence) {
            let is_in_flight = was_sent && write_lease.flush_in_flight.is_some_and(|flush| flush.has_value);
            let may_be_written = write_lease.is_outcome_unknown || is_in_flight;
            let value = write_lease.value.clone();
            self.effects.push(HolderEffect::FlushLost { lock: id, value, may_be_written, refusal: None });
        }
    }

    /// Ends a write lease: the lock is an ordinary lock again.
    fn end_write_lease(&mut self, id: LockId) {
        let Some(own) = self.locks.by_id.get_mut(&id) else { return };
        self.write_leases.end(id, &own.path);
        if let Some(write_lease) = own.write_lease.take() {
            let status = WriteLeaseStatus { is_open: false, ..write_lease.status };
            self.effects.push(HolderEffect::WriteLeaseChanged { lock: id, status });
        }
        self.note_unflushed(id);
    }

    fn notify_write_lease(&mut self, id: LockId) {
        if let Some(write_lease) = self.write_lease_mut(id) {
            let status = write_lease.status;
            self.effects.push(HolderEffect::WriteLeaseChanged { lock: id, status });
        }
    }

    fn write_lease_mut(&mut self, id: LockId) -> Option<&mut OwnWriteLease> {
        self.locks.by_id.get_mut(&id)?.write_lease.as_deref_mut()
    }

    /// Checks that write leases match their locks, and that each ending write lease has a flush.
    pub(super) fn check_write_leases(&self) -> Result<(), String> {
        let ids = self.locks.by_id.iter().filter(|(_, own)| own.write_lease.is_some()).map(|(id, _)| *id);
        if ids.collect::<BTreeSet<_>>() != self.write_leases.locks {
            return Err("the list of write leases differs from the locks that have one".to_owned());
        }
        for (id, own) in &self.locks.by_id {
            let Some(write_lease) = &own.write_lease else { continue };
            let has_flush = self.writes.is_pending(WriteId::flush_of(*id));
            if write_lease.flush_in_flight.is_some() != has_flush
                || (write_lease.stage == WriteLeaseStage::Ending && !has_flush)
            {
                return Err(format!(
                    "lock {id}: its write lease is {:?}, and does not fit its flush",
                    write_lease.stage
                ));
            }
        }
        for (id, own) in &self.locks.by_id {
            let volume = self.volumes.get(&own.volume);
            let is_listed = volume.is_some_and(|volume| volume.unflushed.contains(id));
            if (self.write_leases.unflushed_ends.contains(id), is_listed) != own.unflushed() {
                return Err(format!("lock {id}: whether its write lease must be flushed is noted wrongly"));
            }
        }
        let is_ending = |id: &LockId| {
            let write_lease = self.locks.by_id.get(id).and_then(|own| own.write_lease.as_ref());
            write_lease.is_some_and(|write_lease| write_lease.stage == WriteLeaseStage::Ending)
        };
        if let Some((id, stamps)) =
            self.write_leases.waiting.iter().find(|(id, stamps)| !stamps.is_empty() && !is_ending(id))
        {
            return Err(format!("consents {stamps:?} wait for lock {id}, whose write lease does not end"));
        }
        self.write_leases.check()
    }
}
