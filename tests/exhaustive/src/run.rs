//! Carries out one action: from a situation to the next, with the violation that it causes.

use std::sync::Arc;

use leasehold_model::committed;
use leasehold_protocol::{
    command::Proposal, holder::HolderInput, lessor::LessorInput, planted::Bug, state::Applied, time::Instant,
};

use crate::{
    action::Action,
    situation::{Link, LinkId, Situation},
    world::World,
};

/// A situation that an action is changing.
pub(crate) struct Run<'a> {
    pub(crate) world: &'a World,
    pub(crate) bug: Option<Bug>,
    pub(crate) at: Situation,
    violation: Option<String>,
    /// What happened, as text, if it is recorded.
    lines: Option<Vec<String>>,
}

impl<'a> Run<'a> {
    pub(crate) fn new(world: &'a World, bug: Option<Bug>, at: Situation, keeps_lines: bool) -> Self {
        let lines = keeps_lines.then(Vec::new);
        Self { world, bug, at, violation: None, lines }
    }

    /// Records a line of text, if text is recorded.
    pub(crate) fn say(&mut self, words: impl FnOnce() -> String) {
        if let Some(lines) = &mut self.lines {
            lines.push(words());
        }
    }

    pub(crate) fn take_lines(&mut self) -> Vec<String> {
        self.lines.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Records the violation if an invariant does not hold.
    pub(crate) fn demand(&mut self, held: Result<(), String>) {
        if let Err(what) = held {
            self.violation.get_or_insert(what);
        }
    }

    /// Records a violation by a client.
    pub(crate) fn complain(&mut self, client: usize, what: String) {
        self.demand_of(client, Err(what));
    }

    /// Like [`demand`](Self::demand), for an invariant about a client.
    pub(crate) fn demand_of(&mut self, client: usize, held: Result<(), String>) {
        self.demand(held.map_err(|what| format!("client {client}: {what}")));
    }

    pub(crate) fn client_clock(&self, client: usize) -> Instant {
        self.world.client_clock(client, self.at.now)
    }

    pub(crate) fn verdict(&mut self) -> Result<(), String> {
        self.violation.take().map_or(Ok(()), Err)
    }

    /// Carries out one action. Returns the violation that it causes.
    pub(crate) fn act(&mut self, action: Action) -> Result<(), String> {
        let millis = self.at.now / 1000;
        self.say(|| format!("[{millis} ms] {action}"));
        match action {
            Action::Begin { client, thread } => self.begin(client, thread),
            Action::Finish { client, thread } => self.finish(client, thread),
            Action::ClientTimer { client } => self.client_timer(client),
            Action::Notice { client } => self.notice(client),
            Action::Connect { client, server } => self.connect(client, server),
            Action::Up { link, place } => self.up(link, place),
            Action::UpConsent { link } => self.up_consent(link),
            Action::Down { link, place } => self.down(link, place),
            Action::DownRecall { link } => self.down_recall(link),
            Action::Commit => self.commit_oldest(),
            Action::Ask { server } => self.ask(server),
            Action::Verdict { server } => self.hear_verdict(server),
            Action::ServerTimer { server } => self.step_lessor(server, LessorInput::Timeout),
            Action::Learn { server } => self.step_down(server),
            Action::Elect { server, kept, is_late } => self.elect(server, kept, is_late),
            Action::Advance => self.advance(),
            Action::Break { client } => {
                self.at.left.breaks -= 1;
                self.change_link(client, |link| {
                    link.is_broken = true;
                });
            }
            Action::Cut { client } => {
                self.at.left.cuts -= 1;
                self.change_link(client, |link| *link = Link { is_cut: true, ..Link::new(link.id, link.server) });
            }
            Action::LoseRecall { client } => {
                self.at.left.lost_recalls -= 1;
                self.change_link(client, |link| {
                    link.recalls.pop_front();
                });
            }
        }
        self.verdict()
    }

    fn change_link(&mut self, client: usize, change: impl FnOnce(&mut Link)) {
        if let Some(link) = self.at.clients[client].link.and_then(|id| self.at.link_mut(id)) {
            change(link);
        }
    }

    fn advance(&mut self) {
        self.at.moment += 1;
        self.at.now = self.at.now.max(self.world.moments[self.at.moment] * 1000 + self.world.start());
    }

    fn up(&mut self, id: LinkId, place: usize) {
        if place > 0 {
            self.at.left.overtakings -= 1;
        }
        let Some(link) = self.at.link_mut(id) else { return };
        let server = link.server;
        if let Some((send_id, request)) = link.requests.remove(place) {
            self.server_is_asked(server, id, send_id, Arc::unwrap_or_clone(request));
        }
    }

    fn up_consent(&mut self, id: LinkId) {
        let Some(link) = self.at.link_mut(id) else { return };
        let server = link.server;
        if let Some(consent) = link.consents.pop_front() {
            self.step_lessor(server, LessorInput::Consent(consent));
        }
    }

    fn down(&mut self, id: LinkId, place: usize) {
        if place > 0 {
            self.at.left.overtakings -= 1;
        }
        if let Some((send_id, response)) = self.at.link_mut(id).and_then(|link| link.responses.remove(place)) {
            let response = Arc::unwrap_or_clone(response);
            self.step_holder(id.client, HolderInput::Answered { send_id, response });
        }
    }

    fn down_recall(&mut self, id: LinkId) {
        if let Some(recall) = self.at.link_mut(id).and_then(|link| link.recalls.pop_front()) {
            self.step_holder(id.client, HolderInput::Recalled(recall));
        }
    }

    /// A quorum has an entry, so its position in the order is final. Every usable copy must equal
    /// the new state.
    pub(crate) fn commit(&mut self, proposal: &Proposal) -> Applied {
        let before = self.at.truth.clone();
        let index = before.applied_index() + 1;
        let applied = self.at.truth.change().apply(index, proposal);
        let outcomes = &applied.outcomes;
        self.at.truth.seal();
        self.say(|| format!("    committed {index}: {proposal:?}"));
        self.say(|| format!("    outcomes: {outcomes:?}"));
        let held = self.at.oracle.change().committed(&before, &self.at.truth, (proposal, outcomes));
        self.demand(held);
        for (lease, incarnation) in committed::expired(proposal, outcomes) {
            for client in 0..self.at.clients.len() {
                let held = self.at.clients[client].shell.check_ended(lease, incarnation, self.client_clock(client));
                self.demand_of(client, held);
            }
        }
        for client in 0..self.at.clients.len() {
            self.copies_are_true(client);
        }
        applied
    }

    /// No client may use an old copy. The end of a lease cannot make a usable copy old. So this
    /// check runs when a client or the true state has changed.
    pub(crate) fn copies_are_true(&mut self, client: usize) {
        let held = self.at.clients[client].shell.check_copies(&self.at.truth, self.client_clock(client));
        self.demand_of(client, held);
    }
}
