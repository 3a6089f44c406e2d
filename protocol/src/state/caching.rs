//! Write leases: holds whose holders keep a node's data to themselves (DESIGN, *Holds*; NFSv4 calls them write delegations).
//!
//! Who holds a node alone can ask to cache it. That changes no data, and yet goes the way of a write that does: everyone who may hold a copy of the data
//! has consented when it is applied (S2). From then on the state knows that nobody else has a copy, whoever leads: reads of the data are not answered
//! by the leader (so nothing is granted), and a write that would change or compare it is not applied, until the holder says that it has ended, or
//! its hold has. So what the holder flushes meanwhile needs nobody's consent, and passes the writes that wait for it (S10).
//!
//! What is flushed is written under the token of the hold, and refused under any other.

use std::collections::BTreeSet;

use super::{RowKey, State, hold::Hold, touched::Touched};
use crate::{
    command::{Attach, Write, WriteRefusal, Written},
    hold::HoldMode,
    id::{HoldId, SessionId, Token, WriteLeaseId},
    object::{Object, ObjectSet, Value},
    path::Path,
    planted::Bug,
    transaction::Target,
    work::Counted,
};

impl State {
    /// The hold whose holder keeps the node's data to itself.
    pub fn cached_by(&self, path: &Path) -> Option<(HoldId, &Hold)> {
        let id = self.holds.caching.get(path)?;
        self.holds.rows.get(id).map(|(_, hold)| (*id, hold))
    }

    /// The write lease under which the node's data is kept.
    pub fn write_lease_on(&self, path: &Path) -> Option<WriteLeaseId> {
        self.cached_by(path).and_then(|(_, hold)| hold.caches)
    }

    /// The last write lease that was granted, whether or not it is still there.
    pub fn last_write_lease(&self) -> WriteLeaseId {
        self.meta.last_write_lease
    }

    /// The nodes of which somebody keeps the data to itself, and that data is in the set.
    pub fn cached_in<'a>(&'a self, set: &'a ObjectSet) -> impl Iterator<Item = &'a Path> + use<'a> {
        let own = self.holds.caching.get_key_value(set.path());
        let own = own.filter(|(path, _)| set.contains(&Object::data((*path).clone())));
        let below = match set {
            ObjectSet::One(_) => None,
            ObjectSet::Subtree(top) => Some(super::below(&self.holds.caching, top)),
        };
        own.into_iter().chain(below.into_iter().flatten()).counted().map(|(path, _)| path)
    }

    /// The nodes whose data the session keeps to itself.
    pub fn cached_of(&self, session: SessionId) -> impl Iterator<Item = &Path> {
        let all = (session, Path::root())..(session.next(), Path::root());
        self.holds.caching_of.range(all).counted().map(|(_, path)| path)
    }

    /// The nodes that a write has to do with whose data somebody keeps to itself: that it changes, given these objects, or compares.
    pub fn kept_from(&self, write: &Write, sets: &[ObjectSet]) -> BTreeSet<Path> {
        let is_holders = matches!(write, Write::Cache { .. } | Write::Flush { .. });
        if self.holds.caching.is_empty() || is_holders || self.mistake.is(Bug::WritePastWriteLease) {
            return BTreeSet::new();
        }
        let changed = sets.iter().flat_map(|set| self.cached_in(set));
        let compares = match write {
            Write::Transaction(transaction) if !self.mistake.is(Bug::ComparePastWriteLease) => {
                &transaction.compares[..]
            }
            _ => &[],
        };
        let of_data = compares.iter().filter(|compare| !matches!(compare.target, Target::Held(..)));
        let compared = of_data.map(|compare| &compare.path).filter(|path| self.holds.caching.contains_key(*path));
        changed.chain(compared).cloned().collect()
    }

    /// # Errors
    ///
    /// [`WriteRefusal`] if the hold is not one that can be a write lease.
    pub(super) fn cache_footprint(
        &self,
        session: SessionId,
        path: &Path,
        id: HoldId,
    ) -> Result<Vec<ObjectSet>, WriteRefusal> {
        let hold = self.check_hold(session, path, id)?;
        if hold.token.is_none() {
            return Err(WriteRefusal::HoldWaits { path: path.clone(), hold: id });
        }
        if hold.mode != HoldMode::Exclusive {
            return Err(WriteRefusal::NotExclusive { path: path.clone(), hold: id });
        }
        match self.node(path) {
            None => Err(WriteRefusal::NotFound { path: path.clone() }),
            // It goes when that lease ends, which waits for nobody's flush.
            Some(node) if node.attachment.is_some() => Err(WriteRefusal::Leased { path: path.clone() }),
            Some(_) if self.mistake.is(Bug::WriteLeaseWithoutRecall) => Ok(Vec::new()),
            Some(_) => Ok(vec![ObjectSet::One(Object::data(path.clone()))]),
        }
    }

    /// # Errors
    ///
    /// [`WriteRefusal`] if the session has no such write lease, or not under this token (S10).
    pub(super) fn flush_footprint(
        &self,
        session: SessionId,
        (path, id, token): (&Path, HoldId, Token),
        changes: bool,
    ) -> Result<Vec<ObjectSet>, WriteRefusal> {
        let hold = self.check_hold(session, path, id)?;
        let Some(expected) = hold.token else {
            return Err(WriteRefusal::HoldWaits { path: path.clone(), hold: id });
        };
        if expected != token {
            return Err(WriteRefusal::TokenOver { path: path.clone(), hold: id, got: token, expected });
        }
        if hold.caches.is_none() {
            return Err(WriteRefusal::NotCaching { path: path.clone(), hold: id });
        }
        Ok(changes.then(|| ObjectSet::One(Object::data(path.clone()))).into_iter().collect())
    }

    /// The holder keeps the node's data to itself from now on.
    pub(super) fn cache(&mut self, id: HoldId, touched: &mut Touched) -> Written {
        let number = self.meta.last_write_lease.next();
        if let Some(path) = self.holds.set_caching(id, Some(number)) {
            self.meta.last_write_lease = number;
            touched.insert(RowKey::Hold(id, path));
        }
        self.unchanged()
    }

    /// Carries out a flush that is not refused. `sets` is its footprint.
    pub(super) fn flush(
        &mut self,
        writer: SessionId,
        (path, id): (&Path, HoldId),
        (value, ends): (Option<&Value>, bool),
        sets: Vec<ObjectSet>,
        touched: &mut Touched,
    ) -> Written {
        let mut stat = None;
        if let Some(value) = value {
            let revision = self.meta.revision.next();
            self.meta.revision = revision;
            stat = self.put(writer, path, value, Attach::Keep, revision, touched);
            self.note_change(sets, touched);
        }
        if ends && self.holds.set_caching(id, None).is_some() {
            touched.insert(RowKey::Hold(id, path.clone()));
        }
        Written { stat, ..self.unchanged() }
    }

    /// Checks that whoever keeps a node's data to itself holds it alone, and that it is there to be flushed to.
    pub(super) fn check_caching(&self) -> Result<(), String> {
        for (path, id) in &self.holds.caching {
            let hold = self.holds.rows.get(id).map(|(_, hold)| hold);
            let is_held = hold.is_some_and(|hold| {
                hold.token.is_some() && hold.mode == HoldMode::Exclusive && hold.lease.session().is_some()
            });
            if !is_held {
                return Err(format!("hold {id} is a write lease on {path}, and is not held alone"));
            }
            let number = hold.and_then(|hold| hold.caches);
            if number.is_none_or(|number| number > self.meta.last_write_lease) {
                return Err(format!("hold {id} is write lease {number:?} on {path}, which was never granted"));
            }
            if self.node(path).is_none_or(|node| node.attachment.is_some()) {
                return Err(format!("hold {id} is a write lease on {path}, which can go, or is gone"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
