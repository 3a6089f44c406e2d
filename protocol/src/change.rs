//! What watchers are told: changes, and the events that each is made of.
//!
//! A [`Change`] is what happened at one revision. It is told whole or not at all, but for the
//! events outside of what is [`Watched`].
//!
//! # The order of events in a change
//!
//! It is the same on every replica and for every watcher. What is put comes in the order of paths,
//! and so a node after the nodes above it that were made with it. What is removed comes in the
//! opposite order, and so a node after all that lay below it. A change that is made of several
//! steps has the events of each step in the order of the steps.

use serde::{Deserialize, Serialize};

use crate::{id::Revision, object::Data, path::NodePath};

/// What happened at one revision.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Change {
    /// Its place in the order of all changes.
    pub revision: Revision,
    /// What happened, in order. Never empty when it is told: a change without events, as of a
    /// volume's settings, is told to nobody.
    pub events: Vec<Event>,
}

/// What happened to one node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Event {
    /// The node.
    pub path: NodePath,
    /// What happened to it.
    pub kind: EventKind,
    /// Why.
    pub reason: ChangeReason,
}

/// What happened to a node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EventKind {
    /// It was made or written, and is this now. A node that was made because one below it was has
    /// an event of its own.
    Put(Data),
    /// It was removed.
    Delete,
}

/// Why something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ChangeReason {
    /// Somebody asked for it.
    Request,
    /// The lease that the node went with was over.
    Expired,
    /// The lease that the node went with was ended on purpose: it was revoked, or its session was
    /// closed.
    Revoked,
}

impl Event {
    /// About how many bytes it takes on the wire, never less than it does.
    pub(crate) fn weight(&self) -> usize {
        let own = match &self.kind {
            EventKind::Put(data) => PUT_BYTES_MAX + data.value.len(),
            EventKind::Delete => DELETE_BYTES_MAX,
        };
        own + self.path.as_str().len()
    }
}

/// What a put takes beside its path and value, at most: lengths, numbers and an owner.
const PUT_BYTES_MAX: usize = 80;
/// What a removal takes beside its path, at most.
const DELETE_BYTES_MAX: usize = 16;

/// What a watcher wants to hear of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Watched {
    /// What happens to this node.
    Node(NodePath),
    /// What happens to this node and to all below it.
    Subtree(NodePath),
}

impl Watched {
    /// The node, or the topmost.
    pub fn path(&self) -> &NodePath {
        match self {
            Self::Node(path) | Self::Subtree(path) => path,
        }
    }

    /// Whether it is heard of when something happens to the node.
    pub fn includes(&self, path: &NodePath) -> bool {
        match self {
            Self::Node(node) => node == path,
            Self::Subtree(top) => top.contains(path),
        }
    }
}

/// What a watcher is told at one time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Changes {
    /// Changes of what is watched, in order, each whole.
    pub changes: Vec<Change>,
    /// Everything has been told up to this revision: the progress mark, from which the watch can be
    /// resumed.
    pub through: Revision,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        id::LeaseId,
        object::{NodeOwner, Stat, Value},
    };

    #[test]
    fn no_event_takes_more_bytes_than_it_weighs() {
        let revision = Revision(u64::MAX);
        let owner = Some(NodeOwner::Lease(LeaseId(u64::MAX)));
        let stat = |value_len| Stat {
            create_revision: revision,
            modify_revision: revision,
            version: u64::MAX,
            value_len,
            owner,
        };
        let put = |length: usize| EventKind::Put(Data { value: Value::from(vec![7; length]), stat: stat(u64::MAX) });
        for kind in [EventKind::Delete, put(0), put(300), put(1 << 20)] {
            let path = NodePath::parse(&format!("/{}", "x".repeat(200))).expect("a path");
            let event = Event { path, kind, reason: ChangeReason::Revoked };
            let bytes = postcard::to_allocvec(&event).expect("plain data").len();
            assert!(bytes <= event.weight(), "{bytes} bytes: expected at most {}", event.weight());
        }
    }
}
