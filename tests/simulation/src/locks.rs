//! What applications do with locks: they request, upgrade, downgrade, hand over and release them.

use std::{collections::VecDeque, time::Duration};

use leasehold_model::client::OpenWrite;
use leasehold_protocol::{
    command::Write,
    holder::HolderInput,
    id::LockId,
    lock::{LockMode, LockOutcome, LockStatus},
    path::NodePath,
};

use crate::{
    invariants::locks::{self, Counted},
    profile::MS,
    world::World,
};

/// The nodes that applications lock: one in each possible volume.
pub(crate) const NODES: [&str; 3] = ["/b", "/a/x", "/v/y"];

/// The most locks that one client has at once.
const LOCKS_MAX: usize = 4;

/// Whether the write is about a lock, so that its result has to be released.
pub(crate) fn is_about_locks(change: &Write) -> bool {
    matches!(
        change,
        Write::Lock { .. }
            | Write::ChangeLockMode { .. }
            | Write::Unlock { .. }
            | Write::HandOver { .. }
            | Write::TakeWriteLease { .. }
    )
}

impl World {
    /// The application requests a lock, or does something with one of its locks.
    pub(crate) fn lock_or_unlock(&mut self, place: usize) {
        let locks: Vec<(LockId, NodePath)> =
            self.clients[place].locks.iter().map(|(id, (path, _))| (*id, path.clone())).collect();
        let mode = *self.rng.pick(&[LockMode::Shared, LockMode::Exclusive]);
        let wait = !self.rng.chance(250);
        if locks.is_empty() || (locks.len() < LOCKS_MAX && self.rng.chance(400)) {
            let path = NodePath::parse(NODES[self.rng.index(NODES.len())]).expect("a path");
            let delay = if self.rng.chance(100) {
                Duration::from_micros(self.rng.between(MS, self.term()))
            } else {
                Duration::ZERO
            };
            return self.write(place, Write::Lock { path, mode, wait, delay });
        }
        let (lock, path) = self.rng.pick(&locks).clone();
        if self.rng.chance(600) && self.use_as_write_lease(place, lock, &path) {
            return;
        }
        let is_converting = |open: &OpenWrite| match open.change {
            Write::ChangeLockMode { lock: other, .. } | Write::HandOver { lock: other, .. } => other == lock,
            _ => false,
        };
        if self.rng.chance(400) {
            // A lock that is a write lease, or that is becoming one, stays as it is. The holder
            // would refuse to send the change.
            let client = &self.clients[place];
            if !client.shell.writes.values().any(is_converting) && !client.shell.holder.has_write_lease(lock) {
                if self.rng.chance(300) {
                    let successor = self.successor(&path);
                    return self.write(place, Write::HandOver { path, lock, successor });
                }
                self.lower(place, lock, mode);
                self.write(place, Write::ChangeLockMode { path, lock, mode, wait });
            }
            return;
        }
        // The application stops using the lock when it sends the release.
        let (_, input) = self.clients[place].shell.begin_write(Write::Unlock { path, lock }, self.steps);
        self.step_holder(place, input);
        self.clients[place].locks.remove(&lock);
        self.end_write_lease(place, lock);
    }

    /// A waiter for the node, if any client knows of one. Otherwise a lock that may not exist.
    fn successor(&mut self, path: &NodePath) -> LockId {
        let locks = self.clients.iter().flat_map(|client| &client.locks);
        let waits = locks.filter(|(_, (at, status))| at == path && *status == LockStatus::Waiting);
        let waiting: Vec<LockId> = waits.map(|(id, _)| *id).collect();
        if waiting.is_empty() { LockId(1) } else { *self.rng.pick(&waiting) }
    }

    /// A hand-over succeeded: the application forgets the lock. If it is refused, or its outcome is
    /// unknown, the lock stays, or the holder reports it lost.
    pub(crate) fn handed_over(&mut self, place: usize, change: Option<&Write>) {
        if let Some(Write::HandOver { lock, .. }) = change {
            self.clients[place].locks.remove(lock);
        }
    }

    /// The application counts on the shared mode from the request for a downgrade on.
    fn lower(&mut self, place: usize, lock: LockId, mode: LockMode) {
        if let Some((_, LockStatus::Granted { mode: known, .. })) = self.clients[place].locks.get_mut(&lock)
            && mode == LockMode::Shared
        {
            *known = mode;
        }
    }

    /// A request for a lock was answered.
    pub(crate) fn lock_answered(&mut self, place: usize, change: Option<&Write>, grant: &LockOutcome) {
        let status = match grant.token {
            Some(token) => LockStatus::Granted { token, mode: grant.mode, is_contended: false },
            None => LockStatus::Waiting,
        };
        let is_conversion = matches!(change, Some(Write::ChangeLockMode { .. }));
        let locks = &mut self.clients[place].locks;
        match locks.get(&grant.lock) {
            // A later report has already said more.
            Some((_, LockStatus::Granted { token, .. })) if grant.token.is_none_or(|granted| granted < *token) => {}
            // The application released the lock while the change of its mode was in flight.
            None if is_conversion => {}
            _ => {
                locks.insert(grant.lock, (grant.path.clone(), status));
            }
        }
    }

    /// The status of a lock has changed.
    pub(crate) fn lock_changed(&mut self, place: usize, lock: LockId, status: LockStatus) {
        self.tally.add(match status {
            LockStatus::Granted { is_contended: true, .. } => "lock reports of contention",
            _ => "lock reports of other changes",
        });
        match self.clients[place].locks.get_mut(&lock) {
            Some((_, known)) => *known = status,
            None => self.complain(place, format!("it got a status of lock {lock}, which it does not have")),
        }
    }

    /// The client lost locks. The servers may not know it yet, so the application releases them.
    pub(crate) fn locks_lost(&mut self, place: usize, locks: &[LockId], inputs: &mut VecDeque<HolderInput>) {
        for lock in locks {
            self.tally.add("locks lost");
            self.end_write_lease(place, *lock);
            let client = &mut self.clients[place];
            let Some((path, _)) = client.locks.remove(lock) else {
                return self
                    .complain(place, format!("it got a report that lock {lock} is lost, which it does not have"));
            };
            if client.shell.is_open {
                let (_, input) = client.shell.begin_write(Write::Unlock { path, lock: *lock }, self.steps);
                inputs.push_back(input);
            }
        }
    }

    /// No two clients count on incompatible locks.
    pub(crate) fn check_locks(&mut self) {
        let counted: Vec<Counted<'_>> =
            self.clients.iter().flat_map(|client| locks::counted(client, self.now)).collect();
        let certain: Vec<Counted<'_>> =
            counted.into_iter().filter(|counted| !self.is_put_down_to_clocks(counted.client)).collect();
        let held = locks::check_exclusion(&certain);
        self.demand(held);
    }
}
