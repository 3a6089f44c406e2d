//! What applications do with locks: they request, upgrade, downgrade, hand over and release them.

use std::{collections::VecDeque, time::Duration};

use leasehold_protocol::{
    command::Write,
    holder::HolderInput,
    id::LockId,
    lock::{LockGrant, LockMode, LockStatus},
    path::NodePath,
};

use crate::{
    client::OpenWrite,
    invariants::holds::{self, Counted},
    profile::MS,
    world::World,
};

/// The nodes that applications lock: one in each possible volume.
pub(crate) const NODES: [&str; 3] = ["/b", "/a/x", "/v/y"];

/// The most locks that one client has at once.
const HOLDS_MAX: usize = 4;

/// Whether the write is about a lock, so that its result has to be released.
pub(crate) fn is_about_holds(change: &Write) -> bool {
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
        let holds: Vec<(LockId, NodePath)> =
            self.clients[place].holds.iter().map(|(id, (path, _))| (*id, path.clone())).collect();
        let mode = *self.rng.pick(&[LockMode::Shared, LockMode::Exclusive]);
        let wait = !self.rng.chance(250);
        if holds.is_empty() || (holds.len() < HOLDS_MAX && self.rng.chance(400)) {
            let path = NodePath::parse(NODES[self.rng.index(NODES.len())]).expect("a path");
            let delay = if self.rng.chance(100) {
                Duration::from_micros(self.rng.between(MS, self.term()))
            } else {
                Duration::ZERO
            };
            return self.write(place, Write::Lock { path, mode, wait, delay });
        }
        let (lock, path) = self.rng.pick(&holds).clone();
        if self.rng.chance(600) && self.keep_to_itself(place, lock, &path) {
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
            if !client.writes.values().any(is_converting) && !client.holder.has_write_lease(lock) {
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
        let change = Write::Unlock { path, lock };
        let write = self.begin_write(place, &change);
        self.step_holder(place, HolderInput::Write { write, change });
        self.clients[place].holds.remove(&lock);
        self.kept_is_over(place, lock);
    }

    /// A waiter for the node, if any client knows of one. Otherwise a lock that may not exist.
    fn successor(&mut self, path: &NodePath) -> LockId {
        let holds = self.clients.iter().flat_map(|client| &client.holds);
        let waits = holds.filter(|(_, (at, status))| at == path && *status == LockStatus::Waiting);
        let waiting: Vec<LockId> = waits.map(|(id, _)| *id).collect();
        if waiting.is_empty() { LockId(1) } else { *self.rng.pick(&waiting) }
    }

    /// A hand-over succeeded: the application forgets the lock. If it is refused, or its outcome is
    /// unknown, the lock stays, or the holder reports it lost.
    pub(crate) fn handed_over(&mut self, place: usize, change: Option<&Write>) {
        if let Some(Write::HandOver { lock, .. }) = change {
            self.clients[place].holds.remove(lock);
        }
    }

    /// The application counts on the shared mode from the request for a downgrade on.
    fn lower(&mut self, place: usize, hold: LockId, mode: LockMode) {
        if let Some((_, LockStatus::Granted { mode: known, .. })) = self.clients[place].holds.get_mut(&hold)
            && mode == LockMode::Shared
        {
            *known = mode;
        }
    }

    /// A request for a lock was answered.
    pub(crate) fn taken(&mut self, place: usize, change: Option<&Write>, taken: &LockGrant) {
        let status = match taken.token {
            Some(token) => LockStatus::Granted { token, mode: taken.mode, is_contended: false },
            None => LockStatus::Waiting,
        };
        let is_conversion = matches!(change, Some(Write::ChangeLockMode { .. }));
        let holds = &mut self.clients[place].holds;
        match holds.get(&taken.lock) {
            // A later report has already said more.
            Some((_, LockStatus::Granted { token, .. })) if taken.token.is_none_or(|taken| taken < *token) => {}
            // The application released the lock while the change of its mode was in flight.
            None if is_conversion => {}
            _ => {
                holds.insert(taken.lock, (taken.path.clone(), status));
            }
        }
    }

    /// The status of a lock has changed.
    pub(crate) fn hold_changed(&mut self, place: usize, hold: LockId, status: LockStatus) {
        self.tally.add(match status {
            LockStatus::Granted { is_contended: true, .. } => "holds that others want",
            _ => "holds that changed",
        });
        match self.clients[place].holds.get_mut(&hold) {
            Some((_, known)) => *known = status,
            None => self.demand(Err(format!("client {place} is told of hold {hold}, which it does not have"))),
        }
    }

    /// The client lost locks. The servers may not know it yet, so the application releases them.
    pub(crate) fn holds_over(&mut self, place: usize, holds: &[LockId], inputs: &mut VecDeque<HolderInput>) {
        for hold in holds {
            self.tally.add("holds lost");
            self.kept_is_over(place, *hold);
            let client = &mut self.clients[place];
            let Some((path, _)) = client.holds.remove(hold) else {
                return self
                    .demand(Err(format!("client {place} is told that hold {hold} is over, which it does not have")));
            };
            if client.is_open {
                let change = Write::Unlock { path, lock: *hold };
                inputs.push_back(HolderInput::Write { write: self.begin_write(place, &change), change });
            }
        }
    }

    /// No two clients count on incompatible locks.
    pub(crate) fn check_holds(&mut self) {
        let counted: Vec<Counted<'_>> =
            self.clients.iter().flat_map(|client| holds::counted(client, self.now)).collect();
        let certain: Vec<Counted<'_>> =
            counted.into_iter().filter(|counted| !self.is_put_down_to_clocks(counted.client)).collect();
        let held = holds::check_exclusion(&certain);
        self.demand(held);
    }
}
