//! Ghost leases: leases that the leader does not grant, and only counts ([`GhostLeases`]). The word
//! is from ghost entries of caches, which have no content (Megiddo and Modha 2003).

use std::{collections::BTreeMap, time::Duration};

use crate::{
    id::SessionId,
    object::{Object, ObjectKind, ObjectSet},
    reached::{Bound, reached},
    time::Instant,
    work::CountVisits,
};

use super::ladder::{Ladder, RUNGS};

/// The most ghost leases of a volume. If there would be more, a sample of the copies is counted.
const GHOST_LEASES_MAX: usize = 256;

/// Up to 4,096 volumes share this number of ghost leases.
const GHOST_LEASES_OF_ALL: usize = 1 << 16;

/// But each volume may have this number. With fewer, a sample would have too few events.
const GHOST_LEASES_MIN: usize = 16;

/// The bound of each volume, if there are `volumes` of them. It changes only at powers of two.
pub(super) fn ghost_leases_of_each(volumes: usize) -> usize {
    (GHOST_LEASES_OF_ALL / volumes.next_power_of_two()).clamp(GHOST_LEASES_MIN, GHOST_LEASES_MAX)
}

/// If there are too many ghost leases, the table forgets each copy whose ghost lease of the
/// shortest term was last granted longer ago than this.
const UNREAD_MAX: Duration = Duration::from_secs(3600);

/// After this many checks in a row with too few events, a sample is too sparse.
const SPARSE_AFTER_CHECKS: u32 = 30;

/// A write of more sets counts as a write of the whole volume.
const SETS_SEARCHED_MAX: usize = 64;

/// What the leases of one rung would have saved and cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct GhostCounts {
    /// Reads that would have come from memory.
    reads_saved: u64,
    /// Leases that a write would have found.
    leases_found_by_writes: u64,
}

/// The leases that the reads of a volume would have with each term of its ladder.
///
/// A copy here is an object and a session that reads it. If `sampled_bits` is n, about one in 2^n
/// copies is counted: those whose hash ends with n zero bits. It begins with n = 0. When there are
/// too many copies, n grows by one. If a sample has too few events for long, counting begins anew
/// with all copies: the copies that filled the table may no longer be used.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct GhostLeases {
    /// The bound of `leases`.
    most: usize,
    /// For each copy, when the lease of each rung was last granted.
    leases: BTreeMap<(Object, SessionId), [Instant; RUNGS]>,
    counts: [GhostCounts; RUNGS],
    sampled_bits: u32,
    /// How many checks in a row have found too few events.
    sparse_checks: u32,
}

impl GhostLeases {
    /// Begins without a sample: all copies are counted. `most` is the bound of the table.
    pub(super) fn new(most: usize) -> Self {
        let counts = [GhostCounts::default(); RUNGS];
        Self { most, leases: BTreeMap::new(), counts, sampled_bits: 0, sparse_checks: 0 }
    }

    /// Makes the bound lower.
    pub(super) fn shrink_to(&mut self, most: usize, now: Instant) {
        self.most = most;
        self.keep_bound(now);
    }

    /// A session read an object.
    pub(super) fn note_read(&mut self, object: &Object, session: SessionId, ladder: &Ladder, now: Instant) {
        if !self.is_sampled(object, session) {
            return;
        }
        let key = (object.clone(), session);
        match self.leases.get_mut(&key) {
            Some(granted) => {
                for (rung, granted) in granted.iter_mut().enumerate() {
                    match now < granted.after(ladder.term(rung)) {
                        true => self.counts[rung].reads_saved += 1,
                        false => *granted = now,
                    }
                }
            }
            None => {
                self.leases.insert(key, [now; RUNGS]);
                self.keep_bound(now);
            }
        }
    }

    /// The sets were written. Their ghost leases end, except those of the writer.
    pub(super) fn note_write<'a>(
        &mut self,
        sets: impl ExactSizeIterator<Item = &'a ObjectSet>,
        writer: Option<SessionId>,
        ladder: &Ladder,
        now: Instant,
    ) {
        let many = sets.len() > SETS_SEARCHED_MAX;
        let sets: Vec<&ObjectSet> = sets.take(SETS_SEARCHED_MAX).collect();
        let single = |set: &&ObjectSet| match set {
            ObjectSet::One(object) => Some(object.clone()),
            ObjectSet::Subtree(_) => None,
        };
        let singles: Option<Vec<Object>> = sets.iter().map(single).collect();
        let found: Vec<_> = match singles.filter(|_| !many) {
            Some(objects) => {
                let keys = objects.into_iter().flat_map(|object| {
                    self.leases.range((object.clone(), SessionId(0))..=(object, SessionId(u64::MAX))).counted()
                });
                keys.map(|(key, _)| key.clone()).collect()
            }
            None => {
                let is_in = |object: &Object| many || sets.iter().any(|set| set.contains(object));
                self.leases.keys().counted().filter(|(object, _)| is_in(object)).cloned().collect()
            }
        };
        for key in found.into_iter().filter(|(_, session)| Some(*session) != writer) {
            for (rung, granted) in self.leases.remove(&key).into_iter().flatten().enumerate() {
                self.counts[rung].leases_found_by_writes += u64::from(now < granted.after(ladder.term(rung)));
            }
        }
    }

    /// The shortest rung that saves clearly more than it costs, and whose profit is at least nine
    /// tenths of the highest. The *profit* is the reads saved, less the leases found. `None` if
    /// there is no such rung. If there were fewer than `events_min` events, the result is `None`
    /// too. Otherwise it halves the counts.
    pub(super) fn rung_that_pays(&mut self, events_min: u64) -> Option<usize> {
        let last = self.counts[RUNGS - 1];
        if last.reads_saved + last.leases_found_by_writes < events_min {
            self.sparse_checks += 1;
            if self.sampled_bits > 0 && self.sparse_checks >= SPARSE_AFTER_CHECKS {
                *self = Self::new(self.most);
            }
            return None;
        }
        self.sparse_checks = 0;
        let profit = |counts: &GhostCounts| counts.reads_saved.saturating_sub(counts.leases_found_by_writes);
        let best = self.counts.iter().map(profit).max().unwrap_or_default();
        // Clearly more, so that granting does not end at once.
        let pays = |counts: &GhostCounts| counts.reads_saved * 4 > counts.leases_found_by_writes * 5;
        let chosen = self.counts.iter().position(|counts| pays(counts) && profit(counts) * 10 >= best * 9);
        for counts in &mut self.counts {
            counts.reads_saved /= 2;
            counts.leases_found_by_writes /= 2;
        }
        chosen
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.leases.len()
    }

    /// The bound of this table.
    pub(super) fn check(&self) -> Result<(), String> {
        match self.leases.len() {
            few if few <= self.most => Ok(()),
            many => Err(format!("{many} ghost leases: expected at most {}", self.most)),
        }
    }

    fn keep_bound(&mut self, now: Instant) {
        if self.leases.len() <= self.most {
            return;
        }
        reached(Bound::GhostLeases);
        let is_read = |granted: &[Instant; RUNGS]| now < granted[0].after(UNREAD_MAX);
        self.leases.retain(|_, granted| is_read(granted));
        while self.leases.len() > self.most {
            self.sampled_bits += 1;
            let bits = self.sampled_bits;
            self.leases.retain(|(object, session), _| is_in_sample(object, *session, bits));
        }
    }

    fn is_sampled(&self, object: &Object, session: SessionId) -> bool {
        is_in_sample(object, session, self.sampled_bits)
    }
}

/// Whether the hash of a copy ends with at least `bits` zero bits (FNV-1a, then a multiplication
/// that mixes the high bits into the low ones).
fn is_in_sample(object: &Object, session: SessionId, bits: u32) -> bool {
    if bits == 0 {
        return true;
    }
    let kind = u8::from(object.kind == ObjectKind::Children);
    let bytes = object.path.as_str().bytes().chain([kind]).chain(session.0.to_le_bytes());
    let hash =
        bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    let mixed = (hash ^ (hash >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    mixed.trailing_zeros() >= bits.min(32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::NodePath;

    const SECOND: Duration = Duration::from_secs(1);

    fn object(number: usize) -> Object {
        Object::data(NodePath::parse(&format!("/{number}")).expect("valid"))
    }

    fn at(seconds: u32) -> Instant {
        Instant::ZERO.after(SECOND * seconds)
    }

    #[test]
    fn ghost_leases_save_and_cost_what_real_ones_would() {
        let ladder = Ladder::new(SECOND, SECOND * 4);
        let mut ghosts = GhostLeases::new(GHOST_LEASES_MAX);
        let (reader, writer) = (SessionId(1), SessionId(2));
        // Granted at 0; a lease of 1 s has ended at 2, and one of 4 s at 5.
        for seconds in [0, 2, 5] {
            ghosts.note_read(&object(1), reader, &ladder, at(seconds));
        }
        ghosts.note_read(&object(1), writer, &ladder, at(5));
        let sets = [ObjectSet::One(object(1))];
        ghosts.note_write(sets.iter(), Some(writer), &ladder, at(7));
        assert_eq!(ghosts.counts[0], GhostCounts { reads_saved: 0, leases_found_by_writes: 0 });
        assert_eq!(
            ghosts.counts[1],
            GhostCounts { reads_saved: 1, leases_found_by_writes: 1 },
            "the writer's is not counted"
        );
        ghosts.note_read(&object(1), reader, &ladder, at(7));
        assert_eq!(ghosts.counts[1].reads_saved, 1, "the write ended the lease");
        ghosts.note_write(vec![ObjectSet::One(object(2)); SETS_SEARCHED_MAX + 1].iter(), None, &ladder, at(8));
        assert_eq!(ghosts.counts[1].leases_found_by_writes, 3, "of so many sets, any could include the object");
    }

    /// One copy is read twice in a second. The others are written before they are read again, five
    /// seconds later. Only a short lease pays.
    #[test]
    fn ghost_leases_find_the_term_that_pays_for_popular_copies() {
        let ladder = Ladder::new(SECOND, SECOND * 1000);
        let mut ghosts = GhostLeases::new(GHOST_LEASES_MAX);
        let reader = SessionId(1);
        let others: Vec<_> = (1..=20).map(object).collect();
        let written: Vec<_> = others.iter().cloned().map(ObjectSet::One).collect();
        for second in 0..300_u32 {
            (0..2).for_each(|_| ghosts.note_read(&object(0), reader, &ladder, at(second)));
            match second % 10 {
                0 => others.iter().for_each(|other| ghosts.note_read(other, reader, &ladder, at(second))),
                5 => ghosts.note_write(written.iter(), None, &ladder, at(second)),
                _ => {}
            }
        }
        let counts = ghosts.counts.map(|counts| (counts.reads_saved, counts.leases_found_by_writes));
        assert_eq!(counts[..3], [(300, 0), (525, 0), (581, 600)]);
        assert_eq!(ghosts.rung_that_pays(1), Some(1), "a term of 4 s");
        assert_eq!(ghosts.rung_that_pays(10_000), None, "too few events");
    }

    /// After one session has read very many objects, others read a few.
    #[test]
    fn sparse_sample_gives_way_to_all_copies() {
        let ladder = Ladder::new(SECOND, SECOND * 4);
        let mut ghosts = GhostLeases::new(GHOST_LEASES_MAX);
        for number in 0..100 * GHOST_LEASES_MAX {
            ghosts.note_read(&object(number), SessionId(1), &ladder, at(0));
        }
        let hot = object(100 * GHOST_LEASES_MAX + 1);
        let mut decided = None;
        for check in 1..=2 * SPARSE_AFTER_CHECKS {
            (0..40).for_each(|_| ghosts.note_read(&hot, SessionId(2), &ladder, at(10 * check)));
            decided = decided.or(ghosts.rung_that_pays(32));
        }
        assert!(decided.is_some(), "the hot object is counted again");
    }

    #[test]
    fn too_many_ghost_leases_become_a_sample_of_the_same_shares() {
        let ladder = Ladder::new(SECOND, SECOND);
        let mut ghosts = GhostLeases::new(GHOST_LEASES_MAX);
        let copies = 40 * GHOST_LEASES_MAX;
        let mut written = 0;
        for number in 0..copies {
            ghosts.note_read(&object(number), SessionId(1), &ladder, at(0));
            ghosts.check().expect("a bounded sample");
        }
        for number in 0..copies {
            ghosts.note_read(&object(number), SessionId(1), &ladder, at(0));
            if number % 4 == 0 {
                let sets = [ObjectSet::One(object(number))];
                ghosts.note_write(sets.iter(), None, &ladder, at(0));
                written += 1;
            }
        }
        let GhostCounts { reads_saved, leases_found_by_writes } = ghosts.counts[0];
        assert!(reads_saved > 100 && reads_saved <= GHOST_LEASES_MAX as u64, "{reads_saved} of {copies}");
        let share = leases_found_by_writes as f64 / reads_saved as f64;
        assert!((0.15..0.35).contains(&share), "{leases_found_by_writes} of {reads_saved}, and {written} of {copies}");
    }
}
