//! The committed contents, and the answers to clients. Reads and writes are judged by these alone.
//!
//! A read must return a version that was committed by then. The version must be no older than any
//! that a client had seen when the read began (linearizability, Herlihy and Wing 1990). An answer
//! to a write shows a version, and so does a value read. Writes take effect once, and clients hear
//! the true outcome (S9).

use std::collections::BTreeMap;

use leasehold_model::{
    committed::{self, WriteKey},
    fates::WriteFates,
    versions::Versions,
};
use leasehold_protocol::{
    command::{GrantedKeyLease, Outcome, Proposal, Write, Written},
    holder::WriteFailure,
    id::SessionId,
    object::Object,
    state::State,
};

/// The records of commits and answers.
#[derive(Debug, Clone, Hash)]
pub(crate) struct Oracle {
    pub(crate) versions: Versions,
    fates: WriteFates,
    /// The key leases that were granted, by write.
    granted: BTreeMap<WriteKey, GrantedKeyLease>,
    /// How often each revocation lacked consents.
    uncovered: BTreeMap<WriteKey, u32>,
}

/// How often a revocation may lack consents under one leader: once for attachments in flight before
/// it, once for those that came while it was in flight. Later ones wait behind it (S7b).
const UNCOVERED_MAX: u32 = 2;

impl Oracle {
    pub(crate) fn new(truth: &State, objects: &[Object]) -> Self {
        let (fates, granted, uncovered) = Default::default();
        Self { versions: Versions::new(truth, objects), fates, granted, uncovered }
    }

    /// An entry was committed: `before` became `truth`. Returns what is wrong with that.
    pub(crate) fn committed(
        &mut self,
        before: &State,
        truth: &State,
        (proposal, outcomes): (&Proposal, &[Outcome]),
    ) -> Result<(), String> {
        truth.check()?;
        horizons_move_forward(before, truth)?;
        self.versions.commit(truth);
        for (key, write, outcome) in committed::writes(proposal, outcomes) {
            match (write, outcome) {
                (Write::GrantLease { .. }, Outcome::Written(Ok(written))) => self.was_granted(key, written)?,
                (Write::RevokeLease { .. }, Outcome::MissingConsents) => self.was_uncovered(key)?,
                (_, Outcome::Written(Ok(written))) if written.revision > before.revision() => {
                    self.versions.changed(written.revision);
                    self.fates.took_effect(key, written.revision)?;
                }
                (_, Outcome::Written(Ok(written))) => self.fates.changed_nothing(key, written.revision),
                _ => {}
            }
        }
        Ok(())
    }

    /// A grant takes effect once, and changes no node.
    fn was_granted(&mut self, key: WriteKey, written: &Written) -> Result<(), String> {
        let Some(granted) = written.lease else { return Err(format!("grant {key:?} has granted nothing")) };
        match self.granted.insert(key, granted).filter(|first| *first != granted) {
            Some(first) => Err(format!("grant {key:?} has granted {first:?} and then {granted:?}")),
            None => Ok(()),
        }
    }

    fn was_uncovered(&mut self, key: WriteKey) -> Result<(), String> {
        let count = self.uncovered.entry(key).or_default();
        *count += 1;
        match *count {
            count if count > UNCOVERED_MAX => Err(format!("revocation {key:?} was found uncovered {count} times")),
            _ => Ok(()),
        }
    }

    /// Whether a write of this session has granted the lease.
    pub(crate) fn has_granted(&self, session: Option<SessionId>, lease: GrantedKeyLease) -> bool {
        self.granted.iter().any(|((by, _), granted)| Some(*by) == session && *granted == lease)
    }

    /// The application received a write's outcome. `key` is its name in the log, if it was ever
    /// sent.
    pub(crate) fn end_write(
        &mut self,
        key: Option<WriteKey>,
        result: &Result<Written, WriteFailure>,
    ) -> Result<(), String> {
        if let Ok(written) = result {
            self.versions.acknowledged(written.revision);
            if written.lease.is_some() {
                let granted = key.and_then(|key| self.granted.get(&key)).copied();
                let wrong = || Err(format!("write {key:?} granted {granted:?}, but its answer was {written:?}"));
                return if granted == written.lease { Ok(()) } else { wrong() };
            }
        }
        self.fates.ended(key, key.is_some(), result)
    }
}

/// *Horizons and cluster time never move backwards* (T6).
fn horizons_move_forward(before: &State, after: &State) -> Result<(), String> {
    if after.cluster_time() < before.cluster_time() {
        return Err(format!("cluster time went back from {} to {}", before.cluster_time(), after.cluster_time()));
    }
    for (key, lease) in after.leases() {
        let old = before.lease(key).map(|old| (old.incarnation, old.horizon));
        let new = (lease.incarnation, lease.horizon);
        if let Some(old) = old.filter(|old| new < *old) {
            return Err(format!("{key:?} went back from {old:?} to {new:?}"));
        }
    }
    Ok(())
}
