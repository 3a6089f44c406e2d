//! Write leases: what the session keeps to itself, in its own memory.
//!
//! Under an exclusive hold that [caches](Write::Cache), the application sets the node's value here, as often as it likes, and what it reads here is
//! what it set last. Both only while the hold is certain on this clock (T2), and while nobody has asked for the data: others' reads and writes of it
//! wait for that. What was set is *flushed* to the servers
//!
//! - when somebody asks for the data, by a recall: consent is given when it has been flushed and the servers have been told that it is kept no longer;
//! - when the application asks for it;
//! - when a renewal of the lease is late: before the lease can end, if a server can be reached at all.
//!
//! One flush at a time is under way for a node: of two, the first could be sent again after the second (S9). What cannot be flushed any more is told to be
//! lost, with its value, never forgotten in silence (S10).

use std::collections::{BTreeMap, BTreeSet};

use super::{Effect, Holder, WriteError, WriteId, flights::Purpose, holding::OwnHold, session::Link, volumes::Ride};
use crate::{
    command::{Write, Written},
    hold::{CachingStatus, HoldMode, HoldStatus},
    id::{Epoch, HoldId, Stamp},
    message::Body,
    object::{Data, Object, ObjectSet, Value},
    planted::Bug,
    time::Instant,
};

/// What is flushed is flushed when less than this part of a term is left of the lease: its renewal is late by then.
const LATE_PART: u32 = 3;

/// What a write lease stands at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    /// It is asked for.
    Asked,
    /// The application reads and writes.
    Open,
    /// It is given up: what was set is flushed, and nothing more is set.
    Ending,
}

/// What the session keeps to itself of one node.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Caching {
    stage: Stage,
    /// What was set last, or is on the servers.
    value: Value,
    status: CachingStatus,
    flushing: Option<Flushing>,
    /// A flush was sent, and what came of it was never heard: what it carried may be there.
    is_unsure: bool,
}

/// A flush on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Flushing {
    through: u64,
    has_value: bool,
    ends: bool,
}

/// The write leases of the session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct WriteLeases {
    /// The holds that are, or are asked to be.
    holds: BTreeSet<HoldId>,
    /// Consents that are given when these holds are none any more.
    owed: BTreeMap<Stamp, BTreeSet<HoldId>>,
}

impl WriteLeases {
    /// A new leader knows nothing of what an older one recalled.
    pub(super) fn begin_epoch(&mut self, epoch: Epoch) {
        self.owed.retain(|stamp, _| stamp.epoch >= epoch);
    }

    /// The session is over, and with it all that was recalled from it.
    pub(super) fn owe_nothing(&mut self) {
        self.owed.clear();
    }
}

impl Caching {
    fn asked() -> Self {
        Self {
            stage: Stage::Asked,
            value: Value::new(),
            status: CachingStatus::default(),
            flushing: None,
            is_unsure: false,
        }
    }

    fn is_dirty(&self) -> bool {
        self.status.changes > self.status.flushed
    }
}

impl WriteId {
    /// The shell's numbers stay below.
    const FLUSHES: u64 = 1 << 63;

    /// The flush of a hold's write lease: there is one at a time.
    fn flush_of(hold: HoldId) -> Self {
        Self(Self::FLUSHES | hold.0)
    }

    /// The hold whose flush it is, if it is one.
    fn flushed_hold(self) -> Option<HoldId> {
        (self.0 & Self::FLUSHES != 0).then_some(HoldId(self.0 & !Self::FLUSHES))
    }
}

impl Holder {
    /// The node's value, if the hold is a write lease under which the application may read and write in memory now.
    pub fn cached(&self, id: HoldId, now: Instant) -> Option<&Value> {
        let own = self.holding.holds.get(&id)?;
        let caching = own.caching.as_ref().filter(|caching| caching.stage == Stage::Open)?;
        let is_certain = (!self.hold_certain_for(id, now).is_zero() && !self.is_clock_beyond())
            || self.planted(Bug::WriteLeaseWithoutClock);
        is_certain.then_some(&caching.value)
    }

    /// Whether the hold is a write lease, is asked to be one, or is about to be one no longer.
    pub fn is_caching(&self, id: HoldId) -> bool {
        self.write_leases.holds.contains(&id)
    }

    /// How a write lease stands. None of what is none, or only asked for.
    pub fn caching_status(&self, id: HoldId) -> Option<CachingStatus> {
        let caching = self.holding.holds.get(&id)?.caching.as_ref()?;
        (caching.stage != Stage::Asked).then_some(caching.status)
    }

    /// The application sets the value of a node that it has to itself. Nothing happens if it [has not](Self::cached).
    pub(super) fn set_cached(&mut self, id: HoldId, value: Value, now: Instant) {
        if self.cached(id, now).is_none() {
            return;
        }
        if let Some(caching) = self.caching_mut(id) {
            caching.value = value;
            caching.status.changes += 1;
        }
    }

    /// The application wants it flushed.
    pub(super) fn flush(&mut self, id: HoldId) {
        if self.caching_mut(id).is_some_and(|caching| caching.stage == Stage::Open && caching.is_dirty()) {
            self.start_flush(id);
        }
    }

    /// Gives a write lease up: others may read and write the node when what was set has been flushed.
    pub(super) fn end_caching(&mut self, id: HoldId) {
        let Some(caching) = self.caching_mut(id).filter(|caching| caching.stage == Stage::Open) else { return };
        caching.stage = Stage::Ending;
        caching.status.is_open = false;
        self.tell_caching(id);
        self.start_flush(id);
    }

    /// The application asks for a write lease. False if the hold is not held alone, or is one already.
    pub(super) fn ask_to_cache(&mut self, id: HoldId) -> bool {
        let Some(own) = self.holding.holds.get_mut(&id) else { return true };
        let is_alone = matches!(own.status, HoldStatus::Held { mode: HoldMode::Exclusive, .. });
        if !is_alone || own.converting.is_some() || own.is_handed_over || own.caching.is_some() {
            return false;
        }
        own.caching = Some(Box::new(Caching::asked()));
        self.write_leases.holds.insert(id);
        true
    }

    /// What was asked for has been answered: the servers count it as a write lease, or do not, or not any more.
    ///
    /// If somebody has asked for the data since, it is given up at once: the consent that was given to that does not count for it.
    pub(super) fn asked_to_cache(&mut self, id: HoldId, data: Option<Data>, stamp: Stamp) {
        let Some(caching) = self.caching_mut(id) else { return };
        let Some(Data { value, stat }) = data else { return self.forget_caching(id) };
        caching.value = value;
        caching.stage = Stage::Open;
        caching.status = CachingStatus { is_open: true, stat: Some(stat), changes: 0, flushed: 0 };
        self.tell_caching(id);
        let object = self.holding.holds.get(&id).map(|own| Object::data(own.path.clone()));
        if object.is_some_and(|object| self.recalls.overtook(&object, stamp)) {
            self.end_caching(id);
        }
    }

    /// Whether a recall asks for the data of write leases. They are given up; the consent waits for them. One that is only asked for is not
    /// among them: the recall may be of a write that comes before it. If it is not, the servers do not take the consent, and ask again.
    pub(super) fn owes(&mut self, stamp: Stamp, sets: &[ObjectSet]) -> bool {
        let is_kept = |id: &&HoldId| {
            let own = self.holding.holds.get(id);
            let is_open = |own: &&OwnHold| own.caching.as_ref().is_some_and(|caching| caching.stage != Stage::Asked);
            own.filter(is_open).is_some_and(|own| {
                let data = Object::data(own.path.clone());
                sets.iter().any(|set| set.contains(&data))
            })
        };
        let kept: BTreeSet<HoldId> = self.write_leases.holds.iter().filter(is_kept).copied().collect();
        if kept.is_empty() {
            return false;
        }
        for id in &kept {
            if self.planted(Bug::RecallDropsDirty)
                && let Some(caching) = self.caching_mut(*id)
            {
                caching.status.flushed = caching.status.changes;
            }
            self.end_caching(*id);
        }
        self.write_leases.owed.insert(stamp, kept);
        true
    }

    /// Gives the consents for which nothing has to be flushed any more, and flushes what has to be.
    pub(super) fn look_after_caching(&mut self, now: Instant) {
        let due: Vec<HoldId> =
            self.write_leases.holds.iter().copied().filter(|id| self.is_flush_due(*id, now)).collect();
        due.into_iter().for_each(|id| self.start_flush(id));
        let is_paid = |holds: &BTreeSet<HoldId>| holds.is_disjoint(&self.write_leases.holds);
        let paid = self.write_leases.owed.iter().filter(|(_, holds)| is_paid(holds)).map(|(stamp, _)| *stamp);
        let paid: Vec<Stamp> = paid.collect();
        for stamp in &paid {
            self.write_leases.owed.remove(stamp);
            self.riders.consent(*stamp);
        }
        // The recall has been answered long ago, without a consent: that has to be carried by something.
        if !paid.is_empty() && self.link == Link::Registered {
            let question = self.clock_question(now);
            self.send(Purpose::KeepAlive, Body::KeepAlive(question), Ride::Due, now);
        }
    }

    fn is_flush_due(&self, id: HoldId, now: Instant) -> bool {
        let caching = self.holding.holds.get(&id).and_then(|own| own.caching.as_ref());
        let Some(caching) = caching.filter(|caching| caching.flushing.is_none()) else { return false };
        match caching.stage {
            Stage::Asked => false,
            Stage::Open => self.late_from(id).is_some_and(|late| late <= now),
            Stage::Ending => true,
        }
    }

    /// When what has been set is to be flushed, because a renewal is late then.
    fn late_from(&self, id: HoldId) -> Option<Instant> {
        let own = self.holding.holds.get(&id)?;
        let caching = own.caching.as_ref()?;
        let is_waiting = caching.stage == Stage::Open && caching.is_dirty() && caching.flushing.is_none();
        let lease = self.volumes.get(&own.volume)?.lease.as_ref()?;
        is_waiting.then(|| lease.until.before(lease.pace.term / LATE_PART))
    }

    /// When something is to be flushed at the latest.
    pub(super) fn flush_deadline(&self) -> Option<Instant> {
        self.write_leases.holds.iter().filter_map(|id| self.late_from(*id)).min()
    }

    /// Sends what was set. One flush at a time: what is set meanwhile goes with the next.
    fn start_flush(&mut self, id: HoldId) {
        let Some(own) = self.holding.holds.get_mut(&id) else { return };
        let HoldStatus::Held { token, .. } = own.status else { return };
        let path = own.path.clone();
        let Some(caching) = own.caching.as_mut() else { return };
        if caching.flushing.is_some() {
            return;
        }
        let (ends, is_dirty) = (caching.stage == Stage::Ending, caching.is_dirty());
        let value = is_dirty.then(|| caching.value.clone());
        caching.flushing = Some(Flushing { through: caching.status.changes, has_value: is_dirty, ends });
        self.write(WriteId::flush_of(id), Write::Flush { path, hold: id, token, value, ends });
    }

    /// A write has ended: the application is told, or the write lease whose flush it was.
    pub(super) fn write_done(&mut self, write: WriteId, result: Result<Written, WriteError>) {
        match write.flushed_hold() {
            Some(hold) => self.flushed(hold, result),
            None => self.effects.push(Effect::WriteDone { write, result }),
        }
    }

    fn flushed(&mut self, id: HoldId, result: Result<Written, WriteError>) {
        let Some(caching) = self.caching_mut(id) else { return };
        let Some(Flushing { through, has_value, ends }) = caching.flushing.take() else { return };
        match result {
            Ok(written) => {
                caching.status.flushed = through;
                caching.status.stat = written.stat.or(caching.status.stat);
                match ends {
                    true => self.forget_caching(id),
                    false => self.tell_caching(id),
                }
            }
            // What has to be given up still has to be; the session may be gone, too.
            Err(WriteError::NotSent) => {}
            Err(WriteError::OutcomeUnknown) => caching.is_unsure |= has_value,
            Err(WriteError::Refused(refusal)) => {
                caching.stage = Stage::Ending;
                caching.status.is_open = false;
                caching.status.flushed = caching.status.changes;
                let (value, may_be_there) = (caching.value.clone(), caching.is_unsure);
                if has_value {
                    self.effects.push(Effect::FlushLost { hold: id, value, may_be_there, refusal: Some(refusal) });
                }
                // Without a value it can be refused only because there is no such write lease.
                match has_value {
                    true => self.tell_caching(id),
                    false => self.forget_caching(id),
                }
            }
        }
    }

    /// The hold is over, with what it keeps.
    pub(super) fn lose_caching(&mut self, id: HoldId, own: &OwnHold) {
        self.write_leases.holds.remove(&id);
        let Some(caching) = own.caching.as_ref() else { return };
        // Not sent any more: the application is told now what can be known.
        let was_sent = self.writes.was_sent(WriteId::flush_of(id));
        self.withdraw_write(WriteId::flush_of(id));
        if caching.is_dirty() && !self.planted(Bug::LostInSilence) {
            let is_on_its_way = was_sent && caching.flushing.is_some_and(|flushing| flushing.has_value);
            let may_be_there = caching.is_unsure || is_on_its_way;
            let value = caching.value.clone();
            self.effects.push(Effect::FlushLost { hold: id, value, may_be_there, refusal: None });
        }
    }

    /// It is an ordinary hold again.
    fn forget_caching(&mut self, id: HoldId) {
        self.write_leases.holds.remove(&id);
        let Some(own) = self.holding.holds.get_mut(&id) else { return };
        if let Some(caching) = own.caching.take() {
            let status = CachingStatus { is_open: false, ..caching.status };
            self.effects.push(Effect::CachingChanged { hold: id, status });
        }
    }

    fn tell_caching(&mut self, id: HoldId) {
        if let Some(caching) = self.caching_mut(id) {
            let status = caching.status;
            self.effects.push(Effect::CachingChanged { hold: id, status });
        }
    }

    fn caching_mut(&mut self, id: HoldId) -> Option<&mut Caching> {
        self.holding.holds.get_mut(&id)?.caching.as_deref_mut()
    }

    /// Write leases are found by their holds, and what has to be given up is on its way.
    pub(super) fn check_caching(&self) -> Result<(), String> {
        let caching = self.holding.holds.iter().filter(|(_, own)| own.caching.is_some()).map(|(id, _)| *id);
        if caching.collect::<BTreeSet<_>>() != self.write_leases.holds {
            return Err("the write leases that are listed are not those that the holds say".to_owned());
        }
        for (id, own) in &self.holding.holds {
            let Some(caching) = &own.caching else { continue };
            let flushes = self.writes.is_pending(WriteId::flush_of(*id));
            if caching.flushing.is_some() != flushes || (caching.stage == Stage::Ending && !flushes) {
                return Err(format!("the write lease of hold {id} is {:?}, and its flush is not", caching.stage));
            }
        }
        match self.write_leases.owed.iter().find(|(_, holds)| holds.is_disjoint(&self.write_leases.holds)) {
            Some((stamp, _)) => Err(format!("the consent to {stamp:?} waits for nothing")),
            None => Ok(()),
        }
    }
}
