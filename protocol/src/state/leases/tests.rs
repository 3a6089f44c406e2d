//! Horizons, margins and ends of replicated leases.

use super::{super::fixture::*, *};
use crate::{
    command::{Command, Write},
    id::VolumeGeneration,
    lock::LockMode,
};

fn on_volume(session: SessionId, top: &str) -> AnyLease {
    AnyLease::Volume(session, path(top))
}

fn renewal(fixture: &Fixture, key: &AnyLease, renewed_at: ClusterTime) -> Renewal {
    let incarnation = fixture.state.lease(key).expect("a lease").incarnation;
    Renewal { lease: key.clone(), incarnation, renewed_at }
}

fn millis(millis: u64) -> ClusterTime {
    ClusterTime::from_micros(millis * 1_000)
}

fn tick(fixture: &mut Fixture, renewals: Vec<Renewal>) {
    assert_eq!(fixture.run(Command::Tick { renewals }), Outcome::Ticked);
}

fn horizon(fixture: &Fixture, key: &AnyLease) -> ClusterTime {
    fixture.state.lease(key).expect("a lease").horizon
}

fn expire(fixture: &mut Fixture, key: &AnyLease) -> Outcome {
    let LeaseRecord { incarnation, horizon, .. } = *fixture.state.lease(key).expect("a lease");
    fixture.run(Command::Expire { lease: key.clone(), incarnation, horizon })
}

#[test]
fn acquired_volume_horizon_is_term_and_tick_from_now() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    fixture.time = seconds(100);
    let acquired = Outcome::VolumeAcquired {
        volume: path("/"),
        incarnation: Incarnation(2),
        generation: VolumeGeneration(1),
        horizon: millis(110_250),
    };
    assert_eq!(fixture.acquire(session, "/any/node"), acquired);
    let key = on_volume(session, "/");
    let lease = LeaseRecord {
        incarnation: Incarnation(2),
        term: Duration::from_secs(10).into(),
        horizon: millis(110_250),
        margin: VolumeSettings::DEFAULT.skew_margin().into(),
        longest_term: VolumeSettings::DEFAULT.longest_term().into(),
        attached_at: Revision(0),
        name: None,
    };
    assert_eq!(fixture.state.lease(&key), Some(&lease));
    assert_eq!(horizon(&fixture, &AnyLease::Session(session)), millis(700_250), "an acquisition renews the session");
    let keys: Vec<_> = fixture.state.leases_of(session).map(|(key, _)| key.clone()).collect();
    assert_eq!(keys, [AnyLease::Session(session), key]);
}

#[test]
fn reacquired_volume_lease_is_new_incarnation() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    let other = fixture.open();
    fixture.acquire(session, "/");
    fixture.acquire(other, "/");
    fixture.acquire(session, "/");
    assert_eq!(fixture.state.lease(&on_volume(session, "/")).expect("a lease").incarnation, Incarnation(5));
    assert_eq!(fixture.state.leases().count(), 4, "a session's own and one on the volume, for two");
    assert_eq!(fixture.state.leases_of(session).count(), 2);
    assert_eq!(fixture.acquire(SessionId(9), "/"), Outcome::SessionNotFound);
}

#[test]
fn a_tick_on_time_moves_the_horizon_a_term_and_a_tick_from_now() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    fixture.acquire(session, "/");
    let key = on_volume(session, "/");
    let renewed = renewal(&fixture, &key, seconds(4));
    fixture.time = millis(4_200);
    tick(&mut fixture, vec![renewed]);
    assert_eq!(horizon(&fixture, &key), millis(14_450), "4.2 + 10 + 0.25");
}

#[test]
fn a_late_tick_counts_from_the_renewal() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    fixture.acquire(session, "/");
    let key = on_volume(session, "/");
    let renewed = renewal(&fixture, &key, seconds(4));
    fixture.time = seconds(9);
    tick(&mut fixture, vec![renewed]);
    assert_eq!(horizon(&fixture, &key), millis(14_500), "4 + 10 + 0.5 is less than 9 + 10 + 0.25");
}

#[test]
fn a_horizon_never_moves_back_and_silent_leases_keep_theirs() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    let silent = fixture.open();
    fixture.time = seconds(20);
    fixture.acquire(session, "/");
    fixture.acquire(silent, "/");
    let key = on_volume(session, "/");
    let renewed = renewal(&fixture, &key, seconds(3));
    fixture.time = seconds(25);
    tick(&mut fixture, vec![renewed]);
    assert_eq!(horizon(&fixture, &key), millis(30_250));
    assert_eq!(horizon(&fixture, &on_volume(silent, "/")), millis(30_250));
}

#[test]
fn lease_renewed_with_shorter_term_keeps_its_horizon() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    fixture.write(session, create_volume("/v", 30)).expect("new");
    fixture.acquire(session, "/v");
    let key = on_volume(session, "/v");
    let lock = Write::Lock { path: path("/v/x"), mode: LockMode::Shared, wait: false, delay: Duration::ZERO };
    fixture.write(session, lock).expect("free");
    let (incarnation, before) = (fixture.state.lease(&key).expect("a lease").incarnation, horizon(&fixture, &key));
    let shorter = Write::SetVolume { path: path("/v"), settings: settings(Duration::from_secs(2)) };
    fixture.write(session, shorter).expect("a volume");
    fixture.acquire(session, "/v");
    assert_eq!(
        fixture.state.lease(&key).map(|lease| lease.incarnation),
        Some(incarnation),
        "a lock is under the lease"
    );
    assert_eq!(horizon(&fixture, &key), before, "the lease was promised up to its horizon");
}

#[test]
fn renewal_of_ended_or_replaced_lease_moves_no_horizon() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    fixture.acquire(session, "/");
    let key = on_volume(session, "/");
    let old = renewal(&fixture, &key, seconds(9));
    fixture.acquire(session, "/");
    let mut ended = old.clone();
    ended.lease = on_volume(SessionId(9), "/");
    fixture.time = seconds(9);
    tick(&mut fixture, vec![old, ended]);
    assert_eq!(horizon(&fixture, &key), millis(10_250));
}

#[test]
fn a_changed_term_counts_from_the_next_renewal_on() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    fixture.acquire(session, "/");
    let key = on_volume(session, "/");
    let longer = Write::SetVolume { path: path("/"), settings: settings(Duration::from_secs(30)) };
    fixture.write(session, longer).expect("a volume");
    assert_eq!(fixture.state.lease(&key).expect("the lease stays").term(), Duration::from_secs(10));
    let renewals =
        vec![renewal(&fixture, &key, seconds(5)), renewal(&fixture, &AnyLease::Session(session), seconds(5))];
    fixture.time = seconds(5);
    tick(&mut fixture, renewals);
    let expected = LeaseRecord {
        incarnation: Incarnation(2),
        term: Duration::from_secs(30).into(),
        horizon: millis(35_250),
        margin: Duration::from_secs(1).into(),
        longest_term: Duration::from_secs(30).into(),
        attached_at: Revision(0),
        name: None,
    };
    assert_eq!(fixture.state.lease(&key), Some(&expected));
    assert_eq!(horizon(&fixture, &AnyLease::Session(session)), millis(605_250), "5 + 600 + 0.25");
}

#[test]
fn only_the_named_incarnation_expires() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    fixture.acquire(session, "/");
    let lease = on_volume(session, "/");
    let mut expire = |incarnation, horizon| {
        fixture.run(Command::Expire { lease: lease.clone(), incarnation: Incarnation(incarnation), horizon })
    };
    assert_eq!(expire(1, millis(10_250)), Outcome::LeaseNotFound);
    assert_eq!(expire(2, seconds(10)), Outcome::HorizonMoved { horizon: millis(10_250) });
    assert_eq!(expire(2, millis(10_250)), Outcome::Expired);
    assert_eq!(expire(2, millis(10_250)), Outcome::LeaseNotFound);
    assert!(fixture.state.session(session).is_some());
}

#[test]
fn session_expires_with_its_answers_after_last_volume_lease() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    let other = fixture.open();
    fixture.put(session, "/a", "");
    fixture.acquire(session, "/");
    fixture.acquire(other, "/");
    let own = AnyLease::Session(session);
    assert_eq!(expire(&mut fixture, &own), Outcome::HorizonMoved { horizon: millis(600_250) });
    assert_eq!(expire(&mut fixture, &on_volume(session, "/")), Outcome::Expired);
    assert_eq!(expire(&mut fixture, &own), Outcome::Expired);
    assert_eq!(fixture.state.session(session), None);
    assert_eq!(fixture.state.leases_of(session).count(), 0);
    assert_eq!(fixture.state.leases_of(other).count(), 2);
}

#[test]
fn grant_of_a_key_lease_is_answered_with_the_present_revision() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    let put = fixture.put(session, "/a", "").revision;
    let granted = fixture.write(session, Write::GrantLease { id: None, name: None, ttl: Duration::from_secs(5) });
    assert_eq!((granted.expect("a free id").revision, fixture.state.revision()), (put, put), "a grant changes no node");
}

#[test]
fn a_lease_keeps_the_greatest_margin_that_its_volume_had() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    let margin_of = |fixture: &Fixture, key: &AnyLease| fixture.state.lease(key).expect("a lease").margin();
    let margin = |fixture: &Fixture| margin_of(fixture, &on_volume(session, "/"));
    fixture.acquire(session, "/");
    let small = margin(&fixture);
    let set = |settings| Write::SetVolume { path: path("/"), settings };
    fixture.write(session, set(settings(Duration::from_secs(30)))).expect("a volume");
    assert_eq!((small, margin(&fixture)), (Duration::from_millis(100), Duration::from_secs(1)));
    fixture.write(session, set(VolumeSettings::DEFAULT)).expect("a volume");
    assert_eq!(margin(&fixture), Duration::from_secs(1), "a promise of 30 s has not ended");
    fixture.acquire(session, "/");
    assert_eq!(margin(&fixture), small);
    assert_eq!(margin_of(&fixture, &AnyLease::Session(session)), Duration::ZERO);
}

#[test]
fn a_lease_keeps_the_longest_term_that_its_volume_had() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    let key = on_volume(session, "/");
    let longest = |fixture: &Fixture| fixture.state.lease(&key).expect("a lease").longest_term();
    fixture.acquire(session, "/");
    assert_eq!(longest(&fixture), VolumeSettings::DEFAULT.longest_term());
    let set = |settings| Write::SetVolume { path: path("/"), settings };
    let long = Duration::from_secs(30);
    fixture.write(session, set(settings(long))).expect("a volume");
    assert_eq!(longest(&fixture), long, "a renewal may promise so much now");
    fixture.write(session, set(VolumeSettings::DEFAULT)).expect("a volume");
    fixture.time = seconds(1);
    let renewal = renewal(&fixture, &key, seconds(1));
    tick(&mut fixture, vec![renewal]);
    assert_eq!(longest(&fixture), long, "a promise of 30 s has not ended");
    fixture.acquire(session, "/");
    assert_eq!(longest(&fixture), VolumeSettings::DEFAULT.longest_term());
}
