//! Holder reports: a client sends its object leases to a leader that tracks it as covering (S7).
//!
//! After registering, the holder reports at once what the leader asks for. After a return that
//! revived its copies, it waits, because a client that reads a few objects and leaves again needs
//! no report. It reports after a recall of objects that it does not have, or after the first
//! renewal that it sends once two terms have passed. If the answer says `reports_at_once`, it does
//! not wait.
//!
//! The holder sends each part after the answer to the part before. A report only adds object
//! leases, and is never a consent. If it is interrupted, the next registration asks for a new one.

use std::collections::VecDeque;

use super::{Holder, SendId, in_flight::Purpose, known_volume::Unreported, volume_leases::RenewalSelection};
use crate::{
    id::{CoveringNumber, Incarnation},
    message::{Body, CoveringLease, HolderReportPart, REPORT_PART_OBJECTS_MAX},
    object::Object,
    path::NodePath,
    time::Instant,
};

/// A report that is being sent.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct HolderReport {
    incarnation: Incarnation,
    covering: CoveringNumber,
    parts: u32,
    /// The parts that the leader has not answered.
    unanswered: VecDeque<Vec<Object>>,
    /// The latest sending. An answer to another one is about an earlier report.
    sent: Option<SendId>,
}

impl HolderReport {
    /// A report of the present object leases. Without any, it has one empty part.
    fn new(incarnation: Incarnation, covering: CoveringNumber, objects: Vec<Object>) -> Self {
        let mut unanswered: VecDeque<_> = objects.chunks(REPORT_PART_OBJECTS_MAX).map(<[Object]>::to_vec).collect();
        if unanswered.is_empty() {
            unanswered.push_back(Vec::new());
        }
        let parts = u32::try_from(unanswered.len()).unwrap_or(u32::MAX);
        Self { incarnation, covering, parts, unanswered, sent: None }
    }

    /// The next part to send.
    fn next_part(&self, volume: &NodePath) -> Option<HolderReportPart> {
        let unanswered = u32::try_from(self.unanswered.len()).unwrap_or(u32::MAX);
        Some(HolderReportPart {
            volume: volume.clone(),
            incarnation: self.incarnation,
            covering: self.covering,
            part: self.parts - unanswered,
            parts: self.parts,
            objects: self.unanswered.front()?.clone(),
        })
    }
}

impl Holder {
    /// Starts the report that the client owes for the volume, if it owes one.
    pub(super) fn start_owed_report(&mut self, top: &NodePath, now: Instant) {
        let Some(lease) = self.volumes.get(top).and_then(|volume| volume.lease.as_ref()) else { return };
        if let Some(Unreported { covering: number, .. }) = lease.unreported {
            let covering = CoveringLease { volume: top.clone(), incarnation: lease.incarnation, number };
            self.start_holder_report(&covering, now);
        }
    }

    /// Starts a report of the object leases under this volume lease, if it is the present lease.
    pub(super) fn start_holder_report(&mut self, covering: &CoveringLease, now: Instant) {
        let CoveringLease { volume: top, incarnation, number } = covering;
        let Some(mut volume) = self.volumes.get_mut(top) else { return };
        let Some(lease) = &mut volume.lease else { return };
        if lease.incarnation != *incarnation {
            return;
        }
        lease.unreported = None;
        let since = lease.since;
        drop(volume);
        let report = HolderReport::new(*incarnation, *number, self.copies.leased_since(top, since, now));
        self.forget_holder_report(top);
        self.holder_reports.insert(top.clone(), report);
        self.send_queue.push(Purpose::HolderReport(top.clone()));
    }

    pub(super) fn send_report_part(&mut self, top: &NodePath, now: Instant) {
        if let Some(part) = self.holder_reports.get(top).and_then(|report| report.next_part(top)) {
            let body = Body::HolderReport(part);
            let sent = self.send(Purpose::HolderReport(top.clone()), body, RenewalSelection::Due, now);
            self.holder_reports.get_mut(top).into_iter().for_each(|report| report.sent = Some(sent));
        }
    }

    /// Forgets the volume's report, and ignores a late answer to it.
    pub(super) fn forget_holder_report(&mut self, top: &NodePath) {
        if let Some(report) = self.holder_reports.remove(top) {
            report.sent.into_iter().for_each(|send_id| self.in_flight.cancel(send_id));
            self.send_queue.cancel(&Purpose::HolderReport(top.clone()));
        }
    }

    /// Handles the leader's answer to a part.
    pub(super) fn advance_holder_report(&mut self, top: &NodePath, send_id: SendId) {
        let Some(report) = self.holder_reports.get_mut(top).filter(|report| report.sent == Some(send_id)) else {
            return;
        };
        report.unanswered.pop_front();
        if report.unanswered.is_empty() {
            self.holder_reports.remove(top);
        } else {
            self.send_queue.push(Purpose::HolderReport(top.clone()));
        }
    }
}
