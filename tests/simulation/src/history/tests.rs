//! The checker finds each kind of violation, and accepts valid histories.

use super::{History, Outcome, Violation};

type Checked = Result<(), Violation<&'static str, &'static str>>;

const KEY: &str = "/key";

fn done(revision: u64) -> Outcome {
    Outcome::Done { revision }
}

/// Two writes in succession, and the operations that `and` adds.
fn two_writes(and: impl FnOnce(&mut History<&'static str, &'static str>)) -> Checked {
    let mut history = History::default();
    history.write(KEY, Some("one"), (10, 20), done(1));
    history.write(KEY, Some("two"), (30, 40), done(2));
    and(&mut history);
    history.check()
}

#[test]
fn reads_that_overlap_a_write_may_see_it_or_not() {
    let checked = two_writes(|history| {
        history.read(KEY, Some(("one", 1)), (35, 50));
        history.read(KEY, Some(("two", 2)), (31, 32));
        history.read(KEY, Some(("one", 1)), (29, 31));
        history.read(KEY, None, (0, 15));
    });
    assert_eq!(checked, Err(stale_one((35, 50), (31, 32))), "one that began after another had seen the new value");
    let checked = two_writes(|history| {
        history.read(KEY, Some(("one", 1)), (35, 50));
        history.read(KEY, Some(("two", 2)), (31, 36));
        history.read(KEY, None, (0, 15));
    });
    assert_eq!(checked, Ok(()));
}

/// The violation of a read that found the first value after another read had seen the second.
fn stale_one(span: (u64, u64), seen: (u64, u64)) -> Violation<&'static str, &'static str> {
    let missed = super::Operation::Read(super::Read { found: Some(("two", 2)), span: seen });
    Violation::Stale { key: KEY, read: super::Read { found: Some(("one", 1)), span }, missed }
}

#[test]
fn a_stale_read_is_found() {
    let checked = two_writes(|history| {
        history.read(KEY, Some(("two", 2)), (41, 42));
        history.read(KEY, Some(("one", 1)), (43, 44));
    });
    assert!(matches!(checked, Err(Violation::Stale { .. })), "{checked:?}");
}

#[test]
fn a_stale_absence_is_found() {
    let checked = two_writes(|history| {
        history.read(KEY, Some(("two", 2)), (41, 42));
        history.read(KEY, None, (43, 44));
    });
    assert!(matches!(checked, Err(Violation::Stale { .. })), "{checked:?}");
    let checked = two_writes(|history| {
        history.write(KEY, None, (50, 60), done(3));
        history.read(KEY, None, (43, 49));
    });
    assert!(matches!(checked, Err(Violation::Lost { .. })), "before it was removed: {checked:?}");
    let checked = two_writes(|history| {
        history.write(KEY, None, (50, 60), done(3));
        history.read(KEY, None, (43, 51));
        history.read(KEY, None, (70, 71));
    });
    assert_eq!(checked, Ok(()));
}

#[test]
fn a_value_read_after_it_was_removed_is_found() {
    let checked = two_writes(|history| {
        history.write(KEY, None, (50, 60), done(3));
        history.read(KEY, Some(("two", 2)), (61, 62));
    });
    assert!(matches!(checked, Err(Violation::Lost { .. })), "{checked:?}");
}

#[test]
fn a_lost_write_is_found() {
    let checked = two_writes(|history| {
        history.read(KEY, Some(("one", 1)), (41, 42));
        history.read(KEY, Some(("one", 1)), (51, 52));
    });
    assert!(matches!(checked, Err(Violation::Lost { .. })), "{checked:?}");
}

#[test]
fn a_refused_write_that_took_effect_is_found() {
    let checked = two_writes(|history| {
        history.write(KEY, Some("three"), (50, 60), Outcome::Refused);
        history.read(KEY, Some(("three", 3)), (55, 70));
    });
    assert!(matches!(checked, Err(Violation::Refused { .. })), "{checked:?}");
}

#[test]
fn a_write_that_took_effect_twice_is_found() {
    let checked = two_writes(|history| history.read(KEY, Some(("one", 3)), (41, 42)));
    assert!(matches!(checked, Err(Violation::Twice { one: 1, other: 3, .. })), "{checked:?}");
    let checked = two_writes(|history| {
        history.write(KEY, Some("three"), (50, 60), Outcome::Unknown);
        history.read(KEY, Some(("three", 3)), (61, 62));
        history.read(KEY, Some(("three", 5)), (71, 72));
    });
    assert!(matches!(checked, Err(Violation::Twice { one: 3, other: 5, .. })), "{checked:?}");
}

#[test]
fn a_read_from_the_future_is_found() {
    let checked = two_writes(|history| history.read(KEY, Some(("two", 2)), (28, 29)));
    assert!(matches!(checked, Err(Violation::Future { .. })), "{checked:?}");
}

#[test]
fn a_value_that_nobody_wrote_is_found() {
    let checked = two_writes(|history| history.read(KEY, Some(("three", 3)), (28, 29)));
    assert!(matches!(checked, Err(Violation::Unwritten { .. })), "{checked:?}");
}

#[test]
fn a_write_of_unknown_outcome_may_take_effect_late_or_never() {
    for seen_at in [None, Some(55), Some(1000)] {
        let checked = two_writes(|history| {
            history.write(KEY, Some("three"), (50, 51), Outcome::Unknown);
            history.read(KEY, Some(("two", 2)), (52, 54));
            if let Some(at) = seen_at {
                history.read(KEY, Some(("three", 3)), (at, at + 1));
            }
        });
        assert_eq!(checked, Ok(()), "{seen_at:?}");
    }
    let checked = two_writes(|history| {
        history.write(KEY, Some("three"), (50, 51), Outcome::Unknown);
        history.read(KEY, Some(("three", 3)), (52, 54));
        history.read(KEY, Some(("two", 2)), (55, 56));
    });
    assert!(matches!(checked, Err(Violation::Stale { .. })), "once seen it is there: {checked:?}");
}

#[test]
fn removal_of_unknown_outcome_excuses_later_absence() {
    let absent = |span: (u64, u64)| {
        two_writes(|history| {
            history.write(KEY, None, (50, 51), Outcome::Unknown);
            history.read(KEY, None, span);
        })
    };
    assert_eq!(absent((60, 61)), Ok(()));
    assert!(matches!(absent((41, 49)), Err(Violation::Lost { .. })));
}

#[test]
fn revisions_that_go_back_are_found_over_all_keys() {
    let checked = two_writes(|history| history.write("/other", Some("late"), (50, 60), done(0)));
    assert!(matches!(checked, Err(Violation::Backwards { key: "/other", .. })), "{checked:?}");
    let checked = two_writes(|history| history.write("/other", Some("late"), (35, 60), done(3)));
    assert_eq!(checked, Ok(()));
}

#[test]
fn two_writes_at_one_revision_are_found() {
    let checked = two_writes(|history| history.write(KEY, Some("three"), (30, 40), done(2)));
    assert!(matches!(checked, Err(Violation::SameRevision { .. })), "{checked:?}");
}

#[test]
fn a_value_written_twice_by_the_test_is_its_own_mistake() {
    let checked = two_writes(|history| history.write(KEY, Some("two"), (50, 60), Outcome::Unknown));
    assert!(matches!(checked, Err(Violation::NotUnique { .. })), "{checked:?}");
}

/// The slow reference: it tries all orders of a few operations, at all possible moments.
mod twin {
    use super::{super::Outcome, History, KEY};

    /// One operation: the value written (0 removes) or found, and its span.
    #[derive(Debug, Clone, Copy)]
    struct Op {
        is_write: bool,
        value: u64,
        revision: u64,
        span: (u64, u64),
    }

    /// Whether some order of moments fits the operations. Tries one after the other.
    fn fits(rest: &mut Vec<Op>, now: u64, current: (u64, u64), last: u64) -> bool {
        if rest.is_empty() {
            return true;
        }
        for at in 0..rest.len() {
            let op = rest[at];
            let moment = now.max(op.span.0);
            let is_next = if op.is_write { op.revision > last } else { current == (op.value, op.revision) };
            if moment > op.span.1 || !is_next {
                continue;
            }
            rest.remove(at);
            let (after, last) = if op.is_write { (seen(op), op.revision) } else { (current, last) };
            let found = fits(rest, moment, after, last);
            rest.insert(at, op);
            if found {
                return true;
            }
        }
        false
    }

    /// What a read finds after a write. Absence has no revision.
    fn seen(op: Op) -> (u64, u64) {
        if op.value == 0 { (0, 0) } else { (op.value, op.revision) }
    }

    #[test]
    fn the_quick_check_agrees_with_trying_all_orders() {
        let mut rng = leasehold_model::rng::Rng::new(7);
        let (mut good, mut bad) = (0, 0);
        for _ in 0..20_000 {
            let mut ops = Vec::new();
            let span = |rng: &mut leasehold_model::rng::Rng| {
                let begun = rng.below(12);
                (begun, begun + rng.below(6))
            };
            let writes = 1 + rng.below(3);
            for revision in 1..=writes {
                let value = if rng.chance(300) { 0 } else { revision };
                ops.push(Op { is_write: true, value, revision, span: span(&mut rng) });
            }
            for _ in 0..rng.below(4) {
                let of = rng.index(ops.len());
                let (value, revision) = if rng.chance(200) { (0, 0) } else { seen(ops[of]) };
                ops.push(Op { is_write: false, value, revision, span: span(&mut rng) });
            }
            let mut history = History::default();
            for op in &ops {
                let value = (op.value > 0).then_some(op.value);
                if op.is_write {
                    history.write(KEY, value, op.span, Outcome::Done { revision: op.revision });
                } else {
                    history.read(KEY, value.map(|value| (value, op.revision)), op.span);
                }
            }
            let expected = fits(&mut ops.clone(), 0, (0, 0), 0);
            assert_eq!(history.check().is_ok(), expected, "{ops:?}: {:?}", history.check());
            if expected { good += 1 } else { bad += 1 }
        }
        assert!(good > 1000 && bad > 1000, "{good} that fit, {bad} that do not");
    }
}
