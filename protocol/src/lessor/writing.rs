//! A write from its arrival to the log: deduplicated (S9), queued (S3), recalled from all who may hold what it changes (S2).

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    command::{Command, LeaseKey, Write},
    id::{Incarnation, Sequence, SessionId, Stamp},
    message::Refusal,
    object::{ObjectSet, compact},
    path::Path,
    planted::Bug,
    state::Answered,
    time::ClusterTime,
    volume::VolumeError,
};

use super::{
    Asker, Effect, Lessor, Reason, StepContext, WRITES_BYTES_MAX, WRITES_MAX,
    writes::{Pending, Turn, Wait},
};

/// How many requests may want one write's answer: a client has one, and some of its retries.
const ASKERS_MAX: usize = 8;

/// What is to be recalled from one session for one write.
#[derive(Default)]
struct Claim {
    sets: Vec<ObjectSet>,
    leases: BTreeMap<Path, Incarnation>,
    /// None once a covering is among them: then there is no end to wait for but the volume leases'.
    over: Option<ClusterTime>,
    is_covering: bool,
}

impl Lessor {
    pub(super) fn write(
        &mut self,
        asker: Asker,
        (sequence, unanswered_from): (Sequence, Sequence),
        write: Write,
        (dropped, seen): (Vec<ObjectSet>, Stamp),
        turn: &mut StepContext<'_>,
    ) {
        let session = asker.session;
        if let Some(waiting) = self.writes.turn_of(session, sequence) {
            return self.join(waiting, asker, (dropped, seen), turn);
        }
        if let Some(refusal) = self.refusal(session, (sequence, unanswered_from), &write, turn) {
            return self.reply(&asker, Err(refusal), turn);
        }
        if self.planted(Bug::ConditionBeforeOutcome)
            && let Err(refusal) = turn.state.footprint(&write)
        {
            return self.reply(&asker, Err(Refusal::Write(refusal)), turn);
        }
        if let Some(Answered::Outcome(outcome)) = turn.state.answered_given(session, sequence, unanswered_from) {
            let outcome = outcome.clone();
            return self.answer_again(&asker, &write, outcome, turn);
        }
        let covers = compact(turn.state.footprint(&write).unwrap_or_default());
        let mut pending = Pending::new(session, sequence, write, asker, turn.now);
        pending.unanswered_from = unanswered_from;
        (pending.dropped, pending.seen, pending.covers) = (dropped, seen, covers);
        let entered = self.writes.enter(pending);
        self.gather(entered, turn);
    }

    /// The request was sent again while the write waits: one write, and one more who wants its answer (S9).
    fn join(
        &mut self,
        waiting: Turn,
        asker: Asker,
        (dropped, seen): (Vec<ObjectSet>, Stamp),
        turn: &mut StepContext<'_>,
    ) {
        let Some(pending) = self.writes.get_mut(waiting) else { return };
        (pending.dropped, pending.seen) = (dropped, seen);
        pending.askers.push(asker);
        if pending.askers.len() > ASKERS_MAX {
            let oldest = pending.askers.remove(0);
            self.reply_bare(&oldest, Err(Refusal::Retry), turn);
        }
    }

    /// Why a write is refused before anything is done for it (S12).
    fn refusal(
        &self,
        session: SessionId,
        (sequence, unanswered_from): (Sequence, Sequence),
        write: &Write,
        turn: &StepContext<'_>,
    ) -> Option<Refusal> {
        let window = |lowest, highest| Some(Refusal::Window { got: sequence, lowest, highest });
        match turn.state.answered_given(session, sequence, unanswered_from) {
            None => return Some(Refusal::SessionGone { session }),
            Some(Answered::BelowWindow { lowest }) => return window(lowest, lowest.window_end()),
            Some(Answered::BeyondWindow { highest }) => return window(highest.window_start(), highest),
            Some(Answered::Outcome(_)) => return None,
            Some(Answered::Never) => {}
        }
        let got = self.writes.len();
        if got >= WRITES_MAX {
            return Some(Refusal::Busy { what: "writes".to_owned(), got, most: WRITES_MAX });
        }
        let got = self.writes.bytes();
        if got >= WRITES_BYTES_MAX {
            return Some(Refusal::Busy { what: "bytes of writes".to_owned(), got, most: WRITES_BYTES_MAX });
        }
        let limits = &self.config.limits;
        if let Err(error) = limits.check_path(write.path()) {
            return Some(error.into());
        }
        match write {
            Write::Put { value, .. } => limits.check_value(value).err().map(Refusal::from),
            Write::CreateVolume { settings, .. } | Write::SetVolume { settings, .. } => {
                settings.check_drift(self.config.drift).err().map(|error: VolumeError| error.into())
            }
            Write::Delete { .. } | Write::RemoveVolume { .. } => None,
        }
    }

    /// Asks everyone who may hold an object that the write covers for consent (S2), and proposes the write if there is
    /// nothing to wait for.
    pub(super) fn gather(&mut self, waiting: Turn, turn: &mut StepContext<'_>) {
        let Some(pending) = self.writes.get(waiting) else { return };
        let (writer, covers) = (pending.session, pending.covers.clone());
        let (dropped, seen) = (pending.dropped.clone(), pending.seen);
        let mut claims: BTreeMap<SessionId, Claim> = BTreeMap::new();
        for set in covers {
            for (holder, volume, over) in self.holdings.holders(&set, self.clock.ending(), turn.state) {
                if holder == writer && self.is_exempt(writer, &volume, &set, &dropped, seen) {
                    self.holdings.remove(&set, writer, turn.state);
                    continue;
                }
                let Some(track) = self.holdings.track(&volume, holder) else { continue };
                let claim = claims.entry(holder).or_default();
                claim.leases.insert(volume, track.incarnation);
                claim.is_covering |= over.is_none();
                claim.over = claim.over.max(over);
                if claim.sets.last() != Some(&set) {
                    claim.sets.push(set.clone());
                }
            }
        }
        for (holder, claim) in claims {
            self.recall(waiting, holder, claim, turn);
        }
        self.propose_ready(vec![waiting]);
    }

    fn recall(&mut self, waiting: Turn, holder: SessionId, claim: Claim, turn: &mut StepContext<'_>) {
        let Claim { sets, leases, over, is_covering } = claim;
        let Some(epoch) = self.epoch else { return };
        let (stamp, recall) = self.channel(holder).recall(holder, epoch, sets, turn.now);
        turn.effects.extend(recall.map(Effect::Recall));
        let over = over.filter(|_| !is_covering);
        self.writes.wait(waiting, holder, Wait { stamp, leases, over });
    }

    /// Whether the writer needs no recall: it dropped its own copy when it sent the write, in this epoch, and nothing was granted to
    /// it since (S2w).
    fn is_exempt(&self, writer: SessionId, volume: &Path, set: &ObjectSet, dropped: &[ObjectSet], seen: Stamp) -> bool {
        if !dropped.iter().any(|one| one.includes(set)) {
            return false;
        }
        if self.planted(Bug::ExemptWriterWithoutStamp) {
            return true;
        }
        let is_covering = self.holdings.track(volume, writer).is_some_and(|track| track.is_covering());
        let last_grant = if is_covering && !self.planted(Bug::ExemptCoveringWriter) {
            self.channels.get(&writer).map_or(0, |channel| channel.last_grant())
        } else {
            let own = self.holdings.leases_in(set).filter(|((_, holder), _)| *holder == writer);
            own.map(|(_, lease)| lease.source.sequence()).max().unwrap_or_default()
        };
        Some(seen.epoch) == self.epoch && last_grant <= seen.sequence
    }

    /// Ends a session's waits for which the condition holds, and proposes what has become ready.
    pub(super) fn end_waits(&mut self, session: SessionId, is_over: impl Fn(&Wait) -> bool) {
        let ready = self.writes.end_waits(session, is_over);
        self.propose_ready(ready);
    }

    /// Ends a session's waits for copies that can no longer be used because the volume leases that they were held under are
    /// gone from the replicated state (T5).
    pub(super) fn end_waits_without_lease(&mut self, session: SessionId) {
        let ends = &self.ends;
        let is_left = |(volume, incarnation): (&Path, &Incarnation)| {
            let key = LeaseKey::Volume(session, volume.clone());
            ends.get(&key).is_some_and(|end| end.incarnation == *incarnation)
        };
        let one_is_enough = self.planted(Bug::AnyEndFreesWrite);
        let are_left = |wait: &Wait| match one_is_enough {
            true => wait.leases.iter().all(is_left),
            false => wait.leases.iter().any(is_left),
        };
        let ready = self.writes.end_waits(session, |wait| !are_left(wait));
        self.propose_ready(ready);
    }

    /// Ends the waits for object leases that are over (T3).
    pub(super) fn end_waits_over(&mut self) {
        let now = self.clock.ending();
        let ready = self.writes.end_all_waits(|wait| wait.over.is_some_and(|over| over <= now));
        self.propose_ready(ready);
    }

    /// Proposes writes that wait for nothing any more, in their order, and those that this lets follow.
    pub(super) fn propose_ready(&mut self, ready: Vec<Turn>) {
        let mut ready: BTreeSet<Turn> = ready.into_iter().collect();
        while let Some(next) = ready.pop_first() {
            let Some(pending) = self.writes.get(next).filter(|pending| pending.is_ready()) else { continue };
            let command = Command::Write {
                session: pending.session,
                sequence: pending.sequence,
                unanswered_from: pending.unanswered_from,
                write: pending.write.clone(),
                covers: pending.covers.clone(),
            };
            self.propose(command, Reason::Write(next));
            ready.extend(self.writes.proposed(next));
        }
    }
}
