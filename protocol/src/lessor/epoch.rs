//! The begin of an epoch: what a new leader assumes about leases and cached copies (S7, T6).
//!
//! A new leader knows which volume leases exist, because these are in the replicated state. It does
//! not know which copies its clients have. So each session with a volume lease is a covering holder
//! of that volume, until its holder report arrives or the leases of all copies that the report may
//! name have ended. If the object term is zero, the session is not covering. With the setting
//! [`Tracking::Covering`], it stays covering until its volume lease ends or the settings change.

use std::collections::BTreeSet;

use crate::{
    command::{AnyLease, Outcome},
    id::CoveringNumber,
    path::NodePath,
    planted::Bug,
    state::State,
    time::Instant,
    volume::Tracking,
    work::CountVisits,
};

use super::{Lessor, StepContext, clock::ahead_of_log_max, leases::LeaseTable, object_leases::CopyTracking};

impl Lessor {
    /// The first entry of the epoch is applied, and so is everything older in the log. Every lease
    /// starts at its horizon (T6), and every volume lease is tracked as S7 says.
    pub(super) fn begin_epoch(&mut self, outcome: &Outcome, proposed_at: Instant, cx: &mut StepContext<'_>) {
        let Outcome::EpochBegun { epoch } = outcome else { return };
        let state = cx.state;
        self.epoch = Some(*epoch);
        let time_heard = self.time_heard.min(ahead_of_log_max(state.tick()));
        self.clock.begin(state.cluster_time(), time_heard, proposed_at, cx.now);
        // The clock has just moved on by `time_heard`, and the log does not show that yet. The next
        // leader must know it. So the lessor proposes the first tick at once.
        self.last_tick = None;
        self.orphans.add(state.orphans().counted());
        self.leases = LeaseTable::from_horizons(state, self.config.bounds.departed_max);
        for (key, lease) in state.leases() {
            if let AnyLease::Volume(session, volume) = key {
                let mode = if self.planted(Bug::ForgetOldHolders) {
                    CopyTracking::Exact
                } else {
                    // The session may have copies that this leader does not know.
                    let number = self.next_covering();
                    self.copy_tracking(volume, Some(number), state)
                };
                self.object_leases.start_tracking(volume.clone(), *session, lease.incarnation, mode);
            }
        }
    }

    /// How to track the copies under a volume lease. `covering` is given if the session may have
    /// copies that the leader does not know, until a holder report with this number.
    pub(super) fn copy_tracking(
        &self,
        volume: &NodePath,
        covering: Option<CoveringNumber>,
        state: &State,
    ) -> CopyTracking {
        let settings = state.volume_of(volume).1.settings;
        match (settings.tracking(), covering) {
            // The write that set the object term to zero waited for all copies (S8).
            _ if !settings.has_object_leases() => CopyTracking::Exact,
            (Tracking::Covering, _) => CopyTracking::Covering,
            (Tracking::Objects, None) => CopyTracking::Exact,
            (Tracking::Objects, Some(number)) => {
                // The copies exist already, so their object leases end by this time.
                let expires_at = self.clock.ending_time().after(settings.longest_object_wait(self.config.drift));
                CopyTracking::AwaitingReport { number, expires_at, parts: BTreeSet::new() }
            }
        }
    }
}
