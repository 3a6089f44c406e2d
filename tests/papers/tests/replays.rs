//! The results of papers, replayed by the rules, and the pages that show them. Expected values come
//! from the papers' formulas.

use std::{fs, path::Path, time::Duration};

use leasehold_papers::{
    Workload, advise, by_use, chubby,
    gray_cheriton::Load,
    popular,
    replay_1989::{self, CONSISTENCY_SHARE, Point, SHARING, point_of},
    tiers, updates, yin,
};
use leasehold_protocol::lease_policy::{GrantPolicy, ObjectTerm};

/// The file in docs/papers has this text: it was made by this version.
fn page_has(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/papers").join(name);
    let page = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(page.contains(text), "docs/papers/{name} is out of date; expected\n{text}");
}

fn is_near(counted: f64, expected: f64, share: f64) -> bool {
    (counted - expected).abs() <= expected * share
}

fn at(points: &[Point], sharing: usize, term: ObjectTerm) -> &Point {
    points.iter().find(|point| point.sharing == sharing && point.term == term).expect("it was run")
}

/// All messages, in shares of all messages with a term of zero. Those that do not serve consistency
/// are the same with any term.
fn total(point: &Point, polling: &Point) -> f64 {
    1.0 - CONSISTENCY_SHARE + CONSISTENCY_SHARE * point.counted / polling.counted
}

#[test]
fn gray_and_cheriton_1989() {
    let points = replay_1989::points(1, replay_1989::MEASURED);
    for point in &points {
        assert!(is_near(point.counted, point.rules, 0.05), "{point:?}");
        if let Some(expected) = point.rules_delay {
            assert!(is_near(point.counted_delay, expected, 0.10), "{point:?}");
        }
        // The rules ask no more than the paper's server, apart from what a multicast would save.
        let unicast = if point.sharing > 1 { 2.0 * (1.0 - 1.0 / point.sharing as f64) } else { 1.0 };
        assert!(point.counted <= point.paper * unicast * 1.05, "{point:?}");
        assert!(point.counted_delay <= point.paper_delay * 1.05, "{point:?}");
    }
    let ten = ObjectTerm::Fixed(Duration::from_secs(10));
    for sharing in SHARING {
        let [polling, ten, infinite] =
            [ObjectTerm::Zero, ten, ObjectTerm::Infinite].map(|term| at(&points, sharing, term));
        // "A 10 s term ... is within 5 % of what an infinite term achieves."
        assert!(total(ten, polling) <= total(infinite, polling) * 1.05, "S = {sharing}: {ten:?} {infinite:?}");
        // "... cuts consistency traffic to 10 % of a zero term's", if nothing is shared.
        let load = Load::v_system(20.0, sharing as f64);
        let share = load.messages(Workload::file_leases(1, sharing, ten.term).copy_term().client);
        assert!(ten.counted / polling.counted <= share / load.extensions(0.0) * 1.05, "S = {sharing}: {ten:?}");
    }
    page_has("gray-cheriton-1989.md", &replay_1989::table(&points));
    page_has("gray-cheriton-1989.svg", &replay_1989::plot(&points).svg());
    page_has("trade-off.svg", &replay_1989::trade_off(&points).svg());
}

/// Without writes, the paper's own formula holds: nothing but the end of a term ends a lease.
#[test]
fn formula_of_1989_holds_for_reads_alone() {
    for term in replay_1989::terms() {
        let reads = Workload { writes: 0.0, ..Workload::file_leases(1, 1, term) };
        let point = point_of(&reads);
        // A session without other requests is renewed at half of its term, 10 min.
        let sessions = if term == ObjectTerm::Infinite { 2.0 * 20.0 / 300.0 } else { 0.0 };
        assert!(is_near(point.counted, point.paper + sessions, 0.05), "{point:?}");
        assert!(is_near(point.counted_delay, point.paper_delay, 0.10), "{point:?}");
    }
}

/// From what the leader counts with one object term, `leasehold advise` predicts the messages with
/// each other term.
#[test]
fn advice_is_within_a_tenth_of_what_is_then_counted() {
    let cells = advise::cells(1, advise::MEASURED);
    let (measured, predicted) = (advise::terms().len() - 1, advise::terms().len());
    assert_eq!(cells.len(), advise::WORKLOADS * measured * predicted, "a prediction for each pair of terms");
    for cell in &cells {
        assert!(cell.is_within(0.10), "{cell:?}");
        // Each kind of message that is a part worth naming is predicted as well.
        for (predicted, counted) in cell.parts().into_iter().filter(|(_, counted)| *counted > cell.polling * 0.1) {
            assert!(is_near(predicted, counted, 0.10), "{cell:?}");
        }
        let off = cell.predicted.from_memory - cell.from_memory;
        assert!(off.abs() < 0.02, "{off} more reads from memory: {cell:?}");
    }
    page_has("gray-cheriton-1989.md", &advise::summary(&cells));
}

/// The gaps that clients report tell how popular the copies are.
#[test]
fn advice_for_uneven_use_is_within_a_tenth() {
    let cells = advise::uneven_cells(1, advise::MEASURED);
    let (measured, predicted) = (advise::terms().len() - 1, advise::terms().len());
    // Without writes, no lease of an infinite term ends, so there is no prediction from it.
    let from = advise::UNEVEN_WORKLOADS * measured - 1;
    assert_eq!(cells.len(), from * predicted, "a prediction for each pair of terms");
    let is_told = |cell: &advise::Cell| cell.from != ObjectTerm::Infinite || cell.workload != advise::UNWRITTEN;
    for cell in &cells {
        assert!(cell.is_within(0.10) && is_told(cell), "{cell:?}");
    }
    page_has("gray-cheriton-1989.md", &advise::summary(&cells));
}

#[test]
fn peak_of_a_popular_object_is_that_of_its_live_holders() {
    let runs = popular::runs(1);
    let [callbacks, leases] = runs;
    // A recall and a consent for each client but the writer, which is live.
    assert_eq!(callbacks.peak, 2 * (popular::CLIENTS as u64 - 1));
    assert_eq!(leases.peak, 2 * (popular::LIVE as u64 - 1));
    assert!(leases.peak as f64 <= callbacks.peak as f64 * 0.06, "{runs:?}");
    page_has("yin-1999.md", &popular::table(&runs));
}

/// 93 % of the paper's requests are KeepAlives.
#[test]
fn heartbeats_are_few_in_a_cell_of_chubby() {
    let [_, on_demand] = chubby::Policy::ALL;
    let run = chubby::run(1, on_demand, chubby::CLIENTS, chubby::MEASURED);
    assert!(run.share() <= 0.10, "{run:?}");
    // The cell is that of the paper: as many cached entries, and as many other requests.
    assert!(run.entries >= 230_000, "{run:?}");
    let others = run.requests() - run.heartbeats();
    assert!(others >= chubby::REQUESTS * (1.0 - chubby::KEEP_ALIVES), "{run:?}");
    page_has("chubby-2006.md", &chubby::row(&run));
}

/// The bounds on the shares are those that the paper claims: 30 to 40 % fewer messages.
#[test]
fn volume_leases_need_fewer_messages_at_the_same_bound() {
    let all = yin::all(1);
    for visits in &all {
        for run in [visits.polling, visits.callback] {
            assert!(is_near(run.rules as f64, run.paper as f64, 0.005), "{run:?}");
        }
        for at in &visits.bounded {
            assert!(is_near(at.lease.rules as f64, at.lease.paper as f64, 0.005), "{at:?}");
            // Recalls from sessions whose copies the leader does not know, and their reports.
            assert!(at.delayed.rules >= at.delayed.paper, "{at:?}");
            assert!(is_near(at.delayed.rules as f64, at.delayed.paper as f64, 0.08), "{at:?}");
            let most = match (visits.reads_per_visit, at.seconds) {
                (2 | 4, _) => 0.90,
                (8, 10) => 0.66,
                _ => 0.62,
            };
            assert!(at.share() <= most, "{}: {at:?}", visits.reads_per_visit);
        }
    }
    page_has("yin-1999.md", &yin::tables(&all));
    page_has("yin-1999.svg", &yin::plot(&all).svg());
}

#[test]
fn two_tiers_beat_a_fixed_term_with_as_many_leases() {
    let runs = tiers::runs(1, tiers::MEASURED);
    let (fixed, others): (Vec<&tiers::Run>, Vec<&tiers::Run>) =
        runs.iter().partition(|run| run.policy.fixed_term().is_some());
    for run in &fixed {
        let term = run.policy.fixed_term().expect("it is fixed").as_secs_f64();
        let (misses, leases) = tiers::formula(term);
        assert!(is_near(run.misses(), misses, 0.05), "{run:?}: {} misses, {misses} expected", run.misses());
        assert!(is_near(run.leases, leases, 0.05), "{run:?}: {leases} leases expected");
    }
    for run in others {
        let expected = tiers::messages_of_fixed_term(run.leases);
        match run.policy.grants {
            GrantPolicy::Returning { .. } => assert!(run.messages() < expected * 0.95, "{run:?}: {expected} if fixed"),
            _ => assert!(is_near(run.messages(), expected, 0.03), "{run:?}: {expected} if fixed"),
        }
    }
    page_has("tiers.md", &tiers::table(&runs));
    page_has("tiers.svg", &tiers::plot(&runs).svg());
}

/// Expected: the formulas on the page. Renewals ride on reads that ask, so fewer of those leave
/// more heartbeats. The differences of messages are compared where these do not weigh.
#[test]
fn updates_make_first_reads_after_writes_hits() {
    let runs = updates::runs(1, updates::MEASURED);
    for [recall, update] in &runs {
        let read_between = updates::READS / (updates::READS + recall.writes);
        let unread = 1.0 - read_between;
        assert!(is_near(recall.from_memory, read_between, 0.03), "{recall:?}");
        assert!(is_near(update.from_memory, 1.0 - unread * unread, 0.02), "{update:?}");
        let of_a_client = 3.0 * read_between - 4.0 * read_between * read_between;
        let difference = updates::READERS as f64 * recall.writes * of_a_client;
        let expected = recall.messages + difference;
        assert!(is_near(update.messages, expected, 0.05), "{expected}: {recall:?} {update:?}");
        let is_mostly_read = read_between > 0.75;
        assert_eq!(update.messages < recall.messages, is_mostly_read, "{recall:?} {update:?}");
    }
    page_has("updates.md", &updates::table(&runs));
}

/// A term that follows the use is near the best fixed term in each part of the mix, and better than
/// all of them in the whole mix. It has to see a part before it follows.
#[test]
fn term_by_use_beats_fixed_terms_when_the_use_changes() {
    let runs = by_use::runs(1);
    let (fixed, by_use): (Vec<&by_use::UseRun>, Vec<&by_use::UseRun>) =
        runs.iter().partition(|run| run.term != by_use::BY_USE);
    let [by_use] = by_use[..] else { panic!("one term by use: {runs:?}") };
    for (part, (name, ..)) in by_use::PARTS.iter().enumerate().take(2) {
        let best = fixed.iter().map(|run| run.messages[part]).fold(f64::INFINITY, f64::min);
        let worst = fixed.iter().map(|run| run.messages[part]).fold(0.0, f64::max);
        assert!(by_use.messages[part] <= best * 1.15, "{name}: {best} {by_use:?}");
        assert!(worst > best * 3.0, "{name}: the choice matters: {runs:?}");
    }
    for run in fixed {
        assert!(by_use.all() <= run.all() * 0.75, "{run:?} {by_use:?}");
    }
    page_has("tiers.md", &by_use::table(&runs));
}
