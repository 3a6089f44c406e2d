//! *A pending write is not overtaken for ever* (S7b). No write lacks consents again and again: each
//! time the lessor gathers for more objects, and later writes wait behind it.

use std::collections::BTreeMap;

use leasehold_model::committed::{self, WriteKey};
use leasehold_protocol::command::{Outcome, Proposal};

/// How often one write may lack consents.
const UNCOVERED_MAX: u64 = 12;

/// How often each write lacked consents.
#[derive(Debug, Default)]
pub(crate) struct Uncovered(BTreeMap<WriteKey, u64>);

impl Uncovered {
    /// An entry was committed, with these outcomes.
    pub(crate) fn check(&mut self, proposal: &Proposal, outcomes: &[Outcome]) -> Result<(), String> {
        for (key, write, outcome) in committed::writes(proposal, outcomes) {
            if *outcome != Outcome::MissingConsents {
                self.0.remove(&key);
                continue;
            }
            let count = self.0.entry(key).or_default();
            *count += 1;
            if *count > UNCOVERED_MAX {
                return Err(format!("write {key:?}, {write:?}, lacked consents {count} times"));
            }
        }
        Ok(())
    }
}
