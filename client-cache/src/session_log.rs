//! The log of the session's state: one line at `info` for each change, so that an outage can be
//! found in the application's own log. Calls write no line.

use std::{collections::BTreeMap, time::Duration};

use leasehold_protocol::path::NodePath;

use crate::status::SessionState;

/// The most volumes in one line. A client may have leases on some hundreds.
const LISTED_MAX: usize = 8;

/// Logs that the session's state `before` has become `state`. `leases` has the volumes with a valid
/// lease, and how long each certainly lasts.
pub(crate) fn log(before: &SessionState, state: &SessionState, leases: &BTreeMap<NodePath, Duration>) {
    let valid = || listed(leases.iter().map(|(top, remaining)| format!("{top} for {remaining:.1?}")));
    match state {
        SessionState::Connecting => {}
        SessionState::Connected { session } if matches!(before, SessionState::Jeopardy { .. }) => {
            tracing::info!(%session, leases = valid(), "safe again: a server has renewed the leases in use");
        }
        SessionState::Connected { session } => tracing::info!(%session, leases = valid(), "connected to the leader"),
        SessionState::Jeopardy { volumes } => {
            let ended = listed(volumes.iter().map(NodePath::to_string));
            tracing::info!(ended, leases = valid(), "in jeopardy: leases have ended, because no server renewed them");
        }
        SessionState::Expired { session } => {
            tracing::info!(%session, "expired, with all leases and locks; opening a new session");
        }
        SessionState::Closed => tracing::info!("the client is closed"),
    }
}

fn listed(mut texts: impl ExactSizeIterator<Item = String>) -> String {
    let more = texts.len().saturating_sub(LISTED_MAX);
    let first: Vec<String> = texts.by_ref().take(LISTED_MAX).collect();
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    if first.is_empty() { "none".to_owned() } else { first.join(", ") + &rest }
}

#[cfg(test)]
mod tests {
    use std::{fmt, sync::Arc};

    use leasehold_protocol::id::SessionId;
    use parking_lot::Mutex;
    use tracing::{
        Event, Metadata, Subscriber,
        field::{Field, Visit},
        span::{Attributes, Id, Record},
        subscriber::with_default,
    };

    use super::*;
    use crate::{Options, driver::Driver};

    /// Collects the lines at `info`.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<String>>>);

    struct Line(String);

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            self.0.push_str(&format!("{field}={value:?} "));
        }
    }

    impl Subscriber for Lines {
        fn enabled(&self, metadata: &Metadata<'_>) -> bool {
            *metadata.level() == tracing::Level::INFO
        }

        fn new_span(&self, _: &Attributes<'_>) -> Id {
            Id::from_u64(1)
        }

        fn record(&self, _: &Id, _: &Record<'_>) {}

        fn record_follows_from(&self, _: &Id, _: &Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut line = Line(String::new());
            event.record(&mut line);
            self.0.lock().push(line.0);
        }

        fn enter(&self, _: &Id) {}

        fn exit(&self, _: &Id) {}
    }

    #[test]
    fn each_change_of_the_session_state_is_one_line() {
        let path = |text: &str| NodePath::parse(text).expect("a path");
        let leases = |paths: &[&str]| paths.iter().map(|text| (path(text), Duration::from_millis(1_940))).collect();
        let session = SessionId(7);
        let jeopardy = SessionState::Jeopardy { volumes: vec![path("/services")] };
        let states = [
            (SessionState::Connected { session }, leases(&["/", "/services"])),
            (jeopardy, leases(&["/"])),
            (SessionState::Connected { session }, leases(&["/", "/services"])),
            (SessionState::Jeopardy { volumes: Vec::new() }, leases(&[])),
            (SessionState::Expired { session }, leases(&[])),
            (SessionState::Closed, leases(&[])),
        ];
        let (lines, mut before) = (Lines::default(), SessionState::Connecting);
        with_default(lines.clone(), || {
            for (state, leases) in states {
                log(&before, &state, &leases);
                before = state;
            }
        });
        let expected = [
            ("connected to the leader", "leases=\"/ for 1.9s, /services for 1.9s\""),
            ("in jeopardy", "ended=\"/services\" leases=\"/ for 1.9s\""),
            ("safe again", "session=7"),
            ("in jeopardy", "ended=\"none\" leases=\"none\""),
            ("expired", "session=7"),
            ("the client is closed", ""),
        ];
        let lines = lines.0.lock();
        assert_eq!(lines.len(), expected.len(), "{lines:?}");
        for (line, (message, fields)) in lines.iter().zip(expected) {
            assert!(line.contains(&format!("message={message}")) && line.contains(fields), "{line}");
        }
    }

    #[test]
    fn long_list_of_volumes_is_cut() {
        let texts: Vec<String> = (0..10).map(|number| format!("/{number}")).collect();
        assert_eq!(listed(texts.into_iter()), "/0, /1, /2, /3, /4, /5, /6, /7 and 2 more");
    }

    #[tokio::test]
    async fn driver_logs_the_end_of_its_session() {
        let driver = Driver::new(Options::new(["127.0.0.1:1"]), 0);
        let lines = Lines::default();
        with_default(lines.clone(), || driver.end());
        assert_eq!(*lines.0.lock(), ["message=the client is closed "]);
    }
}
