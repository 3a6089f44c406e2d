//! The end of a lease removes all its attached nodes with one change, and no other node.

mod burying;
mod lists;

use std::time::Duration;

use super::{super::fixture::*, *};
use crate::{
    command::{Command, Condition, Outcome, Proposal, Write, Written},
    id::{LeaseId, Sequence},
    object::{NodeOwner, Value},
    transaction::{Operation, Transaction},
};

const MINUTE: Duration = Duration::from_secs(60);
const ONE: LeaseId = LeaseId(100);
const TWO: LeaseId = LeaseId(200);

fn attach(at: &str, attach: Attach) -> Write {
    Write::Put { path: path(at), value: Value::from_static(b"v"), condition: Condition::Any, attach }
}

fn to(at: &str, id: LeaseId) -> Write {
    attach(at, Attach::Lease(id))
}

fn grant(id: LeaseId) -> Write {
    Write::GrantLease { id: Some(id), name: None, ttl: MINUTE }
}

fn revoke(id: LeaseId) -> Write {
    Write::RevokeLease { id, incarnation: None }
}

/// A state with both leases.
fn fixture() -> (Fixture, SessionId) {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    fixture.write(session, grant(ONE)).expect("new");
    fixture.write(session, grant(TWO)).expect("new");
    (fixture, session)
}

/// Creates nodes below `list` with one entry, attached to the lease.
fn attach_many(fixture: &mut Fixture, session: SessionId, list: &str, count: usize, id: LeaseId) {
    let mut commands = Vec::new();
    for number in 0..count {
        let mut command = fixture.command(session, to(&format!("{list}/{number:05}"), id));
        if let Command::Write { sequence, unanswered_from, .. } = &mut command {
            *unanswered_from = *sequence;
        }
        commands.push(command);
    }
    let proposal = Proposal { epoch: fixture.state.epoch(), number: 1, time: fixture.time, commands };
    fixture.apply(&proposal);
}

fn exists(fixture: &Fixture, at: &str) -> bool {
    fixture.state.node(&path(at)).is_some()
}

fn owner(fixture: &Fixture, at: &str) -> Option<NodeOwner> {
    fixture.state.data(&path(at)).expect("the node exists").stat.owner
}

fn names(fixture: &Fixture, at: &str) -> Vec<String> {
    fixture.state.children(&path(at)).expect("the node exists").names
}

/// Ends the lease in the log. Returns its incarnation.
fn expire(fixture: &mut Fixture, lease: &AnyLease) -> Incarnation {
    let LeaseRecord { incarnation, horizon, .. } = *fixture.state.lease(lease).expect("a lease");
    assert_eq!(fixture.run(Command::Expire { lease: lease.clone(), incarnation, horizon }), Outcome::Expired);
    incarnation
}

fn remove(fixture: &mut Fixture, lease: Incarnation) -> Outcome {
    fixture.run(Command::Purge { leases: vec![lease] })
}

#[test]
fn a_grant_changes_no_node_and_its_name_is_its_own() {
    let (mut fixture, session) = fixture();
    assert_eq!(fixture.state.revision(), Revision(0));
    assert_eq!(fixture.write(session, grant(ONE)), Err(WriteRefusal::LeaseExists { id: ONE }));
    let given = fixture.write(session, Write::GrantLease { id: None, name: None, ttl: MINUTE }).expect("a new one");
    let granted = given.lease.expect("a lease");
    let id = granted.id;
    assert_eq!(given, Written { lease: Some(granted), ..Written::default() });
    let lease = fixture.state.lease(&AnyLease::KeyLease(id)).expect("the node exists");
    assert_eq!((lease.incarnation, lease.term()), (granted.incarnation, MINUTE));
    // The state does not assign an id that a client has chosen.
    let next = LeaseId(id.0 + 1);
    fixture.write(session, grant(LeaseId(next.0 + 1))).expect("free");
    let given = fixture.write(session, Write::GrantLease { id: None, name: None, ttl: MINUTE }).expect("a new one");
    assert!(given.lease.expect("a name").id > next, "{given:?}");
}

#[test]
fn node_cannot_be_attached_to_a_missing_lease() {
    let (mut fixture, session) = fixture();
    let none = LeaseId(7);
    assert_eq!(fixture.write(session, to("/a", none)), Err(WriteRefusal::LeaseNotFound { id: none }));
    assert!(!exists(&fixture, "/a"));
    let refused = fixture.write(session, attach("/a", Attach::Session));
    assert_eq!(refused, Err(WriteRefusal::NoVolumeLease { path: path("/a"), volume: path("/") }));
    assert_eq!(fixture.write(session, revoke(none)), Err(WriteRefusal::LeaseNotFound { id: none }));
}

#[test]
fn node_is_attached_to_the_lease_of_its_last_put() {
    let (mut fixture, session) = fixture();
    fixture.write(session, to("/a", ONE)).expect("attached");
    assert_eq!(owner(&fixture, "/a"), Some(NodeOwner::Lease(ONE)));
    fixture.write(session, attach("/a", Attach::Unchanged)).expect("kept");
    assert_eq!(owner(&fixture, "/a"), Some(NodeOwner::Lease(ONE)));
    fixture.write(session, to("/a", TWO)).expect("attached anew");
    fixture.write(session, revoke(ONE)).expect("the node exists");
    assert!(exists(&fixture, "/a"), "the node is attached to the other lease");
    fixture.write(session, revoke(TWO)).expect("the node exists");
    assert!(!exists(&fixture, "/a"));
}

#[test]
fn put_without_a_lease_detaches_the_node() {
    let (mut fixture, session) = fixture();
    fixture.write(session, to("/a", ONE)).expect("attached");
    fixture.put(session, "/a", "stays");
    assert_eq!(owner(&fixture, "/a"), None);
    let revoked = fixture.write(session, revoke(ONE)).expect("the node exists");
    assert_eq!((revoked.removed, revoked.revision), (0, Revision(2)), "nothing changed");
    assert!(exists(&fixture, "/a"));
}

#[test]
fn purge_removes_all_nodes_of_a_lease_in_one_change() {
    let (mut fixture, session) = fixture();
    for at in ["/a/x", "/a/y", "/b/z"] {
        fixture.write(session, to(at, ONE)).expect("attached");
    }
    fixture.put(session, "/a/stays", "");
    let revoked = fixture.write(session, revoke(ONE)).expect("the node exists");
    assert_eq!((revoked.revision, revoked.removed), (Revision(5), 3));
    assert_eq!((names(&fixture, "/a"), names(&fixture, "/b")), (vec!["stays".to_owned()], vec![]));
    let list = fixture.state.children(&path("/a")).expect("the node exists");
    assert_eq!((list.version, list.modify_revision), (4, Revision(5)), "one change removes all nodes");
    let changed = fixture.state.changed_since(Revision(4), &path("/")).expect("the revision is in the history");
    for set in [data("/a/x"), children("/a/x"), data("/a/y"), data("/b/z"), children("/a"), children("/b")] {
        assert!(changed.contains(&set), "{set:?} in {changed:?}");
    }
}

#[test]
fn change_of_lease_with_many_nodes_names_common_subtree() {
    let (mut fixture, session) = fixture();
    for number in 0..20 {
        fixture.write(session, to(&format!("/a/b/{number}"), ONE)).expect("attached");
    }
    fixture.write(session, revoke(ONE)).expect("the node exists");
    assert_eq!(fixture.state.changed_since(Revision(20), &path("/")), Some(vec![subtree("/a/b")]));
}

#[test]
fn attached_node_has_no_children() {
    let (mut fixture, session) = fixture();
    fixture.write(session, to("/a", ONE)).expect("attached");
    let leased = Err(WriteRefusal::Attached { path: path("/a") });
    assert_eq!(fixture.write(session, put("/a/b", "")), leased);
    assert_eq!(fixture.write(session, put("/a/b/c", "")), leased);
    assert_eq!(fixture.write(session, create_volume("/a", 5)), leased);
    assert_eq!(fixture.write(session, create_volume("/a/b", 5)), leased);
    fixture.put(session, "/p/child", "");
    fixture.write(session, create_volume("/v", 5)).expect("new");
    for at in ["/", "/p", "/v"] {
        assert_eq!(fixture.write(session, to(at, ONE)), Err(WriteRefusal::NotALeaf { path: path(at) }));
    }
}

#[test]
fn purged_nodes_do_not_block_new_ones() {
    let (mut fixture, session) = fixture();
    let many = RECLAIMED_PER_ENTRY + 10;
    attach_many(&mut fixture, session, "/a", many, ONE);
    let last = format!("/a/{:05}", many - 1);
    let revoked = fixture.write(session, revoke(ONE)).expect("the node exists");
    assert_eq!(revoked.removed, many as u64);
    assert!(fixture.state.nodes.contains_key(&path(&last)), "the node is not reclaimed yet");
    assert_eq!(fixture.state.volume_use(&path("/")).nodes, 2, "purged nodes do not count");
    assert_eq!((exists(&fixture, &last), names(&fixture, "/a")), (false, vec![]));
    assert_eq!(fixture.state.nodes_below(&path("/a")).count(), 0);
    let rows: Vec<_> = fixture.state.rows().collect();
    assert_eq!(State::from_rows(rows), Ok(fixture.state.clone()), "the node does not exist after a snapshot");
    let made = fixture.put(session, &last, "again");
    assert_eq!(made.stat.expect("a put").create_revision, made.revision, "the node is new");
    fixture.run(Command::Tick { renewals: vec![] });
    assert_eq!(fixture.state.nodes.len(), 3, "/, /a and the new nodes");
    assert_eq!(names(&fixture, "/a"), [last.rsplit('/').next().expect("a name")]);
}

#[test]
fn commands_beyond_the_bound_wait_for_the_next_entry() {
    let (mut fixture, session) = fixture();
    let three = LeaseId(3);
    fixture.write(session, grant(three)).expect("new");
    for (list, count, id) in [("/a", RECLAIMED_PER_ENTRY - 1, ONE), ("/b", RECLAIMED_PER_ENTRY, TWO), ("/c", 1, three)]
    {
        attach_many(&mut fixture, session, list, count, id);
    }
    let [one, two, three] = [ONE, TWO, three].map(|id| expire(&mut fixture, &AnyLease::KeyLease(id)));
    remove(&mut fixture, two);
    assert_eq!(
        fixture.state.attachments.tombstones,
        BTreeSet::from([two]),
        "no node is left, and its lease is an orphan"
    );
    fixture.run(Command::Purge { leases: vec![one, three] });
    assert_eq!(
        fixture.state.attachments.tombstones,
        BTreeSet::from([three]),
        "the room for one was taken by what had no nodes left"
    );
    assert!(fixture.state.nodes.contains_key(&path("/c/00000")) && !exists(&fixture, "/c/00000"));
    fixture.run(Command::Tick { renewals: vec![] });
    assert_eq!(
        (fixture.state.nodes.len(), fixture.state.attachments.tombstones.len()),
        (4, 0),
        "the root and the lists"
    );
}

#[test]
fn parent_of_orphans_can_be_removed_and_recreated() {
    let (mut fixture, session) = fixture();
    fixture.write(session, to("/a/x", ONE)).expect("attached");
    let lease = expire(&mut fixture, &AnyLease::KeyLease(ONE));
    let remove = Command::Purge { leases: vec![lease] };
    let (delete, put) = (fixture.command(session, delete("/a", false)), fixture.put_command_of(session, "/a/x/y", ""));
    let commands = vec![remove, delete, put];
    let proposal = Proposal { epoch: fixture.state.epoch(), number: 1, time: fixture.time, commands };
    let outcomes = fixture.apply(&proposal).outcomes;
    assert_eq!(outcomes[0], Outcome::Purged { nodes: 1 });
    assert!(matches!(outcomes[1], Outcome::Written(Ok(Written { removed: 1, .. }))), "{outcomes:?}");
    assert!(matches!(outcomes[2], Outcome::Written(Ok(_))), "{outcomes:?}");
    assert_eq!((names(&fixture, "/a"), names(&fixture, "/a/x")), (vec!["x".to_owned()], vec!["y".to_owned()]));
}

#[test]
fn orphans_exist_until_all_consents_are_in() {
    let (mut fixture, session) = fixture();
    fixture.write(session, to("/a/x", ONE)).expect("attached");
    fixture.write(session, to("/a/y", ONE)).expect("attached");
    let lease = expire(&mut fixture, &AnyLease::KeyLease(ONE));
    assert!(exists(&fixture, "/a/x"), "the session may use its copies");
    assert_eq!(fixture.state.orphans().collect::<Vec<_>>(), [lease]);
    assert_eq!(fixture.write(session, to("/b", ONE)), Err(WriteRefusal::LeaseNotFound { id: ONE }), "no later node");
    fixture.put(session, "/a/y", "stays");
    assert_eq!(remove(&mut fixture, lease), Outcome::Purged { nodes: 1 });
    assert_eq!(names(&fixture, "/a"), ["y"], "it was put without a lease in time");
    assert_eq!(remove(&mut fixture, lease), Outcome::Purged { nodes: 0 });
    assert_eq!(fixture.state.orphans().count(), 0);
}

#[test]
fn orphans_removed_on_request_are_not_purged() {
    let (mut fixture, session) = fixture();
    fixture.write(session, to("/a/x", ONE)).expect("attached");
    expire(&mut fixture, &AnyLease::KeyLease(ONE));
    fixture.write(session, delete("/a", true)).expect("the node exists");
    assert_eq!(fixture.state.orphans().count(), 0);
}

#[test]
fn nodes_of_a_live_lease_are_not_purged() {
    let (mut fixture, session) = fixture();
    fixture.write(session, to("/a", ONE)).expect("attached");
    let lease = fixture.state.lease(&AnyLease::KeyLease(ONE)).expect("a lease").incarnation;
    assert_eq!(remove(&mut fixture, lease), Outcome::Purged { nodes: 0 });
    assert!(exists(&fixture, "/a"));
}

#[test]
fn revocation_is_not_covered_if_nodes_were_attached_since() {
    let (mut fixture, session) = fixture();
    fixture.write(session, to("/a", ONE)).expect("attached");
    let gathered = fixture.state.revision();
    fixture.write(session, to("/b", ONE)).expect("attached");
    let sequence = fixture.next_sequence(session);
    let intended = fixture.state.intended(session, &revoke(ONE));
    let revoke = |attached_through| Command::Write {
        session,
        sequence,
        unanswered_from: Sequence(1),
        write: revoke(ONE),
        consented: everything(),
        intended: intended.clone(),
        attached_through,
    };
    assert_eq!(fixture.run(revoke(gathered)), Outcome::MissingConsents);
    assert!(exists(&fixture, "/a") && exists(&fixture, "/b"));
    let now = fixture.state.revision();
    assert!(matches!(fixture.run(revoke(now)), Outcome::Written(Ok(Written { removed: 2, .. }))));
}

#[test]
fn nodes_of_a_session_are_orphans_when_it_closes() {
    let (mut fixture, session) = fixture();
    fixture.acquire(session, "/");
    let lease = fixture.state.lease(&AnyLease::Volume(session, path("/"))).expect("acquired").incarnation;
    fixture.write(session, attach("/s/one", Attach::Session)).expect("attached");
    assert_eq!(owner(&fixture, "/s/one"), Some(NodeOwner::Session(session)));
    assert_eq!(fixture.run(Command::CloseSession { session }), Outcome::SessionClosed);
    assert_eq!(fixture.state.orphans().collect::<Vec<_>>(), [lease]);
    assert_eq!(remove(&mut fixture, lease), Outcome::Purged { nodes: 1 });
    assert_eq!(names(&fixture, "/s"), [""; 0]);
}

#[test]
fn lease_with_attached_nodes_is_extended_not_replaced() {
    let (mut fixture, session) = fixture();
    fixture.acquire(session, "/");
    fixture.write(session, attach("/a", Attach::Session)).expect("attached");
    let key = AnyLease::Volume(session, path("/"));
    let before = fixture.state.lease(&key).expect("acquired").clone();
    fixture.time = seconds(5);
    let acquired = fixture.acquire(session, "/x");
    let expected = |incarnation: Incarnation| matches!(acquired, Outcome::VolumeAcquired { incarnation: got, .. } if got == incarnation);
    assert!(expected(before.incarnation), "{acquired:?}");
    assert!(fixture.state.lease(&key).expect("the lease stays").horizon > before.horizon);
    fixture.write(session, delete("/a", false)).expect("a leaf");
    let acquired = fixture.acquire(session, "/x");
    assert!(
        matches!(acquired, Outcome::VolumeAcquired { incarnation, .. } if incarnation > before.incarnation),
        "{acquired:?}"
    );
}

#[test]
fn new_lease_of_the_same_id_has_no_nodes() {
    let (mut fixture, session) = fixture();
    fixture.write(session, to("/a", ONE)).expect("attached");
    fixture.write(session, revoke(ONE)).expect("the node exists");
    fixture.write(session, grant(ONE)).expect("the node can be created again");
    assert!(!fixture.state.has_dependents(&AnyLease::KeyLease(ONE)));
    assert!(!exists(&fixture, "/a"));
}

#[test]
fn volume_with_attached_nodes_on_its_lease_is_not_removed() {
    let (mut fixture, session) = fixture();
    fixture.write(session, create_volume("/v", 5)).expect("new");
    fixture.acquire(session, "/v");
    fixture.write(session, attach("/v/a", Attach::Session)).expect("attached");
    let remove = Write::RemoveVolume { path: path("/v") };
    let carries = WriteRefusal::VolumeInUse { path: path("/v"), session };
    assert_eq!(fixture.write(session, remove.clone()), Err(carries));
    fixture.write(session, delete("/v/a", false)).expect("a leaf");
    fixture.write(session, remove).expect("no node is attached to the lease");
}

#[test]
fn entry_that_ends_many_leases_reclaims_their_nodes() {
    let (mut fixture, session) = fixture();
    for id in [ONE, TWO] {
        fixture.write(session, to(&format!("/{}", id.0), id)).expect("attached");
        fixture.write(session, to(&format!("/{}b", id.0), id)).expect("attached");
    }
    let leases = [ONE, TWO].map(|id| expire(&mut fixture, &AnyLease::KeyLease(id))).to_vec();
    assert_eq!(fixture.run(Command::Purge { leases }), Outcome::Purged { nodes: 4 });
    assert_eq!(fixture.state.nodes.len(), 1, "only the root");
    assert_eq!(fixture.state.attachments.tombstones, BTreeSet::new(), "no tombstone is left");
}

#[test]
fn small_leases_of_one_list_are_removed_in_one_change() {
    let (mut fixture, session) = fixture();
    let mut ids = vec![ONE, TWO];
    for number in 1..=4 {
        ids.push(LeaseId(number));
        fixture.write(session, grant(LeaseId(number))).expect("new");
    }
    let (many, in_two_lists, other_list) = (LeaseId(1), LeaseId(2), LeaseId(3));
    for number in 0..=FEW_NODES {
        fixture.write(session, to(&format!("/list/many-{number}"), many)).expect("attached");
    }
    let few = [("/list/a", ONE), ("/list/b", ONE), ("/list/c", TWO), ("/list/d", LeaseId(4))];
    let others = [("/list/two", in_two_lists), ("/two/lists", in_two_lists), ("/other/list", other_list)];
    for (at, id) in few.into_iter().chain(others) {
        fixture.write(session, to(at, id)).expect("attached");
    }
    let before = fixture.state.meta.revision;
    let leases: Vec<Incarnation> = ids.iter().map(|id| expire(&mut fixture, &AnyLease::KeyLease(*id))).collect();
    // Each lease is named twice, and purged once.
    let leases = leases.iter().chain(&leases).copied().collect();
    assert_eq!(fixture.run(Command::Purge { leases }), Outcome::Purged { nodes: 17 + 7 });
    assert_eq!((names(&fixture, "/list"), names(&fixture, "/two")), (vec![], vec![]));
    let changes = fixture.state.events_after(before).expect("the revision is in the history");
    let counts: Vec<usize> = changes.map(|(_, events)| events.expect("the history has the events").len()).collect();
    assert_eq!(counts, [17, 2, 4, 1], "one change for each large lease, then one for each list");
    let last = fixture.state.meta.revision;
    let together =
        fixture.state.changed_since(Revision(last.0 - 2), &path("/list")).expect("the revision is in the history");
    let few = few.iter().flat_map(|(at, _)| [data(at), children(at)]);
    assert_eq!(together.into_iter().collect::<BTreeSet<_>>(), few.chain([children("/list")]).collect());
}

#[test]
fn purge_change_has_at_most_the_bound_of_nodes() {
    let mut fixture = Fixture::new();
    let ids: Vec<LeaseId> = (0..=NODES_PER_CHANGE / FEW_NODES).map(|number| LeaseId(number as u64)).collect();
    for id in &ids {
        let session = fixture.open();
        fixture.write(session, grant(*id)).expect("new");
        for number in 0..FEW_NODES {
            fixture.write(session, to(&format!("/list/{}-{number}", id.0), *id)).expect("attached");
        }
    }
    let before = fixture.state.meta.revision;
    let leases = ids.iter().map(|id| expire(&mut fixture, &AnyLease::KeyLease(*id))).collect();
    let nodes = (NODES_PER_CHANGE + FEW_NODES) as u64;
    assert_eq!(fixture.run(Command::Purge { leases }), Outcome::Purged { nodes });
    let changes = fixture.state.events_after(before).expect("the revision is in the history");
    let counts: Vec<usize> = changes.map(|(_, events)| events.expect("the history has the events").len()).collect();
    assert_eq!(counts, [NODES_PER_CHANGE, FEW_NODES]);
}

#[test]
fn outcome_names_the_volume_leases_that_carry_its_nodes() {
    let mut fixture = Fixture::new();
    let session = fixture.open();
    fixture.write(session, create_volume("/v", 5)).expect("new");
    let mut lease = |top: &str| {
        let Outcome::VolumeAcquired { volume, incarnation, .. } = fixture.acquire(session, top) else { panic!() };
        VolumeLease { volume, incarnation }
    };
    let (root, inner) = (lease("/"), lease("/v"));
    let put = |at: &str, attach| Operation::Put { path: path(at), value: Value::from_static(b"v"), attach };
    let transaction = Transaction::new().then(put("/v/a", Attach::Session)).then(put("/v/b", Attach::Session));
    let transaction = transaction.then(put("/c", Attach::Session)).then(put("/d", Attach::Nothing));
    let written = fixture.write(session, Write::Transaction(transaction)).expect("done");
    assert_eq!(written.attached, [inner.clone(), root.clone()]);
    assert_eq!(written.attached_to(&path("/v/b")), Some(&inner));
    assert_eq!(written.attached_to(&path("/c")), Some(&root));
    let alone =
        Write::Put { path: path("/e"), value: Value::new(), condition: Condition::Any, attach: Attach::Session };
    assert_eq!(fixture.write(session, alone).expect("done").attached, [root]);
    assert_eq!(fixture.put(session, "/f", "").attached, []);
}

/// The number of rows that a put stores, and the length of the counters' row, while the orphans of
/// `count` closed sessions wait for consents.
fn put_with_closed(count: u64) -> (usize, usize) {
    let (mut fixture, session) = fixture();
    let mut commands = Vec::new();
    for number in 0..count {
        let closed = fixture.open();
        fixture.acquire(closed, "/");
        let write = Write::Put {
            path: path(&format!("/closed/{number}")),
            value: Value::new(),
            condition: Condition::Any,
            attach: Attach::Session,
        };
        fixture.write(closed, write).expect("the session has a lease");
        commands.push(Command::CloseSession { session: closed });
    }
    let proposal = Proposal { epoch: fixture.state.epoch(), number: 1, time: fixture.time, commands };
    fixture.apply(&proposal);
    assert_eq!(fixture.state.attachments.closed_session_orphans.len() as u64, count);
    let command = fixture.put_command_of(session, "/a", "1");
    let applied = fixture.apply_command(command);
    let meta = fixture.state.row(&RowKey::Meta).expect("the root always exists");
    // Another client writes one orphan meanwhile. Another orphan is purged.
    fixture.put(session, "/closed/0", "stays");
    let lease = fixture.state.orphans().next().expect("more than one");
    assert!(fixture.state.row(&RowKey::ClosedSessionOrphan(lease)).is_some());
    remove(&mut fixture, lease);
    assert_eq!(fixture.state.row(&RowKey::ClosedSessionOrphan(lease)), None);
    assert_eq!(fixture.state.attachments.closed_session_orphans.len() as u64, count - 2);
    assert_eq!(State::from_rows(fixture.state.rows()), Ok(fixture.state));
    (applied.changed_rows.len(), meta.len())
}

#[test]
fn entry_stores_nothing_of_sessions_closed_before() {
    let ((few, short), (many, long)) = (put_with_closed(3), put_with_closed(60));
    assert_eq!(few, many, "the counters, the node, its list, the answer and the change");
    assert!(long <= short + 8, "{short} and {long} bytes: only the numbers in it have grown");
}
