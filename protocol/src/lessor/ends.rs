//! When each replicated lease really ends: the leader's memory, within the horizons that the log has (T5, T6).

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{Hash, Hasher},
    time::Duration,
};

use crate::{
    command::{LeaseKey, Renewal},
    id::{Incarnation, SessionId},
    path::Path,
    planted::{Bug, Planted},
    state::{Lease, State},
    time::ClusterTime,
};

/// One lease as its leader sees it. There may be millions.
#[derive(Debug, Clone)]
pub(super) struct End {
    pub(super) incarnation: Incarnation,
    /// No promise that was made reaches further. Never lowered within the epoch.
    pub(super) end: ClusterTime,
    /// When it was last renewed; nothing if it never was.
    renewed: ClusterTime,
    signs: Signs,
    /// Its end was proposed: it is not renewed any more (T5).
    pub(super) is_ending: bool,
}

/// Whether a lease was renewed, as far as this leader knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Signs {
    Never,
    /// The last time since the last tick, which is to be told of it.
    Untold,
    /// Not since then: when it was is remembered for people only.
    Told,
}

impl End {
    fn new(incarnation: Incarnation, end: ClusterTime) -> Self {
        Self { incarnation, end, renewed: ClusterTime::ZERO, signs: Signs::Never, is_ending: false }
    }

    /// When it was last renewed.
    fn seen(&self) -> Option<ClusterTime> {
        (self.signs != Signs::Never).then_some(self.renewed)
    }

    /// When it was last renewed, if that was after the last tick.
    fn untold(&self) -> Option<ClusterTime> {
        (self.signs == Signs::Untold).then_some(self.renewed)
    }

    /// The same; it counts as told from now on.
    fn tell(&mut self) -> Option<ClusterTime> {
        let untold = self.untold()?;
        self.signs = Signs::Told;
        Some(untold)
    }

    /// What steps depend on.
    fn known(&self) -> (Incarnation, ClusterTime, Option<ClusterTime>, bool) {
        (self.incarnation, self.end, self.untold(), self.is_ending)
    }
}

impl PartialEq for End {
    fn eq(&self, other: &Self) -> bool {
        self.known() == other.known()
    }
}

impl Eq for End {}

impl Hash for End {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.known().hash(state);
    }
}

/// What the replicated state has of a lease.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    /// What is waited for beyond its end (T3).
    pub(super) margin: Duration,
    pub(super) horizon: ClusterTime,
}

/// What is remembered for people only. No step depends on it, so that two lessors that differ in nothing else are the same.
#[derive(Debug, Clone, Default)]
struct Untold<T>(T);

impl<T> PartialEq for Untold<T> {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl<T> Eq for Untold<T> {}

impl<T> Hash for Untold<T> {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// Of how many leases that are gone it is remembered when they were last renewed.
const DEPARTED_MAX: usize = 1024;

/// All leases of the replicated state, with their ends.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Ends {
    ends: BTreeMap<LeaseKey, End>,
    /// A time not after the one at which the lease can be ended. Put right when it comes up, so that a renewal does not
    /// have to move it.
    queue: BTreeSet<(ClusterTime, LeaseKey)>,
    /// Leases of which the next tick is to tell.
    renewed: BTreeSet<LeaseKey>,
    /// The renewals of key leases in the tick that is on its way.
    ticking: Vec<Renewal>,
    /// When leases that are gone were last renewed, the latest at the end.
    departed: Untold<VecDeque<(LeaseKey, ClusterTime)>>,
    planted: Planted,
}

impl Ends {
    /// Starts every lease of the state at its horizon: what the old leader can have promised at most (T6).
    pub(super) fn from_horizons(state: &State, planted: Planted) -> Self {
        let at_horizon = |(key, lease): (&LeaseKey, &Lease)| {
            let extra = if planted.has(Bug::EndsBeginAnew) { lease.term() } else { Duration::ZERO };
            (key.clone(), End::new(lease.incarnation, lease.horizon.after(extra)))
        };
        let ends: BTreeMap<LeaseKey, End> = state.leases().map(at_horizon).collect();
        let queue = ends.iter().map(|(key, lease)| (lease.end, key.clone())).collect();
        Self { ends, queue, planted, ..Self::default() }
    }

    pub(super) fn insert(&mut self, key: LeaseKey, incarnation: Incarnation, end: ClusterTime) {
        self.queue.insert((end, key.clone()));
        self.renewed.remove(&key);
        self.ends.insert(key, End::new(incarnation, end));
    }

    pub(super) fn remove(&mut self, key: &LeaseKey) {
        let Some(removed) = self.ends.remove(key) else { return };
        if removed.untold().is_some() {
            self.renewed.remove(key);
        }
        let carries = matches!(key, LeaseKey::Volume(..) | LeaseKey::Key(_));
        if let Some(seen) = removed.seen().filter(|_| carries) {
            self.departed.0.push_back((key.clone(), seen));
            if self.departed.0.len() > DEPARTED_MAX {
                self.departed.0.pop_front();
            }
        }
    }

    /// When the lease was last renewed, if that is known; also of one that has gone lately. For people.
    pub(super) fn seen(&self, key: &LeaseKey) -> Option<ClusterTime> {
        let departed = || self.departed.0.iter().rev().find(|(gone, _)| gone == key).map(|(_, seen)| *seen);
        self.ends.get(key).and_then(End::seen).or_else(departed)
    }

    pub(super) fn get(&self, key: &LeaseKey) -> Option<&End> {
        self.ends.get(key)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&LeaseKey, &End)> {
        self.ends.iter()
    }

    /// The leases of one session.
    pub(super) fn of(&self, session: SessionId) -> impl Iterator<Item = &LeaseKey> {
        let volumes = LeaseKey::Volume(session, Path::root())..;
        let volumes =
            self.ends.range(volumes).map(|(key, _)| key).take_while(move |key| key.session() == Some(session));
        self.ends.get_key_value(&LeaseKey::Session(session)).map(|(key, _)| key).into_iter().chain(volumes)
    }

    /// The lease was renewed at `now` and promised for `span` from then on. A promise of nothing moves no end: else a
    /// client that renews for ever would keep its lease for ever, whatever bounds the promises (S5).
    pub(super) fn renew(&mut self, key: &LeaseKey, now: ClusterTime, span: Duration) {
        if let Some(lease) = self.ends.get_mut(key) {
            let is_promised = !span.is_zero() || self.planted.has(Bug::EmptyPromiseMovesEnd);
            if is_promised && (lease.end < now.after(span) || self.planted.has(Bug::EndLowered)) {
                lease.end = now.after(span);
            }
            lease.renewed = now;
            if lease.signs != Signs::Untold {
                lease.signs = Signs::Untold;
                self.renewed.insert(key.clone());
            }
        }
    }

    /// The renewals since the last tick, for the next one (T6). About `most` bytes of them; the rest waits for the tick after.
    pub(super) fn take_renewals(&mut self, most: usize) -> Vec<Renewal> {
        self.ticking.clear();
        let mut renewals = Vec::new();
        let mut bytes = 0;
        while bytes < most
            && let Some(lease) = self.renewed.pop_first()
        {
            if let Some(end) = self.ends.get_mut(&lease)
                && let Some(at) = end.tell()
            {
                bytes += lease.weight();
                renewals.push(Renewal { lease, incarnation: end.incarnation, at });
            }
        }
        self.ticking.extend(renewals.iter().filter(|renewal| matches!(renewal.lease, LeaseKey::Key(_))).cloned());
        renewals
    }

    /// The tick that took renewals is in the log, and their horizons have moved. A key lease lasts for its term from its renewal on, of
    /// which its client was promised only what its horizon had left: else one that is renewed only once in a while would end before it
    /// is due again. (A volume lease ends when its promise does: writes wait for it, and for no longer, S5.)
    pub(super) fn ticked(&mut self, state: &State) {
        for Renewal { lease: key, incarnation, at } in std::mem::take(&mut self.ticking) {
            let lease = state.lease(&key).filter(|lease| lease.incarnation == incarnation);
            let end = self.ends.get_mut(&key).filter(|end| end.incarnation == incarnation && !end.is_ending);
            if let (Some(lease), Some(end)) = (lease, end) {
                end.end = end.end.max(at.after(lease.term()).min(lease.horizon));
            }
        }
    }

    /// The next lease whose end and margin have passed, marked as ending, with its incarnation and its horizon. When this returns none,
    /// none is left, or so many have been looked at.
    ///
    /// `standing` says what the replicated state has of a lease, `may_end` of one that is over whether it is to be ended now; if not it is
    /// looked at again after `again`.
    pub(super) fn next_over(
        &mut self,
        now: ClusterTime,
        looks: &mut usize,
        standing: impl Fn(&LeaseKey) -> Option<Standing>,
        may_end: impl Fn(&LeaseKey) -> bool,
        again: Duration,
    ) -> Option<(LeaseKey, Incarnation, ClusterTime)> {
        // Back in the queue only when the others have been looked at: at the end of all time *again* is now.
        let mut put_off = Vec::new();
        let mut found = None;
        while found.is_none() && *looks > 0 && self.queue.first().is_some_and(|(at, _)| *at <= now) {
            let Some((_, key)) = self.queue.pop_first() else { break };
            *looks -= 1;
            let Some(lease) = self.ends.get_mut(&key).filter(|lease| !lease.is_ending) else { continue };
            let Some(Standing { margin, horizon }) = standing(&key) else { continue };
            let over = lease.end.after(margin);
            if over > now {
                self.queue.insert((over, key));
            } else if may_end(&key) {
                lease.is_ending = true;
                if lease.tell().is_some() {
                    self.renewed.remove(&key);
                }
                found = Some((key, lease.incarnation, horizon));
            } else {
                put_off.push((now.after(again), key));
            }
        }
        self.queue.extend(put_off);
        found
    }

    /// When [`Ends::next_over`] may have something to say.
    pub(super) fn next_deadline(&self) -> Option<ClusterTime> {
        self.queue.first().map(|(at, _)| *at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HORIZON: ClusterTime = ClusterTime::from_micros(7);

    /// Each lease is there, and nothing is waited for beyond its end.
    fn standing(_: &LeaseKey) -> Option<Standing> {
        Some(Standing { margin: Duration::ZERO, horizon: HORIZON })
    }

    #[test]
    fn very_many_that_come_up_at_once_are_looked_at_some_at_a_time_and_each_of_them() {
        let at = |secs| ClusterTime::ZERO.after(Duration::from_secs(secs));
        let key = |session| LeaseKey::Volume(SessionId(session), Path::root());
        let mut ends = Ends::default();
        for session in 1..=5 {
            ends.insert(key(session), Incarnation(session), at(10));
            if session < 5 {
                ends.renew(&key(session), at(9), Duration::from_secs(10));
            }
        }
        let mut next = |looks| ends.next_over(at(10), &mut { looks }, standing, |_| true, Duration::ZERO);
        assert_eq!(next(2), None, "both have been renewed");
        assert_eq!(next(2), None);
        assert_eq!(next(2), Some((key(5), Incarnation(5), HORIZON)));
        assert_eq!(next(2), None);
        assert_eq!(ends.next_deadline(), Some(at(19)));
    }

    #[test]
    fn a_promise_of_nothing_moves_no_end() {
        let at = |secs| ClusterTime::ZERO.after(Duration::from_secs(secs));
        let key = LeaseKey::Volume(SessionId(1), Path::root());
        let mut ends = Ends::default();
        ends.insert(key.clone(), Incarnation(1), at(10));
        ends.renew(&key, at(11), Duration::ZERO);
        assert_eq!(ends.get(&key).map(|end| end.end), Some(at(10)));
        let renewal = Renewal { lease: key.clone(), incarnation: Incarnation(1), at: at(11) };
        assert_eq!(ends.take_renewals(1), [renewal], "its horizon moves on all the same");
        let over = ends.next_over(at(12), &mut 9, standing, |_| true, Duration::ZERO);
        assert_eq!(over, Some((key, Incarnation(1), HORIZON)));
    }

    #[test]
    fn what_is_put_off_at_the_end_of_all_time_is_looked_at_once() {
        let end = ClusterTime::ZERO.after(Duration::MAX);
        let (session, other) = (SessionId(1), SessionId(2));
        let mut ends = Ends::default();
        ends.insert(LeaseKey::Session(session), Incarnation(1), end);
        ends.insert(LeaseKey::Session(other), Incarnation(2), end);
        let mut next = || {
            let may_end = |key: &LeaseKey| key.session() == Some(other);
            ends.next_over(end, &mut 9, standing, may_end, Duration::from_secs(1))
        };
        assert_eq!(next(), Some((LeaseKey::Session(other), Incarnation(2), HORIZON)));
        assert_eq!(next(), None);
    }

    #[test]
    fn a_shorter_promise_lowers_no_end() {
        let at = |secs| ClusterTime::ZERO.after(Duration::from_secs(secs));
        let key = LeaseKey::Volume(SessionId(1), Path::root());
        let mut ends = Ends::default();
        ends.insert(key.clone(), Incarnation(1), at(10));
        ends.renew(&key, at(5), Duration::from_secs(2));
        assert_eq!(ends.get(&key).map(|end| end.end), Some(at(10)));
        ends.renew(&key, at(6), Duration::from_secs(10));
        assert_eq!(ends.get(&key).map(|end| end.end), Some(at(16)));
    }

    #[test]
    fn renewals_beyond_what_a_tick_takes_wait_for_the_next() {
        let at = |secs| ClusterTime::ZERO.after(Duration::from_secs(secs));
        let key = |session| LeaseKey::Volume(SessionId(session), Path::root());
        let mut ends = Ends::default();
        for session in 1..=3 {
            ends.insert(key(session), Incarnation(session), at(10));
            ends.renew(&key(session), at(1), Duration::from_secs(10));
        }
        let mut take = |most| ends.take_renewals(most).into_iter().map(|one| one.lease).collect::<Vec<_>>();
        assert_eq!(take(1), [key(1)]);
        assert_eq!(take(1 << 20), [key(2), key(3)]);
        assert_eq!(take(1 << 20), []);
    }
}
