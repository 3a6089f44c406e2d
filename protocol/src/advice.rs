//! Advice on the object term of a volume: the messages that a formula predicts for several terms,
//! from what the leader has counted with the present one.
//!
//! The formula extends that of Gray and Cheriton (SOSP 1989). [`LeaseCycle`] states it, and
//! `docs/papers/gray-cheriton-1989.md` compares both. Here it gets its numbers from the counters of
//! the volume: [`advise`] solves it for them.
//!
//! The module predicts for Poisson reads and writes. The gaps that clients report tell how popular
//! the copies are. The same page says how far the prediction is off. The module does not know which
//! objects there are, and it changes nothing: no rule depends on it.

mod cycle;
mod estimate;
mod mixture;

use std::time::Duration;

use crate::{
    lease_policy::{GrantPolicy, ObjectTerm, OnWrite},
    message::VolumeStats,
    path::NodePath,
    time::DriftAllowance,
    volume::{Tracking, VolumeSettings},
};

pub use cycle::{CopyTerm, CycleRates, LeaseCycle};
use estimate::Estimate;

/// The fewest reads for a prediction. The count of a Poisson process with this mean is within 10 %
/// of it in two of three cases.
pub const READS_MIN: u64 = 100;

/// The shortest time of counting for a prediction. Clients report their reads from memory with some
/// delay, at most once a second.
pub const COUNTED_MIN: Duration = Duration::from_secs(60);

/// A term is good enough if it saves this share of the messages that the best term saves.
pub const GOOD_SHARE: f64 = 0.95;

/// The finite terms, in seconds, for which there are predictions, apart from zero and the present
/// one.
const TERMS_SECONDS: [u64; 9] = [1, 2, 5, 10, 30, 60, 300, 600, 3600];

/// The workload that was counted in a volume, the predictions of the formula for several object
/// terms, and the recommended term.
#[derive(Debug, Clone, PartialEq)]
pub struct VolumeAdvice {
    /// The top of the volume.
    pub path: NodePath,
    /// Its present settings.
    pub settings: VolumeSettings,
    /// The measured workload.
    pub workload: MeasuredWorkload,
    /// The predictions in the order of their terms, or the reason why there are none.
    pub predictions: Result<Vec<Prediction>, NoPrediction>,
    /// The object term to use, if there are predictions.
    pub recommendation: Option<Recommendation>,
}

/// The workload of a volume as its leader counted it. Rates are per second, and of all clients
/// together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MeasuredWorkload {
    /// How long the leader has counted.
    pub counted_for: Duration,
    /// N: the sessions that have a lease on the volume now.
    pub clients: u64,
    /// Reads, from memory and from the servers (N R in the paper).
    pub reads: f64,
    /// The share of the reads that were answered from memory, from 0 to 1.
    pub from_memory: f64,
    /// Writes (N W in the paper).
    pub writes: f64,
    /// How many writes these were. The messages for recalls are uncertain by about one part in the
    /// square root of this number.
    pub writes_counted: u64,
    /// The mean number of recalls for each write. At most S - 1 in the paper.
    pub recalls_per_write: f64,
    /// The time from a request of this client to its answer.
    pub round_trip: Duration,
    /// The mean time from a recall to the consent; zero without consents. A write waits about so
    /// long for live holders.
    pub consent: Duration,
    /// Messages for consistency, requests and answers, as counted.
    pub messages: f64,
}

/// What the formula predicts for one object term.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Prediction {
    /// The object term.
    pub term: ObjectTerm,
    /// Reads that ask a server, and their answers, per second.
    pub reads: f64,
    /// Recalls and consents, per second.
    pub recalls: f64,
    /// Messages for volume leases, per second: heartbeats, acquisitions and holder reports, each
    /// with its answer. A heartbeat for several volumes counts in each.
    pub renewals: f64,
    /// The share of the reads that are answered from memory, from 0 to 1.
    pub from_memory: f64,
    /// Object leases at a time, in the leader's memory.
    pub object_leases: f64,
    /// The longest wait of a write for a holder that died: the lesser of both terms, with the
    /// margin. Zero if there are no object leases.
    pub write_delay: Duration,
}

impl Prediction {
    /// All messages for consistency, per second.
    pub fn messages(&self) -> f64 {
        self.reads + self.recalls + self.renewals
    }
}

/// The object term to use, and the numbers that say why.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Recommendation {
    /// Keep the present term.
    Keep {
        /// The present term.
        term: ObjectTerm,
        /// The share that it saves of the messages that the best term saves.
        saved: f64,
    },
    /// Use the shortest term that saves at least [`GOOD_SHARE`].
    Change {
        /// That term.
        term: ObjectTerm,
        /// The share that it saves of the messages that the best term saves.
        saved: f64,
        /// The same of the present term. Negative if it costs more than a term of zero.
        saved_now: f64,
    },
    /// Use a term of zero. No other term needs fewer messages: there are too few reads of a copy
    /// until it ends.
    Zero {
        /// The best of the other terms.
        best: ObjectTerm,
        /// The messages with that term, per second.
        messages: f64,
        /// The messages with a term of zero, per second.
        messages_zero: f64,
    },
}

/// Why there is no prediction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoPrediction {
    /// The leader has not counted for [`COUNTED_MIN`].
    TooShort,
    /// Fewer than [`READS_MIN`] reads were counted.
    TooFewReads {
        /// How many.
        counted: u64,
    },
    /// The object term is zero. Without leases, the leader does not see which clients share which
    /// objects.
    NoObjectLeases,
    /// The object term is adaptive, or follows the use of the volume: the leases have many terms.
    AdaptiveTerm,
    /// The leader does not track the object leases of the volume, so each write recalls all.
    NotTracked,
    /// Writes in the volume do more or less than recall leases: they wait for the end of leases, or
    /// bring the new value.
    WritesWait,
    /// Not all reads in the volume get a lease of the full term.
    SomeReadsGetLeases,
    /// The leader has recalled leases to keep the volume's lease limit.
    LeaseLimit,
    /// The object term is infinite, and fewer than [`READS_MIN`] leases were recalled, validated or
    /// renewed by a write. So nothing tells how popular the nodes are.
    FewLeasesEnded,
}

/// Advises on the object term of a volume. `stats` is what its leader has counted. `round_trip` is
/// the time from a request to its answer. The clients' clocks may drift by `drift`.
///
/// ```
/// use std::time::Duration;
/// use leasehold_protocol::advice::{NoPrediction, advise};
/// use leasehold_protocol::message::{VolumeCounts, VolumeStats};
/// use leasehold_protocol::path::NodePath;
/// use leasehold_protocol::time::DriftAllowance;
/// use leasehold_protocol::volume::VolumeSettings;
///
/// let stats = VolumeStats {
///     path: NodePath::root(),
///     settings: VolumeSettings::DEFAULT,
///     present_object_term: VolumeSettings::DEFAULT.object_term(),
///     counted_for: Duration::from_secs(3600),
///     volume_leases: 1,
///     object_leases: 1,
///     covering_sessions: 0,
///     lease_bytes: 0,
///     counts: VolumeCounts { reads_leased: 40, ..VolumeCounts::default() },
/// };
/// let advice = advise(&stats, Duration::from_millis(1), DriftAllowance::DEFAULT);
/// assert_eq!(advice.predictions, Err(NoPrediction::TooFewReads { counted: 40 }));
/// ```
pub fn advise(stats: &VolumeStats, round_trip: Duration, drift: DriftAllowance) -> VolumeAdvice {
    let settings = stats.settings;
    let predictions = check(stats).map(|()| {
        let estimate = Estimate::of(stats, round_trip, drift);
        let predict = |term| estimate.predict(term, write_delay(&settings, term, drift));
        terms(settings.object_term()).into_iter().map(predict).collect::<Vec<_>>()
    });
    let recommendation = predictions.as_ref().ok().and_then(|all| recommend(all, settings.object_term()));
    VolumeAdvice {
        path: stats.path.clone(),
        settings,
        workload: measured(stats, round_trip),
        predictions,
        recommendation,
    }
}

/// Whether the counters and the settings allow a prediction.
fn check(stats: &VolumeStats) -> Result<(), NoPrediction> {
    let settings = &stats.settings;
    match settings.object_term() {
        ObjectTerm::Zero => return Err(NoPrediction::NoObjectLeases),
        ObjectTerm::Adaptive { .. } | ObjectTerm::ByUse { .. } => return Err(NoPrediction::AdaptiveTerm),
        ObjectTerm::Fixed(_) | ObjectTerm::Infinite => {}
    }
    if settings.tracking() != Tracking::Objects {
        return Err(NoPrediction::NotTracked);
    }
    if settings.on_write() != OnWrite::Recall {
        return Err(NoPrediction::WritesWait);
    }
    if settings.grants() != GrantPolicy::All {
        return Err(NoPrediction::SomeReadsGetLeases);
    }
    if stats.counts.leases_recalled_for_room > 0 {
        return Err(NoPrediction::LeaseLimit);
    }
    let counted = reads(stats);
    if counted < READS_MIN {
        return Err(NoPrediction::TooFewReads { counted });
    }
    if stats.counted_for < COUNTED_MIN {
        return Err(NoPrediction::TooShort);
    }
    let counts = &stats.counts;
    let ended = [counts.recalls, counts.reads_validating, counts.writes_by_holders];
    let ended = ended.into_iter().fold(0, u64::saturating_add);
    if settings.object_term() == ObjectTerm::Infinite && ended < READS_MIN {
        return Err(NoPrediction::FewLeasesEnded);
    }
    Ok(())
}

fn reads(VolumeStats { counts, .. }: &VolumeStats) -> u64 {
    counts.reads_from_memory.saturating_add(counts.reads_leased).saturating_add(counts.reads_unleased)
}

fn measured(stats: &VolumeStats, round_trip: Duration) -> MeasuredWorkload {
    let (counts, reads) = (&stats.counts, reads(stats));
    let asked = counts.reads_leased + counts.reads_unleased;
    let exchanges = asked + counts.renewals_alone + counts.heartbeats_idle + counts.acquisitions + counts.report_parts;
    let per_second = |count: u64| ratio(count as f64, stats.counted_for.as_secs_f64());
    MeasuredWorkload {
        counted_for: stats.counted_for,
        clients: stats.volume_leases,
        reads: per_second(reads),
        from_memory: ratio(counts.reads_from_memory as f64, reads as f64),
        writes: per_second(counts.writes),
        writes_counted: counts.writes,
        recalls_per_write: ratio(counts.recalls as f64, counts.writes as f64),
        round_trip,
        consent: counts.consents.mean(),
        messages: 2.0 * per_second(exchanges) + per_second(counts.recalls) + per_second(counts.consents.count),
    }
}

/// The quotient, or zero if the divisor is not positive.
fn ratio(dividend: f64, divisor: f64) -> f64 {
    if divisor > 0.0 { dividend / divisor } else { 0.0 }
}

/// The terms to predict for, in order.
fn terms(present: ObjectTerm) -> Vec<ObjectTerm> {
    let fixed = TERMS_SECONDS.map(|seconds| ObjectTerm::Fixed(Duration::from_secs(seconds)));
    let mut all: Vec<ObjectTerm> = [ObjectTerm::Zero, ObjectTerm::Infinite, present].into_iter().chain(fixed).collect();
    all.sort_by_key(ObjectTerm::longest);
    all.dedup();
    all
}

/// The longest wait of a write for a holder that died, with this object term (T3).
fn write_delay(settings: &VolumeSettings, term: ObjectTerm, drift: DriftAllowance) -> Duration {
    if term == ObjectTerm::Zero {
        return Duration::ZERO;
    }
    let volume = settings.longest_term().saturating_add(settings.margin_with(drift));
    volume.min(settings.object_wait(term.longest(), drift))
}

fn recommend(predictions: &[Prediction], present: ObjectTerm) -> Option<Recommendation> {
    let zero = predictions.iter().find(|prediction| prediction.term == ObjectTerm::Zero)?.messages();
    let others = || predictions.iter().filter(|prediction| prediction.term != ObjectTerm::Zero);
    let best = others().min_by(|one, other| one.messages().total_cmp(&other.messages()))?;
    if zero <= best.messages() {
        let (best, messages) = (best.term, best.messages());
        return Some(Recommendation::Zero { best, messages, messages_zero: zero });
    }
    let saved = |prediction: &Prediction| (zero - prediction.messages()) / (zero - best.messages());
    let saved_now = others().find(|prediction| prediction.term == present).map(saved)?;
    if saved_now >= GOOD_SHARE {
        return Some(Recommendation::Keep { term: present, saved: saved_now });
    }
    let shortest = others().find(|prediction| saved(prediction) >= GOOD_SHARE)?;
    Some(Recommendation::Change { term: shortest.term, saved: saved(shortest), saved_now })
}

#[cfg(test)]
mod tests;
