//! The clock of a model: it stands still until a thread moves it.

use std::{cell::Cell, time::Duration};

use leasehold_protocol::time::Instant;
use loom::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// When a model begins.
const BEGIN_MICROS: u64 = 1_000_000;

loom::lazy_static! {
    static ref NOW: AtomicU64 = AtomicU64::new(BEGIN_MICROS);
}

loom::thread_local! {
    static EARLY: Cell<Option<Instant>> = Cell::new(None);
}

/// What the clock says. It is never old, as a relaxed load could be, and orders nothing else: so it
/// is by an exchange.
pub(crate) fn now() -> Instant {
    EARLY.with(Cell::get).unwrap_or_else(|| Instant::from_micros(NOW.fetch_add(0, Relaxed)))
}

/// Time passes.
pub(crate) fn pass(span: Duration) {
    NOW.fetch_add(span.as_micros() as u64, Relaxed);
}

/// A mistake: this thread uses from now on what the clock says now, as if it had read it before all
/// else.
pub(crate) fn read_too_early() {
    let now = now();
    EARLY.with(|early| early.set(Some(now)));
}
