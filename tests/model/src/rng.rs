//! Random numbers from a seed: SplitMix64 (Steele, Lea, Flood 2014). It is written here, so that a
//! seed means the same run with every version of every library.

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The stream of this seed.
    pub fn new(seed: u64) -> Self {
        let mut rng = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d);
        rng.bits();
        rng
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// A number below `most`, which is not 0.
    pub fn below(&mut self, most: u64) -> u64 {
        self.bits() % most
    }

    /// A number from `first` to `last`, both included.
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// True with a probability of `permille` in a thousand.
    pub fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// One of these elements; there is at least one.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.index(from.len())]
    }

    /// An index below `len`, which is not 0.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("below a length")
    }

    /// A time around `mean`: mostly shorter, rarely several times as long.
    pub fn wait(&mut self, mean: u64) -> u64 {
        let doublings = (self.bits() | 1 << 8).trailing_zeros();
        1 + self.below(mean / 2 + 1) + u64::from(doublings) * mean / 2
    }

    /// Microseconds until the next event of a Poisson process with `rate` events per second; none
    /// if the rate is 0.
    pub fn poisson_wait(&mut self, rate: f64) -> Option<u64> {
        // From just above 0 to 1.
        let share = ((self.bits() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        (rate > 0.0).then(|| (-share.ln() / rate * 1e6) as u64 + 1)
    }

    /// An index, drawn by weight.
    pub fn weighted(&mut self, weights: &[u64]) -> usize {
        let mut at = self.below(weights.iter().sum::<u64>().max(1));
        for (index, weight) in weights.iter().enumerate() {
            if at < *weight {
                return index;
            }
            at -= weight;
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_of_a_poisson_process_are_as_long_as_its_rate_says() {
        let mut rng = Rng::new(7);
        let waits: Vec<u64> = (0..100_000).filter_map(|_| rng.poisson_wait(4.0)).collect();
        let mean = waits.iter().sum::<u64>() as f64 / waits.len() as f64;
        assert!((mean - 250_000.0).abs() < 2_500.0, "{mean}");
        // A share of 1/e of the waits is longer than the mean.
        let longer = waits.iter().filter(|wait| **wait > 250_000).count();
        assert!((36_000..37_600).contains(&longer), "{longer}");
        assert_eq!(rng.poisson_wait(0.0), None);
    }
}
