//! Key leases and attached nodes: the lease ends first and waits for nobody. Then its nodes are
//! removed, with all consents (T5, S8).

mod recalls;

use super::*;
use crate::{
    command::{Attach, Written},
    id::LeaseId,
    message::{KeepAliveResult, KeyLeasePromise, KeyLeaseRenewal},
};

const ONE: LeaseId = LeaseId(9);
const MEANT: KeyLeaseRenewal = KeyLeaseRenewal { id: ONE, incarnation: None };
const TTL: Duration = Duration::from_secs(4);

pub(super) fn attached(text: &str, attach: Attach) -> Write {
    Write::Put { path: path(text), value: Bytes::from_static(b"v"), condition: Condition::Any, attach }
}

impl World {
    /// A key lease with these nodes, of a session that has no copies.
    pub(super) fn lease(&mut self, nodes: &[&str]) -> SessionId {
        let session = self.session();
        self.write(session, Write::GrantLease { id: Some(ONE), name: None, ttl: TTL });
        let Answer::Written { written: Written { lease, .. }, key_lease, .. } = answer(&self.commit()) else {
            panic!("granted")
        };
        let promise = key_lease.expect("the lease has just been granted");
        assert_eq!(
            (lease.map(|lease| lease.id), promise),
            (Some(ONE), KeyLeasePromise { id: ONE, ttl: TTL, result: KeepAliveResult::Renewed(TTL), ..promise })
        );
        for node in nodes {
            self.write(session, attached(node, Attach::Lease(ONE)));
            self.commit();
        }
        session
    }

    fn keep(&mut self, session: SessionId) -> Option<Duration> {
        match answer(&self.at_once(|world| world.request(session, Body::KeepAlive { leases: vec![MEANT] }))) {
            Answer::KeptAlive(promise) => match promise[0].result {
                KeepAliveResult::Renewed(span) => Some(span),
                KeepAliveResult::Unconfirmed | KeepAliveResult::NotFound => None,
            },
            other => panic!("kept: {other:?}"),
        }
    }

    fn has(&self, text: &str) -> bool {
        self.state.node(&path(text)).is_some()
    }

    fn has_lease(&self) -> bool {
        self.state.lease(&AnyLease::KeyLease(ONE)).is_some()
    }

    /// Lets the lease and its margin pass.
    fn outlive_the_lease(&mut self) -> Vec<LessorEffect> {
        self.pass(TTL + Duration::from_millis(100))
    }
}

#[test]
fn key_lease_expires_after_term_and_margin_with_its_nodes() {
    let mut world = World::new();
    let session = world.lease(&["/a"]);
    world.pass(TTL / 2);
    assert_eq!(world.keep(session).map(|span| span > TTL / 2), Some(true), "kept alive");
    world.pass(TTL / 2);
    assert!(world.has_lease());
    world.outlive_the_lease();
    assert!(!world.has_lease() && !world.has("/a"));
    assert_eq!(world.keep(session), None, "the lease has ended, and no new one begins");
}

#[test]
fn key_of_a_lease_of_60_s_is_gone_after_60_s_and_before_61_s() {
    let mut world = World::new();
    let (session, before) = (world.session(), world.now);
    let minute = Duration::from_secs(60);
    world.write(session, Write::GrantLease { id: Some(ONE), name: None, ttl: minute });
    world.commit();
    world.write(session, attached("/a", Attach::Lease(ONE)));
    world.commit();
    while world.has("/a") {
        world.pass(clock::STEP_EVERY / 5);
    }
    let lasted = world.now.since(before);
    assert!(lasted >= minute && lasted <= minute + Duration::from_secs(1), "{lasted:?}");
}

/// The leader has seen that the lease expired, and loses the quorum before the end is committed.
#[test]
fn nodes_stay_until_the_end_of_their_lease_commits() {
    let mut world = World::new();
    world.lease(&["/a"]);
    while !world.lessor.proposal_queue.commands().any(|command| matches!(command, Command::Expire { .. })) {
        world.commit();
        world.now = world.now.after(clock::STEP_EVERY);
        world.step(LessorInput::Timeout);
    }
    let lost = world.lessor.take_proposal(world.now).expect("the end");
    assert!(lost.commands.iter().any(|command| matches!(command, Command::Expire { .. })));
    for _ in 0..200 {
        world.now = world.now.after(clock::STEP_EVERY);
        assert_eq!(world.step(LessorInput::Timeout), []);
    }
    assert!(world.has_lease() && world.has("/a"), "its end is not committed");
    let before = world.state.clone();
    world.fail_over();
    let [mut early, mut late] = [before, world.state.clone()];
    assert!(world.has_lease() && world.has("/a"), "the next leader has not proposed the end");
    // The lost entry is applied after all, before the next leader's epoch and within it.
    early.apply(early.applied_index() + 1, &lost);
    late.apply(late.applied_index() + 1, &lost);
    assert!(early.lease(&AnyLease::KeyLease(ONE)).is_none() && late.lease(&AnyLease::KeyLease(ONE)).is_some());
    world.outlive_the_lease();
    world.pass(world.state.tick() * 2);
    assert!(!world.has_lease() && !world.has("/a"));
}

#[test]
fn rarely_renewed_key_lease_lasts_full_term_each_time() {
    let mut world = World::new();
    let session = world.lease(&["/a"]);
    for _ in 0..3 {
        world.pass(TTL * 3 / 4);
        assert!(world.keep(session).is_some_and(|span| span < TTL), "no more is promised than its horizon leaves");
    }
    world.pass(TTL - Duration::from_millis(100));
    assert!(world.has_lease() && world.has("/a"), "the lease lasts for a term all the same");
    world.pass(Duration::from_millis(300));
    assert!(!world.has_lease() && !world.has("/a"));
}

#[test]
fn key_lease_with_proposed_end_gets_no_renewal_and_no_nodes() {
    let mut world = World::new();
    let session = world.lease(&[]);
    while !world.lessor.has_proposal() || world.lessor.in_flight.values().any(|one| !one.reasons.is_empty()) {
        world.now = world.now.after(clock::STEP_EVERY);
        world.step(LessorInput::Timeout);
        let is_end = |command: &Command| matches!(command, Command::Expire { .. });
        if world.lessor.proposal_queue.commands().any(is_end) {
            break;
        }
        world.commit();
    }
    assert!(world.has_lease(), "its end is proposed and not applied");
    assert_eq!(world.keep(session), None);
    let refused = result(&world.write(session, attached("/a", Attach::Lease(ONE))));
    assert_eq!(refused, Err(WriteRefusal::LeaseNotFound { id: ONE }.into()));
}

#[test]
fn orphan_is_removed_once_its_holders_consented() {
    let mut world = World::new();
    let session = world.lease(&["/a"]);
    let (holder, _) = world.holder(&data("/a"));
    let mut recalls = Vec::new();
    while recalls.is_empty() {
        world.now = world.now.after(clock::STEP_EVERY);
        let mut effects = world.step(LessorInput::Timeout);
        effects.extend(world.commit());
        world
            .renew(holder, world.state.lease(&AnyLease::Volume(holder, NodePath::root())).expect("held").incarnation)
            .ok();
        recalls = super::recalls(&effects);
    }
    assert!(!world.has_lease(), "the lease waits for no session");
    assert!(world.has("/a"), "the copy may be in use");
    assert!(recalls[0].sets.contains(&ObjectSet::One(data("/a"))));
    world.acquire(session, None);
    let read = world.read(session, data("/a"));
    assert!(matches!(read.content, Some(Content::Data(Some(_)))), "the orphan exists until its purge");
    assert_eq!(read.grant, None, "the orphan is not leased");
    assert_eq!(
        world.read(session, Object::children(NodePath::root())).grant,
        None,
        "the list with the orphan is not leased"
    );
    world.step(LessorInput::Consent(Consent { session: holder, stamp: recalls[0].stamp }));
    world.commit();
    assert!(!world.has("/a"));
}

#[test]
fn dead_holder_delays_removal_by_volume_term_and_margin() {
    let mut world = World::new();
    world.lease(&["/a"]);
    world.holder(&data("/a"));
    world.outlive_the_lease();
    assert!(!world.has_lease() && world.has("/a"));
    world.pass(TERM + VolumeSettings::DEFAULT.skew_margin() + 2 * clock::STEP_EVERY - TTL);
    assert!(!world.has("/a"));
}

#[test]
fn dead_holders_of_each_others_nodes_do_not_deadlock() {
    let mut world = World::new();
    let sessions = ["/a", "/b"].map(|node| {
        let session = world.session();
        world.acquire(session, None);
        world.write(session, attached(node, Attach::Session));
        world.commit();
        session
    });
    for (session, node) in sessions.into_iter().zip(["/b", "/a"]) {
        world.read(session, data(node)).grant.expect("the write is not refused");
    }
    world.pass(TERM + VolumeSettings::DEFAULT.skew_margin() + 4 * clock::STEP_EVERY);
    assert!(!world.has("/a") && !world.has("/b"));
}

#[test]
fn write_does_not_wait_for_consents_to_removal() {
    let mut world = World::new();
    let (first, writer) = (world.session(), world.session());
    world.acquire(first, None);
    world.write(first, attached("/a", Attach::Session));
    world.commit();
    world.read(first, data("/x")).grant.expect("the write is not refused");
    world.pass(TERM - Duration::from_secs(1));
    let (second, _) = world.holder(&data("/a"));
    world.write(writer, put("/x", b"1"));
    let effects = world.pass(Duration::from_secs(1) + VolumeSettings::DEFAULT.skew_margin() + 4 * clock::STEP_EVERY);
    assert!(replies(&effects).iter().any(|reply| matches!(reply.result, Ok(Answer::Written { .. }))), "{effects:?}");
    assert!(world.has("/a"), "the removal waits for session {second}");
}

#[test]
fn revocation_waits_for_consents_and_removes_all_nodes() {
    let mut world = World::new();
    let session = world.lease(&["/a", "/b"]);
    let (holder, _) = world.holder(&data("/b"));
    let effects = world.write(session, Write::RevokeLease { id: ONE, incarnation: None });
    let [recall] = recalls(&effects).try_into().expect("one holder");
    let recall: Recall = recall;
    world.commit();
    assert!(world.has_lease() && world.has("/a"));
    world.step(LessorInput::Consent(Consent { session: holder, stamp: recall.stamp }));
    let Answer::Written { written, .. } = answer(&world.commit()) else { panic!("revoked") };
    assert_eq!(written.removed, 2);
    assert!(!world.has_lease() && !world.has("/a") && !world.has("/b"));
}

#[test]
fn new_leader_purges_orphans_of_the_old_one() {
    let mut world = World::new();
    world.lease(&["/a"]);
    let (holder, _) = world.holder(&data("/a"));
    world.outlive_the_lease();
    assert!(world.has("/a"));
    world.fail_over();
    let effects = world.request(holder, Body::Register);
    let stamps: Vec<Stamp> = recalls(&effects).iter().map(|recall| recall.stamp).collect();
    assert!(!stamps.is_empty(), "the purge recalls without a request");
    for stamp in stamps {
        world.step(LessorInput::Consent(Consent { session: holder, stamp }));
    }
    world.commit();
    assert!(!world.has("/a"));
}

/// The proposals for the end of a lease and of its node are lost at first, with the leader that
/// made them.
#[test]
fn lost_end_proposals_are_repeated_by_next_leaders() {
    let mut world = World::new();
    world.lease(&["/a"]);
    let is_end = |command: &Command| matches!(command, Command::Expire { lease: AnyLease::KeyLease(_), .. });
    let is_removal = |command: &Command| matches!(command, Command::Purge { .. });
    let (mut lost_ends, mut lost_removals) = (0, 0);
    while world.has("/a") {
        world.now = world.now.after(clock::STEP_EVERY);
        world.step(LessorInput::Timeout);
        let Some(proposal) = world.lessor.take_proposal(world.now) else { continue };
        if proposal.commands.iter().any(is_end) && lost_ends < 3 {
            lost_ends += 1;
            assert!(world.has_lease());
            world.fail_over();
        } else if proposal.commands.iter().any(is_removal) {
            lost_removals += 1;
            assert!(!world.has_lease());
            // The new leader removes the orphans that it finds at once.
            world.fail_over();
        } else {
            world.apply(&proposal);
        }
    }
    assert_eq!((lost_ends, lost_removals), (3, 1));
}

#[test]
fn put_of_node_removed_in_same_entry_grants_no_lease() {
    let mut world = World::new();
    let session = world.lease(&["/a"]);
    world.acquire(session, None);
    while world.has_lease() {
        world.now = world.now.after(clock::STEP_EVERY);
        world.step(LessorInput::Timeout);
        // The put comes before the removal, and goes into the same entry.
        let is_end = world.lessor.proposal_queue.commands().any(|command| matches!(command, Command::Expire { .. }));
        match world.lessor.take_proposal(world.now) {
            Some(proposal) if is_end => {
                world.write(session, attached("/a", Attach::Unchanged));
                world.apply(&proposal);
            }
            Some(proposal) => drop(world.apply(&proposal)),
            None => {}
        }
    }
    let proposal = world.lessor.take_proposal(world.now).expect("the put and the removal");
    assert!(matches!(proposal.commands[..], [Command::Write { .. }, Command::Purge { .. }]), "{proposal:?}");
    let Answer::Written { grant, .. } = answer(&world.apply(&proposal)) else { panic!("written") };
    assert_eq!((grant, world.has("/a")), (None, false));
}

#[test]
fn acquisition_with_attached_nodes_keeps_the_lease() {
    let mut world = World::new();
    let session = world.session();
    let first = world.acquire(session, None).promise.incarnation;
    world.write(session, attached("/a", Attach::Session));
    world.commit();
    world.pass(TERM / 2);
    let second = world.acquire(session, None);
    assert_eq!((second.promise.incarnation, second.revival), (first, Revival::None));
    assert!(world.has("/a"));
}

#[test]
fn too_many_leases_in_one_request_are_refused() {
    let mut world = World::new();
    let session = world.session();
    let most = crate::message::KEEP_ALIVES_MAX;
    let refused = result(&world.request(session, Body::KeepAlive { leases: vec![MEANT; most + 1] }));
    let error = crate::limits::LimitError::Leases { got: most + 1, expected: most };
    assert_eq!(refused, Err(error.into()));
    let refused = result(&world.write(session, Write::GrantLease { id: None, name: None, ttl: MILLI }));
    assert!(matches!(refused, Err(Refusal::Limit(crate::limits::LimitError::Ttl { got: MILLI, .. }))));
}

#[test]
fn reused_lease_id_is_not_renewed_for_earlier_incarnation() {
    let mut world = World::new();
    let session = world.lease(&[]);
    let first = world.state.lease(&AnyLease::KeyLease(ONE)).expect("granted").incarnation;
    world.write(session, Write::RevokeLease { id: ONE, incarnation: None });
    world.commit();
    world.lease(&[]);
    let intended = KeyLeaseRenewal { id: ONE, incarnation: Some(first) };
    let Answer::KeptAlive(promise) = answer(&world.request(session, Body::KeepAlive { leases: vec![intended] })) else {
        panic!("kept")
    };
    assert_eq!((promise[0].result, promise[0].incarnation), (KeepAliveResult::NotFound, first));
    assert!(world.keep(session).is_some(), "a request without an incarnation finds the present lease");
}

#[test]
fn leases_ending_together_do_not_delay_writes() {
    let mut world = World::new();
    let session = world.session();
    let leases = LessorBounds::DEFAULT.expiries_waiting_max + 100;
    for _ in 0..leases {
        world.write(session, Write::GrantLease { id: None, name: None, ttl: TTL });
        world.commit();
    }
    let key_leases =
        |world: &World| world.state.leases().filter(|(key, _)| matches!(key, AnyLease::KeyLease(_))).count();
    assert_eq!(key_leases(&world), leases);
    // For a while no proposal enters the log.
    let later = world.now.after(TTL * 2);
    while world.now < later {
        world.now = world.now.after(clock::STEP_EVERY);
        world.step(LessorInput::Timeout);
    }
    assert_eq!(
        world.lessor.proposal_queue.ends(),
        LessorBounds::DEFAULT.expiries_waiting_max,
        "at most the bound of ends is proposed"
    );
    world.write(session, put("/x", b"1"));
    let proposal = world.lessor.take_proposal(world.now).expect("ends and a write");
    assert!(
        matches!(proposal.commands.last(), Some(Command::Write { .. })),
        "with the first entry, not after all ends"
    );
    world.apply(&proposal);
    world.pass(TTL);
    assert_eq!(key_leases(&world), 0, "the others followed");
}

/// A million leases with one horizon come up at once at a new leader, before their margins have
/// passed.
#[test]
fn leases_ending_together_are_examined_over_several_steps() {
    let mut world = World::new();
    let session = world.session();
    let grants = (1..=LessorBounds::DEFAULT.expiry_scan_max as u64 + 1).map(Sequence).map(|sequence| Command::Write {
        session,
        sequence,
        unanswered_from: sequence,
        write: Write::GrantLease { id: None, name: None, ttl: TTL },
        consented: Vec::new(),
        intended: IntendedLeases::default(),
        attached_through: world.state.revision(),
    });
    let (epoch, time) = (world.state.epoch(), world.state.cluster_time());
    let granted = Proposal { epoch, number: 0, time, commands: grants.collect() };
    world.index += 1;
    world.state.apply(world.index, &granted);
    world.fail_over();
    let (_, lease) = world.state.key_leases_after(None).next().expect("a lease");
    let (horizon, margin) = (lease.horizon, key_lease_margin(TTL, world.state.tick(), DriftAllowance::DEFAULT));
    let advance = |world: &mut World, until: Duration| {
        world.now = world.now.after(until);
        world.step(LessorInput::Timeout);
        world.lessor.next_deadline(world.now).since(world.now)
    };
    while world.lessor.clock.ending_time() < horizon {
        let left = horizon.since(world.lessor.clock.ending_time());
        advance(&mut world, left.min(clock::STEP_EVERY));
    }
    let next = world.lessor.next_deadline(world.now).since(world.now);
    assert_eq!(next, MILLI, "one lease is not examined yet");
    assert_eq!(advance(&mut world, MILLI), margin - MILLI);
    assert_eq!(world.state.key_leases_after(None).count(), LessorBounds::DEFAULT.expiry_scan_max + 1);
    world.pass(TTL);
    assert_eq!(world.state.key_leases_after(None).count(), 0);
}
