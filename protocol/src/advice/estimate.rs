//! Solves the formula for what a leader has counted.
//!
//! The leader counts events of the whole volume. It does not know how many copies the clients use,
//! nor how often each copy is read and written. Two numbers follow from the counts: the rate of
//! writes that gives as many recalls, and the number of copies that gives as many validations.

use std::time::Duration;

use crate::{lease_policy::ObjectTerm, message::VolumeStats, time::DriftAllowance, volume::VolumeSettings};

use super::{CopyTerm, CycleRates, LeaseCycle, Prediction, mixture::fit_read_rates, ratio};

/// The fewest validations that tell the number of copies. With fewer, the mean number of leases
/// tells it: then most leases last until they are recalled.
const VALIDATIONS_MIN: u64 = 100;

/// Halvings of an interval. They leave less than a part in a million.
const HALVINGS: usize = 60;

/// Far fewer and far more copies than there can be.
const COPIES_MIN: f64 = 1e-3;
const COPIES_MAX: f64 = 1e12;

/// The fewest gaps that tell how popular the copies are. With fewer, all copies count as equally
/// popular.
const GAPS_MIN: u64 = 100;

/// The most by which the counted validations and fetches correct the groups of a mixture. A greater
/// difference is of first reads.
const CORRECTION_MAX: f64 = 2.0;

/// The copies of a volume, and how they are read and written. Rates are per second.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Estimate {
    /// The copies that the clients use, with or without a lease at a time.
    groups: Vec<CopyGroup>,
    /// How many times as many validations and fetches were counted as the groups have: nearly 1.
    asking_times: f64,
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
        let is_even = counts.read_gaps.count() < GAPS_MIN;
        let groups = match is_even {
            true => vec![counted.solve(term)],
            false => counted.solve_uneven(&fit_read_rates(&counts.read_gaps), term, seconds),
        };
        let now = sum(&groups, term);
        let asking = per_second(counts.reads_leased) + per_second(counts.reads_unleased);
        let again = per_second(counts.reads_validating) + per_second(fetched);
        let by_formula = now.validations + now.fetches;
        // Fetches follow from the recalls, which the groups have. Validations may need a
        // correction.
        let are_few = counted.validating.is_none() || counts.reads_validating < fetched;
        let asking_times = match is_even || are_few || by_formula <= 0.0 {
            true => 1.0,
            false => (again / by_formula).clamp(1.0 / CORRECTION_MAX, CORRECTION_MAX),
        };
        let by_formula = asking_times * by_formula;
        Self {
            groups,
            asking_times,
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
            sum(&self.groups, CopyTerm::of(&self.settings, term, self.round_trip, self.drift));
        let asking = (self.asking_times * (validations + fetches) + self.first_reads).min(self.reads);
        Prediction {
            term,
            reads: 2.0 * asking,
            recalls: 2.0 * recalls,
            renewals: 2.0 * (self.heartbeats.predicted(asking) + self.returns),
            from_memory: 1.0 - ratio(asking, self.reads),
            object_leases: held,
            write_delay,
        }
    }
}

/// Copies that are read and written equally often.
#[derive(Debug, Clone, Copy, PartialEq)]
struct CopyGroup {
    /// How many.
    copies: f64,
    /// Each of them.
    cycle: LeaseCycle,
}

/// The events of all copies, per second, and the mean number of leases.
fn sum(groups: &[CopyGroup], term: CopyTerm) -> CycleRates {
    groups.iter().fold(CycleRates::default(), |sum, CopyGroup { copies, cycle }| {
        let CycleRates { validations, fetches, recalls, held } = cycle.rates(term);
        CycleRates {
            validations: sum.validations + copies * validations,
            fetches: sum.fetches + copies * fetches,
            recalls: sum.recalls + copies * recalls,
            held: sum.held + copies * held,
        }
    })
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
    fn solve(&self, term: CopyTerm) -> CopyGroup {
        let rates = |copies: f64| self.cycle(copies, term).rates(term);
        let copies = match self.validating {
            Some(counted) => root(COPIES_MIN, COPIES_MAX, |copies| copies * rates(copies).validations - counted),
            None => root(self.leases.max(COPIES_MIN), COPIES_MAX, |copies| copies * rates(copies).held - self.leases),
        };
        CopyGroup { copies, cycle: self.cycle(copies, term) }
    }

    /// The copies of each rate of a mixture. A copy is written more often than another as it is
    /// read more often. The rate of writes gives as many ended leases as were counted.
    fn solve_uneven(&self, mixture: &[(f64, f64)], term: CopyTerm, seconds: f64) -> Vec<CopyGroup> {
        let by_writes = self.recalled + self.written;
        let ended = |groups: &[CopyGroup]| -> f64 {
            let of = |group: &CopyGroup| {
                let LeaseCycle { own_writes, other_writes, .. } = group.cycle;
                group.copies * group.cycle.rates(term).held * (own_writes + other_writes)
            };
            groups.iter().map(of).sum()
        };
        if by_writes <= 0.0 {
            return self.groups(mixture, 0.0, term, seconds);
        }
        // As if each copy always had a lease: the least rate.
        let least = ratio(by_writes, self.reads);
        let writes =
            root(least, least * COPIES_MAX, |writes| ended(&self.groups(mixture, writes, term, seconds)) - by_writes);
        self.groups(mixture, writes, term, seconds)
    }

    /// The copies of each rate. `writes_per_read` is the number of writes of a copy for each read
    /// of it. All copies together are read as often as was counted.
    fn groups(&self, mixture: &[(f64, f64)], writes_per_read: f64, term: CopyTerm, seconds: f64) -> Vec<CopyGroup> {
        let own_share = ratio(self.written, self.recalled + self.written);
        let groups = mixture.iter().map(|(reads, share)| {
            let writes = reads * writes_per_read;
            let own_writes = writes * own_share;
            let cycle = LeaseCycle { reads: *reads, own_writes, other_writes: writes - own_writes };
            // A gap begins with a grant: of a read that asks, or of an own write. Each copy also
            // has a first grant.
            let rates = cycle.rates(term);
            let from_memory = 1.0 - ratio(rates.validations + rates.fetches, *reads);
            let unwritten = ratio(*reads, reads + own_writes);
            let gaps = reads * (1.0 - from_memory * unwritten) + ratio(1.0, seconds);
            CopyGroup { copies: share / gaps, cycle }
        });
        let groups: Vec<CopyGroup> = groups.collect();
        let read: f64 = groups.iter().map(|group| group.copies * group.cycle.reads).sum();
        let times = ratio(self.reads, read);
        groups.into_iter().map(|group| CopyGroup { copies: group.copies * times, ..group }).collect()
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
        of(root(least, least * COPIES_MAX, |writes| copies * of(writes).rates(term).held * writes - by_writes))
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
