//! Random holds.

use super::*;
use crate::{
    hold::HoldMode,
    id::{HoldId, Token},
};

/// On few nodes, so that they meet.
pub(super) fn random_hold(random: &mut Random, state: &State) -> Write {
    let mode = random.pick(&[HoldMode::Shared, HoldMode::Shared, HoldMode::Exclusive]);
    let wait = !random.one_in(4);
    let holds: Vec<(HoldId, Path, Option<Token>)> =
        state.holds().map(|(id, path, hold)| (id, path.clone(), hold.token)).collect();
    if holds.is_empty() || random.one_in(2) {
        let path = random.pick(&paths()[..2]);
        return Write::Lock { path, mode, wait, delay: Duration::from_millis(500 * random.below(3)) };
    }
    let (hold, path, token) = random.pick(&holds);
    match random.below(10) {
        0..=3 => Write::Convert { path, hold, mode, wait },
        4 | 5 => Write::Unlock { path, hold },
        6 => Write::Cache { path, hold },
        7 | 8 => Write::HandOver { path, hold, to: random.pick(&holds).0 },
        _ => {
            let token = if random.one_in(2) { Token(random.below(9)) } else { token.unwrap_or_default() };
            let value = (!random.one_in(3)).then(|| Value::from(vec![b'f'; random.below(5) as usize]));
            Write::Flush { path, hold, token, value, ends: random.one_in(3) }
        }
    }
}

/// Whose hold the write is about, most of the time.
pub(super) fn owner_of(write: &Write, random: &mut Random, state: &State) -> Option<SessionId> {
    match write {
        Write::Convert { hold, .. }
        | Write::Unlock { hold, .. }
        | Write::HandOver { hold, .. }
        | Write::Cache { hold, .. }
        | Write::Flush { hold, .. }
            if !random.one_in(8) =>
        {
            state.holds().find(|(id, ..)| id == hold).map(|(_, _, hold)| hold.session)
        }
        _ => None,
    }
}
