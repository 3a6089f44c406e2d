//! Chance that a seed decides: SplitMix64 (Steele, Lea, Flood 2014), written here so that a seed means the same run whatever version of a library is used.

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub(crate) struct Draw(u64);

impl Draw {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bits ^ (bits >> 31)
    }

    /// Below `most`, which is not 0.
    pub(crate) fn below(&mut self, most: u64) -> u64 {
        self.next() % most
    }

    /// Microseconds until the next event of a Poisson process with so many events a second; none if it has none.
    pub(crate) fn wait(&mut self, rate: f64) -> Option<u64> {
        // From just above 0 to 1.
        let share = ((self.next() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        (rate > 0.0).then(|| (-share.ln() / rate * 1e6) as u64 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_as_long_as_their_rate_says() {
        let mut draw = Draw::new(7);
        let waits: Vec<u64> = (0..100_000).filter_map(|_| draw.wait(4.0)).collect();
        let mean = waits.iter().sum::<u64>() as f64 / waits.len() as f64;
        assert!((mean - 250_000.0).abs() < 2_500.0, "{mean}");
        // Of a Poisson process a share of 1/e waits for longer than the mean.
        let longer = waits.iter().filter(|wait| **wait > 250_000).count();
        assert!((36_000..37_600).contains(&longer), "{longer}");
        assert_eq!(draw.wait(0.0), None);
    }
}
