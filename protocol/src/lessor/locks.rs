//! Holds: sessions that wait to be told how theirs stand.
//!
//! Holds are granted by the log, to whoever's turn it is, and are in the replicated state. A client
//! that waits for one, or wants to know whether somebody waits for its own, leaves a request here
//! that is answered when one of its holds stands otherwise than it says. So only those are woken
//! whom it concerns, whichever leader they ask, and a lost answer is asked for again.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    command::LeaseKey,
    id::{LockId, SessionId},
    lock::LockStatus,
    message::{Answer, AwaitedLock, LockInfo, Refusal},
    path::NodePath,
    state::State,
    work::CountVisits,
};

use super::{Lessor, Requester, StepContext};

/// The requests that wait. Each session has one at most: a later one takes the place of an earlier.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct AwaitedLocks {
    requests: BTreeMap<SessionId, (Requester, Vec<AwaitedLock>)>,
    by_path: BTreeSet<(NodePath, SessionId)>,
}

impl AwaitedLocks {
    fn insert(&mut self, asker: Requester, locks: Vec<AwaitedLock>) {
        self.by_path.extend(locks.iter().map(|hold| (hold.path.clone(), asker.session)));
        self.requests.insert(asker.session, (asker, locks));
    }

    /// The request of a session does not wait any more.
    pub(super) fn remove(&mut self, session: SessionId) -> Option<Requester> {
        let (asker, holds) = self.requests.remove(&session)?;
        for hold in holds {
            self.by_path.remove(&(hold.path, session));
        }
        Some(asker)
    }

    /// Everyone who waits.
    pub(super) fn askers(&self) -> impl Iterator<Item = &Requester> {
        self.requests.values().map(|(asker, _)| asker)
    }

    /// How many entries there are, of each table.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 2] {
        [self.requests.len(), self.by_path.len()]
    }

    /// Each is found by the nodes that it names, and by no others.
    pub(super) fn check(&self) -> Result<(), String> {
        let named = self
            .requests
            .iter()
            .flat_map(|(session, (_, holds))| holds.iter().map(|hold| (hold.path.clone(), *session)));
        if named.collect::<BTreeSet<_>>() == self.by_path {
            return Ok(());
        }
        Err("the nodes by which those are found who wait for news of holds are not the ones that they named".to_owned())
    }

    fn on(&self, path: &NodePath) -> impl Iterator<Item = SessionId> {
        self.by_path
            .range((path.clone(), SessionId(0))..=(path.clone(), SessionId(u64::MAX)))
            .counted()
            .map(|(_, id)| *id)
    }

    /// The holds of a session's request that stand otherwise than it says.
    fn changed(&self, session: SessionId, state: &State) -> Vec<(LockId, LockStatus)> {
        let locks = self.requests.get(&session).into_iter().flat_map(|(_, holds)| holds);
        changed(locks, state)
    }
}

fn changed<'a>(locks: impl IntoIterator<Item = &'a AwaitedLock>, state: &State) -> Vec<(LockId, LockStatus)> {
    let now = locks.into_iter().map(|hold| (hold.lock, hold.known, state.lock_status(&hold.path, hold.lock)));
    now.filter(|(_, known, now)| known != now).map(|(hold, _, now)| (hold, now)).collect()
}

impl Lessor {
    /// A session waits to be told of its holds.
    pub(super) fn await_locks(&mut self, asker: Requester, locks: Vec<AwaitedLock>, turn: &mut StepContext<'_>) {
        if let Some(earlier) = self.awaited_locks.remove(asker.session) {
            self.reply_without_promises(&earlier, Ok(Answer::LockStatuses(Vec::new())), turn);
        }
        let changed = changed(&locks, turn.state);
        if changed.is_empty() {
            self.awaited_locks.insert(asker, locks);
        } else {
            self.reply(&asker, Ok(Answer::LockStatuses(changed)), turn);
        }
    }

    /// Holds on these nodes have changed: those are told whom it concerns.
    pub(super) fn handle_lock_changes(&mut self, paths: &BTreeSet<NodePath>, turn: &mut StepContext<'_>) {
        self.unblock_reads(paths, turn);
        for path in paths {
            self.start_lock_delays(path, turn.state);
            let waiting: Vec<SessionId> = self.awaited_locks.on(path).collect();
            for session in waiting {
                let changed = self.awaited_locks.changed(session, turn.state);
                if changed.is_empty() {
                    continue;
                }
                if let Some(asker) = self.awaited_locks.remove(session) {
                    self.reply(&asker, Ok(Answer::LockStatuses(changed)), turn);
                }
            }
        }
    }

    /// A hold that was lost may keep its node for a while: from the entry on that says so.
    fn start_lock_delays(&mut self, path: &NodePath, state: &State) {
        for (id, hold) in state.locks_on(path).filter(|(_, hold)| matches!(hold.lease, LeaseKey::LockDelay(_))) {
            let key = LeaseKey::LockDelay(id);
            if let Some(lease) = state.lease(&key).filter(|_| self.lease_ends.get(&key).is_none()) {
                let end = self.clock.expiry_time().after(hold.lock_delay).min(lease.horizon);
                self.lease_ends.insert(key, hold.incarnation, end, hold.lock_delay);
            }
        }
    }

    /// Nobody waits any more for what the session wanted to know.
    pub(super) fn refuse_awaited_locks(&mut self, session: SessionId, refusal: Refusal, turn: &mut StepContext<'_>) {
        if let Some(asker) = self.awaited_locks.remove(session) {
            self.reply_without_promises(&asker, Err(refusal), turn);
        }
    }

    /// The holds on a node, those that are held and those that wait, in the order of arrival.
    pub(super) fn lock_infos(&self, path: &NodePath, turn: &StepContext<'_>) -> Vec<LockInfo> {
        let state = turn.state;
        let info = |(id, hold): (LockId, &crate::state::LockRecord)| LockInfo {
            lock: id,
            session: hold.session,
            name: state.session(hold.session).map(|session| session.name.clone()).unwrap_or_default(),
            mode: hold.mode,
            token: hold.token,
            is_upgrading: hold.is_upgrading,
            is_write_lease: hold.write_lease.is_some(),
            is_lost: matches!(hold.lease, LeaseKey::LockDelay(_)),
            remaining: self.remaining_of(&hold.lease, state),
        };
        self.few(state.locks_on(path).map(info))
    }
}
