//! The replicated state under any entries. After each entry the invariants hold, and no rows have
//! changed but those that were reported.

use std::collections::BTreeMap;

use leasehold_protocol::{
    command::{Outcome, Proposal},
    state::{Applied, RowKey, State},
    volume::VolumeSettings,
};

use super::draw::Draw;

/// The most entries of one input, so that it stays quick.
const ENTRIES_MAX: usize = 200;

/// Applies entries that are drawn from the bytes.
pub fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    let mut replica = Replica::new(State::new(VolumeSettings::DEFAULT));
    for _ in 0..ENTRIES_MAX {
        if draw.is_done() {
            break;
        }
        let proposal = draw.proposal(replica.state.epoch(), replica.state.revision());
        replica.apply(&proposal);
        if draw.one_in(16) {
            replica.restart();
        }
    }
    replica.restart();
}

/// A state, and its rows as a disk has them that stores each reported change.
#[derive(Debug)]
pub struct Replica {
    /// The state.
    pub state: State,
    rows: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Replica {
    /// Begins with this state.
    pub fn new(state: State) -> Self {
        let rows = state.rows().collect();
        Self { state, rows }
    }

    /// Applies the next entry.
    pub fn apply(&mut self, proposal: &Proposal) -> Applied {
        let applied = self.state.apply(self.state.applied_index() + 1, proposal);
        assert_eq!(self.state.check(), Ok(()), "after {proposal:?}");
        assert_eq!(applied.outcomes.len(), proposal.commands.len());
        for key in &applied.changed_rows {
            let bytes = key.encode();
            assert_eq!(RowKey::decode(&bytes).as_ref(), Ok(key));
            match self.state.row(key) {
                Some(value) => self.rows.insert(bytes, value),
                None => self.rows.remove(&bytes),
            };
        }
        if applied.outcomes.iter().all(changes_nothing) {
            assert!(applied.changed_rows.iter().all(|key| *key == RowKey::Meta), "{applied:?}");
        }
        applied
    }

    /// Rebuilds the state from its rows. It must be the same state.
    pub fn restart(&mut self) {
        let state = State::from_rows(self.rows.clone());
        assert_eq!(state.as_ref(), Ok(&self.state), "the rows are the state");
        self.state = state.expect("just compared");
    }
}

fn changes_nothing(outcome: &Outcome) -> bool {
    matches!(
        outcome,
        Outcome::EpochEnded
            | Outcome::SessionNotFound
            | Outcome::LeaseNotFound
            | Outcome::HorizonMoved { .. }
            | Outcome::MissingConsents
            | Outcome::BelowWindow { .. }
            | Outcome::BeyondWindow { .. }
    )
}
