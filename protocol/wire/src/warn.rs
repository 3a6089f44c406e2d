//! Warnings about what others send: one a second at most, so that nobody can fill our log or slow
//! us down with it.

use std::{
    fmt::Display,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// Warnings come at least this far apart: enough to see that something is wrong and what, too
/// little to fill a disk.
const WARNING_INTERVAL: Duration = Duration::from_secs(1);

static VIOLATIONS: Mutex<WarnLimit> = Mutex::new(WarnLimit { last: None, suppressed: 0 });
static NOT_ADMITTED: Mutex<WarnLimit> = Mutex::new(WarnLimit { last: None, suppressed: 0 });

/// Warns that the other side of a connection broke the protocol, unless a warning has just been
/// given.
pub(crate) fn violation(reason: &dyn Display) {
    match admit(&VIOLATIONS) {
        Some(suppressed) => {
            tracing::warn!(%reason, suppressed, "connection closed: the other side broke the protocol")
        }
        None => tracing::debug!(%reason, "connection closed: the other side broke the protocol"),
    }
}

/// Warns that there was no room for a connection, unless a warning has just been given.
pub(crate) fn not_admitted(reason: &str) {
    match admit(&NOT_ADMITTED) {
        Some(suppressed) => tracing::warn!(reason, suppressed, "connection refused: there is no room for it"),
        None => tracing::debug!(reason, "connection refused: there is no room for it"),
    }
}

fn admit(limit: &Mutex<WarnLimit>) -> Option<u64> {
    limit.lock().unwrap_or_else(PoisonError::into_inner).admit(Instant::now())
}

struct WarnLimit {
    last: Option<Instant>,
    suppressed: u64,
}

impl WarnLimit {
    /// How many warnings were suppressed since the last one, if it is time for another.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.last.is_some_and(|last| now.saturating_duration_since(last) < WARNING_INTERVAL) {
            self.suppressed += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.suppressed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_one_warning_a_second_that_counts_the_others() {
        let mut limit = WarnLimit { last: None, suppressed: 0 };
        let start = Instant::now();
        assert_eq!(limit.admit(start), Some(0));
        assert_eq!(limit.admit(start + Duration::from_millis(1)), None);
        assert_eq!(limit.admit(start + Duration::from_millis(999)), None);
        assert_eq!(limit.admit(start + WARNING_INTERVAL), Some(2));
    }
}
