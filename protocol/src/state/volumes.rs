//! Volumes, and the volume of each node (S8 in docs/PROTOCOL.md).

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{State, below};
use crate::{
    command::AnyLease,
    id::{Revision, SessionId, VolumeGeneration},
    path::NodePath,
    volume::{VolumeSettings, VolumeTerm},
    work::CountVisits,
};

/// One volume. The key of its record is its top.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VolumeRecord {
    /// The settings.
    pub settings: VolumeSettings,
    /// The generation of its creation. It distinguishes the volume from later volumes with the same
    /// top (S7b). Changes of the volume do not alter it.
    pub create_generation: VolumeGeneration,
    /// The present generation. It derives from the revision of the volume's last change. So it
    /// grows, and is never reused for this top, even if the volume is removed and created again.
    pub generation: VolumeGeneration,
}

impl VolumeRecord {
    /// A volume created at `revision`. The root, created at revision 0, has generation 1.
    pub(super) fn new(settings: VolumeSettings, revision: Revision) -> Self {
        let generation = VolumeGeneration(revision.0 + 1);
        Self { settings, create_generation: generation, generation }
    }
}

impl State {
    /// The top and the record of the nearest volume at or above `path`. The node need not exist.
    pub fn volume_of(&self, path: &NodePath) -> (&NodePath, &VolumeRecord) {
        volume_of(&self.volumes, path)
    }

    /// The volume with this top.
    pub fn volume(&self, top: &NodePath) -> Option<&VolumeRecord> {
        self.volumes.get(top)
    }

    /// The volumes with tops at or below `path`, in the order of paths.
    pub fn volumes_below<'a>(
        &'a self,
        path: &NodePath,
    ) -> impl Iterator<Item = (&'a NodePath, &'a VolumeRecord)> + use<'a> {
        self.volumes.get_key_value(path).into_iter().chain(below(&self.volumes, path)).counted()
    }

    /// The present term of leases on this volume. It depends on their number if the volume adapts
    /// its term.
    pub fn volume_term(&self, top: &NodePath, settings: &VolumeSettings) -> Duration {
        match settings.term() {
            VolumeTerm::Fixed(term) => term,
            adaptive @ VolumeTerm::Adaptive { .. } => adaptive.for_leases(self.leases_on(top)),
        }
    }

    fn leases_on(&self, top: &NodePath) -> u64 {
        self.volume_lease_holders.get(top).map_or(0, |holders| holders.len() as u64)
    }

    /// The interval of ticks: a tenth of the shortest volume term, at most [`TICK_MAX`] (T6).
    ///
    /// [`TICK_MAX`]: crate::volume::TICK_MAX
    pub fn tick(&self) -> Duration {
        self.tick
    }

    /// Builds the counts of nodes, and the indexes of ticks and of volume leases, for a state that
    /// was read from rows.
    pub(super) fn index_volumes(&mut self) {
        self.volume_uses = self.count_volume_uses();
        self.tick_counts = self.ticks_of_volumes();
        self.tick = self.shortest_tick();
        self.volume_lease_holders = self.holders_of_volumes();
    }

    /// Replaces a volume's tick in the index.
    pub(super) fn replace_tick(&mut self, before: Option<Duration>, now: Option<Duration>) {
        if let Some(now) = now {
            *self.tick_counts.entry(now).or_default() += 1;
        }
        if let Some(before) = before
            && let Some(count) = self.tick_counts.get_mut(&before)
        {
            *count -= 1;
            if *count == 0 {
                self.tick_counts.remove(&before);
            }
        }
        self.tick = self.shortest_tick();
    }

    fn shortest_tick(&self) -> Duration {
        self.tick_counts.first_key_value().map(|(tick, _)| *tick).unwrap_or_default()
    }

    fn ticks_of_volumes(&self) -> BTreeMap<Duration, usize> {
        let mut ticks = BTreeMap::new();
        for volume in self.volumes.values() {
            *ticks.entry(volume.settings.tick()).or_default() += 1;
        }
        ticks
    }

    fn holders_of_volumes(&self) -> BTreeMap<NodePath, BTreeSet<SessionId>> {
        let mut holders: BTreeMap<NodePath, BTreeSet<SessionId>> = BTreeMap::new();
        for (top, session) in self.leases.keys().filter_map(volume_lease_holder) {
            holders.entry(top.clone()).or_default().insert(session);
        }
        holders
    }

    /// Adds a lease to the index, if it is a lease on a volume.
    pub(super) fn note_volume_lease(&mut self, key: &AnyLease) {
        if let Some((top, session)) = volume_lease_holder(key) {
            self.volume_lease_holders.entry(top.clone()).or_default().insert(session);
        }
    }

    /// Removes a lease from the index, if it is a lease on a volume.
    pub(super) fn forget_volume_lease(&mut self, key: &AnyLease) {
        if let Some((top, session)) = volume_lease_holder(key)
            && let Some(holders) = self.volume_lease_holders.get_mut(top)
        {
            holders.remove(&session);
            if holders.is_empty() {
                self.volume_lease_holders.remove(top);
            }
        }
    }

    /// The sessions with a lease on the volume.
    pub(super) fn lease_holders_on(&self, top: &NodePath) -> impl Iterator<Item = SessionId> {
        self.volume_lease_holders.get(top).into_iter().flat_map(|holders| holders.iter().counted().copied())
    }

    /// Checks the data that is derived from volumes and volume leases.
    pub(super) fn check_volume_index(&self) -> Result<(), String> {
        if self.tick_counts != self.ticks_of_volumes() || self.tick != self.shortest_tick() {
            return Err(format!(
                "the tick is {:?}: expected the shortest tick of the volumes, {:?}",
                self.tick, self.tick_counts
            ));
        }
        if self.holders_of_volumes() != self.volume_lease_holders {
            return Err("the index of volume leases does not match the leases".to_owned());
        }
        self.check_volume_uses()
    }
}

/// The volume and the session of a volume lease.
fn volume_lease_holder(lease: &AnyLease) -> Option<(&NodePath, SessionId)> {
    match lease {
        AnyLease::Volume(session, top) => Some((top, *session)),
        AnyLease::Session(_) | AnyLease::KeyLease(_) | AnyLease::LockDelay(_) => None,
    }
}

/// The nearest volume at or above the path.
///
/// Volumes at and above the path sort before the path's descendants. So the last volume that does
/// not sort after the path is the nearest, or lies beside the path. Usually this takes one look-up,
/// and at most one for each component.
pub(super) fn volume_of<'a>(
    volumes: &'a BTreeMap<NodePath, VolumeRecord>,
    path: &NodePath,
) -> (&'a NodePath, &'a VolumeRecord) {
    let mut text = path.as_str();
    loop {
        let up_to = (Bound::Unbounded, Bound::Included(text));
        let last = volumes.range::<str, _>(up_to).next_back();
        let (top, volume) = last.expect("the root is always a volume, and the first one");
        if top.contains(path) {
            return (top, volume);
        }
        // This volume lies beside the path. A volume above the path is a prefix of the path, and no
        // longer than what the path and this volume have in common.
        let common = top.as_str().bytes().zip(text.bytes()).take_while(|(one, other)| one == other).count();
        text = match text.as_bytes()[..=common].iter().rposition(|byte| *byte == b'/') {
            Some(end) if end > 0 => &text[..end],
            _ => "/",
        };
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::*, *};
    use crate::{
        command::{Command, Renewal, Write, WriteRefusal},
        time::{ClusterTime, DriftAllowance},
        volume::TICK_MAX,
    };

    #[test]
    fn a_node_belongs_to_the_nearest_volume_at_or_above_it() {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        for top in ["/a", "/a/b/c"] {
            fixture.write(session, create_volume(top, 5)).expect("new");
        }
        let volume = |at: &str| fixture.state.volume_of(&path(at)).0.to_string();
        assert_eq!(volume("/"), "/");
        assert_eq!(volume("/x/y"), "/");
        assert_eq!(volume("/a"), "/a");
        assert_eq!(volume("/ab"), "/");
        assert_eq!(volume("/a/b/d"), "/a");
        assert_eq!(volume("/a/b/c/d/e"), "/a/b/c", "whether or not the node exists");
        let below = |at: &str| -> Vec<String> {
            fixture.state.volumes_below(&path(at)).map(|(top, _)| top.to_string()).collect()
        };
        assert_eq!(below("/"), ["/", "/a", "/a/b/c"]);
        assert_eq!(below("/a"), ["/a", "/a/b/c"]);
        assert_eq!(below("/a/b"), ["/a/b/c"]);
    }

    #[test]
    fn volume_of_each_path_is_the_longest_above_it() {
        // "a-" sorts between "a" and the nodes below "a".
        let names = ["a", "a-", "a0", "é", "ê"];
        let below = |path: &NodePath| names.map(|name| path.child(name).expect("valid"));
        let two: Vec<NodePath> = below(&NodePath::root())
            .iter()
            .flat_map(|one| [&below(one)[..], std::slice::from_ref(one)].concat())
            .collect();
        let all: Vec<NodePath> =
            two.iter().flat_map(|two| [&below(two)[..], std::slice::from_ref(two)].concat()).collect();
        let record = VolumeRecord::new(VolumeSettings::DEFAULT, Revision(0));
        for step in 1..40 {
            let tops = std::iter::once(NodePath::root()).chain(all.iter().step_by(step).cloned());
            let volumes: BTreeMap<_, _> = tops.map(|top| (top, record.clone())).collect();
            for path in &all {
                let above = volumes.keys().filter(|top| top.contains(path));
                let expected = above.max_by_key(|top| top.as_str().len());
                assert_eq!(Some(volume_of(&volumes, path).0), expected, "{path} with every {step}th");
            }
        }
    }

    #[test]
    fn the_tick_follows_the_shortest_term() {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        fixture.write(session, create_volume("/a", 2)).expect("new");
        assert_eq!(fixture.state.tick(), Duration::from_millis(200));
        let longer = Write::SetVolume { path: path("/a"), settings: settings(Duration::from_secs(20)) };
        fixture.write(session, longer).expect("a volume");
        assert_eq!(fixture.state.tick(), TICK_MAX, "of 10 s and 20 s");
        fixture.write(session, create_volume("/b", 1)).expect("new");
        fixture.write(session, Write::RemoveVolume { path: path("/b") }).expect("a volume");
        assert_eq!(fixture.state.tick(), TICK_MAX);
    }

    #[test]
    fn a_generation_is_never_used_again_for_the_same_top() {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        let root = fixture.state.volume_of(&path("/")).1.generation;
        let same = Write::SetVolume { path: path("/"), settings: VolumeSettings::DEFAULT };
        fixture.write(session, same).expect("a volume");
        assert!(fixture.state.volume_of(&path("/")).1.generation > root);

        fixture.write(session, create_volume("/a", 5)).expect("new");
        let first = fixture.state.volume_of(&path("/a")).1.generation;
        fixture.write(session, Write::RemoveVolume { path: path("/a") }).expect("a volume");
        fixture.write(session, create_volume("/a", 5)).expect("the volume is new");
        assert!(fixture.state.volume_of(&path("/a")).1.generation > first);
        assert_eq!(
            fixture.write(session, create_volume("/a", 5)),
            Err(WriteRefusal::VolumeExists { path: path("/a") })
        );
    }

    /// 1 renewal in a second, between 2 s and 5 s.
    fn adaptive() -> VolumeSettings {
        let (least, most) = (Duration::from_secs(2), Duration::from_secs(5));
        let term = VolumeTerm::Adaptive { least, most, renewals_per_second: 1 };
        let usual = settings(most);
        VolumeSettings::new(term, usual.object_term(), usual.skew_margin(), usual.tracking(), DriftAllowance::DEFAULT)
            .expect("valid")
    }

    #[test]
    fn term_grows_and_shrinks_with_the_leases_on_the_volume() {
        let mut fixture = Fixture::new();
        let writer = fixture.open();
        fixture.write(writer, Write::CreateVolume { path: path("/v"), settings: adaptive() }).expect("new");
        let term = |fixture: &Fixture| fixture.state.volume_term(&path("/v"), &adaptive()).as_secs();
        let mut terms = vec![term(&fixture)];
        let sessions: Vec<SessionId> = (0..7).map(|_| fixture.open()).collect();
        for session in &sessions {
            fixture.acquire(*session, "/v");
            terms.push(term(&fixture));
        }
        assert_eq!(terms, [2, 2, 2, 3, 4, 5, 5, 5]);
        fixture.acquire(sessions[0], "/v");
        fixture.acquire(writer, "/");
        assert_eq!(term(&fixture), 5, "a lease acquired again, and one on another volume, do not count");
        for (session, expected) in sessions.iter().zip([5, 5, 4, 3, 2, 2, 2]) {
            fixture.run(Command::CloseSession { session: *session });
            assert_eq!(term(&fixture), expected);
        }
    }

    #[test]
    fn renewed_lease_gets_the_present_term_and_no_nearer_horizon() {
        let mut fixture = Fixture::new();
        let writer = fixture.open();
        fixture.write(writer, Write::CreateVolume { path: path("/v"), settings: adaptive() }).expect("new");
        let sessions: Vec<SessionId> = (0..5).map(|_| fixture.open()).collect();
        for session in &sessions {
            fixture.acquire(*session, "/v");
        }
        let key = AnyLease::Volume(sessions[0], path("/v"));
        let renew = |fixture: &mut Fixture| {
            let incarnation = fixture.state.lease(&key).expect("a lease").incarnation;
            let renewal = Renewal { lease: key.clone(), incarnation, renewed_at: fixture.time };
            fixture.run(Command::Tick { renewals: vec![renewal] });
            let lease = fixture.state.lease(&key).expect("a lease");
            (lease.term().as_secs(), lease.horizon)
        };
        let after = |base: ClusterTime, millis| base.after(Duration::from_millis(millis));
        // The tick is a tenth of the shortest term.
        assert_eq!(renew(&mut fixture), (5, after(ClusterTime::ZERO, 5_200)));
        for session in &sessions[1..] {
            fixture.run(Command::CloseSession { session: *session });
        }
        fixture.time = seconds(1);
        assert_eq!(renew(&mut fixture), (2, after(ClusterTime::ZERO, 5_200)), "5 s were promised");
        fixture.time = seconds(4);
        assert_eq!(renew(&mut fixture), (2, after(ClusterTime::ZERO, 6_200)));
    }
}
