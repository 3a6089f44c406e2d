//! What clients were told, checked for linearizability (Herlihy and Wing 1990):
//! `leasehold_simulation::history`.
//!
//! It knows nothing of the simulator, nor of Leasehold: keys, values, revisions, and the times at
//! which each operation began and ended on one clock. Tests of real processes use it as they are.
//!
//! In general the check is NP-complete (Gibbons and Korach 1997). Here it is exact and takes a
//! sort, because each write has a unique value and a revision, its place in the one order of all
//! changes: there is only one order to be tried. What is asked is whether each operation can have a
//! moment between its beginning and its end, such that the moments are in that order.
//!
//! - A write that failed for reasons unknown ([`Outcome::Unknown`]) may have taken effect at any
//!   time since, or never. If its value is seen, it did, at the revision that it was seen with. If
//!   not, nothing depends on it.
//! - A write that was refused must never be seen.
//! - Absence has no revision. A read that found nothing fits wherever a key was absent. *Not
//!   exact*: while the outcome of a delete of the key is unknown, any number of reads are excused
//!   by it, where one moment for it might not fit all of them.
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

/// When an operation began, and when its answer was there, on one clock for all: any unit.
pub type Span = (u64, u64);

/// What the writer was told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It took effect.
    Done {
        /// Its place in the order of all changes.
        revision: u64,
    },
    /// It did not take effect and never will.
    Refused,
    /// It may have taken effect, or may yet. Also for a write that was never answered.
    Unknown,
}

/// A write of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write<V> {
    /// The value, that no other write has; none if the key was removed.
    pub value: Option<V>,
    /// When.
    pub span: Span,
    /// What came of it.
    pub outcome: Outcome,
    /// When it had its revision: at its end, or later if it took effect in its writer's memory
    /// first. If its outcome is unknown that does not matter.
    pub revised: u64,
}

/// A read of one key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Read<V> {
    /// The value and the revision of its last change; none if there was no such key.
    pub found: Option<(V, u64)>,
    /// When.
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
    /// A read did not see what had been told, to a writer or a reader, before it began.
    #[error("stale read of {key:?}: {read:?} began after {missed:?} had ended")]
    Stale {
        /// Of which key.
        key: K,
        /// The read.
        read: Read<V>,
        /// What it should have seen.
        missed: Operation<V>,
    },
    /// An acknowledged write was not seen by any of those who looked after it was acknowledged.
    #[error(
        "lost write of {key:?}: {write:?} was acknowledged, and none that looked later saw it; the first was {read:?}"
    )]
    Lost {
        /// Of which key.
        key: K,
        /// The write.
        write: Write<V>,
        /// One that missed it.
        read: Read<V>,
    },
    /// A write was refused, and took effect.
    #[error("refused write of {key:?} that took effect: {write:?}, seen by {read:?}")]
    Refused {
        /// Of which key.
        key: K,
        /// The write.
        write: Write<V>,
        /// Who saw it.
        read: Read<V>,
    },
    /// A write has two places in the order.
    #[error("write of {key:?} that took effect twice, at {one} and at {other}: {write:?}")]
    Twice {
        /// Of which key.
        key: K,
        /// The write.
        write: Write<V>,
        /// One revision.
        one: u64,
        /// The other.
        other: u64,
    },
    /// A read found what had not been written when it ended.
    #[error("read of {key:?} from the future: {read:?} ended before {write:?} began")]
    Future {
        /// Of which key.
        key: K,
        /// The read.
        read: Read<V>,
        /// What it found.
        write: Write<V>,
    },
    /// A read found what nobody ever wrote.
    #[error("read of {key:?} found what nobody wrote: {read:?}")]
    Unwritten {
        /// Of which key.
        key: K,
        /// The read.
        read: Read<V>,
    },
    /// Two writes of one key have the same place in the order.
    #[error("two writes of {key:?} at one revision: {one:?} and {other:?}")]
    SameRevision {
        /// Of which key.
        key: K,
        /// One write.
        one: Box<Write<V>>,
        /// The other.
        other: Box<Write<V>>,
    },
    /// A write has a lower revision than one that had ended before it began, or than one that
    /// somebody had seen.
    #[error("revisions go back: {late:?} of {key:?} began after {early:?} had ended, and comes before it")]
    Backwards {
        /// Of which key the later one is.
        key: K,
        /// What had ended.
        early: Operation<V>,
        /// What began later.
        late: Box<Write<V>>,
    },
    /// The test wrote one value twice, so that nothing can be concluded.
    #[error("the value {value:?} was written to {key:?} twice by the test itself")]
    NotUnique {
        /// Of which key.
        key: K,
        /// The value.
        value: V,
    },
}

/// What all clients were told, key by key.
#[derive(Debug, Clone)]
pub struct History<K, V> {
    keys: BTreeMap<K, Register<V>>,
}

/// What was told of one key.
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
    /// A write of a key (none removes it) and what came of it. Keys are absent in the beginning.
    /// For a write of unknown outcome the end of its span does not matter.
    pub fn write(&mut self, key: K, value: Option<V>, span: Span, outcome: Outcome) {
        self.register(key).writes.push(Write { value, span, outcome, revised: span.1 });
    }

    /// A write that took effect at one moment, in its writer's memory, if it did, and got its
    /// revision later, by the step `revised`: the revisions of other keys may come before it.
    pub fn write_back(&mut self, key: K, value: V, at: u64, outcome: Outcome, revised: u64) {
        self.register(key).writes.push(Write { value: Some(value), span: (at, at), outcome, revised });
    }

    /// A read of a key that was answered, with what it found: the value, and the revision of its
    /// last change.
    pub fn read(&mut self, key: K, found: Option<(V, u64)>, span: Span) {
        self.register(key).reads.push(Read { found, span });
    }

    /// How many operations there are.
    pub fn len(&self) -> usize {
        self.keys.values().map(|register| register.writes.len() + register.reads.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// The operations of each key, for another checker.
    pub fn keys(&self) -> impl Iterator<Item = (&K, &[Write<V>], &[Read<V>])> {
        self.keys.iter().map(|(key, register)| (key, &register.writes[..], &register.reads[..]))
    }

    /// Whether there is an order of everything that fits what everybody was told.
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
