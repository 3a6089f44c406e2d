//! Volumes, and the volume of each node (S8 in docs/PROTOCOL.md).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{State, below};
use crate::{
    command::LeaseKey,
    id::{Revision, SessionId, VolumeGeneration},
    path::NodePath,
    volume::VolumeSettings,
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
        self.volume_lease_holders = self.leases.keys().filter_map(volume_lease_holder).collect();
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

    /// The sessions with a lease on the volume.
    pub(super) fn lease_holders_on(&self, top: &NodePath) -> impl Iterator<Item = SessionId> {
        let range = (top.clone(), SessionId(0))..=(top.clone(), SessionId(u64::MAX));
        self.volume_lease_holders.range(range).counted().map(|(_, session)| *session)
    }

    /// Checks the data that is derived from volumes and volume leases.
    pub(super) fn check_volume_index(&self) -> Result<(), String> {
        if self.tick_counts != self.ticks_of_volumes() || self.tick != self.shortest_tick() {
            return Err(format!(
                "the tick is {:?}: expected the shortest tick of the volumes, {:?}",
                self.tick, self.tick_counts
            ));
        }
        if !self.leases.keys().filter_map(volume_lease_holder).collect::<BTreeSet<_>>().eq(&self.volume_lease_holders) {
            return Err("the index of volume leases does not match the leases".to_owned());
        }
        self.check_volume_uses()
    }
}

/// The volume and the session of a volume lease.
pub(super) fn volume_lease_holder(lease: &LeaseKey) -> Option<(NodePath, SessionId)> {
    match lease {
        LeaseKey::Volume(session, top) => Some((top.clone(), *session)),
        LeaseKey::Session(_) | LeaseKey::Key(_) | LeaseKey::LockDelay(_) => None,
    }
}

/// The nearest volume at or above the path.
pub(super) fn volume_of<'a>(
    volumes: &'a BTreeMap<NodePath, VolumeRecord>,
    path: &NodePath,
) -> (&'a NodePath, &'a VolumeRecord) {
    let mut text = path.as_str();
    loop {
        if let Some(found) = volumes.get_key_value(text) {
            return found;
        }
        text = match text.rfind('/') {
            Some(end) if end > 0 => &text[..end],
            _ => break,
        };
    }
    volumes.first_key_value().expect("the root is always a volume, and the first one")
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::*, *};
    use crate::{
        command::{Write, WriteRefusal},
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
}
