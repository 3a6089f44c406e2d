//! Random runs of the state, compared with simpler versions of the rules. A seed repeats each run.

mod locks;
mod outcomes;
mod replay;
mod transactions;
mod writes;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use self::{locks::owner_of, writes::random_write};

use super::{Applied, HistoryScan, ScanBounds, State, fixture::*};
use crate::{
    change::{Change, ChangeReason, Event, EventKind, WatchScope},
    command::{AnyLease, Attach, Command, Condition, IntendedLeases, Outcome, Proposal, Renewal, Write},
    id::{Epoch, LeaseId, Revision, Sequence, SessionId, VolumeGeneration},
    lease_name::LeaseName,
    object::{Content, Data, Object, ObjectSet, Value},
    path::NodePath,
    time::ClusterTime,
};

const SEEDS: u64 = 40;
const STEPS: usize = 250;

/// Xorshift (Marsaglia 2003): small, and the same on all machines.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % bound
    }

    fn one_in(&mut self, chances: u64) -> bool {
        self.below(chances) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize].clone()
    }
}

/// Names with bytes on both sides of the slash.
const NAMES: [&str; 3] = ["a", "a-b", "a0"];

/// All paths of up to three of these names.
fn paths() -> Vec<NodePath> {
    let mut all = vec![NodePath::root()];
    let mut last = all.clone();
    for _ in 0..3 {
        last = last.iter().flat_map(|above| NAMES.map(|name| above.child(name).expect("a name"))).collect();
        all.extend(last.iter().cloned());
    }
    all
}

fn random_session(random: &mut Random) -> SessionId {
    SessionId(1 + random.below(6))
}

fn random_write_command(random: &mut Random, state: &State) -> Command {
    let write = random_write(random, state);
    let session = owner_of(&write, random, state).unwrap_or_else(|| random_session(random));
    let lowest = state.session(session).map_or(1, |session| session.unanswered_from.0);
    let far = if random.one_in(20) { State::ANSWERS_MAX } else { 0 };
    let sequence = Sequence((lowest + far + random.below(8)).saturating_sub(1));
    let intended = if random.one_in(8) { IntendedLeases::default() } else { state.intended(session, &write) };
    let consented = match random.below(3) {
        0 => everything(),
        1 => vec![],
        _ => state.footprint(session, &write, &intended).unwrap_or_default(),
    };
    let attached_through = Revision(state.revision().0.saturating_sub(random.below(3)));
    let unanswered_from = Sequence(lowest + random.below(3));
    Command::Write { session, sequence, unanswered_from, write, consented, intended, attached_through }
}

fn random_lease(random: &mut Random, state: &State) -> Option<Renewal> {
    let leases: Vec<&AnyLease> = state.leases().map(|(key, _)| key).collect();
    if leases.is_empty() {
        return None;
    }
    let lease = random.pick(&leases).clone();
    let mut incarnation = state.lease(&lease)?.incarnation;
    if random.one_in(6) {
        incarnation = incarnation.next();
    }
    let renewed_at = state.cluster_time().before(Duration::from_millis(random.below(3000)));
    Some(Renewal { lease, incarnation, renewed_at })
}

fn random_command(random: &mut Random, state: &State) -> Command {
    match random.below(20) {
        0 | 1 => Command::OpenSession { name: "s".repeat(random.below(4) as usize) },
        2 if random.one_in(3) => Command::CloseSession { session: random_session(random) },
        3 if random.one_in(3) => Command::BeginEpoch { replica: 1, attempt: 1 },
        4..=6 => Command::AcquireVolume { session: random_session(random), path: random.pick(&paths()) },
        7 | 8 => {
            let count = random.below(4);
            Command::Tick { renewals: (0..count).filter_map(|_| random_lease(random, state)).collect() }
        }
        11 => Command::Purge { leases: state.orphans().collect() },
        9 | 10 => match random_lease(random, state) {
            None => Command::OpenSession { name: String::new() },
            Some(Renewal { lease, incarnation, .. }) => {
                let horizon = state.lease(&lease).map_or(ClusterTime::ZERO, |lease| lease.horizon);
                let horizon = horizon.after(Duration::from_micros(random.below(2)));
                Command::Expire { lease, incarnation, horizon }
            }
        },
        _ => random_write_command(random, state),
    }
}

fn random_proposal(random: &mut Random, state: &State) -> Proposal {
    let epoch = if random.one_in(20) { Epoch(state.epoch().0.saturating_sub(1)) } else { state.epoch() };
    let time = state.cluster_time().after(Duration::from_millis(random.below(800))).before(Duration::from_millis(100));
    let count = random.below(4);
    let commands = (0..count).map(|_| random_command(random, state)).collect();
    Proposal { epoch, number: 1, time, commands }
}

/// Runs random entries, and calls `check` after each.
fn runs(mut check: impl FnMut(&str, &mut Random, &State, &Proposal, &Applied, &Fixture)) {
    for seed in 1..=SEEDS {
        let mut random = Random::new(seed);
        let mut fixture = Fixture::new();
        for step in 0..STEPS {
            let before = fixture.state.clone();
            let proposal = random_proposal(&mut random, &before);
            let applied = fixture.apply(&proposal);
            let place = format!("seed {seed}, step {step}: {proposal:?}");
            check(&place, &mut random, &before, &proposal, &applied, &fixture);
        }
    }
}

#[test]
fn touched_rows_are_all_changes_and_rows_are_the_state() {
    runs(|place, _, before, proposal, applied, fixture| {
        assert_eq!(State::from_rows(fixture.rows.clone()).as_ref(), Ok(&fixture.state), "{place}");
        assert!(fixture.state.rows().eq(fixture.rows.clone()), "{place}");
        assert_eq!(applied.outcomes.len(), proposal.commands.len(), "{place}");
        let mut restored = State::from_rows(before.rows()).expect("the rows of a state");
        let reapplied = restored.apply(fixture.state.applied_index(), proposal);
        assert_eq!(
            (&reapplied, &restored),
            (applied, &fixture.state),
            "a restored replica gives the same outcomes: {place}"
        );
    });
}

#[test]
fn clocks_counters_and_horizons_never_go_back() {
    runs(|place, _, before, _, _, fixture| {
        let (old, new) = (&before.meta, &fixture.state.meta);
        assert!(old.cluster_time <= new.cluster_time && old.revision <= new.revision, "{place}");
        assert!(old.next_session <= new.next_session && old.next_incarnation <= new.next_incarnation, "{place}");
        assert!(old.epoch <= new.epoch && old.compacted_through <= new.compacted_through, "{place}");
        for (key, lease) in before.leases() {
            if let Some(now) = fixture.state.lease(key).filter(|now| now.incarnation == lease.incarnation) {
                assert!(lease.horizon <= now.horizon, "{key:?}, {place}");
            }
        }
    });
}

/// The visible content of an object, and the volume and generation on which a copy would depend.
fn seen(state: &State, object: &Object) -> (Content, NodePath, VolumeGeneration) {
    let (top, volume) = state.volume_of(&object.path);
    (state.content(object), top.clone(), volume.generation)
}

fn objects() -> Vec<Object> {
    paths().into_iter().flat_map(|path| [Object::data(path.clone()), Object::children(path)]).collect()
}

#[test]
fn a_footprint_is_exactly_what_a_write_changes() {
    let objects = objects();
    for seed in 1..=SEEDS {
        let mut random = Random::new(seed);
        let mut fixture = Fixture::new();
        let session = fixture.open();
        for step in 0..STEPS {
            if step % 40 == 0 {
                fixture.run(Command::AcquireVolume { session, path: random.pick(&paths()) });
            }
            let before = fixture.state.clone();
            let write = random_write(&mut random, &before);
            let place = format!("seed {seed}, step {step}: {write:?}");
            let intended = before.intended(session, &write);
            let footprint =
                before.footprint(session, &write, &intended).and_then(|sets| before.check_quota(&write).map(|()| sets));
            let footprint = footprint.map(|sets| [sets, carried(&before, &write)].concat());
            let sequence = fixture.next_sequence(session);
            let consented = footprint.clone().unwrap_or_default();
            let command = Command::Write {
                session,
                sequence,
                unanswered_from: sequence,
                write: write.clone(),
                consented,
                intended,
                attached_through: Revision(u64::MAX),
            };
            let write_leased = before.blocking_write_leases(&write, footprint.as_deref().unwrap_or_default());
            let is_cache = matches!(write, Write::TakeWriteLease { .. });
            let outcome = fixture.run(command);
            let changed: BTreeSet<&Object> =
                objects.iter().filter(|object| seen(&before, object) != seen(&fixture.state, object)).collect();
            match (outcome, footprint) {
                (Outcome::MissingConsents, _) if !write_leased.is_empty() => assert_eq!(changed.len(), 0, "{place}"),
                // `TakeWriteLease` changes nothing, but has a footprint.
                (Outcome::Written(Ok(written)), Ok(_)) if is_cache => {
                    assert_eq!((written.revision, changed.len()), (before.revision(), 0), "{place}");
                }
                (Outcome::Written(Err(names)), Err(expected)) => {
                    assert_eq!((names, changed.len()), (expected, 0), "{place}");
                }
                (Outcome::Written(Ok(written)), Ok(sets)) => {
                    let is_change = !sets.is_empty();
                    let revision = if is_change { before.revision().next() } else { before.revision() };
                    assert_eq!(written.revision, revision, "{place}");
                    assert_changed(&changed, &sets, &place);
                    assert_revisions_moved(&before, &fixture.state, &changed, &place);
                }
                other => panic!("{other:?}, {place}"),
            }
        }
    }
}

/// The objects that change with the revoked lease's nodes.
fn carried(state: &State, write: &Write) -> Vec<ObjectSet> {
    let revoked = state.revoked_lease(write).map(AnyLease::KeyLease);
    let lease = revoked.and_then(|key| state.lease(&key)).map(|lease| lease.incarnation);
    let Some(lease) = lease else { return Vec::new() };
    let nodes =
        state.attached_nodes(lease).flat_map(|path| [Object::data(path.clone()), Object::children(path.clone())]);
    let lists = state.attached_parent_counts(lease).into_keys().map(Object::children);
    nodes.chain(lists).map(ObjectSet::One).collect()
}

/// Checks three facts. Each changed object is in a set. The object of each single-object set
/// changed. The top of each subtree changed.
fn assert_changed(changed: &BTreeSet<&Object>, sets: &[ObjectSet], place: &str) {
    for object in changed {
        assert!(sets.iter().any(|set| set.contains(object)), "{object} changed and is not in {sets:?}, {place}");
    }
    for set in sets {
        let named = match set {
            ObjectSet::One(object) => object.clone(),
            ObjectSet::Subtree(top) => Object::data(top.clone()),
        };
        assert!(changed.contains(&named), "{named} is in {sets:?} and did not change, {place}");
    }
}

/// Checks the basis of validation: a copy with the object's revision is current.
fn assert_revisions_moved(before: &State, after: &State, changed: &BTreeSet<&Object>, place: &str) {
    for object in changed {
        if before.content(object) != after.content(object) {
            let (old, new) = (before.modify_revision(object), after.modify_revision(object));
            assert!(old != new && new.is_none_or(|new| new == after.revision()), "{object}: {old:?} {new:?}, {place}");
        }
        assert_eq!(after.modify_revision(object), after.content(object).modify_revision(), "{object}, {place}");
    }
}

#[test]
fn children_are_the_nodes_with_this_parent() {
    runs(|place, random, _, _, _, fixture| {
        let path = random.pick(&paths());
        let expected: Option<BTreeSet<String>> = fixture.state.node(&path).map(|_| {
            let nodes = fixture.state.nodes_from(&NodePath::root());
            nodes
                .filter(|(at, _)| at.parent().as_ref() == Some(&path))
                .filter_map(|(at, _)| at.name().map(str::to_owned))
                .collect()
        });
        let names = fixture.state.children(&path).map(|children| children.names);
        assert_eq!(names, expected.map(|names| names.into_iter().collect()), "{path}, {place}");
    });
}

#[test]
fn changed_sets_suffice_to_revive_copies() {
    let objects = objects();
    for seed in 1..=SEEDS {
        let mut random = Random::new(seed);
        let mut fixture = Fixture::new();
        let session = fixture.open();
        let mut past = vec![fixture.state.clone()];
        for step in 0..STEPS {
            let write = random_write(&mut random, &fixture.state);
            let sequence = fixture.next_sequence(session);
            let (consented, intended) = (everything(), fixture.state.intended(session, &write));
            fixture.run(Command::Write {
                session,
                sequence,
                unanswered_from: sequence,
                write,
                consented,
                intended,
                attached_through: Revision(u64::MAX),
            });
            let then = random.pick(&past);
            let top = random.pick(&paths());
            let changed = fixture.state.changed_since(then.revision(), &top).expect("the history reaches back");
            assert!(changed.is_sorted_by(|one, other| one < other), "each once");
            let differs =
                |object: &&Object| top.contains(&object.path) && seen(&then, object) != seen(&fixture.state, object);
            for object in objects.iter().filter(differs) {
                let is_reported = changed.iter().any(|set| set.contains(object));
                assert!(is_reported, "{object} changed since {} , seed {seed}, step {step}", then.revision());
            }
            // The case of a returning session that had copies in this volume.
            let made = |state: &State| state.volume(&top).map(|volume| volume.generation);
            if made(&then).is_some() && made(&then) == made(&fixture.state) {
                let changed = fixture.state.changed_in_volume(&top, then.revision()).expect("the history reaches back");
                let changed: Vec<&ObjectSet> = changed.collect();
                let read = State::from_rows(fixture.state.rows()).expect("the rows are the state");
                let reapplied: Vec<&ObjectSet> =
                    read.changed_in_volume(&top, then.revision()).expect("as far").collect();
                for object in objects.iter().filter(differs).filter(|object| then.volume_of(&object.path).0 == &top) {
                    for changed in [&changed, &reapplied] {
                        let is_reported = changed.iter().any(|set| set.contains(object));
                        assert!(is_reported, "{object} of {top} since {}, seed {seed}, step {step}", then.revision());
                    }
                }
            }
            past.push(fixture.state.clone());
        }
    }
}

/// Applies the events to a mirror of the tree.
fn mirror(nodes: &mut BTreeMap<NodePath, Data>, changes: Vec<Change>, place: &str) {
    for Change { revision, events } in changes {
        assert!(!events.is_empty(), "{place}");
        for Event { path, kind, reason } in events.iter().cloned() {
            match kind {
                EventKind::Put(data) => {
                    assert_eq!(
                        (data.stat.modify_revision, reason),
                        (revision, ChangeReason::Request),
                        "{path}, {place}"
                    );
                    let above = path.parent().is_none_or(|above| nodes.contains_key(&above));
                    assert!(above, "{path} is reported before its parent, {place}");
                    nodes.insert(path, data);
                }
                EventKind::Delete => {
                    assert!(nodes.remove(&path).is_some(), "{path} is removed and did not exist, {place}");
                    let is_below = |other: &NodePath| path.contains(other);
                    assert!(!nodes.keys().any(is_below), "{path} is reported before its descendants, {place}");
                }
            }
        }
    }
}

#[test]
fn watched_events_rebuild_the_tree() {
    let bounds = |random: &mut Random| ScanBounds {
        bytes: [1, 300, usize::MAX][random.below(3) as usize],
        events: [1, 8, usize::MAX][random.below(3) as usize],
    };
    let everything = WatchScope::Subtree(NodePath::root());
    for seed in 1..=SEEDS {
        let mut random = Random::new(seed);
        let mut fixture = Fixture::new();
        let (mut nodes, mut through) = (BTreeMap::new(), Revision(0));
        nodes.extend(fixture.state.data(&NodePath::root()).map(|root| (NodePath::root(), root)));
        for step in 0..STEPS {
            let before = fixture.state.clone();
            fixture.apply(&random_proposal(&mut random, &before));
            let place = format!("seed {seed}, step {step}");
            while random.one_in(2) || step == STEPS - 1 {
                let HistoryScan::Found { found, .. } =
                    fixture.state.scan_after(through, &everything, bounds(&mut random))
                else {
                    panic!("no change is compacted, {place}")
                };
                mirror(&mut nodes, found.changes, &place);
                if found.through == through {
                    assert_eq!(through, fixture.state.revision(), "{place}");
                    break;
                }
                through = found.through;
            }
        }
        let there = fixture.state.nodes_from(&NodePath::root());
        let there: BTreeMap<NodePath, Data> =
            there.map(|(path, node)| (path.clone(), Data { value: node.value.clone(), stat: node.stat() })).collect();
        assert_eq!(nodes, there, "seed {seed}");
    }
}

#[test]
fn narrow_watch_reports_the_matching_events_of_a_wide_one() {
    let bounds = ScanBounds { bytes: usize::MAX, events: usize::MAX };
    runs(|place, random, _, _, _, fixture| {
        let watched = match random.below(2) {
            0 => WatchScope::Node(random.pick(&paths())),
            _ => WatchScope::Subtree(random.pick(&paths())),
        };
        let after = Revision(random.below(fixture.state.revision().0 + 1));
        let scan = |watched: &WatchScope| match fixture.state.scan_after(after, watched, bounds) {
            HistoryScan::Found { found, .. } => found,
            HistoryScan::Compacted(earliest_after) => panic!("compacted up to {earliest_after}, {place}"),
        };
        let mut all = scan(&WatchScope::Subtree(NodePath::root()));
        for change in &mut all.changes {
            change.events = change.events.iter().filter(|event| watched.includes(&event.path)).cloned().collect();
        }
        all.changes.retain(|change| !change.events.is_empty());
        assert_eq!(scan(&watched), all, "{watched:?} after {after}, {place}");
    });
}

#[test]
fn damaged_rows_are_an_error_or_a_sound_state_and_never_a_panic() {
    runs(|_, random, _, _, _, fixture| {
        let mut rows: Vec<_> = fixture.rows.clone().into_iter().collect();
        let place = random.below(rows.len() as u64) as usize;
        let (key, value) = &mut rows[place];
        let bytes = if random.one_in(3) { key } else { value };
        match random.below(3) {
            0 => bytes.truncate(random.below(bytes.len() as u64 + 1) as usize),
            1 => bytes.push(random.below(256) as u8),
            _ if bytes.is_empty() => {}
            _ => {
                let at = random.below(bytes.len() as u64) as usize;
                bytes[at] = random.below(256) as u8;
            }
        }
        if let Ok(state) = State::from_rows(rows) {
            assert_eq!(state.check(), Ok(()));
        }
    });
}
