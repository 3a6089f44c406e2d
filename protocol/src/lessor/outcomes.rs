//! The steps that follow a proposal of this lessor, just after it was applied (S7, S7b, S9, T5,
//! T6).

use crate::{command::Outcome, state::ChangedLocks};

use super::{Lessor, ProposalInFlight, ProposalReason, StepContext};

impl Lessor {
    pub(super) fn handle_committed(
        &mut self,
        number: u64,
        (outcomes, locked): (Vec<Outcome>, &ChangedLocks),
        cx: &mut StepContext<'_>,
    ) {
        self.handle_lock_changes(locked, cx);
        let Some(ProposalInFlight { time, proposed_at, reasons }) = self.in_flight.remove(&number) else { return };
        if self.epoch.is_some() {
            self.clock.committed(time, proposed_at);
        }
        for (reason, outcome) in reasons.into_iter().zip(outcomes) {
            match reason {
                ProposalReason::Begin => self.begin_epoch(&outcome, proposed_at, cx),
                ProposalReason::Tick => {
                    self.is_tick_in_flight = false;
                    self.leases.handle_tick_committed(cx.state);
                    if !self.leases.is_behind() {
                        self.renewals.mark_ticks_complete();
                    }
                }
                ProposalReason::Purge(write_id) => self.handle_purged(write_id, cx),
                ProposalReason::Open(requester) => {
                    self.load_to_come -= Self::load_of_session();
                    self.sessions_to_come -= 1;
                    self.handle_session_opened(&requester, &outcome, cx);
                }
                ProposalReason::Close(requester) => self.handle_session_closed(&requester, cx),
                ProposalReason::Acquire(request) => {
                    self.load_to_come -= request.load;
                    self.handle_volume_acquired(request, &outcome, cx);
                }
                ProposalReason::Expire(key, incarnation) => self.handle_expired(key, incarnation, &outcome, cx),
                ProposalReason::Write(write_id) => self.handle_written(write_id, outcome, cx),
            }
        }
    }
}
