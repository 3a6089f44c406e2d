//! How often the log reports a lasting state: when it begins, and then once a minute.
//!
//! A waiting task checks its condition ten times a second. A line for each check would hide
//! everything else. So the task asks a [`Notice`] whether a line is due.

use std::time::{Duration, Instant};

/// The interval between two lines about the same state.
const AGAIN: Duration = Duration::from_secs(60);

/// The shortest interval between two lines about changes, so that a flickering state does not fill
/// the log. A change within this time is logged later, if it still holds.
const CHANGES_APART: Duration = Duration::from_secs(5);

/// The last state that was logged, and when.
#[derive(Debug)]
pub(super) struct Notice<S> {
    last: Option<(S, Instant)>,
}

impl<S> Default for Notice<S> {
    fn default() -> Self {
        Self { last: None }
    }
}

impl<S: PartialEq> Notice<S> {
    /// Whether to log the current state now. The caller repeats this while the state lasts.
    pub(super) fn is_due(&mut self, state: S, now: Instant) -> bool {
        let is_due = match &self.last {
            None => true,
            Some((last, at)) => {
                let apart = if *last == state { AGAIN } else { CHANGES_APART };
                now.saturating_duration_since(*at) >= apart
            }
        };
        if is_due {
            self.last = Some((state, now));
        }
        is_due
    }

    /// The state has ended. Returns whether it was logged.
    pub(super) fn ends(&mut self) -> bool {
        self.last.take().is_some()
    }
}

/// A reason without its digits. Two reasons that differ only in numbers are one state.
pub(super) fn gist(reason: &str) -> String {
    reason.chars().filter(|it| !it.is_ascii_digit()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_that_lasts_has_a_line_a_minute() {
        let (mut notice, start) = (Notice::default(), Instant::now());
        let lines = (0..1_800).filter(|tenths| notice.is_due("waits", start + Duration::from_millis(tenths * 100)));
        assert_eq!(lines.collect::<Vec<_>>(), [0, 600, 1_200]);
    }

    #[test]
    fn change_of_state_has_a_line_and_flickering_few() {
        let (mut notice, start) = (Notice::default(), Instant::now());
        let mut is_due = |state, seconds| notice.is_due(state, start + Duration::from_secs(seconds));
        assert!(is_due("waits", 0) && is_due("is refused", 5));
        let lines = (0..600).filter(|tenths| {
            let at = start + Duration::from_secs(10) + Duration::from_millis(tenths * 100);
            notice.is_due(if tenths % 2 == 0 { "one" } else { "other" }, at)
        });
        assert!(lines.count() <= 13, "one in five seconds");
    }

    #[test]
    fn state_that_begins_anew_has_a_line_anew() {
        let (mut notice, now) = (Notice::default(), Instant::now());
        assert!(!notice.ends(), "nothing was logged");
        assert!(notice.is_due("silent", now));
        assert!(notice.ends() && notice.is_due("silent", now));
    }

    #[test]
    fn reasons_that_differ_in_figures_have_one_gist() {
        assert_eq!(gist("entry 17 of term 2"), gist("entry 1234 of term 3"));
        assert_ne!(gist("entry 17"), gist("no entry"));
    }
}
