//! The end of faults: everything runs again, and gets the time that it needs to heal.

use leasehold_protocol::lessor::LessorBounds;

use crate::{
    churn::MANY,
    event::{Event, Host},
    profile::{MS, SECOND},
    raft::peers::Links,
    swarm::Swarm,
    world::World,
};

/// About how many bytes of memory a pending write takes at a leader, without its waits.
const WRITE_BYTES: usize = 1500;

/// About how many bytes its wait for one session takes, with the recall.
const WAIT_BYTES: usize = 1700;

impl World {
    /// Faults stop. Every machine runs again, and applications begin nothing new.
    pub(crate) fn heal(&mut self) {
        (self.is_healing, self.healed_in) = (true, self.steps);
        self.links = Links::default();
        self.trace.say(self.now, || "faults are over".to_owned());
        // Messages of a machine that was paused in a step still leave at their time (seed 4444).
        let hosts =
            self.clients.iter().map(|client| &client.machine).chain(self.servers.iter().map(|server| &server.machine));
        let frozen = hosts.map(|machine| machine.sends_from).max().unwrap_or_default().saturating_sub(self.now);
        // A stalled disk resumes at its time. Proposals handed over wait until then, and so do
        // writes (seed 5068).
        for server in 0..self.servers.len() {
            self.boot(server);
            self.resume(Host::Server(server));
        }
        for client in 0..self.clients.len() {
            self.clients[client].isolated_until = 0;
            self.resume(Host::Client(client));
            self.all_watch_on(client);
            // From now on only leases that no client renews end by themselves, and they do so soon.
            let kept = self.clients[client].shell.key_leases.renewed.clone();
            // Where few leases are granted, unneeded ones take the room of sessions.
            let lets_go = self.swarm().is_none_or(Swarm::has_few_leases);
            for id in kept.into_iter().filter(|_| lets_go) {
                self.let_go(client, id);
            }
        }
        let terms = u64::try_from(self.profile.term_max().as_micros()).expect("short") * 5;
        let calm = terms + frozen + self.replay() + self.drain();
        self.after(6 * SECOND + calm, Event::Ask);
        // A client that was silent needs a while to notice a dead connection.
        self.after(12 * SECOND + calm + self.rereads(), Event::Judge);
    }

    /// How much longer the final reads take if a leader takes few reads at a time. A client repeats
    /// its refused reads together, after up to 2 s and in the same order. The last is answered late
    /// (seed 45691).
    fn rereads(&self) -> u64 {
        let Some(LessorBounds { reads_max, .. }) = self.swarm().map(|swarm| swarm.bounds) else { return 0 };
        let (objects, taken) = (self.oracle.versions.all().len() as u64, reads_max.max(1) as u64);
        let all = objects * self.clients.len() as u64;
        if all <= taken { 0 } else { 4 * SECOND + objects.div_ceil(taken) * 2 * SECOND }
    }

    /// How long the open writes take if a leader takes few at a time. It refuses the others as
    /// busy, and clients repeat them within seconds.
    fn drain(&self) -> u64 {
        let Some(LessorBounds { writes_max, writes_bytes_max, results_max, .. }) =
            self.swarm().map(|swarm| swarm.bounds)
        else {
            return 0;
        };
        // Beyond the bound of results, each session has one transaction at a time.
        let remembered = results_max / usize::try_from(MANY).expect("small");
        let write_bytes = WRITE_BYTES + WAIT_BYTES * self.clients.len();
        let taken = writes_max.min(writes_bytes_max / write_bytes).min(remembered).max(1) as u64;
        let open: u64 = self.clients.iter().map(|client| client.shell.writes.len() as u64).sum();
        if open <= taken { 0 } else { 4 * SECOND + open.div_ceil(taken) * 600 * MS }
    }

    /// How long the server that is furthest behind needs to apply the committed entries. In a long
    /// world it may have minutes of work, and may be the leader (seed 7384).
    fn replay(&self) -> u64 {
        let committed = self.oracle.log.len() as u64;
        let behind = self.servers.iter().map(|server| committed.saturating_sub(server.state.applied_index())).max();
        behind.unwrap_or_default() * self.profile.apply * 2
    }
}
