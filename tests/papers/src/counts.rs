//! The messages that are counted, by their purpose.

use std::time::Duration;

use leasehold_protocol::{
    message::{Body, Request},
    time::Instant,
};

/// The messages that the server sent and received while they were counted, and the applications'
/// reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that only renew, and their answers.
    pub renewals: u64,
    /// Those of them that renew no volume lease. They keep the session alive, or compare clocks.
    pub idle: u64,
    /// Requests for a new volume lease that bring no read along, and their answers.
    pub acquisitions: u64,
    /// Parts of holder reports, which a leader wants after a revival, and their answers.
    pub lists: u64,
    /// Reads that validate a copy, and their answers.
    pub validations: u64,
    /// Recalls, and consents to them.
    pub recalls: u64,
    /// Reads of data that was recalled, and their answers. Any cache has to fetch that. Also
    /// pushes: one message each, because the consent asks for them.
    pub fetches: u64,
    /// Writes, and their answers: the same with any term.
    pub writes: u64,
    /// Requests that open, register or close a session, and their answers.
    pub openings: u64,
    /// Reads of the applications.
    pub reads: u64,
    /// Reads that were answered from memory, without a message.
    pub hits: u64,
    /// How long reads waited for a server to validate a copy, all together.
    pub read_delay: Duration,
    /// How long writes waited, all together.
    pub write_delay: Duration,
    /// Writes of the applications that were acknowledged.
    pub written: u64,
    /// The most recalls and consents in any second.
    pub recalls_peak: u64,
    /// The present second, and the recalls and consents in it.
    second: (u64, u64),
}

impl Counts {
    /// The messages for consistency: all except fetches and writes.
    pub fn consistency(&self) -> u64 {
        self.renewals + self.acquisitions + self.lists + self.validations + self.recalls
    }

    pub(crate) fn message(&mut self, purpose: Purpose, now: Instant) {
        if let Purpose::Recall = purpose {
            let second = now.as_micros() / 1_000_000;
            let before = if self.second.0 == second { self.second.1 } else { 0 };
            self.second = (second, before + 1);
            self.recalls_peak = self.recalls_peak.max(before + 1);
        }
        self.idle += u64::from(matches!(purpose, Purpose::Idle));
        let count = match purpose {
            Purpose::Renewal | Purpose::Idle => &mut self.renewals,
            Purpose::Acquisition => &mut self.acquisitions,
            Purpose::List => &mut self.lists,
            Purpose::Validation => &mut self.validations,
            Purpose::Recall => &mut self.recalls,
            Purpose::Fetch | Purpose::Push => &mut self.fetches,
            Purpose::Write => &mut self.writes,
            Purpose::Opening => &mut self.openings,
        };
        *count += 1;
    }

    pub(crate) fn validated(&mut self, delay: Duration) {
        self.read_delay += delay;
    }

    pub(crate) fn written(&mut self, delay: Duration) {
        self.written += 1;
        self.write_delay += delay;
    }

    pub(crate) fn read(&mut self, is_hit: bool) {
        self.reads += 1;
        self.hits += u64::from(is_hit);
    }
}

/// The purpose of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Purpose {
    Renewal,
    /// A renewal of the session alone.
    Idle,
    Acquisition,
    List,
    Validation,
    Recall,
    Fetch,
    /// A push of a next value. The request for it is part of a consent.
    Push,
    Write,
    /// A session begins or ends.
    Opening,
}

impl Purpose {
    /// The purpose of a request, and of its answer.
    pub(crate) fn of(request: &Request) -> Self {
        match &request.body {
            Body::Heartbeat(_) if request.header.renew.is_empty() => Self::Idle,
            Body::Heartbeat(_) => Self::Renewal,
            Body::Acquire { read: None, .. } => Self::Acquisition,
            Body::Acquire { read: Some(read), .. } if read.known.is_some() => Self::Validation,
            Body::Acquire { read: Some(_), .. } => Self::Fetch,
            Body::HolderReport(_) => Self::List,
            Body::Read { known: Some(_), .. } => Self::Validation,
            Body::Read { known: None, .. } => Self::Fetch,
            Body::ReadNextValue { .. } => Self::Push,
            Body::Write { .. } => Self::Write,
            Body::Open { .. } | Body::Register | Body::Close => Self::Opening,
            other => panic!("the model sends no such request: {other:?}"),
        }
    }
}
