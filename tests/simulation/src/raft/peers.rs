//! The network between servers. It does to messages whatever can happen to datagrams, and Raft must
//! tolerate that.

use super::{Peer, SERVERS};
use crate::{event::Event, profile::MS, world::World};

/// The faults between servers, by sender and receiver.
#[derive(Debug, Clone, Default)]
pub(crate) struct Links {
    /// Every message is lost until this time.
    cut_until: [[u64; SERVERS]; SERVERS],
    /// Every message to the server is late by `late` until this time.
    slow_until: [u64; SERVERS],
    late: [u64; SERVERS],
}

impl Links {
    pub(crate) fn cut(&mut self, from: usize, to: usize, until: u64) {
        self.cut_until[from][to] = until;
    }

    /// Messages to the server are late by `late` until this time.
    pub(crate) fn slow(&mut self, to: usize, late: u64, until: u64) {
        (self.slow_until[to], self.late[to]) = (until, late);
    }
}

impl World {
    pub(crate) fn send_peer(&mut self, from: usize, to: usize, message: Peer) {
        let copies = 1 + usize::from(self.rng.chance(self.profile.peer_twice));
        for _ in 0..copies {
            let is_cut = self.now < self.links.cut_until[from][to];
            if is_cut || (self.rng.chance(self.profile.peer_loss) && !self.is_healing) {
                self.tally.add("messages between servers lost");
                continue;
            }
            let late = if self.now < self.links.slow_until[to] { self.links.late[to] } else { 0 };
            let is_slow = self.rng.chance(self.profile.peer_slow) && !self.is_healing;
            let tail = if is_slow { self.rng.between(20, 800) * MS } else { 0 };
            let after = self.rng.wait(self.profile.peer_delay) + tail + late;
            let at = self.send_from(crate::event::Host::Server(from)) + after;
            let boot = self.servers[from].boot;
            self.at(at, Event::Peer { from, boot, to, message: Box::new(message.clone()) });
        }
    }

    pub(crate) fn peer_hears(&mut self, server: usize, (from, boot): (usize, u64), message: Peer) {
        // Streams from a server end when it is removed. So no message from before its disk was lost
        // is heard after it rejoined.
        if !self.servers[server].is_up || boot < self.servers[from].born {
            return;
        }
        // A server without a disk is silent, like a server that is down.
        if self.servers[server].raft.empty.is_some() && !matches!(message, Peer::Start { .. }) {
            return;
        }
        match message {
            Peer::Vote { term, last } => self.asked_for_vote(server, from, term, last),
            Peer::Voted { term, is_granted } => self.voted(server, from, term, is_granted),
            Peer::Append { .. } => self.asked_to_append(server, from, message),
            Peer::Appended { .. } => self.appended(server, from, &message),
            Peer::Readmit { life } => self.asked_to_readmit(server, from, life),
            Peer::Start { life, floor } => self.told_to_start(server, life, floor),
        }
    }
}
