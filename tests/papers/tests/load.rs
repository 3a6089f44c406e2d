//! Gray and Cheriton's curve: consistency messages by the term, counted and by the formula.
//! `tests/papers/README.md` explains the differences.

use std::time::Duration;

use leasehold_papers::{Counts, Workload, gray_cheriton::Load, run};

const TERMS_MS: [u64; 6] = [200, 1_000, 2_000, 5_000, 10_000, 30_000];

fn workload(sharing: usize, files: u64, term_ms: u64) -> Workload {
    let measured = Duration::from_secs(1000);
    Workload { measured, ..Workload::v_system(1, sharing, files, Duration::from_millis(term_ms)) }
}

/// For each term the counted messages and those of the formula, per second.
fn curve(sharing: usize, files: u64) -> Vec<(u64, f64, f64)> {
    let of = |term| {
        let workload = workload(sharing, files, term);
        (term, workload.per_second(run(workload).consistency()), workload.formula())
    };
    TERMS_MS.map(of).into()
}

fn falls(curve: &[(u64, f64, f64)]) -> bool {
    curve.windows(2).all(|pair| pair[1].1 < pair[0].1)
}

#[test]
fn the_load_falls_with_the_term_as_the_formula_says() {
    let curve = curve(1, 1);
    assert!(falls(&curve), "{curve:?}");
    for (term, counted, formula) in &curve {
        // Clients renew at half of the term, so that no read has to wait. That is about twice as
        // often as the first reads after its end. A comparison of clocks, a request and an answer,
        // comes at most once in seven tenths of a term.
        let compared = 2.0 * 20.0 / (*term as f64 / 1000.0 * 0.7);
        let range = 1.3 * formula..3.3 * formula + compared;
        assert!(range.contains(counted), "{term} ms: {counted} counted, {formula} by the formula");
    }
    // A renewal is promised what its horizon leaves: about half of the term and a tick. The client
    // asks again after two thirds of that. A lease in constant use is renewed every four tenths of
    // a term.
    let polling = Load::v_system(20.0, 1.0).extensions(0.0);
    let (_, at_ten, _) = curve[4];
    assert!(at_ten < 2.0 * 20.0 / (10.0 * 0.4), "{at_ten} at a term of ten seconds");
    // The paper's conclusion: ten seconds give most of the possible gain.
    assert!(at_ten < polling / 3.0, "{at_ten} at a term of ten seconds, {polling} if each read asks");
}

#[test]
fn with_a_long_term_what_is_left_is_what_asks_for_consent() {
    let curve = curve(10, 1);
    assert!(falls(&curve), "{curve:?}");
    let longest = workload(10, 1, 30_000);
    let Counts { renewals, acquisitions, lists, validations, recalls, .. } = run(longest);
    let rest = renewals + acquisitions + lists + validations;
    // A client that renews with its other requests compares clocks once in seven tenths of a term,
    // with a request and an answer.
    let compared = 2.0 * longest.clients as f64 * longest.measured.as_secs_f64() / (longest.term.as_secs_f64() * 0.7);
    let most = compared + recalls as f64 / 50.0;
    assert!((rest as f64) < most, "{rest} beside {recalls} recalls and consents, {compared} of them compare clocks");
    // One recall and one consent for each copy, where the paper has one multicast for all. But only
    // clients that have read since the last write are asked.
    let (recalled, approvals) = (longest.per_second(recalls), Load::v_system(20.0, 10.0).approvals());
    assert!((1.0..1.8).contains(&(recalled / approvals)), "{recalled} by {approvals}");
}

#[test]
fn one_volume_lease_costs_the_same_for_one_file_and_for_many() {
    let (one, eight) = (curve(1, 1), curve(1, 8));
    for ((term, of_one, _), (_, of_eight, formula)) in one.iter().zip(&eight) {
        assert!((of_eight / of_one - 1.0).abs() < 0.1, "{term} ms: {of_one} for one file, {of_eight} for eight");
        // The formula has a lease for each file, and extends each.
        let is_less = of_eight < formula;
        assert_eq!(is_less, *term >= 5_000, "{term} ms: {of_eight} counted, {formula} by the formula");
    }
}

#[test]
fn the_same_seed_is_the_same_run_and_another_is_another() {
    let workload = Workload { measured: Duration::from_secs(100), ..workload(10, 2, 1_000) };
    let counts = run(workload);
    assert_eq!(counts, run(workload));
    assert_ne!(counts, run(Workload { seed: 2, ..workload }));
}
