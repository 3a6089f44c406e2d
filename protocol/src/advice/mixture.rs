//! How often copies are read: a mixture of rates that explains the measured gaps
//! ([`fit_read_rates`]).
//!
//! If a client reads a copy at random times with some rate, the time from a grant to its next read
//! is exponential with that rate. The gaps of many copies are a mixture of exponentials. Their
//! shares follow by expectation-maximisation (Dempster, Laird, Rubin 1977) over a fixed grid of
//! rates.

use crate::message::ReadGaps;

/// The lowest rate: once in three days.
const LOWEST: f64 = 1.0 / 262_144.0;

/// The number of rates. The highest is 64 in a second.
const RATES: usize = 49;

/// The ratio of each rate to the one before.
const STEP: f64 = std::f64::consts::SQRT_2;

/// Rounds of expectation and maximisation. Further rounds change each prediction by less than a
/// thousandth.
const ROUNDS: usize = 1000;

/// Shares below this are left out.
const SHARE_MIN: f64 = 1e-6;

/// The rates of reads per second, and the share of the gaps that each explains. Empty if there are
/// no gaps.
pub(super) fn fit_read_rates(gaps: &ReadGaps) -> Vec<(f64, f64)> {
    let total = gaps.classes.iter().map(|count| *count as f64).sum::<f64>();
    if total <= 0.0 {
        return Vec::new();
    }
    let rates: Vec<f64> = (0..RATES).map(|rate| LOWEST * STEP.powi(i32::try_from(rate).unwrap_or(0))).collect();
    // The classes with gaps: their shares, and the probability of each with each rate.
    let classes: Vec<(f64, Vec<f64>)> = gaps
        .classes
        .iter()
        .enumerate()
        .filter(|(_, count)| **count > 0)
        .map(|(class, count)| {
            let (begin, end) = ReadGaps::bounds(class);
            let probability = |rate: &f64| (-rate * begin).exp() - (-rate * end).exp();
            (*count as f64 / total, rates.iter().map(probability).collect())
        })
        .collect();
    let mut shares = vec![1.0 / RATES as f64; RATES];
    for _ in 0..ROUNDS {
        let mut next = vec![0.0; RATES];
        for (observed, probabilities) in &classes {
            let expected: f64 = shares.iter().zip(probabilities).map(|(share, probability)| share * probability).sum();
            if expected > 0.0 {
                for ((next, share), probability) in next.iter_mut().zip(&shares).zip(probabilities) {
                    *next += observed * share * probability / expected;
                }
            }
        }
        shares = next;
    }
    rates.into_iter().zip(shares).filter(|(_, share)| *share > SHARE_MIN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The gaps that copies of these rates and shares have on average.
    fn expected(parts: &[(f64, f64)]) -> ReadGaps {
        let mut gaps = ReadGaps::default();
        for (class, count) in gaps.classes.iter_mut().enumerate() {
            let (begin, end) = ReadGaps::bounds(class);
            let of = |(rate, share): &(f64, f64)| share * ((-rate * begin).exp() - (-rate * end).exp());
            *count = (1e6 * parts.iter().map(of).sum::<f64>()) as u64;
        }
        gaps
    }

    #[test]
    fn mixture_finds_the_rates_and_shares_of_its_parts() {
        for parts in [&[(1.0, 1.0)][..], &[(0.003, 0.7), (1.0, 0.3)], &[(0.001, 0.5), (0.05, 0.3), (8.0, 0.2)]] {
            let found = fit_read_rates(&expected(parts));
            for (rate, share) in parts {
                let near = |found: &&(f64, f64)| found.0 > rate / 2.0 && found.0 < rate * 2.0;
                let sum: f64 = found.iter().filter(near).map(|(_, share)| share).sum();
                assert!((sum - share).abs() < 0.02, "{rate}: {sum} of {share} in {found:?}");
            }
        }
        assert_eq!(fit_read_rates(&ReadGaps::default()), []);
    }
}
