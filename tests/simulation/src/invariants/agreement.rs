//! *No two servers commit different entries at one index* (state machine safety; Ongaro and
//! Ousterhout 2014, figure 3). This checks the simulator's own Raft.

use std::sync::Arc;

use crate::raft::{Entry, Raft};

/// Checks the entries that a server has learned to be committed since `from`.
pub(crate) fn check(place: usize, raft: &Raft, from: u64, committed: &[(u64, Arc<Entry>)]) -> Result<(), String> {
    let entry = |index: u64| committed.get(usize::try_from(index - 1).expect("an index")).map(|(_, entry)| entry);
    match (from + 1..=raft.commit).find(|index| raft.entry(*index) != entry(*index)) {
        Some(index) => {
            Err(format!("server {place} has {:?} at {index}, committed there is {:?}", raft.entry(index), entry(index)))
        }
        None => Ok(()),
    }
}
