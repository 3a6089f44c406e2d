//! Write leases: what waits for a holder that keeps a node's data to itself.
//!
//! Whoever reads, writes or compares that data has the holder asked for it: by a recall, like one for a copy, so that no promise to the holder
//! goes further than a term after it (S5). The holder flushes, says that it keeps the data to itself no longer, and consents. Reads wait here; writes wait
//! in their queues, and are refused by the state until then. What ends the wait is what the state says, never the consent alone.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    command::{LeaseKey, Write},
    id::{SessionId, Stamp},
    message::Refusal,
    object::{Object, ObjectSet},
    path::Path,
    planted::Bug,
    state::State,
};

use super::{Effect, Lessor, StepContext, WaitingRead, Wanted, writing::Claim};

/// The reads that wait, by the node that keeps them waiting.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Parked {
    reads: BTreeMap<Path, Vec<WaitingRead>>,
}

impl Parked {
    pub(super) fn len(&self) -> usize {
        self.reads.values().map(Vec::len).sum()
    }

    /// All that wait.
    pub(super) fn into_reads(self) -> impl Iterator<Item = WaitingRead> {
        self.reads.into_values().flatten()
    }

    /// What waits, waits for somebody.
    pub(super) fn check(&self, state: &State) -> Result<(), String> {
        match self.reads.iter().find(|(path, reads)| reads.is_empty() || state.cached_by(path).is_none()) {
            Some((path, _)) => Err(format!("reads wait for a write lease on {path} that is not there")),
            None => Ok(()),
        }
    }
}

impl Lessor {
    /// A node that is to be read whose data somebody keeps to itself.
    pub(super) fn kept_from_reader<'a>(&self, wanted: &Wanted, state: &'a State) -> Option<&'a Path> {
        if self.planted(Bug::ReadPastWriteLease) {
            return None;
        }
        match wanted {
            Wanted::Object { object, .. } => state.first_cached(&ObjectSet::One(object.clone())),
            Wanted::List { path, .. } => state.first_cached(&ObjectSet::Subtree(path.clone())),
            Wanted::Now => None,
        }
    }

    /// Lets a read wait, and asks the holder for what it keeps to itself. Once: its consent counts only when it has ended that.
    pub(super) fn park(&mut self, path: &Path, read: WaitingRead, turn: &mut StepContext<'_>) {
        let waiting = self.parked.reads.entry(path.clone()).or_default();
        waiting.push(read);
        if waiting.len() > 1 {
            return;
        }
        let (Some((_, hold)), Some(epoch)) = (turn.state.cached_by(path), self.epoch) else { return };
        let sets = vec![ObjectSet::One(Object::data(path.clone()))];
        let (_, recall) = self.channel(hold.session).recall(hold.session, epoch, sets, turn.now);
        turn.effects.extend(recall.map(Effect::Recall));
    }

    /// Holds on these nodes have changed: answers the reads that waited for one that is no write lease any more.
    pub(super) fn unpark(&mut self, paths: &BTreeSet<Path>, turn: &mut StepContext<'_>) {
        if self.parked.reads.is_empty() {
            return;
        }
        for path in paths.iter().filter(|path| turn.state.cached_by(path).is_none()) {
            for read in self.parked.reads.remove(path).unwrap_or_default() {
                self.answer_read(&read, turn);
            }
        }
    }

    /// Nobody waits any more for what the session wanted to read.
    pub(super) fn forget_parked(&mut self, session: SessionId, refusal: &Refusal, turn: &mut StepContext<'_>) {
        let mut gone = Vec::new();
        self.parked.reads.retain(|_, reads| {
            gone.extend(reads.extract_if(.., |read| read.asker.session == session));
            !reads.is_empty()
        });
        for read in gone {
            self.reply_bare(&read.asker, Err(refusal.clone()), turn);
        }
    }

    /// Adds those who keep to themselves what the write changes or compares.
    pub(super) fn claim_cached(
        &self,
        write: &Write,
        covers: &[ObjectSet],
        claims: &mut BTreeMap<SessionId, Claim>,
        state: &State,
    ) {
        for path in state.kept_from(write, covers) {
            let Some((_, hold)) = state.cached_by(&path) else { continue };
            let LeaseKey::Volume(_, volume) = &hold.lease else { continue };
            let claim = claims.entry(hold.session).or_default();
            claim.add(volume.clone(), hold.incarnation, None);
            claim.sets.push(ObjectSet::One(Object::data(path)));
        }
    }

    /// Whether the session still keeps something to itself that this recall asks for: then its consent is no answer yet. A client that keeps
    /// its half never says so; of another the promises end (S5).
    pub(super) fn still_keeps(&self, session: SessionId, stamp: Stamp, state: &State) -> bool {
        let sets = self.channels.get(&session).map(|channel| channel.recalled(stamp)).unwrap_or_default();
        let is_own = |path: &Path| state.cached_by(path).is_some_and(|(_, hold)| hold.session == session);
        sets.iter().any(|set| state.cached_in(set).any(is_own))
    }
}
