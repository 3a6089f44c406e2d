//! A server: the shell around the lessor, as thin as the real one is meant to be, and the stand-in
//! for Raft.
//!
//! That stand-in has one order of committed entries, and one server that may append to it. A
//! deposed server does not know it for a while, and its appended entries are lost. An elected
//! server has applied all committed entries.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use leasehold_model::{
    planting::planted,
    server::{ServerEvent, lessor_config, not_leader},
};
use leasehold_protocol::{
    command::{Command, Proposal},
    holder::SendId,
    id::Epoch,
    lessor::LessorInput,
    message::{Request, Response},
};

use crate::{
    run::Run,
    situation::{LinkId, Proof},
};

impl Run<'_> {
    /// One step of a server's lessor. Carries out its effects in order, and then takes its
    /// proposals.
    pub(crate) fn step_lessor(&mut self, place: usize, input: LessorInput) {
        let now = self.at.now;
        let clock = self.world.server_clock(place, now);
        self.say(|| format!("    server {place} <- {input:?}"));
        let server = self.at.servers[place].change();
        server.stepped = now;
        if server.shell.lessor.is_none() {
            return;
        }
        let events = server.shell.step(input, &server.state, clock);
        let held = server.shell.check(&server.state);
        self.demand(held.map_err(|what| format!("server {place}: {what}")));
        self.carry_out(place, events);
        self.propose(place);
    }

    fn carry_out(&mut self, place: usize, events: Vec<ServerEvent<(LinkId, SendId), LinkId>>) {
        for event in events {
            self.say(|| format!("    server {place} -> {event:?}"));
            match event {
                ServerEvent::Answer(_, (link, send_id), response) => self.send_down(link, send_id, *response),
                ServerEvent::Recall(to, recall) => {
                    if let Some(link) = self.at.link_mut(to).filter(|link| link.carries()) {
                        link.recalls.push_back(recall);
                    }
                }
                ServerEvent::Prove(round) => {
                    self.at.servers[place].change().proof = Some(Proof { round, verdict: None });
                }
                ServerEvent::Wrong(what) => self.demand(Err(format!("server {place}: {what}"))),
            }
        }
    }

    fn send_down(&mut self, link: LinkId, send_id: SendId, response: Response) {
        if let Some(link) = self.at.link_mut(link).filter(|link| link.carries()) {
            link.responses.push_back((send_id, Arc::new(response)));
        }
    }

    pub(crate) fn server_is_asked(&mut self, place: usize, link: LinkId, send_id: SendId, request: Request) {
        if self.at.servers[place].shell.lessor.is_none() {
            return self.send_down(link, send_id, not_leader(Some(self.at.leader.to_string())));
        }
        let shell = &mut self.at.servers[place].change().shell;
        let input = shell.receive(shell.free_id(), (link, send_id), link, request);
        self.step_lessor(place, input);
    }

    /// The server appends its lessor's proposals. Those of a server that no longer leads are lost.
    fn propose(&mut self, place: usize) {
        let clock = self.world.server_clock(place, self.at.now);
        let leads = self.at.leads(place);
        let server = self.at.servers[place].change();
        while let Some(proposal) = server.shell.take_proposal(clock) {
            if leads {
                server.tail.push_back(Arc::new(proposal));
            }
        }
        let is_tick = |proposal: &Arc<Proposal>| matches!(proposal.commands[..], [Command::Tick { .. }]);
        if leads && self.world.commits_ticks && server.tail.len() == 1 && server.tail.iter().all(is_tick) {
            self.commit_oldest();
        }
    }

    /// A quorum has the leader's oldest entry, and the leader applies it.
    pub(crate) fn commit_oldest(&mut self) {
        let leader = self.at.leader;
        let Some(proposal) = self.at.servers[leader].change().tail.pop_front() else { return };
        let applied = self.commit(&proposal);
        let truth = self.at.truth.clone();
        let server = self.at.servers[leader].change();
        server.state = truth;
        if server.shell.is_mine(&proposal) {
            self.step_lessor(leader, LessorInput::committed(proposal.number, applied));
        }
    }

    /// The other servers say whether the server leads.
    pub(crate) fn ask(&mut self, place: usize) {
        let leads = self.at.leads(place);
        if let Some(proof) = &mut self.at.servers[place].change().proof {
            proof.verdict = Some(leads);
        }
    }

    /// The server receives their verdict. A leader has applied everything committed by then.
    pub(crate) fn hear_verdict(&mut self, place: usize) {
        let leads = self.at.leads(place);
        let Some(Proof { round, verdict }) = self.at.servers[place].change().proof.take() else { return };
        let input =
            if verdict.unwrap_or(leads) { LessorInput::Proven { round } } else { LessorInput::NotProven { round } };
        self.step_lessor(place, input);
    }

    /// A server is elected. The first `kept` entries of the last leader are committed before the
    /// new ones.
    pub(crate) fn elect(&mut self, place: usize, kept: usize, is_late: bool) {
        let old = self.at.leader;
        let left = if old == place { &mut self.at.left.reelections } else { &mut self.at.left.elections };
        *left = left.saturating_sub(1);
        let mut tail = std::mem::take(&mut self.at.servers[old].change().tail);
        let late = tail.split_off(kept);
        for proposal in tail {
            self.commit(&proposal);
        }
        self.lead(place);
        // A shell never keeps the first entry of an epoch: no lessor would remain to lead by it.
        if is_late {
            let late = late.into_iter().filter(|proposal| proposal.epoch > Epoch(0));
            self.at.servers[place].change().tail.extend(late);
        }
    }

    /// The server has won an election.
    pub(crate) fn lead(&mut self, place: usize) {
        self.step_down(place);
        self.at.term += 1;
        self.at.leader = place;
        let (now, term) = (self.at.now, self.at.term);
        let config = lessor_config(place as u64, term, self.world.drift(), planted(self.bug));
        let clock = self.world.server_clock(place, now);
        let state = self.at.truth.clone();
        let server = self.at.servers[place].change();
        server.shell.lead(config, &state, Duration::ZERO, clock);
        (server.state, server.term, server.stepped) = (state, term, now);
        self.propose(place);
    }

    /// The server no longer leads, and knows it. It answers every waiting request.
    pub(crate) fn step_down(&mut self, place: usize) {
        let clock = self.world.server_clock(place, self.at.now);
        let server = self.at.servers[place].change();
        (server.tail, server.proof) = (VecDeque::new(), None);
        let events = server.shell.step_down(&server.state, clock);
        self.carry_out(place, events);
    }
}
