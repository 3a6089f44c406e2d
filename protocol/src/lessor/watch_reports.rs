//! Reports to watchers that may still be on their way, and how many bytes they have.
//!
//! One large change may have thousands of watchers. If the lessor reported it to all of them at
//! once, the encoded reports could exceed the memory of the process. So the lessor counts the bytes
//! of all reports in flight, and those of each session. Further watches wait, in order.
//!
//! # When a report has arrived
//!
//! A client asks for the changes after the end of the last report. So the next request of a watch
//! acknowledges its report, and all earlier reports of the session. Answers can overtake each
//! other. So the lessor may stop counting an earlier report a little too early, which costs only
//! memory. The lessor also stops counting a session's reports when the session registers anew or
//! ends.
//!
//! A slow application may ask much later, or cancel its watch. So the lessor also stops counting a
//! report in two other cases:
//!
//! - The session has acknowledged nothing for [`TAKEN_AFTER`], and then one of its requests
//!   arrives. So its connection probably works, and reports of this age have probably arrived. If
//!   they have not, the lessor counts too few bytes, at most until the connection ends.
//! - The report was sent [`LOST_AFTER`] ago. A connection whose client takes nothing ends within
//!   30 s (`UNACKNOWLEDGED_MAX` in `protocol/wire/src/socket.rs`). So the report has arrived or is
//!   lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    change::WatchScope,
    id::{Revision, SessionId},
    reached::{Bound, reached},
    time::Instant,
    work::visit,
};

use super::LessorBounds;

/// If a session has acknowledged nothing for this long, its next request shows that reports of this
/// age have probably arrived.
const TAKEN_AFTER: Duration = Duration::from_secs(5);

/// After this time, a report has arrived, or its connection has ended.
const LOST_AFTER: Duration = Duration::from_secs(35);

/// The reports in flight.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct WatchReports {
    /// The number of the last report.
    last: u64,
    /// By number, so the oldest is the first.
    reports: BTreeMap<u64, ReportInFlight>,
    sessions: BTreeMap<SessionId, SessionReports>,
    bytes: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ReportInFlight {
    session: SessionId,
    watched: WatchScope,
    /// The next request of the watch asks for the changes after this revision.
    through: Revision,
    bytes: usize,
    sent_at: Instant,
}

/// The reports in flight to one session.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SessionReports {
    numbers: BTreeSet<u64>,
    /// The requests that acknowledge reports. Several reports of one scope may end at one revision.
    /// Then each such request acknowledges the oldest of them.
    awaited: BTreeMap<(WatchScope, Revision), BTreeSet<u64>>,
    bytes: usize,
    /// The last acknowledgement, or the first report since then.
    quiet_from: Instant,
}

impl WatchReports {
    /// Adds a report that ends at this revision and is sent now.
    ///
    /// `bytes` is about its memory: its encoded bytes, and its events, which may be a copy.
    pub(super) fn add(
        &mut self,
        session: SessionId,
        watched: WatchScope,
        through: Revision,
        (bytes, now): (usize, Instant),
    ) {
        self.last += 1;
        let own = self.sessions.entry(session).or_insert_with(|| SessionReports {
            numbers: BTreeSet::new(),
            awaited: BTreeMap::new(),
            bytes: 0,
            quiet_from: now,
        });
        own.numbers.insert(self.last);
        own.awaited.entry((watched.clone(), through)).or_default().insert(self.last);
        own.bytes += bytes;
        self.bytes += bytes;
        self.reports.insert(self.last, ReportInFlight { session, watched, through, bytes, sent_at: now });
    }

    /// A watch asks for the changes after this revision: if a report ended there, it has arrived.
    pub(super) fn acknowledge(&mut self, session: SessionId, watched: &WatchScope, after: Revision, now: Instant) {
        let Some(own) = self.sessions.get_mut(&session) else { return };
        if let Some(through) = own.awaited.get(&(watched.clone(), after)).and_then(|numbers| numbers.first().copied()) {
            own.quiet_from = now;
            self.remove_own(session, |number, _| number <= through);
        }
    }

    /// A request of the session has arrived. Returns true if reports may have stopped counting.
    pub(super) fn heard_from(&mut self, session: SessionId, now: Instant) -> bool {
        let Some(own) = self.sessions.get_mut(&session) else { return false };
        let is_quiet = now >= own.quiet_from.after(TAKEN_AFTER);
        if is_quiet {
            own.quiet_from = now;
            self.remove_own(session, |_, report| now >= report.sent_at.after(TAKEN_AFTER));
        }
        is_quiet
    }

    /// The session has registered again, or has ended.
    pub(super) fn forget(&mut self, session: SessionId) {
        self.remove_own(session, |_, _| true);
    }

    /// Removes lost reports. Returns their sessions.
    pub(super) fn remove_lost(&mut self, now: Instant) -> BTreeSet<SessionId> {
        let mut found = BTreeSet::new();
        while let Some((number, report)) = self.reports.first_key_value()
            && now >= report.sent_at.after(LOST_AFTER)
        {
            found.insert(report.session);
            self.remove(*number);
        }
        found
    }

    /// Removes the session's reports from the oldest on, as long as they have arrived.
    fn remove_own(&mut self, session: SessionId, has_arrived: impl Fn(u64, &ReportInFlight) -> bool) {
        while let Some(number) = self.sessions.get(&session).and_then(|own| own.numbers.first().copied())
            && self.reports.get(&number).is_some_and(|report| has_arrived(number, report))
        {
            self.remove(number);
        }
    }

    fn remove(&mut self, number: u64) {
        visit(1);
        let Some(ReportInFlight { session, watched, through, bytes, .. }) = self.reports.remove(&number) else {
            return;
        };
        self.bytes -= bytes;
        if let Some(own) = self.sessions.get_mut(&session) {
            own.bytes -= bytes;
            own.numbers.remove(&number);
            let request = (watched, through);
            if let Some(numbers) = own.awaited.get_mut(&request) {
                numbers.remove(&number);
                if numbers.is_empty() {
                    own.awaited.remove(&request);
                }
            }
            if own.numbers.is_empty() {
                self.sessions.remove(&session);
            }
        }
    }

    /// Whether another report to anyone must wait.
    pub(super) fn are_full(&self, bounds: &LessorBounds) -> bool {
        let are_full = self.bytes >= bounds.watch_bytes_in_flight_max;
        if are_full {
            reached(Bound::WatchBytes);
        }
        are_full
    }

    /// Whether another report to the session must wait.
    pub(super) fn are_full_for(&self, session: SessionId, bounds: &LessorBounds) -> bool {
        let are_full = self.bytes_to(session) >= bounds.session_watch_bytes_in_flight_max;
        if are_full {
            reached(Bound::SessionWatchBytes);
        }
        are_full
    }

    /// The bytes of the reports in flight to the session.
    pub(super) fn bytes_to(&self, session: SessionId) -> usize {
        self.sessions.get(&session).map_or(0, |own| own.bytes)
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 3] {
        let awaited = self.sessions.values().flat_map(|own| own.awaited.values()).map(BTreeSet::len).sum();
        [self.reports.len(), self.sessions.len(), awaited]
    }

    /// Checks that the tables and the sums match.
    pub(super) fn check(&self) -> Result<(), String> {
        let sum = |numbers: &BTreeSet<u64>| {
            numbers.iter().filter_map(|number| self.reports.get(number)).map(|report| report.bytes).sum::<usize>()
        };
        for (session, own) in &self.sessions {
            let are_own = own
                .numbers
                .iter()
                .all(|number| self.reports.get(number).is_some_and(|report| report.session == *session));
            let is_awaited = own.awaited.values().flatten().copied().collect::<BTreeSet<u64>>() == own.numbers;
            if own.numbers.is_empty() || !are_own || !is_awaited || sum(&own.numbers) != own.bytes {
                return Err(format!("the reports in flight to session {session} do not match: {own:?}"));
            }
        }
        let numbers: usize = self.sessions.values().map(|own| own.numbers.len()).sum();
        let bytes: usize = self.sessions.values().map(|own| own.bytes).sum();
        if (numbers, bytes) != (self.reports.len(), self.bytes) {
            return Err(format!(
                "{numbers} reports of {bytes} bytes are in flight to sessions: expected {} of {}",
                self.reports.len(),
                self.bytes
            ));
        }
        Ok(())
    }
}
