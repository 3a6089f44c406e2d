//! The claims and recalls of one step, with very many sets and sessions: bounded, and never too few
//! (S2, S10b).

use super::*;
use crate::{
    command::Attach,
    id::LeaseId,
    transaction::{Operation, Transaction},
    work::take_visited,
};

impl World {
    /// `sessions` sessions with leases on the root, and `leases` ended leases with `nodes` orphans
    /// each in one list, as an old leader leaves them.
    fn with_orphans(sessions: usize, leases: u64, nodes: u64) -> (Self, Vec<SessionId>) {
        Self::with_orphans_at(sessions, leases, nodes, |id, number| format!("/list/{id}-{number}"))
    }

    fn with_orphans_at(
        sessions: usize,
        leases: u64,
        nodes: u64,
        place: impl Fn(u64, u64) -> String,
    ) -> (Self, Vec<SessionId>) {
        let mut world = Self { is_checked: false, ..Self::new() };
        let holders: Vec<SessionId> = (0..sessions).map(|_| world.holder(&data("/x")).0).collect();
        let owner = world.session();
        world.attach_nodes(owner, leases, nodes, place);
        world.end_leases(leases);
        (world, holders)
    }

    /// Grants `leases` key leases, and attaches `nodes` nodes to each.
    fn attach_nodes(&mut self, owner: SessionId, leases: u64, nodes: u64, place: impl Fn(u64, u64) -> String) {
        for id in 1..=leases {
            self.write(owner, Write::GrantLease { id: Some(LeaseId(id)), name: None, ttl: TERM });
        }
        self.commit();
        let place = &place;
        let node = |id, number| (path(&place(id, number)), Attach::Lease(LeaseId(id)));
        self.fill(owner, (1..=leases).flat_map(|id| (0..nodes).map(move |number| node(id, number))));
    }

    /// Ends the first `leases` key leases. The lessor does not hear of it.
    fn end_leases(&mut self, leases: u64) {
        let end = |id| {
            let lease = AnyLease::KeyLease(LeaseId(id));
            let found = self.state.lease(&lease).expect("the lease is granted");
            Command::Expire { incarnation: found.incarnation, horizon: found.horizon, lease }
        };
        let commands = (1..=leases).map(end).collect();
        self.index += 1;
        let (epoch, time) = (self.state.epoch(), self.state.cluster_time());
        self.state.apply(self.index, &Proposal { epoch, number: 1 << 41, time, commands });
        assert_eq!(self.state.orphans().count() as u64, leases);
    }

    /// Makes a volume at each top, and consents to all recalls.
    fn make_volumes(&mut self, tops: impl IntoIterator<Item = String>) {
        let maker = self.session();
        for top in tops {
            self.write(maker, Write::CreateVolume { path: path(&top), settings: VolumeSettings::DEFAULT });
            for Recall { session, stamp, .. } in recalls(&self.commit()) {
                self.step(LessorInput::Consent(Consent { session, stamp }));
            }
            self.commit();
        }
    }

    fn fail_over_with(&mut self, bounds: LessorBounds) {
        let config = LessorConfig { bounds, ..config(self.lessor.config.attempt + 1) };
        self.lessor = Lessor::new(config, &self.state, Duration::ZERO, self.now);
        self.commit();
    }
}

/// What the first step of a new leader examines, which begins a round. No session has sent a holder
/// report.
fn round_after_failover(sessions: usize, leases: u64, nodes: u64) -> u64 {
    let bounds = LessorBounds { claims_max: 1_000, ..LessorBounds::DEFAULT };
    let (mut world, holders) = World::with_orphans(sessions, leases, nodes);
    take_visited();
    world.fail_over_with(bounds);
    let visited = take_visited();
    let nodes: Vec<NodePath> = world.state.nodes_in(&path("/list"), None).map(|(path, _)| path.clone()).collect();
    for holder in holders {
        let recalled = recalls(&world.request(holder, Body::Register));
        let [recall] = &recalled[..] else { panic!("one round: {recalled:?}") };
        assert!(recall.sets.len() <= 2, "{:?}", recall.sets);
        for object in nodes.iter().skip(1).flat_map(|path| [Object::data(path.clone()), Object::children(path.clone())])
        {
            assert!(recall.sets.iter().any(|set| set.contains(&object)), "{object} is not in {:?}", recall.sets);
        }
        assert!(recall.sets.iter().all(|set| !set.contains(&data("/x"))), "unrelated copies stay: {:?}", recall.sets);
        assert!(world.state.node(&nodes[1]).is_some(), "the copies may be in use");
        world.step(LessorInput::Consent(Consent { session: holder, stamp: recall.stamp }));
        world.commit();
    }
    assert_eq!(world.state.node(&nodes[1]), None);
    world.check();
    visited
}

#[test]
fn round_beside_coverings_costs_their_sum() {
    for nodes in [1, 20] {
        let [few, leases, sessions, both] = [(50, 64), (50, 128), (100, 64), (100, 128)]
            .map(|(sessions, leases)| round_after_failover(sessions, leases, nodes));
        assert!(both + few <= leases + sessions + 200, "{few}, {leases}, {sessions}, {both} with {nodes} nodes each");
    }
}

#[test]
fn covering_recalls_name_few_sets_one_by_one() {
    let (mut world, holders) = World::with_orphans(2, 3, 1);
    world.fail_over();
    let recall = recalls(&world.request(holders[0], Body::Register)).remove(0);
    assert_eq!(recall.sets.len(), 3 * 2 + 1, "{:?}", recall.sets);
    assert!(recall.sets.iter().all(|set| matches!(set, ObjectSet::One(_))), "{:?}", recall.sets);
}

#[test]
fn covering_writer_that_dropped_all_sets_is_not_recalled() {
    let mut world = World::new();
    let [writer, other] = [(); 2].map(|()| world.holder(&data("/x")).0);
    world.fill(writer, (0..20).map(|number| (path(&format!("/s/{number}")), Attach::Nothing)));
    world.fail_over_with(LessorBounds { claims_max: 0, ..LessorBounds::DEFAULT });
    world.request(writer, Body::Register);
    world.request(other, Body::Register);
    let nodes = || (0..20).map(|number| path(&format!("/s/{number}")));
    let then = nodes().map(|path| Operation::put(path, "2")).collect();
    let dropped = nodes().map(|path| ObjectSet::One(Object::data(path))).collect();
    let seen = Stamp { epoch: world.state.epoch(), sequence: 0 };
    let write = Write::Transaction(Transaction { then, ..Transaction::new() });
    let effects = world.request(writer, Body::Write { write, dropped, seen });
    let recalled: Vec<_> = recalls(&effects).into_iter().map(|recall| (recall.session, recall.sets)).collect();
    assert_eq!(recalled, [(other, vec![ObjectSet::Subtree(path("/s"))])]);
}

#[test]
fn recall_of_too_many_sets_names_the_subtree() {
    let mut world = World::new();
    world.lessor.config.bounds.recall_sets_max = 5;
    let writer = world.session();
    for number in 0..6 {
        world.write(writer, put(&format!("/s/{number}"), b"1"));
        world.commit();
    }
    let (holder, _) = world.holder(&data("/s/0"));
    (1..6).for_each(|number| drop(world.read(holder, data(&format!("/s/{number}")))));
    let puts = |count| {
        let then = (0..count).map(|number| Operation::put(path(&format!("/s/{number}")), "2")).collect();
        Write::Transaction(Transaction { then, ..Transaction::new() })
    };
    let recall = recalls(&world.write(writer, puts(6))).remove(0);
    assert_eq!(recall.sets, [ObjectSet::Subtree(path("/s"))]);
    world.step(LessorInput::Consent(Consent { session: holder, stamp: recall.stamp }));
    assert!(matches!(answer(&world.commit()), Answer::Written { .. }));
    (0..5).for_each(|number| drop(world.read(holder, data(&format!("/s/{number}")))));
    let recall = recalls(&world.write(writer, puts(5))).remove(0);
    assert_eq!(recall.sets.len(), 5, "the recall names at most the bound: {:?}", recall.sets);
}

#[test]
fn rounds_begin_one_in_a_step_and_each_step_at_once() {
    let bounds = LessorBounds { purge_leases_max: 1, purges_max: 4, ..LessorBounds::DEFAULT };
    let (mut world, holders) = World::with_orphans(1, 6, 1);
    world.fail_over_with(bounds);
    let mut begun = world.lessor.writes.purges();
    assert!(begun < 3, "one with each entry: {begun} have begun");
    while begun < 4 {
        assert_eq!(world.lessor.next_deadline(world.now).since(world.now), MILLI, "{begun} have begun");
        world.step(LessorInput::Timeout);
        begun += 1;
        assert_eq!(world.lessor.writes.purges(), begun);
    }
    // The steps after that find out the volumes of the others.
    (0..2).for_each(|_| drop(world.step(LessorInput::Timeout)));
    assert_eq!(world.lessor.writes.purges(), 4);
    assert!(world.lessor.next_deadline(world.now).since(world.now) > MILLI, "the others wait for consents");
    for _ in 0..3 {
        for recall in recalls(&world.request(holders[0], Body::Register)) {
            world.step(LessorInput::Consent(Consent { session: holders[0], stamp: recall.stamp }));
        }
        world.commit();
    }
    assert_eq!((world.lessor.writes.purges(), world.state.orphans().count()), (0, 0));
}

#[test]
fn write_of_few_sets_recalls_only_those_from_coverings() {
    let mut world = World::new();
    let [writer, other] = [(); 2].map(|()| world.holder(&data("/x")).0);
    world.fail_over_with(LessorBounds { claims_max: 0, ..LessorBounds::DEFAULT });
    world.request(writer, Body::Register);
    world.request(other, Body::Register);
    let recalled = recalls(&world.write(writer, put("/s/1/2/3/4/5/6", b"")));
    let [recall] = recalled.iter().filter(|recall| recall.session == other).collect::<Vec<_>>()[..] else {
        panic!("one recall: {recalled:?}")
    };
    assert!(recall.sets.iter().all(|set| matches!(set, ObjectSet::One(_))), "{:?}", recall.sets);
}

#[test]
fn large_leases_in_two_places_are_recalled_apart() {
    let place = |id, number| format!("/{}/{number}", ["a", "b"][id as usize % 2]);
    let (mut world, holders) = World::with_orphans_at(1, 2, 20, place);
    world.fail_over();
    let recall = recalls(&world.request(holders[0], Body::Register)).remove(0);
    for object in [data("/a/0"), data("/b/19"), Object::children(path("/a"))] {
        assert!(recall.sets.iter().any(|set| set.contains(&object)), "{object} is not in {:?}", recall.sets);
    }
    for object in [data("/x"), Object::children(NodePath::root())] {
        assert!(!recall.sets.iter().any(|set| set.contains(&object)), "{object} does not change: {:?}", recall.sets);
    }
}

/// What the step that begins a purge examines, when `sessions` sessions have known leases on each
/// of the nodes, live or just ended.
fn round_beside_known_holders(sessions: usize, leases: u64, are_over: bool) -> u64 {
    let (mut world, holders) = World::with_orphans(sessions, leases, 1);
    // As an earlier lessor left it: it has not begun the purge.
    let nodes: Vec<NodePath> =
        world.state.nodes_in(&path("/list"), None).map(|(path, _)| path.clone()).skip(1).collect();
    world.lessor.config.bounds.purges_max = 0;
    let expires_at = world.lessor.clock.ending_time().after(if are_over { Duration::ZERO } else { TERM * 100 });
    for (holder, node) in holders.iter().flat_map(|holder| nodes.iter().map(move |node| (*holder, node))) {
        let lease = object_leases::ObjectLease { expires_at, source: object_leases::GrantSource::granted(1) };
        let object = Object::data(node.clone());
        world.lessor.object_leases.add(&NodePath::root(), &object, holder, lease, 1 << 20, &world.state);
    }
    world.lessor.config.bounds.purges_max = 8;
    world.lessor.config.bounds.claims_max = 1_000;
    world.lessor.orphans.add(world.state.orphans());
    take_visited();
    let recalled = recalls(&world.step(LessorInput::Timeout));
    let visited = take_visited();
    assert_eq!(recalled.len(), if are_over { 0 } else { sessions });
    for recall in recalled {
        assert_eq!(recall.sets, [ObjectSet::Subtree(path("/list"))]);
        let has = |node: &&NodePath| recall.sets.iter().any(|set| set.contains(&Object::data((*node).clone())));
        assert!(nodes.iter().all(|node| has(&node)), "{:?}", recall.sets);
    }
    visited
}

#[test]
fn round_beside_known_holders_costs_their_sum() {
    for are_over in [false, true] {
        let [few, leases, sessions, both] = [(50, 64), (50, 128), (100, 64), (100, 128)]
            .map(|(sessions, leases)| round_beside_known_holders(sessions, leases, are_over));
        // Before the entries are found to be too many, as many as the bound are counted and
        // examined.
        assert!(both + few <= leases + sessions + 2_200, "{few}, {leases}, {sessions}, {both}");
    }
}

#[test]
fn large_lease_beside_many_copies_costs_by_its_nodes() {
    let visited = |others: u64| {
        let place = |_, number| format!("/{}/{number}", ["a", "b"][number as usize % 2]);
        let (mut world, holders) = World::with_orphans_at(1, 1, 20, place);
        let lease = object_leases::ObjectLease {
            expires_at: world.lessor.clock.ending_time().after(TERM * 100),
            source: object_leases::GrantSource::granted(1),
        };
        let copies = (0..others).map(|number| data(&format!("/c/{number}"))).chain([data("/a/0")]);
        for copy in copies {
            world.lessor.object_leases.add(&NodePath::root(), &copy, holders[0], lease, 1 << 20, &world.state);
        }
        world.lessor.orphans.add(world.state.orphans());
        take_visited();
        let recalled = recalls(&world.step(LessorInput::Timeout));
        let visited = take_visited();
        assert_eq!(
            recalled.iter().map(|recall| recall.sets.clone()).collect::<Vec<_>>(),
            [[ObjectSet::One(data("/a/0"))]]
        );
        visited
    };
    let (few, many) = (visited(100), visited(10_000));
    assert!(many <= few + 100, "{few} beside 100 copies, {many} beside 10,000");
}

/// The write does not wait in a volume that it does not change, where leases last longer.
#[test]
fn removal_of_many_waits_in_its_own_volumes_alone() {
    let (mut world, holders) = World::with_orphans_at(2, 20, 1, |id, _| format!("/{id}/node"));
    let apart = world.session();
    world.write(apart, Write::CreateVolume { path: path("/slow"), settings: VolumeSettings::DEFAULT });
    for Recall { session, stamp, .. } in recalls(&world.commit()) {
        world.step(LessorInput::Consent(Consent { session, stamp }));
    }
    world.commit();
    world.request(apart, Body::Acquire { path: path("/slow"), last_valid: None, read: None });
    world.commit();
    let expires_at = world.lessor.clock.ending_time().after(TERM * 100);
    let lease = object_leases::ObjectLease { expires_at, source: object_leases::GrantSource::granted(1) };
    for id in 1..=20 {
        let object = data(&format!("/{id}/node"));
        world.lessor.object_leases.add(&NodePath::root(), &object, holders[0], lease, 1 << 20, &world.state);
    }
    world.lessor.object_leases.add(&path("/slow"), &data("/slow/x"), apart, lease, 1 << 20, &world.state);
    world.lessor.config.bounds.claims_max = 1;
    world.lessor.orphans.add(world.state.orphans());
    let recalled: Vec<SessionId> =
        recalls(&world.step(LessorInput::Timeout)).iter().map(|recall| recall.session).collect();
    assert!(recalled.contains(&holders[0]) && !recalled.contains(&apart), "{recalled:?}");
}

/// Beside `slow` leases that end with orphans in `/slow`, one ends with an orphan in `/fast`. A
/// reader of `/slow` does not consent. Returns the number of purges that wait for it.
fn purges_beside_a_dead_reader(slow: u64) -> usize {
    let mut world = World::new();
    world.make_volumes(["/slow", "/fast"].map(str::to_owned));
    world.lessor.config.bounds.purge_leases_max = 2;
    world.lessor.config.bounds.purges_max = 3;
    let owner = world.session();
    let place = |id, _| if id > slow { format!("/fast/{id}") } else { format!("/slow/{id}") };
    world.attach_nodes(owner, slow + 1, 1, place);
    let reader = world.session();
    world.request(reader, Body::Acquire { path: path("/slow"), last_valid: None, read: None });
    world.commit();
    world.read(reader, Object::children(path("/slow")));
    world.end_leases(slow + 1);
    world.lessor.orphans.add(world.state.orphans());
    let last = path(&place(slow + 1, 0));
    for _ in 0..=slow {
        world.step(LessorInput::Timeout);
    }
    world.commit();
    assert!(world.state.node(&last).is_none(), "the purge in /fast waits for the reader of /slow");
    assert!(matches!(
        answer(&{
            world.write(owner, put("/fast/next", b""));
            world.commit()
        }),
        Answer::Written { .. }
    ));
    assert_eq!(world.state.orphans().count() as u64, slow, "the reader has not consented");
    world.lessor.writes.purges()
}

#[test]
fn purge_waits_for_no_purge_of_another_volume() {
    assert_eq!([1, 2, 3, 6, 7, 20].map(purges_beside_a_dead_reader), [1, 1, 2, 3, 3, 3]);
}

#[test]
fn orphans_that_move_to_another_volume_are_purged_there() {
    let place = |id, _| format!("/{}/{id}", ["a", "b"][usize::from(id > 2)]);
    let (mut world, _) = World::with_orphans_at(0, 4, 1, place);
    world.lessor.config.bounds.purge_leases_max = 1;
    world.lessor.config.bounds.purges_max = 1;
    let reader = world.session();
    world.acquire(reader, None);
    world.read(reader, Object::children(path("/a")));
    world.lessor.orphans.add(world.state.orphans());
    // The first step begins the purge of the first lease. No other may begin, but the steps sort
    // the others before `/b` becomes a volume.
    (0..4).for_each(|_| drop(world.step(LessorInput::Timeout)));
    assert_eq!((world.lessor.writes.purges(), world.lessor.orphans.len()), (1, 3));
    world.make_volumes(["/b".to_owned()]);
    for _ in 0..8 {
        for Recall { session, stamp, .. } in recalls(&world.step(LessorInput::Timeout)) {
            world.step(LessorInput::Consent(Consent { session, stamp }));
        }
        world.commit();
    }
    world.check();
    assert_eq!((world.state.orphans().count(), world.lessor.orphans.len()), (2, 1), "/b is done, /a waits");
}

#[test]
fn round_in_many_volumes_beside_coverings_is_bounded() {
    const VOLUMES: u64 = 16;
    const LEASES: u64 = 3;
    let place = |id: u64, number: u64| format!("/{number}/{id}");
    let (mut world, holders) = World::with_orphans_at(10, LEASES, VOLUMES, place);
    for volume in 0..VOLUMES {
        world.make_volumes([format!("/{volume}")]);
        for holder in &holders {
            world.request(*holder, Body::Acquire { path: path(&format!("/{volume}/x")), last_valid: None, read: None });
        }
        world.commit();
    }
    world.fail_over_with(LessorBounds { claims_max: 0, ..LessorBounds::DEFAULT });
    for holder in &holders {
        let recalled = recalls(&world.request(*holder, Body::Register));
        for object in (1..=LEASES).flat_map(|id| (0..VOLUMES).map(move |number| data(&place(id, number)))) {
            assert!(
                recalled.iter().flat_map(|recall| &recall.sets).any(|set| set.contains(&object)),
                "{object}: {recalled:?}"
            );
        }
        let sets: usize = recalled.iter().map(|recall| recall.sets.len()).sum();
        assert!(sets <= VOLUMES as usize + 1, "one for each volume: {recalled:?}");
    }
}

/// What a holder is asked for that has copies of `copies` nodes of a lease with twenty, and of one
/// node that is not attached.
fn asked_of_copies(copies: usize, sets_max: usize) -> Vec<ObjectSet> {
    let (mut world, nodes) = (World::new(), (0..20).map(|number| format!("/s/{number}")).collect::<Vec<_>>());
    world.lessor.config.bounds.recall_sets_max = sets_max;
    let session = world.lease(&nodes.iter().map(String::as_str).collect::<Vec<_>>());
    let (holder, _) = world.holder(&data("/s/plain"));
    (0..copies).for_each(|number| drop(world.read(holder, data(&nodes[number]))));
    let recalled = recalls(&world.write(session, Write::RevokeLease { id: LeaseId(9), incarnation: None }));
    recalled.into_iter().flat_map(|recall| recall.sets).collect()
}

#[test]
fn few_copies_of_a_large_lease_are_recalled_one_by_one() {
    let one = |number: usize| ObjectSet::One(data(&format!("/s/{number}")));
    assert_eq!(asked_of_copies(0, 2), [], "nodes of other leases are not recalled");
    assert_eq!(asked_of_copies(1, 2), [one(0)]);
    assert_eq!(asked_of_copies(2, 2), [one(0), one(1)]);
    assert_eq!(asked_of_copies(3, 2), [ObjectSet::Subtree(path("/s"))]);
}

#[test]
fn lists_of_a_lease_are_named_one_by_one_up_to_a_bound() {
    let mut world = World::new();
    world.lease(&["/s/a/1", "/s/b/1", "/s/c/1"]);
    let lease = world.state.lease(&AnyLease::KeyLease(LeaseId(9))).expect("granted").incarnation;
    let lists = |sets_max| super::super::attachments::lists_of(lease, sets_max, &world.state);
    let named = ["/s/a", "/s/b", "/s/c"].map(|list| ObjectSet::One(Object::children(path(list))));
    assert_eq!((lists(4), lists(3)), (named.to_vec(), named.to_vec()));
    assert_eq!(lists(2), [ObjectSet::Subtree(path("/s"))]);
}
