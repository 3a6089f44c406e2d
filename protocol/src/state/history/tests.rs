//! Tests of the history: stored, compacted and watched changes.

use super::{
    super::{FEW_NODES, fixture::*},
    *,
};
use crate::{
    command::{AnyLease, Attach, Command, Condition, IntendedLeases, Proposal, Write},
    id::{LeaseId, Sequence, SessionId},
    work::take_visited,
};

const UNBOUNDED: ScanBounds = ScanBounds { bytes: usize::MAX, events: usize::MAX };

/// The watched events after a revision, in short form.
fn reported(state: &State, after: u64, watched: &WatchScope) -> Vec<(u64, Vec<String>)> {
    let HistoryScan::Found { found, .. } = state.scan_after(Revision(after), watched, UNBOUNDED) else {
        panic!("the revision is in the history")
    };
    assert_eq!(found.through, state.revision());
    let event = |Event { path, kind, reason }: &Event| match kind {
        EventKind::Put(data) => format!("{path} = {}", String::from_utf8_lossy(&data.value)),
        EventKind::Delete => format!("{path} {reason:?}"),
    };
    found.changes.iter().map(|change| (change.revision.0, change.events.iter().map(event).collect())).collect()
}

fn everything_below() -> WatchScope {
    WatchScope::Subtree(NodePath::root())
}

fn attached(at: &str, attach: Attach) -> Write {
    Write::Put { path: path(at), value: "v".into(), condition: Condition::Any, attach }
}

#[test]
fn changed_sets_are_unique_and_inside_the_subtree() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    fixture.put(session, "/a/x", "1");
    fixture.put(session, "/b", "1");
    fixture.put(session, "/a/x", "2");
    fixture.put(session, "/a/x", "3");
    fixture.write(session, create_volume("/a/v", 5)).expect("new");
    let since = |revision, at: &str| fixture.state.changed_since(Revision(revision), &path(at));
    assert_eq!(since(1, "/a"), Some(vec![children("/a"), data("/a/x"), subtree("/a/v")]));
    assert_eq!(since(4, "/a/v/deep"), Some(vec![subtree("/a/v")]), "the subtree around the path changed");
    assert_eq!(since(1, "/b"), Some(vec![data("/b"), children("/b")]));
    assert_eq!(since(5, "/"), Some(vec![]));
    assert_eq!(since(6, "/"), None, "the revision is in the future");
}

#[test]
fn subtree_change_is_found_in_inner_volumes() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    fixture.write(session, create_volume("/v", 5)).expect("new");
    let ttl = std::time::Duration::from_secs(5);
    fixture.write(session, Write::GrantLease { id: Some(LeaseId(1)), name: None, ttl }).expect("new");
    for place in 0..=FEW_NODES {
        let list = if place % 2 == 0 { "/v" } else { "/w" };
        fixture.write(session, attached(&format!("{list}/{place}"), Attach::Lease(LeaseId(1)))).expect("granted");
    }
    let before = fixture.state.revision();
    fixture.write(session, Write::RevokeLease { id: LeaseId(1), incarnation: None }).expect("granted");
    let volume = path("/v");
    let changed = fixture.state.changed_in_volume(&volume, before).expect("known");
    assert_eq!(changed.collect::<Vec<_>>(), [&subtree("/")], "many nodes are named by their subtree");
}

#[test]
fn volume_creation_is_a_change_in_the_outer_volume() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    for (inner, around) in [("/v", "/"), ("/v/w", "/v")] {
        let before = fixture.state.revision();
        fixture.write(session, create_volume(inner, 5)).expect("new");
        for volume in [inner, around] {
            let volume = path(volume);
            let changed = fixture.state.changed_in_volume(&volume, before).expect("known");
            assert!(changed.into_iter().any(|set| *set == subtree(inner)), "{inner} in {volume}");
        }
        let elsewhere = path("/other");
        let others = fixture.state.changed_in_volume(&elsewhere, before).expect("known");
        assert_eq!(others.count(), 0, "the path is no volume");
    }
}

#[test]
fn history_is_bounded_and_reports_compacted_revisions() {
    let mut state = State::new(crate::volume::VolumeSettings::DEFAULT);
    let mut index = 0;
    let mut apply = |state: &mut State, command| {
        index += 1;
        let epoch = state.epoch();
        state.apply(index, &Proposal { epoch, number: index, time: Default::default(), commands: vec![command] })
    };
    apply(&mut state, Command::BeginEpoch { replica: 1, attempt: 1 });
    apply(&mut state, Command::OpenSession { name: String::new() });
    let most = State::HISTORY_MAX as u64;
    let mut last = None;
    for number in 1..=most + 2 {
        let write = Command::Write {
            session: SessionId(1),
            sequence: Sequence(number),
            unanswered_from: Sequence(number),
            write: put("/a", "x"),
            consented: everything(),
            intended: IntendedLeases::default(),
            attached_through: Revision(u64::MAX),
        };
        last = Some(apply(&mut state, write));
    }
    let touched = last.expect("a write").changed_rows;
    assert!(touched.contains(&RowKey::Change(Revision(2))) && touched.contains(&RowKey::Change(Revision(most + 2))));
    assert_eq!(state.row(&RowKey::Change(Revision(2))), None);
    assert!(state.row(&RowKey::Change(Revision(3))).is_some());
    assert_eq!(state.changed_since(Revision(1), &NodePath::root()), None, "change 2 is compacted");
    assert_eq!(state.changed_since(Revision(2), &NodePath::root()), Some(vec![data("/a")]));
    assert!(
        state.changed_in_volume(&NodePath::root(), Revision(1)).is_none()
            && state.changed_in_volume(&NodePath::root(), Revision(most + 3)).is_none()
    );
    let changed: Vec<_> =
        state.changed_in_volume(&NodePath::root(), Revision(2)).expect("the revision is in the history").collect();
    assert_eq!(changed, [&data("/a")]);
    let changes = usize::try_from(most).expect("a small number");
    assert_eq!(state.history.sizes(), [1, 1, changes, changes], "one object, changed several times");
    assert_eq!(state.check(), Ok(()));
    assert_eq!(State::from_rows(state.rows()), Ok(state));
}

#[test]
fn events_are_in_path_order_and_removals_in_reverse() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    fixture.put(session, "/a/b/c", "1");
    fixture.put(session, "/a/b/d", "2");
    fixture.put(session, "/a-b", "3");
    fixture.write(session, delete("/a", true)).expect("the node exists");
    let all = [
        (1, vec!["/a = ", "/a/b = ", "/a/b/c = 1"]),
        (2, vec!["/a/b/d = 2"]),
        (3, vec!["/a-b = 3"]),
        (4, vec!["/a/b/d Request", "/a/b/c Request", "/a/b Request", "/a Request"]),
    ];
    let all = all.map(|(revision, events)| (revision, events.into_iter().map(str::to_owned).collect::<Vec<_>>()));
    assert_eq!(reported(&fixture.state, 0, &everything_below()), all);
    assert_eq!(reported(&fixture.state, 2, &everything_below()), all[2..]);
    let node = WatchScope::Node(path("/a/b"));
    let of_node = [(1, vec!["/a/b = ".to_owned()]), (4, vec!["/a/b Request".to_owned()])];
    assert_eq!(reported(&fixture.state, 0, &node), of_node, "only events of the node");
    let subtree = WatchScope::Subtree(path("/a/b/c"));
    assert_eq!(reported(&fixture.state, 1, &subtree), [(4, vec!["/a/b/c Request".to_owned()])]);
}

#[test]
fn settings_change_wakes_no_watch() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    fixture.write(session, create_volume("/v", 5)).expect("new");
    assert_eq!(reported(&fixture.state, 0, &everything_below()), [(1, vec!["/v = ".to_owned()])]);
    fixture.write(session, create_volume("/v/w", 5)).expect("new");
    fixture.write(session, Write::RemoveVolume { path: path("/v") }).expect("a volume");
    assert_eq!(reported(&fixture.state, 2, &everything_below()), []);
}

#[test]
fn attached_nodes_are_removed_by_one_change_with_reason() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    fixture.acquire(session, "/");
    let removal =
        |fixture: &Fixture, after: u64| reported(&fixture.state, after, &everything_below()).pop().expect("told").1;
    for (id, at) in [(1, "/x"), (1, "/y"), (2, "/z")] {
        if fixture.state.lease(&AnyLease::KeyLease(LeaseId(id))).is_none() {
            let ttl = std::time::Duration::from_secs(5);
            fixture.write(session, Write::GrantLease { id: Some(LeaseId(id)), name: None, ttl }).expect("new");
        }
        fixture.write(session, attached(at, Attach::Lease(LeaseId(id)))).expect("granted");
    }
    fixture.write(session, attached("/s", Attach::Session)).expect("acquired");
    fixture.write(session, Write::RevokeLease { id: LeaseId(1), incarnation: None }).expect("granted");
    assert_eq!(removal(&fixture, 4), ["/y Revoked", "/x Revoked"]);
    let key = AnyLease::KeyLease(LeaseId(2));
    let lease = fixture.state.lease(&key).expect("granted").clone();
    let (incarnation, horizon) = (lease.incarnation, lease.horizon);
    fixture.run(Command::Expire { lease: key, incarnation, horizon });
    let remove = Command::Purge { leases: fixture.state.orphans().collect() };
    fixture.run(remove);
    assert_eq!(removal(&fixture, 5), ["/z Expired"]);
    fixture.run(Command::CloseSession { session });
    // A replica that was restored from rows knows the reason too.
    fixture.state = State::from_rows(fixture.state.rows()).expect("the rows of a state");
    let remove = Command::Purge { leases: fixture.state.orphans().collect() };
    fixture.run(remove);
    assert_eq!(removal(&fixture, 6), ["/s Revoked"], "a session that is closed does not expire");
}

#[test]
fn end_reason_is_forgotten_with_its_last_node() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    let other = fixture.open();
    fixture.acquire(session, "/");
    fixture.write(session, attached("/s", Attach::Session)).expect("acquired");
    fixture.run(Command::CloseSession { session });
    fixture.put(other, "/s", "mine");
    assert_eq!(fixture.state.orphans().count(), 0);
    assert_eq!(reported(&fixture.state, 1, &everything_below()), [(2, vec!["/s = mine".to_owned()])]);
}

#[test]
fn history_scan_stops_between_changes_and_continues() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    for at in ["/a/b", "/a/c", "/d", "/a/b"] {
        fixture.put(session, at, "value");
    }
    let scans = |watched: WatchScope, bounds: ScanBounds| {
        let (mut after, mut scans) = (Revision(0), Vec::new());
        while after < fixture.state.revision() {
            let HistoryScan::Found { found, .. } = fixture.state.scan_after(after, &watched, bounds) else {
                panic!("known")
            };
            after = found.through;
            scans.push((found.changes.iter().map(|change| change.events.len()).collect::<Vec<_>>(), after.0));
        }
        scans
    };
    let little = ScanBounds { bytes: 1, ..UNBOUNDED };
    let ones = vec![(vec![2], 1), (vec![1], 2), (vec![1], 3), (vec![1], 4)];
    assert_eq!(scans(everything_below(), little), ones, "one change at least, and whole");
    assert_eq!(scans(WatchScope::Node(path("/d")), little), [(vec![1], 4)], "unwatched events have no weight");
    let short = ScanBounds { events: 1, ..UNBOUNDED };
    assert_eq!(scans(WatchScope::Node(path("/d")), short), [(vec![1], 4)], "changes of other nodes do not count");
    assert_eq!(scans(everything_below(), short), ones);
    let five = ScanBounds { events: 5, ..UNBOUNDED };
    assert_eq!(scans(everything_below(), five), [(vec![2, 1], 2), (vec![1, 1], 4)], "a change counts like an event");
    let little = ScanBounds { bytes: 1, ..UNBOUNDED };
    let subtree = WatchScope::Subtree(path("/a"));
    assert_eq!(scans(subtree, little), [(vec![2], 1), (vec![1], 3), (vec![1], 4)], "up to before the next change");
    assert_eq!(scans(everything_below(), UNBOUNDED), [(vec![2, 1, 1, 1], 4)]);
    let events = fixture.state.events_after(Revision(1)).expect("known").filter_map(|(_, events)| events);
    let two = events.take(2).map(|events| CHANGE_BYTES + events.iter().map(Event::weight).sum::<usize>()).sum();
    for (bytes, expected) in [(two, 2), (two - 1, 1)] {
        let bounds = ScanBounds { bytes, ..UNBOUNDED };
        let HistoryScan::Found { found, .. } = fixture.state.scan_after(Revision(1), &everything_below(), bounds)
        else {
            panic!("known")
        };
        assert_eq!(found.changes.len(), expected, "within {bytes} bytes");
    }
}

#[test]
fn watch_of_compacted_revision_is_refused() {
    let mut fixture = Fixture::new();
    fixture.state = State::new(crate::volume::VolumeSettings::DEFAULT).with_history(2);
    fixture.rows = fixture.state.rows().collect();
    fixture.run(Command::BeginEpoch { replica: 1, attempt: 1 });
    let session = fixture.open();
    for at in ["/a", "/b", "/c", "/d"] {
        fixture.put(session, at, "");
    }
    let scan = |after| fixture.state.scan_after(Revision(after), &WatchScope::Node(path("/none")), UNBOUNDED);
    assert_eq!((scan(0), scan(1)), (HistoryScan::Compacted(Revision(2)), HistoryScan::Compacted(Revision(2))));
    let nothing =
        |through| HistoryScan::Found { found: Changes { changes: vec![], through: Revision(through) }, weight: 0 };
    assert_eq!((scan(2), scan(4), scan(9)), (nothing(4), nothing(4), nothing(9)), "the revision may be in the future");
    assert_eq!(State::from_rows(fixture.state.rows()), Ok(fixture.state.clone()), "the bound of the history is stored");
}

/// Puts a value of this many mebibytes.
fn put_heavy(fixture: &mut Fixture, at: &str, mebibytes: usize) {
    let session = SessionId(1);
    let (value, sequence) = (vec![0; mebibytes << 20].into(), fixture.next_sequence(session));
    let write = Write::put(path(at), value);
    let (consented, intended, attached_through) = (everything(), IntendedLeases::default(), Revision(u64::MAX));
    let command =
        Command::Write { session, sequence, unanswered_from: sequence, write, consented, intended, attached_through };
    let proposal = Proposal { epoch: fixture.state.epoch(), number: 1, time: fixture.time, commands: vec![command] };
    fixture.state.apply(fixture.state.applied_index() + 1, &proposal);
    assert_eq!(fixture.state.check(), Ok(()));
}

#[test]
fn the_history_is_bounded_by_weight_too() {
    let mut fixture = Fixture::new();
    fixture.open();
    let fit = State::HISTORY_BYTES_MAX / (4 << 20) - 1;
    (0..fit).for_each(|_| put_heavy(&mut fixture, "/a", 4));
    assert_eq!(fixture.state.compacted_through(), Revision(0));
    put_heavy(&mut fixture, "/a", 4);
    assert_eq!(fixture.state.compacted_through(), Revision(1), "the oldest change made room for the last");
    (0..fit).for_each(|_| put_heavy(&mut fixture, "/a", 0));
    assert_eq!(fixture.state.compacted_through(), Revision(1), "small changes compact nothing");
}

#[test]
fn watch_of_change_without_events_is_compacted() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    fixture.put(session, "/b", "1");
    put_heavy(&mut fixture, "/a/x", 9);
    fixture.rows = fixture.state.rows().collect();
    fixture.put(session, "/b", "2");
    let scan = |after, watched| fixture.state.scan_after(Revision(after), &watched, UNBOUNDED);
    let HistoryScan::Found { found, .. } = scan(0, everything_below()) else {
        panic!("the first change is in the history")
    };
    assert_eq!((found.changes.len(), found.through), (1, Revision(1)), "earlier changes come first");
    assert_eq!(scan(1, everything_below()), HistoryScan::Compacted(Revision(2)));
    assert_eq!(scan(1, WatchScope::Node(path("/a/x"))), HistoryScan::Compacted(Revision(2)));
    let subtree = StoredChange { sets: vec![subtree("/a")], events: None };
    let mut index = EventIndex::default();
    index.note(Revision(5), &subtree);
    for (at, concerns) in [("/a/x/y", true), ("/a", true), ("/b", false)] {
        let watched = [WatchScope::Node(path(at)), WatchScope::Subtree(path(at))];
        let next = Some(Revision(5)).filter(|_| concerns);
        assert_eq!(watched.map(|watched| index.first_after(Revision(4), &watched)), [next; 2], "{at}");
    }
    let above = |watched| index.first_after(Revision(4), &watched);
    assert_eq!([above(WatchScope::Node(path("/"))), above(everything_below())], [None, Some(Revision(5))]);
    assert_eq!(index.first_after(Revision(5), &everything_below()), None);
    index.forget(Revision(5), &subtree);
    assert_eq!(index.check(std::iter::empty()), Ok(()));
    let HistoryScan::Found { found, .. } = scan(0, WatchScope::Node(path("/b"))) else {
        panic!("the change concerns other nodes")
    };
    assert_eq!((found.changes.len(), found.through), (2, Revision(3)));
    assert_eq!(State::from_rows(fixture.state.rows()), Ok(fixture.state.clone()));
}

/// A simple search through all changes, to compare with the index.
fn first_watched(state: &State, after: u64, watched: &WatchScope) -> Option<Revision> {
    let mut changes = state.events_after(Revision(after)).expect("the revision is in the history");
    let is_watched = |events: Option<&[Event]>| events.into_iter().flatten().any(|event| watched.includes(&event.path));
    changes.find(|(_, events)| is_watched(*events)).map(|(revision, _)| revision)
}

#[test]
fn next_watched_revision_equals_that_of_a_walk() {
    let mut fixture = Fixture::new();
    fixture.state = State::new(crate::volume::VolumeSettings::DEFAULT).with_history(9);
    fixture.rows = fixture.state.rows().collect();
    fixture.run(Command::BeginEpoch { replica: 1, attempt: 1 });
    let session = fixture.open();
    let all = ["/", "/a", "/a/b", "/a/b/c", "/a-b", "/a0", "/a/b/d", "/e"];
    for (place, at) in all.into_iter().skip(1).cycle().take(30).enumerate() {
        fixture.put(session, at, "");
        if place % 7 == 6 {
            fixture.write(session, delete("/a", true)).expect("the node exists");
        }
        let rebuilt = State::from_rows(fixture.state.rows()).expect("the rows of a state");
        for after in fixture.state.compacted_through().0..=fixture.state.revision().0 + 1 {
            for watched in all.iter().flat_map(|at| [WatchScope::Node(path(at)), WatchScope::Subtree(path(at))]) {
                let expected = first_watched(&fixture.state, after, &watched);
                for state in [&fixture.state, &rebuilt] {
                    assert_eq!(
                        state.next_watched(Revision(after), &watched),
                        Ok(expected),
                        "{watched:?} after {after}"
                    );
                }
            }
        }
    }
    let forgotten = Revision(fixture.state.compacted_through().0 - 1);
    assert_eq!(fixture.state.next_watched(forgotten, &everything_below()), Err(fixture.state.compacted_through()));
}

#[test]
fn scan_examines_only_what_it_reports() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    let list = |number: usize| NodePath::parse(&format!("/many/{number}")).expect("a path");
    let then = (0..1000).map(|number| crate::transaction::Operation::put(list(number), "")).collect();
    let transaction = crate::transaction::Transaction { then, ..crate::transaction::Transaction::new() };
    fixture.write(session, Write::Transaction(transaction)).expect("new nodes");
    for number in 0..100 {
        fixture.put(session, &format!("/other/{number}"), "");
    }
    fixture.put(session, "/many/7", "again");
    take_visited();
    let HistoryScan::Found { found, .. } = fixture.state.scan_after(Revision(0), &WatchScope::Node(list(7)), UNBOUNDED)
    else {
        panic!("known")
    };
    let visited = take_visited();
    assert_eq!(found.changes.iter().map(|change| change.events.len()).collect::<Vec<_>>(), [1, 1]);
    assert!(visited <= 20, "{visited} of 1,100 events");
}
