//! The lessor's invariants; docs/PROTOCOL.md lists them. Tests check them after every step.

use crate::{
    command::AnyLease,
    id::SessionId,
    object::{Object, ObjectSet},
    state::State,
};

use super::{
    Lessor, ProposalReason,
    load::{key_leases_of_write, results_of_write},
    recalls::RecallChannel,
    writes::{ConsentWait, PendingWrite, PendingWriteId},
};

impl Lessor {
    /// Checks the invariants that the lessor can see by itself, against the state of its last step.
    ///
    /// # Errors
    ///
    /// A sentence that names the broken invariant.
    pub fn check(&self, state: &State) -> Result<(), String> {
        if self.epoch != Some(state.epoch()) {
            return Ok(());
        }
        self.writes.check()?;
        self.writes.check_order()?;
        self.recall_channels.values().try_for_each(RecallChannel::check)?;
        self.leases.check()?;
        self.watches.check(state.revision(), &self.config.bounds)?;
        self.awaited_locks.check(state)?;
        self.renewals.check()?;
        self.blocked_reads.check(self.config.bounds.blocked_reads_max, state)?;
        let most = self.config.bounds.next_values_max;
        self.next_values.check(|object| self.writes.first_of(object), &self.round_reads, most)?;
        self.object_leases.check()?;
        self.orphans.check(self.writes.purges(), self.config.bounds.purges_max)?;
        self.lease_limits_are_kept(state)?;
        self.counters.0.check(state)?;
        self.terms_by_use.check(state)?;
        self.reads_wait_for_a_round()?;
        self.counts_match_requests_in_flight()?;
        self.commands_match_proposed_writes()?;
        self.promises_stay_within_horizons(state)?;
        self.every_volume_lease_is_tracked(state)?;
        self.every_orphan_is_removed(state)?;
        self.writes_wait_for_every_known_holder(state)
    }

    /// Reads wait for the next round only while a round is in flight (S6).
    fn reads_wait_for_a_round(&self) -> Result<(), String> {
        let waiting = self.next_round_reads.len();
        if self.round_reads.is_empty() && (waiting > 0 || self.next_values.may_begin_round()) {
            return Err(format!("{waiting} reads wait for the next round, and no round is in flight"));
        }
        Ok(())
    }

    /// The load, sessions, key leases and results to come are exactly those of requests in flight
    /// (S10b).
    fn counts_match_requests_in_flight(&self) -> Result<(), String> {
        let (mut load, mut sessions, mut key_leases, mut results) = (0, 0, 0, 0);
        let proposed = self.in_flight.values().flat_map(|proposal| &proposal.reasons);
        for reason in self.proposal_queue.reasons().chain(proposed) {
            match reason {
                ProposalReason::Open(_) => (load, sessions) = (load + Self::load_of_session(), sessions + 1),
                ProposalReason::Acquire(request) => load += request.load,
                _ => {}
            }
        }
        for request in self.writes.iter().filter_map(|(_, pending)| pending.client_write()) {
            (load, results) = (load + request.load, results + results_of_write(&request.write));
            key_leases += key_leases_of_write(&request.write);
        }
        let found = (self.load_to_come, self.sessions_to_come, self.key_leases_to_come, self.results_to_come);
        let expected = (load, sessions, key_leases, results);
        if found != expected {
            return Err(format!(
                "load, sessions, key leases and results of requests in flight are counted as {found:?}: \
                 expected {expected:?}"
            ));
        }
        Ok(())
    }

    /// A write counts as proposed exactly while its command is queued or in flight. The counts of
    /// ends, requests and purges, which bounds limit, are right.
    fn commands_match_proposed_writes(&self) -> Result<(), String> {
        let write_of = |reason: &ProposalReason| match reason {
            ProposalReason::Write(write_id) | ProposalReason::Purge(write_id) => Some(*write_id),
            _ => None,
        };
        let in_flight = self.in_flight.values().flat_map(|proposal| &proposal.reasons);
        // A list, so that a command that is proposed twice is found.
        let mut found: Vec<PendingWriteId> =
            self.proposal_queue.reasons().chain(in_flight).filter_map(write_of).collect();
        found.sort_unstable();
        let is_proposed = |(_, pending): &(PendingWriteId, &PendingWrite)| pending.is_proposed;
        let expected: Vec<PendingWriteId> =
            self.writes.iter().filter(is_proposed).map(|(write_id, _)| write_id).collect();
        if found != expected {
            return Err(format!(
                "the commands of writes {found:?} are queued or in flight: expected those of {expected:?}"
            ));
        }
        let (mut ends, mut requests) = (0, 0);
        for reason in self.proposal_queue.reasons() {
            match reason {
                ProposalReason::Expire(..) => ends += 1,
                ProposalReason::Open(_) | ProposalReason::Close(_) | ProposalReason::Acquire(..) => requests += 1,
                _ => {}
            }
        }
        let purges = self.writes.iter().filter(|(_, pending)| pending.client_write().is_none()).count();
        let found = (self.proposal_queue.ends(), self.proposal_queue.requests(), self.writes.purges());
        let expected = (ends, requests, purges);
        if found != expected {
            return Err(format!("ends, requests and purges are counted as {found:?}: expected {expected:?}"));
        }
        Ok(())
    }

    /// No promised end goes beyond the replicated horizon (T6; DHCP failover's maximum client lead
    /// time).
    fn promises_stay_within_horizons(&self, state: &State) -> Result<(), String> {
        for (key, end) in self.leases.iter().filter(|(key, _)| !matches!(key, AnyLease::Session(_))) {
            if let Some(lease) = state.lease(key).filter(|lease| lease.incarnation == end.incarnation)
                && end.ends_at > lease.horizon
            {
                return Err(format!("{key:?} is promised until {}, beyond its horizon {}", end.ends_at, lease.horizon));
            }
        }
        Ok(())
    }

    /// Each orphan is being removed, or waits for its purge (S8).
    fn every_orphan_is_removed(&self, state: &State) -> Result<(), String> {
        let mut orphans = state.orphans();
        match orphans.find(|lease| !self.orphans.contains(*lease) && !self.writes.is_purging_lease(*lease)) {
            Some(lease) => Err(format!("lease {lease} has orphans, and no purge removes them")),
            None => Ok(()),
        }
    }

    /// Tracks, ends and replicated leases are about the same leases (S7).
    fn every_volume_lease_is_tracked(&self, state: &State) -> Result<(), String> {
        for (key, lease) in state.leases() {
            if self.leases.get(key).is_none_or(|end| end.incarnation != lease.incarnation) {
                return Err(format!("{key:?} has no end in the leader's memory"));
            }
            if let AnyLease::Volume(session, volume) = key
                && self.object_leases.track(volume, *session).is_none_or(|track| track.incarnation != lease.incarnation)
            {
                return Err(format!("{key:?} is not tracked"));
            }
        }
        match self
            .object_leases
            .tracks()
            .find(|(volume, session, _)| state.lease(&AnyLease::Volume(*session, (*volume).clone())).is_none())
        {
            Some((volume, session, _)) => Err(format!("{session} is tracked in {volume} without a lease")),
            None => Ok(()),
        }
    }

    /// An unproposed write waits for each session that was granted an object that it covers, until
    /// the session's last such lease ends (S2). It waits for no session whose volume leases have
    /// ended. A write that waits for nothing is proposed.
    fn writes_wait_for_every_known_holder(&self, state: &State) -> Result<(), String> {
        for (write_id, pending) in self.writes.iter() {
            if pending.is_ready() {
                return Err(format!("write {write_id} could be proposed, and waits"));
            }
            if pending.is_proposed {
                continue;
            }
            let has_no_lease = |(session, wait): &(&SessionId, &ConsentWait)| !self.has_any_lease(**session, wait);
            if let Some((session, _)) = pending.waits.iter().find(has_no_lease) {
                return Err(format!("write {write_id} waits for {session}, whose leases have ended"));
            }
            for set in &pending.footprint {
                self.waits_for_holders(write_id, pending, set)?;
            }
            for path in pending.purged_leases().iter().flat_map(|lease| state.attached_nodes(*lease)) {
                // Applying the command finds nodes that were attached later.
                if state.node(path).is_some_and(|node| node.modify_revision <= pending.gathered_at) {
                    self.waits_for_holders(write_id, pending, &ObjectSet::One(Object::data(path.clone())))?;
                    self.waits_for_holders(write_id, pending, &ObjectSet::One(Object::children(path.clone())))?;
                }
            }
        }
        Ok(())
    }

    /// Whether the session still has one of the volume leases that the wait names.
    fn has_any_lease(&self, session: SessionId, wait: &ConsentWait) -> bool {
        wait.leases.iter().any(|(volume, incarnation)| {
            let end = self.leases.get(&AnyLease::Volume(session, volume.clone()));
            end.is_some_and(|end| end.incarnation == *incarnation)
        })
    }

    fn waits_for_holders(
        &self,
        write_id: PendingWriteId,
        pending: &PendingWrite,
        set: &ObjectSet,
    ) -> Result<(), String> {
        let now = self.clock.ending_time();
        for ((object, session), lease) in self.object_leases.leases_in(set) {
            if lease.source.is_reported() || lease.expires_at <= now {
                continue;
            }
            let Some(wait) = pending.waits.get(session) else {
                return Err(format!("write {write_id} does not wait for {session}, which has a lease on {object}"));
            };
            if let Some(expires_at) = wait.expires_at.filter(|expires_at| *expires_at < lease.expires_at) {
                let until = lease.expires_at;
                return Err(format!(
                    "write {write_id} waits for {session} until {expires_at}, whose lease on {object} ends at {until}"
                ));
            }
        }
        Ok(())
    }
}
