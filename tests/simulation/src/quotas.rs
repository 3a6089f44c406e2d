//! Quotas and lease limits of the volumes of a world: small, so that its few nodes and clients
//! reach them.
//!
//! The draws of both use random streams of their own, so that everything else in a world is drawn
//! as it would be without them.

use leasehold_model::rng::Rng;
use leasehold_protocol::{quota::Quota, volume::VolumeSettings};

/// Selects the random stream of quotas.
const QUOTAS: u64 = 0x71_75_6f_74_61;

/// Selects the random stream of lease limits.
const LEASE_LIMITS: u64 = 0x6c_69_6d_69_74_73;

/// How many of a thousand worlds have volumes with quotas, and how many have lease limits.
const WORLDS: u64 = 250;

/// The draws of quotas and lease limits in one world. A stream is `None` in worlds without them.
#[derive(Debug)]
pub(crate) struct Quotas {
    quotas: Option<Rng>,
    lease_limits: Option<Rng>,
}

impl Quotas {
    pub(crate) fn new(seed: u64) -> Self {
        let stream = |selector| {
            let mut rng = Rng::new(seed ^ selector);
            rng.chance(WORLDS).then_some(rng)
        };
        Self { quotas: stream(QUOTAS), lease_limits: stream(LEASE_LIMITS) }
    }

    /// The settings with another quota and another lease limit, or with none.
    pub(crate) fn draw(&mut self, settings: VolumeSettings) -> VolumeSettings {
        let limit = |rng: &mut Rng, limits: &[u64]| rng.chance(400).then(|| *rng.pick(limits));
        let quota = self.quotas.as_mut().map_or(Quota::NONE, |rng| Quota {
            nodes: limit(rng, &[1, 2, 3, 5, 8, 20]),
            bytes: limit(rng, &[4, 12, 30, 80, 300]),
        });
        let lease_limit =
            self.lease_limits.as_mut().and_then(|rng| rng.chance(400).then(|| *rng.pick(&[0, 1, 2, 4, 9])));
        settings.with_quota(quota).with_lease_limit(lease_limit)
    }
}
