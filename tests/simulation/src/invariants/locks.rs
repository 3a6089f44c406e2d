//! *At most one exclusive owner of a lock, and none beside others* (S10; lessons of Jepsen's
//! analysis of etcd 3.4.3, and of Redlock). This holds at every true time, by each client's own
//! clock. *Fencing tokens only grow*, over all leaders (Chubby). In the end every client knows the
//! status of its locks.

use std::collections::BTreeMap;

use leasehold_protocol::{
    command::Write,
    id::{LockId, Token},
    lock::{LockMode, LockStatus},
    path::NodePath,
    state::State,
};

use crate::client::Client;

/// A lock that a client counts on right now.
pub(crate) struct Counted<'a> {
    pub(crate) client: usize,
    pub(crate) path: &'a NodePath,
    lock: LockId,
    mode: LockMode,
}

/// The locks that the client counts on at this true time, whether it runs or is paused.
pub(crate) fn counted(client: &Client, now: u64) -> impl Iterator<Item = Counted<'_>> {
    let clock = client.machine.clock.read(now);
    let open = client.locks.iter().filter(|_| client.shell.is_open);
    open.filter_map(move |(lock, (path, status))| match status {
        LockStatus::Granted { mode, .. } if !client.shell.holder.lock_remaining(*lock, clock).is_zero() => {
            Some(Counted { client: client.place, path, lock: *lock, mode: *mode })
        }
        _ => None,
    })
}

/// No two clients count on incompatible locks.
pub(crate) fn check_exclusion(counted: &[Counted<'_>]) -> Result<(), String> {
    for (place, one) in counted.iter().enumerate() {
        let mut rest = counted[place + 1..].iter();
        if let Some(other) = rest.find(|other| one.path == other.path && !one.mode.is_compatible_with(other.mode)) {
            return Err(format!(
                "two clients own incompatible locks on {}: client {} on lock {}, {:?}, and client {} on lock {}, {:?}",
                one.path, one.client, one.lock, one.mode, other.client, other.lock, other.mode
            ));
        }
    }
    Ok(())
}

/// The highest token granted on each node, and each lock's token and mode.
#[derive(Debug, Default)]
pub(crate) struct Tokens {
    highest: BTreeMap<NodePath, Token>,
    of: BTreeMap<LockId, (Token, LockMode)>,
}

impl Tokens {
    /// An entry was committed. Checks that its grants have higher tokens than all earlier ones.
    /// Returns the number of grants, and how many of them went to waiters.
    pub(crate) fn check(&mut self, truth: &State, waited: impl Fn(LockId) -> bool) -> Result<(u64, u64), String> {
        let mut granted: Vec<(Token, LockId, &NodePath, LockMode)> = Vec::new();
        for (id, path, lock) in truth.locks() {
            let Some(token) = lock.token else { continue };
            let known = self.of.get(&id).copied();
            // An upgrade is a grant. A downgrade keeps its token.
            let is_upgrade =
                known.is_some_and(|(_, mode)| mode == LockMode::Shared && lock.mode == LockMode::Exclusive);
            if known.is_none_or(|(old, _)| old != token) || is_upgrade {
                granted.push((token, id, path, lock.mode));
            }
            self.of.insert(id, (token, lock.mode));
        }
        granted.sort();
        for (token, id, path, _) in &granted {
            if let Some(highest) = self.highest.insert((*path).clone(), *token).filter(|highest| highest >= token) {
                return Err(format!("lock {id} on {path} was granted under token {token}, after {highest}"));
            }
        }
        let late = granted.iter().filter(|(_, id, ..)| waited(*id)).count();
        Ok((granted.len() as u64, late as u64))
    }
}

/// In the end each client knows the status of all its locks, and has no unknown lock.
pub(crate) fn check_known(client: &Client, truth: &State) -> Result<(), String> {
    if !client.shell.is_open {
        return Ok(());
    }
    for (id, (path, known)) in &client.locks {
        let is = truth.lock_status(path, *id);
        if is != *known {
            return Err(format!("client {} knows lock {id} on {path} as {known:?}: expected {is:?}", client.place));
        }
    }
    let session = client.shell.holder.session();
    let own = truth.locks().filter(|(_, _, lock)| Some(lock.session) == session && lock.lease.session() == session);
    let is_releasing = |id: &LockId| {
        let mut writes = client.shell.writes.values().map(|open| &open.change);
        writes.any(|write| matches!(write, Write::Unlock { lock, .. } if lock == id))
    };
    match own.map(|(id, ..)| id).find(|id| !client.locks.contains_key(id) && !is_releasing(id)) {
        Some(id) => Err(format!("client {} does not know its lock {id}", client.place)),
        None => Ok(()),
    }
}

/// The locks of departed clients have ended.
pub(crate) fn check_owners(clients: &[Client], truth: &State) -> Result<(), String> {
    let is_owned =
        |session| clients.iter().any(|client| client.shell.is_open && client.shell.holder.session() == Some(session));
    match truth.locks().find(|(_, _, lock)| !is_owned(lock.session)) {
        Some((id, path, lock)) => Err(format!("lock {id} on {path} outlives its owner, session {}", lock.session)),
        None => Ok(()),
    }
}
