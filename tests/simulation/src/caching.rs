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
pub(crate) struct WriteLeased {
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

impl WriteLeased {
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
    pub(crate) fn use_as_write_lease(&mut self, place: usize, lock: LockId, path: &NodePath) -> bool {
        let client = &self.clients[place];
        let status = client.locks.get(&lock).map(|(_, status)| *status);
        let is_exclusive = matches!(status, Some(LockStatus::Granted { mode: LockMode::Exclusive, .. }));
        let mut changes = client.shell.writes.values().map(|open| &open.change);
        let is_changing = changes.any(|change| match change {
            Write::TakeWriteLease { lock: other, .. }
            | Write::ChangeLockMode { lock: other, .. }
            | Write::HandOver { lock: other, .. } => *other == lock,
            _ => false,
        });
        if !is_exclusive || is_changing {
            return false;
        }
        let clock = client.machine.clock.read(self.now);
        let found = client.shell.holder.write_lease_value(lock, clock).cloned();
        match found {
            Some(found) => self.use_write_lease(place, lock, &found),
            None if self.clients[place].write_leased.contains_key(&lock) => return false,
            None if self.oracle.truth.node(path).is_none() => {
                let client = &self.clients[place];
                let value = format!("{}.{}", client.life, client.shell.numbers).into_bytes();
                self.write(place, Write::put(path.clone(), value.into()));
            }
            None => self.write(place, Write::TakeWriteLease { path: path.clone(), lock }),
        }
        true
    }

    /// The application does something under one of its write leases.
    pub(crate) fn use_any_write_lease(&mut self, place: usize) {
        let write_leases: Vec<(LockId, NodePath)> = self.clients[place]
            .write_leased
            .iter()
            .map(|(lock, write_lease)| (*lock, write_lease.path.clone()))
            .collect();
        let (lock, path) = self.rng.pick(&write_leases).clone();
        self.use_as_write_lease(place, lock, &path);
    }

    fn use_write_lease(&mut self, place: usize, lock: LockId, found: &Value) {
        let Some(write_lease) = self.clients[place].write_leased.get_mut(&lock) else {
            return self.complain(place, format!("it has a write lease under lock {lock} that was not reported"));
        };
        let last = write_lease.last().unwrap_or(found).clone();
        write_lease.first.get_or_insert_with(|| found.clone());
        if last != *found {
            self.complain(place, format!("it set {last:?} under lock {lock}, and reads {found:?}"));
        }
        self.tally.add("reads under a write lease");
        match self.rng.below(10) {
            0..=5 => {
                let client = &mut self.clients[place];
                let number = client.shell.next_number();
                let value: Value = format!("{}.{number}k", client.life).into_bytes().into();
                if let Some(write_lease) = client.write_leased.get_mut(&lock) {
                    write_lease.changes.push((value.clone(), self.steps));
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
    pub(crate) fn write_lease_changed(&mut self, place: usize, lock: LockId, status: WriteLeaseStatus) {
        let client = &mut self.clients[place];
        let clock = client.machine.clock.read(self.now);
        let Some((path, _)) = client.locks.get(&lock) else {
            return self
                .complain(place, format!("it got a report of a write lease under lock {lock}, which it does not own"));
        };
        let path = path.clone();
        if status.is_open && status.set_count == 0 {
            self.tally.add("write leases");
            let first = client.shell.holder.write_lease_value(lock, clock).cloned();
            let write_lease = WriteLeased { path, first, changes: Vec::new(), flushed: 0, status };
            client.write_leased.insert(lock, write_lease);
            return;
        }
        let Some(write_lease) = client.write_leased.get_mut(&lock) else { return };
        let flushed = usize::try_from(status.flushed_count).expect("few").min(write_lease.changes.len());
        let revision = status.stat.filter(|_| flushed > write_lease.flushed).map(|stat| stat.modify_revision);
        write_lease.status = status;
        if let Some(revision) = revision {
            let (value, since) = write_lease.changes[flushed - 1].clone();
            write_lease.flushed = flushed;
            self.tally.add("flushes");
            self.oracle.acknowledge(revision);
            self.record_set(place, &path, &value, since, Outcome::Done { revision: revision.0 });
        }
        let client = &mut self.clients[place];
        let has_write_lease = client.shell.holder.has_write_lease(lock);
        if !has_write_lease && client.write_leased.get(&lock).is_some_and(|write_lease| !write_lease.is_dirty()) {
            client.write_leased.remove(&lock);
        }
    }

    /// The holder reports that values were lost: they will not reach the servers.
    pub(crate) fn flush_lost(&mut self, place: usize, lock: LockId, value: &Value, may_be_written: bool) {
        self.tally.add("changes lost");
        let Some(write_lease) = self.clients[place].write_leased.get_mut(&lock) else {
            return self.complain(place, format!("it got a report of the lost value {value:?}, which it did not set"));
        };
        let (path, is_last) = (write_lease.path.clone(), write_lease.last() == Some(value));
        let lost = write_lease.changes.split_off(write_lease.flushed);
        write_lease.first = Some(value.clone());
        if !is_last || lost.is_empty() {
            self.complain(
                place,
                format!("it got a report of the lost value {value:?}; the unflushed values are {lost:?}"),
            );
        }
        for (value, since) in lost {
            let outcome = if may_be_written { Outcome::Unknown } else { Outcome::Refused };
            self.record_set(place, &path, &value, since, outcome);
        }
        let write_lease = self.clients[place].write_leased.get_mut(&lock);
        write_lease.into_iter().for_each(|write_lease| write_lease.flushed = write_lease.changes.len());
    }

    /// A lock was lost or released. The holder must have reported each dirty value (S10).
    pub(crate) fn end_write_lease(&mut self, place: usize, lock: LockId) {
        if let Some(write_lease) = self.clients[place].write_leased.remove(&lock)
            && write_lease.is_dirty()
        {
            self.complain(place, format!("it got no report of the lost value {:?}", write_lease.changes.last()));
        }
    }

    /// The client's process has ended, and its memory with it. Dirty values may have been flushed,
    /// or may still be.
    pub(crate) fn forget_write_leases(&mut self, place: usize) {
        for write_lease in std::mem::take(&mut self.clients[place].write_leased).into_values() {
            for (value, since) in &write_lease.changes[write_lease.flushed..] {
                self.record_set(place, &write_lease.path, value, *since, Outcome::Unknown);
            }
        }
    }

    /// Records a value that the application set in memory, with its outcome. All later readers must
    /// see it.
    fn record_set(&mut self, place: usize, path: &NodePath, value: &Value, since: u64, outcome: Outcome) {
        let now = self.steps;
        if self.is_put_down_to_clocks(place) {
            // The client may have lost the lock already. Then the value took effect at its flush.
            invariants::linearizability::put(&mut self.observations, path, value, (since, now), outcome);
        } else {
            invariants::linearizability::set(&mut self.observations, path, value, since, outcome, now);
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
                    let mut write_leases = client
                        .write_leased
                        .iter()
                        .filter(|(_, write_lease)| write_lease.path == *path && write_lease.is_dirty());
                    client.shell.is_open
                        && write_leases.any(|(lock, _)| client.shell.holder.write_lease_value(*lock, clock).is_some())
                });
                if let Some(place) = keeps.map(|client| client.place) {
                    let what = format!("a transaction compared {path} while it had a dirty write lease there");
                    self.demand_of(place, Err(what));
                }
            }
        }
    }

    /// No other client has a usable copy of data under a write lease, and no other client changes
    /// it.
    pub(crate) fn check_write_leases(&mut self) {
        let held = self.clients.iter().map(|client| {
            // A client with a clock beyond the allowance may use its copy for too long.
            let others = self.clients.iter().filter(|other| !self.is_put_down_to_clocks(other.place));
            (client.place, invariants::write_leases::check(client, others, &self.oracle.truth, self.now))
        });
        let held: Vec<_> = held.filter(|(_, held)| held.is_err()).collect();
        for (place, held) in held {
            self.demand_of(place, held);
        }
    }
}
