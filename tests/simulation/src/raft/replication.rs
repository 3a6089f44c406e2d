//! Replication: one log for all servers, and which of its entries are committed.

use std::sync::Arc;

use super::{Entry, Payload, Peer, Role, SERVERS, contains, is_majority};
use crate::{event::Event, world::World};

/// The leader that waits for a sync: its Raft term, and the heartbeat that asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Asked {
    leader: usize,
    term: u64,
    beat: u64,
}

/// The most entries in one message.
const ENTRIES_MAX: usize = 64;

impl World {
    /// The leader appends an entry and sends it to the others.
    pub(crate) fn append(&mut self, server: usize, payload: Payload) {
        let now = self.now;
        if let Payload::Members(members) = payload {
            self.trace.say(now, || format!("server {server} proposes members {members:03b}"));
        }
        let raft = &mut self.servers[server].raft;
        let term = raft.term;
        if let Payload::Proposal(_) = payload {
            raft.proposer = None;
        }
        raft.push(Arc::new(Entry { term, payload }));
        let index = raft.last();
        if let Some(leading) = raft.leading_mut() {
            leading.appended.insert(index, now);
        }
        self.sync(server, None);
        self.replicate(server);
    }

    /// The entries appended so far reach the disk after a while, in order. Then the leader is
    /// notified.
    fn sync(&mut self, server: usize, answer: Option<Asked>) {
        let after = self.rng.wait(self.profile.sync);
        let stored = &mut self.servers[server];
        stored.raft.sync_at = stored.raft.sync_at.max(self.now + after).max(stored.stalled_until);
        let (index, at, boot) = (stored.raft.last(), stored.raft.sync_at, stored.boot);
        let term = stored.raft.term_at(index).unwrap_or_default();
        self.at(at, Event::Synced { server, boot, upto: (index, term), answer });
    }

    pub(crate) fn synced(&mut self, server: usize, boot: u64, upto: (u64, u64), answer: Option<Asked>) {
        if !self.servers[server].is(boot) {
            return;
        }
        let raft = &mut self.servers[server].raft;
        let (index, term) = upto;
        if raft.term_at(index) != Some(term) {
            return;
        }
        raft.synced = raft.synced.max(index);
        match answer {
            // Answer only in the Raft term of the request: another one counts heartbeats anew, and
            // has its own proofs (seed 6867).
            Some(Asked { leader, term, beat }) if term == raft.term => {
                self.send_peer(server, leader, Peer::Appended { term, matched: Ok(index), beat });
            }
            Some(_) => {}
            None => self.count_copies(server),
        }
    }

    /// Sends each server the entries that the leader believes it lacks.
    pub(crate) fn replicate(&mut self, server: usize) {
        for other in (0..SERVERS).filter(|other| *other != server) {
            let raft = &mut self.servers[server].raft;
            let (term, commit) = (raft.term, raft.commit);
            let Some(leading) = raft.leading() else { return };
            let (next, beat) = (leading.next[other], leading.beat);
            let first = usize::try_from(next - 1).expect("an index");
            let entries: Vec<_> = raft.log[first..].iter().take(ENTRIES_MAX).cloned().collect();
            let previous = (next - 1, raft.term_at(next - 1).unwrap_or_default());
            let sent = entries.len() as u64;
            if let Some(leading) = raft.leading_mut() {
                leading.next[other] += sent;
            }
            self.send_peer(server, other, Peer::Append { term, previous, entries, commit, beat });
        }
    }

    /// The leader sends a heartbeat.
    pub(crate) fn beat(&mut self, server: usize, boot: u64, term: u64) {
        let stored = &mut self.servers[server];
        if !stored.is(boot) || stored.raft.term != term {
            return;
        }
        if let Some(leading) = stored.raft.leading_mut() {
            leading.beat += 1;
            self.replicate(server);
            self.admit_caught_up(server);
            let after = self.profile.election / 3;
            self.after(after, Event::Beat { server, boot, term });
        }
    }

    /// A follower receives entries, or a heartbeat.
    pub(crate) fn asked_to_append(&mut self, server: usize, from: usize, message: Peer) {
        let Peer::Append { term, previous, entries, commit, beat } = message else { return };
        self.hear_term(server, term);
        let now = self.now;
        let raft = &mut self.servers[server].raft;
        if term < raft.term {
            // The heartbeat belongs to another Raft term. Its sender may lead this one by now, and
            // must not count the answer as one of this (seed 6867).
            let answer = Peer::Appended { term: raft.term, matched: Err(0), beat: 0 };
            return self.send_peer(server, from, answer);
        }
        raft.role = Role::Follower;
        (raft.leader, raft.heard) = (Some(from), now);
        raft.hear(term, now);
        if raft.term_at(previous.0) != Some(previous.1) {
            // The leader has every entry that is committed here. Stepping back one entry at a time
            // would never end while the leader sends more (seed 33503).
            let matched = Err(raft.commit.min(previous.0.saturating_sub(1)));
            return self.send_peer(server, from, Peer::Appended { term, matched, beat });
        }
        let mut index = previous.0;
        let mut has_new = false;
        for entry in entries {
            index += 1;
            if raft.term_at(index) == Some(entry.term) {
                continue;
            }
            if index <= raft.last() {
                let lost = raft.last() + 1 - index;
                raft.truncate(index - 1);
                raft.synced = raft.synced.min(index - 1);
                self.tally.add_many("entries of a deposed leader that vanished", lost);
            }
            raft.receive(entry, term, now);
            has_new = true;
        }
        let matched = index;
        let is_known = raft.synced >= matched;
        raft.commit = raft.commit.max(commit.min(matched));
        if has_new || !is_known {
            self.sync(server, Some(Asked { leader: from, term, beat }));
        } else {
            self.send_peer(server, from, Peer::Appended { term, matched: Ok(matched), beat });
        }
        self.committed(server);
    }

    pub(crate) fn appended(&mut self, server: usize, from: usize, message: &Peer) {
        let Peer::Appended { term, matched, beat } = *message else { return };
        self.hear_term(server, term);
        let raft = &mut self.servers[server].raft;
        let (own, last) = (raft.term, raft.last());
        let Some(leading) = raft.leading_mut().filter(|_| own == term) else { return };
        leading.answered[from] = leading.answered[from].max(beat);
        match matched {
            Ok(index) => {
                leading.matched[from] = leading.matched[from].max(index);
                leading.next[from] = leading.next[from].max(index + 1);
                self.count_copies(server);
            }
            Err(end) => leading.next[from] = end.min(last).max(leading.matched[from]) + 1,
        }
        self.count_answers(server);
    }

    /// Commits what a majority of the members has on disk, if it is of the leader's own Raft term.
    fn count_copies(&mut self, server: usize) {
        let raft = &self.servers[server].raft;
        let members = raft.members().0;
        let Some(leading) = raft.leading() else { return };
        let has = |other: usize| if other == server { raft.synced } else { leading.matched[other] };
        let mut copies: Vec<u64> = (0..SERVERS).filter(|other| contains(members, *other)).map(has).collect();
        copies.sort_unstable();
        let index = copies[(copies.len() - 1) / 2];
        if index > raft.commit && raft.term_at(index) == Some(raft.term) {
            let raft = &mut self.servers[server].raft;
            raft.commit = index;
            self.committed(server);
            self.replicate(server);
        }
    }

    /// The leader begins a quorum round: heartbeats that begin now (S6).
    pub(crate) fn prove(&mut self, server: usize, round: u64) {
        let boot = self.servers[server].boot;
        let raft = &mut self.servers[server].raft;
        let commit = raft.commit;
        match raft.leading_mut() {
            Some(leading) => {
                leading.beat += 1;
                leading.proofs.insert(round, (leading.beat, commit));
                self.replicate(server);
                let most = self.profile.election * 8;
                self.after(most, Event::Unproven { server, boot, round });
            }
            None => self.after(1, Event::Unproven { server, boot, round }),
        }
    }

    /// Rounds that a majority has answered are proofs.
    fn count_answers(&mut self, server: usize) {
        let raft = &self.servers[server].raft;
        let members = raft.members().0;
        let Some(leading) = raft.leading() else { return };
        let is_proven = |beat: u64| {
            let answers = |other: &usize| *other == server || leading.answered[*other] >= beat;
            let count = (0..SERVERS).filter(|other| contains(members, *other)).filter(answers).count();
            is_majority(members, u32::try_from(count).expect("few"))
        };
        let proven = leading.proofs.iter().filter(|(_, (beat, _))| is_proven(*beat));
        let proven: Vec<(u64, u64)> = proven.map(|(round, (_, commit))| (*round, *commit)).collect();
        for (round, commit) in proven {
            if let Some(leading) = self.servers[server].raft.leading_mut() {
                leading.proofs.remove(&round);
            }
            self.servers[server].proofs.push((round, commit));
        }
        self.settle_proofs(server);
    }
}
