//! *The observations of clients have an order* (linearizability, Herlihy and Wing 1990). The
//! checker sees only requests and answers, and tests of real processes use it too
//! ([`crate::history`]). The module `reads` judges at once, by the oracle, and is wrong where the
//! oracle is wrong.
//!
//! Only nodes without children are judged. So a write of a key either sets a value or removes the
//! node.

use leasehold_protocol::{
    command::{Write, Written},
    holder::WriteFailure,
    object::Content,
    path::NodePath,
    transaction::{Branch, Operation},
};

use crate::history::{History, Outcome, Span};

/// The nodes that are judged.
pub(crate) const KEYS: [&str; 3] = ["/b", "/a/x", "/v/y"];

/// The observations of all clients.
pub type Observations = History<&'static str, Vec<u8>>;

/// A write has ended for its client, or the client has abandoned it.
pub(crate) fn wrote(
    observations: &mut Observations,
    write: &Write,
    span: Span,
    result: Option<&Result<Written, WriteFailure>>,
) {
    let outcome = match result {
        Some(Ok(written)) => Outcome::Done { revision: written.revision.0 },
        Some(Err(WriteFailure::Refused(_) | WriteFailure::NotSent)) => Outcome::Refused,
        Some(Err(WriteFailure::OutcomeUnknown)) | None => Outcome::Unknown,
    };
    match write {
        Write::Put { path, value, .. } => put(observations, path, value, span, outcome),
        Write::Delete { path, recursive, .. } => deleted(observations, path, *recursive, span, outcome),
        Write::Transaction(transaction) => {
            let chosen = result.and_then(|result| result.as_ref().ok()?.transaction.as_ref()).map(|done| done.branch());
            for branch in [Branch::Then, Branch::Otherwise] {
                // No read may see the values of the other branch.
                let outcome = if chosen.is_some_and(|chosen| chosen != branch) { Outcome::Refused } else { outcome };
                for operation in transaction.branch(branch) {
                    match operation {
                        Operation::Put { path, value, .. } => put(observations, path, value, span, outcome),
                        Operation::Delete { path, recursive } => deleted(observations, path, *recursive, span, outcome),
                    }
                }
            }
        }
        _ => {}
    }
}

/// Records a put at some moment within the span.
pub(crate) fn put(observations: &mut Observations, path: &NodePath, value: &[u8], span: Span, outcome: Outcome) {
    if let Some(key) = KEYS.into_iter().find(|key| path.as_str() == *key) {
        observations.write(key, Some(value.to_vec()), span, outcome);
    }
}

/// Records a value that a client set in its memory under a write lease, with its outcome so far.
pub(crate) fn set(observations: &mut Observations, path: &NodePath, value: &[u8], at: u64, outcome: Outcome, now: u64) {
    if let Some(key) = KEYS.into_iter().find(|key| path.as_str() == *key) {
        observations.write_back(key, value.to_vec(), at, outcome, now);
    }
}

fn deleted(observations: &mut Observations, path: &NodePath, recursive: bool, span: Span, outcome: Outcome) {
    for key in KEYS {
        if path.as_str() == key || (recursive && is_above(path, key)) {
            observations.write(key, None, span, outcome);
        }
    }
}

fn is_above(path: &NodePath, key: &str) -> bool {
    key.strip_prefix(path.as_str()).is_some_and(|rest| rest.starts_with('/'))
}

/// Records an answered read.
pub(crate) fn read(observations: &mut Observations, path: &NodePath, content: &Content, span: Span) {
    let Some(key) = KEYS.into_iter().find(|key| *key == path.as_str()) else { return };
    if let Content::Data(data) = content {
        let found = data.as_ref().map(|data| (data.value.to_vec(), data.stat.modify_revision.0));
        observations.read(key, found, span);
    }
}

/// Checks all observations.
pub(crate) fn check(observations: &Observations) -> Result<(), String> {
    observations.check().map_err(|violation| violation.to_string())
}
