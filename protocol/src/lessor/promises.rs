//! The promises that the leader makes in memory: more time on volume leases (S5, T3, T6), and
//! object leases (S3).

use std::time::Duration;

use crate::{
    command::AnyLease,
    id::SessionId,
    lease_policy::LeaseRequest,
    message::{Grant, Lapse, Promise, Renew},
    object::{Object, ObjectKind},
    path::NodePath,
    planted::Bug,
    reached::{Bound, reached},
    state::State,
    time::{ClusterTime, Instant},
};

use super::{
    Lessor, RenewedLease, StepContext,
    leases::RenewalPlan,
    object_leases::{CopyTracking, GrantSource, ObjectLease},
    recalls::RecallChannel,
};

/// The length of a promise, counted from the arrival of its request.
#[derive(Debug, Clone, Copy)]
pub(super) struct PromiseReach {
    /// The span to promise: `span_uncapped`, but not past the horizon (T6).
    pub(super) span: Duration,
    /// The span without the limit of the horizon: a term, or less while a recall is unanswered
    /// (S5).
    pub(super) span_uncapped: Duration,
}

impl Lessor {
    /// Renews in memory the volume leases that a request names, when it arrives. `is_alone` says
    /// whether the request is a heartbeat.
    pub(super) fn renew_all(
        &mut self,
        session: SessionId,
        renew: Vec<Renew>,
        is_alone: bool,
        cx: &StepContext<'_>,
    ) -> Vec<RenewedLease> {
        renew.into_iter().map(|renew| self.renew(session, renew, is_alone, cx)).collect()
    }

    /// Renews a volume lease in memory. If the lease has ended or its end is proposed, there is no
    /// promise, and never a new lease (T5, T6).
    fn renew(&mut self, session: SessionId, renew: Renew, is_alone: bool, cx: &StepContext<'_>) -> RenewedLease {
        let Renew { volume, incarnation } = &renew;
        let key = AnyLease::Volume(session, volume.clone());
        let is_live = self.leases.get(&key).is_some_and(|end| end.incarnation == *incarnation && !end.is_end_proposed);
        let promised = is_live.then(|| self.promise(&key, volume, cx)).flatten();
        if promised.is_some() {
            self.counters.0.note_renewal(volume, is_alone);
        }
        let (promise, span_uncapped) =
            promised.map_or((None, Duration::ZERO), |(promise, span_uncapped)| (Some(promise), span_uncapped));
        RenewedLease { renew, promise, span_uncapped }
    }

    /// The answer to a renewal: the promise made on arrival if the lease still exists, a lapse if
    /// its end is applied. If the end is only proposed, the answer says nothing about the lease,
    /// because the end may never be applied. The client asks again (T5).
    pub(super) fn renewal_result(
        &self,
        session: SessionId,
        RenewedLease { renew, promise, .. }: &RenewedLease,
        state: &State,
    ) -> Option<Result<Promise, Lapse>> {
        let Renew { volume, incarnation } = renew;
        let intended = promise.as_ref().map_or(*incarnation, |promise| promise.incarnation);
        let lease = state.lease(&AnyLease::Volume(session, volume.clone()));
        let settings = state.volume(volume);
        match (lease.filter(|lease| lease.incarnation == intended), settings) {
            // The volume's generation may have changed since the arrival.
            (Some(_), Some(volume)) => {
                promise.clone().map(|promise| Ok(Promise { generation: volume.generation, ..promise }))
            }
            _ => Some(Err(Lapse { volume: volume.clone(), incarnation: *incarnation })),
        }
    }

    /// Promises more time on a volume lease: a term, but no further than the horizon by the
    /// promising clock (T6). A promise also ends at most a term after the session's oldest
    /// unanswered recall (S5). Also returns the span without the limit of the horizon.
    pub(super) fn promise(
        &mut self,
        key: &AnyLease,
        volume: &NodePath,
        cx: &StepContext<'_>,
    ) -> Option<(Promise, Duration)> {
        let lease = cx.state.lease(key)?;
        let settings = cx.state.volume(volume)?;
        let term = cx.state.volume_term(volume, &settings.settings);
        let PromiseReach { span, span_uncapped } = self.reach(key, lease.horizon, term, cx.now, cx.now)?;
        let ending = self.clock.ending_time();
        let plan = RenewalPlan { horizon: lease.horizon, term: settings.settings.shortest_term() };
        self.leases.renew(key, ending, span, plan);
        let (volume, incarnation, generation) = (volume.clone(), lease.incarnation, settings.generation);
        Some((Promise { volume, incarnation, generation, span, term, revision: cx.state.revision() }, span_uncapped))
    }

    /// The length of a promise in the answer to a request that arrived at `arrived`. `None` before
    /// an entry of the epoch is committed.
    ///
    /// The promise starts at the promising clock's present reading, less the time since the
    /// arrival. This may be below the clock's reading at the arrival, because a commit can set the
    /// promising clock back: from then on it counts from the time of that entry. That time is a
    /// reading of the ending clock, which is never ahead of the promising clock. The promise is
    /// still safe: a successor has that entry, and starts no earlier (T6).
    pub(super) fn reach(
        &self,
        key: &AnyLease,
        horizon: ClusterTime,
        term: Duration,
        arrived: Instant,
        now: Instant,
    ) -> Option<PromiseReach> {
        let promising = if self.planted(Bug::PromiseByEndingClock) {
            self.clock.ending_time()
        } else {
            self.clock.promising_time(now)?
        };
        let to_horizon = match self.planted(Bug::RenewBeyondHorizon) {
            true => Duration::MAX,
            false => horizon.since(promising.before(now.since(arrived))),
        };
        let channel = key.volume().and(key.session()).and_then(|session| self.recall_channels.get(&session));
        let unanswered = channel.and_then(RecallChannel::unanswered_since);
        let unanswered = unanswered.filter(|_| !self.planted(Bug::PromisePastUnansweredRecall));
        let span_uncapped = unanswered.map_or(term, |since| term.min(since.after(term).since(arrived)));
        Some(PromiseReach { span: span_uncapped.min(to_horizon), span_uncapped })
    }

    /// Leases an object to a session. The session must have a live lease on the volume, no write of
    /// the object may be pending (S3), and the volume's policy must grant a lease to this reader.
    pub(super) fn grant(
        &mut self,
        session: SessionId,
        object: &Object,
        request: LeaseRequest,
        cx: &StepContext<'_>,
    ) -> Option<Grant> {
        let (volume, settings) = cx.state.volume_of(&object.path);
        let age = || cx.state.age(object, self.clock.ending_time());
        let term = self.terms_by_use.present(volume, &settings.settings).granted_term(request, age)?;
        let end = self.leases.get(&AnyLease::Volume(session, volume.clone()))?;
        let track = self.object_leases.track(volume, session)?;
        let is_changing = self.writes.changes_object(object) || self.is_removed(&object.path, cx.state);
        let is_blocked = is_changing && !self.planted(Bug::GrantDuringWrite);
        let is_write_leased = object.kind == ObjectKind::Data && cx.state.write_leased_lock(&object.path).is_some();
        if end.is_end_proposed || end.incarnation != track.incarnation || is_blocked || is_write_leased {
            return None;
        }
        let is_full = self.object_leases.len() >= self.config.bounds.object_leases_max;
        if is_full && track.tracking != CopyTracking::Covering && self.object_leases.lease(object, session).is_none() {
            reached(Bound::ObjectLeases);
            return None;
        }
        if settings.settings.lease_limit().is_some() && !self.answers_recalls(session) {
            return None;
        }
        let incarnation = track.incarnation;
        let stamp = self.recall_channels.entry(session).or_default().stamp_grant(self.epoch?);
        let wait = if self.planted(Bug::ObjectLeaseWithoutMargin) {
            term
        } else {
            settings.settings.object_wait(term, self.config.drift)
        };
        let expires_at = self.clock.ending_time().after(wait);
        let lease = ObjectLease { expires_at, source: GrantSource::granted(stamp.sequence) };
        let most = self.config.limits.session_objects_max;
        if self.object_leases.add(volume, object, session, lease, most, cx.state) {
            self.note_recorded(volume, object, session, cx.state);
        }
        Some(Grant { stamp, volume: volume.clone(), incarnation, generation: settings.generation, span: term })
    }

    /// Whether a pending purge or revocation removes the node (S3). If none is pending, it looks up
    /// no node.
    fn is_removed(&self, path: &NodePath, state: &State) -> bool {
        let attachment = || state.node(path).and_then(|node| node.attachment.as_ref());
        self.writes.is_purging() && attachment().is_some_and(|to| self.writes.is_purging_lease(to.incarnation))
    }
}
