//! Volumes: which there are, and which one a node belongs to.

use std::{collections::BTreeMap, time::Duration};

use serde::{Deserialize, Serialize};

use super::{State, below};
use crate::{
    id::{Generation, Revision},
    path::Path,
    volume::VolumeSettings,
};

/// One volume. Its top is its key.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Volume {
    /// What it promises.
    pub settings: VolumeSettings,
    /// The generation that it was made with: distinguishes it from those of the same name that come later (S7b). A change of
    /// the volume leaves it as it is.
    pub made: Generation,
    /// Grows with each change of the volume, and is never used again for this top, even if the volume is removed and
    /// made anew: it follows from the revision of the change.
    pub generation: Generation,
}

impl Volume {
    /// A volume as it is from `revision` on. The root, made at revision 0, begins with generation 1.
    pub(super) fn new(settings: VolumeSettings, revision: Revision) -> Self {
        let generation = Generation(revision.0 + 1);
        Self { settings, made: generation, generation }
    }
}

impl State {
    /// The volume that the node at `path` belongs to, and its top: the nearest at or above it. The node need not exist.
    pub fn volume_of(&self, path: &Path) -> (&Path, &Volume) {
        volume_of(&self.volumes, path)
    }

    /// The volume with this top.
    pub fn volume(&self, top: &Path) -> Option<&Volume> {
        self.volumes.get(top)
    }

    /// The volumes whose top is `path` or lies below it, in the order of paths.
    pub fn volumes_below<'a>(&'a self, path: &Path) -> impl Iterator<Item = (&'a Path, &'a Volume)> + use<'a> {
        self.volumes.get_key_value(path).into_iter().chain(below(&self.volumes, path))
    }

    /// How often horizons move: a tenth of the shortest volume term (T6).
    pub fn tick(&self) -> Duration {
        self.tick
    }

    pub(super) fn shortest_tick(&self) -> Duration {
        self.volumes.values().map(|volume| volume.settings.tick()).min().unwrap_or_default()
    }
}

/// The nearest volume at or above the path.
pub(super) fn volume_of<'a>(volumes: &'a BTreeMap<Path, Volume>, path: &Path) -> (&'a Path, &'a Volume) {
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
    volumes.first_key_value().expect("the root always is a volume, and comes before all others")
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::*, *};
    use crate::command::{Write, WriteRefusal};

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
        assert_eq!(fixture.state.tick(), Duration::from_secs(1));
        fixture.write(session, create_volume("/b", 1)).expect("new");
        fixture.write(session, Write::RemoveVolume { path: path("/b") }).expect("a volume");
        assert_eq!(fixture.state.tick(), Duration::from_secs(1));
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
        fixture.write(session, create_volume("/a", 5)).expect("new again");
        assert!(fixture.state.volume_of(&path("/a")).1.generation > first);
        assert_eq!(
            fixture.write(session, create_volume("/a", 5)),
            Err(WriteRefusal::VolumeExists { path: path("/a") })
        );
    }
}
