//! Expected values come from the formula of Gray and Cheriton, or from cycles computed by hand.

use super::*;
use crate::message::{ReadGaps, VolumeCounts};

const HOUR: u64 = 3600;
const NO_ROUND_TRIP: Duration = Duration::ZERO;

fn exact() -> DriftAllowance {
    DriftAllowance::from_ppm(0).expect("valid")
}

fn seconds(seconds: u64) -> ObjectTerm {
    ObjectTerm::Fixed(Duration::from_secs(seconds))
}

/// Settings with this object term, and volume leases of ten seconds.
fn settings(object_term: ObjectTerm) -> VolumeSettings {
    let margin = Duration::from_millis(100);
    VolumeSettings::new(Duration::from_secs(10), object_term, margin, Tracking::Objects, exact()).expect("valid")
}

fn stats(object_term: ObjectTerm, counts: VolumeCounts) -> VolumeStats {
    VolumeStats {
        present_object_term: object_term,
        path: NodePath::root(),
        settings: settings(object_term),
        counted_for: Duration::from_secs(HOUR),
        volume_leases: 20,
        object_leases: 20,
        covering_sessions: 0,
        lease_bytes: 0,
        counts,
    }
}

fn advice(stats: &VolumeStats) -> VolumeAdvice {
    advise(stats, NO_ROUND_TRIP, exact())
}

fn predicted(advice: &VolumeAdvice, term: ObjectTerm) -> Prediction {
    let all = advice.predictions.as_ref().expect("enough was counted");
    *all.iter().find(|prediction| prediction.term == term).unwrap_or_else(|| panic!("no prediction for {term}"))
}

fn assert_near(got: f64, expected: f64) {
    assert!((got - expected).abs() <= expected.abs() * 0.001 + 1e-9, "{got}, expected {expected}");
}

/// What a leader counts in an hour of Gray and Cheriton's load without writes: 20 clients read
/// 0.864 times a second, each its own file, with leases of `term` seconds.
fn reads_alone(term: u64) -> VolumeStats {
    let reads = 20.0 * 0.864 * HOUR as f64;
    let asking = reads / (1.0 + 0.864 * term as f64);
    let counts = VolumeCounts {
        reads_from_memory: (reads - asking) as u64,
        reads_leased: asking as u64,
        reads_validating: asking as u64,
        reads_not_modified: asking as u64,
        ..VolumeCounts::default()
    };
    stats(seconds(term), counts)
}

#[test]
fn reads_alone_follow_the_formula_of_1989() {
    for measured in [1, 10, 60] {
        let advice = advice(&reads_alone(measured));
        for term in [1, 2, 5, 10, 30, 3600] {
            let expected = 2.0 * 20.0 * 0.864 / (1.0 + 0.864 * term as f64);
            assert_near(predicted(&advice, seconds(term)).messages(), expected);
        }
        assert_near(predicted(&advice, ObjectTerm::Zero).messages(), 2.0 * 20.0 * 0.864);
        assert!(predicted(&advice, ObjectTerm::Infinite).messages() < 1e-6);
        assert_near(predicted(&advice, ObjectTerm::Infinite).object_leases, 20.0);
    }
}

/// Ten readers and one writer of one object, which never reads. A reader has a copy for 10 s, the
/// mean time between two writes, and no copy for 2 s, the mean time until its next read.
#[test]
fn infinite_terms_cost_recalls_and_fetches() {
    let cycle = LeaseCycle { reads: 0.5, own_writes: 0.0, other_writes: 0.1 };
    let rates = cycle.rates(CopyTerm { client: f64::INFINITY, server: f64::INFINITY });
    assert_near(rates.recalls, 1.0 / 12.0);
    assert_near(rates.fetches, 1.0 / 12.0);
    assert_near(rates.held, 10.0 / 12.0);
    assert_eq!(rates.validations, 0.0);

    let recalled = 10 * HOUR / 12;
    let counts = VolumeCounts {
        reads_from_memory: 5 * HOUR - recalled,
        reads_leased: recalled,
        recalls: recalled,
        writes: HOUR / 10,
        object_lease_ms: 1000 * HOUR * 100 / 12,
        ..VolumeCounts::default()
    };
    let advice = advice(&stats(ObjectTerm::Infinite, counts));
    let infinite = predicted(&advice, ObjectTerm::Infinite);
    assert_near(infinite.recalls, 2.0 * 10.0 / 12.0);
    assert_near(infinite.reads, 2.0 * 10.0 / 12.0);
    assert_near(infinite.from_memory, 5.0 / 6.0);
    assert_near(infinite.object_leases, 100.0 / 12.0);
    assert_near(predicted(&advice, ObjectTerm::Zero).messages(), 2.0 * 5.0);
    assert_near(advice.workload.recalls_per_write, 10.0 * 10.0 / 12.0);
}

/// With a term far below the time between writes, a lease that the client no longer uses is still
/// recalled: for the margin of 0.1 s here, beside 1 s of use. The client reads so rarely that it
/// has no other leases.
#[test]
fn lease_in_its_margin_is_recalled_too() {
    let cycle = LeaseCycle { reads: 1e-6, own_writes: 0.0, other_writes: 1e-3 };
    let rates = |server| cycle.rates(CopyTerm { client: 1.0, server });
    assert_near(rates(1.1).recalls / rates(1.0).recalls, 1.1);
    let term = CopyTerm::of(&settings(seconds(1)), seconds(1), Duration::from_millis(20), exact());
    assert_eq!(term, CopyTerm { client: 0.98, server: 1.1 });
}

#[test]
fn own_write_brings_a_lease_without_a_recall() {
    let cycle = LeaseCycle { reads: 0.0, own_writes: 0.5, other_writes: 0.0 };
    let CycleRates { validations, fetches, recalls, held } = cycle.rates(CopyTerm { client: 2.0, server: 2.0 });
    assert_eq!((validations, fetches, recalls), (0.0, 0.0, 0.0));
    // The lease of 2 s ends before the next write with the probability 1/e.
    assert_near(held, 1.0 - (-1.0_f64).exp());
}

#[test]
fn write_waits_for_the_lesser_term_and_the_margin() {
    let advice = advice(&reads_alone(10));
    let delay = |term| predicted(&advice, term).write_delay;
    assert_eq!(delay(ObjectTerm::Zero), Duration::ZERO);
    assert_eq!(delay(seconds(2)), Duration::from_millis(2100));
    assert_eq!(delay(seconds(3600)), Duration::from_millis(10_100), "the volume lease ends");
    assert_eq!(delay(ObjectTerm::Infinite), Duration::from_millis(10_100));
}

#[test]
fn term_that_saves_enough_is_kept_and_shorter_one_is_replaced() {
    // By the formula, a term of t saves R t / (1 + R t) of what an infinite one saves.
    let saved = |term: f64| 0.864 * term / (1.0 + 0.864 * term);
    let Some(Recommendation::Keep { term, saved: share }) = advice(&reads_alone(60)).recommendation else {
        panic!("a minute saves {}", saved(60.0))
    };
    assert_eq!(term, seconds(60));
    assert_near(share, saved(60.0));
    let Some(Recommendation::Change { term, saved: share, saved_now }) = advice(&reads_alone(5)).recommendation else {
        panic!("5 s save {}", saved(5.0))
    };
    assert_eq!(term, seconds(30), "10 s save {}, 30 s save {}", saved(10.0), saved(30.0));
    assert_near(share, saved(30.0));
    assert_near(saved_now, saved(5.0));
}

/// Each read is followed by ten writes, so each read fetches, and each copy costs a recall.
#[test]
fn copies_that_are_recalled_unread_cost_more_than_they_save() {
    let counts = VolumeCounts {
        reads_leased: HOUR,
        recalls: HOUR * 10 / 11,
        writes: 10 * HOUR,
        reads_from_memory: HOUR / 10,
        object_lease_ms: 100 * HOUR,
        ..VolumeCounts::default()
    };
    let advice = advice(&stats(seconds(3600), counts));
    let Some(Recommendation::Zero { messages, messages_zero, .. }) = advice.recommendation else {
        panic!("{:?}", advice.recommendation)
    };
    assert_near(messages_zero, 2.0 * 1.1);
    assert!(messages > messages_zero, "{advice:?}");
}

#[test]
fn too_few_counts_and_other_policies_give_no_prediction() {
    let enough = reads_alone(10);
    let reason = |stats: &VolumeStats| advice(stats).predictions.expect_err("no prediction");
    let policy = |term, on_write, grants| VolumeStats {
        settings: enough.settings.with_policy(term, on_write, grants).expect("valid"),
        ..enough.clone()
    };
    let few = VolumeCounts { reads_leased: 99, ..VolumeCounts::default() };
    assert_eq!(reason(&stats(seconds(10), few)), NoPrediction::TooFewReads { counted: 99 });
    let short = VolumeStats { counted_for: Duration::from_secs(59), ..enough.clone() };
    assert_eq!(reason(&short), NoPrediction::TooShort);
    let (recall, all) = (OnWrite::Recall, GrantPolicy::All);
    assert_eq!(reason(&policy(ObjectTerm::Zero, recall, all)), NoPrediction::NoObjectLeases);
    let (least, most) = (Duration::from_secs(1), Duration::from_secs(10));
    let adaptive = ObjectTerm::Adaptive { percent: 20, least, most };
    assert_eq!(reason(&policy(adaptive, recall, all)), NoPrediction::AdaptiveTerm);
    assert_eq!(reason(&policy(seconds(10), OnWrite::Wait, all)), NoPrediction::WritesWait);
    assert_eq!(reason(&policy(seconds(10), recall, GrantPolicy::OnRequest)), NoPrediction::SomeReadsGetLeases);
    let infinite = VolumeStats {
        counts: VolumeCounts { reads_leased: 100, recalls: 50, writes_by_holders: 49, ..VolumeCounts::default() },
        ..policy(ObjectTerm::Infinite, recall, all)
    };
    assert_eq!(reason(&infinite), NoPrediction::FewLeasesEnded);
    let covering = VolumeStats { settings: enough.settings.with_tracking(Tracking::Covering), ..enough.clone() };
    assert_eq!(reason(&covering), NoPrediction::NotTracked);
    assert_eq!(advice(&covering).recommendation, None);
}

/// Clients send the counts, and may send any.
#[test]
fn absurd_counts_give_finite_predictions() {
    let most = u64::MAX;
    let absurd = [
        (most, 0, 0, 0, 0),
        (0, most, 0, 0, 0),
        (100, 0, most, most, most),
        (0, 100, 100, most, 0),
        (most, most, most, most, most),
        (0, 100, 100, 0, 0),
    ];
    let with_gaps = absurd.into_iter().flat_map(|counts| [0, 100, most].map(|gaps| (counts, gaps)));
    for ((from_memory, leased, validating, recalls, leases), gaps) in with_gaps {
        let counts = VolumeCounts {
            reads_from_memory: from_memory,
            reads_leased: leased,
            reads_validating: validating,
            recalls,
            writes_by_holders: recalls,
            object_lease_ms: leases,
            read_gaps: ReadGaps { classes: [gaps; ReadGaps::CLASSES] },
            ..VolumeCounts::default()
        };
        for term in [seconds(1), seconds(3600), ObjectTerm::Infinite] {
            let advice = advise(&stats(term, counts.clone()), Duration::from_secs(5), exact());
            if term == ObjectTerm::Infinite && recalls == 0 && validating == 0 {
                assert_eq!(advice.predictions, Err(NoPrediction::FewLeasesEnded));
                continue;
            }
            for prediction in advice.predictions.expect("enough reads") {
                assert!(prediction.messages().is_finite() && prediction.messages() >= 0.0, "{prediction:?}");
                assert!((0.0..=1.0).contains(&prediction.from_memory), "{prediction:?}");
            }
        }
    }
}
