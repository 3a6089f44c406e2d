//! Who is alive: what is said of nodes that go with leases, and of those that did.

use super::*;
use crate::{
    change::Reason,
    command::Attach,
    id::LeaseId,
    message::{ServiceInfo, Standing},
    object::Owner,
};

const KEY: LeaseId = LeaseId(9);
const TTL: Duration = Duration::from_secs(4);

impl World {
    fn services_at(&mut self, top: &str, after: Option<&str>) -> Vec<ServiceInfo> {
        let inspect = Inspect::Services { path: path(top), after: after.map(path) };
        match answer(&self.request(SessionId(0), Body::Inspect(inspect))) {
            Answer::Services(services) => services,
            other => panic!("services: {other:?}"),
        }
    }

    fn services(&mut self) -> Vec<ServiceInfo> {
        self.services_at("/s", None)
    }

    /// A session with a node that goes with it.
    fn registers(&mut self, node: &str) -> SessionId {
        let session = self.session();
        self.acquire(session, None);
        self.attaches(session, node, Attach::Session);
        session
    }

    fn attaches(&mut self, session: SessionId, node: &str, attach: Attach) {
        let put = Write::Put { path: path(node), value: Bytes::new(), condition: Condition::Any, attach };
        self.write(session, put);
        answer(&self.commit());
    }

    fn incarnation(&self, session: SessionId) -> Incarnation {
        self.state.lease(&LeaseKey::Volume(session, Path::root())).expect("it has one").incarnation
    }
}

fn standings(services: &[ServiceInfo]) -> Vec<(&str, Standing)> {
    services.iter().map(|service| (service.path.as_str(), service.standing)).collect()
}

#[test]
fn a_service_lives_until_it_is_late_and_is_gone_with_its_lease() {
    let mut world = World::new();
    let (one, two) = (world.registers("/s/one"), world.registers("/s/two"));
    world.registers("/elsewhere");
    let (first, second) = (world.incarnation(one), world.incarnation(two));
    world.renew(one, first).expect("promised");
    world.renew(two, second).expect("promised");
    let found = world.services();
    assert_eq!(standings(&found), [("/s/one", Standing::Live), ("/s/two", Standing::Live)]);
    assert_eq!(
        (found[0].owner, found[0].name.as_str(), found[0].seen),
        (Some(Owner::Session(one)), "test", Some(Duration::ZERO))
    );
    let term = found[0].remaining;
    assert_eq!(term, VolumeSettings::DEFAULT.term());
    world.pass(term * 3 / 4);
    world.renew(two, second).expect("promised");
    let found = world.services();
    assert_eq!(standings(&found), [("/s/one", Standing::Jeopardy), ("/s/two", Standing::Live)]);
    assert!(found[0].remaining <= term / 4 && found[0].seen >= Some(term * 3 / 4), "{found:?}");
    // The first promise after a tick reaches no further than the horizon that the log has (T6): it is asked for again.
    for _ in 0..2 {
        world.pass(term / 4);
        world.renew(two, second).expect("promised");
    }
    let found = world.services();
    // The fifth change: /elsewhere, which is in another list, went with the fourth.
    let gone = Standing::Gone { revision: Revision(5), reason: Reason::Expired };
    assert_eq!(standings(&found), [("/s/one", gone), ("/s/two", Standing::Live)]);
    assert_eq!((found[0].owner, found[0].remaining), (Some(Owner::Session(one)), Duration::ZERO));
    assert!(found[0].seen >= Some(term), "it is remembered when it was last seen: {found:?}");
}

#[test]
fn it_is_said_why_services_are_gone_and_who_comes_back_is_there() {
    let mut world = World::new();
    // Without copies of its own, which would have to be given up.
    let session = world.session();
    world.write(session, Write::GrantLease { id: Some(KEY), ttl: TTL });
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
    world.write(session, Write::RevokeLease { id: KEY });
    world.commit();
    let revoked = world.state.revision();
    world.registers("/s/c");
    let gone = |revision: Revision, reason| Standing::Gone { revision, reason };
    let found = world.services();
    let expected = [
        ("/s/a", gone(Revision(left), Reason::Request)),
        ("/s/b", gone(revoked, Reason::Revoked)),
        ("/s/c", Standing::Live),
    ];
    assert_eq!(standings(&found), expected);
    assert_eq!(standings(&world.services_at("/s", Some("/s/a"))), expected[1..], "the rest is asked for");
    assert_eq!(world.services_at("/s", Some("/s/c")), []);
    assert_eq!(standings(&world.services_at("/s/b", None)), expected[1..2]);
}

#[test]
fn the_next_leader_says_what_it_does_not_know() {
    let mut world = World::new();
    let session = world.registers("/s/one");
    let incarnation = world.incarnation(session);
    world.renew(session, incarnation).expect("promised");
    world.fail_over();
    let found = world.services();
    assert_eq!((found.len(), found[0].seen), (1, None), "not heard of since it began");
    assert!(found[0].remaining > Duration::ZERO, "but what was promised is kept");
}
