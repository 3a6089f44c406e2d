//! Many time spans and their quantiles.

use std::time::Duration;

/// The spans in the order of their arrival, until they are sorted.
#[derive(Debug, Default)]
pub(crate) struct Spans(Vec<Duration>);

impl Spans {
    pub(crate) fn add(&mut self, span: Duration) {
        self.0.push(span);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The smallest span that at least this share of the spans does not exceed. Zero without spans.
    pub(crate) fn quantile(&mut self, share: f64) -> Duration {
        self.0.sort_unstable();
        let rank = (self.0.len() as f64 * share).ceil() as usize;
        self.0.get(rank.max(1) - 1).copied().unwrap_or_default()
    }

    /// Median, p99 and maximum.
    pub(crate) fn summary(&mut self) -> String {
        [0.5, 0.99, 1.0].map(|share| shown(self.quantile(share))).join(" · ")
    }
}

/// Formats about three digits with the unit.
pub(crate) fn shown(span: Duration) -> String {
    match span.as_secs_f64() {
        seconds if seconds >= 1.0 => format!("{seconds:.2} s"),
        seconds if seconds >= 1e-3 => format!("{:.2} ms", seconds * 1e3),
        seconds => format!("{:.2} µs", seconds * 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_least_that_so_many_do_not_exceed() {
        let mut spans = Spans::default();
        assert_eq!(spans.quantile(0.5), Duration::ZERO);
        (1..=100).rev().for_each(|millis| spans.add(Duration::from_millis(millis)));
        let millis = [0.0, 0.5, 0.99, 1.0].map(|share| spans.quantile(share).as_millis());
        assert_eq!(millis, [1, 50, 99, 100]);
        assert_eq!(spans.summary(), "50.00 ms · 99.00 ms · 100.00 ms");
    }
}
