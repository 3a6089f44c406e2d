//! Rejoining: a server that lost its disk is removed. It starts with a floor, and never votes in a
//! Raft term up to that. It catches up, and becomes a member again. `server/src/raft/bootstrap.rs`
//! has the argument. There the changes are joint, here one server at a time.

use super::{Payload, Peer, SERVERS, contains};
use crate::{event::Event, profile::MS, world::World};

impl World {
    /// The server's disk is lost, unless another one's is. Returns whether it is.
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

    /// A server without a disk asks the others to let it rejoin, until one does.
    pub(crate) fn ask_for_readmission(&mut self, server: usize, boot: u64) {
        let Some(life) = self.servers[server].raft.empty.filter(|_| self.servers[server].is(boot)) else { return };
        for other in (0..SERVERS).filter(|other| *other != server) {
            self.send_peer(server, other, Peer::Readmit { life });
        }
        self.after(100 * MS, Event::Readmission { server, boot });
    }

    /// The leader removes the server that asks. Once that is committed, it lets the server start.
    pub(crate) fn asked_to_readmit(&mut self, server: usize, from: usize, life: u64) {
        // The leader asks back first. So a delayed request removes no server that has already
        // rejoined.
        if self.servers[from].raft.empty != Some(life) {
            return self.tally.add("requests to be let in that came late");
        }
        let leads = self.servers[server].shell.lessor.as_ref().is_some_and(|lessor| lessor.epoch().is_some());
        let raft = &self.servers[server].raft;
        let (members, since) = raft.members();
        if !leads || !raft.is_leader() || since > raft.commit {
            return;
        }
        if contains(members, from) {
            self.append(server, Payload::Members(members & !(1 << from)));
        } else {
            let floor = raft.term;
            // Its log was lost with its disk.
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

    /// A non-member that has caught up becomes a member.
    pub(crate) fn admit_caught_up(&mut self, server: usize) {
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
