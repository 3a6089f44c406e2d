//! *What clients were told has an order* (linearizability, Herlihy and Wing 1990): judged from nothing but what went in and came out, by
//! the checker that tests of real processes use ([`crate::history`]). Beside `reads`, which knows what is true and judges at once,
//! but would err where the oracle errs.
//!
//! Of nodes without children, so that each write has one of few effects on a key: a value, or absence.

use leasehold_protocol::{
    command::{Write, Written},
    holder::WriteError,
    object::Content,
    path::Path,
};

use crate::history::{History, Outcome, Span};

/// The nodes that are judged.
pub(crate) const KEYS: [&str; 3] = ["/b", "/a/x", "/v/y"];

/// What everybody was told.
pub(crate) type Told = History<&'static str, Vec<u8>>;

/// A write has ended for its client, or nobody waits for it any more.
pub(crate) fn wrote(told: &mut Told, write: &Write, span: Span, result: Option<&Result<Written, WriteError>>) {
    let outcome = match result {
        Some(Ok(written)) => Outcome::Done { revision: written.revision.0 },
        Some(Err(WriteError::Refused(_) | WriteError::NotSent)) => Outcome::Refused,
        Some(Err(WriteError::OutcomeUnknown)) | None => Outcome::Unknown,
    };
    for key in KEYS {
        let is_it = |path: &Path| path.as_str() == key;
        match write {
            Write::Put { path, value, .. } if is_it(path) => told.write(key, Some(value.to_vec()), span, outcome),
            Write::Delete { path, recursive, .. } if is_it(path) || (*recursive && is_above(path, key)) => {
                told.write(key, None, span, outcome);
            }
            _ => {}
        }
    }
}

fn is_above(path: &Path, key: &str) -> bool {
    key.strip_prefix(path.as_str()).is_some_and(|rest| rest.starts_with('/'))
}

/// A read was answered.
pub(crate) fn read(told: &mut Told, path: &Path, content: &Content, span: Span) {
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
