//! Writes: which objects they change, and how.
//!
//! A write first has its [footprint](State::footprint) taken, which is all the thinking; carrying it out then cannot
//! fail. Consents are gathered for the footprint (S2), and the history remembers it.
//!
//! # Why a volume's making, change and removal is a write to everything that it covers
//!
//! A copy is valid by two leases, and which volume lease that is, how long it lasts and what margin the server waits
//! after it, all follow from the volume that the object belongs to when the copy is granted (S8). So:
//!
//! - *Making* a volume moves all nodes in it from one volume to another. A copy granted before hangs on a lease on the
//!   old volume, which from then on nobody waits for when the node is written.
//! - *Changing* a volume changes how long a write waits. Copies granted under a longer term or a smaller margin must be
//!   gone before the server counts by the new numbers.
//! - *Removing* a volume moves the nodes back, and ends the leases on it. Nobody must be using them then.
//!
//! Each of these recalls the whole subtree, volumes inside it too, and a new generation keeps what was granted under
//! the old one from being taken for good.

use std::collections::BTreeSet;

use super::{RowKey, State, Volume};
use crate::{
    command::{Condition, Write, WriteRefusal, Written},
    id::Revision,
    object::{Object, ObjectSet, Stat, Value},
    path::Path,
    volume::VolumeSettings,
};

impl State {
    /// Exactly the objects that the write would change if it were applied now.
    ///
    /// For a subtree, that is each object in it: whether one inside differs afterwards is not looked at.
    ///
    /// # Errors
    ///
    /// [`WriteRefusal`] if the write would be refused.
    pub fn footprint(&self, write: &Write) -> Result<Vec<ObjectSet>, WriteRefusal> {
        match write {
            Write::Put {
                path, condition, ..
            } => self.put_footprint(path, *condition),
            Write::Delete {
                path,
                recursive,
                condition,
            } => self.delete_footprint(path, *recursive, *condition),
            Write::CreateVolume { path, .. } => self.create_volume_footprint(path),
            Write::SetVolume { path, .. } => {
                self.expect_volume(path)?;
                Ok(vec![ObjectSet::Subtree(path.clone())])
            }
            Write::RemoveVolume { path } => {
                if path.is_root() {
                    return Err(WriteRefusal::Root { path: path.clone() });
                }
                self.expect_volume(path)?;
                Ok(vec![ObjectSet::Subtree(path.clone())])
            }
        }
    }

    fn put_footprint(
        &self,
        path: &Path,
        condition: Condition,
    ) -> Result<Vec<ObjectSet>, WriteRefusal> {
        self.check_condition(path, condition)?;
        let mut sets = vec![ObjectSet::One(Object::data(path.clone()))];
        if !self.nodes.contains_key(path) {
            sets.push(ObjectSet::One(Object::children(path.clone())));
            self.add_parents_made(path, &mut sets);
        }
        Ok(sets)
    }

    fn delete_footprint(
        &self,
        path: &Path,
        recursive: bool,
        condition: Condition,
    ) -> Result<Vec<ObjectSet>, WriteRefusal> {
        let Some(node) = self.nodes.get(path) else {
            return Err(WriteRefusal::NotFound { path: path.clone() });
        };
        let Some(parent) = path.parent() else {
            return Err(WriteRefusal::Root { path: path.clone() });
        };
        if node.child_count > 0 && !recursive {
            return Err(WriteRefusal::HasChildren {
                path: path.clone(),
                children: node.child_count,
            });
        }
        self.check_condition(path, condition)?;
        if let Some((volume, _)) = self.volumes_below(path).next() {
            return Err(WriteRefusal::HoldsVolume {
                path: path.clone(),
                volume: volume.clone(),
            });
        }
        let siblings = ObjectSet::One(Object::children(parent));
        if node.child_count > 0 {
            return Ok(vec![ObjectSet::Subtree(path.clone()), siblings]);
        }
        let own = [Object::data(path.clone()), Object::children(path.clone())].map(ObjectSet::One);
        Ok(own.into_iter().chain([siblings]).collect())
    }

    fn create_volume_footprint(&self, path: &Path) -> Result<Vec<ObjectSet>, WriteRefusal> {
        if self.volumes.contains_key(path) {
            return Err(WriteRefusal::VolumeExists { path: path.clone() });
        }
        let mut sets = vec![ObjectSet::Subtree(path.clone())];
        if !self.nodes.contains_key(path) {
            self.add_parents_made(path, &mut sets);
        }
        Ok(sets)
    }

    /// Adds what changes above a node that is made: the nodes made with it, and the list in which the topmost appears.
    fn add_parents_made(&self, path: &Path, sets: &mut Vec<ObjectSet>) {
        for ancestor in path.ancestors() {
            let is_made = !self.nodes.contains_key(&ancestor);
            sets.push(ObjectSet::One(Object::children(ancestor.clone())));
            if !is_made {
                return;
            }
            sets.push(ObjectSet::One(Object::data(ancestor)));
        }
    }

    fn check_condition(&self, path: &Path, condition: Condition) -> Result<(), WriteRefusal> {
        match (condition, self.nodes.get(path)) {
            (Condition::Any, _) | (Condition::Absent, None) => Ok(()),
            (Condition::Absent, Some(node)) => Err(WriteRefusal::Exists {
                path: path.clone(),
                create_revision: node.create_revision,
            }),
            (Condition::Revision(_), None) => Err(WriteRefusal::NotFound { path: path.clone() }),
            (Condition::Revision(expected), Some(node)) if node.modify_revision == expected => {
                Ok(())
            }
            (Condition::Revision(expected), Some(node)) => Err(WriteRefusal::RevisionDiffers {
                path: path.clone(),
                got: node.modify_revision,
                expected,
            }),
        }
    }

    fn expect_volume(&self, path: &Path) -> Result<(), WriteRefusal> {
        if self.volumes.contains_key(path) {
            return Ok(());
        }
        let (volume, _) = self.volume_of(path);
        Err(WriteRefusal::NotAVolume {
            path: path.clone(),
            volume: volume.clone(),
        })
    }

    /// Carries out a write that is not refused. `sets` is its footprint.
    pub(super) fn write(
        &mut self,
        write: &Write,
        sets: Vec<ObjectSet>,
        touched: &mut BTreeSet<RowKey>,
    ) -> Written {
        let revision = self.meta.revision.next();
        self.meta.revision = revision;
        let mut written = Written {
            revision,
            stat: None,
            removed: 0,
        };
        match write {
            Write::Put { path, value, .. } => {
                written.stat = Some(self.put(path, value, revision, touched))
            }
            Write::Delete { path, .. } => {
                written.removed = self.remove_nodes(path, revision, touched)
            }
            Write::CreateVolume { path, settings } => {
                if !self.nodes.contains_key(path) {
                    self.make_node(path, Value::new(), revision, touched);
                }
                self.set_volume(path, Some(*settings), revision, touched);
            }
            Write::SetVolume { path, settings } => {
                self.set_volume(path, Some(*settings), revision, touched)
            }
            Write::RemoveVolume { path } => {
                self.set_volume(path, None, revision, touched);
                self.remove_leases_on(path, touched);
            }
        }
        self.note_change(sets, touched);
        written
    }

    fn put(
        &mut self,
        path: &Path,
        value: &Value,
        revision: Revision,
        touched: &mut BTreeSet<RowKey>,
    ) -> Stat {
        if let Some(node) = self.nodes.get_mut(path) {
            node.set_value(value.clone(), revision);
            touched.insert(RowKey::Node(path.clone()));
            return node.stat();
        }
        self.make_node(path, value.clone(), revision, touched);
        super::Node::new(value.clone(), revision).stat()
    }

    fn set_volume(
        &mut self,
        top: &Path,
        settings: Option<VolumeSettings>,
        revision: Revision,
        touched: &mut BTreeSet<RowKey>,
    ) {
        match settings {
            Some(settings) => self
                .volumes
                .insert(top.clone(), Volume::new(settings, revision)),
            None => self.volumes.remove(top),
        };
        self.tick = self.shortest_tick();
        touched.insert(RowKey::Volume(top.clone()));
    }
}
