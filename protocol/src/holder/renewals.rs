//! Promises, lapses, and the time they run on.
//!
//! T2: a term counts from the moment before its request was sent, shortened by the drift allowance.
//! T6: a renewal names its incarnation; if that is gone the lease is over, and only a new one, with
//! a list of what changed, brings its copies back. Renewals ride along with other requests; one of
//! their own is sent only after a quiet time, for all volumes in use at once, and a volume that
//! nobody reads is left to lapse.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Holder, HolderEffect, in_flight::Purpose, session::LinkState, volume_leases::RenewalReason, watches::WATCH_WAIT,
};
use crate::{
    message::{Body, Lapse, Promise},
    object::ObjectSet,
    path::NodePath,
    planted::Bug,
    reached::{Bound, reached},
    time::Instant,
};

/// The part of the shortest term within which a server that is asked has to be heard of; after that
/// another is looked for, while most of the term is left to find it in.
const SILENCE_PER_TERM: u32 = 3;

/// The shortest silence that means something: a commit on a busy disk can take as long.
const SILENCE_MIN: Duration = Duration::from_millis(250);

/// The longest silence.
const SILENCE_MAX: Duration = Duration::from_secs(3);

impl Holder {
    /// When a span that was asked for at `sent` ends on this clock (T2).
    pub(super) fn ends_at(&self, sent: Instant, span: Duration, now: Instant) -> Instant {
        let from = if self.planted(Bug::TermFromReceipt) { now } else { sent };
        from.after(self.config.drift_allowance.shorten(span))
    }

    /// A promise, of the epoch that the session has registered with. It never moves a deadline
    /// back.
    pub(super) fn promised(&mut self, promise: &Promise, sent: Instant, now: Instant) {
        let until = self.ends_at(sent, promise.span.min(promise.term), now);
        let Some(lease) = self.volumes.promised(promise) else { return };
        lease.revision = lease.revision.max(promise.revision);
        // One that is less is limited by the horizon or by an unanswered recall: it is asked for
        // again.
        if until >= lease.until {
            lease.until = until;
            lease.has_expired = until <= now;
            lease.pace.renewed(sent, promise.span, promise.term, now);
        }
        let is_newer = promise.generation > lease.generation;
        lease.generation = promise.generation;
        if is_newer {
            self.drop_older_generations(&promise.volume);
        }
        self.notify_validity(&promise.volume);
    }

    /// The borders or settings of the volume have changed: copies from before are not valid any
    /// more (S8).
    pub(super) fn drop_older_generations(&mut self, volume: &NodePath) {
        let Some(lease) = self.volumes.get(volume).and_then(|volume| volume.lease.as_ref()) else { return };
        let generation = lease.generation;
        let below = ObjectSet::Subtree(volume.clone());
        let gone =
            self.copies.remove_where(&below, |copy| copy.validity.volume == *volume && copy.generation < generation);
        self.dropped(gone);
    }

    /// The server has ended the lease. Its copies wait to be validated.
    pub(super) fn lapsed(&mut self, lapse: &Lapse) {
        let Some(volume) = self.volumes.get_mut(&lapse.volume) else { return };
        if volume.lease.as_ref().is_some_and(|lease| lease.incarnation == lapse.incarnation) {
            volume.end_lease();
            self.lose_attached_without_lease(&lapse.volume);
            self.lose_locks_without_lease();
            self.holder_reports.remove(&lapse.volume);
            self.notify_validity(&lapse.volume);
        }
    }

    /// The cache has served copies of these volumes: they are worth renewing.
    pub(super) fn note_used(&mut self, used: &BTreeSet<NodePath>) {
        for top in used {
            if let Some(volume) = self.volumes.get_mut(top) {
                volume.is_used = true;
            }
        }
    }

    /// What the clock says by itself, whatever the connection does (DESIGN section 2, client
    /// states).
    pub(super) fn note_time(&mut self, now: Instant) {
        let lapsed = self.volumes.note_lapsed(self.link == LinkState::Registered, now);
        self.expire_key_leases(now);
        self.expire_locks(now);
        let forgotten = self.session.as_ref().is_some_and(|session| now >= session.until);
        if lapsed || forgotten {
            self.endangered();
        }
    }

    /// The time that was asked for has come.
    pub(super) fn timed_out(&mut self, now: Instant) {
        self.send_queue.wake(now);
        self.greet_again(now);
        if self.link == LinkState::Registered {
            let session_due = self.session.as_ref().is_some_and(|session| now >= session.pace.due);
            let probes = self.probe_deadline().is_some_and(|deadline| now >= deadline);
            let compares = self.clocks_deadline().is_some_and(|deadline| now >= deadline);
            if self.volumes.are_due(now) || session_due || probes || compares {
                self.send_heartbeat(now);
            }
        }
        if self.silence_deadline().is_some_and(|deadline| now >= deadline) {
            self.find_leader(None);
        }
    }

    /// A request that is there only to renew, and to compare clocks.
    pub(super) fn send_heartbeat(&mut self, now: Instant) {
        let question = self.clock_question(now);
        self.send(Purpose::Heartbeat, Body::Heartbeat(question), RenewalReason::All, now);
    }

    /// Until when a server has to be heard of that owes a quick answer.
    pub(super) fn silence_deadline(&self) -> Option<Instant> {
        if !matches!(self.link, LinkState::Up | LinkState::Registered) {
            return None;
        }
        // A watch is answered when its wait is over on the server's clock, whether or not there is
        // something to tell.
        let wait = WATCH_WAIT + self.config.drift_allowance.over(WATCH_WAIT) * 2;
        let watch = self.in_flight.oldest_watch().map(|sent| sent.after(wait));
        let owed = self.in_flight.oldest_quick().into_iter().chain(watch).min();
        owed.map(|owed| owed.max(self.heard_at).after(self.patience()))
    }

    /// When to ask a server for a sign of life that owes only answers that may be long in coming:
    /// without it a write, or a read of what another client keeps to itself, would wait for ever on
    /// a connection that is dead and does not know it.
    pub(super) fn probe_deadline(&self) -> Option<Instant> {
        let is_waited_for = self.link == LinkState::Registered && self.in_flight.oldest_quick().is_none();
        let is_waited_for = is_waited_for && !self.planted(Bug::NoProbe);
        // No read that is answered at once is under way then: it is a write, or a read that waits
        // for another client.
        let sent = self.in_flight.oldest_granting_sent().filter(|_| is_waited_for)?;
        Some(sent.max(self.heard_at).after(self.patience()))
    }

    /// Asks the server for a sign of life if it has been silent for a while. Not if it owes a quick
    /// answer: then that answer is waited for anyway, and its absence is noticed.
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

    /// Another server has to be asked. Nothing more is sent on this connection.
    pub(super) fn find_leader(&mut self, hint: Option<String>) {
        if matches!(self.link, LinkState::Up | LinkState::Registered) {
            self.link = LinkState::Leaving;
            self.effects.push(HolderEffect::FindLeader { hint });
        }
    }
}
