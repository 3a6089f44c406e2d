//! Tests of the cost of watches. It depends on what they report, and not on what else has changed
//! (S10b).

use super::*;
use crate::{change::WatchScope, command::Attach, message::CHANGES_BYTES_MAX, work::take_visited};

/// A leader that begins with this many changes in the history, and a client with watches.
fn after_failover(changes: u64) -> (World, SessionId) {
    let mut world = World::new();
    let session = world.session();
    let puts = (0..changes).map(|number| (path(&format!("/changed/{}/{number}", number % 100)), Attach::Nothing));
    world.fill(session, puts);
    world.fail_over();
    world.request(session, Body::Register);
    world.is_checked = false;
    (world, session)
}

#[test]
fn returning_watches_examine_no_unrelated_changes() {
    const WATCHES: u64 = 10_000;
    const CHANGES: u64 = 10_000;
    let (mut world, session) = after_failover(CHANGES);
    take_visited();
    for number in 0..WATCHES {
        let top = path(&format!("/watched/{number}"));
        let watched = if number % 2 == 0 { WatchScope::Subtree(top) } else { WatchScope::Node(top) };
        let (after, wait) = (Some(Revision(0)), Duration::from_secs(5));
        let body = Body::Watch { watched, after, wait, bytes_max: CHANGES_BYTES_MAX };
        assert_eq!(world.request(session, body), [], "nothing to report");
    }
    let visited = take_visited();
    let most = WATCHES * 2 * u64::from(CHANGES.ilog2());
    assert!(visited <= most, "{visited} elements: expected at most {most}");
    world.check();
}

#[test]
fn answer_after_a_failover_examines_only_its_own_changes() {
    let (mut world, session) = after_failover(10_000);
    take_visited();
    let watched = WatchScope::Subtree(path("/changed/7"));
    let body = Body::Watch { watched, after: Some(Revision(0)), wait: Duration::ZERO, bytes_max: CHANGES_BYTES_MAX };
    let answered = answer(&world.request(session, body));
    let Answer::Changes(report) = answered else { panic!("changes: {answered:?}") };
    assert_eq!((report.changes.len(), report.through), (100, world.state.revision()));
    let visited = take_visited();
    assert!(visited <= 400, "{visited} elements for 100 events");
}

#[test]
fn change_in_many_directories_wakes_each_watch_once() {
    const COUNT: u64 = 1_000;
    let mut world = World::new();
    let session = world.session();
    world.fill(session, (0..COUNT).map(|number| (path(&format!("/many/{number}/a")), Attach::Nothing)));
    world.step(LessorInput::Timeout);
    world.is_checked = false;
    for _ in 0..COUNT {
        let (watched, after) = (WatchScope::Subtree(NodePath::root()), Some(world.state.revision()));
        let body = Body::Watch { watched, after, wait: Duration::from_secs(5), bytes_max: CHANGES_BYTES_MAX };
        assert_eq!(world.request(session, body), []);
    }
    world.write(session, Write::Delete { path: path("/many"), recursive: true, condition: Condition::Any });
    let proposal = world.lessor.take_proposal(world.now).expect("the write");
    world.index += 1;
    let applied = world.state.apply(world.index, &proposal);
    take_visited();
    let effects = world.step(LessorInput::committed(proposal.number, applied));
    let told = replies(&effects).into_iter().filter(|reply| matches!(reply.result, Ok(Answer::Changes(_)))).count();
    assert!((1..20).contains(&told), "{told} large reports in one step");
    let visited = take_visited();
    assert!(visited <= 16 * COUNT, "{visited} elements, for {COUNT} watches and twice as many events");
    world.check();
}

/// What one more change examines while this many woken watches wait for their session's reports.
fn change_with_woken(watches: u64) -> u64 {
    let mut world = World::new();
    let (writer, session) = (world.session(), world.session());
    world.is_checked = false;
    world.lessor.config.bounds.session_watch_bytes_in_flight_max = 1;
    for _ in 0..watches {
        let watched = WatchScope::Subtree(NodePath::root());
        let (after, wait) = (Some(Revision(0)), Duration::from_secs(5));
        assert_eq!(world.request(session, Body::Watch { watched, after, wait, bytes_max: CHANGES_BYTES_MAX }), []);
    }
    world.write(writer, put("/a", b"1"));
    assert_eq!(replies(&world.commit()).len(), 2, "the put, and one watch");
    world.write(writer, put("/a", b"2"));
    let proposal = world.lessor.take_proposal(world.now).expect("the write");
    world.index += 1;
    let applied = world.state.apply(world.index, &proposal);
    take_visited();
    world.step(LessorInput::committed(proposal.number, applied));
    let visited = take_visited();
    world.check();
    visited
}

#[test]
fn change_examines_no_woken_watch_again() {
    assert_eq!(change_with_woken(1_000), change_with_woken(10));
}
