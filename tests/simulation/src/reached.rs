//! Which named bounds a world has reached. A bound that no world reaches is untested here.
//!
//! The rules count where each takes effect ([`leasehold_protocol::reached`]), in builds with the
//! feature `count-bounds`.

pub use leasehold_protocol::reached::{BY_TESTS_OF_RULES, Bound};

use crate::tally::Tally;

/// Clears the counts of an earlier world on this thread.
pub(crate) fn begin() {
    take();
}

/// Adds the counts to the tally.
pub(crate) fn note(tally: &mut Tally) {
    for (bound, count) in take() {
        tally.add_many(bound.name(), count);
    }
}

#[cfg(feature = "count-bounds")]
fn take() -> std::collections::BTreeMap<Bound, u64> {
    leasehold_protocol::reached::take_reached()
}

/// This build does not count.
#[cfg(not(feature = "count-bounds"))]
fn take() -> [(Bound, u64); 0] {
    []
}
