//! Replicated leases and their horizons.
//!
//! A lease is here with the bound that no promise of any leader goes beyond, its horizon (T6). When it really ends
//! within that is the leader's business. A lease is removed by a command only: by [expiry](Command::Expire), by the end
//! of its session or of its volume, or by a new lease of the same session on the same volume.
//!
//! [`Command::Expire`]: crate::command::Command::Expire

use std::{collections::BTreeSet, ops::Bound, time::Duration};

use serde::{Deserialize, Serialize};

use super::{RowKey, State};
use crate::{
    command::{LeaseKey, Outcome, Renewal},
    id::{Incarnation, SessionId},
    path::Path,
    time::ClusterTime,
};

/// One replicated lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lease {
    /// Which of the leases that there have been.
    pub incarnation: Incarnation,
    /// How long it is promised for, as of its grant or its last renewal.
    pub term: Duration,
    /// No promise goes beyond this. Never moves backwards.
    pub horizon: ClusterTime,
}

impl State {
    /// The lease of this name.
    pub fn lease(&self, key: &LeaseKey) -> Option<&Lease> {
        self.leases.get(key)
    }

    /// All leases: those of sessions in order, then those on volumes by session and top.
    pub fn leases(&self) -> impl Iterator<Item = (&LeaseKey, &Lease)> {
        self.leases.iter()
    }

    /// All leases of one session: its own, then those on volumes.
    pub fn leases_of(&self, session: SessionId) -> impl Iterator<Item = (&LeaseKey, &Lease)> {
        self.leases
            .get_key_value(&LeaseKey::Session(session))
            .into_iter()
            .chain(self.volume_leases_of(session))
    }

    fn volume_leases_of(&self, session: SessionId) -> impl Iterator<Item = (&LeaseKey, &Lease)> {
        let first = LeaseKey::Volume(session, Path::root());
        self.leases
            .range((Bound::Included(first), Bound::Unbounded))
            .take_while(move |(key, _)| key.session() == session)
    }

    /// What the server waits beyond a lease's end before it counts it as over (T3): the margin of the lease's volume, or
    /// of the one that its paths belong to if that is gone. Zero for sessions, whose end makes no copy unsafe.
    pub fn margin(&self, key: &LeaseKey) -> Duration {
        match key {
            LeaseKey::Session(_) => Duration::ZERO,
            LeaseKey::Volume(_, top) => self.volume_of(top).1.settings.skew_margin(),
        }
    }

    /// Gives a lease of this name, a new one whether or not there was one before.
    pub(super) fn grant_lease(
        &mut self,
        key: LeaseKey,
        term: Duration,
        touched: &mut BTreeSet<RowKey>,
    ) -> Lease {
        let incarnation = self.meta.next_incarnation;
        self.meta.next_incarnation = incarnation.next();
        let lease = Lease {
            incarnation,
            term,
            horizon: self.horizon_from_now(term),
        };
        touched.insert(RowKey::Lease(key.clone()));
        self.leases.insert(key, lease.clone());
        lease
    }

    fn horizon_from_now(&self, term: Duration) -> ClusterTime {
        self.meta.cluster_time.after(term).after(self.tick)
    }

    /// A new lease on the volume that `path` belongs to. It is a sign of life of its session too.
    pub(super) fn acquire_volume(
        &mut self,
        id: SessionId,
        path: &Path,
        touched: &mut BTreeSet<RowKey>,
    ) -> Outcome {
        if !self.sessions.contains_key(&id) {
            return Outcome::SessionGone;
        }
        let alive_until = self.horizon_from_now(Self::SESSION_TERM);
        let session_key = LeaseKey::Session(id);
        if let Some(lease) = self.leases.get_mut(&session_key)
            && lease.horizon < alive_until
        {
            lease.horizon = alive_until;
            touched.insert(RowKey::Lease(session_key));
        }
        let (top, volume) = self.volume_of(path);
        let (top, generation, term) = (top.clone(), volume.generation, volume.settings.term());
        let lease = self.grant_lease(LeaseKey::Volume(id, top.clone()), term, touched);
        Outcome::VolumeAcquired {
            volume: top,
            incarnation: lease.incarnation,
            generation,
            horizon: lease.horizon,
        }
    }

    /// Moves the horizons of renewed leases to the lesser of *now + term + tick* and *last renewal + term + two
    /// ticks*, never backwards (T6).
    ///
    /// The lesser bound is for a tick entry that was late: counted from now alone, it would give a lease that its
    /// client has long abandoned a full extension. The term is the volume's of today: a changed one counts from the
    /// next renewal on.
    pub(super) fn move_horizons(
        &mut self,
        renewals: &[Renewal],
        touched: &mut BTreeSet<RowKey>,
    ) -> Outcome {
        for Renewal {
            lease: key,
            incarnation,
            at,
        } in renewals
        {
            let term = self.current_term(key);
            let bound = self
                .horizon_from_now(term)
                .min(at.after(term).after(self.tick * 2));
            let Some(lease) = self
                .leases
                .get_mut(key)
                .filter(|lease| lease.incarnation == *incarnation)
            else {
                continue;
            };
            let moved = Lease {
                incarnation: *incarnation,
                term,
                horizon: lease.horizon.max(bound),
            };
            if *lease != moved {
                *lease = moved;
                touched.insert(RowKey::Lease(key.clone()));
            }
        }
        Outcome::Ticked
    }

    fn current_term(&self, key: &LeaseKey) -> Duration {
        match key {
            LeaseKey::Session(_) => Self::SESSION_TERM,
            LeaseKey::Volume(_, top) => self.volume_of(top).1.settings.term(),
        }
    }

    /// Ends a lease if it is the one that is meant and its horizon has not moved since (T5).
    ///
    /// A session ends with its own lease. One that still has a volume lease does not end, because its copies may still
    /// be in use: the outcome is [`Outcome::HorizonMoved`], as if the volume lease held up the session's horizon. The
    /// proposer ends the volume leases first.
    pub(super) fn expire(
        &mut self,
        key: &LeaseKey,
        incarnation: Incarnation,
        horizon: ClusterTime,
        touched: &mut BTreeSet<RowKey>,
    ) -> Outcome {
        let Some(lease) = self
            .leases
            .get(key)
            .filter(|lease| lease.incarnation == incarnation)
        else {
            return Outcome::NotHeld;
        };
        if lease.horizon != horizon {
            return Outcome::HorizonMoved {
                horizon: lease.horizon,
            };
        }
        match key {
            LeaseKey::Session(id) if self.volume_leases_of(*id).next().is_some() => {
                return Outcome::HorizonMoved { horizon };
            }
            LeaseKey::Session(id) => {
                self.close_session(*id, touched);
            }
            LeaseKey::Volume(..) => {
                self.leases.remove(key);
                touched.insert(RowKey::Lease(key.clone()));
            }
        }
        Outcome::Expired
    }

    /// Ends all leases on a volume that is no more.
    pub(super) fn remove_leases_on(&mut self, top: &Path, touched: &mut BTreeSet<RowKey>) {
        self.leases.retain(|key, _| {
            let stays = !matches!(key, LeaseKey::Volume(_, volume) if volume == top);
            if !stays {
                touched.insert(RowKey::Lease(key.clone()));
            }
            stays
        });
    }
}
