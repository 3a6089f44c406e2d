//! Write leases: who waits for whom, and what ends the wait.

use super::*;
use crate::{
    hold::HoldMode,
    id::{HoldId, Token},
};

const HOLD: HoldId = HoldId(1);

impl World {
    /// A session with a write lease on `/a`: the hold is 1, the token 2.
    fn caching(&mut self) -> SessionId {
        let session = self.session();
        self.acquire(session, None);
        self.write(session, put("/a", b"old"));
        self.commit();
        let lock = Write::Lock { path: path("/a"), mode: HoldMode::Exclusive, wait: false, delay: Duration::ZERO };
        self.write(session, lock);
        self.commit();
        self.cache(session);
        session
    }

    fn cache(&mut self, session: SessionId) -> Option<Vec<u8>> {
        self.ask_to_cache(session);
        match answer(&self.commit()) {
            Answer::Written { cached, .. } => cached.map(|data| data.value.to_vec()),
            other => panic!("a write lease: {other:?}"),
        }
    }

    /// The session has dropped its own copy.
    fn ask_to_cache(&mut self, session: SessionId) -> Vec<Effect> {
        let write = Write::Cache { path: path("/a"), hold: HOLD };
        let seen = Stamp { epoch: self.state.epoch(), sequence: 1000 };
        self.request(session, Body::Write { write, dropped: vec![ObjectSet::One(data("/a"))], seen })
    }

    fn flush(&mut self, session: SessionId, value: Option<&'static [u8]>, ends: bool) -> Vec<Effect> {
        let value = value.map(Bytes::from_static);
        self.write(session, Write::Flush { path: path("/a"), hold: HOLD, token: Token(2), value, ends });
        self.commit()
    }

    /// A read that is proven.
    fn ask(&mut self, session: SessionId, body: Body) -> Vec<Effect> {
        let mut effects = self.request(session, body);
        effects.extend(self.step(Input::Proven { round: self.lessor.round }));
        effects.retain(|effect| !matches!(effect, Effect::Prove { .. }));
        effects
    }

    fn ask_for(&mut self, session: SessionId, text: &str) -> Vec<Effect> {
        self.ask(session, Body::Read { object: data(text), known: None })
    }

    fn consent(&mut self, recall: &Recall) -> Vec<Effect> {
        self.step(Input::Consent(Consent { session: recall.session, stamp: recall.stamp }))
    }
}

fn the_recall(effects: &[Effect]) -> Recall {
    let recalls = recalls(effects);
    let [recall] = &recalls[..] else { panic!("one recall in {effects:?}") };
    recall.clone()
}

fn read_value(effects: &[Effect]) -> (Vec<u8>, bool) {
    let Answer::Read(ReadAnswer { content: Some(Content::Data(Some(data))), grant, .. }) = answer(effects) else {
        panic!("data: {effects:?}")
    };
    (data.value.to_vec(), grant.is_some())
}

#[test]
fn a_write_lease_waits_for_all_copies_and_says_what_is_there() {
    let mut world = World::new();
    let session = world.caching();
    world.flush(session, None, true);
    let (reader, _) = world.holder(&data("/a"));
    let recall = the_recall(&world.ask_to_cache(session));
    assert_eq!((recall.session, world.commit()), (reader, Vec::new()), "the reader may use its copy");
    world.consent(&recall);
    let Answer::Written { cached: Some(cached), grant: None, .. } = answer(&world.commit()) else { panic!("open") };
    assert_eq!(cached.value, Bytes::from_static(b"old"));
}

#[test]
fn a_reader_waits_until_the_holder_has_flushed_and_said_so() {
    let mut world = World::new();
    let writer = world.caching();
    let reader = world.session();
    world.acquire(reader, None);
    let recall = the_recall(&world.ask_for(reader, "/a"));
    assert_eq!((recall.session, &recall.sets[..]), (writer, &[ObjectSet::One(data("/a"))][..]));
    assert_eq!(world.ask_for(reader, "/a"), [], "it is asked for already");
    assert_eq!(world.consent(&recall), [], "its word is not enough");
    assert!(world.lessor.channels[&writer].unanswered_since().is_some(), "and no answer (S5)");
    world.flush(writer, Some(b"new"), false);
    assert_eq!(world.state.node(&path("/a")).expect("it is there").value, Bytes::from_static(b"new"));
    let effects = world.flush(writer, None, true);
    let values = replies(&effects).len();
    assert_eq!(values, 3, "the flush, and both reads: {effects:?}");
    let read = replies(&effects).into_iter().find_map(|reply| match reply.result {
        Ok(Answer::Read(answer)) => Some(answer),
        _ => None,
    });
    assert!(read.is_some_and(|read| read.grant.is_some()), "nothing stands against a lease any more");
    world.consent(&recall);
    assert!(world.lessor.channels[&writer].unanswered_since().is_none());
}

#[test]
fn a_holder_reads_its_node_like_anyone_and_other_objects_are_nobodys() {
    let mut world = World::new();
    let writer = world.caching();
    let own = the_recall(&world.ask_for(writer, "/a"));
    assert_eq!(own.session, writer);
    assert_eq!(read_value(&{
        let effects = world.flush(writer, Some(b"new"), true);
        let is_read = |effect: &Effect| matches!(effect, Effect::Reply { response, .. } if matches!(response.result, Ok(Answer::Read(_))));
        effects.into_iter().filter(is_read).collect::<Vec<_>>()
    }).0, b"new");
    world.cache(writer);
    let children = Body::Read { object: Object::children(path("/a")), known: None };
    assert!(matches!(answer(&world.ask(writer, children)), Answer::Read(_)));
    let root = Body::Read { object: data("/"), known: None };
    assert!(matches!(answer(&world.ask(writer, root)), Answer::Read(_)));
}

#[test]
fn a_list_waits_for_all_that_is_kept_in_it() {
    let mut world = World::new();
    let writer = world.caching();
    let list = |top: &str| Body::List { path: path(top), after: None, nodes_max: 10 };
    assert!(matches!(answer(&world.ask(SessionId(0), list("/b"))), Answer::Listed(_)));
    the_recall(&world.ask(SessionId(0), list("/")));
    let effects = world.flush(writer, Some(b"new"), true);
    let listed = replies(&effects).into_iter().find_map(|reply| match reply.result {
        Ok(Answer::Listed(listed)) => Some(listed),
        _ => None,
    });
    let listed = listed.expect("it is answered").nodes;
    assert!(listed.iter().any(|(at, data)| *at == path("/a") && data.value == Bytes::from_static(b"new")));
}

#[test]
fn a_list_asks_all_who_keep_something_at_once_and_each_once() {
    let mut world = World::new();
    let writer = world.caching();
    let other = world.session();
    world.acquire(other, None);
    world.write(other, put("/b", b"old"));
    world.commit();
    world.write(other, Write::Lock { path: path("/b"), mode: HoldMode::Exclusive, wait: false, delay: Duration::ZERO });
    world.commit();
    let (hold, token) = (HoldId(3), Token(4));
    let seen = Stamp { epoch: world.state.epoch(), sequence: 1000 };
    let write = Write::Cache { path: path("/b"), hold };
    world.request(other, Body::Write { write, dropped: vec![ObjectSet::One(data("/b"))], seen });
    world.commit();
    let list = || Body::List { path: Path::root(), after: None, nodes_max: 10 };
    let asked: Vec<_> = recalls(&world.ask(SessionId(0), list())).iter().map(|recall| recall.session).collect();
    assert_eq!(asked, [writer, other]);
    assert_eq!(world.ask(SessionId(0), list()), []);
    let flush = Write::Flush { path: path("/b"), hold, token, value: None, ends: true };
    world.write(other, flush);
    assert_eq!(replies(&world.commit()).len(), 1, "the flush");
    assert_eq!(replies(&world.flush(writer, None, true)).len(), 3, "the flush, and both lists");
}

#[test]
fn a_write_waits_in_its_queue_and_what_is_flushed_passes_it() {
    let mut world = World::new();
    let writer = world.caching();
    let other = world.session();
    let effects = world.write(other, put("/a", b"other's"));
    let recall = the_recall(&effects);
    assert_eq!(world.commit(), []);
    assert_eq!(world.waits("/a").len(), 1);
    let effects = world.flush(writer, Some(b"new"), true);
    assert_eq!(replies(&effects).len(), 1, "the flush, past the one that waits for it: {effects:?}");
    assert!(world.state.node(&path("/a")).expect("it is there").value == Bytes::from_static(b"new"));
    world.consent(&recall);
    assert!(matches!(answer(&world.commit()), Answer::Written { .. }));
    assert!(world.state.node(&path("/a")).expect("it is there").value == Bytes::from_static(b"other's"));
}

#[test]
fn a_consent_that_comes_too_early_counts_when_the_write_lease_is_over() {
    let mut world = World::new();
    let writer = world.caching();
    let other = world.session();
    let recall = the_recall(&world.write(other, put("/a", b"other's")));
    world.consent(&recall);
    assert_eq!(world.commit(), [], "it still keeps the data");
    let effects = world.flush(writer, None, true);
    let done = replies(&effects).iter().filter(|reply| matches!(reply.result, Ok(Answer::Written { .. }))).count();
    assert_eq!(done, 2, "the flush, and what waited: {effects:?}");
}

#[test]
fn a_write_that_was_proposed_before_the_write_lease_is_brought_again() {
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
fn a_transaction_waits_for_what_it_compares_and_comes_before_the_next_write_lease() {
    use crate::transaction::{Compare, Operation, Relation, Target, Transaction};
    let mut world = World::new();
    let writer = world.caching();
    let other = world.session();
    let compare = Compare { path: path("/a"), target: Target::Value(Relation::Equal, Bytes::from_static(b"new")) };
    let then = vec![Operation::Put { path: path("/b"), value: Bytes::new(), attach: Default::default() }];
    let transaction = Transaction { compares: vec![compare], then, otherwise: Vec::new() };
    let recall = the_recall(&world.write(other, Write::Transaction(transaction)));
    world.flush(writer, Some(b"new"), true);
    world.consent(&recall);
    let Answer::Written { written, .. } = answer(&world.commit()) else { panic!("done") };
    assert_eq!(written.transaction.expect("one").failed, None);
}

#[test]
fn who_is_gone_keeps_nothing_for_longer_than_its_lease() {
    let mut world = World::new();
    let writer = world.caching();
    let reader = world.session();
    the_recall(&world.ask_for(reader, "/a"));
    let effects = world.pass(TERM * 2);
    let (value, _) = read_value(&effects);
    assert_eq!(value, b"old", "what it had not flushed is lost");
    let refused = result(&world.flush(writer, Some(b"new"), false));
    assert!(matches!(refused, Err(Refusal::Write(WriteRefusal::HoldNotFound { .. }))), "{refused:?}");
}

#[test]
fn a_holder_that_does_not_flush_is_promised_nothing_beyond_a_term() {
    let mut world = World::new();
    let writer = world.caching();
    let reader = world.session();
    let incarnation = world.state.leases().find_map(|(key, lease)| match key {
        LeaseKey::Volume(session, _) if *session == writer => Some(lease.incarnation),
        _ => None,
    });
    let incarnation = incarnation.expect("it has a lease");
    the_recall(&world.ask_for(reader, "/a"));
    let mut effects = Vec::new();
    for _ in 0..40 {
        effects.extend(world.pass(TERM / 20));
        let _ = world.renew(writer, incarnation);
    }
    assert_eq!(read_value(&effects).0, b"old");
}

#[test]
fn the_next_leader_knows_and_asks_anew() {
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
fn a_returning_copy_is_not_good_again_while_its_data_is_kept() {
    let mut world = World::new();
    let writer = world.caching();
    world.flush(writer, None, true);
    let (reader, _) = world.holder(&data("/a"));
    let revision = world.state.revision();
    let old = world.lessor.ends.iter().find_map(|(key, end)| match key {
        LeaseKey::Volume(session, _) if *session == reader => Some(end.incarnation),
        _ => None,
    });
    let old = old.expect("it has a lease");
    world.pass(TERM / 2);
    world.request(writer, Body::KeepAlive);
    // The reader's lease ends, not the writer's.
    let incarnation = world.state.leases().find_map(|(key, lease)| match key {
        LeaseKey::Volume(session, _) if *session == writer => Some(lease.incarnation),
        _ => None,
    });
    for _ in 0..8 {
        world.renew(writer, incarnation.expect("it has a lease")).expect("it is renewed");
        world.pass(TERM / 5);
    }
    assert_eq!(world.cache(writer).as_deref(), Some(&b"old"[..]));
    let generation = world.state.volume(&Path::root()).expect("a volume").generation;
    let acquired = world.acquire(reader, Some(LastValid { incarnation: old, generation, revision }));
    let Revival::AllBut { changed, .. } = acquired.revival else { panic!("revived: {acquired:?}") };
    assert!(changed.contains(&ObjectSet::One(data("/a"))), "though it has not changed: {changed:?}");
}

#[test]
fn who_stops_asking_is_not_waited_for_and_a_leader_that_steps_down_lets_all_go() {
    let mut world = World::new();
    world.caching();
    let reader = world.session();
    the_recall(&world.ask_for(reader, "/a"));
    let effects = world.request(reader, Body::Register);
    assert!(replies(&effects).iter().any(|reply| reply.result == Err(Refusal::Retry)), "{effects:?}");
    world.ask_for(reader, "/a");
    let World { lessor, state, now, .. } = world;
    let effects = lessor.step_down(&state, now);
    assert!(replies(&effects).iter().all(|reply| reply.result == Err(Refusal::Retry)) && !effects.is_empty());
}
