//! Solves the formula for what a leader has counted.
//!
//! The leader counts events of the whole volume. It does not know how many copies the clients use,
//! nor how often each copy is read and written. Two numbers follow from the counts: the rate of
//! writes that gives as many recalls, and the number of copies that gives as many validations.

use std::time::Duration;

use crate::{lease_policy::ObjectTerm, message::VolumeStats, time::DriftAllowance, volume::VolumeSettings};

use super::{CopyTerm, CycleRates, LeaseCycle, Prediction, ratio};

/// The fewest validations that tell the number of copies. With fewer, the mean number of leases
/// tells it: then most leases last until they are recalled.
const VALIDATIONS_MIN: u64 = 100;

/// Halvings of an interval. They leave less than a part in a million.
const HALVINGS: usize = 60;

/// Far fewer and far more copies than there can be.
const COPIES_FEWEST: f64 = 1e-3;
const COPIES_MOST: f64 = 1e12;

/// The copies of a volume, and how they are read and written. Rates are per second.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Estimate {
    /// How many copies the clients use, with or without a lease at a time.
    copies: f64,
    /// Each of them.
    cycle: LeaseCycle,
    /// Reads that ask a server with any term, such as first reads.
    first_reads: f64,
    /// All reads.
    reads: f64,
    heartbeats: Heartbeats,
    /// Acquisitions and parts of holder reports, as measured.
    returns: f64,
    settings: VolumeSettings,
    round_trip: Duration,
    drift: DriftAllowance,
}

impl Estimate {
    /// The estimate from these counters. The volume must have object leases of one term.
    pub(super) fn of(stats: &VolumeStats, round_trip: Duration, drift: DriftAllowance) -> Self {
        let (counts, settings, seconds) = (&stats.counts, stats.settings, stats.counted_for.as_secs_f64());
        let per_second = |count: u64| ratio(count as f64, seconds);
        let term = CopyTerm::of(&settings, settings.object_term(), round_trip, drift);
        // A recalled copy is fetched once. All other reads without a copy are first reads.
        let fetched = counts.reads_leased.saturating_sub(counts.reads_validating).min(counts.recalls);
        let counted = CountedCopies {
            reads: per_second(counts.reads_from_memory) + per_second(counts.reads_validating) + per_second(fetched),
            recalled: per_second(counts.recalls),
            written: per_second(counts.writes_by_holders),
            validating: match counts.reads_validating {
                few if few < VALIDATIONS_MIN => None,
                enough => Some(per_second(enough)),
            },
            leases: ratio(counts.object_lease_ms as f64 / 1e3, seconds),
        };
        let (copies, cycle) = counted.solve(term);
        let now = cycle.rates(term);
        let asking = per_second(counts.reads_leased) + per_second(counts.reads_unleased);
        let by_formula = copies * (now.validations + now.fetches);
        Self {
            copies,
            cycle,
            first_reads: (asking - by_formula).max(0.0),
            reads: per_second(counts.reads_from_memory) + asking,
            heartbeats: Heartbeats {
                clients: stats.volume_leases as f64,
                term: settings.term().for_leases(stats.volume_leases).as_secs_f64(),
                writes: per_second(counts.writes),
                asking,
                counted: per_second(counts.renewals_alone) + per_second(counts.heartbeats_idle),
            },
            returns: per_second(counts.acquisitions) + per_second(counts.report_parts),
            settings,
            round_trip,
            drift,
        }
    }

    /// The prediction for one term, with which a write waits at most `write_delay` for a dead
    /// holder.
    pub(super) fn predict(&self, term: ObjectTerm, write_delay: Duration) -> Prediction {
        let (renewals, recalls, object_leases) = (0.0, 0.0, 0.0);
        if term == ObjectTerm::Zero {
            let reads = 2.0 * self.reads;
            return Prediction { term, reads, recalls, renewals, from_memory: 0.0, object_leases, write_delay };
        }
        let CycleRates { validations, fetches, recalls, held, .. } =
            self.cycle.rates(CopyTerm::of(&self.settings, term, self.round_trip, self.drift));
        let asking = (self.copies * (validations + fetches) + self.first_reads).min(self.reads);
        Prediction {
            term,
            reads: 2.0 * asking,
            recalls: 2.0 * self.copies * recalls,
            renewals: 2.0 * (self.heartbeats.predicted(asking) + self.returns),
            from_memory: 1.0 - ratio(asking, self.reads),
            object_leases: self.copies * held,
            write_delay,
        }
    }
}

/// The counts that tell the copies and their writes, per second.
#[derive(Debug, Clone, Copy)]
struct CountedCopies {
    /// Reads of copies, with a lease or without.
    reads: f64,
    /// Leases that ended by a recall.
    recalled: f64,
    /// Leases whose holder wrote.
    written: f64,
    /// Reads that asked because the term had ended, if there were enough of them.
    validating: Option<f64>,
    /// The mean number of leases at the leader. It removes ended ones a little later.
    leases: f64,
}

impl CountedCopies {
    /// How many copies there are, and the rates of each. The more copies there are, the less often
    /// each is read, and the more reads ask.
    fn solve(&self, term: CopyTerm) -> (f64, LeaseCycle) {
        let rates = |copies: f64| self.cycle(copies, term).rates(term);
        let copies = match self.validating {
            Some(counted) => root(COPIES_FEWEST, COPIES_MOST, |copies| copies * rates(copies).validations - counted),
            None => {
                root(self.leases.max(COPIES_FEWEST), COPIES_MOST, |copies| copies * rates(copies).held - self.leases)
            }
        };
        (copies, self.cycle(copies, term))
    }

    /// The rates of each copy, if the clients use `copies` of them. With these rates, writes end as
    /// many leases as were counted.
    fn cycle(&self, copies: f64, term: CopyTerm) -> LeaseCycle {
        let (by_writes, reads) = (self.recalled + self.written, ratio(self.reads, copies));
        let of = |writes: f64| {
            let own_writes = writes * ratio(self.written, by_writes);
            LeaseCycle { reads, own_writes, other_writes: writes - own_writes }
        };
        if by_writes <= 0.0 {
            return of(0.0);
        }
        // As if each copy always had a lease: the least rate.
        let least = by_writes / copies;
        of(root(least, least * COPIES_MOST, |writes| copies * of(writes).rates(term).held * writes - by_writes))
    }
}

/// Where a rising function is zero between two positive numbers, or the end that is nearer to it.
fn root(mut least: f64, mut most: f64, rising: impl Fn(f64) -> f64) -> f64 {
    for _ in 0..HALVINGS {
        // The geometric mean, because only the order of magnitude is known.
        let middle = (least * most).sqrt();
        *(if rising(middle) < 0.0 { &mut least } else { &mut most }) = middle;
    }
    (least * most).sqrt()
}

/// Heartbeats: they renew volume leases, and compare clocks. Their number is measured. The object
/// term changes it only because other requests renew volume leases too.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Heartbeats {
    /// Sessions with a lease on the volume.
    clients: f64,
    /// The volume term, in seconds.
    term: f64,
    /// Writes per second.
    writes: f64,
    /// Reads per second that ask a server, as measured.
    asking: f64,
    /// Heartbeats per second, as measured.
    counted: f64,
}

impl Heartbeats {
    /// Heartbeats per second, if `asking` reads per second ask a server.
    fn predicted(&self, asking: f64) -> f64 {
        self.counted * ratio(self.interval(self.asking), self.interval(asking))
    }

    /// About how long after a heartbeat a client sends the next, in volume terms.
    ///
    /// It is due after half a term. Two requests until then postpone it to 0.7 terms, when it
    /// compares clocks: each renews the volume lease, but the first is promised only what the
    /// horizon leaves. A read in the second half of this time postpones it by a third of the
    /// remaining term, and is mostly followed by another request.
    fn interval(&self, asking: f64) -> f64 {
        let half = self.term / 2.0;
        let (reads, writes) = (ratio(asking, self.clients) * half, ratio(self.writes, self.clients) * half);
        let others = reads / 2.0 + writes;
        let is_due = (-reads / 2.0 - others).exp() * (1.0 + others);
        let postponed = (1.0 - is_due) * (1.0 - is_due / 3.0);
        0.5 + 0.2 * postponed
    }
}
