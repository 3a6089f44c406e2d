//! Watches: which watchers are answered, when, and with what.

use super::{
    services::{KEY, with_a_lease},
    *,
};
use crate::{
    change::{Changes, WatchScope},
    command::Attach,
    message::{CHANGES_BYTES_MAX, LIST_NODES_MAX, ListPage},
};

const WAIT: Duration = Duration::from_secs(5);

fn subtree(text: &str) -> WatchScope {
    WatchScope::Subtree(path(text))
}

fn node(text: &str) -> WatchScope {
    WatchScope::Node(path(text))
}

fn watch(watched: WatchScope, after: u64) -> Body {
    Body::Watch { watched, after: Some(Revision(after)), wait: WAIT, bytes_max: CHANGES_BYTES_MAX }
}

/// The replies by request: the paths of each reported change, and the revision reported through.
fn reported(effects: &[LessorEffect]) -> BTreeMap<u64, (Vec<Vec<String>>, u64)> {
    let reply = |effect: &LessorEffect| match effect {
        LessorEffect::Reply {
            id,
            response: Response { result: Ok(Answer::Changes(Changes { changes, through })), .. },
        } => {
            let paths = |change: &crate::change::Change| {
                change.events.iter().map(|event| event.path.to_string()).collect::<Vec<_>>()
            };
            Some((id.0, (changes.iter().map(paths).collect(), through.0)))
        }
        _ => None,
    };
    effects.iter().filter_map(reply).collect()
}

impl World {
    /// Writes without holders in the way. Returns the reports to watchers.
    fn put_and_tell(&mut self, writer: SessionId, text: &str) -> BTreeMap<u64, (Vec<Vec<String>>, u64)> {
        self.write(writer, put(text, b"x"));
        reported(&self.commit())
    }
}

impl World {
    /// Lets `count` watches of one node wait.
    fn wait_often(&mut self, session: SessionId, count: usize) {
        for _ in 0..count {
            // A check of all invariants after each would take long.
            self.requests += 1;
            let (epoch, registration) = (self.state.epoch(), self.registration(session));
            let header = RequestHeader { session, epoch, registration, ..RequestHeader::default() };
            let request = Request { header, body: watch(node("/a"), 0) };
            let input = LessorInput::Request { id: RequestId(self.requests), request };
            assert_eq!(self.lessor.step(input, &self.state, self.now), []);
        }
    }
}

#[test]
fn many_watches_are_answered_over_several_steps() {
    for time_is_over in [false, true] {
        let mut world = World::new();
        let (writer, one, other) = (world.session(), world.session(), world.session());
        for session in [one, other] {
            world.wait_often(session, 9_000);
        }
        let first = world.put_and_tell(writer, "/a");
        assert!((1..18_000).contains(&first.len()), "{} are told at once", first.len());
        assert_eq!(world.lessor.next_deadline(world.now), world.now.after(MILLI), "the others soon");
        world.now = world.now.after(if time_is_over { WAIT } else { MILLI });
        let (mut rest, mut steps) = (BTreeMap::new(), 0);
        while world.lessor.watches.is_behind(world.now, &world.lessor.config.bounds) {
            rest.extend(reported(&world.step(LessorInput::Timeout)));
            steps += 1;
        }
        assert_eq!((first.len() + rest.len(), steps), (18_000, 2));
        let is_reported = |(changes, through): &(Vec<Vec<String>>, u64)| changes.len() == 1 && *through == 1;
        assert!(first.values().chain(rest.values()).all(is_reported), "the answer has the events");
    }
}

#[test]
fn watch_answers_known_changes_at_once_and_waits_for_others() {
    let mut world = World::new();
    let (writer, watcher) = (world.session(), world.session());
    world.put_and_tell(writer, "/a/b");
    let effects = world.request(watcher, watch(subtree("/a"), 0));
    assert_eq!(reported(&effects).into_values().collect::<Vec<_>>(), [(vec![vec!["/a".into(), "/a/b".into()]], 1)]);
    assert_eq!(world.request(watcher, watch(subtree("/a"), 1)), [], "the request waits");
    let waiting = world.requests;
    assert_eq!(world.put_and_tell(writer, "/b"), BTreeMap::new(), "the change is outside the scope");
    let expected = BTreeMap::from([(waiting, (vec![vec!["/a/c".to_owned()]], 3))]);
    assert_eq!(world.put_and_tell(writer, "/a/c"), expected);
    assert_eq!(world.put_and_tell(writer, "/a/c"), BTreeMap::new(), "the watch was answered");
}

#[test]
fn change_wakes_each_watch_of_its_paths_and_no_other() {
    let mut world = World::new();
    let (writer, watcher) = (world.session(), world.session());
    let watched = [
        subtree("/"),
        subtree("/a"),
        subtree("/a/b/c"),
        node("/a/b"),
        node("/a/b/c"),
        node("/a/x"),
        subtree("/a/b/c/d"),
    ];
    let mut ids = Vec::new();
    for one in watched {
        assert_eq!(world.request(watcher, watch(one, 0)), []);
        ids.push(world.requests);
    }
    let woken = world.put_and_tell(writer, "/a/b/c");
    assert_eq!(woken.keys().copied().collect::<Vec<_>>(), ids[..5]);
    assert_eq!(woken[&ids[3]], (vec![vec!["/a/b".to_owned()]], 1), "the created parent");
}

#[test]
fn a_watch_of_the_future_waits_for_it() {
    let mut world = World::new();
    let (writer, watcher) = (world.session(), world.session());
    assert_eq!(world.request(watcher, watch(subtree("/"), 2)), []);
    assert_eq!(world.put_and_tell(writer, "/a"), BTreeMap::new());
    assert_eq!(world.put_and_tell(writer, "/b"), BTreeMap::new());
    let reported = world.put_and_tell(writer, "/c");
    assert_eq!(reported.into_values().collect::<Vec<_>>(), [(vec![vec!["/c".to_owned()]], 3)]);
}

#[test]
fn watch_wait_ends_with_progress_answer() {
    let mut world = World::new();
    let (writer, watcher) = (world.session(), world.session());
    assert_eq!(world.request(watcher, watch(node("/a"), 0)), []);
    let first = world.requests;
    assert_eq!(world.request(watcher, watch(node("/a"), 7)), []);
    let second = world.requests;
    world.put_and_tell(writer, "/b");
    assert_eq!(reported(&world.pass(WAIT - MILLI)), BTreeMap::new());
    let ended = reported(&world.pass(MILLI));
    assert_eq!(ended, BTreeMap::from([(first, (vec![], 1)), (second, (vec![], 7))]), "one is about the future");
    let mut wait = watch(node("/a"), 1);
    if let Body::Watch { wait, .. } = &mut wait {
        *wait = Duration::MAX;
    }
    world.request(watcher, wait);
    assert_eq!(reported(&world.pass(crate::message::WATCH_WAIT_MAX)).len(), 1, "it waits for a minute at most");
}

#[test]
fn watch_without_revision_begins_at_a_proven_revision() {
    let mut world = World::new();
    let (writer, watcher) = (world.session(), world.session());
    world.put_and_tell(writer, "/a");
    let mut now = watch(subtree("/"), 0);
    if let Body::Watch { after, .. } = &mut now {
        *after = None;
    }
    let effects = world.request(watcher, now);
    let [LessorEffect::Prove { round }] = effects[..] else { panic!("a round begins: {effects:?}") };
    world.put_and_tell(writer, "/b");
    let reported = reported(&world.step(LessorInput::Proven { round }));
    assert_eq!(reported.into_values().collect::<Vec<_>>(), [(vec![], 2)]);
}

#[test]
fn compacted_revision_is_refused() {
    let mut world = World::before_the_epoch();
    world.state = world.state.clone().with_history(2);
    world.lessor = Lessor::new(config(2), &world.state, Duration::ZERO, world.now);
    world.commit();
    let (writer, watcher) = (world.session(), world.session());
    for text in ["/a", "/b", "/c"] {
        world.put_and_tell(writer, text);
    }
    let compacted = |after, earliest_after| {
        Err(Refusal::Compacted { after: Revision(after), earliest_after: Revision(earliest_after) })
    };
    assert_eq!(result(&world.request(watcher, watch(node("/x"), 0))), compacted(0, 1));
    assert_eq!(reported(&world.request(watcher, watch(subtree("/"), 1))).len(), 1);
    // A waiting watch is examined before the history forgets changes, even if one entry makes all
    // of them.
    assert_eq!(world.request(watcher, watch(node("/x"), 3)), []);
    let writers: Vec<SessionId> = (0..4).map(|_| world.session()).collect();
    for writer in writers {
        world.write(writer, put("/y", b"1"));
    }
    let refusals = replies(&world.commit()).into_iter().filter(|reply| reply.result == compacted(3, 5)).count();
    assert_eq!(refusals, 1, "two changes passed by unseen: nobody can say that they were about others");
}

#[test]
fn an_answer_has_room_for_some_changes_and_says_how_far_it_goes() {
    let mut world = World::new();
    let (writer, watcher) = (world.session(), world.session());
    for text in ["/a/x", "/a/y", "/a/z"] {
        world.put_and_tell(writer, text);
    }
    let mut small = watch(subtree("/a"), 0);
    if let Body::Watch { bytes_max, .. } = &mut small {
        *bytes_max = 1;
    }
    let reported = reported(&world.request(watcher, small));
    assert_eq!(reported.into_values().collect::<Vec<_>>(), [(vec![vec!["/a".to_owned(), "/a/x".to_owned()]], 1)]);
}

#[test]
fn watch_ends_with_registration_session_or_epoch() {
    let mut world = World::new();
    let watcher = world.session();
    assert_eq!(world.request(watcher, watch(node("/a"), 0)), []);
    let answered = replies(&world.request(watcher, Body::Register));
    assert_eq!(answered[0].result, Err(Refusal::Retry), "it will ask again, on the connection that it has now");
    assert_eq!(world.request(watcher, watch(node("/a"), 0)), []);
    world.request(watcher, Body::Close);
    let refusal = Err(Refusal::SessionNotFound { session: watcher });
    assert!(replies(&world.commit()).iter().any(|reply| reply.result == refusal));
    let other = world.session();
    assert_eq!(world.request(other, watch(node("/a"), 0)), []);
    let World { lessor, state, now, .. } = world;
    let left = replies(&lessor.step_down(&state, now));
    assert_eq!(left.iter().map(|reply| reply.result.clone()).collect::<Vec<_>>(), [Err(Refusal::Retry)]);
}

#[test]
fn watch_continues_at_the_next_leader() {
    let mut world = World::new();
    let (writer, watcher) = (world.session(), world.session());
    world.put_and_tell(writer, "/a");
    world.put_and_tell(writer, "/b");
    world.fail_over();
    world.request(watcher, Body::Register);
    let reported = reported(&world.request(watcher, watch(subtree("/"), 1)));
    assert_eq!(reported.into_values().collect::<Vec<_>>(), [(vec![vec!["/b".to_owned()]], 2)]);
}

#[test]
fn too_many_watches_of_session_are_refused_with_numbers() {
    let mut world = World::new();
    let (watcher, other) = (world.session(), world.session());
    world.wait_often(watcher, LessorBounds::DEFAULT.session_watches_max);
    let refusal = result(&world.request(watcher, watch(node("/a"), 0))).expect_err("one more than the bound");
    assert_eq!(refusal.to_string(), "server busy: 16384 watches of the session, the limit is 16384");
    assert_eq!(world.request(other, watch(node("/a"), 0)), [], "others may");
}

/// The nodes of a page, its revision, and up to where it is complete.
fn list(world: &mut World, top: &str, after: Option<&str>, nodes_max: u32) -> (Vec<String>, u64, Option<NodePath>) {
    let body = Body::List { path: path(top), after: after.map(path), nodes_max };
    let effects = world.request(SessionId(0), body);
    let [LessorEffect::Prove { round }] = effects[..] else { panic!("a list is proven like a read: {effects:?}") };
    let answer = answer(&world.step(LessorInput::Proven { round }));
    let Answer::Listed(ListPage { nodes, revision, through }) = answer else { panic!("listed: {answer:?}") };
    (nodes.into_iter().map(|(path, _)| path.to_string()).collect(), revision.0, through)
}

#[test]
fn a_list_comes_in_pages_each_at_one_revision() {
    let mut world = World::new();
    let writer = world.session();
    for text in ["/a/x", "/a/y", "/a-b", "/a0"] {
        world.put_and_tell(writer, text);
    }
    let owned = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect::<Vec<_>>();
    assert_eq!(list(&mut world, "/a", None, 2), (owned(&["/a", "/a/x"]), 4, Some(path("/a/x"))));
    world.put_and_tell(writer, "/a/z");
    assert_eq!(list(&mut world, "/a", Some("/a/x"), 2), (owned(&["/a/y", "/a/z"]), 5, None));
    assert_eq!(list(&mut world, "/a", Some("/a"), 9), (owned(&["/a/x", "/a/y", "/a/z"]), 5, None));
    assert_eq!(list(&mut world, "/", None, u32::MAX).0.len(), 7);
    assert_eq!(list(&mut world, "/", Some("/a0"), LIST_NODES_MAX), (vec![], 5, None));
    assert_eq!(list(&mut world, "/none", None, 1), (vec![], 5, None));
    for elsewhere in ["/a0/x", "/z", "/"] {
        let (found, ..) = list(&mut world, "/a", Some(elsewhere), 9);
        assert_eq!(found.len(), if elsewhere == "/" { 4 } else { 0 }, "after {elsewhere}, where the top may be too");
    }
    let (first, _, through) = list(&mut world, "/", None, 0);
    assert_eq!((first, through), (owned(&["/"]), Some(path("/"))), "one at least");
}

#[test]
fn page_scan_limit_counts_orphans_not_yet_purged() {
    let (mut world, session) = with_a_lease();
    let name = |number: usize| format!("/s/{number:05}");
    (0..LessorBounds::DEFAULT.scan_max / 8 * 9)
        .for_each(|number| world.attaches(session, &name(number), Attach::Lease(KEY)));
    world.put_and_tell(session, "/s/last");
    world.write(session, Write::RevokeLease { id: KEY, incarnation: None });
    answer(&world.commit());
    let places = world.state.nodes_and_tombstones_in(&path("/s"), None).count();
    assert!(places > LessorBounds::DEFAULT.scan_max, "most nodes are not reclaimed yet: {places}");
    let (top, _, through) = list(&mut world, "/s", None, u32::MAX);
    let through = through.expect("more follows");
    assert_eq!(top, ["/s"]);
    assert!(world.state.node(&through).is_none(), "it ends where nothing is: {through}");
    assert_eq!(list(&mut world, "/s", Some(through.as_str()), u32::MAX).0, ["/s/last"]);
    assert_eq!(list(&mut world, "/s", Some("/s/last"), u32::MAX).2, None);
}

#[test]
fn watch_of_a_change_without_events_starts_over() {
    let mut world = World::new();
    let (writer, watcher) = (world.session(), world.session());
    world.put_and_tell(writer, "/a/x");
    for watched in [node("/a/x"), subtree("/a/x"), subtree("/a"), node("/b")] {
        assert_eq!(world.request(watcher, watch(watched, 1)), []);
    }
    let (sequence, write) = (Sequence(1_000), Write::put(path("/a/x"), vec![0; 9 << 20].into()));
    let (consented, intended, attached_through) =
        (vec![ObjectSet::Subtree(NodePath::root())], IntendedLeases::default(), Revision(u64::MAX));
    let commands = vec![Command::Write {
        session: writer,
        sequence,
        unanswered_from: sequence,
        write,
        consented,
        intended,
        attached_through,
    }];
    world.index += 1;
    let (epoch, time) = (world.state.epoch(), world.state.cluster_time());
    let applied = world.state.apply(world.index, &Proposal { epoch, number: 0, time, commands });
    let effects = world.step(LessorInput::committed(0, applied));
    let is_compacted = |response: &Response| matches!(response.result, Err(Refusal::Compacted { .. }));
    let answers: Vec<bool> = replies(&effects).iter().map(is_compacted).collect();
    assert_eq!(answers, [true; 3], "a watch of another node still waits");
}

/// Both changes are in one entry: their watcher is woken once.
#[test]
fn changes_of_one_entry_are_reported_together() {
    let mut world = World::new();
    let (writer, watcher) = (world.session(), world.session());
    assert_eq!(world.request(watcher, watch(node("/a"), 0)), []);
    for value in [&b"1"[..], b"2"] {
        world.write(writer, put("/a", value));
    }
    let proposal = world.lessor.take_proposal(world.now).expect("two writes");
    assert_eq!((proposal.commands.len(), world.lessor.take_proposal(world.now)), (2, None), "in one entry");
    let reported: Vec<_> = reported(&world.apply(&proposal)).into_values().collect();
    assert_eq!(reported, [(vec![vec!["/a".to_owned()], vec!["/a".to_owned()]], 2)]);
}
