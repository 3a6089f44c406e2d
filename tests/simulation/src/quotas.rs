//! Quotas of the volumes of a world: small, so that its few nodes reach them.
//!
//! The draws use their own random stream, so that everything else in a world is drawn as it would
//! be without them.

use leasehold_model::rng::Rng;
use leasehold_protocol::{quota::Quota, volume::VolumeSettings};

/// Selects the random stream of quotas.
const QUOTAS: u64 = 0x71_75_6f_74_61;

/// How many of a thousand worlds have volumes with quotas.
const WORLDS: u64 = 250;

/// The draws of quotas in one world.
#[derive(Debug)]
pub(crate) struct Quotas {
    rng: Rng,
    has_any: bool,
}

impl Quotas {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ QUOTAS);
        let has_any = rng.chance(WORLDS);
        Self { rng, has_any }
    }

    /// The settings with another quota, or with none.
    pub(crate) fn draw(&mut self, settings: VolumeSettings) -> VolumeSettings {
        if !self.has_any {
            return settings;
        }
        let mut limit = |limits: &[u64]| self.rng.chance(400).then(|| *self.rng.pick(limits));
        settings.with_quota(Quota { nodes: limit(&[1, 2, 3, 5, 8, 20]), bytes: limit(&[4, 12, 30, 80, 300]) })
    }
}
