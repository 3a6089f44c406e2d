//! *Each read from memory is counted at most once* in the counters of its volume. Clients report
//! these reads along with requests, as the library does. Reports are drawn by nothing, and change
//! nothing but counters: so a world with them is as it would be without them.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_protocol::{
    holder::SendId,
    id::RequestId,
    lessor::{LessorEffect, LessorInput},
    message::{Answer, Body, CachedReads, Inspect, ReadGaps, Request, RequestHeader},
    object::Object,
    path::NodePath,
    time::Instant,
};

use crate::world::World;

/// The id of a question to a copy of a lessor. No request has it.
const QUESTION: RequestId = RequestId(u64::MAX);

/// The reads from memory that one client has not reported.
#[derive(Debug, Default)]
pub(crate) struct UnreportedReads {
    reads: BTreeMap<NodePath, u64>,
    reported_at: Instant,
}

impl UnreportedReads {
    /// Adds a report to a request, as the library does.
    fn report(&mut self, request: &mut Request, now: Instant) {
        if request.takes_cached_reads(now.since(self.reported_at)) && !self.reads.is_empty() {
            let reads = std::mem::take(&mut self.reads).into_iter();
            request.header.cached_reads =
                reads.map(|(volume, reads)| CachedReads { volume, reads, gaps: ReadGaps::default() }).collect();
            self.reported_at = now;
        }
    }
}

/// The reads from memory of all clients, by volume.
#[derive(Debug, Default)]
pub(crate) struct ReportedReads {
    answered: BTreeMap<NodePath, u64>,
    /// Those that leaders have counted, of reports that came once.
    counted: BTreeMap<NodePath, u64>,
    /// The requests with reports that have arrived.
    arrived: BTreeSet<(usize, SendId)>,
}

/// What a leader had counted for the volumes of a report before it arrived. `None` for a volume
/// that does not exist.
type CountsBefore = Vec<(CachedReads, Option<u64>)>;

impl World {
    /// A client has answered a read from its memory.
    pub(crate) fn read_from_memory(&mut self, place: usize, object: &Object) {
        self.tally.add("reads from a cache");
        let client = &mut self.clients[place];
        let Some(copy) = client.shell.cache.copies.get(object) else { return };
        let volume = copy.validity.volume.clone();
        *client.unreported.reads.entry(volume.clone()).or_default() += 1;
        *self.reported_reads.answered.entry(volume).or_default() += 1;
    }

    /// Adds a report of reads from memory to a request.
    pub(crate) fn report_reads(&mut self, place: usize, request: &mut Request) {
        let clock = self.client_clock(place);
        self.clients[place].unreported.report(request, clock);
        for report in &request.header.cached_reads {
            self.tally.add_many("reads from memory reported", report.reads);
        }
    }

    /// A request arrives at a server. Checks what it makes the leader count.
    pub(crate) fn server_is_asked(&mut self, place: usize, connection: usize, send_id: SendId, request: Request) {
        let server = &self.servers[place];
        if let (Body::Write { write, .. }, true) = (&request.body, server.shell.lessor.is_some()) {
            let key = (request.header.session, request.header.sequence);
            self.oracle.named_revocations.arrived(key, write, &server.state);
        }
        let before = |report: &CachedReads| (report.clone(), self.reads_counted(place, &report.volume));
        let before: CountsBefore = request.header.cached_reads.iter().map(before).collect();
        self.server_handles(place, connection, send_id, request);
        if !before.is_empty() {
            let held = self.check_report(place, (connection, send_id), before);
            self.demand(held);
        }
    }

    /// The leader counts exactly the report. It counts nothing if it refuses the request as not
    /// the session's, or if the volume does not exist.
    fn check_report(&mut self, place: usize, name: (usize, SendId), before: CountsBefore) -> Result<(), String> {
        let is_refused = self.connections[name.0].has_refused(name.1);
        let is_first = self.reported_reads.arrived.insert(name);
        for (CachedReads { volume, reads, .. }, counted) in before {
            let (Some(counted), Some(count)) = (counted, self.reads_counted(place, &volume)) else { continue };
            let added = count.saturating_sub(counted);
            if count < counted || added != reads && !(added == 0 && is_refused) {
                return Err(format!("server {place} counted {added} reads of volume {volume}: reported were {reads}"));
            }
            if is_first {
                *self.reported_reads.counted.entry(volume).or_default() += added;
            }
            self.tally.add_many("reads from memory counted by leaders", added);
        }
        let ReportedReads { answered, counted, .. } = &self.reported_reads;
        let too_many = counted.iter().find(|(volume, count)| **count > answered.get(*volume).copied().unwrap_or(0));
        match too_many {
            Some((volume, count)) => {
                let most = answered.get(volume);
                Err(format!("leaders counted {count} reads from memory in volume {volume}: there were {most:?}"))
            }
            None => Ok(()),
        }
    }

    /// The reads from memory that the leader has counted in a volume. A copy of the leader answers.
    fn reads_counted(&self, place: usize, volume: &NodePath) -> Option<u64> {
        let server = &self.servers[place];
        let mut lessor = server.shell.lessor.as_ref()?.clone();
        let body = Body::Inspect(Inspect::VolumeStats { path: volume.clone() });
        let input = LessorInput::Request { id: QUESTION, request: Request { header: RequestHeader::default(), body } };
        let effects = lessor.step(input, &server.state, server.machine.clock.read(self.now));
        effects.into_iter().find_map(|effect| match effect {
            LessorEffect::Reply { id: QUESTION, response } => match response.result {
                Ok(Answer::VolumeStats(Some(stats))) => Some(stats.counts.reads_from_memory),
                _ => None,
            },
            _ => None,
        })
    }
}
