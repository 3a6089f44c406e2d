//! Events in virtual time.

use std::collections::BTreeMap;

/// Events to come, in the order of their times. Events of one time come in the order in which they
/// were added.
#[derive(Debug)]
pub struct EventQueue<T, E> {
    events: BTreeMap<(T, u64), E>,
    added: u64,
}

impl<T, E> Default for EventQueue<T, E> {
    fn default() -> Self {
        Self { events: BTreeMap::new(), added: 0 }
    }
}

impl<T: Ord + Copy, E> EventQueue<T, E> {
    /// Adds an event at a time.
    pub fn add(&mut self, at: T, event: E) {
        self.added += 1;
        self.events.insert((at, self.added), event);
    }

    /// The time of the next event.
    pub fn next_at(&self) -> Option<T> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the next event, with its time.
    pub fn pop(&mut self) -> Option<(T, E)> {
        self.events.pop_first().map(|((at, _), event)| (at, event))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_one_time_keep_their_order() {
        let mut queue = EventQueue::default();
        for (at, event) in [(2, 'c'), (1, 'a'), (2, 'd'), (1, 'b')] {
            queue.add(at, event);
        }
        assert_eq!(queue.next_at(), Some(1));
        assert_eq!(std::iter::from_fn(|| queue.pop()).collect::<Vec<_>>(), [(1, 'a'), (1, 'b'), (2, 'c'), (2, 'd')]);
        assert_eq!(queue.next_at(), None);
    }
}
