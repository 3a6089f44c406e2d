//! Parts of a situation: shared until they change, and hashed once.
//!
//! An action changes one or two parts of a situation. The others share memory, and their hashes are
//! known. Hashes have 128 bits. With a hundred million situations, the chance that any two have
//! equal hashes is below 10⁻²².

use std::{
    hash::{Hash, Hasher},
    ops::Deref,
    sync::Arc,
};

use siphasher::sip128::{Hasher128, SipHasher13};

/// The hash of a value.
pub(crate) fn fingerprint(of: &impl Hash) -> u128 {
    let mut hasher = SipHasher13::new();
    of.hash(&mut hasher);
    hasher.finish128().as_u128()
}

/// A part with its hash.
#[derive(Debug, Clone)]
pub(crate) struct Part<T> {
    value: Arc<T>,
    mark: u128,
    is_sealed: bool,
}

impl<T: Clone + Hash> Part<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Arc::new(value), mark: 0, is_sealed: false }
    }

    /// The part, for a change. Seal it before its situation is hashed.
    pub(crate) fn change(&mut self) -> &mut T {
        self.is_sealed = false;
        Arc::make_mut(&mut self.value)
    }

    /// Hashes the part if it was changed.
    pub(crate) fn seal(&mut self) {
        if !self.is_sealed {
            self.mark = fingerprint(&*self.value);
            self.is_sealed = true;
        }
    }
}

impl<T> Deref for Part<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> Hash for Part<T> {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        assert!(self.is_sealed, "a part is hashed that was changed and not sealed");
        self.mark.hash(hasher);
    }
}
