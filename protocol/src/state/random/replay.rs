//! A replay of the log from its beginning.

use super::*;

/// The whole state, with cluster time (as in LogCabin), depends on the log alone. So a replica that
/// starts empty ends with the same bytes.
#[test]
fn log_replayed_on_a_fresh_replica_gives_the_same_rows() {
    for seed in 1..=SEEDS {
        let mut random = Random::new(seed);
        let (mut first, mut log) = (Fixture::new(), Vec::new());
        for _ in 0..STEPS {
            log.push(random_proposal(&mut random, &first.state));
            first.apply(log.last().expect("just added"));
        }
        let mut fresh = Fixture::new();
        let applied: Vec<Applied> = log.iter().map(|proposal| fresh.apply(proposal)).collect();
        assert_eq!(applied.len(), STEPS);
        assert!(fresh.rows == first.rows && fresh.state == first.state, "seed {seed}");
        assert!(
            first.state.cluster_time() > ClusterTime::ZERO && first.rows.len() > 1,
            "seed {seed}: it did something"
        );
    }
}
