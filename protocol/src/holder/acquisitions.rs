//! New leases on volumes, and which copies they make good again.
//!
//! Sending the request ends the old incarnation on this side: its copies may not be used and later
//! promises for it are refused, so that the server may take it as given up the moment that it sees
//! the request. The request names a path, and it is the server that knows which volume that belongs
//! to: if the volume that the client believes in has been removed, it is one above. Therefore every
//! volume that the path may belong to stands still from the sending on, until the answer says which
//! one it was.
//!
//! DESIGN section 5: a returning client names what it was last valid at and may get a list of what
//! changed. The copies that are not in it are good again at once, each as long as its own object
//! lease still holds.

use std::collections::BTreeSet;

use super::{
    Holder, WriteId,
    in_flight::Purpose,
    pace::Pace,
    volume_leases::{KnownVolume, OwnVolumeLease, RenewalReason},
};
use crate::{
    id::{Epoch, Incarnation, VolumeGeneration},
    message::{AcquiredVolume, Body, CoveringLease, LastValid, Revival},
    object::{Object, ObjectSet},
    path::NodePath,
    planted::Bug,
    time::Instant,
};

/// A new lease that was asked for, or will be.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Acquisition {
    /// A path in the volume.
    path: NodePath,
    /// Fetches that wait for it.
    pub(super) waiters: BTreeSet<Object>,
    /// Writes whose node is to go with it.
    pub(super) writes: BTreeSet<WriteId>,
    /// It was sent at least once: what it may replace stands still.
    pub(super) is_sent: bool,
    /// It was sent more than once. A leader may have carried out an earlier sending, or may do so
    /// yet.
    is_repeated: bool,
    /// What the copies were last valid at, as the request says.
    valid_at: Option<LastValid>,
}

impl Acquisition {
    /// Those who wait for the lease wait no more.
    fn take_waiters(&mut self) -> (BTreeSet<Object>, BTreeSet<WriteId>) {
        (std::mem::take(&mut self.waiters), std::mem::take(&mut self.writes))
    }
}

impl Holder {
    /// Whether the volume stands still because the new lease that was asked for may turn out to be
    /// its own.
    pub(super) fn is_suspended(&self, volume: &NodePath) -> bool {
        let mut sent = self.acquisitions.values().filter(|acquisition| acquisition.is_sent);
        sent.any(|acquisition| volume.contains(&acquisition.path)) && !self.planted(Bug::ServeWhileAcquiring)
    }

    /// Wants a lease on the volume that the object belongs to, believed to be `volume`. One is
    /// asked for at a time.
    pub(super) fn acquire(&mut self, volume: NodePath, object: &Object) {
        self.acquisition(volume, &object.path).waiters.insert(object.clone());
    }

    /// The same, for a write whose node is to go with the lease.
    pub(super) fn acquire_for(&mut self, volume: NodePath, path: &NodePath, write: WriteId) {
        self.acquisition(volume, path).writes.insert(write);
    }

    fn acquisition(&mut self, volume: NodePath, path: &NodePath) -> &mut Acquisition {
        if !self.acquisitions.contains_key(&volume) {
            self.volumes.learn(&volume);
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

    /// Ends what the request may replace, then sends it.
    pub(super) fn send_acquire(&mut self, top: &NodePath, now: Instant) {
        let Some(acquisition) = self.acquisitions.get(top) else { return };
        let is_sent = acquisition.is_sent;
        let may_be_bound = self.writes.may_attach_in(top);
        let volume = self.volumes.learn(top);
        if !is_sent && volume.live(now).is_some() {
            return self.stop_acquiring(top);
        }
        let is_bound = (volume.is_bound() || may_be_bound) && volume.lease.is_some();
        // Its nodes and holds would go with it, those too that a write under way may have made, and
        // the lease may go on at the server: that is asked first.
        if is_bound && !is_sent {
            volume.is_used = true;
            self.send_heartbeat(now);
            return self.wants_again(Purpose::Acquire(top.clone()), now);
        }
        // What was sent may have been done or not, and is sent again whatever lease has come in
        // another way since. One that nodes or holds go with is given again; its copies are not
        // used meanwhile.
        if !is_bound {
            volume.end_lease();
        }
        let ended = volume.ended;
        self.holder_reports.remove(top);
        // None without a copy that the answer could make good again.
        let last_valid = ended.filter(|ended| self.has_revivable(top, ended.since, now)).map(|ended| ended.last);
        let Some(acquisition) = self.acquisitions.get_mut(top) else { return };
        (acquisition.is_repeated, acquisition.is_sent) = (acquisition.is_sent, true);
        acquisition.valid_at = last_valid;
        let path = acquisition.path.clone();
        self.notify_validities(&path);
        self.send(Purpose::Acquire(top.clone()), Body::Acquire { path, last_valid }, RenewalReason::Due, now);
    }

    /// Wants no new lease there any more.
    fn stop_acquiring(&mut self, top: &NodePath) {
        if let Some(acquisition) = self.acquisitions.remove(top) {
            self.notify_validities(&acquisition.path);
            self.lose_attached_without_lease_above(&acquisition.path);
            self.lose_locks_without_lease();
            self.wake_waiters(acquisition.waiters, acquisition.writes);
        }
    }

    fn has_revivable(&self, top: &NodePath, since: Incarnation, now: Instant) -> bool {
        self.copies.below(top).any(|(_, copy)| {
            let validity = &copy.validity;
            validity.volume == *top && validity.incarnation >= since && now < validity.until
        })
    }

    /// Tells the cache about the volumes that a path may belong to, which stand still together.
    fn notify_validities(&mut self, path: &NodePath) {
        for volume in self.volumes.at_and_above(path) {
            self.notify_validity(&volume);
        }
    }

    /// The new lease has come.
    pub(super) fn acquired(
        &mut self,
        asked: &NodePath,
        sent: Instant,
        epoch: Epoch,
        answer: AcquiredVolume,
        now: Instant,
    ) {
        if epoch != self.epoch {
            return self.wants_again(Purpose::Acquire(asked.clone()), now);
        }
        let Some(acquisition) = self.acquisitions.remove(asked) else { return };
        self.stamp_seen = self.stamp_seen.max(answer.stamp);
        let top = answer.promise.volume.clone();
        let is_late = answer.stamp <= self.volumes.begun(&top);
        let lease = self.volumes.get(&top).and_then(|volume| volume.lease.as_ref());
        // A late answer names a lease that the server has replaced, whether or not that one is
        // still there: under the late one nobody would recall its copies.
        let is_newest = !is_late && lease.is_none_or(|lease| lease.incarnation < answer.promise.incarnation);
        // The lease that there is, because nodes go with it: nothing begins, but the volume that
        // was believed in is not there.
        let is_same = lease.is_some_and(|lease| lease.incarnation == answer.promise.incarnation);
        // A lease on a volume that the path is not in is no answer to what was asked: nothing
        // begins by it.
        if is_newest && top.contains(&acquisition.path) {
            let has_new_borders = self.generation_of(&top) != Some(answer.promise.generation);
            let valid_at = acquisition.valid_at.filter(|_| top == *asked);
            let since = self.revived_since(&top, valid_at, &answer);
            self.begin_lease(&top, since, sent, &answer, now);
            if has_new_borders {
                self.drop_older_generations(&top);
            }
        }
        if (is_newest || is_same) && top.contains(&acquisition.path) && top != *asked && top.contains(asked) {
            self.forget_volume(asked);
        }
        self.notify_validities(&acquisition.path);
        self.lose_attached_without_lease_above(&acquisition.path);
        self.lose_locks_without_lease();
        self.wake_waiters(acquisition.waiters, acquisition.writes);
        if let Revival::AllExcept { covering, .. } = answer.revival {
            let incarnation = answer.promise.incarnation;
            self.start_holder_report(&CoveringLease { volume: top, incarnation, number: covering }, now);
        }
    }

    /// The generation that all copies of the volume are of, if there can be any.
    pub(super) fn generation_of(&self, top: &NodePath) -> Option<VolumeGeneration> {
        let volume = self.volumes.get(top)?;
        let lease = volume.lease.as_ref().map(|lease| lease.generation);
        lease.or(volume.ended.map(|ended| ended.last.generation))
    }

    /// Drops what has changed. The oldest incarnation whose copies are good again: the new one if
    /// none are.
    fn revived_since(&mut self, top: &NodePath, valid_at: Option<LastValid>, answer: &AcquiredVolume) -> Incarnation {
        let ended = self.volumes.get(top).and_then(|volume| volume.ended);
        match (&answer.revival, valid_at, ended) {
            (Revival::AllExcept { changed, .. }, Some(_), Some(ended)) => {
                let mut gone = Vec::new();
                for set in changed {
                    gone.extend(self.copies.remove_where(set, |copy| copy.validity.volume == *top));
                }
                self.dropped(gone);
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
        let until = self.ends_at(sent, promise.span.min(promise.term), now);
        let pace = Pace::new(sent, promise.span, promise.term, self.config.spread_permille, now);
        let volume = self.volumes.learn(top);
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
        });
    }

    /// The server will not give a lease there. Those who wait for one read without.
    pub(super) fn refused_volume(&mut self, top: &NodePath) {
        if let Some(acquisition) = self.acquisitions.get_mut(top) {
            let waiters = acquisition.take_waiters();
            self.go_without_lease(waiters);
        }
        self.stop_acquiring(top);
    }

    /// The leader has no room for one more lease. The reads that wait for one are done without.
    ///
    /// That says nothing of an earlier sending: it may have replaced a lease that this client still
    /// has, and then nobody recalls the copies under that one (S2). So this client ends such a
    /// lease itself. It cannot end one that nodes or holds go with: it keeps the lease, serves
    /// nothing under it, and asks the leader again.
    pub(super) fn no_room_for_lease(&mut self, top: &NodePath, now: Instant) {
        let Some(acquisition) = self.acquisitions.get_mut(top).filter(|acquisition| acquisition.is_repeated) else {
            self.send_queue.settle(&Purpose::Acquire(top.clone()));
            return self.refused_volume(top);
        };
        let waiters = acquisition.take_waiters();
        let replaceable = self.volumes.at_and_above(&acquisition.path);
        self.go_without_lease(waiters);
        let mut are_bound = false;
        for replaceable in replaceable {
            let Some(volume) = self.volumes.get_mut(&replaceable) else { continue };
            if volume.is_bound() || self.writes.may_attach_in(&replaceable) {
                are_bound |= volume.lease.is_some();
            } else {
                volume.end_lease();
                self.holder_reports.remove(&replaceable);
            }
        }
        if are_bound {
            return self.wants_again(Purpose::Acquire(top.clone()), now);
        }
        self.send_queue.settle(&Purpose::Acquire(top.clone()));
        self.stop_acquiring(top);
    }

    fn go_without_lease(&mut self, (objects, writes): (BTreeSet<Object>, BTreeSet<WriteId>)) {
        for object in &objects {
            self.reads.go_without_lease(object);
        }
        self.writes.go_without_lease(&writes);
        self.wake_waiters(objects, writes);
    }

    fn wake_waiters(&mut self, objects: BTreeSet<Object>, writes: BTreeSet<WriteId>) {
        for write in writes {
            self.send_queue.push(Purpose::Write(write));
        }
        for object in objects {
            if self.reads.stop_waiting(&object) {
                self.send_queue.push(Purpose::Read(object));
            }
        }
    }

    /// The volume that an object belongs to, as a server that leads says.
    pub(super) fn learn_volume(&mut self, path: &NodePath, volume: &NodePath) {
        let believed = self.volumes.nearest(path);
        if believed == *volume || !volume.contains(path) {
            return;
        }
        if volume.contains(&believed) {
            // A volume is not removed while nodes or holds go with a lease on it. So the server
            // said this before the volume was made, or the lease has ended, and its next renewal
            // will tell. A write under way may bind a node or a hold to the lease, too.
            let is_bound = self.volumes.get(&believed).is_some_and(KnownVolume::is_bound);
            if is_bound || self.writes.may_attach_in(&believed) {
                return;
            }
            self.forget_volume(&believed);
        }
        if let Some(idle) = self.volumes.to_be_forgotten(|top| self.writes.may_attach_in(top)) {
            self.forget_volume(&idle);
        }
        self.volumes.learn(volume);
    }

    /// There is no such volume any more.
    fn forget_volume(&mut self, top: &NodePath) {
        if self.acquisitions.contains_key(top) {
            return;
        }
        let below = ObjectSet::Subtree(top.clone());
        let gone = self.copies.remove_where(&below, |copy| copy.validity.volume == *top);
        self.dropped(gone);
        let volume = self.volumes.learn(top);
        volume.end_lease();
        let carried = std::mem::take(&mut volume.attached);
        self.notify_attached_lost(carried.into_keys().collect());
        self.notify_validity(top);
        self.holder_reports.remove(top);
        self.volumes.forget(top);
        self.lose_locks_without_lease();
    }
}
