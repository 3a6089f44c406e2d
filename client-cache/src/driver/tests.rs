//! Tests of the driver. The test plays the server.

use leasehold_protocol::{
    id::{Epoch, Incarnation, Revision, Stamp, Token, VolumeGeneration},
    lease_policy::LeaseOffer,
    lease_policy::LeaseRequest,
    lock::{LockMode, LockOutcome, LockStatus},
    message::{
        AcquiredVolume, Answer, Grant, KeepAliveResult, KeyLeasePromise, Lapse, Promise, PushRequest, ReadAnswer,
        Revival,
    },
    object::{Children, Content, Data, ObjectKind, ObjectSet, Stat},
};

use super::*;
use crate::{
    client::Client,
    error::{LockError, ReadError, WriteLeaseError},
    write_lease::WriteLease,
};

const TERM: Duration = Duration::from_secs(600);

fn path(text: &str) -> NodePath {
    NodePath::parse(text).expect("valid")
}

fn response(answer: Answer) -> Response {
    Response { epoch: Epoch(1), promises: Vec::new(), lapses: Vec::new(), clocks: None, result: Ok(answer) }
}

/// An answer that grants a lease on the volume.
fn acquired(volume: &str, incarnation: u64) -> Answer {
    let promise = Promise {
        volume: path(volume),
        incarnation: Incarnation(incarnation),
        generation: VolumeGeneration::default(),
        span: TERM,
        term: TERM,
        revision: Revision::default(),
    };
    let stamp = Stamp { epoch: Epoch(1), sequence: incarnation };
    Answer::Acquired(AcquiredVolume { promise, stamp, revival: Revival::None, read: None })
}

fn sent(orders: &mut mpsc::UnboundedReceiver<ConnectionOrder>) -> (SendId, Body) {
    match orders.try_recv().expect("something is sent") {
        ConnectionOrder::Send(send_id, request) => (send_id, request.body),
        ConnectionOrder::Leave(leader) => panic!("it leaves for {leader:?}"),
    }
}

/// Opens and registers a session.
fn registered(driver: &Driver) -> mpsc::UnboundedReceiver<ConnectionOrder> {
    let mut orders = driver.connected();
    let (open, _) = sent(&mut orders);
    driver.answered(open, response(Answer::Opened { session: SessionId(1), term: TERM }));
    let (register, _) = sent(&mut orders);
    driver.answered(register, response(Answer::Registered { coverings: Vec::new() }));
    orders
}

#[tokio::test]
async fn unleased_inner_volume_gets_no_remaining_from_outer_lease() {
    let driver = Driver::new(Options::new(["nobody:1"]), 0);
    let mut orders = registered(&driver);
    let mut reads = Vec::new();
    for (object, volume, incarnation) in [("/v/a", "/v", 1), ("/a", "/", 2)] {
        let (_read, _answer) = driver.read(Object::data(path(object)), LeaseRequest::Implicit);
        let (acquire, body) = sent(&mut orders);
        assert!(matches!(body, Body::Acquire { .. }), "{body:?}");
        driver.answered(acquire, response(acquired(volume, incarnation)));
        reads.push(sent(&mut orders).0);
    }
    assert!(
        driver.volume_remaining(&path("/v/b")) > Duration::ZERO
            && driver.volume_remaining(&path("/b")) > Duration::ZERO
    );

    let lapse = Lapse { volume: path("/v"), incarnation: Incarnation(1) };
    let content = Some(Content::Data(None));
    let read = ReadAnswer {
        content,
        grant: None,
        volume: path("/"),
        applied: Revision::default(),
        offer: LeaseOffer::Everybody,
    };
    driver.answered(reads[1], Response { lapses: vec![lapse], ..response(Answer::Read(read)) });
    assert_eq!(driver.volume_remaining(&path("/v/b")), Duration::ZERO, "it is in a volume of which no lease is held");
    assert!(driver.volume_remaining(&path("/b")) > Duration::ZERO);
}

/// The lease of the first handle has ended by this client's clock, and the timer has not noticed.
#[tokio::test]
async fn key_lease_that_ended_unnoticed_is_asked_for_again() {
    let driver = Driver::new(Options::new(["nobody:1"]), 0);
    let mut orders = registered(&driver);
    let lease = LeaseId(7);
    let (_, first, _) = driver.start_keep_alive(lease);
    let (asked, body) = sent(&mut orders);
    assert!(matches!(body, Body::KeepAlive { .. }), "{body:?}");
    let promise = KeyLeasePromise {
        id: lease,
        incarnation: Incarnation(1),
        ttl: Duration::from_secs(1),
        result: KeepAliveResult::Renewed(Duration::from_millis(20)),
    };
    driver.answered(asked, response(Answer::KeptAlive(vec![promise])));
    let KeyLeaseState::Until { until, .. } = *first.borrow() else { panic!("the lease is renewed") };
    let mut checks = tokio::time::interval(Duration::from_millis(1));
    while crate::clock::now() <= until {
        checks.tick().await;
    }
    let (number, second, lost) = driver.start_keep_alive(lease);
    assert_eq!((*first.borrow(), *second.borrow()), (KeyLeaseState::Lost, KeyLeaseState::Asked));
    assert!(!lost.is_cancelled());
    driver.stop_keep_alive(lease, number);
    assert!(lost.is_cancelled(), "nobody renews it");
    assert!(driver.core.lock().key_leases.is_empty());
}

#[tokio::test]
async fn registration_is_not_lost_with_an_earlier_lease() {
    let driver = Driver::new(Options::new(["nobody:1"]), 0);
    let watched = || driver.watch_registration_lease(&path("/s"));
    let ((first, first_lost), (second, second_lost), (_, unanswered)) = (watched(), watched(), watched());
    driver.set_registration_revision(&path("/s"), first, Revision(3));
    driver.core.lock().lose_registration_lease(&path("/s"), Revision(3));
    driver.set_registration_revision(&path("/s"), second, Revision(5));
    assert!(first_lost.is_cancelled() && !second_lost.is_cancelled() && !unanswered.is_cancelled());
    driver.core.lock().lose_registration_lease(&path("/other"), Revision(5));
    assert!(!second_lost.is_cancelled());
    driver.core.lock().lose_registration_lease(&path("/s"), Revision(6));
    assert!(second_lost.is_cancelled(), "an update has moved the node to a later revision");
    // The loss is reported before the answer to the put.
    let (late, late_lost) = driver.watch_registration_lease(&path("/s"));
    driver.core.lock().lose_registration_lease(&path("/s"), Revision(9));
    driver.set_registration_revision(&path("/s"), late, Revision(9));
    assert!(late_lost.is_cancelled());
}

const LOCK: LockId = LockId(4);

fn stat() -> Stat {
    let revision = Revision(1);
    Stat { create_revision: revision, modify_revision: revision, version: 1, value_len: 1, owner: None }
}

fn written(written: Written, data: Option<Data>) -> Response {
    let (stamp, applied) = (Stamp { epoch: Epoch(1), sequence: 9 }, Revision(1));
    let write_lease_data = data.map(Box::new);
    response(Answer::Written { written, stamp, grant: None, applied, key_lease: None, write_lease_data })
}

/// Takes a write lease on `/a`. Also returns its state.
async fn own(driver: &Arc<Driver>) -> (WriteLease, LockCell) {
    let (client, mut orders) = (Client::of(Arc::clone(driver)), registered(driver));
    let serve = async {
        while let Some(ConnectionOrder::Send(send_id, request)) = orders.recv().await {
            let (volume, incarnation) = (NodePath::root(), Incarnation(1));
            match request.body {
                Body::Acquire { .. } => driver.answered(send_id, response(acquired("/", 1))),
                Body::Write { write: Write::Lock { path, mode, .. }, .. } => {
                    let taken = LockOutcome { path, lock: LOCK, mode, token: Some(Token(9)), volume, incarnation };
                    let taken = Written { lock: Some(Box::new(taken)), ..Written::default() };
                    driver.answered(send_id, written(taken, None));
                }
                Body::Write { write: Write::TakeWriteLease { .. }, .. } => {
                    let data = Data { value: "old".into(), stat: stat() };
                    return driver.answered(send_id, written(Written::default(), Some(data)));
                }
                _ => {}
            }
        }
    };
    let (lease, ()) = tokio::join!(client.write_lease("/a").into_future(), serve);
    (lease.expect("the test grants it"), driver.lock_cell(LOCK))
}

/// The rules have lost the lock with its value, and the report of the loss, in a panic.
#[tokio::test]
async fn flush_of_a_lost_lock_confirms_nothing() {
    let driver = Arc::new(Driver::new(Options::new(["nobody:1"]), 0));
    let (lease, cell) = own(&driver).await;
    assert!(driver.set_under_write_lease(LOCK, "precious".into()));
    driver.core.lock().holder = Holder::new(HolderConfig::new(""));
    cell.end();
    let flushed = lease.flush().await;
    assert!(matches!(flushed, Err(WriteLeaseError::Lock(LockError::Lost { .. }))), "{flushed:?}");
}

/// The write lease is about to end, so the application can no longer read its value.
#[tokio::test]
async fn panic_hands_back_the_value_of_an_ending_write_lease() {
    let driver = Arc::new(Driver::new(Options::new(["nobody:1"]), 0));
    let (_lease, cell) = own(&driver).await;
    assert!(driver.set_under_write_lease(LOCK, "precious".into()));
    driver.release_write_lease(LOCK);
    driver.end_after_panic(&mut driver.core.lock());
    let lost = cell.write_lease.borrow().lost.clone().map(|(_, lost)| lost.value);
    assert_eq!(lost, Some("precious".into()));
}

#[tokio::test]
async fn call_under_write_lease_is_woken_when_clocks_recover() {
    let driver = Arc::new(Driver::new(Options::new(["nobody:1"]), 0));
    let (_lease, cell) = own(&driver).await;
    let waiting = cell.write_lease.subscribe();
    let recovered = HolderEffect::ClockExcessChanged { excess: None };
    driver.execute(&mut driver.core.lock(), recovered, &mut DriverStep::default());
    assert!(waiting.has_changed().is_ok_and(|has_changed| has_changed));
}

#[tokio::test]
async fn lock_that_a_server_has_ended_is_not_released() {
    for may_remain in [false, true] {
        let driver = Driver::new(Options::new(["nobody:1"]), 0);
        let cell = LockCell::new(LockStatus::Waiting);
        let (mut core, mut step) = (driver.core.lock(), DriverStep::default());
        core.locks.insert(LOCK, (path("/a"), cell.clone()));
        driver.lose_locks(&mut core, vec![LOCK], may_remain, &mut step);
        assert!(cell.lost.is_cancelled());
        assert_eq!((step.follow_ups.len(), core.release_writes.len()), (may_remain.into(), may_remain.into()));
    }
}

/// The server answers the first of the reads shortly before the timeout, and the second never.
#[tokio::test(start_paused = true)]
async fn stat_takes_one_timeout_for_all_its_reads() {
    let timeout = Duration::from_secs(10);
    let driver = Arc::new(Driver::new(Options::new(["nobody:1"]).timeout(timeout), 0));
    let (client, mut orders) = (Client::of(Arc::clone(&driver)), registered(&driver));
    let serve = async {
        let mut next = async || match orders.recv().await {
            Some(ConnectionOrder::Send(send_id, _)) => send_id,
            other => panic!("{other:?}"),
        };
        driver.answered(next().await, response(acquired("/", 1)));
        let read = next().await;
        tokio::time::advance(timeout * 9 / 10).await;
        let content = Some(Content::Data(Some(Data { value: "v".into(), stat: stat() })));
        let (applied, offer) = (Revision(1), LeaseOffer::Everybody);
        let answer = ReadAnswer { content, grant: None, volume: NodePath::root(), applied, offer };
        driver.answered(read, response(Answer::Read(answer)));
    };
    let began = tokio::time::Instant::now();
    let (answer, ()) = tokio::join!(client.stat("/a"), serve);
    let (Err(ReadError::TimedOut { after, .. } | ReadError::Unavailable { after, .. }), false) =
        (&answer, client.driver().closed.is_cancelled())
    else {
        panic!("{answer:?}")
    };
    assert_eq!(*after, timeout);
    assert!(began.elapsed() < timeout + Duration::from_millis(10), "{:?}", began.elapsed());
}

/// The task of an application, whose waker panics.
struct BadWaker;

impl std::task::Wake for BadWaker {
    fn wake(self: Arc<Self>) {
        panic!("a waker panicked");
    }
}

/// The answer installs a copy. Then it wakes the application's read, and that panics.
#[tokio::test]
async fn panic_in_a_step_ends_the_client_and_its_copies() {
    let driver = Driver::new(Options::new(["nobody:1"]), 0);
    let mut orders = registered(&driver);
    let (_, mut outcome) = driver.read(Object::data(path("/a")), LeaseRequest::Implicit);
    let acquire = sent(&mut orders).0;
    driver.answered(acquire, response(acquired("/", 1)));
    let read = sent(&mut orders).0;
    let waker = Arc::new(BadWaker).into();
    assert!(std::pin::Pin::new(&mut outcome).poll(&mut std::task::Context::from_waker(&waker)).is_pending());
    let grant = Grant {
        stamp: Stamp { epoch: Epoch(1), sequence: 2 },
        volume: NodePath::root(),
        incarnation: Incarnation(1),
        generation: VolumeGeneration::default(),
        span: TERM,
    };
    let answer = ReadAnswer {
        content: Some(Content::Data(None)),
        grant: Some(grant),
        volume: NodePath::root(),
        applied: Revision::default(),
        offer: LeaseOffer::Everybody,
    };
    let stepped = catch_unwind(AssertUnwindSafe(|| driver.answered(read, response(Answer::Read(answer)))));
    stepped.expect_err("the waker panics in the step");
    assert!(driver.cache.hit(ObjectKind::Data, &path("/a")).is_none());
    assert!(driver.closed.is_cancelled() && driver.session().is_none());
    let (_, after) = driver.read(Object::data(path("/a")), LeaseRequest::Implicit);
    assert!(matches!(after.await, Ok(ReadOutcome::Failed(holder::ReadFailure::Closed))));
}

/// The lock is given up while its upgrade is in flight.
#[tokio::test]
async fn late_outcome_of_upgrade_brings_back_no_lock() {
    let driver = Driver::new(Options::new(["nobody:1"]), 0);
    let mut orders = registered(&driver);
    let outcome = |mode, token| {
        let (volume, incarnation) = (NodePath::root(), Incarnation(1));
        let lock =
            LockOutcome { path: path("/a"), lock: LockId(1), mode, token: Some(Token(token)), volume, incarnation };
        let written = Written { lock: Some(Box::new(lock)), ..Written::default() };
        let stamp = Stamp { epoch: Epoch(1), sequence: token };
        let (grant, applied, key_lease, write_lease_data) = (None, Revision::default(), None, None);
        response(Answer::Written { written, stamp, grant, applied, key_lease, write_lease_data })
    };
    let (wait, delay) = (true, Duration::ZERO);
    let _requested = driver.write(Write::Lock { path: path("/a"), mode: LockMode::Shared, wait, delay });
    let acquire = sent(&mut orders).0;
    driver.answered(acquire, response(acquired("/", 1)));
    let lock = sent(&mut orders).0;
    driver.answered(lock, outcome(LockMode::Shared, 2));
    assert!(driver.core.lock().locks.contains_key(&LockId(1)));
    let change = |mode| Write::ChangeLockMode { path: path("/a"), lock: LockId(1), mode, wait };
    let _upgraded = driver.write(change(LockMode::Exclusive));
    let _released = driver.begin_pending_release(&path("/a"), Write::Unlock { path: path("/a"), lock: LockId(1) });
    driver.drop_lock_cell(LockId(1));
    while let Ok(ConnectionOrder::Send(send_id, request)) = orders.try_recv() {
        if matches!(request.body, Body::Write { write: Write::ChangeLockMode { .. }, .. }) {
            driver.answered(send_id, outcome(LockMode::Exclusive, 3));
        }
    }
    assert!(driver.core.lock().locks.is_empty());
}

/// The children of `/a`, or *not modified*, with a lease under this incarnation of the volume
/// lease.
fn leased(sequence: u64, incarnation: u64, is_modified: bool) -> Response {
    let children = Children { names: Default::default(), version: 1, modify_revision: Revision(1) };
    let grant = Grant {
        stamp: Stamp { epoch: Epoch(1), sequence },
        volume: path("/"),
        incarnation: Incarnation(incarnation),
        generation: VolumeGeneration::default(),
        span: TERM,
    };
    response(Answer::Read(ReadAnswer {
        content: is_modified.then_some(Content::Children(Some(children))),
        grant: Some(grant),
        volume: path("/"),
        applied: Revision(1),
        offer: LeaseOffer::Everybody,
    }))
}

/// The server pushed the copy. Then the volume lease ended, and a read made the server validate it.
#[tokio::test]
async fn copy_that_was_validated_for_a_read_is_wanted() {
    let driver = Driver::new(Options::new(["nobody:1"]), 0);
    let mut orders = registered(&driver);
    let object = Object::children(path("/a"));
    let recalled = |sequence, number| -> Vec<PushRequest> {
        let (session, stamp) = (SessionId(1), Stamp { epoch: Epoch(1), sequence });
        let sets = vec![ObjectSet::One(object.clone())];
        match driver.recalled(Recall { session, stamp, number, sets, offers_next_values: true }) {
            RecallReply::Consented { push_requests, .. } => push_requests,
            other => panic!("{other:?}"),
        }
    };
    let _first = driver.read(object.clone(), LeaseRequest::Implicit);
    driver.answered(sent(&mut orders).0, response(acquired("/", 1)));
    driver.answered(sent(&mut orders).0, leased(2, 1, true));
    let [push] = recalled(3, 1).try_into().expect("a read asked for the copy");
    driver.pushed(Push { send_id: push.send_id, response: leased(4, 1, true) });

    let _other = driver.read(Object::children(path("/b")), LeaseRequest::Implicit);
    let lapses = vec![Lapse { volume: path("/"), incarnation: Incarnation(1) }];
    driver.answered(sent(&mut orders).0, Response { lapses, ..leased(5, 1, true) });
    let _second = driver.read(object.clone(), LeaseRequest::Implicit);
    let validation = loop {
        match sent(&mut orders) {
            (acquire, Body::Acquire { .. }) => driver.answered(acquire, response(acquired("/", 6))),
            (read, Body::Read { known: Some(_), .. }) => break read,
            (_, body) => assert!(matches!(body, Body::Read { .. }), "{body:?}"),
        }
    };
    driver.answered(validation, leased(7, 6, false));
    assert_eq!(recalled(8, 2).len(), 1, "a read asked for the copy");
}
