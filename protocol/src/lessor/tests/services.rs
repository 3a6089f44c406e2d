//! Services: what inspection reports of present and past attached nodes.

use super::*;
use crate::{
    change::ChangeReason,
    command::Attach,
    id::LeaseId,
    message::{ServiceHealth, ServiceInfo, ServicePage},
    object::NodeOwner,
};

pub(super) const KEY: LeaseId = LeaseId(9);
const TTL: Duration = Duration::from_secs(4);

impl World {
    fn services_at(&mut self, top: &str, after: Option<&str>) -> Vec<ServiceInfo> {
        let page = self.services_page(top, after.map(path));
        assert_eq!(page.through, None, "the last page");
        page.services
    }

    fn services_page(&mut self, top: &str, after: Option<NodePath>) -> ServicePage {
        let inspect = Inspect::Services { path: path(top), after };
        match answer(&self.request(SessionId(0), Body::Inspect(inspect))) {
            Answer::Services(services) => services,
            other => panic!("services: {other:?}"),
        }
    }

    fn services(&mut self) -> Vec<ServiceInfo> {
        self.services_at("/s", None)
    }

    /// A session with a node that is attached to its volume lease.
    fn registers(&mut self, node: &str) -> SessionId {
        let session = self.session();
        self.acquire(session, None);
        self.attaches(session, node, Attach::Session);
        session
    }

    pub(super) fn attaches(&mut self, session: SessionId, node: &str, attach: Attach) {
        let put = Write::Put { path: path(node), value: Bytes::new(), condition: Condition::Any, attach };
        self.write(session, put);
        answer(&self.commit());
    }

    fn incarnation(&self, session: SessionId) -> Incarnation {
        self.state.lease(&AnyLease::Volume(session, NodePath::root())).expect("it has one").incarnation
    }
}

fn healths(services: &[ServiceInfo]) -> Vec<(&str, ServiceHealth)> {
    services.iter().map(|service| (service.path.as_str(), service.health)).collect()
}

#[test]
fn service_is_live_then_in_jeopardy_then_removed() {
    let mut world = World::new();
    let (one, two) = (world.registers("/s/one"), world.registers("/s/two"));
    world.registers("/elsewhere");
    let (first, second) = (world.incarnation(one), world.incarnation(two));
    world.renew(one, first).expect("promised");
    world.renew(two, second).expect("promised");
    let found = world.services();
    assert_eq!(healths(&found), [("/s/one", ServiceHealth::Live), ("/s/two", ServiceHealth::Live)]);
    assert_eq!(
        (found[0].owner, found[0].name.as_str(), found[0].seen),
        (Some(NodeOwner::Session(one)), "test", Some(Duration::ZERO))
    );
    let registered = world.state.node(&path("/s/one")).map(|node| node.modify_revision);
    assert!(registered.is_some() && found[0].registered == registered, "{found:?}");
    let term = found[0].remaining;
    assert_eq!(term, VolumeSettings::DEFAULT.longest_term());
    world.pass(term * 3 / 4);
    // The first promise after a tick reaches no further than the horizon in the log (T6), so the
    // client asks again.
    for _ in 0..2 {
        world.renew(two, second).expect("promised");
        world.pass(world.state.tick());
    }
    world.renew(two, second).expect("promised");
    let found = world.services();
    assert_eq!(healths(&found), [("/s/one", ServiceHealth::Jeopardy), ("/s/two", ServiceHealth::Live)]);
    assert!(found[0].remaining <= term / 4 && found[0].seen >= Some(term * 3 / 4), "{found:?}");
    for _ in 0..2 {
        world.pass(term / 4);
        world.renew(two, second).expect("promised");
    }
    let found = world.services();
    // It is the fifth change: the fourth removed /elsewhere, which is in another list.
    let removed = ServiceHealth::Removed { revision: Revision(5), reason: ChangeReason::Expired };
    assert_eq!(healths(&found), [("/s/one", removed), ("/s/two", ServiceHealth::Live)]);
    assert_eq!((found[0].owner, found[0].remaining), (Some(NodeOwner::Session(one)), Duration::ZERO));
    assert_eq!(found[0].registered, registered, "the owner is known after the removal");
    assert!(found[0].seen >= Some(term), "the last renewal is known: {found:?}");
}

#[test]
fn service_below_a_later_volume_has_its_own_lease() {
    let mut world = World::new();
    let session = world.registers("/s/one");
    let other = world.session();
    let created = world.write(other, Write::CreateVolume { path: path("/s"), settings: VolumeSettings::DEFAULT });
    for Recall { session, stamp, .. } in recalls(&created) {
        world.step(LessorInput::Consent(Consent { session, stamp }));
    }
    answer(&world.commit());
    let incarnation = world.incarnation(session);
    world.renew(session, incarnation).expect("promised");
    world.pass(MILLI);
    let found = world.services();
    assert_eq!(healths(&found), [("/s/one", ServiceHealth::Live)]);
    assert_eq!(found[0].seen, Some(MILLI), "by its lease on the root");
    world.request(session, Body::Acquire { path: path("/s"), last_valid: None, read: None });
    answer(&world.commit());
    assert_eq!(world.services()[0].seen, Some(MILLI), "not by the lease on the volume");
}

#[test]
fn service_of_a_replaced_lease_is_not_seen_anew() {
    let mut world = World::new();
    let session = world.registers("/s/one");
    let (reader, _) = world.holder(&data("/s/one"));
    let first = world.incarnation(session);
    let readers = world.incarnation(reader);
    while world.state.orphans().count() == 0 {
        world.renew(reader, readers).expect("promised");
        world.pass(clock::STEP_EVERY);
    }
    let second = world.acquire(session, None).promise.incarnation;
    assert!(second > first);
    let found = world.services();
    assert_eq!(healths(&found), [("/s/one", ServiceHealth::Jeopardy)], "the reader may have a copy");
    let term_and_margin =
        world.state.lease(&AnyLease::Volume(session, NodePath::root())).map(|lease| TERM + lease.margin());
    assert_eq!(found[0].seen, term_and_margin, "when the first one was renewed last");
}

#[test]
fn services_list_has_removal_reasons_and_returned_services() {
    let mut world = World::new();
    // A session without copies, so that it need not consent.
    let session = world.session();
    world.write(session, Write::GrantLease { id: Some(KEY), name: None, ttl: TTL });
    world.commit();
    for node in ["/s/a", "/s/b", "/s/c"] {
        world.attaches(session, node, Attach::Lease(KEY));
    }
    world.attaches(session, "/s/plain", Attach::Nothing);
    for node in ["/s/a", "/s/plain"] {
        world.write(session, Write::Delete { path: path(node), recursive: false, condition: Condition::Any });
        world.commit();
    }
    let left = world.state.revision().0 - 1;
    world.write(session, Write::RevokeLease { id: KEY, incarnation: None });
    world.commit();
    let revoked = world.state.revision();
    world.registers("/s/c");
    let removed = |revision: Revision, reason| ServiceHealth::Removed { revision, reason };
    let found = world.services();
    let expected = [
        ("/s/a", removed(Revision(left), ChangeReason::Request)),
        ("/s/b", removed(revoked, ChangeReason::Revoked)),
        ("/s/c", ServiceHealth::Live),
    ];
    assert_eq!(healths(&found), expected);
    assert_eq!(healths(&world.services_at("/s", Some("/s/a"))), expected[1..], "the next page");
    assert_eq!(world.services_at("/s", Some("/s/c")), []);
    assert_eq!(healths(&world.services_at("/s/b", None)), expected[1..2]);
}

#[test]
fn services_of_a_new_leader_have_unknown_renewals() {
    let mut world = World::new();
    let session = world.registers("/s/one");
    let incarnation = world.incarnation(session);
    world.renew(session, incarnation).expect("promised");
    world.fail_over();
    let found = world.services();
    assert_eq!((found.len(), found[0].seen), (1, None), "no renewal since the epoch began");
    assert!(found[0].remaining > Duration::ZERO, "the old leader's promise holds");
}

/// A world with a session that has no copies, and a key lease.
pub(super) fn with_a_lease() -> (World, SessionId) {
    let mut world = World::new();
    let session = world.session();
    world.write(session, Write::GrantLease { id: Some(KEY), name: None, ttl: TTL });
    answer(&world.commit());
    (world, session)
}

impl World {
    /// All services below a path, page by page, and the number of answers.
    fn all_services(&mut self, top: &str) -> (Vec<ServiceInfo>, usize) {
        let (mut all, mut answers, mut after) = (Vec::new(), 0, None);
        loop {
            let page = self.services_page(top, after.clone());
            answers += 1;
            assert!(page.services.len() <= LessorBounds::DEFAULT.rows_max, "an answer has a size");
            let first = page.services.first().map(|first| first.path.clone());
            assert!(first.is_none() || first > after, "{first:?} is not after {after:?}");
            let last = page.services.last().map(|last| last.path.clone());
            assert!(page.through.is_none() || last <= page.through, "{last:?} is not within {:?}", page.through);
            all.extend(page.services);
            match page.through {
                None => return (all, answers),
                Some(through) => {
                    assert!(Some(&through) > after.as_ref(), "the list continues");
                    after = Some(through);
                }
            }
        }
    }
}

#[test]
fn live_and_ended_services_are_listed_once_across_pages() {
    // First more present services than an answer has room for, then more removed ones.
    for every in [2, 16] {
        let (mut world, session) = with_a_lease();
        let name = |number: usize| format!("/s/{number:05}");
        let is_there = |number: usize| number % every == 1;
        // Of the removed nodes, the first names are in the end those of nodes without a lease.
        let is_plain = |number: usize| number < LessorBounds::DEFAULT.rows_max && !is_there(number);
        let count = 7 * LessorBounds::DEFAULT.rows_max / 2;
        // From the last to the first: what the history has first is what does not fit.
        for number in (0..count).rev() {
            world.attaches(session, &name(number), Attach::Lease(KEY));
            if !is_there(number) || number % 4 == 1 {
                let delete = Write::Delete { path: path(&name(number)), recursive: false, condition: Condition::Any };
                world.write(session, delete);
                answer(&world.commit());
                if is_there(number) {
                    world.attaches(session, &name(number), Attach::Lease(KEY));
                }
            }
        }
        for number in (0..count).filter(|number| is_plain(*number)) {
            world.attaches(session, &name(number), Attach::Nothing);
        }
        world.attaches(session, "/t", Attach::Lease(KEY));
        let (all, answers) = world.all_services("/s");
        let found = all.iter().map(|service| (service.path.to_string(), service.health == ServiceHealth::Live));
        let services = (0..count).filter(|number| !is_plain(*number));
        let expected = services.map(|number| (name(number), is_there(number)));
        assert!(found.eq(expected), "{all:?}");
        assert!(answers <= 5, "{answers} answers");
    }
}

#[test]
fn services_among_many_plain_nodes_are_found_by_paging() {
    let (mut world, session) = with_a_lease();
    for number in 0..2 * LessorBounds::DEFAULT.scan_max {
        world.write(session, put(&format!("/s/{number:05}"), b""));
        world.commit();
    }
    world.attaches(session, "/s/a", Attach::Lease(KEY));
    world.attaches(session, "/s/z", Attach::Lease(KEY));
    world.write(session, Write::Delete { path: path("/s/a"), recursive: false, condition: Condition::Any });
    answer(&world.commit());
    let page = world.services_page("/s", None);
    assert_eq!((page.services.len(), page.through.is_some()), (0, true), "there may be more: {page:?}");
    let (all, answers) = world.all_services("/s");
    let removed = ServiceHealth::Removed { revision: world.state.revision(), reason: ChangeReason::Request };
    assert_eq!(healths(&all), [("/s/a", removed), ("/s/z", ServiceHealth::Live)]);
    assert_eq!(answers, 3);
}

#[test]
fn an_answer_about_long_paths_ends_before_it_is_too_large() {
    let (mut world, session) = with_a_lease();
    let long = format!("/s{}", format!("/{}", "x".repeat(199)).repeat(19));
    let name = |number: usize| format!("{long}/{number:05}");
    let count = LessorBounds::DEFAULT.inspection_bytes_max / long.len() + 20;
    for number in 0..count {
        world.attaches(session, &name(number), Attach::Lease(KEY));
        if number % 2 == 0 {
            let delete = Write::Delete { path: path(&name(number)), recursive: false, condition: Condition::Any };
            world.write(session, delete);
            answer(&world.commit());
        }
    }
    let page = world.services_page("/s", None);
    let bytes = page.services.iter().map(|service| service.path.as_str().len()).sum::<usize>();
    assert!(
        bytes <= LessorBounds::DEFAULT.inspection_bytes_max && bytes > LessorBounds::DEFAULT.inspection_bytes_max / 2,
        "{bytes}"
    );
    let (all, answers) = world.all_services("/s");
    let found = all.iter().map(|service| (service.path.to_string(), service.health == ServiceHealth::Live));
    assert!(found.eq((0..count).map(|number| (name(number), number % 2 == 1))));
    assert_eq!(answers, 2);
}

#[test]
fn services_page_after_an_earlier_path_is_complete() {
    let (mut world, session) = with_a_lease();
    world.attaches(session, "/s/b", Attach::Lease(KEY));
    world.attaches(session, "/s/b-x", Attach::Lease(KEY));
    for (after, expected) in [(Some("/s/a"), &["/s/b"][..]), (Some("/s/b"), &[]), (Some("/t"), &[]), (None, &["/s/b"])]
    {
        let found = world.services_at("/s/b", after);
        assert_eq!(found.iter().map(|service| service.path.as_str()).collect::<Vec<_>>(), expected, "after {after:?}");
    }
}

#[test]
fn unreclaimed_nodes_count_as_examined_and_are_not_listed() {
    let (mut world, session) = with_a_lease();
    let count = 3 * LessorBounds::DEFAULT.rows_max;
    (0..count).for_each(|number| world.attaches(session, &format!("/s/{number:05}"), Attach::Lease(KEY)));
    world.write(session, Write::RevokeLease { id: KEY, incarnation: None });
    answer(&world.commit());
    let top = path("/s");
    let places: Vec<bool> = world.state.nodes_and_tombstones_in(&top, None).map(|(_, node)| node.is_some()).collect();
    assert!(
        places.len() > LessorBounds::DEFAULT.rows_max && places.iter().filter(|is_there| **is_there).count() <= 1,
        "the list itself"
    );
    assert!(world.state.nodes_in(&top, None).all(|(path, _)| *path == top));
    let (all, _) = world.all_services("/s");
    assert!(all.iter().all(|service| matches!(service.health, ServiceHealth::Removed { .. })));
    assert_eq!(all.len(), count);
}
