//! Volumes whose terms adapt: volume terms to the number of leases, and object terms to the use.
//! The draws use random streams of their own, so that everything else in a world is drawn as it
//! would be without them.

use leasehold_model::rng::Rng;
use leasehold_protocol::{
    lease_policy::{ObjectTerm, OnWrite},
    time::DriftAllowance,
    volume::{VolumeSettings, VolumeTerm},
};

use crate::profile::{Policies, Profile, with_term};

/// How many of a thousand worlds have such volumes.
const WORLDS: u64 = 300;

/// Selects the random stream of adaptive terms.
const TERMS: u64 = 0x74_65_72_6d_73;

/// How many of a thousand worlds with lease policies have volumes with object terms by use.
const USE_WORLDS: u64 = 250;

/// Selects the random stream of these object terms.
const USE: u64 = 0x75_73_65;

/// Makes the object terms of some volumes of the world follow their use, or none.
pub(crate) fn draw_by_use(seed: u64, profile: &mut Profile) {
    let mut rng = Rng::new(seed ^ USE);
    if profile.policies == Policies::Usual || !rng.chance(USE_WORLDS) {
        return;
    }
    for settings in [&mut profile.volume].into_iter().chain(&mut profile.inner) {
        if rng.chance(700) {
            // Without recalls, no object lease may outlast the shortest volume term.
            let most = match settings.on_write() {
                OnWrite::Recall | OnWrite::Update => settings.longest_term() * *rng.pick(&[1, 6]),
                OnWrite::Wait => settings.shortest_term(),
            };
            let by_use = ObjectTerm::ByUse { least: VolumeSettings::TERM_MIN, most };
            *settings = settings.with_policy(by_use, settings.on_write(), settings.grants()).expect("within bounds");
        }
    }
}

/// Makes the terms of some volumes of the world adaptive, or none.
pub(crate) fn draw(seed: u64, profile: &mut Profile) {
    let mut rng = Rng::new(seed ^ TERMS);
    if !rng.chance(WORLDS) {
        return;
    }
    let drift = profile.drift;
    for settings in [&mut profile.volume].into_iter().chain(&mut profile.inner) {
        if rng.chance(700) {
            *settings = adaptive(settings, drift, &mut rng);
        }
    }
}

/// The settings with a term between theirs and its double or triple. A world has few clients, so
/// the rate is low enough for a term that changes with each of them.
fn adaptive(settings: &VolumeSettings, drift: DriftAllowance, rng: &mut Rng) -> VolumeSettings {
    let least = settings.longest_term();
    let most = least * *rng.pick(&[2, 3]);
    let renewals_per_second = *rng.pick(&[1, 2, 4]);
    // Margins that did not cover the drift before do not cover it now.
    let margin = match settings.check_drift(drift) {
        Ok(()) => settings.skew_margin() + drift.over(most - least) * 2 + std::time::Duration::from_micros(1),
        Err(_) => settings.skew_margin(),
    };
    with_term(settings, VolumeTerm::Adaptive { least, most, renewals_per_second }, margin)
}
