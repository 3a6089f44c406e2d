//! The recalls before many nodes of ended leases are removed.

use super::*;

/// A lease with twenty nodes is revoked. Another session has copies of two of them, and is asked
/// for these.
fn asked_for_many_nodes(expected: &[&str], configure: impl FnOnce(&mut LessorConfig)) {
    let (mut world, nodes) = (World::new(), (0..20).map(|number| format!("/{number}")).collect::<Vec<_>>());
    configure(&mut world.lessor.config);
    let session = world.lease(&nodes.iter().map(String::as_str).collect::<Vec<_>>());
    let (holder, _) = world.holder(&data("/0"));
    world.read(holder, data("/1"));
    let recall = recalls(&world.write(session, Write::RevokeLease { id: ONE, incarnation: None })).remove(0);
    for node in expected {
        assert!(recall.sets.iter().any(|set| set.contains(&data(node))), "{node}: {:?}", recall.sets);
    }
}

#[test]
fn holder_of_many_nodes_of_a_lease_gets_recall_of_all() {
    asked_for_many_nodes(&["/0", "/1"], |config| config.bounds.purge_sets_max = 1);
}

#[test]
fn covering_holder_gets_recall_of_a_leases_nodes() {
    asked_for_many_nodes(&["/0", "/1", "/19"], |config| config.limits.session_objects_max = 1);
}

#[test]
fn purge_of_several_leases_recalls_every_list() {
    let mut world = World::new();
    let session = world.lease(&["/s/a"]);
    let two = LeaseId(10);
    world.write(session, Write::GrantLease { id: Some(two), name: None, ttl: TTL });
    world.commit();
    // The first node of the second lease is in the list of the first lease, the other one is not.
    for node in ["/s/b", "/t/b"] {
        world.write(session, attached(node, Attach::Lease(two)));
        world.commit();
    }
    world.holder(&Object::children(path("/t")));
    let mut recalls = Vec::new();
    let until = world.now.after(TTL * 2);
    while recalls.is_empty() && world.now < until {
        world.now = world.now.after(clock::STEP_EVERY);
        recalls = super::recalls(&world.step(LessorInput::Timeout));
        recalls.extend(super::recalls(&world.commit()));
    }
    let sets: Vec<&ObjectSet> = recalls.iter().flat_map(|recall| &recall.sets).collect();
    assert!(sets.contains(&&ObjectSet::One(Object::children(path("/t")))), "{sets:?}");
    assert_eq!(world.lessor.writes.purges(), 1, "both leases share a round");
}

#[test]
fn node_with_pending_purge_is_not_revived() {
    let mut world = World::new();
    let acquire = |world: &mut World, session, last_valid| {
        world.request(session, Body::Acquire { path: path("/s"), last_valid, read: None });
        match answer(&world.commit()) {
            Answer::Acquired(acquired) => acquired,
            other => panic!("acquired: {other:?}"),
        }
    };
    let session = world.session();
    world.write(session, Write::CreateVolume { path: path("/s"), settings: VolumeSettings::DEFAULT });
    world.commit();
    let session = world.lease(&["/s/a"]);
    let returning = world.session();
    acquire(&mut world, returning, None);
    let grant = world.read(returning, data("/s/a")).grant.expect("the write is not refused");
    let revision = world.state.revision();
    let until = world.now.after(VolumeSettings::DEFAULT.longest_term() * 2);
    while world.now < until {
        world.pass(TTL / 4);
        world.keep(session);
    }
    let holder = world.session();
    acquire(&mut world, holder, None);
    world.read(holder, data("/s/a")).grant.expect("the write is not refused");
    world.write(session, Write::RevokeLease { id: ONE, incarnation: None });
    assert_eq!(world.lessor.writes.iter().flat_map(|(_, write)| write.waits.keys()).collect::<Vec<_>>(), [&holder]);
    let valid_at =
        LastValid { incarnation: grant.incarnation, generation: VolumeGeneration(grant.generation.0), revision };
    let Revival::AllExcept { changed, .. } = acquire(&mut world, returning, Some(valid_at)).revival else {
        panic!("the history reaches back")
    };
    assert!(changed.iter().any(|set| set.contains(&data("/s/a"))), "{changed:?}");
}
