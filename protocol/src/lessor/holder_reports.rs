//! Holder reports: the lists of object leases that sessions send to a new leader, or on their
//! return (S7).

use crate::{
    id::SessionId,
    message::HolderReportPart,
    reached::{Bound, reached},
};

use super::{
    Lessor, StepContext,
    object_leases::{CopyTracking, GrantSource, ObjectLease},
    recalls::RecallChannel,
};

impl Lessor {
    /// Handles one part of a holder report (S7). A part only adds object leases, and is never a
    /// consent. A part that names another lease or covering is old, and has no effect. The number
    /// of parts is bounded, because the lessor remembers which have arrived.
    pub(super) fn add_holder_report_part(&mut self, session: SessionId, part: &HolderReportPart, cx: &StepContext<'_>) {
        let HolderReportPart { volume, incarnation, covering, part, parts, objects } = part;
        if part >= parts || *parts as usize > self.config.limits.session_objects_max.max(1) {
            return;
        }
        let Some(track) = self.object_leases.track(volume, session) else { return };
        let CopyTracking::AwaitingReport { number, expires_at, .. } = track.tracking else { return };
        if track.incarnation != *incarnation || number != *covering {
            return;
        }
        self.counters.0.note_report_part(volume);
        // The report does not name the grant of each copy. The last grant to the session is an
        // upper bound (S2, S2w).
        let sequence = self.recall_channels.get(&session).map_or(0, RecallChannel::last_grant);
        let most = self.config.limits.session_objects_max;
        // If there is no room, the part is ignored, so the session stays covering.
        if self.object_leases.len() + objects.len() > self.config.bounds.object_leases_max {
            reached(Bound::ObjectLeases);
            return;
        }
        for object in objects.iter().filter(|object| cx.state.volume_of(&object.path).0 == volume) {
            let lease = ObjectLease { expires_at, source: GrantSource::reported(sequence) };
            if self.object_leases.add(volume, object, session, lease, most, cx.state) {
                self.note_recorded(volume, object, session, cx.state);
            }
        }
        self.object_leases.add_report_part(volume, session, *part, *parts);
    }
}
