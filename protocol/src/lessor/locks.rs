//! Requests that wait for changes of locks (S10).
//!
//! The log grants locks in the order of the lock queues, and the replicated state has them. A
//! client waits with one request for changes of its locks: a grant, or a new waiter. The lessor
//! answers when the status of a named lock differs from the status in the request. So it wakes only
//! the clients concerned. After a lost answer the client asks any leader again.

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

/// The waiting requests. Each session has at most one: a later request replaces an earlier one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct AwaitedLocks {
    requests: BTreeMap<SessionId, (Requester, Vec<AwaitedLock>)>,
    by_path: BTreeSet<(NodePath, SessionId)>,
}

impl AwaitedLocks {
    fn insert(&mut self, requester: Requester, locks: Vec<AwaitedLock>) {
        self.by_path.extend(locks.iter().map(|lock| (lock.path.clone(), requester.session)));
        self.requests.insert(requester.session, (requester, locks));
    }

    pub(super) fn remove(&mut self, session: SessionId) -> Option<Requester> {
        let (requester, locks) = self.requests.remove(&session)?;
        for lock in locks {
            self.by_path.remove(&(lock.path, session));
        }
        Some(requester)
    }

    pub(super) fn requesters(&self) -> impl Iterator<Item = &Requester> {
        self.requests.values().map(|(requester, _)| requester)
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 2] {
        [self.requests.len(), self.by_path.len()]
    }

    /// Checks that `by_path` lists each request under exactly the nodes that it names.
    pub(super) fn check(&self) -> Result<(), String> {
        let named = self
            .requests
            .iter()
            .flat_map(|(session, (_, locks))| locks.iter().map(|lock| (lock.path.clone(), *session)));
        if named.collect::<BTreeSet<_>>() == self.by_path {
            return Ok(());
        }
        Err("the index by path does not match the waiting requests".to_owned())
    }

    fn on(&self, path: &NodePath) -> impl Iterator<Item = SessionId> {
        self.by_path
            .range((path.clone(), SessionId(0))..=(path.clone(), SessionId(u64::MAX)))
            .counted()
            .map(|(_, id)| *id)
    }

    /// The locks of a session's request whose status differs from the status in the request.
    fn changed(&self, session: SessionId, state: &State) -> Vec<(LockId, LockStatus)> {
        let locks = self.requests.get(&session).into_iter().flat_map(|(_, locks)| locks);
        changed(locks, state)
    }
}

fn changed<'a>(locks: impl IntoIterator<Item = &'a AwaitedLock>, state: &State) -> Vec<(LockId, LockStatus)> {
    let now = locks.into_iter().map(|lock| (lock.lock, lock.known, state.lock_status(&lock.path, lock.lock)));
    now.filter(|(_, reported, now)| reported != now).map(|(id, _, now)| (id, now)).collect()
}

impl Lessor {
    /// A session waits for changes of its locks.
    pub(super) fn await_locks(&mut self, requester: Requester, locks: Vec<AwaitedLock>, cx: &mut StepContext<'_>) {
        if let Some(earlier) = self.awaited_locks.remove(requester.session) {
            self.reply_without_promises(&earlier, Ok(Answer::LockStatuses(Vec::new())), cx);
        }
        let changed = changed(&locks, cx.state);
        if changed.is_empty() {
            self.awaited_locks.insert(requester, locks);
        } else {
            self.reply(&requester, Ok(Answer::LockStatuses(changed)), cx);
        }
    }

    /// Handles changes of the locks on these nodes: answers the requests concerned.
    pub(super) fn handle_lock_changes(&mut self, paths: &BTreeSet<NodePath>, cx: &mut StepContext<'_>) {
        self.unblock_reads(paths, cx);
        for path in paths {
            self.start_lock_delays(path, cx.state);
            let waiting: Vec<SessionId> = self.awaited_locks.on(path).collect();
            for session in waiting {
                let changed = self.awaited_locks.changed(session, cx.state);
                if changed.is_empty() {
                    continue;
                }
                if let Some(requester) = self.awaited_locks.remove(session) {
                    self.reply(&requester, Ok(Answer::LockStatuses(changed)), cx);
                }
            }
        }
    }

    /// Records the ends of lock delays, which count from the entry that ended the lost lock.
    fn start_lock_delays(&mut self, path: &NodePath, state: &State) {
        for (id, record) in state.locks_on(path).filter(|(_, record)| matches!(record.lease, LeaseKey::LockDelay(_))) {
            let key = LeaseKey::LockDelay(id);
            if let Some(lease) = state.lease(&key).filter(|_| self.lease_ends.get(&key).is_none()) {
                let end = self.clock.ending_time().after(record.lock_delay).min(lease.horizon);
                self.lease_ends.insert(key, record.incarnation, end, record.lock_delay);
            }
        }
    }

    /// Refuses the session's waiting request, because the client no longer waits for it.
    pub(super) fn refuse_awaited_locks(&mut self, session: SessionId, refusal: Refusal, cx: &mut StepContext<'_>) {
        if let Some(requester) = self.awaited_locks.remove(session) {
            self.reply_without_promises(&requester, Err(refusal), cx);
        }
    }

    /// The granted and the waiting locks on a node, in the order of arrival.
    pub(super) fn lock_infos(&self, path: &NodePath, cx: &StepContext<'_>) -> Vec<LockInfo> {
        let state = cx.state;
        let info = |(id, record): (LockId, &crate::state::LockRecord)| LockInfo {
            lock: id,
            session: record.session,
            name: state.session(record.session).map(|session| session.name.clone()).unwrap_or_default(),
            mode: record.mode,
            token: record.token,
            is_upgrading: record.is_upgrading,
            is_write_lease: record.write_lease.is_some(),
            is_lost: matches!(record.lease, LeaseKey::LockDelay(_)),
            remaining: self.remaining_of(&record.lease, state),
        };
        self.few(state.locks_on(path).map(info))
    }
}
