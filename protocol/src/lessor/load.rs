//! What keeping all leases takes, and what is refused because it would take too much.
//!
//! *What cannot be renewed in time must not have been granted* (S10b). Each lease has to be renewed once in its term at least, and each
//! renewal goes into the log with a tick. So the renewals that all leases need in a second are counted, with those of the leases that
//! requests under way may bring, and one more lease is refused as busy when they would be too many. Leases that were granted by another
//! leader, with other bounds, are kept as long as that goes.

use std::time::Duration;

use crate::{
    command::{LeaseKey, Write},
    id::SessionId,
    message::Refusal,
    path::Path,
    reached::{Bound, reached},
    state::State,
};

use super::{
    Lessor,
    ends::{LOAD_PER_RENEWAL_A_SECOND, load_of_term},
};

impl Lessor {
    /// The refusal of a lease that would take so much more, if that is too much.
    pub(super) fn beyond_load(&self, more: u64) -> Option<Refusal> {
        let load = self.ends.load() + self.load_to_come + more;
        let most = self.config.bounds.renewals_per_second_max;
        let is_beyond = load > (most as u64).saturating_mul(LOAD_PER_RENEWAL_A_SECOND);
        let got = usize::try_from(load.div_ceil(LOAD_PER_RENEWAL_A_SECOND)).unwrap_or(usize::MAX);
        let what = "renewals of leases in a second".to_owned();
        let is_refused = is_beyond && more > 0;
        if is_refused {
            reached(Bound::RenewalsPerSecond);
        }
        is_refused.then_some(Refusal::Busy { what, got, most })
    }

    /// What a new session takes.
    pub(super) fn load_of_session() -> u64 {
        load_of_term(State::SESSION_TERM)
    }

    /// What a lease on the volume that the path is in takes: nothing more if the session has one there, whose place it takes.
    pub(super) fn load_of_acquiring(&self, session: SessionId, path: &Path, state: &State) -> u64 {
        let (top, volume) = state.volume_of(path);
        let has_one = self.ends.get(&LeaseKey::Volume(session, top.clone())).is_some();
        if has_one { 0 } else { load_of_term(volume.settings.term()) }
    }
}

/// What a write adds to the load, if it takes effect.
pub(super) fn load_of_write(write: &Write) -> u64 {
    match write {
        Write::GrantLease { ttl, .. } => load_of_term((*ttl).max(Duration::from_micros(1))),
        _ => 0,
    }
}
