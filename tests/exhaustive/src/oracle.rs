//! The committed contents, and the answers to clients. Reads and writes are judged by these alone.
//!
//! A read must return a version that was committed by then. The version must be no older than any
//! that a client had seen when the read began (linearizability, Herlihy and Wing 1990). An answer
//! to a write shows a version, and so does a value read. Writes take effect once, and clients hear
//! the true outcome (S9).

use std::collections::{BTreeMap, BTreeSet};

use leasehold_protocol::{
    command::{Command, GrantedKeyLease, LeaseKey, Outcome, Proposal, Write, Written},
    holder::WriteFailure,
    id::{Incarnation, LeaseId, Revision, Sequence, SessionId},
    object::{Content, Object},
    state::State,
};

/// Names a write in the log.
pub(crate) type WriteKey = (SessionId, Sequence);

/// The records of commits and answers.
#[derive(Debug, Clone, Hash)]
pub(crate) struct Oracle {
    /// All contents that each object has had.
    versions: BTreeMap<Object, Vec<Content>>,
    /// For each object, the place of the latest version that a client has seen.
    told: BTreeMap<Object, usize>,
    /// The places of the versions after each change.
    after: BTreeMap<Revision, BTreeMap<Object, usize>>,
    effects: BTreeMap<WriteKey, Revision>,
    never: BTreeSet<WriteKey>,
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
        let versions = objects.iter().map(|object| (object.clone(), vec![truth.content(object)])).collect();
        let told = objects.iter().map(|object| (object.clone(), 0)).collect();
        Self {
            versions,
            told,
            after: BTreeMap::new(),
            effects: BTreeMap::new(),
            never: BTreeSet::new(),
            granted: BTreeMap::new(),
            uncovered: BTreeMap::new(),
        }
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
        for (object, versions) in &mut self.versions {
            let content = truth.content(object);
            if versions.last() != Some(&content) {
                versions.push(content);
            }
        }
        for (command, outcome) in proposal.commands.iter().zip(outcomes) {
            let Command::Write { session, sequence, write, .. } = command else { continue };
            let key = (*session, *sequence);
            match (write, outcome) {
                (Write::GrantLease { .. }, Outcome::Written(Ok(written))) => self.was_granted(key, written)?,
                (Write::RevokeLease { .. }, Outcome::MissingConsents) => self.was_uncovered(key)?,
                (_, Outcome::Written(Ok(written))) if written.revision > before.revision() => {
                    self.took_effect(key, written.revision)?;
                }
                // The write changed no node, or its outcome is repeated.
                (_, Outcome::Written(Ok(written))) => {
                    self.effects.entry(key).or_insert(written.revision);
                }
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

    fn took_effect(&mut self, key: WriteKey, revision: Revision) -> Result<(), String> {
        let places = self.versions.iter().map(|(object, versions)| (object.clone(), versions.len() - 1)).collect();
        self.after.insert(revision, places);
        if let Some(other) = self.effects.insert(key, revision) {
            return Err(format!("write {key:?} took effect at {other} and again at {revision}"));
        }
        if self.never.contains(&key) {
            return Err(format!("write {key:?} took effect at {revision} after it was refused"));
        }
        Ok(())
    }

    /// The place of the oldest version that a read beginning now may return.
    pub(crate) fn begin_read(&self, object: &Object) -> usize {
        self.told.get(object).copied().unwrap_or_default()
    }

    /// Judges a read that must return the version at place `begun` or a later one.
    pub(crate) fn end_read(&mut self, object: &Object, begun: usize, content: &Content) -> Result<(), String> {
        let Some(versions) = self.versions.get(object) else { return Ok(()) };
        // Of versions with equal contents, the oldest that fits counts.
        let Some(found) = versions.iter().skip(begun).position(|version| version == content) else {
            let expected = &versions[begun..];
            return Err(format!("stale read of {object}: {content:?}, expected one of {expected:?}"));
        };
        let told = self.told.entry(object.clone()).or_default();
        *told = (*told).max(begun + found);
        Ok(())
    }

    /// The application received a write's outcome. `key` is its name in the log, if it was ever
    /// sent.
    pub(crate) fn end_write(
        &mut self,
        key: Option<WriteKey>,
        result: &Result<Written, WriteFailure>,
    ) -> Result<(), String> {
        let effect = key.and_then(|key| self.effects.get(&key)).copied();
        let granted = key.and_then(|key| self.granted.get(&key)).copied();
        let fits = match result {
            Ok(written) if written.lease.is_some() => granted == written.lease,
            Ok(written) => effect == Some(written.revision),
            Err(WriteFailure::Refused(_)) => effect.is_none(),
            Err(WriteFailure::NotSent) => key.is_none(),
            Err(WriteFailure::OutcomeUnknown) => key.is_some(),
        };
        match (result, key) {
            (Ok(written), _) => self.acknowledged(written.revision),
            (Err(WriteFailure::Refused(_)), Some(key)) => {
                self.never.insert(key);
            }
            _ => {}
        }
        if fits { Ok(()) } else { Err(format!("write {key:?} took effect at {effect:?}, told was {result:?}")) }
    }

    /// A client heard that this change, and so every earlier one, was made.
    fn acknowledged(&mut self, revision: Revision) {
        let Some(places) = self.after.get(&revision) else { return };
        for (object, place) in places {
            let told = self.told.entry(object.clone()).or_default();
            *told = (*told).max(*place);
        }
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

/// The key leases that expired with an entry.
pub(crate) fn expired<'a>(
    proposal: &'a Proposal,
    outcomes: &'a [Outcome],
) -> impl Iterator<Item = (LeaseId, Incarnation)> {
    proposal.commands.iter().zip(outcomes).filter_map(|(command, outcome)| match (command, outcome) {
        (Command::Expire { lease: LeaseKey::Key(id), incarnation, .. }, Outcome::Expired) => Some((*id, *incarnation)),
        _ => None,
    })
}

/// The volume leases that ended with an entry.
pub(crate) fn ended<'a>(
    proposal: &'a Proposal,
    outcomes: &'a [Outcome],
) -> impl Iterator<Item = (&'a SessionId, &'a leasehold_protocol::path::NodePath)> {
    proposal.commands.iter().zip(outcomes).filter_map(|(command, outcome)| match (command, outcome) {
        (Command::Expire { lease: LeaseKey::Volume(session, volume), .. }, Outcome::Expired) => Some((session, volume)),
        _ => None,
    })
}
