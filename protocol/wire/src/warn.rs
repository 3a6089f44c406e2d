//! Warnings about other sides of connections: at most one a second of each kind. So nobody can fill
//! the log, or slow the server down by it.

use std::{
    fmt::Display,
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

/// The shortest time between two warnings of one kind. They show the problem, and do not fill a
/// disk.
const WARNING_INTERVAL: Duration = Duration::from_secs(1);

static VIOLATIONS: Mutex<WarnLimit> = Mutex::new(WarnLimit { last: None, suppressed: 0 });
static NOT_ADMITTED: Mutex<WarnLimit> = Mutex::new(WarnLimit { last: None, suppressed: 0 });

/// Warns that the other side broke the protocol, unless the last such warning is recent.
pub(crate) fn violation(reason: &dyn Display) {
    match admit(&VIOLATIONS) {
        Some(suppressed) => {
            tracing::warn!(%reason, suppressed, "connection closed: the other side broke the protocol")
        }
        None => tracing::debug!(%reason, "connection closed: the other side broke the protocol"),
    }
}

/// Warns that there was no room for a connection, unless the last such warning is recent.
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
    /// If another warning is due, the number of warnings suppressed since the last one.
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
