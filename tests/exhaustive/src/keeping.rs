//! The key leases that an application counts on. No lease expires while its client counts on it
//! (T3, T5). A client hears only of leases that it has granted or renews (S7b).

use std::collections::{BTreeMap, BTreeSet};

use leasehold_protocol::{
    command::{GrantedKeyLease, Outcome, Proposal},
    holder::HolderInput,
    id::{Incarnation, LeaseId},
    time::Instant,
};

use crate::{oracle::expired, run::Run};

/// What one application knows of key leases.
#[derive(Debug, Clone, Default, Hash)]
pub(crate) struct Keeping {
    /// The leases that it wants to renew.
    wanted: BTreeSet<LeaseId>,
    /// Until when it counts on each, by its own clock.
    certain: BTreeMap<LeaseId, (Incarnation, Instant)>,
}

impl Run<'_> {
    /// The application starts keep-alives of a key lease.
    pub(crate) fn keep(&mut self, place: usize, id: LeaseId) {
        self.at.clients[place].change().keeping.wanted.insert(id);
        self.step_holder(place, HolderInput::KeepAlive(id));
    }

    pub(crate) fn lease_kept(&mut self, place: usize, id: LeaseId, certain: (Incarnation, Instant)) {
        let client = self.at.clients[place].change();
        client.keeping.certain.insert(id, certain);
        let (is_wanted, session) = (client.keeping.wanted.contains(&id), client.holder.session());
        let granted = GrantedKeyLease { id, incarnation: certain.0 };
        if !is_wanted && !self.at.oracle.has_granted(session, granted) {
            self.demand(Err(format!("client {place} got a report of {granted:?}, which it did not grant")));
        }
    }

    pub(crate) fn lease_over(&mut self, place: usize, id: LeaseId) {
        let keeping = &mut self.at.clients[place].change().keeping;
        keeping.certain.remove(&id);
        if !keeping.wanted.remove(&id) {
            self.demand(Err(format!(
                "client {place} got a report that key lease {id} is lost, which it does not renew"
            )));
        }
    }

    /// After a step at its deadline, the client has reported each lease that has ended by its
    /// clock.
    pub(crate) fn ends_were_told(&mut self, place: usize, clock: Instant) {
        let keeping = &self.at.clients[place].keeping;
        let is_over = |id: &&LeaseId| keeping.certain.get(id).is_some_and(|(_, until)| *until <= clock);
        if let Some(id) = keeping.wanted.iter().find(is_over).copied() {
            self.demand(Err(format!("client {place} got no report that key lease {id} is lost")));
        }
    }

    /// Key leases have expired: no client counts on them, by its own clock.
    pub(crate) fn nobody_counts_on_expired(&mut self, proposal: &Proposal, outcomes: &[Outcome]) {
        for (id, incarnation) in expired(proposal, outcomes) {
            for place in 0..self.at.clients.len() {
                let clock = self.world.client_clock(place, self.at.now);
                let until = self.at.clients[place].keeping.certain.get(&id).filter(|(of, _)| *of == incarnation);
                if let Some((_, until)) = until.filter(|(_, until)| clock < *until) {
                    let left = until.since(clock);
                    self.demand(Err(format!(
                        "key lease {id} has expired, but client {place} counts on it for another {left:?}"
                    )));
                }
            }
        }
    }
}
