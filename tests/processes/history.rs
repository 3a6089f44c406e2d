//! The notes of all clients, for the checker of the simulator's package.

use std::{collections::BTreeMap, time::Duration};

use leasehold_simulation::history::{self, Violation};

use crate::workload::{Kind, Note, Operation, Outcome};

/// The operations of all clients of a test.
#[derive(Debug, Default)]
pub(crate) struct History {
    told: history::History<String, String>,
    /// Writes that have not ended, by client and number.
    open: BTreeMap<(String, u64), Operation>,
    progress: BTreeMap<String, Progress>,
    tally: Tally,
}

/// A client's progress: when its latest answered operations began.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Progress {
    /// Of reads from memory.
    pub(crate) cached: u64,
    /// Of other reads.
    pub(crate) read: u64,
    /// Of writes that took effect.
    pub(crate) written: u64,
}

/// The counts of all operations.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tally {
    /// Reads that only memory may answer, and that it answered.
    pub(crate) cached: u64,
    /// Other reads that were answered.
    pub(crate) reads: u64,
    /// Writes that took effect.
    pub(crate) written: u64,
    /// Writes whose condition did not hold.
    pub(crate) refused: u64,
    /// Writes of unknown outcome.
    pub(crate) unknown: u64,
    /// Writes that were not sent, and reads that were not answered.
    pub(crate) failed: u64,
    /// Sessions that ended.
    pub(crate) expired: u64,
    /// The duration of the longest write that took effect.
    pub(crate) longest_write: Duration,
}

impl History {
    /// Adds the new notes of a client.
    pub(crate) fn add(&mut self, client: &str, notes: Vec<Note>) {
        for note in notes {
            match note {
                Note::Operation(operation) => self.operation(client, operation),
                Note::Expired => self.tally.expired += 1,
            }
        }
    }

    fn operation(&mut self, client: &str, operation: Operation) {
        let key = (client.to_owned(), operation.number);
        let is_write = !matches!(operation.kind, Kind::Cached | Kind::Read);
        if is_write && !self.open.contains_key(&key) {
            self.open.insert(key, operation);
            return;
        }
        self.open.remove(&key);
        let progress = self.progress.entry(client.to_owned()).or_default();
        let (tally, span) = (&mut self.tally, (operation.begin, operation.end));
        match operation.outcome {
            Outcome::Found(..) | Outcome::Absent if operation.kind == Kind::Cached => {
                tally.cached += 1;
                progress.cached = progress.cached.max(span.0);
            }
            Outcome::Found(..) | Outcome::Absent => {
                tally.reads += 1;
                progress.read = progress.read.max(span.0);
            }
            Outcome::Written(_) => {
                tally.written += 1;
                tally.longest_write = tally.longest_write.max(Duration::from_nanos(span.1 - span.0));
                progress.written = progress.written.max(span.0);
            }
            Outcome::Refused => tally.refused += 1,
            Outcome::Unknown => tally.unknown += 1,
            Outcome::Failed(_) => tally.failed += 1,
        }
        self.tell(operation);
    }

    /// Adds an operation to the checker.
    fn tell(&mut self, operation: Operation) {
        let (path, span) = (operation.path, (operation.begin, operation.end));
        let value = match operation.kind {
            Kind::Put(value) | Kind::Compare(value, _) => Some(value),
            Kind::Delete => None,
            Kind::Cached | Kind::Read => {
                return match operation.outcome {
                    Outcome::Found(value, revision) => self.told.read(path, Some((value, revision)), span),
                    Outcome::Absent => self.told.read(path, None, span),
                    // It was not answered.
                    _ => {}
                };
            }
        };
        let outcome = match operation.outcome {
            Outcome::Written(revision) => history::Outcome::Done { revision },
            Outcome::Unknown => history::Outcome::Unknown,
            // No read may see it.
            _ => history::Outcome::Refused,
        };
        self.told.write(path, value, span, outcome);
    }

    /// The counts so far.
    pub(crate) fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The progress of a client.
    pub(crate) fn progress(&self, client: &str) -> Progress {
        self.progress.get(client).copied().unwrap_or_default()
    }

    /// Checks all operations. Writes that have not ended may have taken effect.
    pub(crate) fn check(&mut self) -> Result<(), Box<Violation<String, String>>> {
        for (_, operation) in std::mem::take(&mut self.open) {
            self.tally.unknown += 1;
            self.tell(operation);
        }
        self.told.check().map_err(Box::new)
    }

    /// Checks all operations. There must be writes, and reads from memory.
    #[track_caller]
    pub(crate) fn assert_linearizable(&mut self) {
        let outcome = self.check();
        assert!(outcome.is_ok(), "{}", outcome.expect_err("there is a violation"));
        assert!(self.tally.cached > 0 && self.tally.written > 0, "nothing was shown: {:?}", self.tally);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(number: u64, kind: Kind, begin: u64, value: &str, revision: u64) -> Note {
        let outcome = Outcome::Found(value.to_owned(), revision);
        Note::Operation(Operation { number, path: "/a".to_owned(), kind, begin, end: begin + 1, outcome })
    }

    /// The notes of a write: one when it begins, and one when it ends.
    fn put(number: u64, begin: u64, value: &str, outcome: Outcome) -> Vec<Note> {
        let kind = Kind::Put(value.to_owned());
        let open = Operation { number, path: "/a".to_owned(), kind, begin, end: begin, outcome: Outcome::Unknown };
        let ended = Operation { end: begin + 5, outcome, ..open.clone() };
        [open, ended].map(Note::Operation).into()
    }

    fn history(reader: Vec<Note>) -> History {
        let mut history = History::default();
        history.add("writer", put(0, 10, "one", Outcome::Written(1)));
        history.add("writer", put(1, 20, "two", Outcome::Written(2)));
        history.add("reader", reader);
        history
    }

    #[test]
    fn checker_finds_stale_cached_read_after_acknowledgement() {
        let mut fine = history(vec![read(0, Kind::Cached, 24, "one", 1), read(1, Kind::Cached, 26, "two", 2)]);
        fine.assert_linearizable();
        let stale = history(vec![read(0, Kind::Cached, 26, "one", 1)]).check().expect_err("it is stale");
        assert!(matches!(*stale, Violation::Lost { .. }), "nobody saw it: {stale:?}");
        let readers = vec![read(0, Kind::Cached, 26, "two", 2), read(1, Kind::Cached, 28, "one", 1)];
        let stale = history(readers).check().expect_err("it is stale");
        assert!(matches!(*stale, Violation::Stale { .. }), "{stale:?}");
        let back = history(vec![read(0, Kind::Cached, 22, "two", 2), read(1, Kind::Cached, 24, "one", 1)])
            .check()
            .expect_err("it is stale");
        assert!(matches!(*back, Violation::Stale { .. }), "{back:?}");
    }

    #[test]
    fn checker_allows_effect_of_unknown_write_not_of_refused() {
        for count in [1, 2] {
            let mut unknown = history(vec![read(0, Kind::Cached, 40, "three", 3)]);
            unknown.add("writer", put(2, 30, "three", Outcome::Unknown).into_iter().take(count).collect());
            unknown.assert_linearizable();
            assert_eq!(unknown.tally().unknown, 1);
        }
        let mut refused = history(vec![read(0, Kind::Cached, 40, "three", 3)]);
        refused.add("writer", put(2, 30, "three", Outcome::Refused));
        assert!(matches!(*refused.check().expect_err("it was seen"), Violation::Refused { .. }));
    }

    #[test]
    fn a_write_that_took_effect_at_two_revisions_is_found() {
        let mut twice = history(vec![read(0, Kind::Read, 40, "two", 7)]);
        assert!(matches!(*twice.check().expect_err("two revisions"), Violation::Twice { .. }));
    }
}
