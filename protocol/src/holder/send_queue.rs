//! The requests to send. Some are ready as soon as the session is registered with a leader. The
//! others wait, because the server asked for a retry.
//!
//! Each setback of a request doubles its wait, from [`WAIT_MIN`] to [`WAIT_MAX`]. A number from the
//! configuration spreads the waits of different clients.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
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

/// The requests to send, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct SendQueue {
    ready: VecDeque<Purpose>,
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
        self.ready.push_back(purpose);
    }

    pub(super) fn pop(&mut self) -> Option<Purpose> {
        self.ready.pop_front()
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
            self.ready.push_back(purpose);
        }
    }

    /// Forgets the setbacks of a request that was answered or cancelled.
    pub(super) fn settle(&mut self, purpose: &Purpose) {
        self.setbacks.remove(purpose);
    }

    /// Makes requests ready whose wait has ended.
    pub(super) fn wake(&mut self, now: Instant) {
        while self.later.first().is_some_and(|(at, _)| *at <= now) {
            self.ready.extend(self.later.pop_first().map(|(_, purpose)| purpose));
        }
    }

    /// Makes all requests ready, because there is another server to ask.
    pub(super) fn wake_all(&mut self) {
        self.ready.extend(std::mem::take(&mut self.later).into_iter().map(|(_, purpose)| purpose));
        self.setbacks.clear();
    }

    /// Removes requests that open or register a session. The holder builds them again to send them.
    pub(super) fn drop_greetings(&mut self) {
        self.ready.retain(|purpose| !matches!(purpose, Purpose::Open | Purpose::Register));
    }

    /// When the next wait ends.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.later.first().map(|(at, _)| *at)
    }

    /// All requests, ready or waiting.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Purpose> {
        self.ready.iter().chain(self.later.iter().map(|(_, purpose)| purpose))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
