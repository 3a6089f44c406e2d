//! *A Raft term has at most one leader, and it has every entry committed before* (election safety
//! and leader completeness; Ongaro and Ousterhout 2014, figure 3). This checks the simulator's own
//! Raft: if that is wrong, no finding means anything.

use std::{collections::BTreeMap, sync::Arc};

use crate::raft::{Entry, Raft};

/// The leader of each Raft term.
#[derive(Debug, Default)]
pub(crate) struct Elected(BTreeMap<u64, usize>);

impl Elected {
    /// A server has won an election. `committed` has each committed entry with the Raft term of its
    /// commit. A leader of an earlier Raft term, elected late, need not have the entry.
    pub(crate) fn won(
        &mut self,
        term: u64,
        server: usize,
        raft: &Raft,
        committed: &[(u64, Arc<Entry>)],
    ) -> Result<(), String> {
        if let Some(other) = self.0.insert(term, server) {
            return Err(format!("servers {other} and {server} lead the same term {term}"));
        }
        let has = |entry: &Arc<Entry>, own: &Arc<Entry>| Arc::ptr_eq(entry, own) || entry == own;
        let lacks = |((since, entry), index): &(&(u64, Arc<Entry>), u64)| {
            *since < term && !raft.entry(*index).is_some_and(|own| has(entry, own))
        };
        match committed.iter().zip(1..).find(lacks) {
            Some(((since, entry), index)) => {
                Err(format!("server {server} leads and lacks entry {index}, committed in term {since}: {entry:?}"))
            }
            None => Ok(()),
        }
    }
}
