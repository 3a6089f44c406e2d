//! A situation: everything in a world at one moment, and the possible actions.
//!
//! Two situations are equal if their hashes are. The hash covers everything that the rules
//! remember, and all messages in flight. It also covers numbers that only name things, such as send
//! ids, stamps and revisions. Without them more situations would merge. But the rules compare these
//! numbers, and a renaming that keeps all comparisons would be too risky.
//!
//! Only numbers that no rule reads are normalized: a request waits at the server under the lowest
//! free number.

use std::{collections::VecDeque, sync::Arc};

use leasehold_model::server::ServerShell;
use leasehold_protocol::{
    command::Proposal,
    holder::SendId,
    message::{Consent, Recall, Request, Response},
    state::State,
};

use crate::{
    action::Action,
    client::{Client, Thread},
    oracle::Oracle,
    part::{Part, fingerprint},
    world::{Faults, World},
};

/// Names a connection: the client, and the number of the connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LinkId {
    pub(crate) client: usize,
    pub(crate) number: u32,
}

/// A connection with its messages, in four streams. Each keeps its order.
#[derive(Debug, Clone, Default, Hash)]
pub(crate) struct Link {
    pub(crate) id: LinkId,
    pub(crate) server: usize,
    /// Nothing more can be sent on it.
    pub(crate) is_broken: bool,
    /// Everything on it is lost, and neither side notices.
    pub(crate) is_cut: bool,
    pub(crate) requests: VecDeque<(SendId, Arc<Request>)>,
    pub(crate) consents: VecDeque<Consent>,
    pub(crate) responses: VecDeque<(SendId, Arc<Response>)>,
    pub(crate) recalls: VecDeque<Recall>,
}

/// A quorum round in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Proof {
    pub(crate) round: u64,
    /// The verdict of the other servers, once they were asked.
    pub(crate) verdict: Option<bool>,
}

/// A server. The address of an answer is the connection and the sending.
#[derive(Debug, Clone, Hash)]
pub(crate) struct Server {
    /// The applied state: that of an earlier commit, sealed then.
    pub(crate) state: Part<State>,
    pub(crate) shell: ServerShell<(LinkId, SendId), LinkId>,
    /// The leadership of the lessor.
    pub(crate) term: u64,
    /// Its appended entries that no quorum has. Empty on a deposed server: its entries are lost.
    pub(crate) tail: VecDeque<Arc<Proposal>>,
    pub(crate) proof: Option<Proof>,
    /// The true time of its last step.
    pub(crate) stepped: u64,
}

/// The whole world at one moment.
#[derive(Debug, Clone, Hash)]
pub(crate) struct Situation {
    /// True time, in microseconds.
    pub(crate) now: u64,
    /// The number of the present moment.
    pub(crate) moment: usize,
    /// The faults that may still happen.
    pub(crate) left: Faults,
    /// The server that leads, and the number of that leadership.
    pub(crate) leader: usize,
    pub(crate) term: u64,
    pub(crate) servers: Vec<Part<Server>>,
    pub(crate) clients: Vec<Part<Client>>,
    pub(crate) links: Vec<Part<Link>>,
    /// The state after all committed entries.
    pub(crate) truth: Part<State>,
    pub(crate) oracle: Part<Oracle>,
}

impl Situation {
    /// Hashes the changed parts, and drops connections on which nothing more can happen.
    pub(crate) fn seal(&mut self) -> u128 {
        let clients = &self.clients;
        self.links.retain(|link| clients[link.id.client].link == Some(link.id) || link.is_under_way());
        self.truth.seal();
        self.oracle.seal();
        self.servers.iter_mut().for_each(Part::seal);
        self.clients.iter_mut().for_each(Part::seal);
        self.links.iter_mut().for_each(Part::seal);
        fingerprint(self)
    }

    pub(crate) fn link(&self, id: LinkId) -> Option<&Part<Link>> {
        self.links.iter().find(|link| link.id == id)
    }

    pub(crate) fn link_mut(&mut self, id: LinkId) -> Option<&mut Link> {
        self.links.iter_mut().find(|link| link.id == id).map(Part::change)
    }

    /// Whether the server leads, as far as the others know.
    pub(crate) fn leads(&self, server: usize) -> bool {
        self.leader == server && self.servers[server].term == self.term
    }

    /// All possible actions, always in the same order.
    pub(crate) fn actions(&self, world: &World) -> Vec<Action> {
        let mut actions = Vec::with_capacity(16);
        for (place, client) in self.clients.iter().enumerate() {
            self.actions_of_client(world, place, client, &mut actions);
        }
        for link in &self.links {
            self.actions_on_link(link, &mut actions);
        }
        for place in 0..self.servers.len() {
            self.actions_of_server(world, place, &mut actions);
        }
        self.elections(&mut actions);
        if self.moment + 1 < world.moments.len() {
            actions.push(Action::Advance);
        }
        actions
    }

    fn actions_of_client(&self, world: &World, place: usize, client: &Client, actions: &mut Vec<Action>) {
        if let Some(thread) = client.threads.iter().position(|thread| matches!(thread, Thread::LookedUp { .. })) {
            // The thread locks the copy. The client's rules cannot finish a step before the thread
            // has used it.
            return actions.push(Action::Finish { client: place, thread });
        }
        if !client.shell.is_open {
            return;
        }
        for (thread, at) in client.threads.iter().enumerate() {
            if let Thread::Idle(next) = at
                && *next < world.members[place].threads[thread].len()
            {
                actions.push(Action::Begin { client: place, thread });
            }
        }
        let clock = world.client_clock(place, self.now);
        if client.shell.holder.next_deadline().is_some_and(|deadline| deadline <= clock) {
            actions.push(Action::ClientTimer { client: place });
        }
        let is_broken = |id| self.link(id).is_some_and(|link| link.is_broken);
        if client.link.is_some_and(is_broken) {
            actions.push(Action::Notice { client: place });
        }
        if client.seeks {
            for server in 0..self.servers.len() {
                let is_allowed = self.leads(server) || self.left.misdirections > 0;
                if self.servers[server].shell.lessor.is_some() && is_allowed {
                    actions.push(Action::Connect { client: place, server });
                }
            }
        }
        if let Some(link) = client.link.and_then(|id| self.link(id)).filter(|link| !link.is_broken && !link.is_cut) {
            if self.left.breaks > 0 {
                actions.push(Action::Break { client: place });
            }
            if self.left.cuts > 0 {
                actions.push(Action::Cut { client: place });
            }
            if self.left.lost_recalls > 0 && !link.recalls.is_empty() {
                actions.push(Action::LoseRecall { client: place });
            }
        }
    }

    fn actions_on_link(&self, link: &Link, actions: &mut Vec<Action>) {
        let id = link.id;
        let client = &self.clients[id.client];
        if !link.requests.is_empty() {
            actions.push(Action::Up { link: id, place: 0 });
        }
        if !link.consents.is_empty() {
            actions.push(Action::UpConsent { link: id });
        }
        if link.requests.len() > 1 && self.left.overtakings > 0 {
            actions.push(Action::Up { link: id, place: 1 });
        }
        if client.link != Some(id) || !client.shell.is_open || client.is_locked() {
            return;
        }
        if !link.responses.is_empty() {
            actions.push(Action::Down { link: id, place: 0 });
        }
        if !link.recalls.is_empty() {
            actions.push(Action::DownRecall { link: id });
        }
        if link.responses.len() > 1 && self.left.overtakings > 0 {
            actions.push(Action::Down { link: id, place: 1 });
        }
    }

    fn actions_of_server(&self, world: &World, place: usize, actions: &mut Vec<Action>) {
        let server = &self.servers[place];
        if server.shell.lessor.is_none() {
            return;
        }
        if self.leads(place) && !server.tail.is_empty() {
            actions.push(Action::Commit);
        }
        match server.proof {
            // Without a second server, nothing can happen between the question and the verdict.
            Some(Proof { verdict: None, .. }) if world.servers.len() > 1 => actions.push(Action::Ask { server: place }),
            Some(_) => actions.push(Action::Verdict { server: place }),
            None => {}
        }
        if server.stepped < self.now {
            actions.push(Action::ServerTimer { server: place });
        }
        if !self.leads(place) {
            actions.push(Action::Learn { server: place });
        }
    }

    fn elections(&self, actions: &mut Vec<Action>) {
        let tail = self.servers[self.leader].tail.len();
        if self.left.elections > 0 {
            for server in (0..self.servers.len()).filter(|server| *server != self.leader) {
                actions.extend((0..=tail).map(|kept| Action::Elect { server, kept, is_late: false }));
            }
        }
        if self.left.reelections > 0 {
            let server = self.leader;
            for kept in 0..=tail {
                actions.push(Action::Elect { server, kept, is_late: false });
                if kept < tail {
                    actions.push(Action::Elect { server, kept, is_late: true });
                }
            }
        }
    }
}

impl Link {
    pub(crate) fn new(id: LinkId, server: usize) -> Self {
        Self { id, server, ..Self::default() }
    }

    /// Whether a message on it may still reach a server.
    fn is_under_way(&self) -> bool {
        !self.requests.is_empty() || !self.consents.is_empty()
    }

    /// Whether a message that is sent now can arrive.
    pub(crate) fn carries(&self) -> bool {
        !self.is_broken && !self.is_cut
    }
}

impl Server {
    pub(crate) fn new(state: Part<State>) -> Self {
        Self { state, shell: ServerShell::default(), term: 0, tail: VecDeque::new(), proof: None, stepped: 0 }
    }
}
