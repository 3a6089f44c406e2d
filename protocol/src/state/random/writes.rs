//! Random writes.

use super::{locks::random_lock_write, transactions::random_transaction, *};
use crate::quota::Quota;

fn random_name(random: &mut Random) -> LeaseName {
    LeaseName::parse(&format!("lease-{}", random.below(3))).expect("a name")
}

/// A quota that the few nodes can reach, or none. The root has none, because it would
/// refuse most writes. It leaves the other draws as they are.
fn random_quota(random: &Random, path: &NodePath) -> Quota {
    let mut random = Random(random.0);
    if path.is_root() || random.one_in(4) {
        return Quota::NONE;
    }
    Quota { nodes: Some(random.below(3)), bytes: random.one_in(2).then(|| random.below(40)) }
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
    let kind = random.below(24);
    match kind {
        20.. => Write::Transaction(random_transaction(random, state)),
        16 | 17 => {
            let id = if random.one_in(4) { None } else { Some(LeaseId(random.below(3))) };
            let name = random.one_in(2).then(|| random_name(random));
            Write::GrantLease { id, name, ttl: Duration::from_millis(200 + random.below(9000)) }
        }
        18 if random.one_in(3) => Write::RevokeLeaseNamed { name: random_name(random) },
        18 => Write::RevokeLease { id: LeaseId(random.below(3)), incarnation: None },
        0..=8 => Write::Put { path, value: Value::from(vec![0; random.below(5) as usize]), condition, attach },
        9..=12 => Write::Delete { path, recursive: random.one_in(2), condition },
        13 | 14 => {
            let settings = settings.with_quota(random_quota(random, &path));
            if kind == 13 { Write::CreateVolume { path, settings } } else { Write::SetVolume { path, settings } }
        }
        _ => Write::RemoveVolume { path },
    }
}
