//! A small, faithful model of Raft (Ongaro and Ousterhout 2014). It does for the servers what
//! openraft does, as far as the rules can notice.
//!
//! It has:
//!
//! - Raft terms, votes that survive a crash, elections by random timeouts;
//! - an ordered log, consistency checks, commitment by counting entries of the current Raft term;
//! - unsynced entries that a crash loses, and entries of a deposed leader that vanish or survive;
//! - leaders that do not know that they are deposed, and proofs of leadership by heartbeats;
//! - a member that lost its disk and rejoins by two membership changes (`members`).
//!
//! Messages between servers are lost, delayed, duplicated and reordered. Not modelled: pre-votes
//! (so there are more elections than with openraft), Raft snapshots, truncated logs, joint changes
//! (one server at a time instead), learners as their own kind.

pub(crate) mod elections;
pub(crate) mod members;
pub(crate) mod peers;
pub(crate) mod replication;

use std::{collections::BTreeMap, sync::Arc};

use leasehold_protocol::command::Proposal;

/// The number of servers.
pub(crate) const SERVERS: usize = 3;

/// A set of servers, one bit for each.
pub(crate) type Members = u8;

/// All servers.
pub(crate) const ALL: Members = 0b111;

pub(crate) fn contains(members: Members, server: usize) -> bool {
    members >> server & 1 == 1
}

/// Whether this many of the members are a majority of them.
pub(crate) fn is_majority(members: Members, count: u32) -> bool {
    count * 2 > members.count_ones()
}

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) term: u64,
    pub(crate) payload: Payload,
}

/// The content of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Payload {
    /// The first entry of a Raft term.
    Blank,
    /// The voters from here on.
    Members(Members),
    /// A proposal of a lessor.
    Proposal(Proposal),
}

/// A message between servers.
#[derive(Debug, Clone)]
pub(crate) enum Peer {
    /// A candidate asks for a vote.
    Vote { term: u64, last: (u64, u64) },
    /// The answer.
    Voted { term: u64, is_granted: bool },
    /// Entries that follow another one. Without entries it is a heartbeat.
    Append { term: u64, previous: (u64, u64), entries: Vec<Arc<Entry>>, commit: u64, beat: u64 },
    /// The log equals the leader's up to this index; or it does not, and ends here.
    Appended { term: u64, matched: Result<u64, u64>, beat: u64 },
    /// A server without a disk asks to rejoin.
    Readmit { life: u64 },
    /// The server may start: a leader of this Raft term has removed it.
    Start { life: u64, floor: u64 },
}

/// A server's role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Role {
    Follower,
    Candidate { votes: Members },
    Leader(Leading),
}

/// A leader's records.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Leading {
    /// The next entry to send to each server, and the last that it is known to have.
    pub(crate) next: [u64; SERVERS],
    pub(crate) matched: [u64; SERVERS],
    /// The last heartbeat that each server has answered, and the last sent.
    pub(crate) answered: [u64; SERVERS],
    pub(crate) beat: u64,
    /// Quorum rounds: the heartbeat that must be answered, and the commit index when the round
    /// began.
    pub(crate) proofs: BTreeMap<u64, (u64, u64)>,
    /// When each entry was appended that the leader has not applied.
    pub(crate) appended: BTreeMap<u64, u64>,
}

/// What a follower knows of the leader that proposed the last proposal in its log (T4).
#[derive(Debug, Clone, Copy)]
pub(crate) struct Heard {
    term: u64,
    /// When the proposal was received.
    pub(crate) received: u64,
    /// When that leader was last heard.
    pub(crate) last: u64,
}

/// One server's Raft.
#[derive(Debug, Clone)]
pub(crate) struct Raft {
    // On disk.
    pub(crate) term: u64,
    pub(crate) voted: Option<usize>,
    pub(crate) log: Vec<Arc<Entry>>,
    /// The entries in the log that change the members, with their indexes.
    changes: Vec<(Members, u64)>,
    /// How many entries would survive a crash.
    pub(crate) synced: u64,
    /// It never votes in a Raft term up to this one, because it may have voted there before it lost
    /// its disk.
    pub(crate) floor: u64,
    /// Its disk was lost, and it may not start yet: the number of that loss.
    pub(crate) empty: Option<u64>,

    // In memory.
    pub(crate) role: Role,
    pub(crate) leader: Option<usize>,
    pub(crate) commit: u64,
    /// When it last heard of a leader, or voted.
    pub(crate) heard: u64,
    /// What it knows of the leader that proposed its last proposal, if that leader itself sent it.
    pub(crate) proposer: Option<Heard>,
    /// When the entries appended so far are synced.
    pub(crate) sync_at: u64,
}

impl Raft {
    pub(crate) fn new() -> Self {
        Self {
            term: 0,
            voted: None,
            log: Vec::new(),
            changes: Vec::new(),
            synced: 0,
            floor: 0,
            empty: None,
            role: Role::Follower,
            leader: None,
            commit: 0,
            heard: 0,
            proposer: None,
            sync_at: 0,
        }
    }

    /// The process ends. Everything that was not on disk is lost.
    pub(crate) fn crash(&mut self) {
        self.truncate(self.synced);
        (self.role, self.leader) = (Role::Follower, None);
        (self.commit, self.heard, self.sync_at) = (0, 0, 0);
        self.proposer = None;
    }

    /// The disk is lost.
    pub(crate) fn wipe(&mut self, life: u64) {
        *self = Self { empty: Some(life), ..Self::new() };
    }

    pub(crate) fn is_leader(&self) -> bool {
        matches!(self.role, Role::Leader(_))
    }

    pub(crate) fn leading(&self) -> Option<&Leading> {
        if let Role::Leader(leading) = &self.role { Some(leading) } else { None }
    }

    pub(crate) fn leading_mut(&mut self) -> Option<&mut Leading> {
        if let Role::Leader(leading) = &mut self.role { Some(leading) } else { None }
    }

    /// The index of the last entry.
    pub(crate) fn last(&self) -> u64 {
        self.log.len() as u64
    }

    /// The entry at an index, from 1 on.
    pub(crate) fn entry(&self, index: u64) -> Option<&Arc<Entry>> {
        self.log.get(usize::try_from(index.checked_sub(1)?).ok()?)
    }

    /// The Raft term of the entry at an index; 0 before the first.
    pub(crate) fn term_at(&self, index: u64) -> Option<u64> {
        if index == 0 { Some(0) } else { self.entry(index).map(|entry| entry.term) }
    }

    /// The Raft term and index of the last entry. Elections compare logs by these.
    pub(crate) fn end(&self) -> (u64, u64) {
        (self.term_at(self.last()).unwrap_or_default(), self.last())
    }

    /// The voters by the last entry that names them, and its index. A server that rejoined learns
    /// them only from the log.
    pub(crate) fn members(&self) -> (Members, u64) {
        self.changes.last().copied().unwrap_or((if self.floor > 0 { 0 } else { ALL }, 0))
    }

    /// The leader of this Raft term was heard.
    pub(crate) fn hear(&mut self, term: u64, now: u64) {
        if let Some(proposer) = self.proposer.as_mut().filter(|proposer| proposer.term == term) {
            proposer.last = now;
        }
    }

    /// The leader of this Raft term sends an entry.
    pub(crate) fn receive(&mut self, entry: Arc<Entry>, term: u64, now: u64) {
        if let Payload::Proposal(_) = entry.payload {
            let heard = Heard { term, received: now, last: now };
            self.proposer = (entry.term == term).then_some(heard);
        }
        self.push(entry);
    }

    pub(crate) fn push(&mut self, entry: Arc<Entry>) {
        self.log.push(entry.clone());
        if let Payload::Members(members) = entry.payload {
            self.changes.push((members, self.last()));
        }
    }

    /// Keeps only the entries up to `last`.
    pub(crate) fn truncate(&mut self, last: u64) {
        if last < self.last() {
            self.proposer = None;
        }
        self.log.truncate(usize::try_from(last).expect("no longer than the log"));
        self.changes.retain(|(_, index)| *index <= last);
    }
}
