//! Commits: what a quorum has is final, and each commit is judged.

use leasehold_model::committed;
use leasehold_protocol::{
    command::{Outcome, Proposal, Write},
    id::{Incarnation, LeaseId},
};

use crate::{invariants, judges::Judge, raft::Payload, tally, world::World};

impl World {
    /// A server has learned that more entries are committed.
    pub(crate) fn committed(&mut self, place: usize) {
        let raft = &self.servers[place].raft;
        let (from, commit) = (self.servers[place].agreed, raft.commit);
        for index in self.oracle.log.len() as u64 + 1..=commit {
            if let Some(entry) = self.servers[place].raft.entry(index).cloned() {
                self.oracle.log.push((self.servers[place].raft.term, entry.clone()));
                if let Payload::Proposal(proposal) = &entry.payload {
                    self.commit(index, proposal);
                }
            }
        }
        if commit > from {
            let held = invariants::agreement::check(place, &self.servers[place].raft, from, &self.oracle.log);
            self.demand(held);
            self.servers[place].agreed = commit;
            self.go_on_applying(place);
        }
    }

    /// A quorum has the entry, so its position in the order is final.
    fn commit(&mut self, index: u64, proposal: &Proposal) {
        self.trace.say(self.now, || format!("committed {index}: {proposal:?}"));
        let outcomes = match self.oracle.commit(index, proposal) {
            Ok(outcomes) => outcomes,
            Err(what) => return self.demand(Err(what)),
        };
        self.trace.say(self.now, || format!("outcomes of {index}: {outcomes:?}"));
        let held = self.uncovered.check(proposal, &outcomes);
        self.demand_by(Judge::Uncovered, held);
        self.grants.commit(proposal, &outcomes, &self.oracle.truth);
        self.outcomes(proposal, &outcomes);
        if std::mem::take(&mut self.oracle.have_holds_changed) {
            self.locks_changed_at = self.now;
        }
        self.trace.mark(&[index, self.oracle.truth.revision().0, self.oracle.truth.cluster_time().as_micros()]);
        for client in 0..self.clients.len() {
            self.check_copies(client);
        }
        self.check_write_leases();
        self.check_compared(proposal, &outcomes);
    }

    /// A key lease was revoked. That does not ask the clients that renew it. If the request named
    /// an incarnation, other leases of the id go on (S7b).
    fn revoked(&mut self, id: LeaseId, named: Option<Incarnation>) {
        for client in &mut self.clients {
            let until = &mut client.shell.key_leases.until;
            if until.get(&id).is_some_and(|(renewed, _)| named.is_none_or(|named| named == *renewed)) {
                until.remove(&id);
            }
        }
        if named.is_some() {
            self.tally.add("key leases revoked by their incarnation");
        }
    }

    /// Examines the outcomes of an entry.
    fn outcomes(&mut self, proposal: &Proposal, outcomes: &[Outcome]) {
        for (command, outcome) in proposal.commands.iter().zip(outcomes) {
            self.tally.add(tally::outcome_name(command, outcome));
            self.count_wide(command, outcome);
        }
        for (lease, incarnation) in committed::expired(proposal, outcomes) {
            for client in 0..self.clients.len() {
                let held = self.clients[client].shell.check_ended(lease, incarnation, self.client_clock(client));
                self.demand_of(client, held);
            }
        }
        let named = std::mem::take(&mut self.oracle.named_revocations.ended);
        self.tally.add_many("drawn: leases revoked by name", named.len() as u64);
        named.into_iter().for_each(|id| self.revoked(id, None));
        for (_, write, outcome) in committed::writes(proposal, outcomes) {
            if let (Write::RevokeLease { id, incarnation }, Outcome::Written(Ok(_))) = (write, outcome) {
                self.revoked(*id, *incarnation);
            }
        }
    }
}
