//! Random writes.

use super::{locks::random_lock_write, transactions::random_transaction, *};

pub(super) fn random_write(random: &mut Random, state: &State) -> Write {
    let path = random.pick(&paths());
    let condition = match random.below(6) {
        0 => Condition::Absent,
        1 => Condition::Revision(Revision(random.below(state.revision().0 + 2))),
        2 => state.node(&path).map_or(Condition::Any, |node| Condition::Revision(node.modify_revision)),
        _ => Condition::Any,
    };
    let settings = settings(Duration::from_millis(200 + 200 * random.below(60)));
    let attach = match random.below(8) {
        0 | 1 => Attach::Lease(LeaseId(random.below(3))),
        2 | 3 => Attach::Session,
        4 => Attach::Unchanged,
        _ => Attach::Nothing,
    };
    if random.one_in(5) {
        return random_lock_write(random, state);
    }
    match random.below(24) {
        20.. => Write::Transaction(random_transaction(random, state)),
        16 | 17 => {
            let id = if random.one_in(4) { None } else { Some(LeaseId(random.below(3))) };
            Write::GrantLease { id, ttl: Duration::from_millis(200 + random.below(9000)) }
        }
        18 => Write::RevokeLease { id: LeaseId(random.below(3)) },
        0..=8 => Write::Put { path, value: Value::from(vec![0; random.below(5) as usize]), condition, attach },
        9..=12 => Write::Delete { path, recursive: random.one_in(2), condition },
        13 => Write::CreateVolume { path, settings },
        14 => Write::SetVolume { path, settings },
        _ => Write::RemoveVolume { path },
    }
}
