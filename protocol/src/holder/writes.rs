//! Writes: each gets a sequence, and is sent until it is answered. It takes effect at most once.
//!
//! S2w: each sending of a write drops the writer's own copies of the objects that the write may
//! change, and names the highest stamp seen. From then on the holder caches no grant on them up to
//! that stamp. So the leader recalls them from the writer only if it has granted a lease on them
//! with a later stamp. The answer counts as a recall of all older copies, and may grant a lease on
//! the written node.
//!
//! S9: a write has one sequence until it is answered or cancelled. When the session has expired, no
//! write is sent again. The outcome of those that were sent is unknown.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    Holder, HolderBounds, SendId, WriteFailure, WriteId, attachments::attached_to_session, backlog::Backlog,
    in_flight::Purpose, object_leases::ArrivedGrant, own_footprint::may_change, volume_leases::RenewalSelection,
};
use crate::{
    command::{Write, WriteRefusal, Written},
    id::{Epoch, Revision, Sequence, Stamp},
    lock::LockMode,
    message::{Body, Grant, Refusal},
    object::{Content, Data, Object, ObjectSet},
    path::NodePath,
    reached::{Bound, reached},
    time::Instant,
};

/// A write without an answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct UnansweredWrite {
    write: Write,
    /// The sets of copies that each sending drops. Fixed at the first sending.
    dropped: Vec<ObjectSet>,
    /// From the first sending on.
    sequence: Option<Sequence>,
    /// The latest sending.
    send_id: Option<SendId>,
    sendings: u32,
    /// The server refused a lease for its node or lock. It is sent anyway, and gets a refusal.
    goes_without_lease: bool,
    /// It was refused once (`is_misplaced`), and has used its one chance of another sequence.
    has_second_sequence: bool,
}

/// All writes without an answer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct OwnWrites {
    pending: BTreeMap<WriteId, UnansweredWrite>,
    /// Those of the pending writes that attach nodes to, or lock under, leases of the session.
    attaching: BTreeSet<WriteId>,
    by_sequence: BTreeMap<Sequence, WriteId>,
    last_sequence: Sequence,
    backlog: Backlog,
    /// A sent write was cancelled, and the leader may still have it. The answer to a request from
    /// this send id on shows that the leader has dropped or proposed it, unless an earlier write
    /// than this sequence is unanswered: then the request did not give it up.
    given_up: Option<(SendId, Sequence)>,
    bounds: HolderBounds,
}

/// A leader's answer to a write that took effect.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct AppliedWrite {
    pub(super) written: Written,
    pub(super) stamp: Stamp,
    pub(super) grant: Option<Grant>,
    pub(super) applied: Revision,
    pub(super) write_lease_data: Option<Box<Data>>,
}

impl OwnWrites {
    pub(super) fn new(bounds: HolderBounds) -> Self {
        let (pending, attaching, by_sequence, last_sequence, backlog, given_up) = Default::default();
        Self { pending, attaching, by_sequence, last_sequence, backlog, given_up, bounds }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// The sequence of the next new write.
    pub(super) fn next_sequence(&self) -> Sequence {
        self.last_sequence.next()
    }

    /// The lowest sequence that is neither answered nor cancelled.
    pub(super) fn unanswered_from(&self) -> Sequence {
        self.by_sequence.keys().next().copied().unwrap_or(self.next_sequence())
    }

    /// The first unanswered write, if the sequence that has ended was lower.
    fn first_after(&self, ended: Option<Sequence>) -> Option<WriteId> {
        let (first, write_id) = self.by_sequence.first_key_value()?;
        ended.is_some_and(|ended| ended < *first).then_some(*write_id)
    }

    pub(super) fn is_pending(&self, write_id: WriteId) -> bool {
        self.pending.contains_key(&write_id)
    }

    /// Whether the write was sent and has not ended.
    pub(super) fn was_sent(&self, write_id: WriteId) -> bool {
        self.pending.get(&write_id).is_some_and(|pending| pending.sendings > 0)
    }

    /// Whether the write cannot be cancelled, because the client depends on its outcome. A write
    /// lease may begin, and must then be flushed. As soon as the client requests a downgrade, it
    /// counts the lock as shared, so the servers must learn of the downgrade.
    fn is_never_given_up(&self, write_id: WriteId) -> bool {
        let write = self.pending.get(&write_id).map(|pending| &pending.write);
        matches!(
            write,
            Some(
                Write::TakeWriteLease { .. }
                    | Write::Flush { .. }
                    | Write::ChangeLockMode { mode: LockMode::Shared, .. }
            )
        )
    }

    /// Whether the write may be refused because leases need too many renewals.
    pub(super) fn is_about_load(&self, write_id: WriteId) -> bool {
        let write = self.pending.get(&write_id).map(|pending| &pending.write);
        matches!(write, Some(Write::GrantLease { .. } | Write::SetVolume { .. }))
    }

    /// The write's sequence, if it was sent.
    pub(super) fn sequence(&self, write_id: WriteId) -> Option<Sequence> {
        self.pending.get(&write_id)?.sequence
    }

    /// How many more sequences are free.
    fn room(&self) -> u64 {
        (self.unanswered_from().0 + self.bounds.writes_out_max).saturating_sub(self.next_sequence().0)
    }

    /// Assigns a sequence to a write. Returns false if the write must wait for one.
    fn assign_sequence(&mut self, write_id: WriteId) -> bool {
        let (room, next) = (self.room(), self.next_sequence());
        let Some(pending) = self.pending.get_mut(&write_id) else { return false };
        let is_flush = matches!(pending.write, Write::Flush { .. });
        let has_room = room > if is_flush { 0 } else { self.bounds.flushes_out_max };
        if pending.sequence.is_some() {
            return true;
        }
        if has_room {
            pending.sequence = Some(next);
            self.last_sequence = next;
            self.by_sequence.insert(next, write_id);
        } else {
            reached(Bound::WritesOut);
            if room > 0 {
                reached(Bound::FlushesOut);
            }
            match is_flush {
                true => self.backlog.push_front(write_id),
                false => self.backlog.push_back(write_id),
            }
        }
        has_room
    }

    /// Prepares a refused write for another sending under another sequence. False the second time.
    fn begin_second_sequence(&mut self, write_id: WriteId) -> bool {
        let Some(pending) = self.pending.get_mut(&write_id).filter(|pending| !pending.has_second_sequence) else {
            return false;
        };
        pending.has_second_sequence = true;
        (pending.send_id, pending.sendings) = (None, 0);
        if let Some(sequence) = pending.sequence.take() {
            self.by_sequence.remove(&sequence);
        }
        true
    }

    fn insert(&mut self, write_id: WriteId, pending: UnansweredWrite) {
        if attached_to_session(&pending.write).next().is_some() {
            self.attaching.insert(write_id);
        }
        self.pending.insert(write_id, pending);
    }

    fn end(&mut self, write_id: WriteId) -> Option<UnansweredWrite> {
        let pending = self.pending.remove(&write_id)?;
        self.attaching.remove(&write_id);
        match pending.sequence {
            Some(sequence) => {
                self.by_sequence.remove(&sequence);
            }
            None => self.backlog.remove(write_id),
        }
        Some(pending)
    }

    /// Removes and returns the writes for which sequences are free now.
    fn take_backlog(&mut self) -> Vec<WriteId> {
        let is_flush = |id: WriteId| self.pending.get(&id).is_some_and(|own| matches!(own.write, Write::Flush { .. }));
        let reserved = if self.backlog.first().is_some_and(is_flush) { 0 } else { self.bounds.flushes_out_max };
        let room = self.room().saturating_sub(reserved);
        (0..room).map_while(|_| self.backlog.pop()).collect()
    }

    /// Records that the server refused a lease for these writes.
    pub(super) fn go_without_lease(&mut self, writes: &BTreeSet<WriteId>) {
        for write_id in writes {
            if let Some(pending) = self.pending.get_mut(write_id) {
                pending.goes_without_lease = true;
            }
        }
    }

    /// Whether the leader may have a write of this client that has not taken effect.
    pub(super) fn are_sent(&self) -> bool {
        self.given_up.is_some() || !self.by_sequence.is_empty()
    }

    /// The leader has handled this request, so it has dropped the cancelled writes below the
    /// request's `unanswered_from`.
    pub(super) fn handled(&mut self, send_id: SendId) {
        self.given_up = self.given_up.filter(|(from, last)| send_id < *from || self.unanswered_from() <= *last);
    }

    /// Whether a pending write attaches nodes to, or locks under, leases of the session.
    pub(super) fn may_attach(&self) -> bool {
        !self.attaching.is_empty()
    }

    /// The nodes that sent writes may attach, and the nodes that they may lock.
    pub(super) fn attaching_paths(&self) -> impl Iterator<Item = &NodePath> {
        self.pending.values().filter(|write| write.sendings > 0).flat_map(|write| attached_to_session(&write.write))
    }

    /// Ends all writes. Returns them in order, and whether each was sent. Sequences restart at 1.
    pub(super) fn end_all(&mut self) -> Vec<(WriteId, bool)> {
        let pending = std::mem::replace(self, Self::new(self.bounds)).pending;
        pending.into_iter().map(|(write_id, pending)| (write_id, pending.sequence.is_some())).collect()
    }
}

impl Holder {
    pub(super) fn write(&mut self, write_id: WriteId, write: Write) {
        if self.is_closed() || !self.begin_lock_change(&write) {
            return self.write_done(write_id, Err(WriteFailure::NotSent));
        }
        let paths: Vec<&NodePath> = match &write {
            Write::Transaction(transaction) => transaction.paths().collect(),
            _ => write.path().into_iter().collect(),
        };
        paths.into_iter().for_each(|path| self.volumes.touch(path));
        let pending = UnansweredWrite {
            write,
            dropped: Vec::new(),
            sequence: None,
            send_id: None,
            sendings: 0,
            goes_without_lease: false,
            has_second_sequence: false,
        };
        self.writes.insert(write_id, pending);
        self.send_queue.push(Purpose::Write(write_id));
    }

    /// Sends a write. Each sending first drops the writer's own copies (S2w).
    pub(super) fn send_write(&mut self, write_id: WriteId, now: Instant) {
        if !self.has_lease_for(write_id, now) {
            return;
        }
        if !self.writes.assign_sequence(write_id) {
            return;
        }
        let Some(pending) = self.writes.pending.get_mut(&write_id) else { return };
        if pending.send_id.is_some_and(|send_id| self.in_flight.purpose(send_id).is_some()) {
            return;
        }
        if pending.dropped.is_empty() {
            let data = pending.write.path().and_then(|path| self.copies.get(&Object::data(path.clone())));
            let is_known_to_exist = data.is_some_and(|copy| copy.modified.is_some());
            pending.dropped = may_change(&pending.write, is_known_to_exist);
        }
        pending.sendings += 1;
        if pending.sendings == 1 {
            attached_to_session(&pending.write).for_each(|path| self.volumes.begin_attaching(path));
        }
        let (write, dropped) = (pending.write.clone(), pending.dropped.clone());
        let floor = Stamp { epoch: self.epoch, sequence: 0 };
        let seen = if self.stamp_seen.epoch == self.epoch { self.stamp_seen } else { floor };
        self.drop_and_overtake(&dropped, self.stamp_seen.max(floor));
        // This write may have to wait for another session's write, which waits for this client's
        // delayed consent.
        self.end_delays(now);
        self.consent_when_due(now);
        let path = write.path().cloned();
        let reason = path.as_ref().map_or(RenewalSelection::Due, RenewalSelection::OnPath);
        let body = Body::Write { write, dropped, seen };
        let send_id = self.send(Purpose::Write(write_id), body, reason, now);
        if let Some(pending) = self.writes.pending.get_mut(&write_id) {
            pending.send_id = Some(send_id);
        }
    }

    /// Whether the session has the leases that the write's nodes or lock need. If not, it acquires
    /// the first missing lease, and the write is sent later.
    fn has_lease_for(&mut self, write_id: WriteId, now: Instant) -> bool {
        let Some(pending) = self.writes.pending.get(&write_id) else { return false };
        if pending.sequence.is_some() || pending.goes_without_lease {
            return true;
        }
        let is_missing = |top: &NodePath| self.volumes.get(top).is_none_or(|volume| volume.live(now).is_none());
        let mut needed = attached_to_session(&pending.write).map(|path| (self.volumes.nearest(path), path));
        let Some((top, path)) = needed.find(|(top, _)| is_missing(top)) else { return true };
        let path = path.clone();
        drop(needed);
        self.acquire_for(top, &path, write_id);
        false
    }

    pub(super) fn written(
        &mut self,
        write_id: WriteId,
        sent: Instant,
        epoch: Epoch,
        answer: AppliedWrite,
        now: Instant,
    ) {
        let Some(pending) = self.end_write(write_id) else { return };
        let AppliedWrite { written, stamp, grant, applied, write_lease_data } = answer;
        self.overtake_older(&pending.dropped, stamp);
        self.note_attachments(&pending.write, &written);
        let lost_lock = self.apply_lock_outcome(&pending.write, &written, now);
        match &pending.write {
            Write::TakeWriteLease { lock, .. } => {
                self.handle_write_lease_answer(*lock, write_lease_data.map(|data| *data), stamp)
            }
            Write::HandOver { lock, .. } => self.forget_lock(*lock),
            _ => {}
        }
        if let (Write::Put { path, value, .. }, Some(stat), Some(grant)) = (pending.write, written.stat, grant) {
            let object = Object::data(path);
            let arrival = ArrivedGrant { grant: &grant, epoch, applied, sent };
            if let Some(copy) = self.accept_grant(&object, arrival, now) {
                let content = Arc::new(Content::Data(Some(Data { value, stat })));
                self.install(&object, copy, &content, now);
            }
        }
        self.write_done(write_id, Ok(written));
        if let Some(lock) = lost_lock {
            self.notify_locks_lost(vec![lock], true);
        }
    }

    /// Drops copies that are older than the write, and refuses grants of such copies from now on.
    fn overtake_older(&mut self, sets: &[ObjectSet], stamp: Stamp) {
        self.stamp_seen = self.stamp_seen.max(stamp);
        let older = Stamp { epoch: stamp.epoch, sequence: stamp.sequence.saturating_sub(1) };
        let mut dropped_objects = Vec::new();
        for set in sets {
            dropped_objects.extend(self.copies.remove_where(set, |copy| copy.validity.stamp <= older));
            self.recalls.remember(set, older, self.in_flight.next());
        }
        self.ask_to_drop(dropped_objects);
    }

    /// Handles a refusal for good: the write did not take effect, and never will.
    pub(super) fn refused_write(&mut self, write_id: WriteId, refusal: Refusal) {
        if self.is_misplaced(write_id, &refusal) {
            return self.send_queue.push(Purpose::Write(write_id));
        }
        let Some(pending) = self.end_write(write_id) else { return };
        // The servers may have forgotten the outcome of an earlier sending.
        let is_unknown = matches!(refusal, Refusal::OutsideWindow { .. }) && pending.sendings > 1;
        if !is_unknown {
            self.undo_hand_over(&pending.write);
        }
        let error = if is_unknown { WriteFailure::OutcomeUnknown } else { WriteFailure::Refused(refusal) };
        if let Write::TakeWriteLease { lock, .. } = &pending.write {
            self.handle_write_lease_answer(*lock, None, Stamp::default());
        }
        self.write_done(write_id, Err(error));
    }

    /// Cancels a write for the application.
    pub(super) fn cancel_write(&mut self, write_id: WriteId) {
        if self.writes.is_never_given_up(write_id) {
            return;
        }
        let Some(pending) = self.abandon_write(write_id) else { return };
        let was_sent = pending.sendings > 0;
        if !was_sent {
            self.undo_hand_over(&pending.write);
        }
        let error = if was_sent { WriteFailure::OutcomeUnknown } else { WriteFailure::NotSent };
        self.write_done(write_id, Err(error));
    }

    /// Whether the write is not sent yet. If it is cancelled now, it never takes effect.
    pub fn is_unsent(&self, write_id: WriteId) -> bool {
        self.writes.is_pending(write_id) && !self.writes.was_sent(write_id)
    }

    /// Ends a write without an answer. The next request says that this client gives it up.
    pub(super) fn abandon_write(&mut self, write_id: WriteId) -> Option<UnansweredWrite> {
        let pending = self.end_write(write_id)?;
        if let Some(send_id) = pending.send_id {
            self.in_flight.end(send_id);
        }
        if let Some(sequence) = pending.sequence {
            let last = self.writes.given_up.map_or(sequence, |(_, last)| last.max(sequence));
            self.writes.given_up = Some((self.in_flight.next(), last));
        }
        Some(pending)
    }

    /// Whether to send a refused write once more, under another sequence (S7b). The node was in an
    /// unknown volume, or the lease on its volume was replaced after the write arrived. This
    /// happens only once: if volumes change again, the application decides.
    fn is_misplaced(&mut self, write_id: WriteId, refusal: &Refusal) -> bool {
        let refusal = match refusal {
            Refusal::Write(WriteRefusal::Operation { refusal, .. }) => refusal,
            Refusal::Write(refusal) => refusal,
            _ => return false,
        };
        let WriteRefusal::NoVolumeLease { path, volume } = refusal else { return false };
        let is_new_volume = *volume != self.volumes.nearest(path);
        self.learn_volume(path, volume);
        let may_have_new_lease = self.volumes.get(volume).is_some_and(|volume| volume.lease.is_some());
        let sequence = self.writes.sequence(write_id);
        let has_second_sequence = (is_new_volume || may_have_new_lease || self.is_suspended(volume))
            && self.writes.begin_second_sequence(write_id);
        if has_second_sequence && let Some(pending) = self.writes.pending.get(&write_id) {
            attached_to_session(&pending.write).for_each(|path| self.volumes.end_attaching(path));
            self.sequence_is_free(sequence);
        }
        has_second_sequence
    }

    /// Handles a free sequence: queues the unsent writes that get one, and the write that is now
    /// the first.
    fn sequence_is_free(&mut self, sequence: Option<Sequence>) {
        for next in self.writes.take_backlog() {
            self.send_queue.push(Purpose::Write(next));
        }
        // A leader always has room for the results of the first unanswered write, so that write
        // need not wait.
        if let Some(first) = self.writes.first_after(sequence) {
            self.send_queue.hasten(&Purpose::Write(first));
        }
    }

    fn end_write(&mut self, write_id: WriteId) -> Option<UnansweredWrite> {
        let pending = self.writes.end(write_id)?;
        // Earlier requests may name this write as the lowest that is not given up.
        self.writes.given_up = self.writes.given_up.map(|(_, sequence)| (self.in_flight.next(), sequence));
        if pending.sendings > 0 {
            attached_to_session(&pending.write).for_each(|path| self.volumes.end_attaching(path));
        }
        self.end_lock_change(&pending.write);
        self.cancel_waiting_write(write_id, &pending.write);
        self.send_queue.cancel(&Purpose::Write(write_id));
        self.sequence_is_free(pending.sequence);
        Some(pending)
    }

    /// Checks that each write is in flight or waits, and that no sequence is beyond the window.
    pub(super) fn check_writes(&self) -> Result<(), String> {
        let OwnWrites { pending, attaching, by_sequence, last_sequence, backlog, bounds, .. } = &self.writes;
        let writes_max = bounds.writes_out_max;
        backlog.check()?;
        for (write_id, unanswered) in pending {
            let purpose = Purpose::Write(*write_id);
            let is_in_flight =
                unanswered.send_id.is_some_and(|send_id| self.in_flight.purpose(send_id) == Some(&purpose));
            let wants_lease = self.acquisitions.values().any(|acquisition| acquisition.writes.contains(write_id));
            let waits = self.send_queue.contains(&purpose) || backlog.contains(*write_id) || wants_lease;
            if is_in_flight == waits {
                return Err(format!("{write_id:?} is both in flight and waiting, or neither: {unanswered:?}"));
            }
            if (unanswered.sendings > 0) != unanswered.sequence.is_some() {
                return Err(format!("{write_id:?} has a sequence and was not sent, or the reverse: {unanswered:?}"));
            }
        }
        let attaches =
            |(_, unanswered): &(&WriteId, &UnansweredWrite)| attached_to_session(&unanswered.write).next().is_some();
        if !pending.iter().filter(attaches).map(|(write_id, _)| write_id).eq(attaching) {
            return Err(format!("the writes that attach something are not those listed: {attaching:?}"));
        }
        if last_sequence.0 >= self.writes.unanswered_from().0 + writes_max {
            return Err(format!("{} writes have sequences: expected at most {writes_max}", by_sequence.len()));
        }
        match by_sequence.iter().find(|(sequence, write_id)| self.writes.sequence(**write_id) != Some(**sequence)) {
            Some((sequence, write_id)) => {
                Err(format!("sequence {sequence} is listed for {write_id:?}, which has another sequence"))
            }
            None => Ok(()),
        }
    }
}
