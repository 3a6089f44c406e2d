//! The stand-in for Raft: one order of committed entries, and who may add to it.
//!
//! At any time at most one server can get entries committed. One that was deposed does not know for a while. Of what it had
//! appended by then its successor has some first part, which is committed with it, before its own first entry; the
//! rest is lost, but for what its shell had not handed to Raft yet: that is appended if the same server leads again, whatever
//! epoch it names. What is not here: how Raft gets there.

use leasehold_protocol::command::Proposal;

/// The log that a quorum has.
#[derive(Debug, Default)]
pub(crate) struct Log {
    pub(crate) entries: Vec<Proposal>,
    /// The server that leads and its Raft term.
    pub(crate) leader: Option<(usize, u64)>,
    pub(crate) term: u64,
    /// Distinguishes all leaderships.
    pub(crate) attempts: u64,
}

impl Log {
    /// The index of the last entry.
    pub(crate) fn last(&self) -> u64 {
        self.entries.len() as u64
    }

    /// The entry at an index.
    pub(crate) fn entry(&self, index: u64) -> Option<&Proposal> {
        self.entries.get(usize::try_from(index.checked_sub(1)?).ok()?)
    }

    pub(crate) fn push(&mut self, entry: Proposal) -> u64 {
        self.entries.push(entry);
        self.last()
    }

    pub(crate) fn is_led_by(&self, server: usize, term: u64) -> bool {
        self.leader == Some((server, term))
    }
}
