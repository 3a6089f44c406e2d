//! Renews volume leases, and handles promises, lapses and the passing of time.
//!
//! T2: a term counts from the moment before its request was sent, shortened by the drift allowance.
//!
//! T6: a renewal names the incarnation of the lease. If that has ended, only a new lease with a
//! list of changes revives its copies. Renewals are piggybacked on other requests. After a quiet
//! time, one heartbeat renews all volumes in use. Leases on unused volumes lapse.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Holder, HolderEffect, in_flight::Purpose, session::LinkState, volume_leases::RenewalSelection, watches::WATCH_WAIT,
};
use crate::{
    message::{Body, Lapse, Promise},
    path::NodePath,
    planted::Bug,
    reached::{Bound, reached},
    time::Instant,
};

/// A server must answer within the shortest term divided by this. If it does not, the client looks
/// for another server while most of the term remains.
const SILENCE_PER_TERM: u32 = 3;

/// The shortest silence that counts. A shorter one may just be a commit on a busy disk.
const SILENCE_MIN: Duration = Duration::from_millis(250);

/// The longest silence before the client looks for another server.
const SILENCE_MAX: Duration = Duration::from_secs(3);

impl Holder {
    /// When a promised span ends on this clock, if its request was sent at `sent` (T2).
    pub(super) fn ends_at(&self, sent: Instant, span: Duration, now: Instant) -> Instant {
        let from = if self.planted(Bug::TermFromReceipt) { now } else { sent };
        from.after(self.config.drift_allowance.shorten(span))
    }

    /// Handles a promise of the registered epoch. It never moves a deadline back.
    pub(super) fn promised(&mut self, promise: &Promise, sent: Instant, now: Instant) {
        let until = self.ends_at(sent, promise.span.min(promise.term), now);
        let Some(mut volume) = self.volumes.promised(promise) else { return };
        let Some(lease) = &mut volume.lease else { return };
        lease.revision = lease.revision.max(promise.revision);
        let was_late = now >= lease.until;
        // A promise may be shorter (horizon, unanswered recall). Then the holder asks again when
        // the sent renewal counts as lost.
        if until >= lease.until {
            lease.until = until;
            lease.has_expired = until <= now;
            lease.pace.renewed(sent, promise.span, promise.term, now);
        } else {
            lease.pace.note_shorter_promise(lease.until, promise.term, now);
        }
        let is_revived = was_late && until > now;
        let is_newer = promise.generation > lease.generation;
        lease.generation = promise.generation;
        let is_report_due = lease.unreported.is_some_and(|unreported| sent >= unreported.due);
        drop(volume);
        if is_newer {
            self.drop_older_generations(&promise.volume);
        }
        self.notify_validity(&promise.volume);
        if is_report_due {
            self.start_owed_report(&promise.volume, now);
        }
        if is_revived {
            // The lease had ended by this clock, perhaps already when the holder computed the
            // delays of consents. Then the delays leave no time for the renewal of this lease.
            self.end_delays(now);
        }
    }

    /// Drops the copies from before a change of the volume's borders or settings (S8).
    pub(super) fn drop_older_generations(&mut self, volume: &NodePath) {
        let Some(lease) = self.volumes.get(volume).and_then(|volume| volume.lease.as_ref()) else { return };
        let generation = lease.generation;
        let copies = self.copies.remove_of(volume, |copy| copy.generation < generation);
        self.ask_to_drop(copies);
    }

    /// Handles a lapse: the lease has ended. Its copies stay. The client may use one again after a
    /// revival, or after it has validated the copy.
    pub(super) fn lapsed(&mut self, lapse: &Lapse) {
        let Some(mut volume) = self.volumes.get_mut(&lapse.volume) else { return };
        if volume.lease.as_ref().is_some_and(|lease| lease.incarnation == lapse.incarnation) {
            volume.end_lease();
            drop(volume);
            self.lose_attached_without_lease(&lapse.volume);
            self.lose_locks_without_lease(std::slice::from_ref(&lapse.volume));
            self.forget_holder_report(&lapse.volume);
            self.notify_validity(&lapse.volume);
        }
    }

    /// Marks volumes whose copies the cache has served, so that their leases are renewed.
    pub(super) fn note_used(&mut self, used: &BTreeSet<NodePath>) {
        for top in used {
            if let Some(mut volume) = self.volumes.get_mut(top) {
                volume.is_used = true;
            }
        }
    }

    /// Ends leases and locks whose time has passed on this clock, even without a connection.
    pub(super) fn note_time(&mut self, now: Instant) {
        let ended = self.volumes.note_expired(self.link == LinkState::Registered, now);
        self.expire_key_leases(now);
        self.expire_granted_locks();
        let has_session_expired = self.session.as_ref().is_some_and(|session| now >= session.until);
        if !ended.is_empty() || has_session_expired {
            self.notify_jeopardy(ended, now);
        }
    }

    /// Handles [`HolderInput::Timeout`](super::HolderInput::Timeout).
    pub(super) fn timed_out(&mut self, now: Instant) {
        self.abandon_next_values(now);
        self.send_queue.wake(now);
        self.greet_again(now);
        if self.link == LinkState::Registered {
            let is_session_due = self.session.as_ref().is_some_and(|session| now >= session.pace.due);
            let is_probe_due = self.probe_deadline().is_some_and(|deadline| now >= deadline);
            let is_comparison_due = self.clocks_deadline().is_some_and(|deadline| now >= deadline);
            let are_volumes_due = self.volumes.are_due(now);
            if are_volumes_due || is_session_due || is_probe_due || is_comparison_due {
                self.send_heartbeat(now);
            }
        }
        if self.silence_deadline().is_some_and(|deadline| now >= deadline) {
            self.find_leader(None);
        }
    }

    /// Sends a request that only renews and compares clocks.
    pub(super) fn send_heartbeat(&mut self, now: Instant) {
        self.heartbeat(RenewalSelection::Ahead, now);
    }

    /// Like `send_heartbeat`, with other renewals.
    pub(super) fn heartbeat(&mut self, reason: RenewalSelection<'_>, now: Instant) {
        let question = self.clock_question(now);
        self.send(Purpose::Heartbeat, Body::Heartbeat(question), reason, now);
    }

    /// When the server counts as silent. `None` if it owes no answer by a known time.
    pub(super) fn silence_deadline(&self) -> Option<Instant> {
        if !matches!(self.link, LinkState::Up | LinkState::Registered) {
            return None;
        }
        // A server answers a watch when its wait ends on its own clock, even without changes.
        let watch_wait = WATCH_WAIT + self.config.drift_allowance.over(WATCH_WAIT) * 2;
        let watch = self.in_flight.oldest_watch().map(|sent| sent.after(watch_wait));
        let oldest_owed = self.in_flight.oldest_quick().into_iter().chain(watch).min();
        oldest_owed.map(|sent| sent.max(self.heard_at).after(self.patience()))
    }

    /// When to ask the server for a sign of life, if it owes only answers that may be slow. Without
    /// this, a write or a blocked read would wait for ever on a connection that died unnoticed.
    pub(super) fn probe_deadline(&self) -> Option<Instant> {
        let is_waited_for = self.link == LinkState::Registered && self.in_flight.oldest_quick().is_none();
        let is_waited_for = is_waited_for && !self.planted(Bug::NoProbe);
        // No request with a quick answer is in flight here, so this is a write or a blocked read.
        let sent = self.in_flight.oldest_operation().filter(|_| is_waited_for)?;
        Some(sent.max(self.heard_at).after(self.patience()))
    }

    /// Asks a silent server for a sign of life. If the server owes a quick answer, that is not
    /// necessary: `silence_deadline` notices the silence.
    pub(super) fn probe(&mut self, now: Instant) {
        let is_silent = self.heard_at.after(self.patience()) <= now;
        if is_silent && self.link == LinkState::Registered && self.in_flight.oldest_quick().is_none() {
            self.send_heartbeat(now);
        }
    }

    /// How long a server may be silent.
    fn patience(&self) -> Duration {
        let session_term = self.session.as_ref().map(|session| session.pace.term);
        let term = self.volumes.shortest_term().into_iter().chain(session_term).min();
        let silence = term.map_or(Duration::MAX, |term| term / SILENCE_PER_TERM);
        if silence > SILENCE_MAX {
            reached(Bound::SilenceMax);
        }
        silence.clamp(SILENCE_MIN, SILENCE_MAX)
    }

    /// Looks for another server. The holder sends nothing more on this connection.
    pub(super) fn find_leader(&mut self, hint: Option<String>) {
        if matches!(self.link, LinkState::Up | LinkState::Registered) {
            self.link = LinkState::Leaving;
            self.effects.push(HolderEffect::FindLeader { hint });
        }
    }
}
