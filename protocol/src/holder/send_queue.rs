//! Requests that are to be sent: as soon as there is a leader that the session has registered with,
//! or some time later because the server asked to try again.
//!
//! Each setback doubles the wait, between [`WAIT_MIN`] and [`WAIT_MAX`], spread over clients by a
//! number from outside.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use super::in_flight::Purpose;
use crate::{
    reached::{Bound, reached},
    time::Instant,
};

/// The wait after the first setback: about what an election's last steps or a full queue take to
/// clear.
const WAIT_MIN: Duration = Duration::from_millis(20);

/// The longest wait between two tries.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// What is to be sent, in order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct SendQueue {
    ready: VecDeque<Purpose>,
    later: BTreeSet<(Instant, Purpose)>,
    setbacks: BTreeMap<Purpose, Backoff>,
}

/// How often a request has been set back, and until when it waits, or waited last.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
struct Backoff {
    count: u32,
    until: Instant,
}

impl SendQueue {
    /// To be sent after all others that are ready.
    pub(super) fn push(&mut self, purpose: Purpose) {
        self.ready.push_back(purpose);
    }

    /// The next to be sent.
    pub(super) fn pop(&mut self) -> Option<Purpose> {
        self.ready.pop_front()
    }

    /// To be sent after a wait that doubles with each setback.
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

    /// What it waited for has come: it is ready now, if it waits.
    pub(super) fn hasten(&mut self, purpose: &Purpose) {
        let Some(setbacks) = self.setbacks.get(purpose) else { return };
        if let Some((_, purpose)) = self.later.take(&(setbacks.until, purpose.clone())) {
            self.ready.push_back(purpose);
        }
    }

    /// The request has got its answer, or nobody wants it any more: its setbacks are forgotten.
    pub(super) fn settle(&mut self, purpose: &Purpose) {
        self.setbacks.remove(purpose);
    }

    /// Makes ready what has waited long enough.
    pub(super) fn wake(&mut self, now: Instant) {
        while self.later.first().is_some_and(|(at, _)| *at <= now) {
            self.ready.extend(self.later.pop_first().map(|(_, purpose)| purpose));
        }
    }

    /// Makes everything ready, whatever it waited for: there is another server to ask.
    pub(super) fn wake_all(&mut self) {
        self.ready.extend(std::mem::take(&mut self.later).into_iter().map(|(_, purpose)| purpose));
        self.setbacks.clear();
    }

    /// Takes out what opens or registers a session: it is built anew when it is sent.
    pub(super) fn drop_greetings(&mut self) {
        self.ready.retain(|purpose| !matches!(purpose, Purpose::Open | Purpose::Register));
    }

    /// When the next one has waited long enough.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        self.later.first().map(|(at, _)| *at)
    }

    /// Everything that is to be sent.
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
