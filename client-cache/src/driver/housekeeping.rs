//! The timer, and the cache's house: what is done because time has passed.

use std::{sync::Arc, time::Duration};

use leasehold_protocol::holder::HolderInput;

use super::Driver;
use crate::clock;

/// The timer looks at the clock at least this often: it sleeps by a clock that stands still while
/// the machine is suspended, and after that its deadlines may be long past.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The cache's housekeeping is done this often at most, and at least once in [`LOOK_EVERY`].
const HOUSEKEEPING_EVERY: Duration = Duration::from_millis(250);

/// Objects that the policy is told to forget, or copies that are evicted, under one hold of the
/// lock: some hundred microseconds.
const HOUSEKEEPING_BATCH: usize = 64;

/// The timer sleeps at least this long: what it can measure.
const SLEEP_MIN: Duration = Duration::from_millis(1);

impl Driver {
    /// The timer: tells the rules the time when they want to know it, and keeps the cache's house.
    pub(crate) async fn run_timer(self: Arc<Self>) {
        let mut kept = clock::now();
        loop {
            let wait = self.set_timer();
            tokio::select! {
                () = self.closed.cancelled() => return,
                () = self.timer.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
            self.step_if_due();
            let now = clock::now();
            if now.since(kept) >= HOUSEKEEPING_EVERY {
                kept = now;
                self.housekeep();
            }
        }
    }

    fn set_timer(&self) -> Duration {
        let mut core = self.core.lock();
        let now = clock::now();
        let latest = now.after(LOOK_EVERY);
        core.timer_at = core.holder.next_deadline().map_or(latest, |deadline| deadline.min(latest));
        core.timer_at.since(now).max(SLEEP_MIN)
    }

    fn step_if_due(&self) {
        let mut core = self.core.lock();
        if core.holder.next_deadline().is_some_and(|deadline| deadline <= clock::now()) {
            let used = core.leases.take_used();
            self.step(&mut core, HolderInput::Timeout { used });
        }
    }

    /// Gives back what there is no room for.
    fn housekeep(&self) {
        loop {
            let mut core = self.core.lock();
            let count = core.forgotten.len().min(HOUSEKEEPING_BATCH);
            core.forgotten.drain(..count).for_each(|object| self.cache.forget(&object));
            if count < HOUSEKEEPING_BATCH {
                break;
            }
        }
        self.cache.housekeep();
        while self.evict_batch() {}
    }

    /// True if there may be more to evict.
    fn evict_batch(&self) -> bool {
        let mut core = self.core.lock();
        for _ in 0..HOUSEKEEPING_BATCH {
            let Some((object, stamp)) = self.cache.evict_next() else { return false };
            self.step(&mut core, HolderInput::Evicted { object, stamp });
        }
        true
    }
}
