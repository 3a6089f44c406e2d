//! Elections: a Raft term has at most one leader, and it has every entry committed before.

use super::{Leading, Payload, Peer, Role, SERVERS, contains, is_majority};
use crate::{event::Event, profile::MS, world::World};

impl World {
    /// The server checks for a leader again after a random time.
    pub(crate) fn await_leader(&mut self, server: usize) {
        let boot = self.servers[server].boot;
        let after = self.rng.between(self.profile.election, 2 * self.profile.election);
        self.after(after, Event::Campaign { server, boot });
    }

    /// The server stands for election if it has not heard of a leader for long enough.
    pub(crate) fn campaign(&mut self, server: usize, boot: u64) {
        if !self.servers[server].is(boot) {
            return;
        }
        let raft = &self.servers[server].raft;
        if !raft.is_leader() && raft.heard + self.profile.election <= self.now {
            self.stand(server);
        }
        self.await_leader(server);
    }

    /// The server stands for election, whether or not there is a leader.
    pub(crate) fn stand(&mut self, server: usize) {
        let raft = &mut self.servers[server].raft;
        if raft.empty.is_some() || !contains(raft.members().0, server) || raft.term < raft.floor {
            return;
        }
        raft.term += 1;
        raft.voted = Some(server);
        raft.leader = None;
        raft.role = Role::Candidate { votes: 1 << server };
        raft.heard = self.now;
        let (term, last) = (raft.term, raft.end());
        self.tally.add("candidacies");
        let members = raft.members().0;
        self.trace.say(self.now, || format!("server {server} stands for term {term} among {members:03b}"));
        self.lost_leadership(server);
        for other in (0..SERVERS).filter(|other| *other != server) {
            self.send_peer(server, other, Peer::Vote { term, last });
        }
        self.count_votes(server);
    }

    pub(crate) fn asked_for_vote(&mut self, server: usize, from: usize, term: u64, last: (u64, u64)) {
        self.hear_term(server, term);
        let raft = &mut self.servers[server].raft;
        let may_vote = term == raft.term && term > raft.floor && raft.voted.is_none_or(|voted| voted == from);
        let is_granted = may_vote && last >= raft.end();
        if is_granted {
            raft.voted = Some(from);
            raft.heard = self.now;
        }
        let (term, end) = (raft.term, raft.end());
        self.trace.say(self.now, || {
            let verb = if is_granted { "votes" } else { "does not vote" };
            format!("server {server}, at {end:?}, {verb} for server {from}, at {last:?}, in term {term}")
        });
        self.send_peer(server, from, Peer::Voted { term, is_granted });
    }

    pub(crate) fn voted(&mut self, server: usize, from: usize, term: u64, is_granted: bool) {
        self.hear_term(server, term);
        let raft = &mut self.servers[server].raft;
        if let Role::Candidate { votes } = &mut raft.role
            && is_granted
            && term == raft.term
        {
            *votes |= 1 << from;
            self.count_votes(server);
        }
    }

    fn count_votes(&mut self, server: usize) {
        let raft = &mut self.servers[server].raft;
        let members = raft.members().0;
        let Role::Candidate { votes } = raft.role else { return };
        if !is_majority(members, (votes & members).count_ones()) {
            return;
        }
        let next = raft.last() + 1;
        raft.role = Role::Leader(Leading { next: [next; SERVERS], ..Leading::default() });
        raft.leader = Some(server);
        let term = raft.term;
        self.tally.add("elections won");
        self.trace.say(self.now, || format!("server {server} leads term {term}"));
        self.trace.mark(&[server as u64, term]);
        let held = self.elected.won(term, server, &self.servers[server].raft, &self.oracle.log);
        self.demand(held);
        self.append(server, Payload::Blank);
        let boot = self.servers[server].boot;
        self.beat(server, boot, term);
        let after = self.rng.wait(MS);
        self.after(after, Event::Lead { server, boot, term });
    }

    /// The server hears of a later Raft term. Its role in the earlier one has ended.
    pub(crate) fn hear_term(&mut self, server: usize, term: u64) {
        let raft = &mut self.servers[server].raft;
        if term <= raft.term {
            return;
        }
        raft.term = term;
        (raft.voted, raft.leader) = (None, None);
        let led = std::mem::replace(&mut raft.role, Role::Follower);
        if let Role::Leader(_) = led {
            self.tally.add("leaders deposed");
            self.lost_leadership(server);
        }
    }

    /// Raft no longer leads. The shell around the lessor learns of it soon.
    fn lost_leadership(&mut self, server: usize) {
        if self.servers[server].shell.lessor.is_some() {
            let boot = self.servers[server].boot;
            let after = self.rng.wait(self.profile.learn);
            self.after(after, Event::Learn { server, boot });
        }
    }

    /// The server that an observer would take for the leader.
    pub(crate) fn apparent_leader(&self) -> Option<usize> {
        let leads = |server: &usize| self.servers[*server].is_up && self.servers[*server].raft.is_leader();
        (0..SERVERS).filter(leads).max_by_key(|server| self.servers[*server].raft.term)
    }
}
