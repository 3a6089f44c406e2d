//! The requests to send. Some are ready as soon as the session is registered with a leader. The
//! others wait, because the server asked for a retry.
//!
//! Each setback of a request doubles its wait, from [`WAIT_MIN`] to [`WAIT_MAX`]. A number from the
//! configuration spreads the waits of different clients.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    time::Duration,
};

use super::in_flight::Purpose;
use crate::{
    reached::{Bound, reached},
    time::Instant,
};

/// The wait after the first setback: about the time in which an election ends or a full queue
/// empties.
const WAIT_MIN: Duration = Duration::from_millis(20);

/// The longest wait between two attempts, before it is spread.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// The requests that open or register a session.
const GREETINGS: [Purpose; 2] = [Purpose::Open, Purpose::Register];

/// The requests to send, in order. Each is ready at most once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct SendQueue {
    /// The ready requests, in the order in which they became ready.
    ready: BTreeMap<u64, Purpose>,
    /// The position of each ready request.
    positions: BTreeMap<Purpose, u64>,
    /// The last position that was given; 0 if no request is ready.
    last_position: u64,
    later: BTreeSet<(Instant, Purpose)>,
    setbacks: BTreeMap<Purpose, Backoff>,
}

/// How often a request was set back, and when its present or last wait ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Backoff {
    count: u32,
    until: Instant,
}

impl SendQueue {
    /// Queues a request behind all that are ready.
    pub(super) fn push(&mut self, purpose: Purpose) {
        if let Entry::Vacant(entry) = self.positions.entry(purpose) {
            self.last_position += 1;
            self.ready.insert(self.last_position, entry.key().clone());
            entry.insert(self.last_position);
        }
    }

    pub(super) fn pop(&mut self) -> Option<Purpose> {
        let (_, purpose) = self.ready.pop_first()?;
        self.positions.remove(&purpose);
        self.restart_positions();
        Some(purpose)
    }

    fn restart_positions(&mut self) {
        if self.ready.is_empty() {
            self.last_position = 0;
        }
    }

    /// Queues a request after a wait that doubles with each setback.
    pub(super) fn postpone(&mut self, purpose: Purpose, spread_permille: u16, now: Instant) {
        let setbacks = self.setbacks.entry(purpose.clone()).or_default();
        let wait = WAIT_MIN * (1 << setbacks.count.min(10));
        if wait > WAIT_MAX {
            reached(Bound::WaitMax);
        }
        let wait = wait.min(WAIT_MAX);
        setbacks.count += 1;
        let wait = wait * (1000 + u32::from(spread_permille)) / 1000;
        setbacks.until = now.after(wait);
        self.later.insert((setbacks.until, purpose));
    }

    /// Makes a waiting request ready, because it need not wait any longer.
    pub(super) fn hasten(&mut self, purpose: &Purpose) {
        let Some(setbacks) = self.setbacks.get(purpose) else { return };
        if let Some((_, purpose)) = self.later.take(&(setbacks.until, purpose.clone())) {
            self.push(purpose);
        }
    }

    /// Forgets the setbacks of a request that was answered, or that has ended without a sending.
    pub(super) fn settle(&mut self, purpose: &Purpose) {
        self.setbacks.remove(purpose);
    }

    /// Removes a request, ready or waiting. While no server answers, an application may cancel any
    /// number of them.
    pub(super) fn cancel(&mut self, purpose: &Purpose) {
        if let Some(setbacks) = self.setbacks.remove(purpose) {
            self.later.remove(&(setbacks.until, purpose.clone()));
        }
        if let Some(position) = self.positions.remove(purpose) {
            self.ready.remove(&position);
            self.restart_positions();
        }
    }

    /// Removes all reads, writes and watches, because they have ended.
    pub(super) fn cancel_operations(&mut self) {
        let is_operation =
            |purpose: &&Purpose| matches!(purpose, Purpose::Read(_) | Purpose::Write(_) | Purpose::Watch(_));
        let operations: Vec<Purpose> = self.iter().filter(is_operation).cloned().collect();
        operations.iter().for_each(|purpose| self.cancel(purpose));
    }

    /// Makes requests ready whose wait has ended.
    pub(super) fn wake(&mut self, now: Instant) {
        while self.later.first().is_some_and(|(at, _)| *at <= now) {
            if let Some((_, purpose)) = self.later.pop_first() {
                self.push(purpose);
            }
        }
    }

    /// Makes all requests ready, because there is another server to ask.
    pub(super) fn wake_all(&mut self) {
        std::mem::take(&mut self.later).into_iter().for_each(|(_, purpose)| self.push(purpose));
        self.setbacks.clear();
    }

    /// Removes the ready requests that open or register a session. The holder then sends a new one
    /// (`greet`).
    pub(super) fn drop_greetings(&mut self) {
        for greeting in GREETINGS {
            if let Some(position) = self.positions.remove(&greeting) {
                self.ready.remove(&position);
            }
        }
        self.restart_positions();
    }

    /// Whether a request that opens or registers a session is ready or waits.
    pub(super) fn has_greeting(&self) -> bool {
        GREETINGS.iter().any(|greeting| self.contains(greeting))
    }

    /// Whether the request is ready or waits.
    pub(super) fn contains(&self, purpose: &Purpose) -> bool {
        let until = self.setbacks.get(purpose).map(|setbacks| setbacks.until);
        let waits = until.is_some_and(|until| self.later.contains(&(until, purpose.clone())));
        waits || self.positions.contains_key(purpose)
    }

    /// The requests that were set back.
    pub(super) fn set_back(&self) -> impl Iterator<Item = &Purpose> {
        self.setbacks.keys()
    }

    /// When the next wait ends.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.later.first().map(|(at, _)| *at)
    }

    /// All requests, ready or waiting.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Purpose> {
        self.ready.values().chain(self.later.iter().map(|(_, purpose)| purpose))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holder::WatchId;

    #[test]
    fn waits_are_spread_over_clients_from_once_to_twice_as_long() {
        let mut queue = SendQueue::default();
        let waits = [0, 500, 1000].map(|spread| {
            queue.wake_all();
            queue.postpone(Purpose::Open, spread, Instant::ZERO);
            queue.next_wake().map(|at| at.since(Instant::ZERO))
        });
        assert_eq!(waits, [WAIT_MIN, WAIT_MIN * 3 / 2, WAIT_MIN * 2].map(Some));
    }

    #[test]
    fn cancelled_requests_leave_nothing() {
        let mut queue = SendQueue::default();
        let watch = |id| Purpose::Watch(WatchId(id));
        (1..=3).for_each(|id| queue.push(watch(id)));
        queue.push(watch(1));
        queue.postpone(watch(4), 0, Instant::ZERO);
        assert_eq!(queue.iter().count(), 4, "each is queued once");
        queue.cancel(&watch(2));
        queue.cancel(&watch(4));
        assert!(!queue.contains(&watch(2)) && !queue.contains(&watch(4)) && queue.next_wake().is_none());
        queue.push(watch(2));
        assert_eq!([(); 4].map(|()| queue.pop()), [Some(watch(1)), Some(watch(3)), Some(watch(2)), None]);
        assert_eq!(queue, SendQueue::default());
    }
}
