//! How long a follower has heard from the leader that proposed the latest entry. That leader's
//! cluster clock is certainly ahead of the log by this time (T4 in `docs/PROTOCOL.md`).
//!
//! **Guarantees.** [`Heard::take`] is at most the time from the arrival of the log's latest
//! proposal to the last message of the proposing leader. It is zero where that time is not known:
//!
//! - after a restart, and for entries that this replica proposed itself;
//! - if another leader sent the entry, or the entry may have been truncated again.
//!
//! Only time in which that leader could serve counts. Two rules ensure that, and the leader's own
//! clock follows them too. At most [`STEP_MAX`] counts between two messages, because the leader or
//! this replica may have been paused. Nothing counts before a message says that the entry is
//! committed: without a quorum, a leader prolongs no lease, and its clock does not advance.
//!
//! **What it does not know.** Which entries were stored. A proposal counts as the latest from its
//! arrival on. If it was not stored after all, the counted time is too short, never too long.

use std::time::Duration;

use leasehold_protocol::{lessor::clock::STEP_MAX, time::Instant};
use openraft::{
    EntryPayload,
    raft::{AppendEntriesRequest, AppendEntriesResponse},
};

use super::types::TypeConfig;

/// How long a replica has heard from the leader since the latest proposal.
#[derive(Debug, Default)]
pub(super) struct Heard {
    latest: Option<LatestProposal>,
}

/// The latest proposal from another replica.
#[derive(Debug)]
struct LatestProposal {
    /// The Raft term of the leader that proposed it.
    term: u64,
    index: u64,
    /// The time of that leader's last message, or of the proposal's arrival.
    last: Instant,
    /// The time since its arrival, as far as it counts.
    heard: Duration,
}

/// A message that is being executed.
#[derive(Debug, Clone, Copy)]
pub(super) struct HeardMessage {
    term: u64,
    committed: Option<u64>,
    arrived: Instant,
}

impl Heard {
    /// A message has arrived, and is executed next.
    pub(super) fn arrived(&mut self, request: &AppendEntriesRequest<TypeConfig>, now: Instant) -> HeardMessage {
        for entry in &request.entries {
            let position = (entry.log_id.leader_id.term, entry.log_id.index);
            match &self.latest {
                Some(latest) if position <= (latest.term, latest.index) => {}
                _ if matches!(entry.payload, EntryPayload::Normal(_)) => {
                    let (term, index) = position;
                    self.latest = Some(LatestProposal { term, index, last: now, heard: Duration::ZERO });
                }
                // Another entry replaces it. Which proposal is the latest is then unknown.
                Some(latest) if position.1 <= latest.index => self.latest = None,
                _ => {}
            }
        }
        let committed = request.leader_commit.map(|committed| committed.index);
        HeardMessage { term: request.vote.leader_id.term, committed, arrived: now }
    }

    /// The message was executed, and answered with this response.
    pub(super) fn answered(&mut self, message: HeardMessage, response: &AppendEntriesResponse<TypeConfig>) {
        let is_accepted = matches!(response, AppendEntriesResponse::Success);
        let Some(latest) = self.latest.as_mut().filter(|latest| is_accepted && latest.term == message.term) else {
            return;
        };
        let gap = message.arrived.since(latest.last);
        latest.last = latest.last.max(message.arrived);
        if message.committed >= Some(latest.index) {
            latest.heard += gap.min(STEP_MAX);
        }
    }

    /// A snapshot replaces the log. It contains the latest proposal, whose age is not known.
    pub(super) fn forget(&mut self) {
        self.latest = None;
    }

    /// This replica now leads. Returns how long it has heard from the leader of the latest
    /// proposal. From now on, proposals are its own.
    pub(super) fn take(&mut self) -> Duration {
        self.latest.take().map_or(Duration::ZERO, |latest| latest.heard)
    }
}

#[cfg(test)]
mod tests {
    use leasehold_protocol::{command::Proposal, id::Epoch, time::ClusterTime};
    use openraft::vote::leader_id_std::CommittedLeaderId;

    use super::{
        super::types::{
            Logged,
            alias::{LogId, RaftEntry, Vote},
        },
        *,
    };

    const HEARTBEAT: u64 = 75;

    fn at(millis: u64) -> Instant {
        Instant::from_micros(1_000_000 + millis * 1000)
    }

    fn log_id(term: u64, index: u64) -> LogId {
        LogId::new(CommittedLeaderId::new(term), index)
    }

    fn proposal(term: u64, index: u64) -> RaftEntry {
        let proposal = Proposal { epoch: Epoch(1), number: index, time: ClusterTime::ZERO, commands: vec![] };
        let payload = EntryPayload::Normal(Logged::new(proposal).expect("encodes"));
        RaftEntry { log_id: log_id(term, index), payload }
    }

    fn blank(term: u64, index: u64) -> RaftEntry {
        RaftEntry { log_id: log_id(term, index), payload: EntryPayload::Blank }
    }

    /// A follower, driven by messages.
    #[derive(Default)]
    struct Follower(Heard);

    impl Follower {
        fn gets(&mut self, term: u64, entries: Vec<RaftEntry>, committed: u64, millis: u64) {
            let answer = AppendEntriesResponse::Success;
            self.gets_and_answers(term, entries, committed, millis, &answer);
        }

        fn gets_and_answers(
            &mut self,
            term: u64,
            entries: Vec<RaftEntry>,
            committed: u64,
            millis: u64,
            answer: &AppendEntriesResponse<TypeConfig>,
        ) {
            let vote = Vote::new_committed(term, 2);
            let leader_commit = Some(log_id(term, committed));
            let request = AppendEntriesRequest { vote, prev_log_id: None, entries, leader_commit };
            let message = self.0.arrived(&request, at(millis));
            self.0.answered(message, answer);
        }

        /// Sends heartbeats from `from` until `until`.
        fn hears(&mut self, term: u64, committed: u64, from: u64, until: u64) {
            for millis in (from..=until).step_by(HEARTBEAT as usize) {
                self.gets(term, vec![], committed, millis);
            }
        }

        fn heard(&mut self) -> u64 {
            u64::try_from(self.0.take().as_millis()).expect("small")
        }
    }

    #[test]
    fn heard_counts_from_the_latest_proposal_to_the_last_heartbeat() {
        let mut follower = Follower::default();
        follower.gets(3, vec![blank(3, 6), proposal(3, 7)], 5, 0);
        follower.hears(3, 7, HEARTBEAT, 3000);
        assert_eq!(follower.heard(), 3000);
        assert_eq!(follower.heard(), 0, "what comes now is its own");

        follower.gets(4, vec![proposal(4, 9)], 8, 5000);
        follower.hears(4, 9, 5000 + HEARTBEAT, 5750);
        follower.gets(4, vec![proposal(4, 10)], 9, 5800);
        follower.gets(4, vec![], 10, 5875);
        // A repeated entry changes nothing.
        follower.gets(4, vec![proposal(4, 9), proposal(4, 10)], 10, 5950);
        // Raft's own entries are not proposals.
        follower.gets(4, vec![blank(4, 11)], 10, 6000);
        assert_eq!(follower.heard(), 200);
    }

    #[test]
    fn heard_from_another_leader_or_after_a_restart_is_zero() {
        let mut restarted = Follower::default();
        restarted.hears(3, 7, 0, 3000);
        assert_eq!(restarted.heard(), 0);

        let mut follower = Follower::default();
        follower.gets(4, vec![proposal(3, 7), blank(4, 8)], 6, 0);
        follower.hears(4, 8, HEARTBEAT, 3000);
        assert_eq!(follower.heard(), 0, "the proposal is of term 3, whose leader has said nothing");

        follower.gets(5, vec![proposal(5, 9)], 8, 4000);
        follower.hears(5, 9, 4000 + HEARTBEAT, 4000 + 4 * HEARTBEAT);
        follower.gets(6, vec![blank(6, 10)], 9, 4500);
        follower.hears(6, 10, 4500 + HEARTBEAT, 6000);
        assert_eq!(
            follower.heard(),
            4 * HEARTBEAT,
            "the next leader has proposed nothing yet, and what was heard stays"
        );
    }

    #[test]
    fn heard_before_the_commit_or_beyond_a_pause_does_not_count() {
        let mut follower = Follower::default();
        follower.gets(3, vec![proposal(3, 7)], 5, 0);
        follower.hears(3, 6, HEARTBEAT, 1500);
        assert_eq!(follower.0.latest.as_ref().expect("the proposal").heard, Duration::ZERO, "it has no quorum");
        follower.hears(3, 7, 1500 + HEARTBEAT, 1500 + 2 * HEARTBEAT);
        // The leader, or the whole machine, was paused for an hour.
        follower.gets(3, vec![], 7, 3_600_000);
        follower.gets(3, vec![], 7, 3_600_000 + HEARTBEAT);
        let pause = u64::try_from(STEP_MAX.as_millis()).expect("small");
        assert_eq!(follower.heard(), 3 * HEARTBEAT + pause);
    }

    #[test]
    fn heard_in_refused_messages_does_not_count() {
        let mut follower = Follower::default();
        follower.gets(3, vec![proposal(3, 7)], 7, 0);
        follower.gets_and_answers(3, vec![], 7, 100, &AppendEntriesResponse::Conflict);
        follower.gets(2, vec![], 7, 150);
        assert_eq!(follower.heard(), 0);
    }

    #[test]
    fn heard_of_a_proposal_that_was_cut_off_is_zero() {
        let mut follower = Follower::default();
        follower.gets(3, vec![proposal(3, 7), proposal(3, 8)], 7, 0);
        follower.hears(3, 8, HEARTBEAT, 10 * HEARTBEAT);
        follower.gets(4, vec![blank(4, 8)], 7, 1000);
        assert_eq!(follower.heard(), 0, "which proposal is the latest is not known");
    }
}
