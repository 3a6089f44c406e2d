//! Clients that delay their consents. The draws use a random stream of their own, so that
//! everything else in a world is drawn as it would be without them.

use std::time::Duration;

use leasehold_model::rng::Rng;
use leasehold_protocol::holder::HolderConfig;

/// How many of a thousand worlds have such clients.
const WORLDS: u64 = 250;

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
