//! *A write takes effect at most once, however often it is sent. A refused write never does. The
//! client hears the true outcome* (S9). [`WriteFates`] judges that for each name in the log. A
//! client's write can have several names.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_model::{committed::WriteKey, fates::WriteFates};
use leasehold_protocol::{
    command::{Write, Written},
    holder::{WriteFailure, WriteId},
    id::Revision,
};

/// A write from its client's side: the number of the client's process, which is unique, and the
/// client's own write id.
pub(crate) type Name = (u64, WriteId);

/// The fate of each write.
#[derive(Debug, Default)]
pub(crate) struct Once {
    sent: BTreeMap<WriteKey, Write>,
    keys: BTreeMap<Name, WriteKey>,
    fates: WriteFates,
    /// Refused because the session had no lease on the volume. The client may send it under a new
    /// number.
    misplaced: BTreeSet<WriteKey>,
}

impl Once {
    /// A write was sent, for the first time or again.
    pub(crate) fn sent(&mut self, name: Name, key: WriteKey, write: &Write) -> Result<(), String> {
        let first = self.sent.entry(key).or_insert_with(|| write.clone());
        if first != write {
            return Err(format!("write {key:?} was {first:?} first, and then {write:?}"));
        }
        match self.keys.insert(name, key) {
            // The first number was refused for lack of a volume lease, in the log or by a leader
            // before. So it must never take effect.
            Some(other) if other != key && self.fates.effect(other).is_none() => {
                self.misplaced.remove(&other);
                self.fates.refused(other);
                Ok(())
            }
            Some(other) if other != key => Err(format!("write {name:?} was sent as {other:?} and then as {key:?}")),
            _ => Ok(()),
        }
    }

    /// A write took effect.
    pub(crate) fn took_effect(&mut self, key: WriteKey, revision: Revision) -> Result<(), String> {
        self.fates.took_effect(key, revision)
    }

    /// A write was refused for lack of a lease on its node's volume.
    pub(crate) fn was_misplaced(&mut self, key: WriteKey) {
        self.misplaced.insert(key);
    }

    /// The application received the outcome of a write.
    pub(crate) fn ended(&mut self, name: Name, result: &Result<Written, WriteFailure>) -> Result<(), String> {
        let key = self.keys.get(&name).copied();
        let is_sent = key.is_some_and(|key| !self.misplaced.contains(&key));
        self.fates.ended(key, is_sent, result).map_err(|what| format!("{name:?}: {what}"))
    }
}
