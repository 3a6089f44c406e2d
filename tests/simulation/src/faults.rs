//! What goes wrong, and elections.

use leasehold_protocol::id::Epoch;

use crate::{
    event::{Event, Host},
    profile::{Fault, MS},
    world::World,
};

impl World {
    /// Something goes wrong, and something else will.
    pub(crate) fn fault(&mut self) {
        if self.is_healing {
            return;
        }
        let next = self.rng.wait(self.profile.fault_every);
        self.after(next, Event::Fault);
        let fault = self.profile.fault(&mut self.rng);
        let client = self.rng.index(self.clients.len());
        let server = self.rng.index(self.servers.len());
        let term = u64::try_from(self.profile.volume.term().as_micros()).expect("short");
        self.trace.say(self.now, || format!("fault: {fault:?}"));
        match fault {
            Fault::PauseClient => {
                let span = self.rng.between(1, 3 * term);
                self.pause(Host::Client(client), span);
            }
            Fault::PauseServer => {
                let span = self.rng.between(1, 2 * term);
                self.pause_server(server, span);
            }
            Fault::PauseLeader => self.pause_leader(term),
            Fault::BreakConnection => {
                if let Some(connection) = self.clients[client].connection {
                    self.break_connection(connection);
                }
            }
            Fault::CutConnection => {
                if let Some(connection) = self.clients[client].connection {
                    self.connections[connection].is_cut = true;
                }
            }
            Fault::DeafenConnection => {
                if let Some(connection) = self.clients[client].connection {
                    self.connections[connection].is_deaf = true;
                }
            }
            Fault::Election => self.elect(false),
            Fault::Reelection => self.reelect(),
            Fault::RestartServer => {
                self.crash(server);
                let down = self.rng.between(20, 800) * MS;
                self.after(down, Event::Boot { server });
                self.replace_leader(server);
            }
            Fault::RestartClient => self.restart_client(client),
            Fault::CloseClient => self.close_client(client),
            Fault::Evict => self.evict(client),
        }
    }

    fn pause_server(&mut self, server: usize, span: u64) {
        self.pause(Host::Server(server), span);
        if span > 200 * MS {
            self.replace_leader(server);
        }
    }

    /// If the server leads, another is elected soon.
    fn replace_leader(&mut self, server: usize) {
        if self.log.leader.is_some_and(|(leader, _)| leader == server) {
            let after = self.rng.between(50, 300) * MS;
            self.after(after, Event::Elect { again: false });
        }
    }

    fn pause_leader(&mut self, term: u64) {
        let Some((leader, _)) = self.log.leader else { return };
        let span = self.rng.between(200 * MS, 2 * term);
        self.pause(Host::Server(leader), span);
        let after = self.rng.between(10 * MS, span / 3 + 10 * MS);
        self.after(after, Event::Elect { again: false });
    }

    /// The leader is elected again, often while a disk keeps its entries from being committed.
    fn reelect(&mut self) {
        let stall = if self.rng.chance(500) { 0 } else { self.rng.between(5, 100) * MS };
        if let Some((leader, _)) = self.log.leader {
            let server = &mut self.servers[leader];
            server.commit_at = server.commit_at.max(self.now + stall);
        }
        self.after(stall / 2, Event::Elect { again: true });
    }

    /// An election, if there is somebody to elect.
    pub(crate) fn elect(&mut self, again: bool) {
        let old = self.log.leader;
        let is_there = |place: &usize| self.servers[*place].is_up && !self.servers[*place].machine.is_paused;
        let mut candidates: Vec<usize> = (0..self.servers.len()).filter(is_there).collect();
        let same = old.map(|(leader, _)| leader).filter(|leader| candidates.contains(leader));
        if candidates.len() > 1 && !again {
            candidates.retain(|place| Some(*place) != same || self.servers.len() == 1);
        }
        if candidates.is_empty() {
            return self.after(100 * MS, Event::Elect { again });
        }
        let elected = match same {
            Some(leader) if again => leader,
            _ => *self.rng.pick(&candidates),
        };
        self.log.term += 1;
        let term = self.log.term;
        self.log.leader = Some((elected, term));
        self.trace.say(self.now, || format!("server {elected} is elected for term {term}, after {old:?}"));
        self.trace.mark(&[elected as u64, term]);
        self.inherit(old.map(|(leader, _)| leader), elected);
        self.lead(elected, term);
        self.append_held(elected);
        if let Some((leader, _)) = old.filter(|(leader, _)| *leader != elected) {
            let boot = self.servers[leader].boot;
            let after = self.rng.wait(self.profile.learn);
            self.after(after, Event::Learn { server: leader, boot });
        }
    }

    /// Some first part of what the old leader had appended is in its successor's log, and so committed before what the
    /// successor adds. The rest is lost, unless the old leader's shell had not handed it to Raft yet.
    fn inherit(&mut self, old: Option<usize>, elected: usize) {
        let Some(old) = old else { return };
        let mut tail = std::mem::take(&mut self.servers[old].tail);
        let held = if tail.is_empty() || self.rng.chance(500) { 0 } else { self.rng.index(tail.len() + 1) };
        let late = tail.split_off(tail.len() - held);
        let inherited = if tail.is_empty() { 0 } else { self.rng.index(tail.len() + 1) };
        let kept = if old == elected { tail.len() } else { inherited };
        for proposal in tail.into_iter().take(kept) {
            self.commit(proposal);
        }
        // A first entry of an epoch is not among what a shell keeps: nobody would be there to lead by it.
        if self.servers[old].is_up {
            self.servers[old].held.extend(late.into_iter().filter(|proposal| proposal.epoch > Epoch(0)));
        }
    }

    /// The shell hands over what it had kept from an earlier leadership, behind the first entry of this one.
    fn append_held(&mut self, elected: usize) {
        let boot = self.servers[elected].boot;
        self.propose(elected, boot);
        let held = std::mem::take(&mut self.servers[elected].held);
        for proposal in held {
            let after = self.rng.wait(self.profile.commit * 20);
            self.servers[elected].commit_at = self.servers[elected].commit_at.max(self.now + after);
            self.append(elected, proposal);
        }
    }
}
