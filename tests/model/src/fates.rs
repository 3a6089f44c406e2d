//! Judges writes: a write takes effect at most once, however often it is sent. A refused write
//! never does. The client hears the true outcome (S9).

use std::collections::{BTreeMap, BTreeSet};

use leasehold_protocol::{command::Written, holder::WriteFailure, id::Revision};

use crate::committed::WriteKey;

/// What became of each write.
#[derive(Debug, Clone, Default, Hash)]
pub struct WriteFates {
    effects: BTreeMap<WriteKey, Revision>,
    never: BTreeSet<WriteKey>,
}

impl WriteFates {
    /// The revision at which the write took effect, if it did.
    pub fn effect(&self, key: WriteKey) -> Option<Revision> {
        self.effects.get(&key).copied()
    }

    /// A write took effect. It must not have done so before, nor have been refused.
    pub fn took_effect(&mut self, key: WriteKey, revision: Revision) -> Result<(), String> {
        if let Some(other) = self.effects.insert(key, revision) {
            return Err(format!("write {key:?} took effect at {other} and again at {revision}"));
        }
        if self.never.contains(&key) {
            return Err(format!("write {key:?} took effect at {revision} after it was refused"));
        }
        Ok(())
    }

    /// A write changed no node, or the outcome of an earlier command was repeated.
    pub fn changed_nothing(&mut self, key: WriteKey, revision: Revision) {
        self.effects.entry(key).or_insert(revision);
    }

    /// A client counts on it that the write never takes effect.
    pub fn refused(&mut self, key: WriteKey) {
        self.never.insert(key);
    }

    /// The application received an outcome of a write, which must be the true one. `key` is the
    /// write's name in the log, if it was ever sent. `is_sent` says whether the client must know
    /// that.
    pub fn ended(
        &mut self,
        key: Option<WriteKey>,
        is_sent: bool,
        result: &Result<Written, WriteFailure>,
    ) -> Result<(), String> {
        let effect = key.and_then(|key| self.effect(key));
        let fits = match result {
            Ok(written) => effect == Some(written.revision),
            Err(WriteFailure::Refused(_)) => effect.is_none(),
            Err(WriteFailure::NotSent) => !is_sent,
            Err(WriteFailure::OutcomeUnknown) => key.is_some(),
        };
        if let (Err(WriteFailure::Refused(_)), Some(key)) = (result, key) {
            self.refused(key);
        }
        if fits {
            Ok(())
        } else {
            Err(format!("write {key:?} took effect at {effect:?}, but its answer was {result:?}"))
        }
    }
}
