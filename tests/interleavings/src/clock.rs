//! The clock of a model: it stands still until a thread advances it.

use std::{cell::Cell, time::Duration};

use leasehold_protocol::time::Instant;
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The time at which a model begins.
const BEGIN_MICROS: u64 = 1_000_000;

loom::lazy_static! {
    static ref NOW: AtomicU64 = AtomicU64::new(BEGIN_MICROS);
}

loom::thread_local! {
    static EARLY: Cell<Option<Instant>> = Cell::new(None);
}

/// The present time. An exchange reads it, because a relaxed load could return an older value. The
/// exchange orders nothing else.
pub(crate) fn now() -> Instant {
    EARLY.with(Cell::get).unwrap_or_else(|| Instant::from_micros(NOW.fetch_add(0, Relaxed)))
}

/// Advances the clock.
pub(crate) fn pass(span: Duration) {
    NOW.fetch_add(span.as_micros() as u64, Relaxed);
}

/// A planted mistake: from now on this thread uses the present time, as if it had read the clock
/// before everything else.
pub(crate) fn read_too_early() {
    let now = now();
    EARLY.with(|early| early.set(Some(now)));
}
