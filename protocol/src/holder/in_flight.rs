//! Requests in flight: when each was sent, its purpose, and the consents and returns in its header.
//!
//! Each sending has its own send id, in rising order. A send id ends once: a server answers it, or
//! the holder abandons it (the connection ended, or no call waits). A cancelled request that renews
//! leases stays in flight as a heartbeat, and what it grants is ignored. The holder ignores answers
//! to an ended id. So it can forget a recall as soon as every earlier id has ended (S4).

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::input::{SendId, WatchId, WriteId};
use crate::{
    id::Stamp,
    message::Return,
    object::Object,
    path::NodePath,
    reached::{Bound, reached},
    time::Instant,
    work::CountVisits,
};

/// The purpose of a request: enough to build it again, and to find the operations that wait for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Purpose {
    Open,
    Register,
    Close,
    /// Renew volume leases, and compare clocks.
    Heartbeat,
    /// Acquire a lease on the volume that the client believes to have this top.
    Acquire(NodePath),
    /// Renew key leases.
    KeepAlive,
    /// Ask for changes in the status of locks.
    AwaitLockStatus,
    /// Send a part of the volume's holder report.
    HolderReport(NodePath),
    Read(Object),
    /// Ask for the value that the pending writes leave.
    ReadNextValue(Object),
    Write(WriteId),
    /// Ask for the next changes of a watch.
    Watch(WatchId),
}

impl Purpose {
    /// Whether the answer may grant an object lease, which a recall can overtake (S4).
    fn may_grant(&self) -> bool {
        matches!(self, Self::Acquire(_) | Self::Read(_) | Self::ReadNextValue(_) | Self::Write(_))
    }
}

/// One sending of one request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RequestInFlight {
    /// The time that was read before the request was sent. Terms count from it (T2).
    pub(super) sent: Instant,
    pub(super) purpose: Purpose,
    /// Whether the server owes the answer [at once](crate::message::Body::is_nonblocking).
    pub(super) is_quick: bool,
    /// Whether the answer renews the session or a volume lease, and the next attempt to renew waits
    /// for it.
    pub(super) renews: bool,
    pub(super) consents: Vec<Stamp>,
    pub(super) returns: Vec<Return>,
}

/// The most heartbeats in flight: more than a client sends within one term. Beyond it, the oldest
/// is abandoned. A cancelled request that renews leases counts as a heartbeat, but never displaces
/// one.
const HEARTBEATS_MAX: usize = 16;

/// All requests in flight.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct RequestsInFlight {
    last_id: u64,
    live: BTreeMap<SendId, RequestInFlight>,
    granting: BTreeSet<SendId>,
    /// Those of `granting` for which an operation waits.
    operations: BTreeSet<SendId>,
    heartbeats: VecDeque<SendId>,
    /// Requests with quick answers. Watches are separate, because there may be thousands of them,
    /// and each step needs the oldest quick request.
    quick: BTreeSet<SendId>,
    /// Those that open or register a session.
    greetings: BTreeSet<SendId>,
    watches: BTreeSet<SendId>,
    next_values: BTreeSet<SendId>,
}

impl RequestsInFlight {
    /// Adds a request and returns its send id.
    pub(super) fn start(&mut self, flight: RequestInFlight) -> SendId {
        self.last_id += 1;
        let send_id = SendId(self.last_id);
        if flight.purpose.may_grant() {
            self.granting.insert(send_id);
            match flight.purpose {
                Purpose::ReadNextValue(_) => self.next_values.insert(send_id),
                _ => self.operations.insert(send_id),
            };
        }
        if flight.purpose == Purpose::Heartbeat {
            self.heartbeats.push_back(send_id);
            if self.heartbeats.len() > HEARTBEATS_MAX
                && let Some(oldest) = self.heartbeats.pop_front()
            {
                reached(Bound::Heartbeats);
                self.live.remove(&oldest);
                self.quick.remove(&oldest);
            }
        }
        if let Purpose::Open | Purpose::Register = flight.purpose {
            self.greetings.insert(send_id);
        }
        if flight.is_quick {
            self.quick.insert(send_id);
        } else if let Purpose::Watch(_) = flight.purpose {
            self.watches.insert(send_id);
        }
        self.live.insert(send_id, flight);
        send_id
    }

    /// Ends a send id. `None` if it has ended before.
    pub(super) fn end(&mut self, send_id: SendId) -> Option<RequestInFlight> {
        let flight = self.live.remove(&send_id)?;
        self.granting.remove(&send_id);
        self.operations.remove(&send_id);
        self.quick.remove(&send_id);
        self.greetings.remove(&send_id);
        self.watches.remove(&send_id);
        self.next_values.remove(&send_id);
        if flight.purpose == Purpose::Heartbeat {
            self.heartbeats.retain(|other| *other != send_id);
        }
        Some(flight)
    }

    /// Nobody waits for this request any longer. If it renews leases, it becomes a heartbeat, so
    /// that its answer still renews them. Otherwise an application that cancels all its calls would
    /// lose its leases, because each call postpones the next attempt to renew.
    pub(super) fn cancel(&mut self, send_id: SendId) {
        if let Some(flight) = self.end(send_id)
            && flight.renews
            && self.heartbeats.len() < HEARTBEATS_MAX
        {
            self.heartbeats.push_back(send_id);
            self.quick.insert(send_id);
            self.live.insert(send_id, RequestInFlight { purpose: Purpose::Heartbeat, ..flight });
        }
    }

    /// Ends all send ids. Returns the purposes in the order of sending.
    pub(super) fn end_all(&mut self) -> Vec<Purpose> {
        self.granting.clear();
        self.operations.clear();
        self.heartbeats.clear();
        self.quick.clear();
        self.greetings.clear();
        self.watches.clear();
        self.next_values.clear();
        std::mem::take(&mut self.live).into_values().map(|flight| flight.purpose).collect()
    }

    /// The next send id. All earlier sendings have lower ones.
    pub(super) fn next(&self) -> SendId {
        SendId(self.last_id + 1)
    }

    /// The oldest send id whose answer may still bring an object lease.
    pub(super) fn oldest_granting(&self) -> Option<SendId> {
        self.granting.first().copied()
    }

    /// Whether a request that opens or registers a session is in flight.
    pub(super) fn has_greeting(&self) -> bool {
        !self.greetings.is_empty()
    }

    /// Checks that the lists of requests name exactly those of their purposes.
    pub(super) fn check(&self) -> Result<(), String> {
        let is_greeting = |flight: &RequestInFlight| matches!(flight.purpose, Purpose::Open | Purpose::Register);
        let greetings = self.live.iter().filter(|(_, flight)| is_greeting(flight)).map(|(send_id, _)| send_id);
        if !greetings.eq(&self.greetings) {
            return Err(format!("the requests that open or register a session are not {:?}", self.greetings));
        }
        Ok(())
    }

    /// When the oldest request with a quick answer was sent.
    pub(super) fn oldest_quick(&self) -> Option<Instant> {
        self.sent(self.quick.first())
    }

    /// When the oldest watch was sent. The server answers it when its wait has passed.
    pub(super) fn oldest_watch(&self) -> Option<Instant> {
        self.sent(self.watches.first())
    }

    /// The oldest read of a next value, and when it was sent.
    pub(super) fn oldest_next_value(&self) -> Option<(SendId, Instant)> {
        let send_id = *self.next_values.first()?;
        self.sent(Some(&send_id)).map(|sent| (send_id, sent))
    }

    /// When the oldest read, write or request for a volume lease in flight was sent. A read of a
    /// next value does not count.
    pub(super) fn oldest_operation(&self) -> Option<Instant> {
        self.sent(self.operations.first())
    }

    fn sent(&self, send_id: Option<&SendId>) -> Option<Instant> {
        send_id.and_then(|send_id| self.live.get(send_id)).map(|flight| flight.sent)
    }

    /// The purpose of a live send id.
    pub(super) fn purpose(&self, send_id: SendId) -> Option<&Purpose> {
        self.live.get(&send_id).map(|flight| &flight.purpose)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&SendId, &RequestInFlight)> {
        self.live.iter().counted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heartbeat_beyond_the_bound_abandons_the_oldest() {
        let mut requests = RequestsInFlight::default();
        let heartbeats_max = HEARTBEATS_MAX as u64;
        let start = |requests: &mut RequestsInFlight| {
            let purpose = Purpose::Heartbeat;
            let (consents, returns) = (Vec::new(), Vec::new());
            requests.start(RequestInFlight {
                sent: Instant::ZERO,
                purpose,
                is_quick: true,
                renews: true,
                consents,
                returns,
            })
        };
        let live = |requests: &RequestsInFlight| requests.iter().map(|(send_id, _)| send_id.0).collect::<Vec<_>>();
        let all: Vec<SendId> = (0..heartbeats_max).map(|_| start(&mut requests)).collect();
        assert_eq!(live(&requests).len(), HEARTBEATS_MAX);
        requests.end(all[HEARTBEATS_MAX - 1]);
        let another = start(&mut requests);
        assert_eq!(live(&requests)[0], 1, "an answered heartbeat leaves room for another");
        start(&mut requests);
        assert_eq!((live(&requests)[0], live(&requests).len()), (2, HEARTBEATS_MAX));
        assert!(requests.end(all[0]).is_none() && requests.end(another).is_some());
    }
}
