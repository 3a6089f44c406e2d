//! The terms that a volume's object leases can have if they follow its use ([`Ladder`]).

use std::time::Duration;

/// How many terms a ladder has.
pub(super) const RUNGS: usize = 8;

/// The ratio of each term to the one before.
const STEP: u32 = 4;

/// A few terms from the shortest to the longest. Each is four times as long as the one before, up
/// to the longest; the last is the longest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Ladder {
    least: Duration,
    most: Duration,
}

impl Ladder {
    pub(super) fn new(least: Duration, most: Duration) -> Self {
        Self { least, most }
    }

    /// The term of a rung below [`RUNGS`].
    pub(super) fn term(&self, rung: usize) -> Duration {
        if rung + 1 >= RUNGS {
            return self.most;
        }
        self.least.saturating_mul(STEP.pow(u32::try_from(rung).unwrap_or(0))).min(self.most)
    }

    /// The next longer term, if there is one.
    pub(super) fn above(&self, rung: usize) -> Option<usize> {
        (self.term(rung) < self.most).then_some(rung + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(rising(1, 1 << 20), [1, 4, 16, 64, 256, 1024, 4096, 1 << 20], "the last is the longest");
    }
}
