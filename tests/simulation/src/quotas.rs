//! Quotas and lease limits of the volumes of a world: small, so that its few nodes and clients
//! reach them. And the consents of clients that delay them.
//!
//! The draws of all three use random streams of their own, so that everything else in a world is
//! drawn as it would be without them.

use std::time::Duration;

use leasehold_model::rng::Rng;
use leasehold_protocol::{holder::HolderConfig, quota::Quota, volume::VolumeSettings};

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

/// Selects the random stream of delayed consents.
const CONSENTS: u64 = 0x63_6f_6e_73_65_6e_74;

/// The draws of delayed consents in one world, from a random stream of their own.
#[derive(Debug)]
pub(crate) struct ConsentDelays(Option<Rng>);

impl ConsentDelays {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ CONSENTS);
        Self(rng.chance(WORLDS).then_some(rng))
    }

    /// Delays the consents of a client that begins, or not.
    pub(crate) fn draw(&mut self, config: &mut HolderConfig) {
        let Some(rng) = &mut self.0 else { return };
        config.consent_delay = Duration::from_millis(*rng.pick(&[0, 5, 40, 300, 60_000]));
        if rng.chance(300) {
            config.bounds.delayed_consents_max = 1;
        }
    }
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
