//! Tests of the ends of leases and their queue.

use super::*;

const HORIZON: ClusterTime = ClusterTime::from_micros(7);

const SECS_10: Duration = Duration::from_secs(10);
/// The horizon and term of every renewal here.
const OF: RenewalPlan = RenewalPlan { horizon: HORIZON, term: SECS_10 };

/// Each lease exists, without a margin.
fn standing(_: &AnyLease) -> Option<ReplicatedLease> {
    Some(ReplicatedLease { margin: Duration::ZERO, horizon: HORIZON })
}

#[test]
fn many_simultaneous_ends_are_examined_in_batches() {
    let at = |secs| ClusterTime::ZERO.after(Duration::from_secs(secs));
    let key = |session| AnyLease::Volume(SessionId(session), NodePath::root());
    let mut ends = LeaseTable::default();
    for session in 1..=5 {
        ends.insert(key(session), Incarnation(session), at(10), SECS_10);
        if session < 5 {
            ends.renew(&key(session), at(9), Duration::from_secs(10), OF);
        }
    }
    let mut next =
        |leases_to_scan| ends.next_expired(at(10), &mut { leases_to_scan }, standing, |_| true, Duration::ZERO);
    assert_eq!(next(2), None, "both leases are renewed");
    assert_eq!(next(2), None);
    assert_eq!(next(2), Some((key(5), Incarnation(5), HORIZON)));
    assert_eq!(next(2), None);
    assert_eq!(ends.next_deadline(), Some(at(19)));
}

#[test]
fn zero_promise_moves_no_end() {
    let at = |secs| ClusterTime::ZERO.after(Duration::from_secs(secs));
    let key = AnyLease::Volume(SessionId(1), NodePath::root());
    let mut ends = LeaseTable::default();
    ends.insert(key.clone(), Incarnation(1), at(10), SECS_10);
    ends.renew(&key, at(11), Duration::ZERO, OF);
    assert_eq!(ends.get(&key).map(|end| end.ends_at), Some(at(10)));
    let renewal = Renewal { lease: key.clone(), incarnation: Incarnation(1), renewed_at: at(11) };
    assert_eq!(ends.take_renewals(1), [renewal], "the horizon moves all the same");
    let expired = ends.next_expired(at(12), &mut 9, standing, |_| true, Duration::ZERO);
    assert_eq!(expired, Some((key, Incarnation(1), HORIZON)));
}

#[test]
fn postponed_end_at_maximum_time_is_examined_once() {
    let end = ClusterTime::ZERO.after(Duration::MAX);
    let (session, other) = (SessionId(1), SessionId(2));
    let mut ends = LeaseTable::default();
    ends.insert(AnyLease::Session(session), Incarnation(1), end, SECS_10);
    ends.insert(AnyLease::Session(other), Incarnation(2), end, SECS_10);
    let mut next = || {
        let may_end = |key: &AnyLease| key.session() == Some(other);
        ends.next_expired(end, &mut 9, standing, may_end, Duration::from_secs(1))
    };
    assert_eq!(next(), Some((AnyLease::Session(other), Incarnation(2), HORIZON)));
    assert_eq!(next(), None);
}

#[test]
fn a_shorter_promise_lowers_no_end() {
    let at = |secs| ClusterTime::ZERO.after(Duration::from_secs(secs));
    let key = AnyLease::Volume(SessionId(1), NodePath::root());
    let mut ends = LeaseTable::default();
    ends.insert(key.clone(), Incarnation(1), at(10), SECS_10);
    ends.renew(&key, at(5), Duration::from_secs(2), OF);
    assert_eq!(ends.get(&key).map(|end| end.ends_at), Some(at(10)));
    ends.renew(&key, at(6), Duration::from_secs(10), OF);
    assert_eq!(ends.get(&key).map(|end| end.ends_at), Some(at(16)));
}

#[test]
fn renewals_beyond_what_a_tick_takes_wait_for_the_next() {
    let at = |secs| ClusterTime::ZERO.after(Duration::from_secs(secs));
    let key = |session| AnyLease::Volume(SessionId(session), NodePath::root());
    let mut ends = LeaseTable::default();
    for session in 1..=3 {
        ends.insert(key(session), Incarnation(session), at(10), SECS_10);
        ends.renew(&key(session), at(1), Duration::from_secs(10), OF);
    }
    let mut take = |most| ends.take_renewals(most).into_iter().map(|one| one.lease).collect::<Vec<_>>();
    assert_eq!(take(1), [key(1)]);
    assert_eq!(take(1 << 20), [key(2), key(3)]);
    assert_eq!(take(1 << 20), []);
}

#[test]
fn tick_takes_renewals_with_nearest_horizons_first() {
    let at = |secs| ClusterTime::ZERO.after(Duration::from_secs(secs));
    let key = |session| AnyLease::Volume(SessionId(session), NodePath::root());
    let mut ends = LeaseTable::default();
    for (session, horizon) in [(1, 30), (2, 10), (3, 20), (4, 10)] {
        ends.insert(key(session), Incarnation(session), at(10), SECS_10);
        ends.renew(&key(session), at(1), SECS_10, RenewalPlan { horizon: at(horizon), term: SECS_10 });
    }
    let mut reported = Vec::new();
    while !ends.renewed.is_empty() {
        reported.extend(ends.take_renewals(1).into_iter().map(|one| one.lease));
        assert_eq!(ends.is_behind(), reported.len() < 4);
    }
    assert_eq!(reported, [key(2), key(4), key(3), key(1)]);
}

#[test]
fn ended_leases_leave_no_queue_entries() {
    let at = |secs| ClusterTime::ZERO.after(Duration::from_secs(secs));
    let key = |session| AnyLease::Volume(SessionId(session), NodePath::root());
    let mut ends = LeaseTable::new(9);
    for session in 1..=100 {
        // The same name several times, and other names; ending or not, renewed or not.
        for _ in 0..3 {
            ends.insert(key(session), Incarnation(session), at(86_400), SECS_10);
            ends.renew(&key(session), at(session), SECS_10, OF);
        }
        if session % 3 == 0 {
            ends.take_renewals(1);
        }
        if session % 5 == 0 {
            ends.next_expired(at(90_000), &mut 9, standing, |_| true, SECS_10);
        }
        ends.remove(&key(session));
        assert_eq!((ends.check(), ends.queue.len(), ends.renewed.len(), ends.load()), (Ok(()), 0, 0, 0));
    }
}

#[test]
fn load_follows_the_leases_and_their_terms() {
    let end = ClusterTime::ZERO.after(SECS_10);
    let key = AnyLease::Volume(SessionId(1), NodePath::root());
    let mut ends = LeaseTable::default();
    ends.insert(key.clone(), Incarnation(1), end, SECS_10);
    ends.insert(AnyLease::LockDelay(crate::id::LockId(1)), Incarnation(2), end, SECS_10);
    assert_eq!(ends.load() * 10, LOAD_PER_RENEWAL_A_SECOND, "a lock delay is never renewed");
    ends.renew(&key, end, SECS_10, RenewalPlan { horizon: end, term: SECS_10 / 5 });
    assert_eq!(ends.load() * 2, LOAD_PER_RENEWAL_A_SECOND);
    ends.remove(&key);
    assert_eq!(ends.load(), 0);
}
