//! A situation: everything there is in a world at one moment, and what may happen next.
//!
//! Two situations are the same if their hashes are: all of what the rules remember is in them, and
//! so is all of what is on its way. Numbers that only name things (tickets, stamps, revisions) are
//! part of it, too: leaving them out would merge more, but each is compared with others somewhere
//! in the rules, and a renaming that keeps all comparisons is not worth its risk here. What is left
//! out is what no rule reads: a request waits on the server under the lowest number that is free.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use leasehold_protocol::{
    command::Proposal,
    holder::SendId,
    id::{RequestId, SessionId},
    lessor::Lessor,
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

/// Names a connection: whose, and which of that client's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct LinkId {
    pub(crate) client: usize,
    pub(crate) number: u32,
}

/// A connection with what is on it: four streams, in each of which order is kept.
#[derive(Debug, Clone, Hash)]
pub(crate) struct Link {
    pub(crate) id: LinkId,
    pub(crate) server: usize,
    /// Nothing more can be sent on it.
    pub(crate) is_broken: bool,
    /// Everything on it is lost, and nobody knows.
    pub(crate) is_cut: bool,
    pub(crate) requests: VecDeque<(SendId, Arc<Request>)>,
    pub(crate) consents: VecDeque<Consent>,
    pub(crate) responses: VecDeque<(SendId, Arc<Response>)>,
    pub(crate) recalls: VecDeque<Recall>,
}

/// A proof of leadership that is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Proof {
    pub(crate) round: u64,
    /// What the others say, once they were asked.
    pub(crate) verdict: Option<bool>,
}

/// A server, and its lessor while it leads or believes that it does.
#[derive(Debug, Clone, Hash)]
pub(crate) struct Server {
    /// What is applied here: what was committed at some time, and sealed then.
    pub(crate) state: Part<State>,
    pub(crate) lessor: Option<Lessor>,
    /// The leadership that the lessor is of.
    pub(crate) term: u64,
    /// What it appended and no quorum has yet. Nothing on a server that was deposed: that is lost.
    pub(crate) tail: VecDeque<Arc<Proposal>>,
    pub(crate) routes: BTreeMap<SessionId, (u64, LinkId)>,
    pub(crate) asked: BTreeMap<RequestId, (LinkId, SendId)>,
    pub(crate) proof: Option<Proof>,
    /// The true time of its last step.
    pub(crate) stepped: u64,
}

/// Everything.
#[derive(Debug, Clone, Hash)]
pub(crate) struct Situation {
    /// True time, in microseconds.
    pub(crate) now: u64,
    /// Which of the world's moments it is.
    pub(crate) moment: usize,
    /// What may still go wrong.
    pub(crate) left: Faults,
    /// Which server leads, and under which number.
    pub(crate) leader: usize,
    pub(crate) term: u64,
    pub(crate) servers: Vec<Part<Server>>,
    pub(crate) clients: Vec<Part<Client>>,
    pub(crate) links: Vec<Part<Link>>,
    /// What is committed, applied.
    pub(crate) truth: Part<State>,
    pub(crate) oracle: Part<Oracle>,
}

impl Situation {
    /// Hashes what was changed, and forgets connections on which nothing can happen any more.
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

    /// Everything that may happen next, always in the same order.
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
        if let Some(thread) = client.threads.iter().position(|thread| matches!(thread, Thread::Looked { .. })) {
            // A copy that is looked at is locked: no step of this client's rules can end before it
            // is used.
            return actions.push(Action::Finish { client: place, thread });
        }
        if !client.is_open {
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
        if client.holder.next_deadline().is_some_and(|deadline| deadline <= clock) {
            actions.push(Action::ClientTimer { client: place });
        }
        let is_broken = |id| self.link(id).is_some_and(|link| link.is_broken);
        if client.link.is_some_and(is_broken) {
            actions.push(Action::Notice { client: place });
        }
        if client.seeks {
            for server in 0..self.servers.len() {
                let is_allowed = self.leads(server) || self.left.misdirections > 0;
                if self.servers[server].lessor.is_some() && is_allowed {
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
        if client.link != Some(id) || !client.is_open || client.is_locked() {
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
        if server.lessor.is_none() {
            return;
        }
        if self.leads(place) && !server.tail.is_empty() {
            actions.push(Action::Commit);
        }
        match server.proof {
            // Without another server that could lead there is nothing between the two.
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
        Self {
            id,
            server,
            is_broken: false,
            is_cut: false,
            requests: VecDeque::new(),
            consents: VecDeque::new(),
            responses: VecDeque::new(),
            recalls: VecDeque::new(),
        }
    }

    /// Whether something on it may still reach a server.
    fn is_under_way(&self) -> bool {
        !self.requests.is_empty() || !self.consents.is_empty()
    }

    /// Whether what is sent now can arrive.
    pub(crate) fn carries(&self) -> bool {
        !self.is_broken && !self.is_cut
    }
}

impl Server {
    pub(crate) fn new(state: Part<State>) -> Self {
        Self {
            state,
            lessor: None,
            term: 0,
            tail: VecDeque::new(),
            routes: BTreeMap::new(),
            asked: BTreeMap::new(),
            proof: None,
            stepped: 0,
        }
    }
}
