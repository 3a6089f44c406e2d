//! Write leases: which requests wait for their owners, and what ends the wait (S10).

mod again;
mod blocked_reads;

use super::*;
use crate::{
    id::{LockId, Token},
    lease_policy::LeaseRequest,
    lock::LockMode,
    message::{BlockedReadInfo, FirstRead},
};

const LOCK: LockId = LockId(1);
const OTHER_LOCK: LockId = LockId(3);

impl World {
    /// A session with a write lease on `/a`: lock 1, token 2.
    fn caching(&mut self) -> SessionId {
        let session = self.session();
        self.acquire(session, None);
        self.write(session, put("/a", b"old"));
        self.commit();
        let lock = Write::Lock { path: path("/a"), mode: LockMode::Exclusive, wait: false, delay: Duration::ZERO };
        self.write(session, lock);
        self.commit();
        self.cache(session);
        session
    }

    fn cache(&mut self, session: SessionId) -> Option<Vec<u8>> {
        self.ask_to_cache(session);
        match answer(&self.commit()) {
            Answer::Written { write_lease_data, .. } => write_lease_data.map(|data| data.value.to_vec()),
            other => panic!("a write lease: {other:?}"),
        }
    }

    /// The request says that the session has dropped its own copy.
    fn ask_to_cache(&mut self, session: SessionId) -> Vec<LessorEffect> {
        let write = Write::TakeWriteLease { path: path("/a"), lock: LOCK };
        let seen = Stamp { epoch: self.state.epoch(), sequence: 1000 };
        self.request(session, Body::Write { write, dropped: vec![ObjectSet::One(data("/a"))], seen })
    }

    fn flush(&mut self, session: SessionId, value: Option<&'static [u8]>, ends_write_lease: bool) -> Vec<LessorEffect> {
        let value = value.map(Bytes::from_static);
        self.write(session, Write::Flush { path: path("/a"), lock: LOCK, token: Token(2), value, ends_write_lease });
        self.commit()
    }

    /// A read whose round succeeds.
    fn ask(&mut self, session: SessionId, body: Body) -> Vec<LessorEffect> {
        let mut effects = self.request(session, body);
        effects.extend(self.step(LessorInput::Proven { round: self.lessor.round }));
        effects.retain(|effect| !matches!(effect, LessorEffect::Prove { .. }));
        effects
    }

    fn ask_for(&mut self, session: SessionId, text: &str) -> Vec<LessorEffect> {
        self.ask(session, Body::AwaitRead { object: data(text), known: None, lease: LeaseRequest::Implicit })
    }

    fn list(&mut self, after: Option<&str>) -> Vec<LessorEffect> {
        let body = Body::List { path: NodePath::root(), after: after.map(path), nodes_max: 10 };
        self.ask(SessionId(0), body)
    }

    /// Another session with a write lease, on `/b`: lock 3, token 4.
    fn caching_other(&mut self) -> SessionId {
        let session = self.session();
        self.acquire(session, None);
        self.write(session, put("/b", b"old"));
        self.commit();
        let lock = Write::Lock { path: path("/b"), mode: LockMode::Exclusive, wait: false, delay: Duration::ZERO };
        self.write(session, lock);
        self.commit();
        let seen = Stamp { epoch: self.state.epoch(), sequence: 1000 };
        let write = Write::TakeWriteLease { path: path("/b"), lock: OTHER_LOCK };
        self.request(session, Body::Write { write, dropped: vec![ObjectSet::One(data("/b"))], seen });
        self.commit();
        session
    }

    fn flush_other(&mut self, session: SessionId) -> Vec<LessorEffect> {
        let (path, lock, token) = (path("/b"), OTHER_LOCK, Token(4));
        self.write(session, Write::Flush { path, lock, token, value: None, ends_write_lease: true });
        self.commit()
    }

    fn consent(&mut self, recall: &Recall) -> Vec<LessorEffect> {
        self.step(LessorInput::Consent(Consent { session: recall.session, stamp: recall.stamp }))
    }
}

fn the_recall(effects: &[LessorEffect]) -> Recall {
    let recalls = recalls(effects);
    let [recall] = &recalls[..] else { panic!("one recall in {effects:?}") };
    recall.clone()
}

fn read_value(effects: &[LessorEffect]) -> (Vec<u8>, bool) {
    let Answer::Read(ReadAnswer { content: Some(Content::Data(Some(data))), grant, .. }) = answer(effects) else {
        panic!("data: {effects:?}")
    };
    (data.value.to_vec(), grant.is_some())
}

/// The client then sends the read on its own, and waits for the flush.
#[test]
fn first_read_of_data_under_write_lease_does_not_come_along() {
    let mut world = World::new();
    world.caching();
    let reader = world.session();
    let read = Some(FirstRead { object: data("/a"), known: None, lease: LeaseRequest::Implicit });
    world.request(reader, Body::Acquire { path: NodePath::root(), last_valid: None, read });
    let Answer::Acquired(acquired) = answer(&world.commit()) else { panic!("acquired") };
    assert_eq!(acquired.read, None);
}

#[test]
fn write_lease_waits_for_all_copies_and_returns_the_data() {
    let mut world = World::new();
    let session = world.caching();
    world.flush(session, None, true);
    let (reader, _) = world.holder(&data("/a"));
    let recall = the_recall(&world.ask_to_cache(session));
    assert_eq!((recall.session, world.commit()), (reader, Vec::new()), "the reader may use its copy");
    world.consent(&recall);
    let Answer::Written { write_lease_data: Some(cached), grant: None, .. } = answer(&world.commit()) else {
        panic!("open")
    };
    assert_eq!(cached.value, Bytes::from_static(b"old"));
}

#[test]
fn reader_waits_for_flush_and_consent_of_the_owner() {
    let mut world = World::new();
    let writer = world.caching();
    let reader = world.session();
    world.acquire(reader, None);
    let recall = the_recall(&world.ask_for(reader, "/a"));
    assert_eq!((recall.session, &recall.sets[..]), (writer, &[ObjectSet::One(data("/a"))][..]));
    let other = world.session();
    assert_eq!(world.ask_for(other, "/a"), [], "the write lease is recalled already");
    assert_eq!(
        world.consent(&recall),
        [LessorEffect::Recall(recall.clone())],
        "the consent does not count: the recall is sent again"
    );
    assert!(world.lessor.recall_channels[&writer].unanswered_since().is_some(), "the read has no answer (S5)");
    world.flush(writer, Some(b"new"), false);
    assert_eq!(world.state.node(&path("/a")).expect("the node exists").value, Bytes::from_static(b"new"));
    let effects = world.flush(writer, None, true);
    let values = replies(&effects).len();
    assert_eq!(values, 3, "the flush, and both reads: {effects:?}");
    let read = replies(&effects).into_iter().find_map(|reply| match reply.result {
        Ok(Answer::Read(answer)) => Some(answer),
        _ => None,
    });
    assert!(read.is_some_and(|read| read.grant.is_some()), "the object can be leased again");
    world.consent(&recall);
    assert!(world.lessor.recall_channels[&writer].unanswered_since().is_none());
}

#[test]
fn owner_read_recalls_own_write_lease_of_that_object_only() {
    let mut world = World::new();
    let writer = world.caching();
    let own = the_recall(&world.ask_for(writer, "/a"));
    assert_eq!(own.session, writer);
    assert_eq!(read_value(&{
        let effects = world.flush(writer, Some(b"new"), true);
        let is_read = |effect: &LessorEffect| matches!(effect, LessorEffect::Reply { response, .. } if matches!(response.result, Ok(Answer::Read(_))));
        effects.into_iter().filter(is_read).collect::<Vec<_>>()
    }).0, b"new");
    world.cache(writer);
    let children = Body::Read { object: Object::children(path("/a")), known: None, lease: LeaseRequest::Implicit };
    assert!(matches!(answer(&world.ask(writer, children)), Answer::Read(_)));
    let root = Body::Read { object: data("/"), known: None, lease: LeaseRequest::Implicit };
    assert!(matches!(answer(&world.ask(writer, root)), Answer::Read(_)));
}

#[test]
fn reader_learns_at_once_that_it_is_blocked() {
    let mut world = World::new();
    let writer = world.caching();
    let reader = world.session();
    let read = || Body::Read { object: data("/a"), known: None, lease: LeaseRequest::Implicit };
    let effects = world.ask(reader, read());
    assert_eq!((answer(&effects), the_recall(&effects).session), (Answer::ReadBlocked, writer));
    let effects = world.ask(reader, read());
    assert_eq!(
        (answer(&effects), recalls(&effects)),
        (Answer::ReadBlocked, vec![]),
        "the write lease is recalled already"
    );
    let effects = world.flush(writer, Some(b"new"), true);
    assert_eq!(replies(&effects).len(), 1, "the flush waits for no session");
    assert_eq!(read_value(&world.ask_for(reader, "/a")).0, b"new", "a later read is answered at once");
}

#[test]
fn later_blocked_read_of_session_replaces_earlier_one() {
    let mut world = World::new();
    world.caching();
    let (reader, other) = (world.session(), world.session());
    world.ask_for(reader, "/a");
    world.ask_for(other, "/a");
    assert_eq!(result(&world.ask_for(reader, "/a")), Err(Refusal::Retry));
    assert_eq!(world.lessor.blocked_reads.count, 2);
}

fn listed(effects: &[LessorEffect]) -> (Vec<String>, bool) {
    let Answer::Listed(page) = answer(effects) else { panic!("a page: {effects:?}") };
    (page.nodes.iter().map(|(at, data)| format!("{at} {:?}", data.value)).collect(), page.through.is_some())
}

#[test]
fn page_ends_before_write_leased_node_and_recalls_all_at_once() {
    let mut world = World::new();
    let (writer, other) = (world.caching(), world.caching_other());
    let effects = world.list(None);
    assert_eq!(recalls(&effects).iter().map(|recall| recall.session).collect::<Vec<_>>(), [writer, other]);
    assert_eq!(listed(&effects), (vec!["/ b\"\"".to_owned()], true));
    assert_eq!(world.list(Some("/")), [], "the page would begin with a write-leased node, and all are recalled");
    assert_eq!(replies(&world.flush_other(other)).len(), 1, "the flush");
    let effects = world.flush(writer, Some(b"new"), true);
    let page = effects.iter().filter(
        |effect| matches!(effect, LessorEffect::Reply { response, .. } if matches!(response.result, Ok(Answer::Listed(_)))),
    );
    let page: Vec<_> = page.cloned().collect();
    assert_eq!(listed(&page), (vec!["/a b\"new\"".to_owned(), "/b b\"old\"".to_owned()], false));
}

#[test]
fn page_does_not_wait_for_nodes_outside_it() {
    let mut world = World::new();
    let (writer, other) = (world.caching(), world.caching_other());
    world.write(other, put("/a/c", b"1"));
    world.commit();
    world.flush_other(other);
    let effects = world.list(Some("/a"));
    assert_eq!((listed(&effects).0.len(), recalls(&effects)), (2, vec![]), "/a is before it");
    let body = Body::List { path: NodePath::root(), after: None, nodes_max: 1 };
    let effects = world.ask(SessionId(0), body);
    assert_eq!((listed(&effects).0.len(), recalls(&effects)), (1, vec![]), "/a is after it");
    the_recall(&world.ask_for(other, "/a"));
    world.flush(writer, None, true);
}

#[test]
fn page_waits_only_for_its_first_node_under_write_lease() {
    let mut world = World::new();
    let (writer, other) = (world.caching(), world.caching_other());
    world.list(Some("/"));
    let effects = world.flush(writer, None, true);
    let pages = replies(&effects).into_iter().filter_map(|reply| match reply.result {
        Ok(Answer::Listed(page)) => Some(page),
        _ => None,
    });
    let pages: Vec<_> = pages.collect();
    let [page] = &pages[..] else { panic!("one page: {effects:?}") };
    assert_eq!((page.nodes.len(), &page.nodes[0].0, &page.through), (1, &path("/a"), &Some(path("/a"))));
    assert_eq!(world.state.write_leased_lock(&path("/b")).map(|(_, record)| record.session), Some(other));
}

#[test]
fn flush_passes_a_write_that_waits() {
    let mut world = World::new();
    let writer = world.caching();
    let other = world.session();
    let effects = world.write(other, put("/a", b"other's"));
    let recall = the_recall(&effects);
    assert_eq!(world.commit(), []);
    assert_eq!(world.waits("/a").len(), 1);
    let effects = world.flush(writer, Some(b"new"), true);
    assert_eq!(replies(&effects).len(), 1, "the flush, past the one that waits for it: {effects:?}");
    assert!(world.state.node(&path("/a")).expect("the node exists").value == Bytes::from_static(b"new"));
    world.consent(&recall);
    assert!(matches!(answer(&world.commit()), Answer::Written { .. }));
    assert!(world.state.node(&path("/a")).expect("the node exists").value == Bytes::from_static(b"other's"));
}

#[test]
fn early_consent_counts_when_write_lease_ends() {
    let mut world = World::new();
    let writer = world.caching();
    let other = world.session();
    let recall = the_recall(&world.write(other, put("/a", b"other's")));
    assert_eq!(
        world.consent(&recall),
        [LessorEffect::Recall(recall.clone())],
        "the recall may have overtaken the answer with the write lease"
    );
    assert_eq!(
        (world.consent(&recall), world.commit()),
        (vec![], vec![]),
        "the recall is sent once, and the write lease still exists"
    );
    let effects = world.flush(writer, None, true);
    let done = replies(&effects).iter().filter(|reply| matches!(reply.result, Ok(Answer::Written { .. }))).count();
    assert_eq!(done, 2, "the flush, and what waited: {effects:?}");
}

#[test]
fn write_proposed_before_write_lease_is_retried_after_it() {
    let mut world = World::new();
    let writer = world.caching();
    world.flush(writer, None, true);
    let other = world.session();
    world.ask_to_cache(writer);
    world.write(other, put("/a", b"other's"));
    let effects = world.commit();
    assert_eq!(replies(&effects).len(), 1, "the write lease is there, the write is not: {effects:?}");
    let recall = the_recall(&effects);
    assert_eq!(recall.session, writer);
    world.flush(writer, None, true);
    world.consent(&recall);
    assert!(matches!(answer(&world.commit()), Answer::Written { .. }));
}

#[test]
fn transaction_waits_for_flush_of_compared_node() {
    use crate::transaction::{Compare, CompareTarget, Operation, Relation, Transaction};
    let mut world = World::new();
    let writer = world.caching();
    let other = world.session();
    let compare =
        Compare { path: path("/a"), target: CompareTarget::Value(Relation::Equal, Bytes::from_static(b"new")) };
    let then = vec![Operation::Put { path: path("/b"), value: Bytes::new(), attach: Default::default() }];
    let transaction = Transaction { compares: vec![compare], then, otherwise: Vec::new() };
    let recall = the_recall(&world.write(other, Write::Transaction(transaction)));
    world.flush(writer, Some(b"new"), true);
    world.consent(&recall);
    let Answer::Written { written, .. } = answer(&world.commit()) else { panic!("done") };
    assert_eq!(written.transaction.expect("one").failed, None);
}

#[test]
fn ended_session_loses_its_unflushed_value() {
    let mut world = World::new();
    let writer = world.caching();
    let reader = world.session();
    the_recall(&world.ask_for(reader, "/a"));
    let effects = world.pass(TERM * 2);
    let (value, _) = read_value(&effects);
    assert_eq!(value, b"old", "the unflushed value is lost");
    let refused = result(&world.flush(writer, Some(b"new"), false));
    assert!(matches!(refused, Err(Refusal::Write(WriteRefusal::LockNotFound { .. }))), "{refused:?}");
}

#[test]
fn unflushed_write_lease_gets_no_promise_beyond_term() {
    let mut world = World::new();
    let writer = world.caching();
    let reader = world.session();
    let incarnation = world.state.leases().find_map(|(key, lease)| match key {
        AnyLease::Volume(session, _) if *session == writer => Some(lease.incarnation),
        _ => None,
    });
    let incarnation = incarnation.expect("the session has a lease");
    the_recall(&world.ask_for(reader, "/a"));
    let mut effects = Vec::new();
    for _ in 0..40 {
        effects.extend(world.pass(TERM / 20));
        let _ = world.renew(writer, incarnation);
    }
    assert_eq!(read_value(&effects).0, b"old");
}

#[test]
fn new_leader_recalls_write_leases_again() {
    let mut world = World::new();
    let writer = world.caching();
    let reader = world.session();
    world.fail_over();
    for session in [writer, reader] {
        world.request(session, Body::Register);
    }
    let recall = the_recall(&world.ask_for(reader, "/a"));
    assert_eq!(recall.stamp.epoch, world.state.epoch());
    let effects = world.flush(writer, Some(b"new"), true);
    assert_eq!(replies(&effects).len(), 2, "though others may have copies of anything: {effects:?}");
}

#[test]
fn copy_under_a_write_lease_is_not_revived() {
    let mut world = World::new();
    let writer = world.caching();
    world.flush(writer, None, true);
    let (reader, _) = world.holder(&data("/a"));
    let revision = world.state.revision();
    let old = world.lessor.leases.iter().find_map(|(key, end)| match key {
        AnyLease::Volume(session, _) if *session == reader => Some(end.incarnation),
        _ => None,
    });
    let old = old.expect("the session has a lease");
    world.pass(TERM / 2);
    world.request(writer, Body::Heartbeat(Default::default()));
    // The reader's lease ends, the writer's does not.
    let incarnation = world.state.leases().find_map(|(key, lease)| match key {
        AnyLease::Volume(session, _) if *session == writer => Some(lease.incarnation),
        _ => None,
    });
    for _ in 0..8 {
        world.renew(writer, incarnation.expect("the session has a lease")).expect("it is renewed");
        world.pass(TERM / 5);
    }
    assert_eq!(world.cache(writer).as_deref(), Some(&b"old"[..]));
    let generation = world.state.volume(&NodePath::root()).expect("a volume").generation;
    let acquired = world.acquire(reader, Some(LastValid { incarnation: old, generation, revision }));
    let Revival::AllExcept { changed, .. } = acquired.revival else { panic!("revived: {acquired:?}") };
    assert!(changed.contains(&ObjectSet::One(data("/a"))), "though it has not changed: {changed:?}");
}

impl World {
    fn read_waits(&mut self, text: &str) -> Vec<BlockedReadInfo> {
        let inspect = Inspect::BlockedReads { path: path(text) };
        match answer(&self.request(SessionId(0), Body::Inspect(inspect))) {
            Answer::BlockedReads(waits) => waits,
            other => panic!("what waits: {other:?}"),
        }
    }
}

#[test]
fn children_of_write_leased_node_are_leased() {
    let mut world = World::new();
    world.caching();
    world.holder(&Object::children(path("/a")));
}

/// Others wait for a flush, so a limit that they have reached must not refuse it.
#[test]
fn flush_is_admitted_beyond_the_bound_of_writes() {
    for configure in [(|bounds| bounds.writes_max = 1) as fn(&mut LessorBounds), |bounds| bounds.writes_bytes_max = 1] {
        let mut world = World::new();
        let holder = world.caching();
        let writer = world.session();
        configure(&mut world.lessor.config.bounds);
        assert!(replies(&world.write(writer, put("/a", b"new"))).is_empty(), "the write waits for the flush");
        let refusal = result(&world.write(writer, put("/b", b"new"))).expect_err("one more than the bound");
        assert!(matches!(refusal, Refusal::Busy { most: 1, .. }), "{refusal}");
        assert!(result(&world.flush(holder, Some(b"mine"), true)).is_ok());
        assert_eq!(world.state.data(&path("/a")).expect("a node").value, &b"mine"[..]);
        world.pass(TERM * 2);
        assert_eq!(world.state.data(&path("/a")).expect("a node").value, &b"new"[..], "the write waited for the flush");
    }
}
