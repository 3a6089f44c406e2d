//! Checks the observations of clients for linearizability (Herlihy and Wing 1990):
//! `leasehold_simulation::history`.
//!
//! The module knows neither the simulator nor Leasehold. It knows keys, values, revisions, and when
//! each operation began and ended on one clock. Tests of real processes use it too.
//!
//! The general check is NP-complete (Gibbons and Korach 1997). This one is exact, and takes no
//! longer than sorting the history. Each write has a unique value, and a revision: its position
//! in the one order of all changes. So only one order is possible. The check asks whether each
//! operation can have a moment between its beginning and its end, such that the moments are in
//! that order.
//!
//! - A write of unknown outcome ([`Outcome::Unknown`]) may have taken effect at any later time, or
//!   never. A read that finds its value also finds its revision. Otherwise nothing depends on it.
//! - No read may see a refused write.
//! - Absence has no revision. A read that found nothing fits every absence of its key. *Not exact*:
//!   while the outcome of a delete is unknown, it excuses any number of such reads. One moment of
//!   the delete might not fit all of them.
//!
//! ```
//! use leasehold_simulation::history::{History, Outcome, Violation};
//!
//! let mut history = History::default();
//! history.write("/a", Some("one"), (0, 10), Outcome::Done { revision: 1 });
//! history.write("/a", Some("two"), (20, 30), Outcome::Done { revision: 2 });
//! history.read("/a", Some(("two", 2)), (25, 40));
//! assert_eq!(history.check(), Ok(()));
//!
//! history.read("/a", Some(("one", 1)), (45, 50));
//! assert!(matches!(history.check(), Err(Violation::Stale { .. })));
//! ```

mod check;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, fmt::Debug};

/// When an operation began and when its answer arrived, on one common clock, in any unit.
pub type Span = (u64, u64);

/// The answer to a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It took effect.
    Done {
        /// Its position in the order of all changes.
        revision: u64,
    },
    /// It did not take effect, and never will.
    Refused,
    /// It may have taken effect, or still may. Also for a write that was never answered.
    Unknown,
}

/// A write of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write<V> {
    /// The value, which no other write has; none if the write removed the key.
    pub value: Option<V>,
    /// When it began and ended.
    pub span: Span,
    /// Its outcome.
    pub outcome: Outcome,
    /// The moment of its revision: its end, or later if it first took effect in its writer's
    /// memory. Ignored if the outcome is unknown.
    pub revised: u64,
}

/// A read of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read<V> {
    /// The value and the revision of its last change; none if the key was absent.
    pub found: Option<(V, u64)>,
    /// When it began and ended.
    pub span: Span,
}

/// A read or a write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Operation<V> {
    /// A write.
    Write(Write<V>),
    /// A read.
    Read(Read<V>),
}

/// Why no order fits.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation<K: Debug, V: Debug> {
    /// A read missed an operation that had ended before the read began.
    #[error("stale read of {key:?}: {read:?} began after {missed:?} had ended")]
    Stale {
        /// The key.
        key: K,
        /// The read.
        read: Read<V>,
        /// The operation that the read should have seen.
        missed: Operation<V>,
    },
    /// An acknowledged write that no later read saw.
    #[error(
        "lost write of {key:?}: {write:?} was acknowledged, and none that looked later saw it; the first was {read:?}"
    )]
    Lost {
        /// The key.
        key: K,
        /// The write.
        write: Write<V>,
        /// A read that missed it.
        read: Read<V>,
    },
    /// A refused write took effect.
    #[error("refused write of {key:?} that took effect: {write:?}, seen by {read:?}")]
    Refused {
        /// The key.
        key: K,
        /// The write.
        write: Write<V>,
        /// A read that saw it.
        read: Read<V>,
    },
    /// A write has two positions in the order.
    #[error("write of {key:?} that took effect twice, at {one} and at {other}: {write:?}")]
    Twice {
        /// The key.
        key: K,
        /// The write.
        write: Write<V>,
        /// One revision.
        one: u64,
        /// The other.
        other: u64,
    },
    /// A read found a value whose write began after the read had ended.
    #[error("read of {key:?} from the future: {read:?} ended before {write:?} began")]
    Future {
        /// The key.
        key: K,
        /// The read.
        read: Read<V>,
        /// The write of the value that it found.
        write: Write<V>,
    },
    /// A read found a value that no client wrote.
    #[error("read of {key:?} found what nobody wrote: {read:?}")]
    Unwritten {
        /// The key.
        key: K,
        /// The read.
        read: Read<V>,
    },
    /// Two writes of one key have the same revision.
    #[error("two writes of {key:?} at one revision: {one:?} and {other:?}")]
    SameRevision {
        /// The key.
        key: K,
        /// One write.
        one: Box<Write<V>>,
        /// The other.
        other: Box<Write<V>>,
    },
    /// A write has a lower revision than an operation that had ended before it began.
    #[error("revisions go back: {late:?} of {key:?} began after {early:?} had ended, and comes before it")]
    Backwards {
        /// The key of the later write.
        key: K,
        /// The operation that had ended.
        early: Operation<V>,
        /// The write that began later.
        late: Box<Write<V>>,
    },
    /// The test wrote one value twice, so the check can conclude nothing.
    #[error("the value {value:?} was written to {key:?} twice by the test itself")]
    NotUnique {
        /// The key.
        key: K,
        /// The value.
        value: V,
    },
}

/// The observations of all clients, by key.
#[derive(Debug, Clone)]
pub struct History<K, V> {
    keys: BTreeMap<K, Register<V>>,
}

/// The observations of one key.
#[derive(Debug, Clone)]
struct Register<V> {
    writes: Vec<Write<V>>,
    reads: Vec<Read<V>>,
}

impl<K, V> Default for History<K, V> {
    fn default() -> Self {
        Self { keys: BTreeMap::new() }
    }
}

impl<K: Clone + Ord + Debug, V: Clone + Ord + Debug> History<K, V> {
    /// Adds a write of a key, with its outcome. A value of `None` removes the key. All keys are
    /// absent at first. If the outcome is unknown, the end of the span is ignored.
    pub fn write(&mut self, key: K, value: Option<V>, span: Span, outcome: Outcome) {
        self.register(key).writes.push(Write { value, span, outcome, revised: span.1 });
    }

    /// Adds a write that took effect at the moment `at` in its writer's memory, if at all. It got
    /// its revision later, by the step `revised`. Revisions of other keys may come before it.
    pub fn write_back(&mut self, key: K, value: V, at: u64, outcome: Outcome, revised: u64) {
        self.register(key).writes.push(Write { value: Some(value), span: (at, at), outcome, revised });
    }

    /// Adds an answered read of a key, with the value that it found and the revision of its last
    /// change.
    pub fn read(&mut self, key: K, found: Option<(V, u64)>, span: Span) {
        self.register(key).reads.push(Read { found, span });
    }

    /// The number of operations.
    pub fn len(&self) -> usize {
        self.keys.values().map(|register| register.writes.len() + register.reads.len()).sum()
    }

    /// Whether there are no operations.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The operations of each key, for another checker.
    pub fn keys(&self) -> impl Iterator<Item = (&K, &[Write<V>], &[Read<V>])> {
        self.keys.iter().map(|(key, register)| (key, &register.writes[..], &register.reads[..]))
    }

    /// Checks that one order of all operations fits all observations. The error names the first
    /// violation.
    pub fn check(&self) -> Result<(), Violation<K, V>> {
        let mut placed = Vec::new();
        for (key, register) in &self.keys {
            placed.extend(check::register(key, register)?.into_iter().map(|(revision, write)| (revision, key, write)));
        }
        check::revisions(placed)
    }

    fn register(&mut self, key: K) -> &mut Register<V> {
        self.keys.entry(key).or_insert_with(|| Register { writes: Vec::new(), reads: Vec::new() })
    }
}
