//! Inspections of key leases.

use super::*;
use crate::{
    command::Attach,
    id::LeaseId,
    lease_name::LeaseName,
    message::{LeaseInfo, NodesAfter},
};

const TTL: Duration = Duration::from_secs(4);

/// Two key leases. The nodes of the first are `/a`, `/b` and `/c`.
fn world() -> World {
    let mut world = World::new();
    let session = world.session();
    for id in [1, 2] {
        world.write(session, Write::GrantLease { id: Some(LeaseId(id)), name: None, ttl: TTL });
        world.commit();
    }
    for node in ["/a", "/b", "/c"] {
        let (value, attach) = (Bytes::from_static(b"v"), Attach::Lease(LeaseId(1)));
        world.write(session, Write::Put { path: path(node), value, condition: Condition::Any, attach });
        world.commit();
    }
    world
}

impl World {
    fn inspect(&mut self, inspect: Inspect) -> Answer {
        let effects = self.request(SessionId(0), Body::Inspect(inspect));
        let proven = self.step(LessorInput::Proven { round: self.lessor.round });
        answer(
            &effects
                .into_iter()
                .chain(proven)
                .filter(|effect| matches!(effect, LessorEffect::Reply { .. }))
                .collect::<Vec<_>>(),
        )
    }

    fn lease_info(&mut self, id: u64, nodes_after: Option<NodesAfter>) -> Option<LeaseInfo> {
        match self.inspect(Inspect::Lease { id: LeaseId(id), nodes_after }) {
            Answer::Lease(info) => info,
            other => panic!("a lease: {other:?}"),
        }
    }

    fn nodes(&mut self, after: Option<NodesAfter>) -> Vec<NodePath> {
        self.lease_info(1, after).expect("the lease exists").nodes
    }
}

#[test]
fn key_lease_info_has_ttl_and_remaining_time() {
    let mut world = world();
    assert_eq!(world.lease_info(3, None), None);
    world.pass(TTL / 2);
    let info = world.lease_info(1, None).expect("the lease exists");
    assert_eq!((info.id, info.ttl, &info.nodes[..]), (LeaseId(1), TTL, &[][..]));
    assert!(info.remaining > Duration::ZERO && info.remaining <= TTL / 2 + TTL / 4, "{info:?}");
}

#[test]
fn key_lease_info_by_name_is_that_of_its_present_lease() {
    let mut world = world();
    let session = world.session();
    let name = || LeaseName::parse("server1Lease").expect("a name");
    let by_name = |world: &mut World| match world
        .inspect(Inspect::LeaseNamed { name: name(), nodes_after: Some(NodesAfter::Nothing) })
    {
        Answer::Lease(info) => info,
        other => panic!("a lease: {other:?}"),
    };
    assert_eq!(by_name(&mut world), None);
    world.write(session, Write::GrantLease { id: Some(LeaseId(3)), name: Some(name()), ttl: TTL });
    world.commit();
    let (value, attach) = (Bytes::from_static(b"v"), Attach::LeaseNamed(name()));
    world.write(session, Write::Put { path: path("/d"), value, condition: Condition::Any, attach });
    world.commit();
    let info = by_name(&mut world).expect("granted");
    assert_eq!((info.id, &info.name, &info.nodes[..]), (LeaseId(3), &Some(name()), &[path("/d")][..]));
    assert_eq!(world.lease_info(3, Some(NodesAfter::Nothing)), Some(info), "by id it is the same");
    assert_eq!(world.lease_info(1, None).expect("granted").name, None);
    world.write(session, Write::RevokeLeaseNamed { name: name() });
    world.commit();
    assert_eq!(by_name(&mut world), None);
}

#[test]
fn nodes_of_a_key_lease_are_listed_in_parts() {
    let mut world = world();
    assert_eq!(world.nodes(Some(NodesAfter::Nothing)), ["/a", "/b", "/c"].map(path));
    assert_eq!(world.nodes(Some(NodesAfter::Path(path("/a")))), ["/b", "/c"].map(path));
    world.lessor.config.bounds.inspection_bytes_max = 4;
    assert_eq!(world.nodes(Some(NodesAfter::Nothing)), ["/a", "/b"].map(path));
    assert_eq!(world.nodes(Some(NodesAfter::Path(path("/b")))), [path("/c")]);
    assert_eq!(world.nodes(Some(NodesAfter::Path(path("/c")))), []);
}

#[test]
fn key_leases_are_listed_in_order_after_the_last() {
    let mut world = world();
    let mut ids = |after: Option<u64>| match world.inspect(Inspect::Leases { after: after.map(LeaseId) }) {
        Answer::Leases(leases) => leases.into_iter().map(|lease| lease.id.0).collect::<Vec<_>>(),
        other => panic!("leases: {other:?}"),
    };
    assert_eq!((ids(None), ids(Some(1)), ids(Some(2))), (vec![1, 2], vec![2], vec![]));
}
