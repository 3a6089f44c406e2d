//! What keeping all leases takes, and what is refused because it would take too much.
//!
//! *What cannot be renewed in time must not have been granted* (S10b). Each lease has to be renewed
//! once in its term at least, and each renewal goes into the log with a tick. So the renewals that
//! all leases need in a second are counted, with those of the leases that requests under way may
//! bring, and one more lease is refused as busy when they would be too many. Leases that were
//! granted by another leader, with other bounds, are kept as long as that goes.

use std::time::Duration;

use crate::{
    command::{LeaseKey, Write},
    id::SessionId,
    message::{Body, Refusal},
    path::NodePath,
    reached::{Bound, reached},
    state::State,
};

use super::{
    Lessor,
    lease_ends::{LOAD_PER_RENEWAL_A_SECOND, load_of_term},
};

impl Lessor {
    /// The refusal of a lease that would take so much more, if that is too much.
    pub(super) fn beyond_load(&self, more: u64) -> Option<Refusal> {
        let load = self.lease_ends.load() + self.load_to_come + more;
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

    /// What a lease on the volume that the path is in takes: nothing more if the session has one
    /// there, whose place it takes.
    pub(super) fn load_of_acquiring(&self, session: SessionId, path: &NodePath, state: &State) -> u64 {
        let (top, volume) = state.volume_of(path);
        let has_one = self.lease_ends.get(&LeaseKey::Volume(session, top.clone())).is_some();
        if has_one { 0 } else { load_of_term(volume.settings.term()) }
    }

    /// What a write adds to the load, if it takes effect: a key lease what it needs, a volume's
    /// shorter term what all leases on the volume need more.
    pub(super) fn load_of_write(&self, write: &Write, state: &State) -> u64 {
        match write {
            Write::GrantLease { ttl, .. } => load_of_term((*ttl).max(Duration::from_micros(1))),
            Write::SetVolume { path, settings } => {
                let now = state.volume(path).map(|volume| load_of_term(volume.settings.term()));
                let more = now.map_or(0, |now| load_of_term(settings.term()).saturating_sub(now));
                more.saturating_mul(self.object_leases.count_in(path))
            }
            _ => 0,
        }
    }

    /// Why a request that is to be proposed as it is finds no room.
    pub(super) fn no_room_for(&self, body: &Body, state: &State) -> Option<Refusal> {
        let bounds = &self.config.bounds;
        let busy = |what: &str, bound, got, most| {
            (got >= most).then(|| {
                reached(bound);
                Refusal::Busy { what: what.to_owned(), got, most }
            })
        };
        let waiting = || {
            let got = self.proposal_queue.requests();
            busy("requests to propose", Bound::RequestsWaiting, got, bounds.requests_waiting_max)
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

    /// The refusal of a transaction whose results would be too many to remember, beside those that
    /// are.
    pub(super) fn beyond_results(&self, write: &Write, state: &State) -> Option<Refusal> {
        let (own, most) = (results_of_write(write), self.config.bounds.results_max);
        let got = state.results_remembered() + self.results_to_come + own;
        let what = "results of transactions to remember".to_owned();
        let is_beyond = own > 0 && got > most;
        if is_beyond {
            reached(Bound::Results);
        }
        is_beyond.then_some(Refusal::Busy { what, got, most })
    }
}

/// How many results are to be remembered of a write, at the most.
pub(super) fn results_of_write(write: &Write) -> usize {
    match write {
        Write::Transaction(transaction) => transaction.then.len().max(transaction.otherwise.len()),
        _ => 0,
    }
}
