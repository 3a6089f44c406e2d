//! Connections between clients and servers. Delays have a long tail, and messages overtake each
//! other. Connections break, and lose or delay their messages. Connections are cut in one direction
//! or both, and neither side notices.
//!
//! What TCP excludes does not happen here. No message is lost before one that arrives, and none
//! arrives twice on one connection. A client repeats a request on its next connection, and the
//! request of the earlier connection can arrive even later.
//!
//! Some wide worlds exceed TCP: reads, writes, renewals, answers, recalls and consents arrive twice
//! on one connection. The rules tolerate that, with two exceptions. A request that begins a
//! session, a registration or a lease arrives once. A refused request does not arrive again,
//! because a leader forgets requests that it refused before proposing. A connection mostly keeps
//! its order, but a server works on several requests at a time, so some overtake others.

use std::collections::BTreeSet;

use leasehold_protocol::{
    holder::SendId,
    message::{Body, Request},
};

use crate::{
    event::{Down, Event, Host, Up},
    profile::MS,
    world::World,
};

/// Streams of a connection: requests, consents, answers, recalls. Each mostly keeps its order.
const STREAMS: usize = 4;
const RECALLS: usize = 3;

/// One connection of a client to a server.
#[derive(Debug, Default)]
pub(crate) struct Connection {
    pub(crate) client: usize,
    pub(crate) life: u64,
    pub(crate) server: usize,
    /// It has ended. Messages that the server has not read may still reach it.
    pub(crate) is_broken: bool,
    /// Messages to the server, or to the client, are lost, and neither side notices.
    pub(crate) is_cut_up: bool,
    pub(crate) is_cut_down: bool,
    /// Only recalls are lost on it.
    pub(crate) is_deaf: bool,
    /// The requests on it that were refused.
    refused: BTreeSet<SendId>,
    last: [u64; STREAMS],
}

impl Connection {
    pub(crate) fn new(client: usize, life: u64, server: usize) -> Self {
        Self { client, life, server, ..Self::default() }
    }

    /// Whether a server has refused this request.
    pub(crate) fn has_refused(&self, send_id: SendId) -> bool {
        self.refused.contains(&send_id)
    }
}

impl World {
    /// The true time at which a machine's messages leave. It is later than now if the machine was
    /// paused in the middle of the step.
    pub(crate) fn send_from(&mut self, host: Host) -> u64 {
        let now = self.now;
        self.machine(host).sends_from.max(now)
    }

    pub(crate) fn send_up(&mut self, connection: usize, mut message: Up) {
        let client = self.connections[connection].client;
        let is_mute = self.profile.mute == Some(client) && !self.is_healing;
        let stream = match &mut message {
            Up::Request(_, request) if is_mute => {
                request.header.consents.clear();
                0
            }
            Up::Request(..) => 0,
            Up::Consent(_) if is_mute => return self.tally.add("consents that were not given"),
            Up::Consent(_) | Up::ConsentDelayed(_) => 1,
        };
        // Each of these requests begins something new. It ends its predecessor at the server, and
        // the client counts on that.
        let begins = |request: &Request| {
            matches!(request.body, Body::Open { .. } | Body::Register | Body::Acquire { .. } | Body::Close)
        };
        let is_once = matches!(&message, Up::Request(_, request) if begins(request));
        let from = self.send_from(Host::Client(client));
        if self.connections[connection].is_cut_up {
            return self.tally.add("messages lost on a cut connection");
        }
        let copies = if is_once { 1 } else { self.copies() };
        for _ in 0..copies {
            if let Some(at) = self.arrival(connection, stream, from) {
                self.at(at, Event::Up { connection, message: message.clone() });
            }
        }
    }

    pub(crate) fn send_down(&mut self, connection: usize, message: Down) {
        let stream = match message {
            Down::Response(..) => 2,
            Down::Recall(_) => RECALLS,
        };
        let from = self.send_from(Host::Server(self.connections[connection].server));
        if let Down::Response(send_id, response) = &message
            && response.result.is_err()
        {
            self.connections[connection].refused.insert(*send_id);
        }
        let is_deaf = self.connections[connection].is_deaf && stream == RECALLS && !self.is_healing;
        if self.connections[connection].is_cut_down || is_deaf {
            return self.tally.add("messages lost on a cut connection");
        }
        for _ in 0..self.copies() {
            if let Some(at) = self.arrival(connection, stream, from) {
                self.at(at, Event::Down { connection, message: message.clone() });
            }
        }
    }

    /// How many copies of a message arrive: sometimes two, in some wide worlds.
    fn copies(&mut self) -> usize {
        let twice = self.swarm().map_or(0, |swarm| swarm.twice);
        if twice == 0 || self.is_healing || !self.rng.chance(twice) {
            return 1;
        }
        self.tally.add("messages that came twice");
        2
    }

    /// Whether this is the second copy of a request that the server has refused.
    pub(crate) fn was_refused(&mut self, connection: usize, message: &Up) -> bool {
        let is_again = matches!(message, Up::Request(send_id, _) if self.connections[connection].has_refused(*send_id));
        if is_again {
            self.tally.add("requests that were refused and did not come twice");
        }
        is_again
    }

    /// When a message sent at `from` arrives; none if it never does.
    fn arrival(&mut self, connection: usize, stream: usize, from: u64) -> Option<u64> {
        let one = &mut self.connections[connection];
        if one.is_broken {
            return None;
        }
        let is_slow = self.rng.chance(15) && !self.is_healing;
        let delay = if is_slow { self.rng.between(20, 300) * MS } else { self.rng.wait(self.profile.delay) };
        let keeps_order = !self.rng.chance(self.profile.overtaking);
        let mut at = from + delay;
        if keeps_order {
            at = at.max(one.last[stream] + 1);
            one.last[stream] = at;
        } else if at < one.last[stream] {
            self.tally.add("messages that overtook others");
        }
        Some(at)
    }

    /// The connection ends. The client notices soon, the server never.
    pub(crate) fn break_connection(&mut self, connection: usize) {
        let one = &mut self.connections[connection];
        if !one.is_broken {
            one.is_broken = true;
            let (client, life) = (one.client, one.life);
            let after = self.rng.wait(5 * MS);
            self.after(after, Event::Disconnect { client, life, connection });
        }
    }

    /// Whether a message to the server is lost, because its connection was cut, or ended meanwhile.
    pub(crate) fn is_lost(&mut self, connection: usize) -> bool {
        let one = &self.connections[connection];
        let (is_cut, is_broken) = (one.is_cut_up, one.is_broken);
        let is_lost = is_cut || (is_broken && self.rng.chance(500));
        if is_broken && !is_lost {
            self.tally.add("messages that came after their connection had ended");
        }
        is_lost
    }
}
