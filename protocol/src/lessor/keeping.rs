//! Key leases: granted and revoked through the log like any write, kept alive in the leader's memory (T6).

use std::time::Duration;

use crate::{
    command::{Granted, LeaseKey, Written},
    id::{Incarnation, LeaseId},
    message::{KeepLease, Kept, KeptSpan, KeysAfter, LeaseInfo},
    planted::Bug,
    reached::{Bound, reached},
    state::Lease,
};

use super::{Asker, Lessor, StepContext, ends::Renewing, granting::Reach, renewals::RenewalAnswer};

impl Lessor {
    /// A key lease is granted: its entry is committed. It has been promised nothing yet.
    pub(super) fn key_lease_granted(&mut self, written: &Written, turn: &StepContext<'_>) {
        let Some(Granted { id, incarnation }) = written.lease else { return };
        let key = LeaseKey::Key(id);
        if let Some(lease) = turn.state.lease(&key).filter(|lease| lease.incarnation == incarnation) {
            // Its entry may have been so long in coming that it has nothing left to promise.
            self.ends.insert(key, lease.incarnation, self.clock.ending().min(lease.horizon), lease.term());
        }
    }

    pub(super) fn keep_leases(&mut self, asker: Asker, leases: &[KeepLease], turn: &mut StepContext<'_>) {
        let kept = leases.iter().map(|lease| self.keep(*lease, turn)).collect();
        self.answer_renewal(asker, RenewalAnswer::Kept(kept), turn);
    }

    /// Renews a key lease in memory: for its term, but no further than its horizon by the promising clock (T6). One whose end has
    /// been decided is not renewed any more (T5), nor one that has taken the place of the one that is meant (T6). It
    /// is gone only when its end is applied.
    pub(super) fn keep(&mut self, KeepLease { id, incarnation }: KeepLease, turn: &StepContext<'_>) -> Kept {
        let key = LeaseKey::Key(id);
        let is_meant = |found: Incarnation| {
            incarnation.is_none_or(|meant| meant == found) || self.planted(Bug::RenewalWithoutIncarnation)
        };
        let found = turn.state.lease(&key).filter(|lease| is_meant(lease.incarnation));
        let ttl = found.map(|lease| lease.term()).unwrap_or_default();
        let named = found.map(|lease| lease.incarnation).or(incarnation).unwrap_or_default();
        let is_live = self.ends.get(&key).is_some_and(|end| !end.is_ending || self.planted(Bug::EndingLeaseRenewed));
        let lease = found.filter(|_| is_live);
        let promised = lease.and_then(|lease| {
            let (horizon, term) = (lease.horizon, lease.term());
            let Reach { span, .. } = self.reach(&key, horizon, term, turn.now, turn.now)?;
            Some((span, Renewing { horizon, term }))
        });
        if let Some((span, of)) = promised {
            let ending = self.clock.ending();
            self.ends.renew(&key, ending, span, of);
        }
        let span = match (promised, found) {
            (Some((span, _)), _) => KeptSpan::Promised(span),
            (None, Some(_)) => KeptSpan::NotNow,
            (None, None) => KeptSpan::Gone,
        };
        Kept { id, incarnation: named, ttl, span }
    }

    /// A key lease, and some of its nodes.
    pub(super) fn lease_info(
        &self,
        id: LeaseId,
        keys_after: Option<&KeysAfter>,
        turn: &StepContext<'_>,
    ) -> Option<LeaseInfo> {
        let lease = turn.state.lease(&LeaseKey::Key(id))?;
        let mut info = self.info(id, lease);
        let mut bytes = 0;
        let mut fits = |path: &&crate::path::Path| {
            bytes += path.as_str().len();
            let fits = bytes <= self.config.bounds.keys_bytes_max;
            if !fits {
                reached(Bound::KeysBytes);
            }
            fits
        };
        info.keys = match keys_after {
            None => Vec::new(),
            Some(KeysAfter::Nothing) => turn.state.carried(lease.incarnation).take_while(&mut fits).cloned().collect(),
            Some(KeysAfter::Path(last)) => {
                let rest = turn.state.carried_from(lease.incarnation, last.clone()).filter(|path| *path != last);
                rest.take_while(&mut fits).cloned().collect()
            }
        };
        Some(info)
    }

    /// Some key leases, in order.
    pub(super) fn lease_infos(&self, after: Option<LeaseId>, turn: &StepContext<'_>) -> Vec<LeaseInfo> {
        self.few(turn.state.key_leases_after(after).map(|(id, lease)| self.info(id, lease)))
    }

    fn info(&self, id: LeaseId, lease: &Lease) -> LeaseInfo {
        let end = self.ends.get(&LeaseKey::Key(id)).filter(|end| end.incarnation == lease.incarnation);
        let remaining = end.map_or(Duration::ZERO, |end| end.end.since(self.clock.ending()));
        LeaseInfo { id, ttl: lease.term(), remaining, keys: Vec::new() }
    }
}
