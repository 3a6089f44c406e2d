//! What is piggybacked on requests: how much, and for which session.

use super::*;
use crate::{
    limits::LimitError,
    message::{
        CACHED_READS_MAX, CONSENTS_MAX, CachedReads, DROPPED_SETS_MAX, RENEWALS_MAX, REPORT_PART_OBJECTS_MAX,
        RETURNS_MAX, ReadGaps, Return,
    },
};

impl World {
    fn header(&self, session: SessionId) -> RequestHeader {
        let (epoch, registration) = (self.state.epoch(), self.registration(session));
        RequestHeader { session, epoch, registration, ..RequestHeader::default() }
    }

    /// The end of the session's lease on the root, as the lessor counts it.
    fn end(&self, session: SessionId) -> ClusterTime {
        self.lessor.leases.get(&AnyLease::Volume(session, NodePath::root())).expect("a lease").ends_at
    }
}

fn list() -> Body {
    Body::List { path: NodePath::root(), after: None, nodes_max: 1 }
}

#[test]
fn request_with_a_list_too_long_changes_nothing() {
    let mut world = World::new();
    let (session, grant) = world.holder(&data("/a"));
    let incarnation = grant.incarnation;
    world.pass(MILLI * 500);
    let before = world.lessor.clone();
    let renew = |count| vec![Renew { volume: NodePath::root(), incarnation }; count];
    let returns = |count| vec![Return { object: data("/a"), stamp: grant.stamp }; count];
    let gaps = ReadGaps::default();
    let cached_reads = |count| vec![CachedReads { volume: NodePath::root(), reads: 1, gaps }; count];
    let set = ObjectSet::One(data("/a"));
    let own = world.header(session);
    let with = |header: RequestHeader, body| Request { header, body };
    let write = |dropped| Body::Write { write: put("/a", b"1"), dropped, seen: Stamp::default() };
    let dropped = |objects| {
        let (volume, covering) = (NodePath::root(), CoveringNumber::default());
        Body::HolderReport(HolderReportPart { volume, incarnation, covering, part: 0, parts: 1, objects })
    };
    let cases = [
        (
            "renewals",
            RENEWALS_MAX,
            with(RequestHeader { renew: renew(RENEWALS_MAX + 1), ..own.clone() }, Body::Heartbeat(Default::default())),
        ),
        (
            "consents",
            CONSENTS_MAX,
            with(
                RequestHeader { consents: vec![grant.stamp; CONSENTS_MAX + 1], renew: renew(1), ..own.clone() },
                list(),
            ),
        ),
        (
            "returns",
            RETURNS_MAX,
            with(
                RequestHeader { returns: returns(RETURNS_MAX + 1), renew: renew(1), ..own.clone() },
                Body::Heartbeat(Default::default()),
            ),
        ),
        (
            "volumes with reads from memory",
            CACHED_READS_MAX,
            with(
                RequestHeader { cached_reads: cached_reads(CACHED_READS_MAX + 1), renew: renew(1), ..own.clone() },
                Body::Heartbeat(Default::default()),
            ),
        ),
        ("sets of dropped objects", DROPPED_SETS_MAX, with(own.clone(), write(vec![set; DROPPED_SETS_MAX + 1]))),
        (
            "objects in a part of a holder report",
            REPORT_PART_OBJECTS_MAX,
            with(own.clone(), dropped(vec![data("/a"); REPORT_PART_OBJECTS_MAX + 1])),
        ),
    ];
    for (what, expected, request) in cases {
        let [response] = replies(&world.send(request)).try_into().expect("one answer");
        let error = LimitError::Request { what: what.to_owned(), got: expected + 1, expected };
        assert_eq!(error.to_string(), format!("request: {} {what} exceed the limit of {expected}", expected + 1));
        assert_eq!(response.result, Err(error.into()));
        assert_eq!((response.promises, response.lapses), (vec![], vec![]), "{what}");
        assert_eq!(world.lessor, before, "{what}");
    }
    let full = RequestHeader {
        renew: renew(RENEWALS_MAX),
        consents: vec![grant.stamp; CONSENTS_MAX],
        returns: returns(RETURNS_MAX),
        cached_reads: cached_reads(CACHED_READS_MAX),
        ..own
    };
    let [response] = replies(&world.send(Request { header: full, body: Body::Heartbeat(Default::default()) }))
        .try_into()
        .expect("one");
    assert!(matches!(response.result, Ok(Answer::Heartbeat(_))), "{:?}", response.result);
    assert_eq!(response.promises.len(), RENEWALS_MAX);
}

#[test]
fn list_of_an_unregistered_session_renews_nothing() {
    let mut world = World::new();
    let (session, grant) = world.holder(&data("/a"));
    let renew = vec![Renew { volume: NodePath::root(), incarnation: grant.incarnation }];
    world.fail_over();
    world.pass(MILLI * 3000);
    let (end, epoch) = (world.end(session), world.state.epoch());
    // Registered with an earlier leader; with none; without a session.
    let old = RequestHeader {
        session,
        epoch: grant.stamp.epoch,
        registration: 1,
        renew: renew.clone(),
        ..RequestHeader::default()
    };
    let unregistered = RequestHeader { session, epoch, renew: renew.clone(), ..RequestHeader::default() };
    let sessionless = RequestHeader { renew, ..RequestHeader::default() };
    let not_found = Refusal::SessionNotFound { session: SessionId(0) };
    for (header, refusal) in [
        (old.clone(), Refusal::NotRegistered { got: old.epoch, expected: epoch }),
        (unregistered, Refusal::NotRegistered { got: epoch, expected: epoch }),
        (sessionless, not_found),
    ] {
        for body in [list(), Body::Inspect(Inspect::Leases { after: None }), Body::Open { name: "x".to_owned() }] {
            let [response] = replies(&world.send(Request { header: header.clone(), body })).try_into().expect("one");
            assert_eq!((response.promises, response.result), (vec![], Err(refusal.clone())));
        }
    }
    assert_eq!(world.end(session), end);
}

#[test]
fn list_without_a_session_is_answered() {
    let mut world = World::new();
    let session = world.session();
    world.write(session, put("/a", b"1"));
    world.commit();
    world.send(Request { header: RequestHeader::default(), body: list() });
    let proven = world.step(LessorInput::Proven { round: world.lessor.round });
    assert!(matches!(answer(&proven), Answer::Listed(page) if page.nodes.len() == 1));
}

#[test]
fn list_of_a_registered_session_renews_its_lease() {
    let mut world = World::new();
    let (session, grant) = world.holder(&data("/a"));
    world.pass(MILLI * 3000);
    let end = world.end(session);
    let renew = vec![Renew { volume: NodePath::root(), incarnation: grant.incarnation }];
    world.send(Request { header: RequestHeader { renew, ..world.header(session) }, body: list() });
    let proven = world.step(LessorInput::Proven { round: world.lessor.round });
    let [response] = replies(&proven).try_into().expect("one answer");
    assert_eq!(response.promises.len(), 1);
    assert!(world.end(session) > end);
}

#[test]
fn renewal_is_bounded_by_no_recall_consented_to_beside_it() {
    let mut world = World::new();
    let (session, grant) = world.holder(&data("/a"));
    let writer = world.session();
    let recall = recalls(&world.write(writer, put("/a", b"1"))).remove(0);
    world.pass(TERM / 2);
    world.renew(session, grant.incarnation).expect("its horizon moves with the next tick");
    world.pass(2 * world.state.tick());
    let renew = vec![Renew { volume: NodePath::root(), incarnation: grant.incarnation }];
    let header = RequestHeader { consents: vec![recall.stamp], renew, ..world.header(session) };
    let effects = world.send(Request { header, body: Body::Heartbeat(Default::default()) });
    let promised = replies(&effects).remove(0).promises.remove(0).span;
    assert!(promised > TERM * 8 / 10, "{promised:?}");
}

#[test]
fn refusal_of_late_registration_names_no_equal_epochs() {
    let mut world = World::new();
    let session = world.session();
    let late = world.header(session);
    world.request(session, Body::Register);
    let text = |world: &mut World, header: RequestHeader, body: Body| {
        result(&world.send(Request { header, body })).expect_err("refused").to_string()
    };
    let expected = "session not registered with the leader on this connection; it may have registered on a later one";
    assert_eq!(text(&mut world, late.clone(), Body::Register), expected);
    assert_eq!(text(&mut world, late, list()), expected);
    let old = RequestHeader { epoch: Epoch(0), ..world.header(session) };
    let expected = "session not registered with the leader on this connection; its epoch is 0, the leader's 1";
    assert_eq!(text(&mut world, old, list()), expected);
}
