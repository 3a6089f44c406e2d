//! Random writes.

use super::{locks::random_lock_write, transactions::random_transaction, *};
use crate::quota::Quota;

fn random_name(random: &mut Random) -> LeaseName {
    LeaseName::parse(&format!("lease-{}", random.below(3))).expect("a name")
}

/// Usually no quota, or else one that the few nodes can reach.
fn random_quota(random: &mut Random) -> Quota {
    let mut limit = |most| random.one_in(4).then(|| random.below(most));
    Quota { nodes: limit(10), bytes: limit(80) }
}

pub(super) fn random_write(random: &mut Random, state: &State) -> Write {
    let path = random.pick(&paths());
    let condition = match random.below(6) {
        0 => Condition::Absent,
        1 => Condition::Revision(Revision(random.below(state.revision().0 + 2))),
        2 => state.node(&path).map_or(Condition::Any, |node| Condition::Revision(node.modify_revision)),
        _ => Condition::Any,
    };
    let settings = settings(Duration::from_millis(200 + 200 * random.below(60)));
    let attach = match random.below(9) {
        0 | 1 => Attach::Lease(LeaseId(random.below(3))),
        8 => Attach::LeaseNamed(random_name(random)),
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
            let name = random.one_in(2).then(|| random_name(random));
            Write::GrantLease { id, name, ttl: Duration::from_millis(200 + random.below(9000)) }
        }
        18 if random.one_in(3) => Write::RevokeLeaseNamed { name: random_name(random) },
        18 => Write::RevokeLease { id: LeaseId(random.below(3)) },
        0..=8 => Write::Put { path, value: Value::from(vec![0; random.below(5) as usize]), condition, attach },
        9..=12 => Write::Delete { path, recursive: random.one_in(2), condition },
        13 => Write::CreateVolume { path, settings: settings.with_quota(random_quota(random)) },
        14 => Write::SetVolume { path, settings: settings.with_quota(random_quota(random)) },
        _ => Write::RemoveVolume { path },
    }
}
