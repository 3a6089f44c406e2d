//! Object terms that follow the use of their volume ([`ObjectTerm::ByUse`]).
//!
//! A lease pays if it saves more messages than it costs. Each read from memory saves a request and
//! its answer. Each lease that a write finds costs a recall and its consent, or delays the write if
//! writes wait. So the leader compares these two counts. Gray and Cheriton (SOSP 1989, section 3.1)
//! state the same for equal sharers: leases pay if 2 R / (S W) is more than 1.
//!
//! A volume is in one of two phases:
//!
//! - *Granting:* reads get leases of one term, a rung of a [ladder](Ladder). The leader sees what
//!   these leases save and cost. It also sees which reads a longer term would save.
//! - *Not granting:* no read gets a lease, so the leader sees all reads and writes, apart from
//!   reads under leases from before. It notes the leases that each rung would grant
//!   ([`GhostLeases`]), and counts what they would save and cost.
//!
//! Both phases count what other terms would do. So a decision depends little on the present term.
//! The counts are recent: each decision with enough events halves them, and each new term begins
//! anew.
//!
//! No lease is longer than the upper bound of the settings. So all waits that assume the longest
//! term stay right (S2, T3). The terms are this leader's alone. A new leader begins with the
//! shortest.
//!
//! This module does not know which leases exist.

mod ghosts;
mod ladder;

use std::{collections::BTreeMap, time::Duration};

use crate::{
    id::SessionId,
    lease_policy::ObjectTerm,
    object::{Object, ObjectSet},
    path::NodePath,
    state::State,
    time::Instant,
    volume::VolumeSettings,
    work::CountVisits,
};

use ghosts::{GhostLeases, ghost_leases_of_each};
use ladder::Ladder;

/// The fewest counted events for a decision.
const EVENTS_MIN: u64 = 32;

/// The longest time between two decisions about a volume in use.
const DECIDE_EVERY: Duration = Duration::from_secs(10);

/// A report counts at most so many reads. A correct client reports at most once a second.
const REPORTED_READS_MAX: u64 = 1 << 20;

/// What the leases of the present term saved and cost, and what leases of a longer term would.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct GrantingCounts {
    /// Reads from memory.
    reads_saved: u64,
    /// Sessions with leases that a write found, and next values that came with a lease. Each costs
    /// as much as one read saves.
    leases_found_by_writes: u64,
    /// Reads that validated an unchanged copy. A longer term would have saved them.
    reads_of_unchanged_copies: u64,
    /// Reads of a copy that had changed since its lease ended. With a longer term, the write would
    /// have found the lease.
    reads_of_changed_copies: u64,
}

impl GrantingCounts {
    fn halve(&mut self) {
        let Self { reads_saved, leases_found_by_writes, reads_of_unchanged_copies, reads_of_changed_copies } = self;
        [reads_saved, leases_found_by_writes, reads_of_unchanged_copies, reads_of_changed_copies]
            .into_iter()
            .for_each(|count| *count /= 2);
    }

    fn all(&self) -> u64 {
        let Self { reads_saved, leases_found_by_writes, reads_of_unchanged_copies, reads_of_changed_copies } = *self;
        [reads_saved, leases_found_by_writes, reads_of_unchanged_copies, reads_of_changed_copies]
            .into_iter()
            .fold(0, u64::saturating_add)
    }

    /// The decision, after leases of `term` have been granted for `granted_for`.
    fn decision(&self, term: Duration, granted_for: Duration) -> Decision {
        let Self { reads_saved, leases_found_by_writes, reads_of_unchanged_copies, reads_of_changed_copies } = *self;
        let copies = u128::from(reads_saved) + u128::from(reads_of_unchanged_copies);
        let share_unsaved = |percent: u128| u128::from(reads_of_unchanged_copies) * 100 > copies * percent;
        if self.all() < EVENTS_MIN {
            Decision::Wait
        } else if leases_found_by_writes > reads_saved {
            Decision::StopGranting
        } else if reads_of_unchanged_copies > reads_of_changed_copies
            && share_unsaved(UNSAVED_PERCENT_MAX)
            && granted_for >= term
        {
            Decision::Lengthen
        } else if copies > 0 && !share_unsaved(UNSAVED_PERCENT_MIN) && granted_for >= term.saturating_mul(2) {
            Decision::Shorten
        } else {
            Decision::Keep
        }
    }
}

/// A longer term follows if more than this percentage of the reads of unchanged copies were
/// requests. So the term saves nine tenths of what an infinite one saves.
const UNSAVED_PERCENT_MAX: u128 = 10;

/// A shorter term follows if at most this percentage of the reads of unchanged copies were
/// requests. With a quarter of the term, about four times as many are requests: 8 % at most. That
/// is less than [`UNSAVED_PERCENT_MAX`], so the longer term does not follow again at once.
const UNSAVED_PERCENT_MIN: u128 = 2;

/// What follows from the counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Decision {
    /// Too few events.
    Wait,
    Keep,
    Lengthen,
    Shorten,
    /// Leases do not pay: grant none.
    StopGranting,
}

/// The phase of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Phase {
    Granting { rung: usize, counts: GrantingCounts },
    NotGranting(Box<GhostLeases>),
}

/// The present term of one volume, and the counts that it follows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct TermByUse {
    ladder: Ladder,
    phase: Phase,
    /// When the present phase or term began.
    since: Instant,
    decided_at: Instant,
    /// The most ghost leases of the volume. It falls with more volumes, and never rises again.
    ghosts_max: usize,
}

impl TermByUse {
    fn new(ladder: Ladder, ghosts_max: usize, now: Instant) -> Self {
        let phase = Phase::Granting { rung: 0, counts: GrantingCounts::default() };
        Self { ladder, phase, since: now, decided_at: now, ghosts_max }
    }

    /// The present term; `None` if reads get no lease.
    fn term(&self) -> Option<Duration> {
        match self.phase {
            Phase::Granting { rung, .. } => Some(self.ladder.term(rung)),
            Phase::NotGranting(_) => None,
        }
    }

    /// From time to time, decides by the counts.
    fn decide(&mut self, now: Instant) {
        if now.since(self.decided_at) < self.ladder.term(0).min(DECIDE_EVERY) {
            return;
        }
        self.decided_at = now;
        let granted_for = now.since(self.since);
        let next = match &mut self.phase {
            Phase::Granting { rung, counts } => {
                let next = match counts.decision(self.ladder.term(*rung), granted_for) {
                    Decision::Wait => return,
                    Decision::Keep => None,
                    Decision::Lengthen => self.ladder.above(*rung),
                    Decision::Shorten => rung.checked_sub(1),
                    Decision::StopGranting => {
                        let ghosts = GhostLeases::new(self.ghosts_max);
                        return self.begin(Phase::NotGranting(Box::new(ghosts)), now);
                    }
                };
                counts.halve();
                next
            }
            Phase::NotGranting(ghosts) => ghosts.rung_that_pays(EVENTS_MIN),
        };
        if let Some(rung) = next {
            self.begin(Phase::Granting { rung, counts: GrantingCounts::default() }, now);
        }
    }

    fn begin(&mut self, phase: Phase, now: Instant) {
        self.phase = phase;
        self.since = now;
    }
}

/// The present terms of all volumes whose terms follow their use: one entry for each such volume.
/// The volumes share the room for ghost leases.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct TermsByUse {
    volumes: BTreeMap<NodePath, TermByUse>,
}

/// A read that was answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct AnsweredRead<'a> {
    pub(super) session: SessionId,
    pub(super) object: &'a Object,
    /// Whether the read may get a lease, if the volume grants any.
    pub(super) wants_lease: bool,
    /// Whether the answer validated the client's copy, if it had one.
    pub(super) validated: Option<bool>,
}

impl TermsByUse {
    /// The settings as they hold at present: if the object term follows the use, it is replaced by
    /// the present one.
    pub(super) fn present(&self, volume: &NodePath, settings: &VolumeSettings) -> VolumeSettings {
        let ObjectTerm::ByUse { least, .. } = settings.object_term() else { return *settings };
        let term = self.volumes.get(volume).map_or(Some(least), TermByUse::term);
        settings.with_present_term(term)
    }

    /// A read of an object in the volume was answered.
    pub(super) fn note_read(
        &mut self,
        volume: &NodePath,
        settings: &VolumeSettings,
        read: AnsweredRead<'_>,
        now: Instant,
    ) {
        let Some(followed) = self.of(volume, settings, now) else { return };
        match &mut followed.phase {
            Phase::Granting { counts, .. } if read.wants_lease => match read.validated {
                Some(true) => counts.reads_of_unchanged_copies = counts.reads_of_unchanged_copies.saturating_add(1),
                Some(false) => counts.reads_of_changed_copies = counts.reads_of_changed_copies.saturating_add(1),
                None => {}
            },
            Phase::NotGranting(ghosts) if read.wants_lease => {
                ghosts.note_read(read.object, read.session, &followed.ladder, now);
            }
            Phase::Granting { .. } | Phase::NotGranting(_) => {}
        }
        followed.decide(now);
    }

    /// A client reported reads from memory.
    pub(super) fn note_reads_saved(&mut self, volume: &NodePath, settings: &VolumeSettings, reads: u64, now: Instant) {
        let Some(followed) = self.of(volume, settings, now) else { return };
        if let Phase::Granting { counts, .. } = &mut followed.phase {
            counts.reads_saved = counts.reads_saved.saturating_add(reads.min(REPORTED_READS_MAX));
        }
        followed.decide(now);
    }

    /// A write found leases of a session in the volume, or a lease came with a next value. Each
    /// costs two messages: a recall and a consent, or a push and its empty reply.
    pub(super) fn note_lease_found_by_write(&mut self, volume: &NodePath) {
        if let Some(TermByUse { phase: Phase::Granting { counts, .. }, .. }) = self.volumes.get_mut(volume) {
            counts.leases_found_by_writes = counts.leases_found_by_writes.saturating_add(1);
        }
    }

    /// A write of these sets in the volume gathers consents. If it gathers again, it counts again.
    pub(super) fn note_write<'a>(
        &mut self,
        volume: &NodePath,
        sets: impl ExactSizeIterator<Item = &'a ObjectSet>,
        writer: Option<SessionId>,
        now: Instant,
    ) {
        let Some(followed) = self.volumes.get_mut(volume) else { return };
        if let Phase::NotGranting(ghosts) = &mut followed.phase {
            ghosts.note_write(sets, writer, &followed.ladder, now);
        }
        followed.decide(now);
    }

    /// A volume was created, changed or removed: its use is counted anew.
    pub(super) fn volume_changed(&mut self, volume: &NodePath) {
        self.volumes.remove(volume);
    }

    /// The entry of a volume, if its term follows its use.
    fn of(&mut self, volume: &NodePath, settings: &VolumeSettings, now: Instant) -> Option<&mut TermByUse> {
        let ObjectTerm::ByUse { least, most } = settings.object_term() else { return None };
        if !self.volumes.contains_key(volume) {
            let ghosts_max = self.share_ghosts(now);
            self.volumes.insert(volume.clone(), TermByUse::new(Ladder::new(least, most), ghosts_max, now));
        }
        self.volumes.get_mut(volume)
    }

    /// Makes room for the ghost leases of one volume more. Returns the most of each volume.
    fn share_ghosts(&mut self, now: Instant) -> usize {
        let most = ghost_leases_of_each(self.volumes.len() + 1);
        if most < ghost_leases_of_each(self.volumes.len()) {
            for followed in self.volumes.values_mut().counted() {
                followed.ghosts_max = most;
                if let Phase::NotGranting(ghosts) = &mut followed.phase {
                    ghosts.shrink_to(most, now);
                }
            }
        }
        most
    }

    /// The number of volumes.
    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.volumes.len()
    }

    /// Checks that only volumes whose terms follow their use have entries, and their bounds.
    pub(super) fn check(&self, state: &State) -> Result<(), String> {
        for (volume, followed) in &self.volumes {
            let settings = state.volume(volume).map(|record| record.settings.object_term());
            let Some(ObjectTerm::ByUse { least, most }) = settings else {
                return Err(format!("{volume} has counts of its use, and its object term does not follow it"));
            };
            if let Some(term) = followed.term().filter(|term| *term < least || *term > most) {
                return Err(format!("{volume} has object leases of {term:?}, beyond {least:?} to {most:?}"));
            }
            if let Phase::NotGranting(ghosts) = &followed.phase {
                ghosts.check().map_err(|problem| format!("{volume}: {problem}"))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease_policy::{GrantPolicy, OnWrite};

    const TERM: Duration = Duration::from_secs(40);

    fn decision(counts: [u64; 4]) -> Decision {
        let [reads_saved, leases_found_by_writes, reads_of_unchanged_copies, reads_of_changed_copies] = counts;
        GrantingCounts { reads_saved, leases_found_by_writes, reads_of_unchanged_copies, reads_of_changed_copies }
            .decision(TERM, 2 * TERM)
    }

    #[test]
    fn decision_weighs_saved_reads_against_found_leases() {
        for (counts, expected) in [
            ([20, 11, 0, 0], Decision::Wait),
            ([50, 51, 0, 0], Decision::StopGranting),
            ([50, 50, 4, 0], Decision::Keep),
            ([50, 50, 6, 0], Decision::Lengthen),
            ([50, 50, 6, 6], Decision::Keep),
            ([0, 0, 50, 49], Decision::Lengthen),
            ([0, 0, 50, 50], Decision::Keep),
            ([98, 0, 2, 0], Decision::Shorten),
            ([97, 0, 3, 0], Decision::Keep),
            ([0, 0, 0, 50], Decision::Keep),
            ([u64::MAX; 4], Decision::Keep),
        ] {
            assert_eq!(decision(counts), expected, "{counts:?}");
        }
    }

    #[test]
    fn many_volumes_share_the_ghost_leases() {
        let second = Duration::from_secs(1);
        let by_use = ObjectTerm::ByUse { least: second, most: 60 * second };
        let settings = VolumeSettings::DEFAULT.with_policy(by_use, OnWrite::Recall, GrantPolicy::All).expect("valid");
        let objects: Vec<Object> =
            (0..300).map(|name| Object::data(NodePath::parse(&format!("/{name}")).expect("valid"))).collect();
        let mut terms = TermsByUse::default();
        for number in 0..600 {
            let volume = NodePath::parse(&format!("/v{number}")).expect("valid");
            let followed = terms.of(&volume, &settings, Instant::ZERO).expect("its term follows its use");
            followed.phase = Phase::NotGranting(Box::new(GhostLeases::new(followed.ghosts_max)));
            for object in &objects {
                let read = AnsweredRead { session: SessionId(1), object, wants_lease: true, validated: None };
                terms.note_read(&volume, &settings, read, Instant::ZERO);
            }
        }
        let counts = terms.volumes.values().map(|followed| match &followed.phase {
            Phase::NotGranting(ghosts) => ghosts.check().map(|()| ghosts.len()).expect("within its bound"),
            Phase::Granting { .. } => 0,
        });
        let counts: Vec<usize> = counts.collect();
        assert!(counts.iter().sum::<usize>() <= 1 << 16, "{counts:?}");
        assert!(counts.iter().all(|count| (1..=ghost_leases_of_each(600)).contains(count)), "{counts:?}");
        assert_eq!([1, 256, 257, 4096, 100_000].map(ghost_leases_of_each), [256, 256, 128, 16, 16]);
    }

    /// The counts show the present term only after leases of it could have ended.
    #[test]
    fn term_changes_only_after_its_leases_could_end() {
        let lengthen = GrantingCounts { reads_saved: 50, reads_of_unchanged_copies: 50, ..GrantingCounts::default() };
        assert_eq!(lengthen.decision(TERM, TERM / 2), Decision::Keep);
        assert_eq!(lengthen.decision(TERM, TERM), Decision::Lengthen);
        let shorten = GrantingCounts { reads_saved: 50, ..GrantingCounts::default() };
        assert_eq!(shorten.decision(TERM, TERM), Decision::Keep);
        assert_eq!(shorten.decision(TERM, 2 * TERM), Decision::Shorten);
    }
}
