//! New volume leases, and which copies they revive.
//!
//! By sending the request, the client ends the old incarnation on its side. It uses no copies and
//! refuses later promises. So the server may end the old lease without a consent (docs/adr/0004).
//!
//! The request names a path, and only the server knows the path's volume. If the believed volume
//! was removed, the path is in a volume above. So every volume that the path may belong to is
//! suspended until the answer names the volume.
//!
//! One of the reads that wait for the lease comes along with the request: the first read of a
//! volume takes one round trip. Other reads and writes wait for the answer.
//!
//! Revival (S7 in docs/PROTOCOL.md): the request says at which revision the copies were last valid.
//! The answer may list the objects that changed since. Other copies are valid again, each while its
//! own object lease holds.

use std::collections::BTreeSet;

use super::{
    Holder, HolderEffect, SendId, WriteId,
    attachments::attached_to_session,
    in_flight::Purpose,
    known_volume::{KnownVolume, OwnVolumeLease, Unreported},
    pace::Pace,
    path_counts::PathCounts,
    validity::VolumeValidity,
    volume_leases::RenewalSelection,
};
use crate::{
    command::Write,
    id::{Epoch, Incarnation, VolumeGeneration},
    message::{AcquiredVolume, Body, LastValid, Revival},
    object::Object,
    path::NodePath,
    time::Instant,
};

/// A new volume lease that the client asks for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Acquisition {
    /// A path in the volume.
    path: NodePath,
    /// Fetches that wait for the lease.
    pub(super) waiters: BTreeSet<Object>,
    /// Writes that wait for the lease, to attach a node or to take a lock.
    pub(super) writes: BTreeSet<WriteId>,
    /// The request was sent at least once: the leases that it may replace are suspended.
    pub(super) is_sent: bool,
    /// The request was sent more than once. An earlier sending may have taken effect, or may still.
    is_repeated: bool,
    /// When the copies were last valid, as the request said.
    valid_at: Option<LastValid>,
}

impl Acquisition {
    /// Removes and returns the fetches and writes that wait.
    fn take_waiters(&mut self) -> (BTreeSet<Object>, BTreeSet<WriteId>) {
        (std::mem::take(&mut self.waiters), std::mem::take(&mut self.writes))
    }
}

impl Holder {
    /// Whether the volume is suspended, because the new lease may be on it.
    pub(super) fn is_suspended(&self, volume: &NodePath) -> bool {
        self.suspending.any_within(volume)
    }

    /// Asks for a lease on the object's volume, believed to be `volume`. One request at a time.
    pub(super) fn acquire(&mut self, volume: NodePath, object: &Object) {
        self.acquisition(volume, &object.path).waiters.insert(object.clone());
    }

    /// Like `acquire`, for a write that attaches a node or takes a lock.
    pub(super) fn acquire_for(&mut self, volume: NodePath, path: &NodePath, write: WriteId) {
        self.acquisition(volume, path).writes.insert(write);
    }

    fn acquisition(&mut self, volume: NodePath, path: &NodePath) -> &mut Acquisition {
        if !self.acquisitions.contains_key(&volume) {
            self.volumes.learn(&volume).is_requested = true;
            self.send_queue.push(Purpose::Acquire(volume.clone()));
        }
        self.acquisitions.entry(volume).or_insert_with(|| Acquisition {
            path: path.clone(),
            waiters: BTreeSet::new(),
            writes: BTreeSet::new(),
            is_sent: false,
            is_repeated: false,
            valid_at: None,
        })
    }

    /// Ends the leases that the request may replace, then sends it.
    pub(super) fn send_acquire(&mut self, top: &NodePath, now: Instant) {
        let Some(acquisition) = self.acquisitions.get(top) else { return };
        let is_sent = acquisition.is_sent;
        let mut volume = self.volumes.learn(top);
        if !is_sent && volume.live(now).is_some() {
            drop(volume);
            return self.stop_acquiring(top);
        }
        let must_keep_lease = (volume.has_dependents() || volume.may_gain_dependents) && volume.lease.is_some();
        // The lease may still exist on the server, and may have nodes or locks, perhaps from a
        // write in flight. The client must not lose these, so it asks for a renewal first.
        if must_keep_lease && !is_sent {
            volume.is_used = true;
            drop(volume);
            self.heartbeat(RenewalSelection::All, now);
            return self.wants_again(Purpose::Acquire(top.clone()), now);
        }
        // An earlier sending may have taken effect. So the client repeats the request, even if
        // another answer has brought a lease since. A lease with nodes or locks does not end,
        // because the server grants it again. But the client uses no copy under it meanwhile.
        if !must_keep_lease {
            volume.end_lease();
        }
        let ended = volume.ended;
        drop(volume);
        self.forget_holder_report(top);
        // `None` if there is no copy that the answer could revive.
        let last_valid =
            ended.filter(|ended| self.copies.has_leased_since(top, ended.since, now)).map(|ended| ended.last);
        let Some(acquisition) = self.acquisitions.get_mut(top) else { return };
        (acquisition.is_repeated, acquisition.is_sent) = (acquisition.is_sent, true);
        if !acquisition.is_repeated {
            self.suspending.add(&acquisition.path);
        }
        acquisition.valid_at = last_valid;
        let path = acquisition.path.clone();
        let send_id = self.in_flight.next();
        let mut waiters = acquisition.waiters.iter();
        let read = waiters.find_map(|object| self.reads.send_along(object, self.copies.get(object), send_id));
        self.notify_validities(&path);
        self.send(Purpose::Acquire(top.clone()), Body::Acquire { path, last_valid, read }, RenewalSelection::Due, now);
    }

    /// Cancels the request for a new lease.
    fn stop_acquiring(&mut self, top: &NodePath) {
        self.send_queue.settle(&Purpose::Acquire(top.clone()));
        if let Some(acquisition) = self.end_acquisition(top) {
            self.note_unrequested(top);
            self.notify_validities(&acquisition.path);
            self.lose_attached_without_lease_above(&acquisition.path);
            self.lose_locks_without_lease_above(&acquisition.path);
            self.wake_waiters(acquisition.waiters, acquisition.writes);
        }
    }

    fn end_acquisition(&mut self, top: &NodePath) -> Option<Acquisition> {
        let acquisition = self.acquisitions.remove(top)?;
        if acquisition.is_sent {
            self.suspending.remove(&acquisition.path);
        }
        Some(acquisition)
    }

    fn note_unrequested(&mut self, top: &NodePath) {
        if let Some(mut volume) = self.volumes.get_mut(top) {
            volume.is_requested = false;
        }
    }

    /// Checks which volumes are requested, and which paths suspend volumes.
    pub(super) fn check_acquisitions(&self) -> Result<(), String> {
        let sent = self.acquisitions.values().filter(|acquisition| acquisition.is_sent);
        let suspending: PathCounts = sent.map(|acquisition| &acquisition.path).collect();
        if suspending != self.suspending {
            return Err(format!("volumes above {:?} are suspended, expected {suspending:?}", self.suspending));
        }
        let requested = self.volumes.iter().filter(|(_, volume)| volume.is_requested).map(|(top, _)| top);
        if !requested.eq(self.acquisitions.keys()) {
            return Err(format!("other leases are requested than {:?}", self.acquisitions.keys()));
        }
        Ok(())
    }

    /// Reports to the cache the validity of all volumes that a path may belong to.
    fn notify_validities(&mut self, path: &NodePath) {
        for volume in self.volumes.at_and_above(path) {
            self.notify_validity(&volume);
        }
    }

    /// Handles the answer with the new lease.
    pub(super) fn acquired(
        &mut self,
        (believed, send_id): (&NodePath, SendId),
        sent: Instant,
        epoch: Epoch,
        answer: AcquiredVolume,
        now: Instant,
    ) {
        if epoch != self.epoch {
            return self.wants_again(Purpose::Acquire(believed.clone()), now);
        }
        let Some(mut acquisition) = self.end_acquisition(believed) else { return };
        self.stamp_seen = self.stamp_seen.max(answer.stamp);
        let top = answer.promise.volume.clone();
        let is_late = answer.stamp <= self.volumes.begun(&top);
        let lease = self.volumes.get(&top).and_then(|volume| volume.lease.as_ref());
        // A late answer names a lease that the server has replaced. This holds even if this client
        // no longer has the newer lease. No leader would recall copies under the replaced lease.
        let is_newest = !is_late && lease.is_none_or(|lease| lease.incarnation < answer.promise.incarnation);
        // The server has extended the present lease, because it has nodes or locks. So no lease
        // begins. But if the answer names a volume above `believed`, `believed` is not a volume.
        let is_extended = lease.is_some_and(|lease| lease.incarnation == answer.promise.incarnation);
        // A lease on a volume without the path does not answer this request.
        if is_newest && top.contains(&acquisition.path) {
            let has_new_borders = self.generation_of(&top) != Some(answer.promise.generation);
            let valid_at = acquisition.valid_at.filter(|_| top == *believed);
            let since = self.revived_since(&top, valid_at, &answer);
            self.begin_lease(&top, since, sent, &answer, now);
            if has_new_borders {
                self.drop_older_generations(&top);
            }
        }
        if is_extended {
            self.promised(&answer.promise, sent, now);
        }
        if (is_newest || is_extended) && top.contains(&acquisition.path) && top != *believed && top.contains(believed) {
            self.forget_volume(believed);
        }
        self.note_unrequested(believed);
        self.notify_validities(&acquisition.path);
        self.lose_attached_without_lease_above(&acquisition.path);
        self.lose_locks_without_lease_above(&acquisition.path);
        if let (Some(object), Some(read)) = (self.reads.sent_along(&acquisition.waiters, send_id), answer.read) {
            acquisition.waiters.remove(&object);
            self.read_answered(object, sent, epoch, *read, now);
        }
        self.wake_waiters(acquisition.waiters, acquisition.writes);
        if let Revival::AllExcept { reports_at_once: true, .. } = answer.revival {
            self.start_owed_report(&top, now);
        }
    }

    /// Sets back a fetch that was sent along with a request for a lease, which must be sent again.
    pub(super) fn acquisition_set_back(&mut self, top: &NodePath) {
        if let Some(acquisition) = self.acquisitions.get(top) {
            self.reads.wait_again(&acquisition.waiters);
        }
    }

    /// The generation of all copies of the volume. `None` if the volume can have no copies.
    pub(super) fn generation_of(&self, top: &NodePath) -> Option<VolumeGeneration> {
        let volume = self.volumes.get(top)?;
        let lease = volume.lease.as_ref().map(|lease| lease.generation);
        lease.or(volume.ended.map(|ended| ended.last.generation))
    }

    /// Drops the copies that have changed. Returns the oldest incarnation whose copies are valid
    /// again. If none are valid, that is the new incarnation.
    fn revived_since(&mut self, top: &NodePath, valid_at: Option<LastValid>, answer: &AcquiredVolume) -> Incarnation {
        let ended = self.volumes.get(top).and_then(|volume| volume.ended);
        match (&answer.revival, valid_at, ended) {
            (Revival::AllExcept { changed, .. }, Some(_), Some(ended)) => {
                let mut changed_copies = Vec::new();
                for set in changed {
                    changed_copies.extend(self.copies.remove_where(set, |copy| copy.validity.volume == *top));
                }
                self.ask_to_drop(changed_copies);
                ended.since
            }
            _ => answer.promise.incarnation,
        }
    }

    fn begin_lease(
        &mut self,
        top: &NodePath,
        since: Incarnation,
        sent: Instant,
        answer: &AcquiredVolume,
        now: Instant,
    ) {
        let promise = &answer.promise;
        let span = promise.span.min(promise.term);
        let until = self.ends_at(sent, span, now);
        let pace = Pace::new(sent, promise.span, promise.term, self.config.spread_permille, now);
        let ended = self.volumes.get(top).and_then(|volume| volume.ended);
        let unreported = match answer.revival {
            Revival::AllExcept { covering, reports_at_once, .. } => {
                let terms = if reports_at_once { 0 } else { Unreported::TERMS };
                Some(Unreported { covering, due: sent.after(promise.term.saturating_mul(terms)) })
            }
            // The server may have extended a lease that this client had ended.
            Revival::None => {
                ended.filter(|ended| ended.last.incarnation == promise.incarnation).and_then(|ended| ended.unreported)
            }
        };
        let is_only_lease = !self.volumes.are_live_at(now);
        self.learn_bounded(top);
        let mut volume = self.volumes.learn(top);
        volume.ended = None;
        volume.begun = answer.stamp;
        volume.is_used = true;
        volume.lease = Some(OwnVolumeLease {
            incarnation: promise.incarnation,
            since,
            generation: promise.generation,
            revision: promise.revision,
            until,
            stamp: answer.stamp,
            pace,
            has_expired: until <= now,
            unreported,
        });
        drop(volume);
        self.schedule_comparison(sent, span, is_only_lease, now);
        // The promises of the new lease are limited by the oldest unanswered recall too.
        self.end_delays(now);
    }

    /// Handles a refusal. Waiting reads and writes continue without a lease.
    pub(super) fn refused_volume(&mut self, top: &NodePath, is_busy: bool, now: Instant) {
        let Some(acquisition) = self.acquisitions.get_mut(top) else { return };
        let waiters = acquisition.take_waiters();
        let replaceable =
            if acquisition.is_repeated { self.volumes.at_and_above(&acquisition.path) } else { Vec::new() };
        // If the server is not busy, it refuses this path for good, for example because it is too
        // long. The top of the volume may be shorter.
        let is_last = !is_busy && acquisition.path == *top;
        let mut given_up = None;
        if !is_busy {
            let path = std::mem::replace(&mut acquisition.path, top.clone());
            if acquisition.is_sent {
                self.suspending.remove(&path);
                self.suspending.add(top);
                given_up = Some(path);
            }
        }
        if let Some(path) = given_up {
            // The request no longer names the volumes between its top and the path.
            self.notify_validities(&path);
            self.lose_attached_without_lease_above(&path);
            self.lose_locks_without_lease_above(&path);
        }
        self.go_without_lease(waiters);
        if self.end_replaceable(replaceable) && !is_last {
            return self.wants_again(Purpose::Acquire(top.clone()), now);
        }
        self.stop_acquiring(top);
    }

    /// Ends the leases that an earlier sending of a refused request may have replaced. No leader
    /// recalls the copies under a replaced lease (S2). A lease with nodes or locks does not end:
    /// the client serves nothing under it, and asks again. Returns whether there is such a lease.
    fn end_replaceable(&mut self, replaceable: Vec<NodePath>) -> bool {
        let mut have_dependents = false;
        for replaceable in replaceable {
            let Some(mut volume) = self.volumes.get_mut(&replaceable) else { continue };
            if volume.has_dependents() || volume.may_gain_dependents {
                have_dependents |= volume.lease.is_some();
            } else {
                volume.end_lease();
                drop(volume);
                self.forget_holder_report(&replaceable);
            }
        }
        have_dependents
    }

    fn go_without_lease(&mut self, (objects, writes): (BTreeSet<Object>, BTreeSet<WriteId>)) {
        for object in &objects {
            self.reads.go_without_lease(object);
        }
        self.writes.go_without_lease(&writes);
        self.wake_waiters(objects, writes);
    }

    fn wake_waiters(&mut self, objects: BTreeSet<Object>, writes: BTreeSet<WriteId>) {
        for write in writes.into_iter().filter(|write| self.writes.is_pending(*write)) {
            self.send_queue.push(Purpose::Write(write));
        }
        for object in objects {
            if self.reads.stop_waiting(&object) {
                self.send_queue.push(Purpose::Read(object));
            }
        }
    }

    /// Forgets that a cancelled read waits for a lease. Otherwise an application that cancels reads
    /// for as long as no server answers would fill the memory.
    pub(super) fn cancel_waiting_read(&mut self, object: &Object) {
        for top in self.volumes.at_and_above(&object.path) {
            if let Some(acquisition) = self.acquisitions.get_mut(&top) {
                acquisition.waiters.remove(object);
            }
        }
    }

    /// Forgets that an ended write waits for leases.
    pub(super) fn cancel_waiting_write(&mut self, write_id: WriteId, write: &Write) {
        for path in attached_to_session(write) {
            for top in self.volumes.at_and_above(path) {
                if let Some(acquisition) = self.acquisitions.get_mut(&top) {
                    acquisition.writes.remove(&write_id);
                }
            }
        }
    }

    /// Handles a leader's statement that the path belongs to `volume`.
    pub(super) fn learn_volume(&mut self, path: &NodePath, volume: &NodePath) {
        let believed = self.volumes.nearest(path);
        if believed == *volume || !volume.contains(path) {
            return;
        }
        if volume.contains(&believed) {
            // No volume is removed while a lease on it has nodes or locks. So the statement is
            // older than the volume, or the lease has ended and the answer to its next renewal says
            // so. A write in flight may add a node or a lock.
            let may_have_dependents = |volume: &KnownVolume| volume.has_dependents() || volume.may_gain_dependents;
            if self.volumes.get(&believed).is_some_and(may_have_dependents) {
                return;
            }
            self.forget_volume(&believed);
        }
        self.learn_bounded(volume);
    }

    /// Learns of a volume. If too many are known, the holder first forgets those that it does not
    /// use.
    fn learn_bounded(&mut self, top: &NodePath) {
        if self.volumes.get(top).is_none() {
            while let Some(idle) = self.volumes.to_be_forgotten() {
                self.forget_volume(&idle);
            }
            self.volumes.learn(top);
        }
    }

    /// Forgets a volume, with its copies, nodes and locks: the volume no longer exists, or the
    /// holder knows too many volumes and does not use this one.
    fn forget_volume(&mut self, top: &NodePath) {
        if self.acquisitions.contains_key(top) {
            return;
        }
        let copies = self.copies.remove_of(top, |_| true);
        self.ask_to_drop(copies);
        let mut volume = self.volumes.learn(top);
        volume.end_lease();
        let attached = std::mem::take(&mut volume.attached);
        let locks = volume.locks.iter().map(|(_, id)| *id).collect();
        drop(volume);
        self.notify_attached_lost(attached.into_iter().map(|(path, node)| (path, node.revision)).collect());
        // Also reported if the lease had ended before: the client forgets the volume too.
        let (volume, validity) = (top.clone(), VolumeValidity::default());
        self.effects.push(HolderEffect::VolumeValidityChanged { volume, validity });
        self.forget_holder_report(top);
        self.lose_locks(locks);
        self.volumes.forget(top);
    }
}
