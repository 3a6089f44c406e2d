//! *A term has one leader at most, and it has every entry that was committed before* (election
//! safety and leader completeness; Ongaro and Ousterhout 2014, figure 3). Of the simulator's own
//! Raft: were it wrong, nothing that is found would mean anything.

use std::{collections::BTreeMap, sync::Arc};

use crate::raft::{Entry, Raft};

/// Who led which term.
#[derive(Debug, Default)]
pub(crate) struct Elected(BTreeMap<u64, usize>);

impl Elected {
    /// A server won an election. `committed` are the entries that are committed, each with the term
    /// in which it came to be: a leader of an earlier term, elected late, need not have it.
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
