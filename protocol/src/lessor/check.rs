//! What must hold after every step. Run by tests; see the invariants in docs/PROTOCOL.md.

use crate::{
    command::LeaseKey,
    object::{Object, ObjectSet},
    state::State,
};

use super::{
    Lessor,
    channel::Channel,
    writes::{Pending, Turn},
};

impl Lessor {
    /// Checks the invariants that the lessor can see by itself, against the state that it was last stepped with.
    ///
    /// # Errors
    ///
    /// A sentence that says what does not hold.
    pub fn check(&self, state: &State) -> Result<(), String> {
        if self.epoch != Some(state.epoch()) {
            return Ok(());
        }
        self.writes.check()?;
        self.channels.values().try_for_each(Channel::check)?;
        self.ends.check()?;
        self.watching.check(state.revision())?;
        self.awaiting.check()?;
        self.parked.check(self.config.bounds.parked_max, state)?;
        self.holdings.check()?;
        self.promises_stay_within_horizons(state)?;
        self.every_volume_lease_is_tracked(state)?;
        self.every_orphan_is_removed(state)?;
        self.writes_wait_for_every_known_holder(state)
    }

    /// No promised end goes beyond the replicated horizon (T6; DHCP failover's maximum client lead time).
    fn promises_stay_within_horizons(&self, state: &State) -> Result<(), String> {
        for (key, end) in self.ends.iter().filter(|(key, _)| !matches!(key, LeaseKey::Session(_))) {
            if let Some(lease) = state.lease(key).filter(|lease| lease.incarnation == end.incarnation)
                && end.end > lease.horizon
            {
                return Err(format!("{key:?} is promised until {}, beyond its horizon {}", end.end, lease.horizon));
            }
        }
        Ok(())
    }

    /// Each orphan is being removed, or waits for that (S8).
    fn every_orphan_is_removed(&self, state: &State) -> Result<(), String> {
        let mut orphans = state.orphaned();
        match orphans.find(|lease| !self.orphans.contains(lease) && !self.writes.removes(*lease)) {
            Some(lease) => Err(format!("nobody removes what went with lease {lease}")),
            None => Ok(()),
        }
    }

    /// Tracks, ends and the replicated leases are about the same leases (S7).
    fn every_volume_lease_is_tracked(&self, state: &State) -> Result<(), String> {
        for (key, lease) in state.leases() {
            if self.ends.get(key).is_none_or(|end| end.incarnation != lease.incarnation) {
                return Err(format!("{key:?} has no end in the leader's memory"));
            }
            if let LeaseKey::Volume(session, volume) = key
                && self.holdings.track(volume, *session).is_none_or(|track| track.incarnation != lease.incarnation)
            {
                return Err(format!("{key:?} is not tracked"));
            }
        }
        match self
            .holdings
            .tracks()
            .find(|(volume, session, _)| state.lease(&LeaseKey::Volume(*session, (*volume).clone())).is_none())
        {
            Some((volume, session, _)) => Err(format!("{session} is tracked in {volume} without a lease")),
            None => Ok(()),
        }
    }

    /// A write that is not proposed waits for each session that was granted an object it covers (S2), and none that
    /// waits for nothing is left waiting.
    fn writes_wait_for_every_known_holder(&self, state: &State) -> Result<(), String> {
        for (turn, pending) in self.writes.iter() {
            if pending.is_ready() {
                return Err(format!("write {turn} waits for nothing and is not proposed"));
            }
            if pending.is_proposed {
                continue;
            }
            for set in &pending.covers {
                self.waits_for_holders(turn, pending, set)?;
            }
            for path in pending.carried().iter().flat_map(|lease| state.carried(*lease)) {
                // What was attached since is found out when the command is applied.
                if state.node(path).is_some_and(|node| node.modify_revision <= pending.carried_at) {
                    self.waits_for_holders(turn, pending, &ObjectSet::One(Object::data(path.clone())))?;
                    self.waits_for_holders(turn, pending, &ObjectSet::One(Object::children(path.clone())))?;
                }
            }
        }
        Ok(())
    }

    fn waits_for_holders(&self, turn: Turn, pending: &Pending, set: &ObjectSet) -> Result<(), String> {
        let now = self.clock.ending();
        for ((object, session), lease) in self.holdings.leases_in(set) {
            if !lease.source.is_listed() && lease.over > now && !pending.waits.contains_key(session) {
                return Err(format!("write {turn} does not wait for {session}, which holds {object}"));
            }
        }
        Ok(())
    }
}
