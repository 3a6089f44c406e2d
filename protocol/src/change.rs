//! Changes and their events, which watches report.
//!
//! A [`Change`] is the effect of one revision. A watch reports all of its events in its
//! [`WatchScope`] together, or none.
//!
//! # The order of events in a change
//!
//! The order is the same on every replica and for every watcher:
//!
//! - Puts come in the order of paths. So a node comes after its ancestors that were made by the
//!   same change.
//! - Removals come in the opposite order. So a node comes after all nodes below it.
//! - If a change has several steps, the events come step by step. The steps are the operations of a
//!   transaction, in the order of their paths, or the leases whose nodes one purge removes.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{id::Revision, object::Data, path::NodePath};

/// The effect of one revision.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Change {
    /// Its position in the order of all changes.
    pub revision: Revision,
    /// The events, in order. Never empty in a report, because watches do not report changes without
    /// events, such as new settings of a volume. Shared, because a change may have many watchers
    /// and many events.
    pub events: Arc<[Event]>,
}

/// The effect of a change on one node.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Event {
    /// The node.
    pub path: NodePath,
    /// The kind of the event, with the data of a put.
    pub kind: EventKind,
    /// The reason for the event.
    pub reason: ChangeReason,
}

/// The kind of an event.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum EventKind {
    /// The node was made or written, and now has this data. An ancestor that a put made has its own
    /// event.
    Put(Data),
    /// The node was removed.
    Delete,
}

/// The reason for an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ChangeReason {
    /// A client requested the change.
    Request,
    /// The lease to which the node was attached has expired.
    Expired,
    /// The lease to which the node was attached was revoked, or its session was closed.
    Revoked,
}

impl Event {
    /// An upper bound of the event's size on the wire, in bytes.
    pub(crate) fn weight(&self) -> usize {
        let own = match &self.kind {
            EventKind::Put(data) => PUT_BYTES_MAX + data.value.len(),
            EventKind::Delete => DELETE_BYTES_MAX,
        };
        own + self.path.as_str().len()
    }
}

/// The most bytes of a put without its path and value: lengths, numbers and an owner.
const PUT_BYTES_MAX: usize = 80;
/// The most bytes of a removal without its path.
const DELETE_BYTES_MAX: usize = 16;

/// The scope of a watch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum WatchScope {
    /// Changes of this node.
    Node(NodePath),
    /// Changes of this node and of all nodes below it.
    Subtree(NodePath),
}

impl WatchScope {
    /// The node, or the top of the subtree.
    pub fn path(&self) -> &NodePath {
        match self {
            Self::Node(path) | Self::Subtree(path) => path,
        }
    }

    /// Whether the watch reports events of the node.
    pub fn includes(&self, path: &NodePath) -> bool {
        match self {
            Self::Node(node) => node == path,
            Self::Subtree(top) => top.contains(path),
        }
    }
}

/// One report of a watch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Changes {
    /// Changes within the scope, in order. Each has all its events within the scope.
    pub changes: Vec<Change>,
    /// The progress mark: all changes up to this revision have been reported. The watch can be
    /// resumed from here.
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
