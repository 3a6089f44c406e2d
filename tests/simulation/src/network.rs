//! Connections between clients and servers: delays with a long tail, messages that overtake each other, connections that
//! break, with what was on them lost or late, and connections that are cut without anybody being told.

use crate::{
    event::{Down, Event, Up},
    profile::MS,
    world::World,
};

/// Streams within a connection. Within one, order is mostly kept; requests and consents, answers and recalls are four.
const STREAMS: usize = 4;
const RECALLS: usize = 3;

/// One connection that a client made to a server.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    pub(crate) client: usize,
    pub(crate) life: u64,
    pub(crate) server: usize,
    /// It ended. What the server had not read may still reach it.
    pub(crate) is_broken: bool,
    /// Everything on it is lost and nobody knows.
    pub(crate) is_cut: bool,
    /// Recalls on it are lost, and nothing else.
    pub(crate) is_deaf: bool,
    last: [u64; STREAMS],
}

impl Connection {
    pub(crate) fn new(client: usize, life: u64, server: usize) -> Self {
        Self { client, life, server, is_broken: false, is_cut: false, is_deaf: false, last: [0; STREAMS] }
    }
}

impl World {
    pub(crate) fn send_up(&mut self, connection: usize, message: Up) {
        let stream = match message {
            Up::Request(..) => 0,
            Up::Consent(_) => 1,
        };
        if let Some(at) = self.arrival(connection, stream) {
            self.at(at, Event::Up { connection, message });
        }
    }

    pub(crate) fn send_down(&mut self, connection: usize, message: Down) {
        let stream = match message {
            Down::Response(..) => 2,
            Down::Recall(_) => RECALLS,
        };
        if let Some(at) = self.arrival(connection, stream) {
            self.at(at, Event::Down { connection, message });
        }
    }

    /// When something that is sent now arrives; none if it never does.
    fn arrival(&mut self, connection: usize, stream: usize) -> Option<u64> {
        let one = &mut self.connections[connection];
        let is_recall = stream == RECALLS;
        if one.is_broken || one.is_cut || (one.is_deaf && is_recall && !self.is_healing) {
            return None;
        }
        let is_slow = self.rng.chance(15) && !self.is_healing;
        let delay = if is_slow { self.rng.between(20, 300) * MS } else { self.rng.wait(self.profile.delay) };
        let keeps_order = !self.rng.chance(self.profile.overtaking);
        let mut at = self.now + delay;
        if keeps_order {
            at = at.max(one.last[stream] + 1);
            one.last[stream] = at;
        }
        Some(at)
    }

    /// The connection ends: the client is told soon, the server never.
    pub(crate) fn break_connection(&mut self, connection: usize) {
        let one = &mut self.connections[connection];
        if !one.is_broken {
            one.is_broken = true;
            let (client, life) = (one.client, one.life);
            let after = self.rng.wait(5 * MS);
            self.after(after, Event::Disconnect { client, life, connection });
        }
    }

    /// Whether something that was under way when its connection ended is lost.
    pub(crate) fn is_lost(&mut self, connection: usize) -> bool {
        let one = &self.connections[connection];
        one.is_cut || (one.is_broken && self.rng.chance(500))
    }
}
