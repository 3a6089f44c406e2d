//! *An abandoned lease is prolonged by two ticks at most* (T6; issues etcd 9888, consul 1172). A
//! tick moves a horizon no further than the last renewal + term + 2 ticks, however late the tick
//! is.

use std::collections::BTreeMap;

use leasehold_protocol::{
    command::{AnyLease, Command, Proposal},
    state::State,
    time::ClusterTime,
};

/// How far an entry may move the horizons of the leases that it renews. Call it before the entry is
/// applied.
///
/// It covers entries with a tick alone. New leases and changed volumes move horizons for other
/// reasons.
pub(crate) fn bounds(truth: &State, proposal: &Proposal) -> BTreeMap<AnyLease, ClusterTime> {
    let [Command::Tick { renewals }] = &proposal.commands[..] else { return BTreeMap::new() };
    let bound = |key: &AnyLease, renewed: ClusterTime| {
        let lease = truth.lease(key)?;
        let term = match key {
            AnyLease::Session(_) => return None,
            AnyLease::Volume(_, top) => truth.volume_term(top, &truth.volume(top)?.settings),
            AnyLease::KeyLease(_) | AnyLease::LockDelay(_) => lease.term(),
        };
        Some(renewed.after(term).after(truth.tick() * 2).max(lease.horizon))
    };
    renewals
        .iter()
        .filter_map(|renewal| Some((renewal.lease.clone(), bound(&renewal.lease, renewal.renewed_at)?)))
        .collect()
}

/// Checks how far the entry has moved them.
pub(crate) fn check(bounds: &BTreeMap<AnyLease, ClusterTime>, truth: &State) -> Result<(), String> {
    for (key, most) in bounds {
        if let Some(lease) = truth.lease(key).filter(|lease| lease.horizon > *most) {
            return Err(format!("a tick moved the horizon of {key:?} to {}: expected {most} at most", lease.horizon));
        }
    }
    Ok(())
}
