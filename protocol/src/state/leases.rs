//! Replicated leases and their horizons (T5, T6 in docs/PROTOCOL.md).
//!
//! A record has the lease's horizon: no promise of any leader goes beyond it. Only the leader knows
//! when the lease ends within its horizon. Only a command removes a lease:
//! [expiry](Command::Expire), a revocation, the end of its session or its volume, or a new lease of
//! the same session on the same volume.
//!
//! [`Command::Expire`]: crate::command::Command::Expire

mod names;
#[cfg(test)]
mod tests;

use std::{ops::Bound, time::Duration};

use serde::{Deserialize, Serialize};

use super::{RowKey, State, touched::Touched};
use crate::{
    command::{AnyLease, Outcome, Renewal},
    id::{Incarnation, LeaseId, Revision, SessionId},
    lease_name::LeaseName,
    path::NodePath,
    time::{ClusterTime, Span},
    volume::VolumeSettings,
    work::CountVisits,
};

/// One replicated lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct LeaseRecord {
    /// Distinguishes this lease from all others, earlier and later.
    pub incarnation: Incarnation,
    term: Span,
    /// No promise goes beyond this time. Never moves backwards.
    pub horizon: ClusterTime,
    margin: Span,
    longest_term: Span,
    /// The last change that attached a node to the lease. 0 if there is none.
    pub attached_at: Revision,
    /// The name of a key lease, if its client gave it one. It never changes.
    pub name: Option<LeaseName>,
}

impl LeaseRecord {
    /// The promised term, as of the grant or the last renewal.
    pub fn term(&self) -> Duration {
        self.term.duration()
    }

    /// The greatest skew margin that its volume has had since the grant. A promise under earlier
    /// settings, with a longer term and a greater margin, may still hold (T3). Zero for sessions
    /// and lock delays: no client counts on them. Zero for key leases: their margin follows from
    /// the TTL and the cluster's drift allowance.
    pub fn margin(&self) -> Duration {
        self.margin.duration()
    }

    /// For a volume lease, the longest term that the volume's settings have allowed since the
    /// grant. A promise of that length may still hold (T3). For other leases it is their term.
    pub fn longest_term(&self) -> Duration {
        self.longest_term.duration()
    }
}

impl State {
    /// The lease with this key.
    pub fn lease(&self, key: &AnyLease) -> Option<&LeaseRecord> {
        self.leases.get(key)
    }

    /// All leases: sessions, then volume leases by session and top, then key leases, then lock
    /// delays.
    pub fn leases(&self) -> impl Iterator<Item = (&AnyLease, &LeaseRecord)> {
        self.leases.iter().counted()
    }

    /// All leases of one session: its own, then its volume leases.
    pub fn leases_of(&self, session: SessionId) -> impl Iterator<Item = (&AnyLease, &LeaseRecord)> {
        self.leases.get_key_value(&AnyLease::Session(session)).into_iter().chain(self.volume_leases_of(session))
    }

    fn volume_leases_of(&self, session: SessionId) -> impl Iterator<Item = (&AnyLease, &LeaseRecord)> {
        let first = AnyLease::Volume(session, NodePath::root());
        self.leases
            .range((Bound::Included(first), Bound::Unbounded))
            .counted()
            .take_while(move |(key, _)| key.session() == Some(session))
    }

    /// The key leases with ids above `after`, in order of their ids.
    pub fn key_leases_after(&self, after: Option<LeaseId>) -> impl Iterator<Item = (LeaseId, &LeaseRecord)> {
        let from = match after {
            Some(id) => Bound::Excluded(AnyLease::KeyLease(id)),
            None => Bound::Included(AnyLease::KeyLease(LeaseId(0))),
        };
        let leases = self.leases.range((from, Bound::Unbounded)).counted();
        leases.map_while(|(key, lease)| match key {
            AnyLease::KeyLease(id) => Some((*id, lease)),
            AnyLease::Session(_) | AnyLease::Volume(..) | AnyLease::LockDelay(_) => None,
        })
    }

    /// After a change of the volume's settings, gives each lease on it the greater of the old and
    /// the new margin, and of the old and the new longest term.
    pub(super) fn widen_margins(&mut self, top: &NodePath, settings: &VolumeSettings, touched: &mut Touched) {
        let (margin, longest_term) = (Span::from(settings.skew_margin()), Span::from(settings.longest_term()));
        for session in self.lease_holders_on(top).collect::<Vec<_>>() {
            let key = AnyLease::Volume(session, top.clone());
            let Some(lease) = self.leases.get_mut(&key) else { continue };
            let greatest = (lease.margin.max(margin), lease.longest_term.max(longest_term));
            if (lease.margin, lease.longest_term) != greatest {
                (lease.margin, lease.longest_term) = greatest;
                touched.insert(RowKey::Lease(key));
            }
        }
    }

    /// Grants a new lease with this key. It replaces an earlier lease with the same key.
    pub(super) fn grant_lease(&mut self, key: AnyLease, term: Duration, touched: &mut Touched) -> LeaseRecord {
        let incarnation = self.meta.next_incarnation;
        self.meta.next_incarnation = incarnation.next();
        let (margin, longest_term) = match &key {
            AnyLease::Session(_) | AnyLease::KeyLease(_) | AnyLease::LockDelay(_) => (Duration::ZERO, term),
            AnyLease::Volume(_, top) => {
                let settings = &self.volume_of(top).1.settings;
                (settings.skew_margin(), settings.longest_term())
            }
        };
        let horizon = self.horizon_from_now(term);
        let lease = LeaseRecord {
            incarnation,
            term: term.into(),
            horizon,
            margin: margin.into(),
            longest_term: longest_term.into(),
            attached_at: Revision(0),
            name: None,
        };
        touched.insert(RowKey::Lease(key.clone()));
        self.note_volume_lease(&key);
        self.leases.insert(key, lease.clone());
        lease
    }

    fn horizon_from_now(&self, term: Duration) -> ClusterTime {
        self.meta.cluster_time.after(term).after(self.tick)
    }

    /// Acquires a lease on the volume that `path` belongs to. Also renews the session lease.
    pub(super) fn acquire_volume(&mut self, id: SessionId, path: &NodePath, touched: &mut Touched) -> Outcome {
        if !self.sessions.contains_key(&id) {
            return Outcome::SessionNotFound;
        }
        self.renew_session(id, touched);
        let (top, volume) = self.volume_of(path);
        let (top, generation, term) = (top.clone(), volume.generation, self.volume_term(top, &volume.settings));
        let key = AnyLease::Volume(id, top.clone());
        let lease = match self.has_dependents(&key) {
            true => self.extend_lease(&key, term, touched),
            false => self.end_and_grant(key, term, touched),
        };
        Outcome::VolumeAcquired { volume: top, incarnation: lease.incarnation, generation, horizon: lease.horizon }
    }

    fn renew_session(&mut self, id: SessionId, touched: &mut Touched) {
        let key = AnyLease::Session(id);
        let horizon = self.lease(&key).map(|lease| self.horizon_from_now(lease.term()));
        if let Some(horizon) = horizon
            && let Some(lease) = self.leases.get_mut(&key)
            && lease.horizon < horizon
        {
            lease.horizon = horizon;
            touched.insert(RowKey::Lease(key));
        }
    }

    /// Extends a lease that has nodes or locks, instead of replacing it. For example, a client asks
    /// for a lease on a path whose volume was removed. The path now belongs to the volume above,
    /// where the client already has a lease with nodes. A new lease there would make orphans of
    /// these nodes.
    fn extend_lease(&mut self, key: &AnyLease, term: Duration, touched: &mut Touched) -> LeaseRecord {
        let horizon = self.horizon_from_now(term);
        let lease = self.leases.get_mut(key).expect("the lease has nodes or locks");
        lease.horizon = lease.horizon.max(horizon);
        touched.insert(RowKey::Lease(key.clone()));
        lease.clone()
    }

    fn end_and_grant(&mut self, key: AnyLease, term: Duration, touched: &mut Touched) -> LeaseRecord {
        self.end_lease(&key, touched);
        self.grant_lease(key, term, touched)
    }

    /// Moves the horizon of each renewed lease, never backwards (T6). The new horizon is the lesser
    /// of *now + term + tick* and *last renewal + term + 2 ticks*.
    ///
    /// The second bound is for a late tick. Counted from now alone, a late tick would give an
    /// abandoned lease a full term more. The term is the volume's present term, so a changed term
    /// counts from the next renewal.
    pub(super) fn move_horizons(&mut self, renewals: &[Renewal], touched: &mut Touched) -> Outcome {
        for Renewal { lease: key, incarnation, renewed_at } in renewals {
            let term = self.current_term(key);
            let bound = self.horizon_from_now(term).min(renewed_at.after(term).after(self.tick * 2));
            let Some(lease) = self.leases.get_mut(key).filter(|lease| lease.incarnation == *incarnation) else {
                continue;
            };
            let (term, horizon) = (Span::from(term), lease.horizon.max(bound));
            if (lease.term, lease.horizon) != (term, horizon) {
                (lease.term, lease.horizon) = (term, horizon);
                touched.insert(RowKey::Lease(key.clone()));
            }
        }
        Outcome::Ticked
    }

    fn current_term(&self, key: &AnyLease) -> Duration {
        match key {
            AnyLease::Volume(_, top) => self.volume_term(top, &self.volume_of(top).1.settings),
            AnyLease::Session(_) | AnyLease::KeyLease(_) | AnyLease::LockDelay(_) => {
                self.lease(key).map_or(Duration::ZERO, LeaseRecord::term)
            }
        }
    }

    /// Ends a lease, if its incarnation and horizon are still those of the command (T5).
    ///
    /// A session ends with its session lease. While it has a volume lease it does not end, because
    /// its copies may still be in use. The outcome is then [`Outcome::HorizonMoved`], although the
    /// horizon is the same. The proposer ends the volume leases first, and tries again.
    pub(super) fn expire(
        &mut self,
        key: &AnyLease,
        incarnation: Incarnation,
        horizon: ClusterTime,
        touched: &mut Touched,
    ) -> Outcome {
        let Some(lease) = self.leases.get(key).filter(|lease| lease.incarnation == incarnation) else {
            return Outcome::LeaseNotFound;
        };
        if lease.horizon != horizon {
            return Outcome::HorizonMoved { horizon: lease.horizon };
        }
        match key {
            AnyLease::Session(id) if self.volume_leases_of(*id).next().is_some() => {
                return Outcome::HorizonMoved { horizon };
            }
            AnyLease::Session(id) => {
                self.close_session(*id, touched);
            }
            AnyLease::Volume(..) | AnyLease::KeyLease(_) | AnyLease::LockDelay(_) => {
                self.end_lease(key, touched);
            }
        }
        Outcome::Expired
    }

    /// Ends all leases on a removed volume.
    pub(super) fn remove_leases_on(&mut self, top: &NodePath, touched: &mut Touched) {
        for session in self.lease_holders_on(top).collect::<Vec<_>>() {
            let key = AnyLease::Volume(session, top.clone());
            self.leases.remove(&key);
            self.forget_volume_lease(&key);
            touched.insert(RowKey::Lease(key));
        }
    }
}
