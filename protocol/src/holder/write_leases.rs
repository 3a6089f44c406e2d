//! Write leases: what the session keeps to itself, in its own memory.
//!
//! Under an exclusive hold that [caches](Write::TakeWriteLease), the application sets the node's
//! value here, as often as it likes, and what it reads here is what it set last. Both only while
//! the hold is certain on this clock (T2), and while nobody has asked for the data: others' reads
//! and writes of it wait for that. What was set is *flushed* to the servers
//!
//! - when somebody asks for the data, by a recall: consent is given when it has been flushed and
//!   the servers have been told that it is kept no longer;
//! - when the application asks for it;
//! - when a renewal of the lease is late: before the lease can end, if a server can be reached at
//!   all.
//!
//! One flush at a time is under way for a node: of two, the first could be sent again after the
//! second (S9). What cannot be flushed any more is told to be lost, with its value, never forgotten
//! in silence (S10).

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Holder, HolderEffect, WriteFailure, WriteId, in_flight::Purpose, locks::OwnLock, session::LinkState,
    volume_leases::RenewalReason,
};
use crate::{
    command::{Write, Written},
    id::{Epoch, LockId, Stamp},
    lock::{LockMode, LockStatus, WriteLeaseStatus},
    message::Body,
    object::{Data, Object, ObjectSet, Value},
    planted::Bug,
    time::Instant,
};

/// What is flushed is flushed when less than this part of a term is left of the lease: its renewal
/// is late by then.
const LATE_PART: u32 = 3;

/// What a write lease stands at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum WriteLeaseStage {
    /// It is asked for.
    Requested,
    /// The application reads and writes.
    Open,
    /// It is given up: what was set is flushed, and nothing more is set.
    Ending,
}

/// What the session keeps to itself of one node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct OwnWriteLease {
    stage: WriteLeaseStage,
    /// What was set last, or is on the servers.
    value: Value,
    status: WriteLeaseStatus,
    flush_in_flight: Option<FlushInFlight>,
    /// A flush was sent, and what came of it was never heard: what it carried may be there.
    is_outcome_unknown: bool,
}

/// A flush on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct FlushInFlight {
    through: u64,
    has_value: bool,
    ends: bool,
}

/// The write leases of the session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct WriteLeases {
    /// The holds that are, or are asked to be.
    locks: BTreeSet<LockId>,
    /// Consents that are given when these holds are none any more.
    pending_consents: BTreeMap<Stamp, BTreeSet<LockId>>,
}

impl WriteLeases {
    /// A new leader knows nothing of what an older one recalled.
    pub(super) fn begin_epoch(&mut self, epoch: Epoch) {
        self.pending_consents.retain(|stamp, _| stamp.epoch >= epoch);
    }

    /// The session is over, and with it all that was recalled from it.
    pub(super) fn clear_pending_consents(&mut self) {
        self.pending_consents.clear();
    }
}

impl OwnWriteLease {
    fn asked() -> Self {
        Self {
            stage: WriteLeaseStage::Requested,
            value: Value::new(),
            status: WriteLeaseStatus::default(),
            flush_in_flight: None,
            is_outcome_unknown: false,
        }
    }

    fn is_dirty(&self) -> bool {
        self.status.set_count > self.status.flushed_count
    }
}

impl WriteId {
    /// The shell's numbers stay below.
    const FLUSHES: u64 = 1 << 63;

    /// The flush of a hold's write lease: there is one at a time.
    fn flush_of(hold: LockId) -> Self {
        Self(Self::FLUSHES | hold.0)
    }

    /// The hold whose flush it is, if it is one.
    fn flushed_lock(self) -> Option<LockId> {
        (self.0 & Self::FLUSHES != 0).then_some(LockId(self.0 & !Self::FLUSHES))
    }
}

impl Holder {
    /// The node's value, if the hold is a write lease under which the application may read and
    /// write in memory now.
    pub fn write_lease_value(&self, id: LockId, now: Instant) -> Option<&Value> {
        let own = self.locks.by_id.get(&id)?;
        let caching = own.write_lease.as_ref().filter(|caching| caching.stage == WriteLeaseStage::Open)?;
        let is_certain = (!self.lock_remaining(id, now).is_zero() && !self.is_clock_beyond())
            || self.planted(Bug::WriteLeaseWithoutClock);
        is_certain.then_some(&caching.value)
    }

    /// Whether the hold is a write lease, is asked to be one, or is about to be one no longer.
    pub fn has_write_lease(&self, id: LockId) -> bool {
        self.write_leases.locks.contains(&id)
    }

    /// How a write lease stands. None of what is none, or only asked for.
    pub fn write_lease_status(&self, id: LockId) -> Option<WriteLeaseStatus> {
        let caching = self.locks.by_id.get(&id)?.write_lease.as_ref()?;
        (caching.stage != WriteLeaseStage::Requested).then_some(caching.status)
    }

    /// The application sets the value of a node that it has to itself. Nothing happens if it [has
    /// not](Self::cached).
    pub(super) fn set_under_write_lease(&mut self, id: LockId, value: Value, now: Instant) {
        if self.write_lease_value(id, now).is_none() {
            return;
        }
        if let Some(caching) = self.write_lease_mut(id) {
            caching.value = value;
            caching.status.set_count += 1;
        }
    }

    /// The application wants it flushed.
    pub(super) fn flush(&mut self, id: LockId) {
        if self.write_lease_mut(id).is_some_and(|caching| caching.stage == WriteLeaseStage::Open && caching.is_dirty())
        {
            self.start_flush(id);
        }
    }

    /// Gives a write lease up: others may read and write the node when what was set has been
    /// flushed.
    pub(super) fn release_write_lease(&mut self, id: LockId) {
        let Some(caching) = self.write_lease_mut(id).filter(|caching| caching.stage == WriteLeaseStage::Open) else {
            return;
        };
        caching.stage = WriteLeaseStage::Ending;
        caching.status.is_open = false;
        self.notify_write_lease(id);
        self.start_flush(id);
    }

    /// The application asks for a write lease. False if the hold is not held alone, or is one
    /// already.
    pub(super) fn request_write_lease(&mut self, id: LockId) -> bool {
        let Some(own) = self.locks.by_id.get_mut(&id) else { return true };
        let is_alone = matches!(own.status, LockStatus::Granted { mode: LockMode::Exclusive, .. });
        if !is_alone || own.requested_mode.is_some() || own.is_handed_over || own.write_lease.is_some() {
            return false;
        }
        own.write_lease = Some(Box::new(OwnWriteLease::asked()));
        self.write_leases.locks.insert(id);
        true
    }

    /// What was asked for has been answered: the servers count it as a write lease, or do not, or
    /// not any more.
    ///
    /// If somebody has asked for the data since, it is given up at once: the consent that was given
    /// to that does not count for it.
    pub(super) fn handle_write_lease_answer(&mut self, id: LockId, data: Option<Data>, stamp: Stamp) {
        let Some(caching) = self.write_lease_mut(id) else { return };
        let Some(Data { value, stat }) = data else { return self.end_write_lease(id) };
        caching.value = value;
        caching.stage = WriteLeaseStage::Open;
        caching.status = WriteLeaseStatus { is_open: true, stat: Some(stat), set_count: 0, flushed_count: 0 };
        self.notify_write_lease(id);
        let object = self.locks.by_id.get(&id).map(|own| Object::data(own.path.clone()));
        if object.is_some_and(|object| self.recalls.overtook(&object, stamp)) {
            self.release_write_lease(id);
        }
    }

    /// Whether a recall asks for the data of write leases. They are given up; the consent waits for
    /// them. One that is only asked for is not among them: the recall may be of a write that comes
    /// before it. If it is not, the servers do not take the consent, and ask again.
    pub(super) fn defer_consent(&mut self, stamp: Stamp, sets: &[ObjectSet]) -> bool {
        let is_kept = |id: &&LockId| {
            let own = self.locks.by_id.get(id);
            let is_open = |own: &&OwnLock| {
                own.write_lease.as_ref().is_some_and(|caching| caching.stage != WriteLeaseStage::Requested)
            };
            own.filter(is_open).is_some_and(|own| {
                let data = Object::data(own.path.clone());
                sets.iter().any(|set| set.contains(&data))
            })
        };
        let kept: BTreeSet<LockId> = self.write_leases.locks.iter().filter(is_kept).copied().collect();
        if kept.is_empty() {
            return false;
        }
        for id in &kept {
            if self.planted(Bug::RecallDropsDirty)
                && let Some(caching) = self.write_lease_mut(*id)
            {
                caching.status.flushed_count = caching.status.set_count;
            }
            self.release_write_lease(*id);
        }
        self.write_leases.pending_consents.insert(stamp, kept);
        true
    }

    /// Gives the consents for which nothing has to be flushed any more, and flushes what has to be.
    pub(super) fn flush_and_consent(&mut self, now: Instant) {
        let due: Vec<LockId> =
            self.write_leases.locks.iter().copied().filter(|id| self.is_flush_due(*id, now)).collect();
        due.into_iter().for_each(|id| self.start_flush(id));
        let is_paid = |holds: &BTreeSet<LockId>| holds.is_disjoint(&self.write_leases.locks);
        let paid =
            self.write_leases.pending_consents.iter().filter(|(_, holds)| is_paid(holds)).map(|(stamp, _)| *stamp);
        let paid: Vec<Stamp> = paid.collect();
        for stamp in &paid {
            self.write_leases.pending_consents.remove(stamp);
            self.piggyback.consent(*stamp);
        }
        // The recall has been answered long ago, without a consent: that has to be carried by
        // something.
        if !paid.is_empty() && self.link == LinkState::Registered {
            let question = self.clock_question(now);
            self.send(Purpose::Heartbeat, Body::Heartbeat(question), RenewalReason::Due, now);
        }
    }

    fn is_flush_due(&self, id: LockId, now: Instant) -> bool {
        let caching = self.locks.by_id.get(&id).and_then(|own| own.write_lease.as_ref());
        let Some(caching) = caching.filter(|caching| caching.flush_in_flight.is_none()) else { return false };
        match caching.stage {
            WriteLeaseStage::Requested => false,
            WriteLeaseStage::Open => self.late_from(id).is_some_and(|late| late <= now),
            WriteLeaseStage::Ending => true,
        }
    }

    /// When what has been set is to be flushed, because a renewal is late then.
    fn late_from(&self, id: LockId) -> Option<Instant> {
        let own = self.locks.by_id.get(&id)?;
        let caching = own.write_lease.as_ref()?;
        let is_waiting =
            caching.stage == WriteLeaseStage::Open && caching.is_dirty() && caching.flush_in_flight.is_none();
        let lease = self.volumes.get(&own.volume)?.lease.as_ref()?;
        is_waiting.then(|| lease.until.before(lease.pace.term / LATE_PART))
    }

    /// When something is to be flushed at the latest.
    pub(super) fn flush_deadline(&self) -> Option<Instant> {
        self.write_leases.locks.iter().filter_map(|id| self.late_from(*id)).min()
    }

    /// Sends what was set. One flush at a time: what is set meanwhile goes with the next.
    fn start_flush(&mut self, id: LockId) {
        let Some(own) = self.locks.by_id.get_mut(&id) else { return };
        let LockStatus::Granted { token, .. } = own.status else { return };
        let path = own.path.clone();
        let Some(caching) = own.write_lease.as_mut() else { return };
        if caching.flush_in_flight.is_some() {
            return;
        }
        let (ends_write_lease, is_dirty) = (caching.stage == WriteLeaseStage::Ending, caching.is_dirty());
        let value = is_dirty.then(|| caching.value.clone());
        caching.flush_in_flight =
            Some(FlushInFlight { through: caching.status.set_count, has_value: is_dirty, ends: ends_write_lease });
        self.write(WriteId::flush_of(id), Write::Flush { path, lock: id, token, value, ends_write_lease });
    }

    /// A write has ended: the application is told, or the write lease whose flush it was.
    pub(super) fn write_done(&mut self, write: WriteId, result: Result<Written, WriteFailure>) {
        match write.flushed_lock() {
            Some(hold) => self.flushed(hold, result),
            None => self.effects.push(HolderEffect::WriteDone { write, result }),
        }
    }

    fn flushed(&mut self, id: LockId, result: Result<Written, WriteFailure>) {
        let Some(caching) = self.write_lease_mut(id) else { return };
        let Some(FlushInFlight { through, has_value, ends }) = caching.flush_in_flight.take() else { return };
        match result {
            Ok(written) => {
                caching.status.flushed_count = through;
                caching.status.stat = written.stat.or(caching.status.stat);
                match ends {
                    true => self.end_write_lease(id),
                    false => self.notify_write_lease(id),
                }
            }
            // What has to be given up still has to be; the session may be gone, too.
            Err(WriteFailure::NotSent) => {}
            Err(WriteFailure::OutcomeUnknown) => caching.is_outcome_unknown |= has_value,
            Err(WriteFailure::Refused(refusal)) => {
                caching.stage = WriteLeaseStage::Ending;
                caching.status.is_open = false;
                caching.status.flushed_count = caching.status.set_count;
                let (value, may_be_there) = (caching.value.clone(), caching.is_outcome_unknown);
                if has_value {
                    self.effects.push(HolderEffect::FlushLost {
                        lock: id,
                        value,
                        may_be_there,
                        refusal: Some(refusal),
                    });
                }
                // Without a value it can be refused only because there is no such write lease.
                match has_value {
                    true => self.notify_write_lease(id),
                    false => self.end_write_lease(id),
                }
            }
        }
    }

    /// The hold is over, with what it keeps.
    pub(super) fn lose_write_lease(&mut self, id: LockId, own: &OwnLock) {
        self.write_leases.locks.remove(&id);
        let Some(caching) = own.write_lease.as_ref() else { return };
        // Not sent any more: the application is told now what can be known.
        let was_sent = self.writes.was_sent(WriteId::flush_of(id));
        self.forget_write(WriteId::flush_of(id));
        if caching.is_dirty() && !self.planted(Bug::LostInSilence) {
            let is_on_its_way = was_sent && caching.flush_in_flight.is_some_and(|flushing| flushing.has_value);
            let may_be_there = caching.is_outcome_unknown || is_on_its_way;
            let value = caching.value.clone();
            self.effects.push(HolderEffect::FlushLost { lock: id, value, may_be_there, refusal: None });
        }
    }

    /// It is an ordinary hold again.
    fn end_write_lease(&mut self, id: LockId) {
        self.write_leases.locks.remove(&id);
        let Some(own) = self.locks.by_id.get_mut(&id) else { return };
        if let Some(caching) = own.write_lease.take() {
            let status = WriteLeaseStatus { is_open: false, ..caching.status };
            self.effects.push(HolderEffect::WriteLeaseChanged { lock: id, status });
        }
    }

    fn notify_write_lease(&mut self, id: LockId) {
        if let Some(caching) = self.write_lease_mut(id) {
            let status = caching.status;
            self.effects.push(HolderEffect::WriteLeaseChanged { lock: id, status });
        }
    }

    fn write_lease_mut(&mut self, id: LockId) -> Option<&mut OwnWriteLease> {
        self.locks.by_id.get_mut(&id)?.write_lease.as_deref_mut()
    }

    /// Write leases are found by their holds, and what has to be given up is on its way.
    pub(super) fn check_write_leases(&self) -> Result<(), String> {
        let caching = self.locks.by_id.iter().filter(|(_, own)| own.write_lease.is_some()).map(|(id, _)| *id);
        if caching.collect::<BTreeSet<_>>() != self.write_leases.locks {
            return Err("the write leases that are listed are not those that the holds say".to_owned());
        }
        for (id, own) in &self.locks.by_id {
            let Some(caching) = &own.write_lease else { continue };
            let flushes = self.writes.is_pending(WriteId::flush_of(*id));
            if caching.flush_in_flight.is_some() != flushes || (caching.stage == WriteLeaseStage::Ending && !flushes) {
                return Err(format!("the write lease of hold {id} is {:?}, and its flush is not", caching.stage));
            }
        }
        match self.write_leases.pending_consents.iter().find(|(_, holds)| holds.is_disjoint(&self.write_leases.locks)) {
            Some((stamp, _)) => Err(format!("the consent to {stamp:?} waits for nothing")),
            None => Ok(()),
        }
    }
}
