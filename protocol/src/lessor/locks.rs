//! Requests that wait for changes of locks (S10).
//!
//! The replicated state grants locks, usually in order of arrival. A client waits with one request
//! for changes of its locks: a grant, or a new waiter. The lessor answers when the status of a
//! named lock differs from the status in the request. So it wakes only the clients concerned. If
//! the answer is lost, the client asks the present leader again.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    command::AnyLease,
    id::{LockId, SessionId},
    lock::LockStatus,
    message::{Answer, AwaitedLock, LockInfo, LockPage, Refusal},
    path::NodePath,
    state::{ChangedLocks, State},
    work::CountVisits,
};

use super::{Lessor, Requester, StepContext};

/// The waiting requests. Each session has at most one: a later request replaces an earlier one.
///
/// The indexes find the locks concerned by a change. So a change costs nothing for clients whose
/// locks keep their status (S10b). But the first waiter on a node changes the status of every lock
/// that is granted there: they become contended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct AwaitedLocks {
    /// Each request with the locks that it names, apart from ended ones: these never change.
    requests: BTreeMap<SessionId, (Requester, BTreeSet<LockId>)>,
    /// The node and the known status of each of these locks.
    by_lock: BTreeMap<(LockId, SessionId), (NodePath, LockStatus)>,
    /// The locks that their session knows as granted, with the `is_contended` that it knows. The
    /// first waiter on a node changes the status of each other granted lock there, though the
    /// records of these locks stay the same.
    by_contention: BTreeSet<(NodePath, bool, SessionId, LockId)>,
}

impl AwaitedLocks {
    fn insert(&mut self, requester: Requester, locks: Vec<AwaitedLock>) {
        let session = requester.session;
        let locks: Vec<AwaitedLock> = locks.into_iter().filter(|lock| lock.known != LockStatus::Ended).collect();
        self.requests.insert(session, (requester, locks.iter().map(|lock| lock.lock).collect()));
        for AwaitedLock { path, lock, known } in locks {
            self.by_contention.extend(contention(&path, known, session, lock));
            self.by_lock.insert((lock, session), (path, known));
        }
    }

    pub(super) fn remove(&mut self, session: SessionId) -> Option<Requester> {
        let (requester, locks) = self.requests.remove(&session)?;
        for lock in locks {
            let named = self.by_lock.remove(&(lock, session));
            if let Some(entry) = named.and_then(|(path, known)| contention(&path, known, session, lock)) {
                self.by_contention.remove(&entry);
            }
        }
        Some(requester)
    }

    pub(super) fn requesters(&self) -> impl Iterator<Item = &Requester> {
        self.requests.values().map(|(requester, _)| requester)
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 3] {
        [self.requests.len(), self.by_lock.len(), self.by_contention.len()]
    }

    /// Checks that the indexes list the locks of each request, and that each request waits for
    /// changes.
    pub(super) fn check(&self, state: &State) -> Result<(), String> {
        for (lock, session) in self.by_lock.keys() {
            if let Some(now) = self.changed(*session, *lock, state) {
                return Err(format!("{session} waits for changes of {lock:?}, which has changed to {now:?}"));
            }
        }
        let named = self.requests.iter().flat_map(|(id, (_, locks))| locks.iter().map(|lock| (*lock, *id)));
        let contended = self.by_lock.iter();
        let contended = contended.filter_map(|((lock, id), (path, known))| contention(path, *known, *id, *lock));
        if named.collect::<BTreeSet<_>>() == self.by_lock.keys().copied().collect()
            && contended.collect::<BTreeSet<_>>() == self.by_contention
        {
            return Ok(());
        }
        Err("the indexes of awaited locks do not match the waiting requests".to_owned())
    }

    /// The sessions that await this lock.
    fn awaiting(&self, lock: LockId) -> impl Iterator<Item = (SessionId, LockId)> {
        let found = self.by_lock.range((lock, SessionId(0))..=(lock, SessionId(u64::MAX))).counted();
        found.map(|((lock, session), _)| (*session, *lock))
    }

    /// The awaited granted locks on the node whose sessions know them as contended, or as not
    /// contended.
    fn known_as(&self, is_contended: bool, path: &NodePath) -> impl Iterator<Item = (SessionId, LockId)> {
        let first = (path.clone(), is_contended, SessionId(0), LockId(0));
        let last = (path.clone(), is_contended, SessionId(u64::MAX), LockId(u64::MAX));
        self.by_contention.range(first..=last).counted().map(|(_, _, session, lock)| (*session, *lock))
    }

    /// The status of an awaited lock, if it differs from the status that the session knows.
    fn changed(&self, session: SessionId, lock: LockId, state: &State) -> Option<LockStatus> {
        let (path, known) = self.by_lock.get(&(lock, session))?;
        Some(state.lock_status(path, lock)).filter(|now| now != known)
    }
}

/// The entry of a granted lock in the index by contention.
fn contention(
    path: &NodePath,
    known: LockStatus,
    session: SessionId,
    lock: LockId,
) -> Option<(NodePath, bool, SessionId, LockId)> {
    match known {
        LockStatus::Granted { is_contended, .. } => Some((path.clone(), is_contended, session, lock)),
        LockStatus::Waiting | LockStatus::Ended => None,
    }
}

impl Lessor {
    /// A session waits for changes of its locks.
    pub(super) fn await_lock_status(
        &mut self,
        requester: Requester,
        locks: Vec<AwaitedLock>,
        cx: &mut StepContext<'_>,
    ) {
        if let Some(earlier) = self.awaited_locks.remove(requester.session) {
            self.reply_without_promises(&earlier, Ok(Answer::LockStatuses(Vec::new())), cx);
        }
        let now = locks.iter().map(|lock| (lock.lock, lock.known, cx.state.lock_status(&lock.path, lock.lock)));
        let changed = now.filter(|(_, known, now)| known != now).map(|(id, _, now)| (id, now));
        let changed: Vec<(LockId, LockStatus)> = changed.collect();
        if changed.is_empty() {
            self.awaited_locks.insert(requester, locks);
        } else {
            self.reply(&requester, Ok(Answer::LockStatuses(changed)), cx);
        }
    }

    /// Handles changes of locks, by their nodes: answers the requests concerned.
    pub(super) fn handle_lock_changes(&mut self, locks: &ChangedLocks, cx: &mut StepContext<'_>) {
        self.unblock_reads(locks.keys(), cx);
        let mut changed: BTreeMap<SessionId, BTreeMap<LockId, LockStatus>> = BTreeMap::new();
        for (path, ids) in locks {
            self.note_lost_locks(ids, cx.state);
            // A lock that waits for its own upgrade is contended only if another lock waits. Every
            // other granted lock is contended if any lock waits.
            let own = ids.iter().copied().chain(cx.state.upgrading_lock(path));
            let own = own.flat_map(|id| self.awaited_locks.awaiting(id));
            let outdated = !cx.state.has_lock_waiter(path, None);
            let others = self.awaited_locks.known_as(outdated, path);
            for (session, lock) in own.chain(others) {
                if let Some(status) = self.awaited_locks.changed(session, lock, cx.state) {
                    changed.entry(session).or_default().insert(lock, status);
                }
            }
        }
        for (session, statuses) in changed {
            if let Some(requester) = self.awaited_locks.remove(session) {
                self.reply(&requester, Ok(Answer::LockStatuses(statuses.into_iter().collect())), cx);
            }
        }
    }

    /// Notes the ends of the lock delays that this entry has begun. Each counts from the entry that
    /// ended the lost lock.
    fn note_lost_locks(&mut self, ids: &BTreeSet<LockId>, state: &State) {
        for (id, record) in ids.iter().counted().filter_map(|id| state.lost_lock(*id).map(|record| (*id, record))) {
            let key = AnyLease::LockDelay(id);
            if let Some(lease) = state.lease(&key).filter(|_| self.leases.get(&key).is_none()) {
                let end = self.clock.ending_time().after(record.lock_delay).min(lease.horizon);
                self.leases.insert(key, record.incarnation, end, record.lock_delay);
            }
        }
    }

    /// Refuses the session's waiting request: the client no longer waits for it, or the session has
    /// ended.
    pub(super) fn refuse_awaited_locks(&mut self, session: SessionId, refusal: Refusal, cx: &mut StepContext<'_>) {
        if let Some(requester) = self.awaited_locks.remove(session) {
            self.reply_without_promises(&requester, Err(refusal), cx);
        }
    }

    /// The locks on a node after the lock `after`: granted, waiting, and lost ones in their lock
    /// delay, in the order of arrival, as many as one answer may have. It walks the earlier ones
    /// too: a node has at most [`LOCKS_PER_NODE_MAX`](crate::state::LOCKS_PER_NODE_MAX) locks.
    pub(super) fn lock_page(&self, path: &NodePath, after: Option<LockId>, cx: &StepContext<'_>) -> LockPage {
        let state = cx.state;
        let info = |(id, record): (LockId, &crate::state::LockRecord)| LockInfo {
            lock: id,
            session: record.session,
            name: state.session(record.session).map(|session| session.name.clone()).unwrap_or_default(),
            mode: record.mode,
            token: record.token,
            is_upgrading: record.is_upgrading,
            is_write_lease: record.write_lease.is_some(),
            is_lost: matches!(record.lease, AnyLease::LockDelay(_)),
            remaining: self.remaining_of(&record.lease, state),
        };
        let mut rest = state.locks_on(path).skip_while(|(id, _)| Some(*id) <= after).map(info).peekable();
        let locks = self.few(rest.by_ref());
        let through = locks.last().map(|last| last.lock).filter(|_| rest.peek().is_some());
        LockPage { locks, through }
    }
}
