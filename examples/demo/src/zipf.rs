//! Zipf's distribution: the item of rank *k* has the weight 1 / (*k* + 1)^*s*. Real reads are close
//! to it.

use rand::Rng;

/// The exponent: about 1 in most traces.
pub(crate) const EXPONENT: f64 = 0.99;

/// Draws ranks exactly, by a table of the distribution function.
#[derive(Debug, Clone)]
pub(crate) struct Zipf {
    cumulated: Vec<f64>,
}

impl Zipf {
    /// Ranks 0 to `items` − 1. `None` if there are no items.
    pub(crate) fn new(items: usize, exponent: f64) -> Option<Self> {
        let cumulated: Vec<f64> = (1..=items)
            .scan(0.0, |sum, rank| {
                *sum += (rank as f64).powf(-exponent);
                Some(*sum)
            })
            .collect();
        (items > 0).then_some(Self { cumulated })
    }

    /// Draws a rank.
    pub(crate) fn sample(&self, random: &mut impl Rng) -> usize {
        let total = self.cumulated.last().copied().unwrap_or_default();
        let drawn = random.random::<f64>() * total;
        // Rounding can make `drawn` equal to the total.
        self.cumulated.partition_point(|sum| *sum <= drawn).min(self.cumulated.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use rand::{SeedableRng, rngs::SmallRng};

    use super::*;

    #[test]
    fn ranks_come_as_often_as_the_formula_says() {
        let zipf = Zipf::new(4, 1.0).expect("four items");
        let mut random = SmallRng::seed_from_u64(7);
        let mut counts = [0_u32; 4];
        for _ in 0..100_000 {
            counts[zipf.sample(&mut random)] += 1;
        }
        let harmonic = 1.0 + 1.0 / 2.0 + 1.0 / 3.0 + 1.0 / 4.0;
        for (rank, count) in counts.into_iter().enumerate() {
            let expected = 100_000.0 / harmonic / (rank + 1) as f64;
            assert!((f64::from(count) - expected).abs() < 0.03 * expected, "rank {rank}: {count}, expected {expected}");
        }
    }

    #[test]
    fn one_item_is_always_drawn_and_none_cannot_be() {
        let zipf = Zipf::new(1, EXPONENT).expect("one item");
        assert_eq!(zipf.sample(&mut SmallRng::seed_from_u64(1)), 0);
        assert!(Zipf::new(0, EXPONENT).is_none());
    }
}
