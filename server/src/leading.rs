//! What a server does for its lessor, in tasks: leaderships, proofs and deadlines.

use std::{sync::Arc, time::Duration};

use leasehold_protocol::{lessor, planted::Planted};
use tokio::sync::mpsc;

use crate::{config::ServerConfig, core::ServerCore, raft::Replica};

/// How often to look whether there is a deadline, while this replica does not lead.
const IDLE: Duration = Duration::from_millis(100);

/// A lessor that had to be given up is not made anew at once.
const ANEW_AFTER: Duration = Duration::from_millis(20);

/// Makes a lessor whenever this replica becomes leader, or leads still when its lessor had to be
/// given up, and ends it when it leads no more. Returns when Raft has stopped.
pub(crate) async fn follow_leaderships(core: Arc<ServerCore>, replica: Replica, config: ServerConfig) {
    let mut leaderships = replica.leadership();
    let mut led = None;
    loop {
        let leadership = leaderships.borrow_and_update().clone();
        if leadership.is_leader && led == Some(leadership.term) && core.has_lessor() {
            // Something else about it has changed; or what was given up has been succeeded already.
        } else if leadership.is_leader {
            led = Some(leadership.term);
            tracing::info!(raft_term = leadership.term, "this replica leads");
            let lessor = lessor::LessorConfig {
                replica: config.id,
                attempt: rand::random(),
                drift: config.drift(),
                limits: config.limits,
                bounds: lessor::LessorBounds::DEFAULT,
                planted: Planted::default(),
            };
            core.become_leader(lessor, replica.take_heard());
        } else {
            match &leadership.leader {
                Some((leader, address)) => {
                    tracing::info!(raft_term = leadership.term, leader, address, "this replica follows a leader");
                }
                None => tracing::info!(raft_term = leadership.term, "this replica knows no leader"),
            }
            core.become_follower(leadership.leader.map(|(_, address)| address));
        }
        tokio::select! {
            changed = leaderships.changed() => if changed.is_err() { return },
            // What ended it may still be there.
            () = core.lessor_abandoned() => tokio::time::sleep(ANEW_AFTER).await,
        }
    }
}

/// Proves leadership when the lessor wants it: one quorum round for all reads that wait (S6).
pub(crate) async fn prove_all(core: Arc<ServerCore>, replica: Replica, mut wanted: mpsc::UnboundedReceiver<u64>) {
    while let Some(round) = wanted.recv().await {
        let is_proven = match replica.prove_leadership().await {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(%error, "no proof of leadership");
                false
            }
        };
        core.proof(round, is_proven);
    }
}

/// Steps the lessor when its deadline comes, and often enough that its clock is not held back (T4).
pub(crate) async fn keep_time(core: Arc<ServerCore>) {
    loop {
        let wait = core.timeout().unwrap_or(IDLE);
        tokio::time::sleep(wait).await;
    }
}
