//! *What clients were told has an order* (linearizability, Herlihy and Wing 1990): judged from
//! nothing but what went in and came out, by the checker that tests of real processes use
//! ([`crate::history`]). Beside `reads`, which knows what is true and judges at once, but would err
//! where the oracle errs.
//!
//! Of nodes without children, so that each write has one of few effects on a key: a value, or
//! absence.

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

/// What everybody was told.
pub type Told = History<&'static str, Vec<u8>>;

/// A write has ended for its client, or nobody waits for it any more.
pub(crate) fn wrote(told: &mut Told, write: &Write, span: Span, result: Option<&Result<Written, WriteFailure>>) {
    let outcome = match result {
        Some(Ok(written)) => Outcome::Done { revision: written.revision.0 },
        Some(Err(WriteFailure::Refused(_) | WriteFailure::NotSent)) => Outcome::Refused,
        Some(Err(WriteFailure::OutcomeUnknown)) | None => Outcome::Unknown,
    };
    match write {
        Write::Put { path, value, .. } => put(told, path, value, span, outcome),
        Write::Delete { path, recursive, .. } => deleted(told, path, *recursive, span, outcome),
        Write::Transaction(transaction) => {
            let chosen = result.and_then(|result| result.as_ref().ok()?.transaction.as_ref()).map(|done| done.branch());
            for branch in [Branch::Then, Branch::Otherwise] {
                // What the other branch would have written must never be seen.
                let outcome = if chosen.is_some_and(|chosen| chosen != branch) { Outcome::Refused } else { outcome };
                for operation in transaction.branch(branch) {
                    match operation {
                        Operation::Put { path, value, .. } => put(told, path, value, span, outcome),
                        Operation::Delete { path, recursive } => deleted(told, path, *recursive, span, outcome),
                    }
                }
            }
        }
        _ => {}
    }
}

/// A value was put, at some time within the span.
pub(crate) fn put(told: &mut Told, path: &NodePath, value: &[u8], span: Span, outcome: Outcome) {
    if let Some(key) = KEYS.into_iter().find(|key| path.as_str() == *key) {
        told.write(key, Some(value.to_vec()), span, outcome);
    }
}

/// A client set a value in its own memory, under a write lease, and what came of it by now.
pub(crate) fn set(told: &mut Told, path: &NodePath, value: &[u8], at: u64, outcome: Outcome, now: u64) {
    if let Some(key) = KEYS.into_iter().find(|key| path.as_str() == *key) {
        told.write_back(key, value.to_vec(), at, outcome, now);
    }
}

fn deleted(told: &mut Told, path: &NodePath, recursive: bool, span: Span, outcome: Outcome) {
    for key in KEYS {
        if path.as_str() == key || (recursive && is_above(path, key)) {
            told.write(key, None, span, outcome);
        }
    }
}

fn is_above(path: &NodePath, key: &str) -> bool {
    key.strip_prefix(path.as_str()).is_some_and(|rest| rest.starts_with('/'))
}

/// A read was answered.
pub(crate) fn read(told: &mut Told, path: &NodePath, content: &Content, span: Span) {
    let Some(key) = KEYS.into_iter().find(|key| *key == path.as_str()) else { return };
    if let Content::Data(data) = content {
        let found = data.as_ref().map(|data| (data.value.to_vec(), data.stat.modify_revision.0));
        told.read(key, found, span);
    }
}

/// Checks all of it.
pub(crate) fn check(told: &Told) -> Result<(), String> {
    told.check().map_err(|violation| violation.to_string())
}
