//! *Horizons never move backwards* (T6; issue etcd 9888). That no promise goes beyond its horizon
//! is checked by [`Lessor::check`](leasehold_protocol::lessor::Lessor::check).

use std::collections::BTreeMap;

use leasehold_protocol::{command::AnyLease, id::Incarnation, state::State, time::ClusterTime};

/// The horizons last seen.
#[derive(Debug, Default)]
pub(crate) struct Horizons {
    seen: BTreeMap<AnyLease, (Incarnation, ClusterTime)>,
    time: ClusterTime,
}

impl Horizons {
    pub(crate) fn check(&mut self, truth: &State) -> Result<(), String> {
        if truth.cluster_time() < self.time {
            return Err(format!("cluster time went back from {} to {}", self.time, truth.cluster_time()));
        }
        self.time = truth.cluster_time();
        for (key, lease) in truth.leases() {
            let seen = (lease.incarnation, lease.horizon);
            if let Some((incarnation, horizon)) = self.seen.insert(key.clone(), seen)
                && (incarnation > lease.incarnation || (incarnation == lease.incarnation && horizon > lease.horizon))
            {
                return Err(format!("{key:?} went back from {incarnation}, {horizon} to {seen:?}"));
            }
        }
        Ok(())
    }
}
