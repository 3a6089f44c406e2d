//! Random locks.

use super::*;
use crate::{
    id::{LockId, Token},
    lock::LockMode,
};

/// A random write about locks. It uses few nodes, so that locks conflict.
pub(super) fn random_lock_write(random: &mut Random, state: &State) -> Write {
    let mode = random.pick(&[LockMode::Shared, LockMode::Shared, LockMode::Exclusive]);
    let wait = !random.one_in(4);
    let locks: Vec<(LockId, NodePath, Option<Token>)> =
        state.locks().map(|(id, path, record)| (id, path.clone(), record.token)).collect();
    if locks.is_empty() || random.one_in(2) {
        let path = random.pick(&paths()[..2]);
        return Write::Lock { path, mode, wait, delay: Duration::from_millis(500 * random.below(3)) };
    }
    let (lock, path, token) = random.pick(&locks);
    match random.below(10) {
        0..=3 => Write::ChangeLockMode { path, lock, mode, wait },
        4 | 5 => Write::Unlock { path, lock },
        6 => Write::TakeWriteLease { path, lock },
        7 | 8 => Write::HandOver { path, lock, successor: random.pick(&locks).0 },
        _ => {
            let token = if random.one_in(2) { Token(random.below(9)) } else { token.unwrap_or_default() };
            let value = (!random.one_in(3)).then(|| Value::from(vec![b'f'; random.below(5) as usize]));
            Write::Flush { path, lock, token, value, ends_write_lease: random.one_in(3) }
        }
    }
}

/// Usually the session of the lock that the write names.
pub(super) fn owner_of(write: &Write, random: &mut Random, state: &State) -> Option<SessionId> {
    match write {
        Write::ChangeLockMode { lock, .. }
        | Write::Unlock { lock, .. }
        | Write::HandOver { lock, .. }
        | Write::TakeWriteLease { lock, .. }
        | Write::Flush { lock, .. }
            if !random.one_in(8) =>
        {
            state.locks().find(|(id, ..)| id == lock).map(|(_, _, record)| record.session)
        }
        _ => None,
    }
}
