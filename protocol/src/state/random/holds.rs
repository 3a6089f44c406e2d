//! Random holds.

use super::*;
use crate::{hold::HoldMode, id::HoldId};

/// On few nodes, so that they meet.
pub(super) fn random_hold(random: &mut Random, state: &State) -> Write {
    let mode = random.pick(&[HoldMode::Shared, HoldMode::Shared, HoldMode::Exclusive]);
    let wait = !random.one_in(4);
    let holds: Vec<(HoldId, Path)> = state.holds().map(|(id, path, _)| (id, path.clone())).collect();
    if holds.is_empty() || random.one_in(2) {
        let path = random.pick(&paths()[..2]);
        return Write::Lock { path, mode, wait, delay: Duration::from_millis(500 * random.below(3)) };
    }
    let (hold, path) = random.pick(&holds);
    match random.below(5) {
        0 => Write::HandOver { path, hold, to: random.pick(&holds).0 },
        1 | 2 => Write::Convert { path, hold, mode, wait },
        _ => Write::Unlock { path, hold },
    }
}

/// Whose hold the write is about, most of the time.
pub(super) fn owner_of(write: &Write, random: &mut Random, state: &State) -> Option<SessionId> {
    match write {
        Write::Convert { hold, .. } | Write::Unlock { hold, .. } | Write::HandOver { hold, .. }
            if !random.one_in(8) =>
        {
            state.holds().find(|(id, ..)| id == hold).map(|(_, _, hold)| hold.session)
        }
        _ => None,
    }
}
