//! *Every pending write ends within the greatest volume term plus the margin, plus a tick after a
//! failover, while a quorum lives* (S5; Yin et al. 1999; issues nfs-ganesha 1382, 263).
//!
//! The leader's own clock counts from the write's arrival. The count starts anew in three cases:
//!
//! - the leader was paused;
//! - its entries were not committed in time, so no quorum lived;
//! - the write lacked consents.
//!
//! The bound includes the simulator's own delays for two commits: the lease's end, then the write.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use leasehold_model::committed::WriteKey;
use leasehold_protocol::{
    command::{Attach, Write},
    id::RequestId,
    time::Instant,
    transaction::Operation,
    volume::{TICK_MAX, TICKS_PER_TERM},
};

use crate::profile::{Profile, WAIT_MAX};

/// Writes that a leader has received and not answered.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    since: BTreeMap<WriteKey, Instant>,
    keys: BTreeMap<RequestId, WriteKey>,
    /// The revocations among them. Their count does not start anew when they lack consents.
    revocations: BTreeMap<WriteKey, Instant>,
    /// Revocations, and writes that attach nodes to key leases. They may wait for an earlier
    /// revocation that gathers consents once more (S7b, seed 57444).
    behind: BTreeSet<WriteKey>,
    /// The writes that were pending when another lacked consents. They may wait behind it for a
    /// second time (seed 1879 before small margins were drawn).
    delayed: BTreeSet<WriteKey>,
}

/// Whether the write attaches nodes to a key lease.
fn attaches(write: &Write) -> bool {
    let is_attached = |attach: &Attach| matches!(attach, Attach::Lease(_) | Attach::LeaseNamed(_));
    match write {
        Write::Put { attach, .. } => is_attached(attach),
        Write::Transaction(transaction) => transaction
            .operations()
            .any(|operation| matches!(operation, Operation::Put { attach, .. } if is_attached(attach))),
        _ => false,
    }
}

impl Waits {
    pub(crate) fn begin(&mut self, id: RequestId, key: WriteKey, write: &Write, now: Instant) {
        self.keys.insert(id, key);
        if write.is_revocation() {
            self.revocations.entry(key).or_insert(now);
        }
        if attaches(write) || write.is_revocation() {
            self.behind.insert(key);
        }
        self.since.entry(key).or_insert(now);
    }

    /// The request was answered. So was its write, unless another request for the write still
    /// waits.
    pub(crate) fn end(&mut self, id: RequestId) {
        if let Some(key) = self.keys.remove(&id)
            && !self.keys.values().any(|other| *other == key)
        {
            self.since.remove(&key);
            self.revocations.remove(&key);
            self.behind.remove(&key);
            self.delayed.remove(&key);
        }
    }

    /// The write lacked consents, and gathers more.
    pub(crate) fn again(&mut self, key: WriteKey, now: Instant) {
        self.since.entry(key).and_modify(|since| *since = now);
        self.delayed.extend(self.since.keys().copied());
    }

    /// The leader was absent for a while: all counts start anew.
    pub(crate) fn all_again(&mut self, now: Instant) {
        self.since.values_mut().chain(self.revocations.values_mut()).for_each(|since| *since = now);
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    pub(crate) fn check(&self, profile: &Profile, now: Instant) -> Result<(), String> {
        let most = bound(profile);
        let waits_twice = |key| self.delayed.contains(key) || self.behind.contains(key);
        let times = |key| if waits_twice(key) { 2 } else { 1 };
        match self.since.iter().find(|(key, since)| now.since(**since) > most * times(key)) {
            Some((key, since)) => {
                let most = most * times(key);
                Err(format!("write {key:?} has waited for {:?}: expected at most {most:?}", now.since(*since)))
            }
            None => Ok(()),
        }
    }

    /// A revocation ends, however many nodes are attached meanwhile. Each earlier write may prolong
    /// its wait once, and later writes wait behind it (S7b).
    pub(crate) fn check_revocations(&self, profile: &Profile, now: Instant) -> Result<(), String> {
        let most = bound(profile) * 2;
        match self.revocations.iter().find(|(_, since)| now.since(**since) > most) {
            Some((key, since)) => {
                Err(format!("revocation {key:?} has waited for {:?}: expected at most {most:?}", now.since(*since)))
            }
            None => Ok(()),
        }
    }
}

/// The longest wait of a write.
fn bound(profile: &Profile) -> Duration {
    let ticks = (profile.term_max() / TICKS_PER_TERM).min(TICK_MAX) * 3;
    let hops = Duration::from_micros((profile.commit_max() + profile.apply * WAIT_MAX) * 4);
    let steps = Duration::from_millis(250);
    let lease = profile.term_max() + profile.margin_max() + ticks;
    lease + profile.drift.over(lease) * 2 + hops + steps
}
