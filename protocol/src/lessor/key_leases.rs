//! Key leases. The log grants and revokes them, as for any write. The leader renews them in its
//! memory (T3, T5, T6). Their ends are proposed in `lease_ends.rs`, like those of all leases.

use std::time::Duration;

use crate::{
    command::{AnyLease, GrantedKeyLease, Written},
    id::{Incarnation, LeaseId},
    message::{KeepAliveResult, KeyLeasePromise, KeyLeaseRenewal, LeaseInfo, NodesAfter},
    planted::Bug,
    reached::{Bound, reached},
    state::LeaseRecord,
};

use super::{Lessor, Requester, StepContext, leases::RenewalPlan, promises::PromiseReach, renewals::RenewalAnswer};

impl Lessor {
    /// The grant of a key lease is committed. Nothing is promised yet, so its end is now, or its
    /// horizon if that has passed already. The promise with the answer moves the end.
    pub(super) fn key_lease_granted(&mut self, written: &Written, cx: &StepContext<'_>) {
        let Some(GrantedKeyLease { id, incarnation }) = written.lease else { return };
        let key = AnyLease::KeyLease(id);
        if let Some(lease) = cx.state.lease(&key).filter(|lease| lease.incarnation == incarnation) {
            // If the commit took long, the horizon may have passed already.
            self.leases.insert(key, lease.incarnation, self.clock.ending_time().min(lease.horizon), lease.term());
        }
    }

    pub(super) fn keep_alive(&mut self, requester: Requester, leases: &[KeyLeaseRenewal], cx: &mut StepContext<'_>) {
        let promises = leases.iter().map(|lease| self.renew_key_lease(*lease, cx)).collect();
        self.answer_renewal(requester, RenewalAnswer::KeepAlive(promises), cx);
    }

    /// Renews a key lease in memory: for its term, but no further than its horizon by the promising
    /// clock (T6). It does not renew a lease whose end is proposed (T5), or a lease that replaced
    /// the intended one (T6). The answer is `NotFound` only if the state has no such lease.
    pub(super) fn renew_key_lease(
        &mut self,
        KeyLeaseRenewal { id, incarnation }: KeyLeaseRenewal,
        cx: &StepContext<'_>,
    ) -> KeyLeasePromise {
        let key = AnyLease::KeyLease(id);
        let is_intended = |found: Incarnation| incarnation.is_none_or(|intended| intended == found);
        let found = cx.state.lease(&key).filter(|lease| is_intended(lease.incarnation));
        let ttl = found.map(|lease| lease.term()).unwrap_or_default();
        let named = found.map(|lease| lease.incarnation).or(incarnation).unwrap_or_default();
        let is_live =
            self.leases.get(&key).is_some_and(|end| !end.is_end_proposed || self.planted(Bug::EndingLeaseRenewed));
        let lease = found.filter(|_| is_live);
        let renewal = lease.and_then(|lease| {
            let (horizon, term) = (lease.horizon, lease.term());
            let PromiseReach { span: promised_time, .. } = self.reach(&key, horizon, term, cx.now, cx.now)?;
            Some((promised_time, RenewalPlan { horizon, term }))
        });
        if let Some((promised_time, plan)) = renewal {
            let ending = self.clock.ending_time();
            self.leases.renew(&key, ending, promised_time, plan);
        }
        let result = match (renewal, found) {
            (Some((promised_time, _)), _) => KeepAliveResult::Renewed(promised_time),
            (None, Some(_)) => KeepAliveResult::Unconfirmed,
            (None, None) => KeepAliveResult::NotFound,
        };
        KeyLeasePromise { id, incarnation: named, ttl, result }
    }

    /// A key lease, and some of its nodes.
    pub(super) fn lease_info(
        &self,
        id: LeaseId,
        nodes_after: Option<&NodesAfter>,
        cx: &StepContext<'_>,
    ) -> Option<LeaseInfo> {
        let lease = cx.state.lease(&AnyLease::KeyLease(id))?;
        let mut info = self.info(id, lease);
        let mut bytes = 0;
        let mut fits = |path: &&crate::path::NodePath| {
            bytes += path.as_str().len();
            let fits = bytes <= self.config.bounds.inspection_bytes_max;
            if !fits {
                reached(Bound::InspectionBytes);
            }
            fits
        };
        info.nodes = match nodes_after {
            None => Vec::new(),
            Some(NodesAfter::Nothing) => {
                cx.state.attached_nodes(lease.incarnation).take_while(&mut fits).cloned().collect()
            }
            Some(NodesAfter::Path(last)) => {
                let rest = cx.state.attached_nodes_from(lease.incarnation, last.clone()).filter(|path| *path != last);
                rest.take_while(&mut fits).cloned().collect()
            }
        };
        Some(info)
    }

    /// Key leases after this id, in the order of ids.
    pub(super) fn lease_infos(&self, after: Option<LeaseId>, cx: &StepContext<'_>) -> Vec<LeaseInfo> {
        self.few(cx.state.key_leases_after(after).map(|(id, lease)| self.info(id, lease)))
    }

    fn info(&self, id: LeaseId, lease: &LeaseRecord) -> LeaseInfo {
        let end = self.leases.get(&AnyLease::KeyLease(id)).filter(|end| end.incarnation == lease.incarnation);
        let remaining = end.map_or(Duration::ZERO, |end| end.ends_at.since(self.clock.ending_time()));
        let (name, incarnation) = (lease.name.clone(), lease.incarnation);
        LeaseInfo { id, name, incarnation, ttl: lease.term(), remaining, nodes: Vec::new() }
    }
}
