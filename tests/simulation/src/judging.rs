//! The end of a run: clients read everything, and the judges check the result.

use std::time::Duration;

use crate::{event::Event, invariants, judges::Judge, profile::SECOND, swarm::Swarm, world::World};

impl World {
    /// No request may wait any longer. Every client reads every object.
    pub(crate) fn ask(&mut self) {
        self.oracle.ask_for_all();
        self.asked_at = self.oracle.truth.revision();
        for client in 0..self.clients.len() {
            let are_few = self.swarm().is_some_and(Swarm::has_few_leases);
            self.demand(invariants::healing::check_nothing_waits(&self.clients[client], self.healed_in, are_few));
            self.clients[client].last_read.clear();
            self.ask_watches(client);
            for object in self.profile.objects.clone() {
                self.read(client, object);
            }
        }
    }

    pub(crate) fn judge(&mut self) {
        for client in 0..self.clients.len() {
            let held =
                invariants::healing::check_all_current(&self.clients[client], &self.oracle, self.has_short_contents());
            self.demand(held);
        }
        self.left = invariants::owners::left(&self.clients, &self.oracle.truth);
        for client in 0..self.clients.len() {
            if !self.is_put_down_to_clocks(client) {
                let held = invariants::registrations::check(&self.clients[client], &self.oracle.truth);
                self.demand_by(Judge::Registrations, held);
            }
        }
        self.demand(invariants::locks::check_owners(&self.clients, &self.oracle.truth));
        // A lease can be lost at any time. The owners of locks that changed just now may not have
        // a report yet.
        let are_reported = self.now > self.locks_changed_at + 2 * SECOND;
        for place in (0..self.clients.len()).filter(|_| are_reported) {
            self.demand(invariants::locks::check_known(&self.clients[place], &self.oracle.truth));
        }
        let (granted, late) = self.oracle.granted;
        self.tally.add_many("locks granted", granted);
        self.tally.add_many("locks granted to waiters", late);
        for client in 0..self.clients.len() {
            self.judge_watches(client, self.asked_at);
            self.forget_writes(client);
        }
        self.is_judged = true;
        self.demand(invariants::linearizability::check(&self.observations));
        if !self.left.is_empty() {
            // The longest key lease of these worlds: three terms, or the longest TTL that the swarm
            // draws.
            let longest = self.swarm().map_or(Duration::ZERO, |swarm| Duration::from_micros(swarm.ttl.1));
            let longest = longest.max(3 * self.profile.term_max());
            self.after(3 * SECOND + 2 * u64::try_from(longest.as_micros()).expect("short"), Event::JudgeLeft);
        } else {
            self.end();
        }
    }

    /// Leases that outlived their owner have ended by now.
    pub(crate) fn judge_left(&mut self) {
        let left = invariants::owners::left(&self.clients, &self.oracle.truth);
        if let Some(left) = left.intersection(&self.left).next() {
            self.demand(Err(left.clone()));
        }
        self.tally.add("worlds whose leftovers were looked at twice");
        self.end();
    }

    fn end(&mut self) {
        if self.profile.is_long {
            self.after(700 * SECOND, Event::JudgeSessions);
        } else {
            self.is_over = true;
        }
    }

    /// No client has sent a request for longer than a session's term.
    pub(crate) fn judge_sessions(&mut self) {
        let may_be_lost = |client| self.is_put_down_to_clocks(client);
        let held = invariants::owners::check_sessions(&self.clients, &self.oracle.truth, may_be_lost);
        self.demand(held);
        self.is_over = true;
    }
}
