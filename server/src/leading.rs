//! The tasks that serve the lessor: they follow leaderships, prove leadership and keep deadlines.

use std::{sync::Arc, time::Duration};

use leasehold_protocol::{lessor, planted::Planted};
use tokio::sync::mpsc;

use crate::{config::ServerConfig, core::ServerCore, raft::Replica};

/// How often a replica that does not lead checks whether it has a deadline.
const IDLE: Duration = Duration::from_millis(100);

/// The pause before an abandoned lessor is replaced.
const ANEW_AFTER: Duration = Duration::from_millis(20);

/// Creates a lessor when this replica becomes leader, and again if the lessor was abandoned while
/// it still leads. Ends the lessor when it no longer leads. Returns when Raft has stopped.
pub(crate) async fn follow_leaderships(core: Arc<ServerCore>, replica: Replica, config: ServerConfig) {
    let mut leaderships = replica.leadership();
    let mut led = None;
    loop {
        let leadership = leaderships.borrow_and_update().clone();
        if leadership.is_leader && led == Some(leadership.term) && core.has_lessor() {
            // Another field has changed, or the abandoned lessor has a successor already.
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
            // A pause, because the cause of the failure may persist.
            () = core.lessor_abandoned() => tokio::time::sleep(ANEW_AFTER).await,
        }
    }
}

/// Proves leadership when the lessor asks for it: one quorum round serves all waiting reads (S6).
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

/// Steps the lessor at its deadlines, and often enough that its clock is not clamped (T4).
pub(crate) async fn keep_time(core: Arc<ServerCore>) {
    loop {
        let wait = core.timeout().unwrap_or(IDLE);
        tokio::time::sleep(wait).await;
    }
}
