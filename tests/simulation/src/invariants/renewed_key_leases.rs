//! *Load never breaks a promise* (S10b). A key lease that its client renews in time, with answers
//! arriving, does not end, however many others are renewed (issues etcd 9888, consul 1172).
//!
//! *In time* means three things. One leader has renewed the lease for more than half of its term.
//! Never did more than half of its term lie between two renewals, nor since the last one. The
//! leader's clock measures this, and the measurement starts anew when the leader was paused, or its
//! entries were not committed in time. Renewals from before may be missing in the log.

use std::{collections::BTreeMap, time::Duration};

use leasehold_protocol::{
    command::{AnyLease, Command, Outcome, Proposal},
    id::{Incarnation, LeaseId},
    message::{self, KeepAliveResult},
    time::Instant,
};

/// A shorter term is too close to the time that a tick needs to commit.
const TTL_MIN: Duration = Duration::from_secs(1);

/// How long a lease has been renewed in time.
#[derive(Debug)]
struct Streak {
    since: Instant,
    last: Instant,
    ttl: Duration,
}

/// The key leases that a lessor has renewed.
#[derive(Debug, Default)]
pub(crate) struct RenewedKeyLeases(BTreeMap<(LeaseId, Incarnation), Streak>);

impl RenewedKeyLeases {
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    /// The lessor has answered that it renewed a lease.
    pub(crate) fn renewed(&mut self, promise: &message::KeyLeasePromise, now: Instant) {
        if !matches!(promise.result, KeepAliveResult::Renewed(_)) || promise.ttl < TTL_MIN {
            return;
        }
        let first = Streak { since: now, last: now, ttl: promise.ttl };
        let streak = self.0.entry((promise.id, promise.incarnation)).or_insert(first);
        if now.since(streak.last) > streak.ttl / 2 {
            streak.since = now;
        }
        streak.last = now;
    }

    /// An entry of the lessor was applied. Checks that it ended no lease that was renewed in time.
    pub(crate) fn check(&mut self, proposal: &Proposal, outcomes: &[Outcome], now: Instant) -> Result<(), String> {
        for (command, outcome) in proposal.commands.iter().zip(outcomes) {
            let Command::Expire { lease: AnyLease::KeyLease(id), incarnation, .. } = command else { continue };
            let Some(Streak { since, last, ttl }) = self.0.remove(&(*id, *incarnation)) else { continue };
            let is_in_time = now.since(last) <= ttl / 2 && last.since(since) > ttl / 2;
            if *outcome == Outcome::Expired && is_in_time {
                return Err(format!(
                    "key lease {id} of {ttl:?} has ended: it was renewed in time for {:?}, the last time {:?} ago",
                    last.since(since),
                    now.since(last)
                ));
            }
        }
        Ok(())
    }
}
