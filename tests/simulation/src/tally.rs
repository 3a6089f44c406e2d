//! How often things happened: a simulator in which nothing happens finds nothing.

use std::collections::BTreeMap;

/// Counts by name.
#[derive(Debug, Default, Clone)]
pub struct Tally(pub BTreeMap<&'static str, u64>);

impl Tally {
    pub(crate) fn add(&mut self, name: &'static str) {
        self.add_many(name, 1);
    }

    pub(crate) fn add_many(&mut self, name: &'static str, count: u64) {
        if count > 0 {
            *self.0.entry(name).or_default() += count;
        }
    }

    /// Adds what another has counted.
    pub fn merge(&mut self, other: &Tally) {
        for (name, count) in &other.0 {
            *self.0.entry(name).or_default() += count;
        }
    }
}
