//! Volumes: which there are, and which one a node belongs to.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{State, below};
use crate::{
    id::{Generation, Revision},
    path::Path,
    volume::VolumeSettings,
};

/// One volume. Its top is its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// What it promises.
    pub settings: VolumeSettings,
    /// Grows with each change of the volume, and is never used again for this top, even if the volume is removed and
    /// made anew: it follows from the revision of the change.
    pub generation: Generation,
}

impl Volume {
    /// A volume as it is from `revision` on. The root, made at revision 0, begins with generation 1.
    pub(super) fn new(settings: VolumeSettings, revision: Revision) -> Self {
        Self {
            settings,
            generation: Generation(revision.0 + 1),
        }
    }
}

impl State {
    /// The volume that the node at `path` belongs to, and its top: the nearest at or above it. The node need not exist.
    pub fn volume_of(&self, path: &Path) -> (&Path, &Volume) {
        let mut text = path.as_str();
        loop {
            if let Some(found) = self.volumes.get_key_value(text) {
                return found;
            }
            text = match text.rfind('/') {
                Some(end) if end > 0 => &text[..end],
                _ if text.len() > 1 => "/",
                _ => break,
            };
        }
        self.volumes
            .first_key_value()
            .expect("the root always is a volume")
    }

    /// The volume with this top.
    pub fn volume(&self, top: &Path) -> Option<&Volume> {
        self.volumes.get(top)
    }

    /// The volumes whose top is `path` or lies below it, in the order of paths.
    pub fn volumes_below<'a>(
        &'a self,
        path: &Path,
    ) -> impl Iterator<Item = (&'a Path, &'a Volume)> + use<'a> {
        self.volumes
            .get_key_value(path)
            .into_iter()
            .chain(below(&self.volumes, path))
    }

    /// How often horizons move: a tenth of the shortest volume term (T6).
    pub fn tick(&self) -> Duration {
        self.tick
    }

    pub(super) fn shortest_tick(&self) -> Duration {
        self.volumes
            .values()
            .map(|volume| volume.settings.tick())
            .min()
            .unwrap_or_default()
    }
}
