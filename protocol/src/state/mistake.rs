//! A planted mistake in test builds. It is not part of the state, so it is neither compared nor
//! stored.

use std::hash::{Hash, Hasher};

use super::State;
use crate::{
    command::Write,
    object::{Object, ObjectKind, ObjectSet},
    planted::{Bug, Planted},
};

/// The planted mistakes. All values are equal, so that states are compared without them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mistake(Planted);

impl Mistake {
    pub(super) fn is(self, bug: Bug) -> bool {
        self.0.has(bug)
    }

    /// The footprint of a write, without the objects that a planted mistake omits.
    pub(super) fn narrow(self, write: &Write, mut sets: Vec<ObjectSet>) -> Vec<ObjectSet> {
        let Some(top) = write.path() else { return sets };
        let own = || [Object::data(top.clone()), Object::children(top.clone())].map(ObjectSet::One);
        let is_list_above =
            |set: &ObjectSet| matches!(set, ObjectSet::One(Object { path, kind: ObjectKind::Children }) if path != top);
        match write {
            Write::Put { .. } if self.is(Bug::CreateSparesAbsence) && sets.len() > 1 => {
                sets.retain(|set| !own().contains(set));
            }
            Write::Put { .. } if self.is(Bug::CreateSparesChildren) => sets.retain(|set| !is_list_above(set)),
            Write::Delete { .. } if self.is(Bug::DeleteSparesChildren) => sets.retain(|set| !is_list_above(set)),
            Write::Delete { .. } if self.is(Bug::DeleteSparesDescendants) => {
                sets.retain(is_list_above);
                sets.extend(own());
            }
            Write::CreateVolume { .. } if self.is(Bug::VolumeMadeWithoutRecall) => sets.retain(is_list_above),
            Write::RemoveVolume { .. } if self.is(Bug::VolumeRemovedWithoutRecall) => sets.clear(),
            _ => {}
        }
        sets
    }
}

impl PartialEq for Mistake {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for Mistake {}

impl Hash for Mistake {
    fn hash<H: Hasher>(&self, _hasher: &mut H) {}
}

impl State {
    /// Plants a mistake, so that a test can show that it is found.
    #[cfg(any(test, feature = "planted-bugs"))]
    pub fn plant(&mut self, planted: Planted) {
        self.mistake = Mistake(planted);
    }
}
