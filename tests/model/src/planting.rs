//! Puts known mistakes back, in builds that can do that.

use leasehold_protocol::{
    planted::{Bug, Planted},
    state::State,
};

/// Whether this build can put mistakes back: with the feature `planted-bugs`.
pub const CAN_PLANT: bool = cfg!(feature = "planted-bugs");

/// The mistake, for the rules of clients and leaders.
#[cfg(feature = "planted-bugs")]
pub fn planted(bug: Option<Bug>) -> Planted {
    bug.map_or_else(Planted::default, Planted::one)
}

/// This build has no mistakes.
#[cfg(not(feature = "planted-bugs"))]
pub fn planted(_bug: Option<Bug>) -> Planted {
    Planted::default()
}

/// Puts a mistake into a state.
#[cfg(feature = "planted-bugs")]
pub fn plant(state: &mut State, bug: Option<Bug>) {
    state.plant(planted(bug));
}

/// Does nothing in this build.
#[cfg(not(feature = "planted-bugs"))]
pub fn plant(_state: &mut State, _bug: Option<Bug>) {}

/// The mistake of this name, for an option of a program.
pub fn bug_named(name: &str) -> Result<Bug, String> {
    if !CAN_PLANT {
        return Err("this build has the shipped rules only; build with --features planted-bugs".to_owned());
    }
    let names = || Bug::ALL.map(|bug| format!("{bug:?}")).join(", ");
    let found = Bug::ALL.into_iter().find(|bug| format!("{bug:?}") == name);
    found.ok_or_else(|| format!("{name}: no such mistake; expected one of {}", names()))
}
