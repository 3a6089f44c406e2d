//! Large reports to many watchers: shared, spread over steps, and bounded while they are in flight.

use std::sync::Arc;

use super::*;
use crate::{
    change::{Changes, WatchScope},
    command::Attach,
    holder::WATCH_WAIT,
    message::{CHANGES_BYTES_MAX, WATCH_WAIT_MAX},
};

fn watch(text: &str, after: u64) -> Body {
    let watched = WatchScope::Subtree(path(text));
    Body::Watch { watched, after: Some(Revision(after)), wait: WATCH_WAIT, bytes_max: CHANGES_BYTES_MAX }
}

/// The reports among the effects, by request.
fn reports(effects: &[LessorEffect]) -> Vec<(u64, Changes)> {
    let report = |effect: &LessorEffect| match effect {
        LessorEffect::Reply { id, response: Response { result: Ok(Answer::Changes(report)), .. } } => {
            Some((id.0, report.clone()))
        }
        _ => None,
    };
    effects.iter().filter_map(report).collect()
}

fn events(report: &Changes) -> usize {
    report.changes.iter().map(|change| change.events.len()).sum()
}

/// Watchers that ask again from the end of each report, as clients do.
#[derive(Default)]
struct Watchers {
    /// The session and the last revision of each request that is not answered.
    asked: BTreeMap<u64, (SessionId, u64)>,
    /// The revisions that were reported to each session, in order.
    told: BTreeMap<SessionId, Vec<u64>>,
}

impl Watchers {
    fn ask(&mut self, world: &mut World, session: SessionId, after: u64) -> Vec<(u64, Changes)> {
        let effects = world.request(session, watch("/", after));
        self.asked.insert(world.requests, (session, after));
        self.note(&effects)
    }

    /// Notes the reports among the effects.
    fn note(&mut self, effects: &[LessorEffect]) -> Vec<(u64, Changes)> {
        let reports = reports(effects);
        for (id, report) in &reports {
            let (session, after) = self.asked.remove(id).expect("an answer to a request");
            assert!(report.through.0 >= after);
            self.told.entry(session).or_default().extend(report.changes.iter().map(|change| change.revision.0));
        }
        reports
    }
}

/// A leader with this many watchers of everything, each in its own session.
fn watched_world(sessions: usize) -> (World, SessionId, Watchers) {
    let mut world = World::new();
    let writer = world.session();
    let mut watchers = Watchers::default();
    for _ in 0..sessions {
        let session = world.session();
        watchers.ask(&mut world, session, 0);
    }
    (world, writer, watchers)
}

impl World {
    /// Puts a node. Returns all effects.
    fn put_once(&mut self, writer: SessionId, text: &str) -> Vec<LessorEffect> {
        self.write(writer, put(text, b"x"));
        self.commit()
    }
}

#[test]
fn watchers_of_a_large_change_share_its_events() {
    const WATCHERS: usize = 20;
    let mut world = World::new();
    let writer = world.session();
    world.fill(writer, (0..5_000).map(|number| (path(&format!("/many/{number}")), Attach::Nothing)));
    let (mut watchers, before) = (Watchers::default(), world.state.revision().0);
    for _ in 0..WATCHERS {
        let session = world.session();
        watchers.ask(&mut world, session, before);
    }
    world.write(writer, Write::Delete { path: path("/many"), recursive: true, condition: Condition::Any });
    let mut told = watchers.note(&world.commit());
    assert!(told.len() < 5, "{} large reports in one step", told.len());
    while told.len() < WATCHERS {
        let step = watchers.note(&world.step(LessorInput::Timeout));
        assert!((1..5).contains(&step.len()), "{} large reports in one step", step.len());
        told.extend(step);
    }
    let first = Arc::clone(&told[0].1.changes[0].events);
    assert_eq!(first.len(), 5_001);
    for (_, report) in told {
        let [change] = &report.changes[..] else { panic!("one change: {} events", events(&report)) };
        assert!(Arc::ptr_eq(&first, &change.events), "the events are copied");
    }
}

#[test]
fn arriving_watch_waits_for_its_turn() {
    let (mut world, writer, mut watchers) = watched_world(6);
    let late = world.session();
    world.lessor.config.bounds.watch_events_per_step = 3;
    world.write(writer, put("/a/b", b"x"));
    let mut told: Vec<u64> = watchers.note(&world.commit()).into_iter().map(|(id, _)| id).collect();
    assert_eq!(told.len(), 1, "three answers and events fill a step");
    let arrived = watchers.ask(&mut world, late, 0);
    assert_eq!(arrived.len(), 1, "one of the others in this step");
    told.extend(arrived.iter().map(|(id, _)| *id));
    while world.lessor.watches.is_behind(world.now, &world.lessor.config.bounds) {
        let step = watchers.note(&world.step(LessorInput::Timeout));
        assert_eq!(step.len(), 1);
        told.extend(step.into_iter().map(|(id, _)| id));
    }
    assert_eq!(told.len(), 7);
    assert!(told.is_sorted(), "in the order of arrival: {told:?}");
}

#[test]
fn ready_watch_beyond_the_bound_is_busy_unless_it_is_next() {
    let (mut world, writer, mut watchers) = watched_world(3);
    let late = world.session();
    world.lessor.config.bounds.watch_events_per_step = 1;
    world.lessor.config.bounds.watches_max = 2;
    assert_eq!(watchers.note(&world.put_once(writer, "/a")).len(), 1);
    let refusal = result(&world.request(late, watch("/", 0))[..1]);
    assert!(matches!(refusal, Err(Refusal::Busy { .. })), "{refusal:?}");
    world.pass(MILLI * 4);
    assert_eq!(reports(&world.request(late, watch("/", 0))).len(), 1, "no other watch waits");
}

#[test]
fn bounded_reports_reach_each_watcher_once_and_complete() {
    const SESSIONS: usize = 40;
    let (mut world, writer, mut watchers) = watched_world(SESSIONS);
    let sessions: Vec<SessionId> = watchers.asked.values().map(|(session, _)| *session).collect();
    world.lessor.config.bounds.watch_bytes_in_flight_max = 2_000;
    let mut on_their_way: VecDeque<(SessionId, Changes)> = VecDeque::new();
    let put = |number: u64| put(["/a", "/b", "/c"][number as usize % 3], b"value");
    for number in 0..6 {
        world.write(writer, put(number));
        let asked = watchers.asked.clone();
        on_their_way.extend(watchers.note(&world.commit()).into_iter().map(|(id, report)| (asked[&id].0, report)));
        assert!((1..SESSIONS).contains(&on_their_way.len()), "{} reports in flight", on_their_way.len());
        // A few reports arrive. Their watchers ask again.
        for _ in 0..5 {
            let (session, report) = on_their_way.pop_front().expect("some are on their way");
            let asked = watchers.asked.clone();
            let next = watchers.ask(&mut world, session, report.through.0);
            on_their_way.extend(next.into_iter().map(|(id, report)| {
                let session = asked.get(&id).map_or(session, |(session, _)| *session);
                (session, report)
            }));
            assert!((1..SESSIONS).contains(&on_their_way.len()), "{} reports in flight", on_their_way.len());
        }
    }
    while let Some((session, report)) = on_their_way.pop_front() {
        let asked = watchers.asked.clone();
        let next = watchers.ask(&mut world, session, report.through.0);
        on_their_way.extend(next.into_iter().map(|(id, report)| {
            let session = asked.get(&id).map_or(session, |(session, _)| *session);
            (session, report)
        }));
    }
    let all: Vec<u64> = (1..=world.state.revision().0).collect();
    for session in sessions {
        assert_eq!(watchers.told.get(&session), Some(&all), "session {session}");
    }
    assert_eq!(world.lessor.watches.sizes()[6..], [0, 0, 0], "everything has arrived");
}

#[test]
fn session_whose_reports_are_not_taken_delays_no_other() {
    let (mut world, writer, mut watchers) = watched_world(1);
    let slow = watchers.asked.values().next().expect("one watch").0;
    for _ in 0..4 {
        watchers.ask(&mut world, slow, 0);
    }
    let other = world.session();
    watchers.ask(&mut world, other, 0);
    world.lessor.config.bounds.session_watch_bytes_in_flight_max = 1;
    let first = watchers.note(&world.put_once(writer, "/a"));
    assert_eq!(first.len(), 2, "one report to each session");
    assert_eq!((watchers.told[&slow].len(), watchers.told[&other].len()), (1, 1));
    assert_eq!(world.lessor.next_deadline(world.now), world.now.after(clock::STEP_EVERY), "nothing to do meanwhile");
    // Each next request acknowledges the report before it.
    for told in 2..=5 {
        watchers.ask(&mut world, slow, 1);
        assert_eq!(watchers.told[&slow].len(), told);
    }
}

/// Makes two watches of one session. A report to the first is in flight, and the second waits.
fn one_in_flight() -> (World, SessionId, SessionId) {
    let (mut world, writer, watchers) = watched_world(1);
    let session = watchers.asked.values().next().expect("one watch").0;
    world.request(session, watch("/a", 0));
    world.lessor.config.bounds.session_watch_bytes_in_flight_max = 1;
    assert_eq!(reports(&world.put_once(writer, "/a")).len(), 1);
    (world, writer, session)
}

#[test]
fn report_of_a_stopped_watch_counts_for_a_limited_time() {
    let heartbeat = || Body::Heartbeat(Default::default());
    let (mut world, _, session) = one_in_flight();
    let seconds = Duration::from_secs(1);
    assert_eq!(reports(&world.pass(seconds * 4)), []);
    assert_eq!(reports(&world.request(session, heartbeat())), []);
    world.pass(seconds - MILLI);
    let told = reports(&world.request(session, heartbeat()));
    assert_eq!(told, [], "just before");
    world.now = world.now.after(MILLI);
    let told = reports(&world.request(session, heartbeat()));
    assert_eq!(told.iter().map(|(_, report)| events(report)).collect::<Vec<_>>(), [1], "the client hears the server");
}

#[test]
fn report_to_a_silent_client_counts_until_it_is_lost() {
    let (mut world, writer, _) = one_in_flight();
    let other = world.session();
    world.lessor.config.bounds.watch_bytes_in_flight_max = 1;
    assert_eq!(reports(&world.request(other, watch("/", 0))), [], "the watch waits");
    let marked = reports(&world.pass(WATCH_WAIT));
    assert_eq!(
        marked.iter().map(|(_, report)| report.through.0).collect::<Vec<_>>(),
        [0, 0],
        "marks before the change"
    );
    let ask = |world: &mut World| {
        let Body::Watch { watched, after, bytes_max, .. } = watch("/", 0) else { panic!("a watch") };
        world.request(other, Body::Watch { watched, after, wait: WATCH_WAIT_MAX, bytes_max })
    };
    assert_eq!(reports(&ask(&mut world)), []);
    world.put_once(writer, "/b");
    let told = reports(&world.pass(Duration::from_secs(31)));
    assert_eq!(told.iter().map(|(_, report)| events(report)).collect::<Vec<_>>(), [2], "both changes");
}

#[test]
fn registration_and_close_end_the_reports_of_a_session() {
    for body in [Body::Register, Body::Close] {
        let (mut world, _, session) = one_in_flight();
        let other = world.session();
        world.lessor.config.bounds.watch_bytes_in_flight_max = 1;
        assert_eq!(reports(&world.request(other, watch("/", 0))), []);
        let mut effects = world.request(session, body);
        effects.extend(world.commit());
        assert_eq!(reports(&effects).len(), 1, "the watch of the other session");
    }
}

#[test]
fn watch_without_a_turn_gets_a_mark_then_its_changes() {
    let (mut world, writer, session) = one_in_flight();
    let waiting = world.requests;
    world.put_once(writer, "/b");
    assert_eq!(reports(&world.pass(WATCH_WAIT - MILLI)), []);
    let mark = Changes { changes: Vec::new(), through: Revision(0) };
    let marks = reports(&world.pass(MILLI));
    assert_eq!(marks.iter().map(|(_, report)| report).collect::<Vec<_>>(), [&mark], "before its change");
    assert!(marks[0].0 < waiting);
    // The client has taken the report meanwhile.
    let told = reports(&world.request(session, watch("/a", 0)));
    assert_eq!(told.iter().map(|(_, report)| (events(report), report.through.0)).collect::<Vec<_>>(), [(1, 2)]);
}

/// No step answers all woken watches of the other sessions.
#[test]
fn watch_of_full_session_gets_mark_while_others_have_turns() {
    let (mut world, writer, _) = one_in_flight();
    for _ in 0..5 {
        let other = world.session();
        assert_eq!(reports(&world.request(other, watch("/", 1))), []);
    }
    world.lessor.config.bounds.watch_events_per_step = 1;
    world.pass(WATCH_WAIT - MILLI);
    let first = reports(&world.put_once(writer, "/b"));
    assert_eq!((first.len(), events(&first[0].1)), (1, 1), "the others have not waited long, and one is answered");
    world.now = world.now.after(MILLI);
    let told = reports(&world.step(LessorInput::Timeout));
    let mark = Changes { changes: Vec::new(), through: Revision(0) };
    assert!(told.iter().any(|(_, report)| *report == mark), "{told:?}");
    assert!(world.lessor.watches.is_behind(world.now, &world.lessor.config.bounds), "others still have a turn");
}

#[test]
fn watch_whose_change_is_compacted_before_its_turn_starts_over() {
    let (mut world, writer, session) = one_in_flight();
    world.state = world.state.clone().with_history(2);
    for text in ["/b", "/c", "/d", "/e"] {
        world.put_once(writer, text);
    }
    let effects = world.request(session, watch("/", 1));
    let refusals = replies(&effects).into_iter().filter(|reply| matches!(reply.result, Err(Refusal::Compacted { .. })));
    assert_eq!(refusals.count(), 2, "the new request, and the one that has waited since the first change");
}

/// One large change may have many watchers of one session with the same scope.
#[test]
fn each_request_acknowledges_one_of_equal_reports() {
    let mut reports = super::super::watch_reports::WatchReports::default();
    let (session, watched, through) = (SessionId(1), WatchScope::Subtree(NodePath::root()), Revision(7));
    (0..3).for_each(|_| reports.add(session, watched.clone(), through, (10, Instant::ZERO)));
    for _ in 0..5 {
        reports.acknowledge(session, &watched, through, Instant::ZERO);
        assert_eq!(reports.bytes_to(session), 20, "only the oldest has certainly arrived");
        reports.add(session, watched.clone(), through, (10, Instant::ZERO));
    }
    for left in [20, 10, 0, 0] {
        reports.acknowledge(session, &watched, through, Instant::ZERO);
        assert_eq!(reports.bytes_to(session), left);
    }
    assert_eq!(reports.check(), Ok(()));
}
