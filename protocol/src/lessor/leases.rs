//! The leader's volatile record of when each replicated lease ends, within the horizons in the log
//! (T5, T6). This module also counts the load of renewals (S10b).

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{Hash, Hasher},
    time::Duration,
};

use crate::{
    command::{AnyLease, Renewal},
    id::{Incarnation, SessionId},
    path::NodePath,
    reached::{self, reached},
    state::{LeaseRecord, State},
    time::ClusterTime,
    work::CountVisits,
};

/// The leader's view of one lease. There may be millions of leases.
#[derive(Debug, Clone)]
pub(super) struct LeaseEnd {
    pub(super) incarnation: Incarnation,
    /// No promise reaches further. Never lowered within the epoch.
    pub(super) ends_at: ClusterTime,
    /// The last renewal; meaningless if there was none.
    renewed: ClusterTime,
    evidence: RenewalEvidence,
    /// The end was proposed: the lease is no longer renewed (T5).
    pub(super) is_end_proposed: bool,
    /// Its time in the queue of ends, unless its end is proposed.
    queued: ClusterTime,
    /// Its key in `LeaseTable::renewed`, if it has an entry there: the horizon when it was renewed.
    renewal_horizon: ClusterTime,
    /// The load of renewing it once in a term, by [`load_of`].
    load: u64,
}

/// The load of a lease: renewals in a million seconds, if it is renewed once in its term. A lock
/// delay is never renewed.
pub(super) fn load_of(key: &AnyLease, term: Duration) -> u64 {
    match key {
        AnyLease::Session(_) | AnyLease::Volume(..) | AnyLease::KeyLease(_) => load_of_term(term),
        AnyLease::LockDelay(_) => 0,
    }
}

/// The load of a lease that is renewed once in this term.
pub(super) fn load_of_term(term: Duration) -> u64 {
    let micros = u64::try_from(term.as_micros()).unwrap_or(u64::MAX).max(1);
    LOAD_PER_RENEWAL_A_SECOND * 1_000_000 / micros
}

/// The load of one renewal in a second.
pub(super) const LOAD_PER_RENEWAL_A_SECOND: u64 = 1_000_000;

/// Whether a lease was renewed, as far as this leader knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RenewalEvidence {
    Never,
    /// Renewed, and no tick has included that yet: one of the next ticks must.
    Unlogged,
    /// A tick has included its last renewal, or its end is proposed. The time is remembered for
    /// inspection only.
    Logged,
}

impl LeaseEnd {
    fn new(incarnation: Incarnation, ends_at: ClusterTime, load: u64) -> Self {
        let (renewed, renewal_horizon) = (ClusterTime::ZERO, ClusterTime::ZERO);
        Self {
            incarnation,
            ends_at,
            renewed,
            evidence: RenewalEvidence::Never,
            is_end_proposed: false,
            queued: ends_at,
            renewal_horizon,
            load,
        }
    }

    /// When it was last renewed.
    fn seen(&self) -> Option<ClusterTime> {
        (self.evidence != RenewalEvidence::Never).then_some(self.renewed)
    }

    /// When it was last renewed, if no tick has included that yet.
    fn unlogged_renewal(&self) -> Option<ClusterTime> {
        (self.evidence == RenewalEvidence::Unlogged).then_some(self.renewed)
    }

    /// Like `unlogged_renewal`, and marks the renewal as logged.
    fn take_unlogged_renewal(&mut self) -> Option<ClusterTime> {
        let renewed_at = self.unlogged_renewal()?;
        self.evidence = RenewalEvidence::Logged;
        Some(renewed_at)
    }

    /// The fields that later steps depend on.
    fn known(&self) -> (Incarnation, ClusterTime, Option<ClusterTime>, bool) {
        (self.incarnation, self.ends_at, self.unlogged_renewal(), self.is_end_proposed)
    }
}

impl PartialEq for LeaseEnd {
    fn eq(&self, other: &Self) -> bool {
        self.known() == other.known()
    }
}

impl Eq for LeaseEnd {}

impl Hash for LeaseEnd {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.known().hash(state);
    }
}

/// The replicated state's view of a lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct ReplicatedLease {
    /// The wait beyond its end (T3).
    pub(super) margin: Duration,
    pub(super) horizon: ClusterTime,
}

/// The data that recording a renewal needs: the present horizon, and the term for the load.
#[derive(Debug, Clone, Copy)]
pub(super) struct RenewalPlan {
    pub(super) horizon: ClusterTime,
    pub(super) term: Duration,
}

/// A value for inspection only. No step depends on it, so two lessors that differ only in it are
/// equal.
#[derive(Debug, Clone, Default)]
struct Diagnostic<T>(T);

impl<T> PartialEq for Diagnostic<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for Diagnostic<T> {}

impl<T> Hash for Diagnostic<T> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// All leases of the replicated state, with their ends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct LeaseTable {
    ends: BTreeMap<AnyLease, LeaseEnd>,
    /// One entry for each lease whose end is not proposed: a time no later than its end plus
    /// margin, or when to look again at a session that could not end yet. A renewal does not move
    /// the entry. [`LeaseTable::next_expired`] corrects the time when it has come. The entry is
    /// removed with the lease.
    queue: BTreeSet<(ClusterTime, AnyLease)>,
    /// Leases with renewals for the next ticks, nearest horizon first. If some order logs all
    /// renewals before their horizons, this order does so too. Names do not matter (S10b).
    renewed: BTreeSet<(ClusterTime, AnyLease)>,
    /// The last tick could not take all renewals.
    is_behind: bool,
    /// The load of all leases.
    load: u64,
    /// The number of key leases.
    key_leases: usize,
    /// The renewals of key leases in the tick in flight.
    ticking: Vec<Renewal>,
    /// When ended leases were last renewed. The lease that ended last is at the back.
    ended: Diagnostic<VecDeque<(AnyLease, Incarnation, ClusterTime)>>,
    /// The most entries in `ended`.
    ended_max: usize,
}

/// The term that counts for the load of a lease: the shortest that it may have.
fn load_term(state: &State, key: &AnyLease, lease: &LeaseRecord) -> Duration {
    let volume = key.volume().and_then(|top| state.volume(top));
    volume.map_or(lease.term(), |volume| volume.settings.shortest_term())
}

fn is_key_lease(key: &AnyLease) -> bool {
    matches!(key, AnyLease::KeyLease(_))
}

impl LeaseTable {
    /// No leases yet. The last renewals of `ended_max` ended leases will be remembered.
    pub(super) fn new(ended_max: usize) -> Self {
        Self { ended_max, ..Self::default() }
    }

    /// Starts every lease of the state at its horizon, because no promise of the old leader reaches
    /// further (T6).
    pub(super) fn from_horizons(state: &State, ended_max: usize) -> Self {
        let at_horizon = |(key, lease): (&AnyLease, &LeaseRecord)| {
            let load = load_of(key, load_term(state, key, lease));
            (key.clone(), LeaseEnd::new(lease.incarnation, lease.horizon, load))
        };
        let ends: BTreeMap<AnyLease, LeaseEnd> = state.leases().map(at_horizon).collect();
        let queue = ends.iter().map(|(key, lease)| (lease.ends_at, key.clone())).collect();
        let load = ends.values().map(|lease| lease.load).sum();
        let key_leases = ends.keys().filter(|key| is_key_lease(key)).count();
        Self { ends, queue, load, key_leases, ..Self::new(ended_max) }
    }

    /// Adds a lease that ends at `end`. Its load is that of this term. It replaces a lease with the
    /// same key.
    pub(super) fn insert(&mut self, key: AnyLease, incarnation: Incarnation, end: ClusterTime, term: Duration) {
        let lease = LeaseEnd::new(incarnation, end, load_of(&key, term));
        self.take_out(&key);
        self.load += lease.load;
        self.key_leases += usize::from(is_key_lease(&key));
        self.queue.insert((end, key.clone()));
        self.ends.insert(key, lease);
    }

    /// Removes a lease from all tables.
    fn take_out(&mut self, key: &AnyLease) -> Option<LeaseEnd> {
        let removed = self.ends.remove(key)?;
        self.load -= removed.load;
        self.key_leases -= usize::from(is_key_lease(key));
        if !removed.is_end_proposed {
            self.queue.remove(&(removed.queued, key.clone()));
        }
        if removed.unlogged_renewal().is_some() {
            self.renewed.remove(&(removed.renewal_horizon, key.clone()));
        }
        Some(removed)
    }

    pub(super) fn remove(&mut self, key: &AnyLease) {
        let Some(removed) = self.take_out(key) else { return };
        let has_dependents = matches!(key, AnyLease::Volume(..) | AnyLease::KeyLease(_));
        if let Some(seen) = removed.seen().filter(|_| has_dependents) {
            self.ended.0.push_back((key.clone(), removed.incarnation, seen));
            if self.ended.0.len() > self.ended_max {
                reached(reached::Bound::Departed);
                self.ended.0.pop_front();
            }
        }
    }

    /// When the lease was last renewed, if known. It also finds leases that ended lately. Without
    /// an incarnation, it finds the latest lease with that key. For inspection only.
    pub(super) fn seen(&self, key: &AnyLease, intended: Option<Incarnation>) -> Option<ClusterTime> {
        let is_intended = |incarnation| intended.is_none_or(|intended| intended == incarnation);
        let is_match =
            |(ended, incarnation, _): &&(AnyLease, Incarnation, ClusterTime)| ended == key && is_intended(*incarnation);
        let ended = || self.ended.0.iter().rev().find(is_match).map(|(.., seen)| *seen);
        self.ends.get(key).filter(|end| is_intended(end.incarnation)).and_then(LeaseEnd::seen).or_else(ended)
    }

    pub(super) fn get(&self, key: &AnyLease) -> Option<&LeaseEnd> {
        self.ends.get(key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&AnyLease, &LeaseEnd)> {
        self.ends.iter().counted()
    }

    /// The leases of one session.
    pub(super) fn of(&self, session: SessionId) -> impl Iterator<Item = &AnyLease> {
        let volumes = AnyLease::Volume(session, NodePath::root())..;
        let volumes = self
            .ends
            .range(volumes)
            .counted()
            .map(|(key, _)| key)
            .take_while(move |key| key.session() == Some(session));
        self.ends.get_key_value(&AnyLease::Session(session)).map(|(key, _)| key).into_iter().chain(volumes)
    }

    pub(super) fn load(&self) -> u64 {
        self.load
    }

    pub(super) fn key_leases(&self) -> usize {
        self.key_leases
    }

    /// Whether the last tick could not take all renewals.
    pub(super) fn is_behind(&self) -> bool {
        self.is_behind
    }

    /// Records that the lease was renewed at `now`, with a promise of `span` from then on. A
    /// promise of zero length moves no end. If it did, a client with an unanswered recall could
    /// prolong its lease for ever by renewing (S5).
    pub(super) fn renew(&mut self, key: &AnyLease, now: ClusterTime, span: Duration, plan: RenewalPlan) {
        if let Some(lease) = self.ends.get_mut(key) {
            let load = load_of(key, plan.term);
            self.load = self.load - lease.load + load;
            lease.load = load;
            if !span.is_zero() && lease.ends_at < now.after(span) {
                lease.ends_at = now.after(span);
            }
            lease.renewed = now;
            if lease.evidence != RenewalEvidence::Unlogged {
                lease.evidence = RenewalEvidence::Unlogged;
                lease.renewal_horizon = plan.horizon;
                self.renewed.insert((plan.horizon, key.clone()));
            }
        }
    }

    /// Counts the lease with the load of this term, if that is more. Without it, a shorter term of
    /// the volume would count only from the next renewal of each lease on.
    pub(super) fn raise_load(&mut self, key: &AnyLease, term: Duration) {
        if let Some(lease) = self.ends.get_mut(key) {
            let load = load_of(key, term).max(lease.load);
            self.load = self.load - lease.load + load;
            lease.load = load;
        }
    }

    /// Records that an earlier renewal was promised more: the lease ends at `end` at the earliest.
    /// This does not count as another renewal. The renewal was recorded when its request arrived.
    pub(super) fn extend(&mut self, key: &AnyLease, end: ClusterTime) {
        if let Some(lease) = self.ends.get_mut(key) {
            lease.ends_at = lease.ends_at.max(end);
        }
    }

    /// The renewals that no tick has included yet, for the next one (T6): about `most` bytes. The
    /// others wait for the tick after it, and [`LeaseTable::is_behind`] is true meanwhile.
    pub(super) fn take_renewals(&mut self, most: usize) -> Vec<Renewal> {
        self.ticking.clear();
        let mut renewals = Vec::new();
        let mut bytes = 0;
        while bytes < most
            && let Some((_, lease)) = self.renewed.pop_first()
        {
            if let Some(end) = self.ends.get_mut(&lease)
                && let Some(renewed_at) = end.take_unlogged_renewal()
            {
                bytes += lease.renewal_bytes_max();
                renewals.push(Renewal { lease, incarnation: end.incarnation, renewed_at });
            }
        }
        self.is_behind = !self.renewed.is_empty();
        if self.is_behind {
            reached(reached::Bound::TickBytes);
        }
        self.ticking.extend(renewals.iter().filter(|renewal| is_key_lease(&renewal.lease)).cloned());
        renewals
    }

    /// Extends key leases after the tick with their renewals was committed and their horizons
    /// moved. Each now lasts for a term from its renewal. Its client was promised less if the old
    /// horizon was nearer. Without this, a key lease that is renewed rarely would end before its
    /// next renewal. (A volume lease ends with its promise, because writes wait for its end, S5.)
    pub(super) fn handle_tick_committed(&mut self, state: &State) {
        for Renewal { lease: key, incarnation, renewed_at } in std::mem::take(&mut self.ticking) {
            let lease = state.lease(&key).filter(|lease| lease.incarnation == incarnation);
            let end = self.ends.get_mut(&key).filter(|end| end.incarnation == incarnation && !end.is_end_proposed);
            if let (Some(lease), Some(end)) = (lease, end) {
                end.ends_at = end.ends_at.max(renewed_at.after(lease.term()).min(lease.horizon));
            }
        }
    }

    /// Returns the next lease whose end and margin have passed, with its incarnation and horizon.
    /// Marks its end as proposed. `None` when exhausted, or when `leases_to_scan` leases were
    /// scanned.
    ///
    /// `replicated` gives the replicated state's view of a lease. `may_end` says whether an expired
    /// lease may end now; if not, it is examined again after `retry_after`.
    pub(super) fn next_expired(
        &mut self,
        now: ClusterTime,
        leases_to_scan: &mut usize,
        replicated: impl Fn(&AnyLease) -> Option<ReplicatedLease>,
        may_end: impl Fn(&AnyLease) -> bool,
        retry_after: Duration,
    ) -> Option<(AnyLease, Incarnation, ClusterTime)> {
        // These leases are put back after the loop. At the maximum of cluster time,
        // `now.after(retry_after)` is `now`, and the loop would find them again.
        let mut postponed = Vec::new();
        let mut found = None;
        while found.is_none() && *leases_to_scan > 0 && self.queue.first().is_some_and(|(time, _)| *time <= now) {
            let Some((_, key)) = self.queue.pop_first() else { break };
            *leases_to_scan -= 1;
            let Some(ReplicatedLease { margin, horizon }) = replicated(&key) else {
                self.take_out(&key);
                continue;
            };
            let Some(lease) = self.ends.get_mut(&key) else { continue };
            let expires_at = lease.ends_at.after(margin);
            if expires_at > now {
                lease.queued = expires_at;
                self.queue.insert((expires_at, key));
            } else if may_end(&key) {
                lease.is_end_proposed = true;
                if lease.take_unlogged_renewal().is_some() {
                    self.renewed.remove(&(lease.renewal_horizon, key.clone()));
                }
                found = Some((key, lease.incarnation, horizon));
            } else {
                postponed.push((now.after(retry_after), key));
            }
        }
        for (time, key) in postponed {
            if let Some(lease) = self.ends.get_mut(&key) {
                lease.queued = time;
                self.queue.insert((time, key));
            }
        }
        found
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> Vec<(&'static str, usize)> {
        vec![
            ("ends", self.ends.len()),
            ("queue of ends", self.queue.len()),
            ("unlogged renewals", self.renewed.len()),
            ("renewals in the tick", self.ticking.len()),
            ("load", usize::try_from(self.load).unwrap_or(usize::MAX)),
            ("key leases", self.key_leases),
        ]
    }

    /// Checks that each lease is in the queues once, that they have no other entries, and that
    /// `load` and `key_leases` are the sums.
    pub(super) fn check(&self) -> Result<(), String> {
        let queued =
            |(key, lease): (&AnyLease, &LeaseEnd)| (!lease.is_end_proposed).then(|| (lease.queued, key.clone()));
        if !self.ends.iter().filter_map(queued).collect::<BTreeSet<_>>().eq(&self.queue) {
            return Err("the queue of ends does not match the leases".to_owned());
        }
        let unlogged = |(key, lease): (&AnyLease, &LeaseEnd)| {
            lease.unlogged_renewal().map(|_| (lease.renewal_horizon, key.clone()))
        };
        if !self.ends.iter().filter_map(unlogged).collect::<BTreeSet<_>>().eq(&self.renewed) {
            return Err("the unlogged renewals do not match the leases".to_owned());
        }
        let load: u64 = self.ends.values().map(|lease| lease.load).sum();
        if load != self.load {
            return Err(format!("the load of all leases is {load}: counted {}", self.load));
        }
        let key_leases = self.ends.keys().filter(|key| is_key_lease(key)).count();
        if key_leases != self.key_leases {
            return Err(format!("there are {key_leases} key leases: counted {}", self.key_leases));
        }
        Ok(())
    }

    /// The earliest time at which [`LeaseTable::next_expired`] may return a lease.
    pub(super) fn next_deadline(&self) -> Option<ClusterTime> {
        self.queue.first().map(|(time, _)| *time)
    }
}

#[cfg(test)]
mod tests;
