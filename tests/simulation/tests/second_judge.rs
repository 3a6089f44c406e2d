//! A second, independent judge of linearizability checks histories of the simulator: `todc-utils`,
//! the search of Wing and Gong with Lowe's memory
//! (docs/adr/0012-a-second-judge-of-linearizability.md). It shares no code with
//! `leasehold_simulation::history`. Both must agree, on histories of sound rules and of rules with
//! a mistake.
//!
//! Each key is its own register: an object is linearizable if each of its keys is (Herlihy and Wing
//! 1990, locality). Only the oracle judges lists of children, and comparisons of transactions.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_model::threads::{processors, spread};
use leasehold_protocol::planted::Bug;
use leasehold_simulation::{
    Plan,
    history::{History, Outcome, Read, Span, Violation, Write},
    run,
};
use todc_utils::{Action, History as Actions, Specification, WGLChecker};

type Value = Vec<u8>;
type Observations = History<&'static str, Value>;

/// An operation on a register.
#[derive(Debug, Clone)]
enum Operation {
    /// The value, none for a removal; its revision; the preceding revision on this key. Without the
    /// last one the search would take writes too early, and notice much later that others no longer
    /// fit.
    Write { value: Option<Value>, revision: u64, before: u64 },
    /// The value and the revision of its write; none if there is no value.
    Read(Option<(Value, u64)>),
}

/// A register whose writes come in the order of their revisions.
struct Register;

impl Specification for Register {
    /// The value, and the revision of the last write.
    type State = (Option<Value>, u64);
    type Operation = Operation;

    fn init() -> Self::State {
        (None, 0)
    }

    fn apply(operation: &Operation, state: &Self::State) -> (bool, Self::State) {
        let (value, last) = state;
        match operation {
            Operation::Write { value, revision, before } => (before == last, (value.clone(), *revision)),
            Operation::Read(Some((found, revision))) => {
                (value.as_ref() == Some(found) && revision == last, state.clone())
            }
            Operation::Read(None) => (value.is_none(), state.clone()),
        }
    }
}

/// The second judge leaves out keys with more open operations than this. The search takes time and
/// memory that are exponential in their number: more than 16 GB with 33 (seed 37).
const OPEN_MAX: usize = 20;

/// The operations on one key.
#[derive(Debug, Clone, Default)]
struct OfKey {
    writes: Vec<Write<Value>>,
    reads: Vec<Read<Value>>,
}

impl OfKey {
    fn all(observations: &Observations) -> Vec<OfKey> {
        let own =
            |(_, writes, reads): (_, &[_], &[_])| OfKey { writes: writes.to_vec(), reads: reads.to_vec() }.decidable();
        observations.keys().map(own).collect()
    }

    /// The violation that our own judge finds.
    fn violation(&self) -> Option<Violation<&'static str, Value>> {
        let mut observations = Observations::default();
        for Write { value, span, outcome, .. } in self.writes.clone() {
            observations.write("/key", value, span, outcome);
        }
        for Read { found, span } in self.reads.clone() {
            observations.read("/key", found, span);
        }
        observations.check().err()
    }

    /// The second judge's verdict. A write of unknown outcome whose value was seen has the revision
    /// that the read found, and an open end. If no read saw it, nothing depends on it.
    fn is_linearizable(&self) -> bool {
        let seen: BTreeMap<&Value, u64> =
            self.reads.iter().filter_map(|read| read.found.as_ref()).map(|(value, at)| (value, *at)).collect();
        let mut placed = Vec::new();
        for write in &self.writes {
            let seen = write.value.as_ref().and_then(|value| seen.get(value).copied());
            match (write.outcome, seen) {
                (Outcome::Done { revision }, _) => placed.push((revision, write.span, write)),
                (Outcome::Unknown, Some(revision)) => placed.push((revision, (write.span.0, u64::MAX), write)),
                (Outcome::Refused, _) | (Outcome::Unknown, None) => {}
            }
        }
        let revisions: BTreeSet<u64> = placed.iter().map(|(revision, ..)| *revision).collect();
        let before = |revision| revisions.range(..revision).next_back().copied().unwrap_or(0);
        let write = |(revision, span, write): (u64, Span, &Write<Value>)| {
            (span, Operation::Write { value: write.value.clone(), revision, before: before(revision) })
        };
        let mut operations: Vec<_> = placed.into_iter().map(write).collect();
        let reads = self.reads.iter().map(|read| (read.span, Operation::Read(read.found.clone())));
        operations.extend(reads);
        if operations.is_empty() {
            return true;
        }
        // An operation that begins in the step in which another ends overlaps it.
        let mut moments: Vec<_> = (0..operations.len())
            .flat_map(|place| [(operations[place].0.0, false, place), (operations[place].0.1, true, place)])
            .collect();
        moments.sort_unstable();
        let action = |(_, is_end, place): (u64, bool, usize)| {
            let operation = operations[place].1.clone();
            (place, if is_end { Action::Response(operation) } else { Action::Call(operation) })
        };
        WGLChecker::<Register>::is_linearizable(Actions::from_actions(moments.into_iter().map(action).collect()))
    }

    /// The most operations that are open at a time.
    fn most_open(&self) -> usize {
        let spans = self.writes.iter().map(|write| write.span).chain(self.reads.iter().map(|read| read.span));
        let mut moments: Vec<(u64, bool)> = spans.flat_map(|span| [(span.0, false), (span.1, true)]).collect();
        moments.sort_unstable();
        let mut open = 0_usize;
        let count = |(_, is_end): (u64, bool)| {
            open = if is_end { open - 1 } else { open + 1 };
            open
        };
        moments.into_iter().map(count).max().unwrap_or_default()
    }

    /// The part that both judges can decide. While the outcome of a removal is unknown, our judge
    /// excuses too many reads of nothing, and the search of the other explodes. Such a key is
    /// judged without both: reads that found a value do not depend on them.
    fn decidable(mut self) -> OfKey {
        let is_open = |write: &Write<Value>| write.value.is_none() && write.outcome == Outcome::Unknown;
        if self.writes.iter().any(is_open) {
            self.writes.retain(|write| !is_open(write));
            self.reads.retain(|read| read.found.is_some());
        }
        self
    }
}

/// Runs `work` for each of these seeds, on all processors.
fn each<T: Send>(seeds: u64, work: impl Fn(u64) -> T + Sync) -> Vec<T> {
    let add = |own: &mut Vec<T>, seed| {
        own.push(work(seed));
        true
    };
    spread(processors(), 0..seeds, add).into_iter().flatten().collect()
}

/// The histories of a world with sound rules.
fn sound(seed: u64) -> Vec<OfKey> {
    let report = run(&Plan::of(seed, None));
    assert_eq!(report.violation, None, "seed {seed}");
    OfKey::all(&report.observations)
}

#[test]
fn both_judges_accept_what_clients_of_sound_rules_observed() {
    let counts = each(60, |seed| {
        let keys = sound(seed);
        for key in &keys {
            assert_eq!(key.violation(), None, "seed {seed}");
            assert!(key.most_open() > OPEN_MAX || key.is_linearizable(), "seed {seed}: {key:?}");
        }
        let judged = keys.iter().filter(|key| key.most_open() <= OPEN_MAX);
        judged.map(|key| key.writes.len() + key.reads.len()).sum::<usize>()
    });
    let operations: usize = counts.iter().sum();
    println!("{operations} operations");
    assert!(operations > 10_000, "{operations} operations");
}

/// Each mistake makes reads stale. Our judge must refuse a history of it for that, and so must the
/// other.
#[test]
fn both_judges_refuse_what_clients_of_broken_rules_observed() {
    let mistakes = [
        Bug::ServeAfterExpiry,
        Bug::ConsentWithoutDrop,
        Bug::CacheOvertakenGrant,
        Bug::GrantDuringWrite,
        Bug::ForgetOldHolders,
        Bug::ExemptWriterWithoutStamp,
        Bug::DeleteSparesDescendants,
        Bug::WriteBeyondConsents,
    ];
    each(mistakes.len() as u64, |place| {
        let bug = mistakes[place as usize];
        let stale = |seed| {
            let of_key = |key: OfKey| match key.violation() {
                // The other judge takes very long if many operations overlap.
                Some(Violation::Stale { .. } | Violation::Lost { .. }) if key.most_open() <= OPEN_MAX => {
                    Some((seed, key))
                }
                _ => None,
            };
            OfKey::all(&run(&Plan { stops_never: true, ..Plan::of(seed, Some(bug)) }).observations)
                .into_iter()
                .find_map(of_key)
        };
        let (seed, key) = (0..2_000).find_map(stale).unwrap_or_else(|| panic!("{bug:?}: no history is refused"));
        println!("{bug:?}: seed {seed}, {} operations", key.writes.len() + key.reads.len());
        assert!(!key.is_linearizable(), "{bug:?}, seed {seed}: {key:?}");
    });
}
