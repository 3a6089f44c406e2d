//! How often the log tells of a state that lasts: once when it begins, and once a minute after
//! that.
//!
//! What waits looks again ten times a second, and a line for each look would hide everything else.
//! So whoever waits asks a [`Notice`] whether a line is due.

use std::time::{Duration, Instant};

/// A state that lasts has a line this often.
const AGAIN: Duration = Duration::from_secs(60);

/// Two lines about changes are at least this far apart: a state that flickers does not fill the
/// log. A change within this time is logged afterwards, if it still holds.
const CHANGES_APART: Duration = Duration::from_secs(5);

/// What the log was told last of a state that may last.
#[derive(Debug)]
pub(super) struct Notice<S> {
    told: Option<(S, Instant)>,
}

impl<S> Default for Notice<S> {
    fn default() -> Self {
        Self { told: None }
    }
}

impl<S: PartialEq> Notice<S> {
    /// Whether the current state is to be logged now. To be called again and again while it lasts.
    pub(super) fn is_due(&mut self, state: S, now: Instant) -> bool {
        let is_due = match &self.told {
            None => true,
            Some((told, at)) => {
                let apart = if *told == state { AGAIN } else { CHANGES_APART };
                now.saturating_duration_since(*at) >= apart
            }
        };
        if is_due {
            self.told = Some((state, now));
        }
        is_due
    }

    /// The state is over. Returns whether the log was told of it.
    pub(super) fn ends(&mut self) -> bool {
        self.told.take().is_some()
    }
}

/// A reason without its figures: two that differ only in these are one state.
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
        assert!(!notice.ends(), "nothing was told");
        assert!(notice.is_due("silent", now));
        assert!(notice.ends() && notice.is_due("silent", now));
    }

    #[test]
    fn reasons_that_differ_in_figures_have_one_gist() {
        assert_eq!(gist("entry 17 of term 2"), gist("entry 1234 of term 3"));
        assert_ne!(gist("entry 17"), gist("no entry"));
    }
}
