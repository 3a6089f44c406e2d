//! The begin of an epoch: what a new leader assumes about leases and cached copies (S7, T6).
//!
//! A new leader knows which volume leases exist, because these are in the replicated state. It does
//! not know which copies its clients have. So each session with a volume lease is a covering holder
//! of that volume, until its holder report arrives.

use crate::{
    command::{LeaseKey, Outcome},
    path::NodePath,
    planted::Bug,
    state::State,
    time::Instant,
    volume::Tracking,
    work::CountVisits,
};

use super::{Lessor, StepContext, clock::run_on_max, leases::LeaseEnds, object_leases::CopyTracking};

impl Lessor {
    /// The first entry of the epoch is applied, and so is everything older in the log. Every lease
    /// starts at its horizon (T6), and every volume lease is covering (S7).
    pub(super) fn begin_epoch(&mut self, outcome: &Outcome, proposed_at: Instant, cx: &mut StepContext<'_>) {
        let Outcome::EpochBegun { epoch } = outcome else { return };
        let state = cx.state;
        self.epoch = Some(*epoch);
        let run_on = self.run_on.min(run_on_max(state.tick()));
        self.clock.begin(state.cluster_time(), run_on, proposed_at, cx.now);
        // The log does not have the time heard yet, and the next leader must know it. So the lessor
        // proposes the first tick at once, which logs it.
        self.last_tick = None;
        self.orphans = state.orphans().counted().collect();
        self.lease_ends = LeaseEnds::from_horizons(state, self.config.bounds.departed_max);
        for (key, lease) in state.leases() {
            if let LeaseKey::Volume(session, volume) = key {
                let mode = if self.planted(Bug::ForgetOldHolders) {
                    CopyTracking::Exact
                } else {
                    self.covering_mode(volume, state)
                };
                self.object_leases.start_tracking(volume.clone(), *session, lease.incarnation, mode);
            }
        }
    }

    /// How to track a volume lease whose object leases are unknown.
    fn covering_mode(&mut self, volume: &NodePath, state: &State) -> CopyTracking {
        match tracking(volume, state) {
            _ if !has_object_leases(volume, state) => CopyTracking::Exact,
            Tracking::Covering => CopyTracking::Covering,
            Tracking::Objects => {
                CopyTracking::AwaitingReport { number: self.next_covering(), parts: Default::default() }
            }
        }
    }
}

/// Whether sessions may have copies in the volume. The write that set its object term to zero
/// waited for all copies (S8).
pub(super) fn has_object_leases(volume: &NodePath, state: &State) -> bool {
    state.volume(volume).is_none_or(|volume| volume.settings.has_object_leases())
}

pub(super) fn tracking(volume: &NodePath, state: &State) -> Tracking {
    state.volume(volume).map_or(Tracking::Objects, |volume| volume.settings.tracking())
}
