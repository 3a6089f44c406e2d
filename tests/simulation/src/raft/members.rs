//! A server that lost its disk comes back: it is removed, let in with a floor below which it never
//! votes, brought up to date, and made a member again (`server/src/raft/bootstrap.rs` has the
//! argument; there by joint changes, here one server at a time).

use super::{Payload, Peer, SERVERS, contains};
use crate::{event::Event, profile::MS, world::World};

impl World {
    /// The server's disk is lost, if no other's is.
    pub(crate) fn wipe(&mut self, server: usize) -> bool {
        let is_whole = |raft: &super::Raft| raft.empty.is_none() && raft.members().0 == super::ALL;
        if !self.servers.iter().all(|server| is_whole(&server.raft)) || self.oracle.log.is_empty() {
            return false;
        }
        self.crash(server);
        self.lives += 1;
        self.servers[server].wipe(self.lives, self.first.clone());
        self.trace.say(self.now, || format!("server {server} has lost its disk"));
        true
    }

    /// A server without a disk asks the others to let it in, until one does.
    pub(crate) fn ask_for_readmission(&mut self, server: usize, boot: u64) {
        let Some(life) = self.servers[server].raft.empty.filter(|_| self.servers[server].is(boot)) else { return };
        for other in (0..SERVERS).filter(|other| *other != server) {
            self.send_peer(server, other, Peer::Readmit { life });
        }
        self.after(100 * MS, Event::Readmission { server, boot });
    }

    /// The leader removes whoever asks, and once that is committed tells it to start.
    pub(crate) fn asked_to_readmit(&mut self, server: usize, from: usize, life: u64) {
        // It asks back first: a request that was delayed until its sender had returned removes
        // nobody.
        if self.servers[from].raft.empty != Some(life) {
            return self.tally.add("requests to be let in that came late");
        }
        let leads = self.servers[server].lessor.as_ref().is_some_and(|lessor| lessor.epoch().is_some());
        let raft = &self.servers[server].raft;
        let (members, since) = raft.members();
        if !leads || !raft.is_leader() || since > raft.commit {
            return;
        }
        if contains(members, from) {
            self.append(server, Payload::Members(members & !(1 << from)));
        } else {
            let floor = raft.term;
            // What it had before its disk was lost is not there any more.
            if let Some(leading) = self.servers[server].raft.leading_mut() {
                (leading.matched[from], leading.next[from]) = (0, 1);
            }
            self.send_peer(server, from, Peer::Start { life, floor });
        }
    }

    pub(crate) fn told_to_start(&mut self, server: usize, life: u64, floor: u64) {
        let raft = &mut self.servers[server].raft;
        if raft.empty == Some(life) {
            (raft.empty, raft.floor) = (None, floor);
            raft.term = raft.term.max(floor);
            self.tally.add("wiped servers let in");
        }
    }

    /// Whoever is no member and has caught up becomes one.
    pub(crate) fn look_at_members(&mut self, server: usize) {
        let raft = &self.servers[server].raft;
        let (members, since) = raft.members();
        let has_begun = raft.term_at(raft.commit) == Some(raft.term);
        let Some(leading) = raft.leading().filter(|_| since <= raft.commit && has_begun) else { return };
        let has_caught_up = |other: &usize| !contains(members, *other) && leading.matched[*other] >= raft.commit;
        if let Some(other) = (0..SERVERS).find(has_caught_up) {
            self.append(server, Payload::Members(members | 1 << other));
            self.tally.add("members added");
        }
    }
}
