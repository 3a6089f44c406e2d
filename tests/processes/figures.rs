//! Short summaries of measurements.

use std::{fmt, time::Duration};

/// Durations of one kind.
#[derive(Debug, Clone, Default)]
pub(crate) struct Figures(Vec<Duration>);

impl FromIterator<Duration> for Figures {
    fn from_iter<I: IntoIterator<Item = Duration>>(durations: I) -> Self {
        let mut sorted: Vec<Duration> = durations.into_iter().collect();
        sorted.sort_unstable();
        Self(sorted)
    }
}

impl Figures {
    /// How many durations there are.
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    /// The duration that this share of all durations does not exceed.
    pub(crate) fn at(&self, share: f64) -> Duration {
        let place = (self.0.len().saturating_sub(1) as f64 * share).round() as usize;
        self.0.get(place).copied().unwrap_or_default()
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |share| self.at(share).as_secs_f64() * 1000.0;
        let (least, median, late, most) = (ms(0.0), ms(0.5), ms(0.99), ms(1.0));
        write!(f, "of {}: least {least:.1}, median {median:.1}, p99 {late:.1}, most {most:.1} ms", self.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_all_that_was_measured() {
        let figures: Figures = (1..=101).rev().map(Duration::from_millis).collect();
        assert_eq!(figures.to_string(), "of 101: least 1.0, median 51.0, p99 100.0, most 101.0 ms");
        assert_eq!(Figures::default().count(), 0);
    }
}
