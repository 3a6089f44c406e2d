//! Judges after the run whether each read was at least as new as the state known when it began.
//!
//! All processes record times by one clock. A change is *known* once its write was acknowledged, or
//! once a read that returned it has ended, whichever comes first: both follow from linearizability.
//! A read is stale if a later change of the same node was known before the read began. A write that
//! was never acknowledged and never read makes no read stale.
//!
//! Readers do millions of reads, so they record runs: reads of one node that returned one revision.
//! A run has a stale read if and only if its last read to begin is stale, so no stale read is
//! missed. If all reads of a run are stale, their count is exact. Otherwise at least one is stale,
//! and one is counted.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// Reads of one node that all returned the same revision.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Run {
    /// The node's index in the list of files.
    pub(crate) file: u32,
    /// The revision that they returned; 0 for a node that does not exist.
    pub(crate) revision: u64,
    /// The number of reads.
    pub(crate) count: u64,
    /// When the first of them began, in nanoseconds.
    pub(crate) first_begin: u64,
    /// When one of them had ended, in nanoseconds: the first one, if that is known.
    pub(crate) first_end: u64,
    /// When the last of them began, in nanoseconds.
    pub(crate) last_begin: u64,
}

/// An acknowledged write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ack {
    /// The node's index in the list of files.
    pub(crate) file: u32,
    /// The revision of the change.
    pub(crate) revision: u64,
    /// When the write began, in nanoseconds.
    pub(crate) begin: u64,
    /// When it was acknowledged, in nanoseconds.
    pub(crate) end: u64,
}

/// The result of the judgement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ReadVerdict {
    /// Judged reads.
    pub(crate) reads: u64,
    /// Stale reads.
    pub(crate) stale: u64,
}

/// The known revisions of one node: each time, and the highest revision known from then on.
#[derive(Debug, Default)]
struct KnownValue(Vec<(u64, u64)>);

impl KnownValue {
    /// Sorts the entries.
    fn settle(&mut self) {
        self.0.sort_unstable();
        let mut highest = 0;
        for (_, revision) in &mut self.0 {
            highest = highest.max(*revision);
            *revision = highest;
        }
    }

    /// The time from which a change later than `revision` was known.
    fn newer_since(&self, revision: u64) -> Option<u64> {
        let at = self.0.partition_point(|(_, known)| *known <= revision);
        self.0.get(at).map(|(time, _)| *time)
    }
}

/// Judges all reads by all acknowledged writes.
pub(crate) fn judge(runs: &[Run], acks: &[Ack]) -> ReadVerdict {
    let mut known: HashMap<u32, KnownValue> = HashMap::new();
    let ends = runs.iter().map(|run| (run.file, run.first_end, run.revision));
    for (file, time, revision) in ends.chain(acks.iter().map(|ack| (ack.file, ack.end, ack.revision))) {
        known.entry(file).or_default().0.push((time, revision));
    }
    known.values_mut().for_each(KnownValue::settle);
    let mut verdict = ReadVerdict::default();
    for run in runs {
        verdict.reads += run.count;
        let since = known.get(&run.file).and_then(|known| known.newer_since(run.revision));
        verdict.stale += match since {
            Some(since) if since < run.first_begin => run.count,
            Some(since) if since < run.last_begin => 1,
            _ => 0,
        };
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(revision: u64, begin: u64, end: u64) -> Run {
        Run { file: 0, revision, count: 1, first_begin: begin, first_end: end, last_begin: begin }
    }

    fn ack(revision: u64, end: u64) -> Ack {
        Ack { file: 0, revision, begin: end - 5, end }
    }

    fn stale(runs: &[Run], acks: &[Ack]) -> u64 {
        judge(runs, acks).stale
    }

    #[test]
    fn read_begun_after_acknowledgement_must_see_write() {
        assert_eq!(stale(&[read(1, 21, 22)], &[ack(1, 10), ack(2, 20)]), 1);
        assert_eq!(stale(&[read(2, 21, 22)], &[ack(1, 10), ack(2, 20)]), 0);
        assert_eq!(stale(&[read(0, 21, 22)], &[ack(2, 20)]), 1, "not to see it at all is no better");
    }

    #[test]
    fn a_read_that_overlaps_a_write_may_return_either_value() {
        assert_eq!(stale(&[read(1, 19, 30), read(2, 17, 18)], &[ack(2, 20)]), 1, "but not the old after the new");
        assert_eq!(stale(&[read(1, 17, 30), read(2, 17, 18)], &[ack(2, 20)]), 0);
        assert_eq!(stale(&[read(1, 20, 21)], &[ack(2, 20)]), 0, "it did not begin after the acknowledgement");
    }

    #[test]
    fn what_one_client_has_read_no_other_may_miss() {
        assert_eq!(stale(&[read(2, 10, 11), read(1, 12, 13)], &[]), 1);
        assert_eq!(stale(&[read(2, 10, 12), read(1, 12, 13)], &[]), 0);
    }

    #[test]
    fn acknowledgements_may_arrive_out_of_order() {
        assert_eq!(stale(&[read(2, 30, 31)], &[ack(3, 20), ack(2, 25)]), 1);
    }

    #[test]
    fn read_run_is_judged_by_its_last_read() {
        let run = Run { file: 0, revision: 1, count: 100, first_begin: 5, first_end: 6, last_begin: 21 };
        assert_eq!(judge(&[run], &[ack(2, 20)]), ReadVerdict { reads: 100, stale: 1 });
        assert_eq!(judge(&[Run { first_begin: 21, ..run }], &[ack(2, 20)]), ReadVerdict { reads: 100, stale: 100 });
        assert_eq!(judge(&[Run { last_begin: 20, ..run }], &[ack(2, 20)]), ReadVerdict { reads: 100, stale: 0 });
    }

    #[test]
    fn nodes_have_nothing_to_do_with_each_other() {
        assert_eq!(stale(&[Run { file: 1, ..read(1, 21, 22) }], &[ack(2, 20)]), 0);
    }
}
