//! The events of one change, shared by all its watchers.
//!
//! A change may have more than 60,000 events, and thousands of watchers. A watcher of everything
//! gets the stored events themselves, not a copy. A watcher of a part gets a copy of that part,
//! which it finds without a look at the other events (S10b in docs/PROTOCOL.md).

use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{
    change::{Event, WatchScope},
    path::NodePath,
    work::visit,
};

/// Up to this many events are searched one by one.
const FEW_EVENTS: usize = 8;

/// The events of a change. As bytes, they are a list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ChangeEvents {
    all: Arc<[Event]>,
    /// The places of the events, in the order of their paths. Empty if there are few events.
    by_path: Box<[u32]>,
    weight: usize,
}

impl ChangeEvents {
    pub(super) fn new(all: Arc<[Event]>) -> Self {
        let mut by_path: Vec<u32> = Vec::new();
        if all.len() > FEW_EVENTS {
            by_path.extend((0_u32..).take(all.len()));
            // Usually the events are in the order of paths, or in the opposite order. Then this is
            // one pass.
            by_path.sort_by(|one, other| all[*one as usize].path.cmp(&all[*other as usize].path));
        }
        let weight = all.iter().map(Event::weight).sum();
        Self { all, by_path: by_path.into(), weight }
    }

    pub(super) fn all(&self) -> &[Event] {
        &self.all
    }

    /// The weight of all events, in bytes.
    pub(super) fn weight(&self) -> usize {
        self.weight
    }

    /// The watched events in order, and their weight in bytes.
    pub(super) fn within(&self, watched: &WatchScope) -> (Arc<[Event]>, usize) {
        visit(1);
        let found = self.places_within(watched);
        if found.len() == self.all.len() {
            return (Arc::clone(&self.all), self.weight);
        }
        visit(found.len());
        let events: Arc<[Event]> = found.into_iter().map(|place| self.all[place as usize].clone()).collect();
        let weight = events.iter().map(Event::weight).sum();
        (events, weight)
    }

    /// The places of the watched events, in order.
    fn places_within(&self, watched: &WatchScope) -> Vec<u32> {
        if self.by_path.is_empty() {
            let places = (0_u32..).zip(self.all.iter());
            return places.filter(|(_, event)| watched.includes(&event.path)).map(|(place, _)| place).collect();
        }
        let path = watched.path();
        let (own, below): (&[u32], &[u32]) = match watched {
            WatchScope::Node(_) => (self.at(path), &[]),
            // The root and all others.
            WatchScope::Subtree(_) if path.is_root() => (&self.by_path, &[]),
            WatchScope::Subtree(_) => (self.at(path), self.between(&path.bound_below(), &path.bound_after())),
        };
        let mut places: Vec<u32> = own.iter().chain(below).copied().collect();
        places.sort_unstable();
        places
    }

    /// The places of the events at this path.
    fn at(&self, path: &NodePath) -> &[u32] {
        let places = &self.by_path[self.first_from(path)..];
        &places[..places.partition_point(|place| self.all[*place as usize].path == *path)]
    }

    /// The places of the events whose paths are in this range, without its end.
    fn between(&self, from: &NodePath, to: &NodePath) -> &[u32] {
        &self.by_path[self.first_from(from)..self.first_from(to)]
    }

    fn first_from(&self, path: &NodePath) -> usize {
        self.by_path.partition_point(|place| self.all[*place as usize].path < *path)
    }
}

impl Serialize for ChangeEvents {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.all.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for ChangeEvents {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Arc::deserialize(deserializer).map(Self::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        change::{ChangeReason, EventKind},
        path::NodePath,
    };

    fn events(paths: &[&str]) -> ChangeEvents {
        let event = |text: &&str| Event {
            path: NodePath::parse(text).expect("a path"),
            kind: EventKind::Delete,
            reason: ChangeReason::Request,
        };
        ChangeEvents::new(paths.iter().map(event).collect())
    }

    #[test]
    fn watched_events_equal_those_of_a_search_one_by_one() {
        let few = ["/a/b", "/a", "/a-b", "/a/c"];
        // Steps of a transaction: twice at one path, and in no order.
        let many = ["/", "/a", "/a-b", "/a/b", "/a/b/c", "/a0", "/b", "/a/b", "/a", "/c/d/e", "/a/b/0", "/a/a"];
        for events in [events(&few), events(&many)] {
            for text in ["/", "/a", "/a/b", "/a-b", "/a/b/c", "/c", "/none", "/c/d/e"] {
                let path = NodePath::parse(text).expect("a path");
                for watched in [WatchScope::Node(path.clone()), WatchScope::Subtree(path)] {
                    let expected: Vec<Event> =
                        events.all().iter().filter(|event| watched.includes(&event.path)).cloned().collect();
                    let (found, weight) = events.within(&watched);
                    assert_eq!(*found, *expected, "{watched:?}");
                    assert_eq!(weight, expected.iter().map(Event::weight).sum::<usize>(), "{watched:?}");
                }
            }
        }
    }

    #[test]
    fn watchers_of_all_events_share_them() {
        let events = events(&["/a/9", "/a/8", "/a/7", "/a/6", "/a/5", "/a/4", "/a/3", "/a/2", "/a/1", "/a"]);
        for text in ["/", "/a"] {
            let watched = WatchScope::Subtree(NodePath::parse(text).expect("a path"));
            assert!(Arc::ptr_eq(&events.within(&watched).0, &events.all), "{text}");
        }
    }

    #[test]
    fn events_have_the_bytes_of_a_list() {
        let events = events(&["/a", "/b"]);
        let bytes = postcard::to_allocvec(&events).expect("plain data");
        assert_eq!(bytes, postcard::to_allocvec(&events.all().to_vec()).expect("plain data"));
        assert_eq!(postcard::from_bytes::<ChangeEvents>(&bytes), Ok(events));
    }
}
