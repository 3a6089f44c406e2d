//! A known mistake put back in test builds. No part of the state: it is neither compared nor stored.

use std::hash::{Hash, Hasher};

use super::State;
use crate::planted::{Bug, Planted};

/// Equal to any other.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Mistake(Planted);

impl Mistake {
    pub(super) fn is(self, bug: Bug) -> bool {
        self.0.has(bug)
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
    /// Puts a known mistake back, to see that tests find it.
    #[cfg(feature = "planted-bugs")]
    pub fn plant(&mut self, planted: Planted) {
        self.mistake = Mistake(planted);
    }
}
