//! Volumes whose clients ask for the next value of a recalled copy (`OnWrite::Update`). The draws
//! use a random stream of their own, so that everything else in a world is drawn as it would be
//! without them.

use leasehold_model::rng::Rng;
use leasehold_protocol::lease_policy::OnWrite;

use crate::profile::Profile;

/// How many of a thousand worlds have such volumes.
const WORLDS: u64 = 300;

/// Selects the random stream of these draws.
const UPDATES: u64 = 0x75_70_64_61_74_65;

/// Lets some volumes of the world update, or none. Volumes whose writes only wait stay as they are.
pub(crate) fn draw(seed: u64, profile: &mut Profile) {
    let mut rng = Rng::new(seed ^ UPDATES);
    if !rng.chance(WORLDS) {
        return;
    }
    for settings in [&mut profile.volume].into_iter().chain(&mut profile.inner) {
        if settings.on_write() == OnWrite::Recall && rng.chance(700) {
            let policy = (settings.object_term(), OnWrite::Update, settings.grants());
            *settings = settings.with_policy(policy.0, policy.1, policy.2).expect("as with recalls");
        }
    }
}
