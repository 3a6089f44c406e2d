//! What applications do with write leases: they set and read values in memory, flush them, and end
//! the write lease. Every value is unique.

use leasehold_protocol::{
    command::{Command, Outcome as CommandOutcome, Proposal, Write},
    holder::HolderInput,
    id::LockId,
    lock::{LockMode, LockStatus, WriteLeaseStatus},
    object::Value,
    path::NodePath,
    transaction::CompareTarget,
};

use crate::{history::Outcome, invariants, world::World};

/// One application's data under one write lease, since the write lease began.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(crate) path: NodePath,
    /// The value at the beginning, once it was read. The lease can be lost by this clock at the
    /// moment when the client hears of the write lease.
    pub(crate) first: Option<Value>,
    /// The values that the application set, each with its step.
    pub(crate) changes: Vec<(Value, u64)>,
    /// How many of them are on the servers, or were reported as lost.
    pub(crate) flushed: usize,
    /// The last reported status.
    pub(crate) status: WriteLeaseStatus,
}

impl Kept {
    /// The value that the application set last, or found.
    pub(crate) fn last(&self) -> Option<&Value> {
        self.changes.last().map(|(value, _)| value).or(self.first.as_ref())
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.changes.len() > self.flushed
    }
}

impl World {
    /// The application uses one of its locks as a write lease, if that is possible. Returns whether
    /// it did.
    pub(crate) fn keep_to_itself(&mut self, place: usize, lock: LockId, path: &NodePath) -> bool {
        let client = &self.clients[place];
        let status = client.holds.get(&lock).map(|(_, status)| *status);
        let is_alone = matches!(status, Some(LockStatus::Granted { mode: LockMode::Exclusive, .. }));
        let mut changes = client.writes.values().map(|open| &open.change);
        let is_asked_for = changes.any(|change| match change {
            Write::TakeWriteLease { lock: other, .. }
            | Write::ChangeLockMode { lock: other, .. }
            | Write::HandOver { lock: other, .. } => *other == lock,
            _ => false,
        });
        if !is_alone || is_asked_for {
            return false;
        }
        let clock = client.machine.clock.read(self.now);
        let found = client.holder.write_lease_value(lock, clock).cloned();
        match found {
            Some(found) => self.use_kept(place, lock, &found),
            None if self.clients[place].kept_data.contains_key(&lock) => return false,
            None if self.oracle.truth.node(path).is_none() => {
                let client = &self.clients[place];
                let value = format!("{}.{}", client.life, client.numbers).into_bytes();
                self.write(place, Write::put(path.clone(), value.into()));
            }
            None => self.write(place, Write::TakeWriteLease { path: path.clone(), lock }),
        }
        true
    }

    /// The application does something under one of its write leases.
    pub(crate) fn use_some_kept(&mut self, place: usize) {
        let kept: Vec<(LockId, NodePath)> =
            self.clients[place].kept_data.iter().map(|(hold, kept)| (*hold, kept.path.clone())).collect();
        let (hold, path) = self.rng.pick(&kept).clone();
        self.keep_to_itself(place, hold, &path);
    }

    fn use_kept(&mut self, place: usize, lock: LockId, found: &Value) {
        let Some(kept) = self.clients[place].kept_data.get_mut(&lock) else {
            return self.demand(Err(format!("client {place} may use hold {lock} and was not told so")));
        };
        let last = kept.last().unwrap_or(found).clone();
        kept.first.get_or_insert_with(|| found.clone());
        if last != *found {
            self.demand(Err(format!("client {place} set {last:?} under hold {lock}, and reads {found:?}")));
        }
        self.tally.add("reads under a write lease");
        match self.rng.below(10) {
            0..=5 => {
                let client = &mut self.clients[place];
                client.numbers += 1;
                let value: Value = format!("{}.{}k", client.life, client.numbers).into_bytes().into();
                if let Some(kept) = client.kept_data.get_mut(&lock) {
                    kept.changes.push((value.clone(), self.steps));
                }
                self.tally.add("changes under a write lease");
                self.step_holder(place, HolderInput::SetUnderWriteLease { lock, value });
            }
            6 | 7 => self.step_holder(place, HolderInput::Flush(lock)),
            8 => self.step_holder(place, HolderInput::ReleaseWriteLease(lock)),
            _ => {}
        }
    }

    /// The status of a write lease has changed.
    pub(crate) fn caching_changed(&mut self, place: usize, hold: LockId, status: WriteLeaseStatus) {
        let client = &mut self.clients[place];
        let clock = client.machine.clock.read(self.now);
        let Some((path, _)) = client.holds.get(&hold) else {
            return self
                .demand(Err(format!("client {place} is told of a write lease under hold {hold}, which it has not")));
        };
        let path = path.clone();
        if status.is_open && status.set_count == 0 {
            self.tally.add("write leases");
            let first = client.holder.write_lease_value(hold, clock).cloned();
            let kept = Kept { path, first, changes: Vec::new(), flushed: 0, status };
            client.kept_data.insert(hold, kept);
            return;
        }
        let Some(kept) = client.kept_data.get_mut(&hold) else { return };
        let flushed = usize::try_from(status.flushed_count).expect("few").min(kept.changes.len());
        let revision = status.stat.filter(|_| flushed > kept.flushed).map(|stat| stat.modify_revision);
        kept.status = status;
        if let Some(revision) = revision {
            let (value, since) = kept.changes[flushed - 1].clone();
            kept.flushed = flushed;
            self.tally.add("flushes");
            self.oracle.acknowledged(revision);
            self.kept(place, &path, &value, since, Outcome::Done { revision: revision.0 });
        }
        let client = &mut self.clients[place];
        let is_caching = client.holder.has_write_lease(hold);
        if !is_caching && client.kept_data.get(&hold).is_some_and(|kept| !kept.is_dirty()) {
            client.kept_data.remove(&hold);
        }
    }

    /// The holder reports that values were lost: they will not reach the servers.
    pub(crate) fn flush_lost(&mut self, place: usize, hold: LockId, value: &Value, may_be_there: bool) {
        self.tally.add("changes lost");
        let Some(kept) = self.clients[place].kept_data.get_mut(&hold) else {
            return self.demand(Err(format!("client {place} is told to have lost {value:?}, which it did not set")));
        };
        let (path, is_last) = (kept.path.clone(), kept.last() == Some(value));
        let lost = kept.changes.split_off(kept.flushed);
        kept.first = Some(value.clone());
        if !is_last || lost.is_empty() {
            self.demand(Err(format!("client {place} is told to have lost {value:?}; it has set {lost:?}")));
        }
        for (value, since) in lost {
            let outcome = if may_be_there { Outcome::Unknown } else { Outcome::Refused };
            self.kept(place, &path, &value, since, outcome);
        }
        let kept = self.clients[place].kept_data.get_mut(&hold);
        kept.into_iter().for_each(|kept| kept.flushed = kept.changes.len());
    }

    /// A lock was lost or released. The holder must have reported each dirty value (S10).
    pub(crate) fn kept_is_over(&mut self, place: usize, hold: LockId) {
        if let Some(kept) = self.clients[place].kept_data.remove(&hold)
            && kept.is_dirty()
        {
            self.demand(Err(format!("client {place} is not told that it has lost {:?}", kept.changes.last())));
        }
    }

    /// The client's process has ended, and its memory with it. Dirty values may have been flushed,
    /// or may still be.
    pub(crate) fn forget_kept(&mut self, place: usize) {
        for kept in std::mem::take(&mut self.clients[place].kept_data).into_values() {
            for (value, since) in &kept.changes[kept.flushed..] {
                self.kept(place, &kept.path, value, *since, Outcome::Unknown);
            }
        }
    }

    /// Records a value that the application set in memory, with its outcome. All later readers must
    /// see it.
    fn kept(&mut self, place: usize, path: &NodePath, value: &Value, since: u64, outcome: Outcome) {
        let now = self.steps;
        if self.is_put_down_to_clocks(place) {
            // The client may have lost the lock already. Then the value took effect at its flush.
            invariants::linearizability::put(&mut self.told, path, value, (since, now), outcome);
        } else {
            invariants::linearizability::set(&mut self.told, path, value, since, outcome, now);
        }
    }

    /// No transaction compares data that is dirty under another client's write lease.
    pub(crate) fn check_compared(&mut self, proposal: &Proposal, outcomes: &[CommandOutcome]) {
        for (command, outcome) in proposal.commands.iter().zip(outcomes) {
            let (Command::Write { write: Write::Transaction(transaction), .. }, CommandOutcome::Written(Ok(_))) =
                (command, outcome)
            else {
                continue;
            };
            let of_data =
                transaction.compares.iter().filter(|compare| !matches!(compare.target, CompareTarget::Locked(..)));
            for path in of_data.map(|compare| &compare.path) {
                let keeps = self.clients.iter().find(|client| {
                    let clock = client.machine.clock.read(self.now);
                    let mut kept = client.kept_data.iter().filter(|(_, kept)| kept.path == *path && kept.is_dirty());
                    client.is_open && kept.any(|(hold, _)| client.holder.write_lease_value(*hold, clock).is_some())
                });
                if let Some(place) = keeps.map(|client| client.place) {
                    let what = format!("{path} was compared while client {place} kept it to itself");
                    self.demand_of(place, Err(what));
                }
            }
        }
    }

    /// No other client has a usable copy of data under a write lease, and no other client changes
    /// it.
    pub(crate) fn check_kept(&mut self) {
        let held = self.clients.iter().map(|client| {
            // A client with a clock beyond the allowance may use its copy for too long.
            let others = self.clients.iter().filter(|other| !self.is_put_down_to_clocks(other.place));
            (client.place, invariants::caching::check(client, others, &self.oracle.truth, self.now))
        });
        let held: Vec<_> = held.filter(|(_, held)| held.is_err()).collect();
        for (place, held) in held {
            self.demand_of(place, held);
        }
    }
}
