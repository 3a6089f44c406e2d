//! *A retried request gets the first outcome* (S9), and *a request means the lease that its sender
//! meant* (S7b). So the answer to a grant of a key lease says *not found*, or names the incarnation
//! that its own entry granted.

use std::collections::BTreeMap;

use leasehold_model::committed::{self, WriteKey};
use leasehold_protocol::{
    command::{AnyLease, Outcome, Proposal, Write},
    id::Incarnation,
    message::{KeepAliveResult, KeyLeasePromise},
    state::State,
};

/// The incarnation that each grant granted.
#[derive(Debug, Default)]
pub(crate) struct Grants(BTreeMap<WriteKey, Incarnation>);

impl Grants {
    /// An entry was committed. It ignores grants that a later command of the entry ended or
    /// replaced.
    pub(crate) fn commit(&mut self, proposal: &Proposal, outcomes: &[Outcome], truth: &State) {
        let mut last = BTreeMap::new();
        for (key, write, outcome) in committed::writes(proposal, outcomes) {
            let Outcome::Written(Ok(written)) = outcome else { continue };
            match (write, written.lease) {
                (Write::GrantLease { .. }, Some(granted)) => last.insert(granted.id, key),
                (Write::RevokeLease { id, .. }, _) => last.remove(id),
                _ => None,
            };
        }
        for (id, key) in last {
            if let Some(lease) = truth.lease(&AnyLease::KeyLease(id)) {
                // A repeated command has the outcome of the first, and grants nothing.
                self.0.entry(key).or_insert(lease.incarnation);
            }
        }
    }

    /// Checks a leader's answer to a write, and what that says of the lease.
    pub(crate) fn check(&self, key: WriteKey, promise: &KeyLeasePromise) -> Result<(), String> {
        match self.0.get(&key) {
            Some(granted) if promise.result != KeepAliveResult::NotFound && promise.incarnation != *granted => {
                Err(format!(
                    "grant {key:?} of lease {} made incarnation {granted}: it is answered with {:?} of incarnation {}",
                    promise.id, promise.result, promise.incarnation
                ))
            }
            _ => Ok(()),
        }
    }
}
