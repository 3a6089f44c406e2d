//! The timer, the housekeeping of the cache, and its changes that wait for readers.

use std::{sync::Arc, time::Duration};

use leasehold_protocol::{
    holder::{HolderInput, validity::VolumeValidity},
    path::NodePath,
};

use super::{Driver, DriverCore};
use crate::clock;

/// The timer reads the clock at least this often. Its sleep does not count the time for which the
/// machine is suspended, so deadlines may be long past afterwards.
const CLOCK_READ_EVERY: Duration = Duration::from_secs(1);

/// The shortest time between two housekeepings of the cache. The longest is about
/// [`CLOCK_READ_EVERY`].
const HOUSEKEEPING_EVERY: Duration = Duration::from_millis(250);

/// How many dropped objects or evictions the driver handles before it unlocks the core: some
/// hundred microseconds.
const HOUSEKEEPING_BATCH: usize = 64;

/// How often the timer tries the waiting changes of the cache, while readers make room for them.
const WAITING_TRIES: usize = 64;

/// When the timer tries them again, if that was not enough.
pub(super) const WAITING_RETRY: Duration = Duration::from_millis(5);

/// The shortest sleep: the resolution of tokio's timer.
const SLEEP_MIN: Duration = Duration::from_millis(1);

impl Driver {
    /// Runs the timer: steps the rules when they are due, and does the housekeeping of the cache.
    pub(crate) async fn run_timer(self: Arc<Self>) {
        let mut kept = clock::now();
        loop {
            let wait = self.set_timer();
            tokio::select! {
                // Nobody retries later: free what readers have held up until now.
                () = self.closed.cancelled() => return self.finish_waiting(),
                () = self.timer.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
            self.step_if_due();
            self.finish_waiting();
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
        let has_waiting = self.cache.has_waiting();
        let latest = now.after(if has_waiting { WAITING_RETRY } else { CLOCK_READ_EVERY });
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

    /// Finishes changes of the cache that wait for readers. It never waits for readers while it has
    /// the core locked, nor for the core while the gate is closed.
    fn finish_waiting(&self) {
        if !self.cache.has_waiting() {
            return;
        }
        {
            let _core = self.core.lock();
            self.cache.try_waiting();
        }
        let _held = self.cache.hold_readers();
        for _ in 0..WAITING_TRIES {
            if let Some(_core) = self.core.try_lock() {
                self.cache.try_waiting();
            }
            if !self.cache.has_waiting() {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Notifies the policy of dropped copies, and evicts what exceeds the capacity.
    fn housekeep(&self) {
        loop {
            let mut core = self.core.lock();
            let count = core.unreported_drops.len().min(HOUSEKEEPING_BATCH);
            core.unreported_drops.drain(..count).for_each(|object| self.cache.forget(&object));
            if count < HOUSEKEEPING_BATCH {
                break;
            }
        }
        self.cache.housekeep();
        while self.evict_batch() {}
    }

    /// Returns true if there may be more to evict.
    fn evict_batch(&self) -> bool {
        let mut core = self.core.lock();
        for _ in 0..HOUSEKEEPING_BATCH {
            let Some((object, stamp)) = self.cache.evict_next() else { return false };
            self.step(&mut core, HolderInput::Evicted { object, stamp });
        }
        true
    }
}

impl DriverCore {
    /// Sets the validity of a volume's copies. If the rules have forgotten the volume, forgets its
    /// counters.
    pub(super) fn set_validity(&mut self, volume: &NodePath, validity: VolumeValidity) {
        self.leases.set(volume, validity);
        if self.holder.volume_of(volume) != *volume {
            self.leases.counters().forget(volume);
        }
    }
}
