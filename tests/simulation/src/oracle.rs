//! The oracle knows the true state and the answers to clients, and judges only by these.
//!
//! It applies every entry in its own state at the moment of the commit. [`Versions`] judges reads,
//! and the invariants judge the rest.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use leasehold_model::{committed, versions::Versions};
use leasehold_protocol::{
    command::{Command, Outcome, Proposal, WriteRefusal},
    id::{LockId, Revision},
    object::Object,
    state::{RequestStatus, State},
};

use crate::{
    invariants::{
        attachments,
        horizons::Horizons,
        locks::Tokens,
        named_revocations::{self, NamedRevocations},
        once::Once,
        prolonging, quotas, replicas, transactions,
        watches::Happened,
    },
    raft::Entry,
};

/// The true state, and the records for the checks.
#[derive(Debug)]
pub(crate) struct Oracle {
    /// The committed entries, each with the Raft term of its commit.
    pub(crate) log: Vec<(u64, Arc<Entry>)>,
    pub(crate) truth: State,
    pub(crate) versions: Versions,
    /// The version of each object when the final reads began.
    pub(crate) asked: BTreeMap<Object, usize>,
    pub(crate) once: Once,
    horizons: Horizons,
    tokens: Tokens,
    /// How many locks were granted, and how many of them to waiters.
    pub(crate) granted: (u64, u64),
    /// Whether the last entry granted or ended locks.
    pub(crate) have_holds_changed: bool,
    pub(crate) happened: Happened,
    pub(crate) named_revocations: NamedRevocations,
    /// The last change that a client knows to have been made.
    pub(crate) acknowledged: Revision,
}

impl Oracle {
    pub(crate) fn new(truth: State, objects: &[Object]) -> Self {
        let (log, asked, once, horizons, tokens, granted, have_holds_changed) = Default::default();
        Self {
            log,
            versions: Versions::new(&truth, objects),
            asked,
            once,
            horizons,
            tokens,
            granted,
            have_holds_changed,
            happened: Happened::new(&truth),
            named_revocations: NamedRevocations::default(),
            acknowledged: truth.revision(),
            truth,
        }
    }

    /// An entry was committed. Returns its outcomes, or the broken invariant.
    pub(crate) fn commit(&mut self, index: u64, proposal: &Proposal) -> Result<Vec<Outcome>, String> {
        let bounds = prolonging::bounds(&self.truth, proposal);
        let is_new = |command: &Command| match command {
            Command::Write { session, sequence, .. } => {
                matches!(self.truth.request_status(*session, *sequence), Some(RequestStatus::Unanswered))
            }
            _ => false,
        };
        let are_new: Vec<bool> = proposal.commands.iter().map(is_new).collect();
        let waiting: BTreeSet<LockId> =
            self.truth.locks().filter(|(_, _, lock)| lock.token.is_none()).map(|(id, ..)| id).collect();
        let before = transactions::has_any(proposal).then(|| self.truth.clone());
        let before_quotas = quotas::has_any(&self.truth).then(|| self.truth.clone());
        let before_revocations = named_revocations::has_any(proposal).then(|| self.truth.clone());
        let applied = self.truth.apply(index, proposal);
        self.have_holds_changed = !applied.changed_locks().is_empty();
        let outcomes = applied.outcomes;
        self.truth.check()?;
        let (granted, late) = self.tokens.check(&self.truth, |id| waiting.contains(&id))?;
        self.granted = (self.granted.0 + granted, self.granted.1 + late);
        before.map_or(Ok(()), |before| transactions::check(before, proposal, &outcomes))?;
        before_quotas.map_or(Ok(()), |before| quotas::check(before, proposal, &outcomes))?;
        before_revocations.map_or(Ok(()), |before| self.named_revocations.check(before, proposal, &outcomes))?;
        self.happened.learn(&self.truth)?;
        prolonging::check(&bounds, &self.truth)?;
        self.horizons.check(&self.truth)?;
        self.versions.commit(&self.truth);
        for ((command, outcome), is_new) in proposal.commands.iter().zip(&outcomes).zip(are_new) {
            if is_new {
                attachments::check(&self.truth, command, outcome)?;
            }
            if let (Command::Write { session, sequence, .. }, Outcome::Written(Ok(written))) = (command, outcome)
                && is_new
            {
                // A write that changes no node has the revision of the last change.
                self.versions.changed(written.revision);
                self.once.took_effect((*session, *sequence), written.revision)?;
            }
        }
        for (key, _, outcome) in committed::writes(proposal, &outcomes) {
            if let Outcome::Written(Err(refusal)) = outcome
                && let WriteRefusal::NoVolumeLease { .. } = innermost(refusal)
            {
                self.once.was_misplaced(key);
            }
        }
        Ok(outcomes)
    }

    /// A server has applied an entry. Compares its state with the true one.
    pub(crate) fn check_replica(&self, place: usize, replica: &State, is_wide: bool) -> Result<(), String> {
        // A replica that differs goes on to differ. Wide worlds have large states, so the check is
        // rarer there.
        let (whole, rows) = if is_wide { (8, 256) } else { (1, 64) };
        if replica.applied_index().is_multiple_of(whole) {
            replicas::check(place, replica, &self.truth)?;
        }
        if replica.applied_index().is_multiple_of(rows) { replicas::check_rows(place, replica) } else { Ok(()) }
    }

    /// Every object is about to be read after all faults: the reads must find the current versions,
    /// or later ones.
    pub(crate) fn ask_for_all(&mut self) {
        self.asked = self.versions.latest();
    }

    /// A client got a report that the change of this revision, and so every earlier one, was made.
    pub(crate) fn acknowledge(&mut self, revision: Revision) {
        self.acknowledged = self.acknowledged.max(revision);
        self.versions.acknowledged(revision);
    }
}

/// The refusal of a transaction's operation, or the refusal itself.
pub(crate) fn innermost(refusal: &WriteRefusal) -> &WriteRefusal {
    match refusal {
        WriteRefusal::Operation { refusal, .. } => refusal,
        refusal => refusal,
    }
}
