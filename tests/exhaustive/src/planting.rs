//! Puts known mistakes back, in builds that can do that.

use leasehold_protocol::{
    planted::{Bug, Planted},
    state::State,
};

/// Whether this build can put mistakes back: with the feature `planted-bugs`.
pub const CAN_PLANT: bool = cfg!(feature = "planted-bugs");

/// The mistake, for the rules of clients and leaders.
#[cfg(feature = "planted-bugs")]
pub(crate) fn planted(bug: Option<Bug>) -> Planted {
    bug.map_or_else(Planted::default, Planted::one)
}

/// This build has no mistakes.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) fn planted(_bug: Option<Bug>) -> Planted {
    Planted::default()
}

/// Puts a mistake into a state.
#[cfg(feature = "planted-bugs")]
pub(crate) fn plant(state: &mut State, bug: Option<Bug>) {
    state.plant(planted(bug));
}

/// Does nothing in this build.
#[cfg(not(feature = "planted-bugs"))]
pub(crate) fn plant(_state: &mut State, _bug: Option<Bug>) {}
