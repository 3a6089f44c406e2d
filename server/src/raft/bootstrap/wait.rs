//! The log lines of a replica that waits to enter its cluster: one for each change, and one a
//! minute while the wait lasts.

use std::{collections::BTreeSet, time::Instant};

use super::super::notice::{Notice, gist};

/// The conditions that this replica waits for, for the log.
#[derive(Debug, Default)]
pub(super) struct BootstrapWait {
    members: Notice<BTreeSet<u64>>,
    asks: Notice<()>,
    answer: Notice<String>,
    voter: Notice<String>,
}

impl BootstrapWait {
    /// Logs which members have answered, while some are missing.
    pub(super) fn members(&mut self, are_missing: bool, answered: BTreeSet<u64>) {
        if !are_missing {
            self.members.ends();
        } else if self.members.is_due(answered.clone(), Instant::now()) {
            tracing::warn!(?answered, "waiting for the other members: a new cluster begins when all of them are there");
        }
    }

    pub(super) fn asks(&mut self, leader: &str) {
        if self.asks.is_due((), Instant::now()) {
            tracing::info!(leader, "this replica's data folder is empty: asking the cluster to let it rejoin");
        }
    }

    pub(super) fn note_rejoin_refusal(&mut self, reason: &str) {
        if self.answer.is_due(gist(reason), Instant::now()) {
            tracing::warn!(reason, "this replica may not rejoin its cluster yet");
        }
    }

    pub(super) fn note_not_voter(&mut self, reason: &str) {
        if self.voter.is_due(gist(reason), Instant::now()) {
            tracing::warn!(reason, "this replica is no voter yet");
        }
    }

    pub(super) fn catches_up(&mut self, matched: Option<u64>, last: Option<u64>) {
        if self.voter.is_due("catching up".to_owned(), Instant::now()) {
            tracing::info!(matched, last, "this replica is no voter yet: it is catching up");
        }
    }
}
