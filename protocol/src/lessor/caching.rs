//! Write leases: what waits for a holder that keeps a node's data to itself.
//!
//! Whoever reads, writes or compares that data has the holder asked for it: by a recall, like one for a copy, so that no promise to the holder
//! goes further than a term after it (S5). The holder flushes, says that it keeps the data to itself no longer, and consents. Reads wait here; writes wait
//! in their queues, and are refused by the state until then. What ends the wait is what the state says, never the consent alone.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    command::{LeaseKey, Write},
    id::{SessionId, Stamp},
    message::{Consent, Refusal},
    object::{Object, ObjectSet},
    path::Path,
    planted::Bug,
    state::State,
};

use super::{Effect, Lessor, StepContext, WaitingRead, Wanted, writing::Claim};

/// The reads that wait, by the first node that keeps them waiting.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Parked {
    reads: BTreeMap<Path, Vec<WaitingRead>>,
    /// The nodes whose holders have been asked for them on behalf of a reader.
    asked: BTreeSet<Path>,
    /// Consents that came before what they are for had ended: they count when it has.
    early: BTreeSet<(SessionId, Stamp)>,
}

impl Parked {
    pub(super) fn len(&self) -> usize {
        self.reads.values().map(Vec::len).sum()
    }

    /// All that wait.
    pub(super) fn into_reads(self) -> impl Iterator<Item = WaitingRead> {
        self.reads.into_values().flatten()
    }

    /// What waits, waits for somebody who was asked.
    pub(super) fn check(&self, state: &State) -> Result<(), String> {
        if let Some(path) = self.asked.iter().find(|path| state.cached_by(path).is_none()) {
            return Err(format!("a write lease on {path} is asked for that is not there"));
        }
        match self.reads.iter().find(|(path, reads)| reads.is_empty() || !self.asked.contains(*path)) {
            Some((path, _)) => Err(format!("reads wait for a write lease on {path} that nobody has asked for")),
            None => Ok(()),
        }
    }
}

impl Lessor {
    /// Whether somebody keeps data to itself that is to be read. Then the read waits, and each who does is asked for it: once, because a consent
    /// counts only when that has ended.
    pub(super) fn parks(&mut self, read: &WaitingRead, turn: &mut StepContext<'_>) -> bool {
        let wanted = match &read.wanted {
            Wanted::Object { object, .. } => ObjectSet::One(object.clone()),
            Wanted::List { path, .. } => ObjectSet::Subtree(path.clone()),
            Wanted::Now => return false,
        };
        let state = turn.state;
        let mut kept = state.cached_in(&wanted).peekable();
        let Some(first) = kept.peek().copied().filter(|_| !self.planted(Bug::ReadPastWriteLease)) else { return false };
        self.parked.reads.entry(first.clone()).or_default().push(read.clone());
        for path in kept {
            let (Some((_, hold)), Some(epoch)) = (state.cached_by(path), self.epoch) else { continue };
            if self.parked.asked.insert(path.clone()) {
                let sets = vec![ObjectSet::One(Object::data(path.clone()))];
                let (_, recall) = self.channel(hold.session).recall(hold.session, epoch, sets, turn.now);
                turn.effects.extend(recall.map(Effect::Recall));
            }
        }
        true
    }

    /// Holds on these nodes have changed: answers the reads that waited for one that is no write lease any more.
    pub(super) fn unpark(&mut self, paths: &BTreeSet<Path>, turn: &mut StepContext<'_>) {
        let counts = |early: &&(SessionId, Stamp)| !self.still_keeps(early.0, early.1, turn.state);
        let early: Vec<(SessionId, Stamp)> = self.parked.early.iter().filter(counts).copied().collect();
        for (session, stamp) in early {
            self.parked.early.remove(&(session, stamp));
            self.consent(Consent { session, stamp }, turn);
        }
        if self.parked.asked.is_empty() {
            return;
        }
        for path in paths.iter().filter(|path| turn.state.cached_by(path).is_none()) {
            self.parked.asked.remove(path);
            for read in self.parked.reads.remove(path).unwrap_or_default() {
                self.answer_read(&read, turn);
            }
        }
    }

    /// Takes note of a consent that does not count yet.
    pub(super) fn note_early(&mut self, consent: Consent) {
        self.parked.early.insert((consent.session, consent.stamp));
    }

    /// Nobody waits any more for what the session wanted to read.
    pub(super) fn forget_parked(&mut self, session: SessionId, refusal: &Refusal, turn: &mut StepContext<'_>) {
        let mut gone = Vec::new();
        if let Refusal::SessionGone { .. } = refusal {
            self.parked.early.retain(|(other, _)| *other != session);
        }
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
