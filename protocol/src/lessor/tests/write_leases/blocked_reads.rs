//! Reads that wait for a write lease: their bound, their end, and the report about them.

use super::*;
use crate::lease_policy::LeaseRequest;

#[test]
fn blocked_reads_have_their_own_bound() {
    let mut world = World::new();
    let writer = world.caching();
    let reader = world.session();
    the_recall(&world.ask_for(reader, "/a"));
    let waiting = WaitingRead {
        requester: Requester { id: RequestId(0), session: SessionId(0), renewed: Vec::new(), clocks: None },
        target: ReadTarget::List { path: path("/a"), after: None, nodes_max: 1 },
    };
    for id in 1..LessorBounds::DEFAULT.blocked_reads_max as u64 {
        let requester = Requester { id: RequestId(1 << 32 | id), ..waiting.requester.clone() };
        world.lessor.blocked_reads.insert(&path("/a"), WaitingRead { requester, ..waiting.clone() }, world.now);
    }
    let what = "reads that wait for write leases".to_owned();
    let busy = Refusal::Busy {
        what,
        got: LessorBounds::DEFAULT.blocked_reads_max,
        most: LessorBounds::DEFAULT.blocked_reads_max,
    };
    let other = world.session();
    assert_eq!(result(&world.ask_for(other, "/a")), Err(busy.clone()));
    assert_eq!(result(&world.ask_for(reader, "/a")), Err(Refusal::Retry), "blocked reads have their own bound");
    let list = Body::List { path: path("/a"), after: None, nodes_max: 1 };
    assert_eq!(result(&world.ask(SessionId(0), list)), Err(busy));
    let root = Body::Read { object: data("/"), known: None, lease: LeaseRequest::Implicit };
    assert!(matches!(answer(&world.ask(other, root)), Answer::Read(_)), "other reads are answered");
    let effects = world.flush(writer, None, true);
    assert_eq!(replies(&effects).len(), LessorBounds::DEFAULT.blocked_reads_max + 1, "the flush, and all that waited");
    assert_eq!(world.lessor.blocked_reads, Default::default());
}

#[test]
fn blocked_reads_end_with_registration_or_step_down() {
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

#[test]
fn blocked_reads_report_count_owner_age_and_time_limit() {
    let mut world = World::new();
    let writer = world.caching();
    let (reader, other) = (world.session(), world.session());
    assert_eq!(world.read_waits("/a"), []);
    world.ask_for(reader, "/a");
    world.pass(TERM / 5);
    world.ask_for(other, "/a");
    world.list(Some("/"));
    world.pass(TERM / 5);
    let waits = world.read_waits("/a");
    let [wait] = &waits[..] else { panic!("one holder: {waits:?}") };
    assert_eq!((&wait.path, wait.reads, wait.holder, wait.holder_name.as_str()), (&path("/a"), 3, writer, "test"));
    assert_eq!(wait.since, TERM / 5 * 2);
    let margin = VolumeSettings::DEFAULT.skew_margin();
    assert!(wait.at_most >= TERM / 5 * 3 && wait.at_most <= TERM / 5 * 3 + margin, "{wait:?}");
    let of_list = world.read_waits("/");
    assert_eq!(of_list, [BlockedReadInfo { reads: 1, since: TERM / 5, ..wait.clone() }], "the list that begins there");
    assert_eq!(world.read_waits("/b"), []);
    world.flush(writer, None, true);
    assert_eq!(world.read_waits("/a"), []);
}
