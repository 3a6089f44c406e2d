//! What a server does for its lessor, in tasks: leaderships, proposals, proofs and deadlines.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use leasehold_protocol::{lessor, planted::Planted};
use tokio::sync::mpsc;

use crate::{
    config::Config,
    core::{Core, Generation},
    raft::{ProposeError, Proposed, Replica},
};

/// How often to look whether there is a deadline, while this replica does not lead.
const IDLE: Duration = Duration::from_millis(100);

/// A lessor that had to be given up is not made anew at once.
const ANEW_AFTER: Duration = Duration::from_millis(20);

/// Proposals that are on their way at one time.
const PROPOSALS_MAX: usize = 2;

/// Makes a lessor whenever this replica becomes leader, or leads still when its lessor had to be given up, and ends it when it
/// leads no more. Returns when Raft has stopped.
pub(crate) async fn follow_leaderships(core: Arc<Core>, replica: Replica, config: Config) {
    let mut leaderships = replica.leadership();
    let mut led = None;
    loop {
        let leadership = leaderships.borrow_and_update().clone();
        if leadership.leads && led == Some(leadership.term) && core.has_lessor() {
            // Something else about it has changed; or what was given up has been succeeded already.
        } else if leadership.leads {
            led = Some(leadership.term);
            tracing::info!(term = leadership.term, "this replica leads");
            core.lead(lessor::Config {
                replica: config.id,
                attempt: rand::random(),
                drift: config.drift(),
                limits: config.limits,
                planted: Planted::default(),
            });
        } else {
            tracing::info!(term = leadership.term, leader = ?leadership.leader, "this replica follows");
            core.follow(leadership.leader.map(|(_, address)| address));
        }
        tokio::select! {
            changed = leaderships.changed() => if changed.is_err() { return },
            // What ended it may still be there.
            () = core.given_up() => tokio::time::sleep(ANEW_AFTER).await,
        }
    }
}

/// Proposes what the lessor has ready: everything that came up while the last proposal was on its way goes into the next one, so
/// that the load itself decides how many commands share an fsync. What fills a proposal gains nothing by waiting: it goes in behind the last
/// one at once, and is written while that is applied.
pub(crate) async fn propose_all(core: Arc<Core>, replica: Replica) {
    let mut on_their_way = VecDeque::new();
    loop {
        let next = match on_their_way.len() {
            0 => core.take_proposal(),
            1..PROPOSALS_MAX => core.take_full_proposal(),
            _ => None,
        };
        let (generation, submitted) = if let Some((generation, proposal)) = next {
            (generation, replica.submit(proposal).await)
        } else {
            let outcome = tokio::select! {
                outcome = first_applied(&mut on_their_way) => outcome,
                () = core.proposable() => continue,
            };
            let Some((generation, proposed)) = on_their_way.pop_front() else { continue };
            match outcome {
                Ok(_) => continue,
                // It may go in again if nothing has gone in behind it.
                Err(ProposeError::Retry) if on_their_way.is_empty() => {
                    (generation, replica.submit_again(proposed).await)
                }
                Err(error) => (generation, Err(error)),
            }
        };
        match submitted {
            Ok(proposed) => on_their_way.push_back((generation, proposed)),
            Err(ProposeError::Fatal { reason }) => {
                tracing::error!(%reason, "cannot propose any more");
                return;
            }
            // What was proposed may or may not be applied yet: this leadership can no longer tell.
            Err(error) => {
                tracing::info!(%error, "a proposal did not go through");
                core.give_up(generation);
            }
        }
    }
}

/// Waits for the first of the proposals, if there is one. May be dropped and called again.
async fn first_applied(on_their_way: &mut VecDeque<(Generation, Proposed)>) -> Result<u64, ProposeError> {
    match on_their_way.front_mut() {
        Some((_, proposed)) => proposed.applied().await,
        None => std::future::pending().await,
    }
}

/// Proves leadership when the lessor wants it: one quorum round for all reads that wait (S6).
pub(crate) async fn prove_all(core: Arc<Core>, replica: Replica, mut wanted: mpsc::UnboundedReceiver<u64>) {
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
pub(crate) async fn keep_time(core: Arc<Core>) {
    loop {
        let wait = core.timeout().unwrap_or(IDLE);
        tokio::time::sleep(wait).await;
    }
}
