//! New leases on volumes, and which copies of a returning session are valid again (S7, T5).
//!
//! The request may bring a read along. The entry that makes the lease was proposed after the
//! request arrived, and it is of this epoch. So its commit proves that this lessor led after the
//! arrival, as a quorum round does (S6).

use crate::{
    command::{AnyLease, Outcome},
    id::{Incarnation, Revision, SessionId},
    lease_policy::OnWrite,
    message::{AcquiredVolume, Answer, FirstRead, LastValid, ReadAnswer, ReadGaps, Refusal, Revival},
    object::{Object, ObjectSet},
    path::NodePath,
    planted::Bug,
    reached::{Bound, reached},
    state::State,
};

use super::{Lessor, LessorBounds, Requester, StepContext, recalls::RecallChannel};

/// A request for a lease on a volume, from its arrival until its command is applied.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct AcquireRequest {
    pub(super) requester: Requester,
    pub(super) last_valid: Option<LastValid>,
    pub(super) read: Option<FirstRead>,
    /// The load of the lease, as computed on arrival.
    pub(super) load: u64,
}

impl Lessor {
    /// Whether acquiring a volume lease could extend a lease whose end is proposed: one with nodes
    /// or locks, which an acquisition does not replace. A stream of such requests would move the
    /// horizon before each proposed end, and the lease would never end (T5). It checks all volumes
    /// at and above the path, because the nearest volume may be removed before the command is
    /// applied.
    pub(super) fn may_extend_ending(&self, session: SessionId, path: &NodePath, state: &State) -> bool {
        let tops = std::iter::once(path.clone()).chain(path.ancestors());
        let keys = tops.map(|top| AnyLease::Volume(session, top));
        let mut ending = keys.filter(|key| self.leases.get(key).is_some_and(|end| end.is_end_proposed));
        ending.any(|key| state.has_dependents(&key))
    }

    /// Handles a session's new lease on a volume. The earlier lease ended with the same entry, or
    /// was extended if it has nodes or locks.
    pub(super) fn handle_volume_acquired(
        &mut self,
        request: AcquireRequest,
        outcome: &Outcome,
        cx: &mut StepContext<'_>,
    ) {
        let AcquireRequest { requester, last_valid, read, .. } = request;
        let (requester, session) = (&requester, requester.session);
        let Outcome::VolumeAcquired { volume, incarnation, .. } = outcome else {
            let refusal = match outcome {
                Outcome::SessionNotFound => Refusal::SessionNotFound { session },
                _ => Refusal::Retry,
            };
            return self.reply_without_promises(requester, Err(refusal), cx);
        };
        let key = AnyLease::Volume(session, volume.clone());
        let Some(lease) = cx.state.lease(&key) else {
            return self.reply_without_promises(requester, Err(Refusal::Retry), cx);
        };
        // True if a later acquisition in the same entry has replaced this request's lease. Then
        // this answer names the later lease and revives no copy, and the lessor begins to track the
        // later lease without copies.
        let is_overtaken = lease.incarnation != *incarnation;
        let (incarnation, horizon) = (lease.incarnation, lease.horizon);
        if self.leases.get(&key).is_some_and(|end| end.incarnation == incarnation) {
            return self.answer_already_acquired(requester, (&key, volume), read, cx);
        }
        let last_valid = last_valid.filter(|_| !is_overtaken);
        let revival = self.revival(volume, incarnation, last_valid, cx);
        let covering = match &revival {
            Revival::AllExcept { covering, .. } => {
                Some(*covering).filter(|_| !self.planted(Bug::ReviveWithoutCovering))
            }
            Revival::None => None,
        };
        let mode = self.copy_tracking(volume, covering, cx.state);
        self.object_leases.start_tracking(volume.clone(), session, incarnation, mode);
        // If the commit took long, the horizon may have passed already.
        let shortest = cx.state.volume_of(volume).1.settings.shortest_term();
        self.leases.insert(key.clone(), incarnation, self.clock.ending_time().min(horizon), shortest);
        self.end_waits_without_lease(session, volume);
        let Some(epoch) = self.epoch else { return };
        let stamp = self.recall_channel(session).stamp(epoch);
        match self.promise(&key, volume, cx) {
            Some((promise, _)) => {
                let is_revived = matches!(revival, Revival::AllExcept { .. });
                let read = self.answer_first_read(session, volume, (read, is_revived), cx);
                self.reply(requester, Ok(Answer::Acquired(AcquiredVolume { promise, stamp, revival, read })), cx)
            }
            None => self.reply(requester, Err(Refusal::Retry), cx),
        }
    }

    /// Answers the read that came along. Counts the request as a read. If no read was answered, or
    /// the read needed no answer, it counts as an acquisition. `None` if no read came along, or if
    /// the client must send the read on its own: because it waits for a write lease, because this
    /// step has answered enough reads, or because the lessor refuses the read.
    fn answer_first_read(
        &mut self,
        session: SessionId,
        volume: &NodePath,
        (read, is_revived): (Option<FirstRead>, bool),
        cx: &mut StepContext<'_>,
    ) -> Option<Box<ReadAnswer>> {
        let answer = read.and_then(|read| {
            let FirstRead { object, known, lease } = &read;
            let LessorBounds { reads_per_step, content_bytes_max, .. } = self.config.bounds;
            if self.is_under_write_lease(object, cx.state) {
                self.recall_write_lease(&object.path, cx);
                return None;
            }
            if cx.first_reads >= reads_per_step || cx.read_bytes >= content_bytes_max {
                return None;
            }
            cx.first_reads += 1;
            let answer = self.read_object(session, object, *known, *lease, cx).ok()?;
            // The new lease alone would have made an unchanged copy valid again.
            let is_needed = answer.content.is_some() || !is_revived;
            match is_needed {
                true => self.count_read(session, (object, *known, *lease), &answer, cx),
                false => self.count_cached_reads(&answer.volume, (1, &ReadGaps::default()), cx),
            }
            Some((answer, is_needed))
        });
        if !answer.as_ref().is_some_and(|(_, is_needed)| *is_needed) {
            self.counters.0.note_acquisition(volume);
        }
        answer.map(|(answer, _)| Box::new(answer))
    }

    /// Answers an acquisition whose lease is tracked already. Either the earlier lease remained,
    /// because nodes or locks depend on it. Then the leader never stopped tracking the copies under
    /// that lease, and the client may use them at once. Or an earlier acquisition in the same entry
    /// got the answer for this lease. If the end of the lease is proposed, the client must ask
    /// again.
    pub(super) fn answer_already_acquired(
        &mut self,
        requester: &Requester,
        (key, volume): (&AnyLease, &NodePath),
        read: Option<FirstRead>,
        cx: &mut StepContext<'_>,
    ) {
        let Some(epoch) = self.epoch else { return };
        let is_ending = self.leases.get(key).is_some_and(|end| end.is_end_proposed);
        let stamp = self.recall_channel(requester.session).stamp(epoch);
        let promise = if is_ending { None } else { self.promise(key, volume, cx) };
        match promise {
            Some((promise, _)) => {
                let read = self.answer_first_read(requester.session, volume, (read, false), cx);
                let acquired = AcquiredVolume { promise, stamp, revival: Revival::None, read };
                self.reply(requester, Ok(Answer::Acquired(acquired)), cx);
            }
            None => self.reply(requester, Err(Refusal::Retry), cx),
        }
    }

    /// Which copies of a returning session are valid again: those of objects without a change since
    /// its last lease, and without a pending write. This is Yin's delayed invalidation, without a
    /// list for each client.
    pub(super) fn revival(
        &mut self,
        volume: &NodePath,
        incarnation: Incarnation,
        valid_at: Option<LastValid>,
        cx: &StepContext<'_>,
    ) -> Revival {
        let state = cx.state;
        let valid_at = valid_at.filter(|valid_at| {
            valid_at.incarnation < incarnation
                && state.volume(volume).is_some_and(|volume| {
                    volume.generation == valid_at.generation && volume.settings.has_object_leases()
                })
        });
        let changed = valid_at.and_then(|valid_at| self.changed(valid_at.revision, volume, state));
        match changed {
            Some(changed) => Revival::AllExcept {
                changed,
                covering: self.next_covering(),
                reports_at_once: state.volume(volume).is_some_and(|volume| volume.settings.on_write() == OnWrite::Wait),
            },
            None => Revival::None,
        }
    }

    /// The objects of the volume that have changed since the revision, that pending writes cover,
    /// or that are under a write lease. `None` if the history does not reach back, or if the list
    /// would be too long. The search stops when the list is too long.
    pub(super) fn changed(&self, since: Revision, volume: &NodePath, state: &State) -> Option<Vec<ObjectSet>> {
        let within = ObjectSet::Subtree(volume.clone());
        let written = self.writes.footprints_within(&within);
        let write_leased = state.write_leased_in(&within).map(|path| ObjectSet::One(Object::data(path.clone())));
        let mut bytes = 0;
        let mut fit = |set: ObjectSet| {
            bytes += set.path().as_str().len() + 1;
            let fits = bytes <= self.config.bounds.revival_bytes_max;
            if !fits {
                reached(Bound::RevivalBytes);
            }
            fits.then_some(set)
        };
        // First the changed sets, sorted, each once, then those of pending writes and write leases.
        let mut changed: Vec<ObjectSet> =
            state.changed_in_volume(volume, since)?.cloned().map(&mut fit).collect::<Option<_>>()?;
        changed.sort_unstable();
        changed.dedup();
        let others = written.chain(write_leased).map(fit).collect::<Option<Vec<_>>>()?;
        changed.extend(others);
        Some(changed)
    }

    /// Forgets the object leases in a volume whose borders or settings have changed. None of them
    /// is in use: the lessor has recalled all copies, or has waited until their object leases
    /// ended. If the volume was removed, the leases on it have ended. Otherwise its new settings
    /// say how to track the leases on it, and a shorter term counts for their load at once (S10b).
    pub(super) fn reset_volume_copies(&mut self, top: &NodePath, state: &State) {
        let subtree = ObjectSet::Subtree(top.clone());
        for session in self.object_leases.sessions_in(&subtree, self.clock.ending_time()) {
            let granted = self.recall_channels.get(&session).map_or(0, RecallChannel::last_grant);
            self.object_leases.drop_through(&subtree, session, granted);
        }
        let kept = state.volume(top).map(|volume| (self.copy_tracking(top, None, state), volume.settings));
        for session in self.object_leases.sessions_on(top) {
            let key = AnyLease::Volume(session, top.clone());
            if let Some((tracking, settings)) = &kept {
                self.object_leases.track_anew(top, session, tracking.clone());
                self.leases.raise_load(&key, settings.shortest_term());
                continue;
            }
            self.leases.remove(&key);
            self.object_leases.end_tracking(top, session);
            self.end_waits_without_lease(session, top);
        }
    }
}
