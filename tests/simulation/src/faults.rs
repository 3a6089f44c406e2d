//! Injects the faults of a world.

use crate::{
    event::{Event, Host},
    profile::{Fault, MS, SECOND},
    raft::SERVERS,
    world::World,
};

impl World {
    /// Injects one fault, and schedules the next.
    pub(crate) fn fault(&mut self) {
        if self.is_healing {
            return;
        }
        let next = self.rng.wait(self.profile.fault_every);
        self.after(next, Event::Fault);
        let fault = self.profile.fault(&mut self.rng);
        if self.without.contains(&fault) {
            return;
        }
        self.trace.say(self.now, || format!("fault: {}", fault.name()));
        let was_possible = match fault {
            Fault::StepWallClock => self.step_wall_clock(),
            Fault::PauseClient
            | Fault::BreakConnection
            | Fault::CutConnection
            | Fault::DeafenConnection
            | Fault::IsolateClient
            | Fault::RestartClient
            | Fault::CloseClient
            | Fault::Evict => self.client_fault(fault),
            _ => self.server_fault(fault),
        };
        self.tally.add(if was_possible { fault.name() } else { "faults that were not possible" });
    }

    pub(crate) fn term(&self) -> u64 {
        u64::try_from(self.profile.volume.longest_term().as_micros()).expect("short")
    }

    /// How long a client is away: up to three volume terms; in a long world also about a session's
    /// term.
    fn absence(&mut self) -> u64 {
        if self.profile.is_long && self.rng.chance(600) {
            return self.rng.between(590, 700) * SECOND;
        }
        let term = self.term();
        self.rng.between(1, 3 * term)
    }

    fn client_fault(&mut self, fault: Fault) -> bool {
        let is_there = |client: &usize| self.clients[*client].shell.is_open && !self.clients[*client].machine.is_paused;
        let possible = |client: &usize| {
            is_there(client)
                && match fault {
                    Fault::BreakConnection | Fault::CutConnection | Fault::DeafenConnection => {
                        self.clients[*client].connection.is_some()
                    }
                    Fault::Evict => !self.clients[*client].shell.cache.copies.is_empty(),
                    _ => true,
                }
        };
        let candidates: Vec<usize> = (0..self.clients.len()).filter(possible).collect();
        if candidates.is_empty() {
            return false;
        }
        let client = *self.rng.pick(&candidates);
        let connection = self.clients[client].connection.unwrap_or_default();
        match fault {
            Fault::PauseClient => {
                let span = self.absence();
                self.pause_now_or_in_a_step(Host::Client(client), span);
            }
            Fault::IsolateClient => {
                let span = self.absence();
                self.clients[client].isolated_until = self.now + span;
                if let Some(connection) = self.clients[client].connection {
                    (self.connections[connection].is_cut_up, self.connections[connection].is_cut_down) = (true, true);
                }
            }
            Fault::BreakConnection => self.break_connection(connection),
            Fault::CutConnection => {
                let which = self.rng.below(3);
                self.connections[connection].is_cut_up |= which != 1;
                self.connections[connection].is_cut_down |= which != 0;
            }
            Fault::DeafenConnection => self.connections[connection].is_deaf = true,
            Fault::RestartClient => self.restart_client(client),
            Fault::CloseClient => self.close_client(client),
            _ => self.evict(client),
        }
        true
    }

    fn server_fault(&mut self, fault: Fault) -> bool {
        let is_there = |server: &usize| self.servers[*server].is_up && !self.servers[*server].machine.is_paused;
        let leader = self.apparent_leader().filter(is_there);
        let candidates: Vec<usize> = (0..SERVERS).filter(is_there).collect();
        let others: Vec<usize> = candidates.iter().copied().filter(|server| Some(*server) != leader).collect();
        let of_all = if candidates.is_empty() { None } else { Some(*self.rng.pick(&candidates)) };
        let of_others = if others.is_empty() { None } else { Some(*self.rng.pick(&others)) };
        let target = match fault {
            Fault::PauseLeader | Fault::Reelection | Fault::GiveUpLessor => leader,
            // A faulty leader causes more than a faulty follower.
            Fault::SlowServer | Fault::StallDisk | Fault::CutServers if self.rng.chance(500) => leader.or(of_all),
            Fault::Election => of_others,
            _ => of_all,
        };
        let Some(server) = target else { return false };
        let term = self.term();
        match fault {
            Fault::PauseServer => {
                let span = self.rng.between(1, 2 * term);
                self.pause_now_or_in_a_step(Host::Server(server), span);
            }
            Fault::PauseLeader => {
                let span = self.rng.between(2 * self.profile.election, 2 * term + 2 * self.profile.election);
                self.pause_now_or_in_a_step(Host::Server(server), span);
            }
            Fault::Election => self.stand(server),
            Fault::Reelection => {
                if self.rng.chance(500) {
                    let stall = self.rng.between(5, 600) * MS;
                    self.servers[server].hand_late(self.now + stall);
                }
                self.stand(server);
            }
            Fault::GiveUpLessor => self.give_up_lessor(server),
            Fault::CutServers => self.cut_servers(server),
            Fault::SlowServer => {
                let (late, span) = (self.rng.between(20, 1500) * MS, self.rng.between(200, 3000) * MS);
                self.links.slow(server, late, self.now + span);
            }
            Fault::StallDisk => {
                let span = self.rng.between(20, 1500) * MS;
                // A stall does not shorten an earlier, longer one (seed 9014).
                let stalled = &mut self.servers[server].stalled_until;
                *stalled = (*stalled).max(self.now + span);
            }
            Fault::RestartServer => self.restart_server(server),
            Fault::LoseMajority => {
                self.restart_server(server);
                self.restart_server((server + 1) % SERVERS);
            }
            Fault::WipeServer => {
                if !self.wipe(server) {
                    return false;
                }
                let down = self.rng.between(20, 800) * MS;
                self.after(down, Event::Boot { server });
            }
            _ => return false,
        }
        true
    }

    fn restart_server(&mut self, server: usize) {
        if self.servers[server].is_up {
            self.crash(server);
            let down = self.rng.between(20, 1500) * MS;
            self.after(down, Event::Boot { server });
        }
    }

    /// Cuts messages from the server, or to it, or both.
    fn cut_servers(&mut self, server: usize) {
        let until = self.now + self.rng.between(100, 3000) * MS;
        let (which, only) = (self.rng.below(3), self.rng.index(2 * SERVERS));
        for other in (0..SERVERS).filter(|other| *other != server && (*other == only || only >= SERVERS)) {
            if which != 0 {
                self.links.cut(server, other, until);
            }
            if which != 1 {
                self.links.cut(other, server, until);
            }
        }
    }

    /// Pauses the machine now, or in the middle of its next step. The messages of that step are
    /// then late.
    fn pause_now_or_in_a_step(&mut self, host: Host, span: u64) {
        if self.rng.chance(300) {
            self.machine(host).freezes_for = Some(span);
        } else {
            self.pause(host, span);
        }
    }

    /// Sets a machine's wall clock. The simulator and the rules read none, so a step must change
    /// nothing. This draws no random number: the run is the same with and without it.
    fn step_wall_clock(&mut self) -> bool {
        let machine = &mut self.servers[usize::try_from(self.steps % 3).expect("small")].machine;
        machine.wall = machine.wall.wrapping_sub(self.steps << 20);
        true
    }
}
