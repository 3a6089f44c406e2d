//! The load of all leases, and the refusals that bound it (S10b).
//!
//! The lessor must not grant leases that it cannot renew in time. Each lease has to be renewed at
//! least once in its term, and each renewal enters the log with a tick. So the lessor counts the
//! renewals that all leases need in a second. It also counts those of the leases that requests in
//! flight may bring. A lease on a volume with an adaptive term counts with the shortest term,
//! because it may get that when others leave. The lessor refuses one more lease as busy if the sum
//! would be too large. If earlier leaders granted more under other bounds, the lessor renews as far
//! as it can.
//!
//! The module also has the refusals for four other bounds: sessions, key leases, requests to
//! propose, and remembered results.

use std::time::Duration;

use crate::{
    command::{AnyLease, Write},
    id::SessionId,
    message::{Body, Refusal},
    path::NodePath,
    reached::{Bound, reached},
    state::State,
    volume::VolumeSettings,
};

use super::{
    Lessor,
    leases::{LOAD_PER_RENEWAL_A_SECOND, load_of_term},
};

impl Lessor {
    /// The refusal of a lease with this load, if the sum would exceed the bound.
    pub(super) fn beyond_load(&self, more: u64) -> Option<Refusal> {
        let load = self.leases.load() + self.load_to_come + more;
        let most = self.config.bounds.renewals_per_second_max;
        let is_beyond = load > (most as u64).saturating_mul(LOAD_PER_RENEWAL_A_SECOND);
        let count = usize::try_from(load.div_ceil(LOAD_PER_RENEWAL_A_SECOND)).unwrap_or(usize::MAX);
        let what = "renewals of leases in a second".to_owned();
        let is_refused = is_beyond && more > 0;
        if is_refused {
            reached(Bound::RenewalsPerSecond);
        }
        is_refused.then_some(Refusal::Busy { what, got: count, most })
    }

    /// The most load of a session that a request in flight opens. Its term is not known yet.
    pub(super) fn load_of_session() -> u64 {
        load_of_term(State::SESSION_TERM)
    }

    /// The load of a new lease on the path's volume. It is 0 if the session already has a lease
    /// there, because the new lease replaces it.
    pub(super) fn load_of_acquiring(&self, session: SessionId, path: &NodePath, state: &State) -> u64 {
        let (top, volume) = state.volume_of(path);
        let has_one = self.leases.get(&AnyLease::Volume(session, top.clone())).is_some();
        if has_one { 0 } else { load_of_term(volume.settings.shortest_term()) }
    }

    /// The load that a write adds if it takes effect. A new key lease adds its own load. A shorter
    /// term of a volume adds load for each lease on the volume.
    pub(super) fn load_of_write(&self, write: &Write, state: &State) -> u64 {
        match write {
            Write::GrantLease { ttl, .. } => load_of_term((*ttl).max(Duration::from_micros(1))),
            Write::SetVolume { path, settings } => {
                let load = |settings: &VolumeSettings| load_of_term(settings.shortest_term());
                let now = state.volume(path).map(|volume| load(&volume.settings));
                let more = now.map_or(0, |now| load(settings).saturating_sub(now));
                more.saturating_mul(self.object_leases.totals_in(path).tracks)
            }
            _ => 0,
        }
    }

    /// The refusal of a request, if a table or the proposal queue has no room for it.
    pub(super) fn no_room_for(&self, body: &Body, state: &State) -> Option<Refusal> {
        let bounds = &self.config.bounds;
        let waiting = || {
            let count = self.proposal_queue.requests();
            busy("requests to propose", Bound::RequestsWaiting, count, bounds.requests_waiting_max)
        };
        match body {
            Body::Open { .. } => {
                let sessions = state.session_count() + self.sessions_to_come;
                busy("sessions", Bound::Sessions, sessions, bounds.sessions_max).or_else(waiting)
            }
            Body::Close | Body::Acquire { .. } => waiting(),
            _ => None,
        }
    }

    /// The refusal of one more key lease, if there are too many.
    pub(super) fn beyond_key_leases(&self) -> Option<Refusal> {
        let count = self.leases.key_leases() + self.key_leases_to_come;
        busy("key leases", Bound::KeyLeases, count, self.config.bounds.key_leases_max)
    }

    /// The refusal of a transaction, if its results and those already remembered would exceed the
    /// bound.
    pub(super) fn beyond_results(&self, write: &Write, state: &State) -> Option<Refusal> {
        let (added, most) = (results_of_write(write), self.config.bounds.results_max);
        let count = state.results_remembered() + self.results_to_come + added;
        let what = "results of transactions to remember".to_owned();
        let is_beyond = added > 0 && count > most;
        if is_beyond {
            reached(Bound::Results);
        }
        is_beyond.then_some(Refusal::Busy { what, got: count, most })
    }
}

/// The refusal of one more entry, if there are `most` entries or more.
fn busy(what: &str, bound: Bound, count: usize, most: usize) -> Option<Refusal> {
    (count >= most).then(|| {
        reached(bound);
        Refusal::Busy { what: what.to_owned(), got: count, most }
    })
}

/// The most key leases that this write may add.
pub(super) fn key_leases_of_write(write: &Write) -> usize {
    usize::from(matches!(write, Write::GrantLease { .. }))
}

/// The most results that the state may remember for this write.
pub(super) fn results_of_write(write: &Write) -> usize {
    match write {
        Write::Transaction(transaction) => transaction.then.len().max(transaction.otherwise.len()),
        _ => 0,
    }
}
