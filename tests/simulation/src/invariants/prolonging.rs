//! *An abandoned lease is prolonged by two ticks at most*: a tick moves a horizon no further than
//! the last renewal + term + 2 ticks, however late the tick comes (T6; the complaints of etcd 9888
//! and consul 1172).

use std::collections::BTreeMap;

use leasehold_protocol::{
    command::{Command, LeaseKey, Proposal},
    state::State,
    time::ClusterTime,
};

/// How far an entry, which is about to be applied, may move the horizons of the leases that it
/// renews.
///
/// Not of entries that also give new leases or change volumes: those have reasons of their own to
/// move a horizon.
pub(crate) fn bounds(truth: &State, proposal: &Proposal) -> BTreeMap<LeaseKey, ClusterTime> {
    let [Command::Tick { renewals }] = &proposal.commands[..] else { return BTreeMap::new() };
    let bound = |key: &LeaseKey, renewed: ClusterTime| {
        let lease = truth.lease(key)?;
        let term = match key {
            LeaseKey::Session(_) => return None,
            LeaseKey::Volume(_, top) => truth.volume(top)?.settings.term(),
            LeaseKey::Key(_) | LeaseKey::LockDelay(_) => lease.term(),
        };
        Some(renewed.after(term).after(truth.tick() * 2).max(lease.horizon))
    };
    renewals
        .iter()
        .filter_map(|renewal| Some((renewal.lease.clone(), bound(&renewal.lease, renewal.renewed_at)?)))
        .collect()
}

/// Checks how far it has moved them.
pub(crate) fn check(bounds: &BTreeMap<LeaseKey, ClusterTime>, truth: &State) -> Result<(), String> {
    for (key, most) in bounds {
        if let Some(lease) = truth.lease(key).filter(|lease| lease.horizon > *most) {
            return Err(format!("a tick moved the horizon of {key:?} to {}: expected {most} at most", lease.horizon));
        }
    }
    Ok(())
}
