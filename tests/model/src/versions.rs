//! Judges reads: which contents a read may return (linearizability, Herlihy and Wing 1990; issues
//! etcd 19091, 20704, 20418).
//!
//! All contents that an object has had are known. An answer to a write, or a value read, shows that
//! a client has seen everything up to some version. A read that begins later must return that
//! version or a later one.

use std::collections::BTreeMap;

use leasehold_protocol::{
    id::Revision,
    object::{Content, Object},
    state::State,
};

/// The committed contents of some objects, and which of them clients have seen. A version of an
/// object is named by its place among all of them.
#[derive(Debug, Clone, Hash)]
pub struct Versions {
    contents: BTreeMap<Object, Vec<Content>>,
    /// For each object, the latest version that a client has seen.
    seen: BTreeMap<Object, usize>,
    /// The versions of all objects after the entry of each change.
    after: BTreeMap<Revision, BTreeMap<Object, usize>>,
}

impl Versions {
    /// The versions of these objects, beginning with their present contents.
    pub fn new(truth: &State, objects: &[Object]) -> Self {
        let first = |object: &Object| (object.clone(), vec![truth.content(object)]);
        let seen = objects.iter().map(|object| (object.clone(), 0)).collect();
        Self { contents: objects.iter().map(first).collect(), seen, after: BTreeMap::new() }
    }

    /// An entry was committed: this is the state after it.
    pub fn commit(&mut self, truth: &State) {
        for (object, contents) in &mut self.contents {
            let content = truth.content(object);
            if contents.last() != Some(&content) {
                contents.push(content);
            }
        }
    }

    /// The last entry made this change. A client that hears of the change has seen the entry.
    pub fn changed(&mut self, revision: Revision) {
        if !self.after.contains_key(&revision) {
            self.after.insert(revision, self.latest());
        }
    }

    /// The latest version of each object.
    pub fn latest(&self) -> BTreeMap<Object, usize> {
        let last = |(object, contents): (&Object, &Vec<Content>)| (object.clone(), contents.len().saturating_sub(1));
        self.contents.iter().map(last).collect()
    }

    /// All objects, each with its contents.
    pub fn all(&self) -> impl ExactSizeIterator<Item = (&Object, &[Content])> {
        self.contents.iter().map(|(object, contents)| (object, &contents[..]))
    }

    /// The oldest version that a read beginning now may return.
    pub fn begin_read(&self, object: &Object) -> usize {
        self.seen.get(object).copied().unwrap_or_default()
    }

    /// A read that must see the version `begun` or a later one returned this content. Of versions
    /// with equal contents, the oldest that fits counts.
    pub fn end_read(&mut self, object: &Object, begun: usize, content: &Content) -> Result<(), String> {
        let Some(contents) = self.contents.get(object) else { return Ok(()) };
        let Some(found) = contents.iter().skip(begun).position(|version| version == content) else {
            let expected = contents.get(begun..).unwrap_or_default();
            return Err(format!("stale read of {object}: {content:?}, expected one of {expected:?}"));
        };
        self.saw(object.clone(), begun + found);
        Ok(())
    }

    /// A client heard that this change, and so every earlier one, was made.
    pub fn acknowledged(&mut self, revision: Revision) {
        for (object, version) in self.after.get(&revision).cloned().unwrap_or_default() {
            self.saw(object, version);
        }
    }

    fn saw(&mut self, object: Object, version: usize) {
        let seen = self.seen.entry(object).or_default();
        *seen = version.max(*seen);
    }
}
