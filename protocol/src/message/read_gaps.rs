//! Read gaps: the times from a grant to the next read ([`ReadGaps`]).

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The times from a grant of an object lease to the client's next read of the object, in classes.
/// The read may come from memory, or ask a server. A read after several grants counts once, from
/// the first of them.
///
/// If a client reads an object at random times with some rate, these times are exponential with
/// that rate, whatever becomes of the lease. So they tell how popular copies are. No rule depends
/// on them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReadGaps {
    /// How many were in each class. The first class is below 62.5 ms. Class n, from 1 on, is from
    /// 62.5 ms times 2^(n-1) to twice that. The last has no end.
    pub classes: [u64; Self::CLASSES],
}

impl ReadGaps {
    /// The number of classes. The last begins after about three days.
    pub const CLASSES: usize = 24;

    const FIRST: Duration = Duration::from_micros(62_500);

    /// The class of a gap.
    pub fn class(gap: Duration) -> usize {
        let times = u64::try_from(gap.as_micros() / Self::FIRST.as_micros()).unwrap_or(u64::MAX);
        let class = (u64::BITS - times.leading_zeros()) as usize;
        class.min(Self::CLASSES - 1)
    }

    /// The bounds of a class in seconds. The last has no upper bound.
    pub(crate) fn bounds(class: usize) -> (f64, f64) {
        let from = |class: usize| Self::FIRST.as_secs_f64() * 2.0_f64.powi(i32::try_from(class).unwrap_or(0) - 1);
        let begin = if class == 0 { 0.0 } else { from(class) };
        let end = if class + 1 >= Self::CLASSES { f64::INFINITY } else { from(class + 1) };
        (begin, end)
    }

    /// Counts a gap.
    pub fn add(&mut self, gap: Duration) {
        self.classes[Self::class(gap)] += 1;
    }

    /// Adds other gaps.
    pub fn add_all(&mut self, other: &Self) {
        for (count, others) in self.classes.iter_mut().zip(&other.classes) {
            *count = count.saturating_add(*others);
        }
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.classes.iter().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.classes == [0; Self::CLASSES]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_is_counted_in_class_that_includes_it() {
        for micros in [0, 62_499, 62_500, 124_999, 125_000, 1_000_000, 3_600_000_000, u64::MAX] {
            let gap = Duration::from_micros(micros);
            let mut gaps = ReadGaps::default();
            assert!(gaps.is_empty());
            gaps.add(gap);
            let class = gaps.classes.iter().position(|count| *count == 1).expect("counted");
            let (begin, end) = ReadGaps::bounds(class);
            assert!(begin <= gap.as_secs_f64() && gap.as_secs_f64() < end, "{gap:?} from {begin} to {end}");
        }
    }

    #[test]
    fn gaps_of_several_reports_are_added() {
        let mut gaps = ReadGaps { classes: [u64::MAX - 1; ReadGaps::CLASSES] };
        gaps.add_all(&ReadGaps { classes: [2; ReadGaps::CLASSES] });
        assert_eq!((gaps.classes[3], gaps.count()), (u64::MAX, u64::MAX));
    }
}
