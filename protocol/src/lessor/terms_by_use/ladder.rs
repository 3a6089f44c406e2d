//! The terms that a volume's object leases can have if they follow its use ([`Ladder`]).

use std::time::Duration;

/// How many terms a ladder has: enough for the shortest and the longest object term that a volume
/// may have.
pub(super) const RUNGS: usize = 15;

/// The ratio of each term to the one before.
const STEP: u32 = 4;

/// The terms from the shortest to the longest. Each is four times as long as the one before, but at
/// most the longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Ladder {
    least: Duration,
    most: Duration,
}

impl Ladder {
    pub(super) fn new(least: Duration, most: Duration) -> Self {
        Self { least, most }
    }

    /// The term of this rung, from 0 to [`RUNGS`] - 1.
    pub(super) fn term(&self, rung: usize) -> Duration {
        if rung + 1 >= RUNGS {
            return self.most;
        }
        self.least.saturating_mul(STEP.pow(u32::try_from(rung).unwrap_or(0))).min(self.most)
    }

    /// The next higher rung, if its term is longer.
    pub(super) fn above(&self, rung: usize) -> Option<usize> {
        (self.term(rung) < self.most).then_some(rung + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volume::VolumeSettings;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn terms_rise_by_four_from_the_shortest_to_the_longest() {
        let rising = |least: u32, most: u32| {
            let ladder = Ladder::new(SECOND * least, SECOND * most);
            let all = std::iter::successors(Some(0), |rung| ladder.above(*rung));
            all.map(|rung| ladder.term(rung).as_secs()).collect::<Vec<_>>()
        };
        assert_eq!(rising(10, 24 * 3600), [10, 40, 160, 640, 2560, 10_240, 40_960, 86_400]);
        assert_eq!(rising(10, 50), [10, 40, 50]);
        assert_eq!(rising(10, 10), [10]);
    }

    #[test]
    fn each_step_is_at_most_four_even_between_the_limits() {
        let (least, most) = (VolumeSettings::TERM_MIN, VolumeSettings::OBJECT_TERM_MAX);
        let ladder = Ladder::new(least, most);
        let terms: Vec<Duration> = (0..RUNGS).map(|rung| ladder.term(rung)).collect();
        assert!(terms.windows(2).all(|pair| pair[1] <= pair[0] * STEP), "{terms:?}");
        assert_eq!((terms[0], terms[RUNGS - 1]), (least, most));
    }
}
