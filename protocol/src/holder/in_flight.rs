//! Requests that are on their way: when each was sent, what for, and what rode along.
//!
//! Each sending has its own ticket, in rising order. A ticket ends once: answered, or abandoned
//! because the connection ended or nobody wants the answer any more. What comes for an ended ticket
//! is not looked at, which is what lets a recall be forgotten as soon as every ticket before it has
//! ended (S4).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::input::{SendId, WatchId, WriteId};
use crate::{
    id::Stamp,
    message::Return,
    object::Object,
    path::NodePath,
    reached::{Bound, reached},
    time::Instant,
};

/// What a request is for: enough to build it anew, and to find who waits for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Purpose {
    /// Get a session.
    Open,
    /// Register with the leader.
    Register,
    /// End the session.
    Close,
    /// Renew what is due.
    Heartbeat,
    /// Get a lease on the volume that is believed to have this top.
    Acquire(NodePath),
    /// Keep key leases alive.
    KeepAlive,
    /// Be told how holds stand.
    AwaitLocks,
    /// Tell what is held in the volume.
    HolderReport(NodePath),
    /// Read the object.
    Read(Object),
    /// Send the write.
    Write(WriteId),
    /// Ask what has happened to what is watched.
    Watch(WatchId),
}

impl Purpose {
    /// Whether the answer may carry an object lease, which a recall can overtake (S4).
    fn may_grant(&self) -> bool {
        matches!(self, Self::Read(_) | Self::Write(_))
    }
}

/// One sending of one request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RequestInFlight {
    /// Read from the clock before it was sent: what its terms count from (T2).
    pub(super) sent: Instant,
    pub(super) purpose: Purpose,
    /// Whether the server owes the answer [at once](crate::message::Body::is_quick).
    pub(super) is_quick: bool,
    pub(super) consents: Vec<Stamp>,
    pub(super) returns: Vec<Return>,
}

/// Keep-alives that may be unanswered at once: more than are ever sent within one term. The oldest
/// is abandoned.
const HEARTBEATS_MAX: usize = 16;

/// All requests that are on their way.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct RequestsInFlight {
    last: u64,
    live: BTreeMap<SendId, RequestInFlight>,
    granting: BTreeSet<SendId>,
    heartbeats: VecDeque<SendId>,
    /// Those that are answered quickly; and watches. There may be thousands of watches, and each
    /// step asks for the oldest of the others.
    quick: BTreeSet<SendId>,
    watches: BTreeSet<SendId>,
}

impl RequestsInFlight {
    /// Gives a sending its ticket.
    pub(super) fn start(&mut self, flight: RequestInFlight) -> SendId {
        self.last += 1;
        let ticket = SendId(self.last);
        if flight.purpose.may_grant() {
            self.granting.insert(ticket);
        }
        if flight.purpose == Purpose::Heartbeat {
            self.heartbeats.push_back(ticket);
            if self.heartbeats.len() > HEARTBEATS_MAX
                && let Some(oldest) = self.heartbeats.pop_front()
            {
                reached(Bound::Heartbeats);
                self.live.remove(&oldest);
                self.quick.remove(&oldest);
            }
        }
        if flight.is_quick {
            self.quick.insert(ticket);
        } else if let Purpose::Watch(_) = flight.purpose {
            self.watches.insert(ticket);
        }
        self.live.insert(ticket, flight);
        ticket
    }

    /// Ends a ticket. None if it has ended before.
    pub(super) fn end(&mut self, ticket: SendId) -> Option<RequestInFlight> {
        let flight = self.live.remove(&ticket)?;
        self.granting.remove(&ticket);
        self.quick.remove(&ticket);
        self.watches.remove(&ticket);
        if flight.purpose == Purpose::Heartbeat {
            self.heartbeats.retain(|other| *other != ticket);
        }
        Some(flight)
    }

    /// Ends all tickets: the connection is over. In the order of their sending.
    pub(super) fn end_all(&mut self) -> Vec<Purpose> {
        self.granting.clear();
        self.heartbeats.clear();
        self.quick.clear();
        self.watches.clear();
        std::mem::take(&mut self.live).into_values().map(|flight| flight.purpose).collect()
    }

    /// The ticket that the next sending will have: everything sent so far is before it.
    pub(super) fn next(&self) -> SendId {
        SendId(self.last + 1)
    }

    /// The oldest ticket whose answer may still bring an object lease.
    pub(super) fn oldest_granting(&self) -> Option<SendId> {
        self.granting.first().copied()
    }

    /// When the oldest request was sent that should have been answered quickly.
    pub(super) fn oldest_quick(&self) -> Option<Instant> {
        self.sent(self.quick.first())
    }

    /// When the oldest watch was sent, which the server answers when its wait is over.
    pub(super) fn oldest_watch(&self) -> Option<Instant> {
        self.sent(self.watches.first())
    }

    /// When the oldest request was sent that may bring an object lease.
    pub(super) fn oldest_granting_sent(&self) -> Option<Instant> {
        self.sent(self.granting.first())
    }

    fn sent(&self, ticket: Option<&SendId>) -> Option<Instant> {
        ticket.and_then(|ticket| self.live.get(ticket)).map(|flight| flight.sent)
    }

    /// What a live ticket is for.
    pub(super) fn purpose(&self, ticket: SendId) -> Option<&Purpose> {
        self.live.get(&ticket).map(|flight| &flight.purpose)
    }

    /// All that are on their way.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&SendId, &RequestInFlight)> {
        self.live.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_too_many_keep_alives_the_oldest_is_abandoned() {
        let mut flights = RequestsInFlight::default();
        let most = HEARTBEATS_MAX as u64;
        let start = |flights: &mut RequestsInFlight| {
            let purpose = Purpose::Heartbeat;
            let (consents, returns) = (Vec::new(), Vec::new());
            flights.start(RequestInFlight { sent: Instant::ZERO, purpose, is_quick: true, consents, returns })
        };
        let live = |flights: &RequestsInFlight| flights.iter().map(|(ticket, _)| ticket.0).collect::<Vec<_>>();
        let all: Vec<SendId> = (0..most).map(|_| start(&mut flights)).collect();
        assert_eq!(live(&flights).len(), HEARTBEATS_MAX);
        flights.end(all[HEARTBEATS_MAX - 1]);
        let another = start(&mut flights);
        assert_eq!(live(&flights)[0], 1, "one had been answered: there is room");
        start(&mut flights);
        assert_eq!((live(&flights)[0], live(&flights).len()), (2, HEARTBEATS_MAX));
        assert!(flights.end(all[0]).is_none() && flights.end(another).is_some());
    }
}
