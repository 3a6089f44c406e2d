//! Whether the other replicas answer, for the log.
//!
//! Raft retries an unreachable follower many times a second, on several connections, and logs each
//! failure; those warnings are suppressed. Here each replica is either answering or silent, and
//! each change has one log line. A replica counts as silent when calls have failed, and none has
//! succeeded, for [`SILENT_AFTER`].

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use super::{
    link::CallError,
    notice::{Notice, gist},
    peer::PeerRefusal,
};

/// Shorter failures, such as a broken connection or one late answer, are not logged.
const SILENT_AFTER: Duration = Duration::from_secs(1);

/// All replicas that this one calls. Clones are the same set.
#[derive(Debug, Clone, Default)]
pub(super) struct PeersReach {
    replicas: Arc<Mutex<BTreeMap<u64, Arc<PeerReach>>>>,
}

impl PeersReach {
    /// One replica. All connections to it share its state.
    pub(super) fn of(&self, replica: u64) -> Arc<PeerReach> {
        Arc::clone(self.replicas.lock().entry(replica).or_insert_with(|| Arc::new(PeerReach::new(replica))))
    }
}

/// Whether one replica answers.
#[derive(Debug)]
pub(super) struct PeerReach {
    replica: u64,
    state: Mutex<ReachState>,
}

#[derive(Debug, Default)]
struct ReachState {
    /// The first failure since the last success.
    failing_since: Option<Instant>,
    notice: Notice<String>,
}

impl ReachState {
    /// Records a failure. Returns whether to log it with this reason.
    fn failed(&mut self, reason: &str, now: Instant) -> bool {
        let since = *self.failing_since.get_or_insert(now);
        now.saturating_duration_since(since) >= SILENT_AFTER && self.notice.is_due(gist(reason), now)
    }

    /// Records a success. Returns whether to log that calls succeed again.
    fn answered(&mut self) -> bool {
        self.failing_since.take().is_some() && self.notice.ends()
    }
}

impl PeerReach {
    fn new(replica: u64) -> Self {
        Self { replica, state: Mutex::default() }
    }

    /// A call was answered.
    pub(super) fn answered(&self) {
        if self.state.lock().answered() {
            tracing::info!(replica = self.replica, "a replica answers again");
        }
    }

    /// A call failed or was refused.
    pub(super) fn failed(&self, error: &CallError) {
        if !self.state.lock().failed(&error.to_string(), Instant::now()) {
            return;
        }
        let replica = self.replica;
        match error {
            CallError::Refused(PeerRefusal::OtherCluster { got, expected, .. }) => tracing::error!(
                replica,
                %got,
                %expected,
                "a replica belongs to another cluster and takes no part in this one: stop it, empty its folder and \
                 start it again with this cluster's list"
            ),
            CallError::Refused(refusal) => {
                tracing::warn!(replica, %refusal, "a replica answers, and takes no part in this cluster");
            }
            error => tracing::warn!(replica, %error, "a replica does not answer"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replica_has_a_line_when_it_falls_silent_and_answers() {
        let (mut state, start) = (ReachState::default(), Instant::now());
        let mut told = Vec::new();
        for tenths in 0..300 {
            if state.failed("connection refused", start + Duration::from_millis(tenths * 100)) {
                told.push(tenths);
            }
        }
        assert_eq!(told, [10]);
        assert!(state.answered());
        assert!(!state.answered(), "it goes on answering");
    }

    #[test]
    fn one_late_answer_has_no_line() {
        let (mut state, start) = (ReachState::default(), Instant::now());
        for second in 0..100 {
            assert!(!state.failed("late", start + Duration::from_secs(second)));
            assert!(!state.answered());
        }
    }
}
