//! The formula: how often a copy is validated, recalled and fetched again, by the object term.
//!
//! Gray and Cheriton (SOSP 1989, section 3.1) give 2 R / (1 + R t) messages for each copy to extend
//! its lease, and one approval for each write and sharer. They assume that all sharers have a lease
//! at each write, and that a write leaves the leases as they were. Leasehold recalls only the
//! leases that exist, a recall ends a lease, and the answer to a write brings a new one. Between
//! the end of a lease at the client and its end at the server, the lease is of no use and is still
//! recalled.

use std::time::Duration;

use crate::{lease_policy::ObjectTerm, time::DriftAllowance, volume::VolumeSettings};

/// A lease on an object, from its arrival at the client, in seconds. Both may be zero or infinite.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CopyTerm {
    /// For how long the client uses the copy: t_c in the paper.
    pub client: f64,
    /// For how long the server recalls it: t_s in the paper, with the margin. At least `client`.
    pub server: f64,
}

impl CopyTerm {
    /// The times for an object term in a volume with these settings. The client counts from its
    /// request, so the round trip is lost, and shortens the term by its drift allowance (T2). The
    /// server waits for the margin (T3). Of a term that adapts, this is the longest.
    pub fn of(settings: &VolumeSettings, term: ObjectTerm, round_trip: Duration, drift: DriftAllowance) -> Self {
        let longest = term.longest();
        match term {
            ObjectTerm::Zero => Self { client: 0.0, server: 0.0 },
            ObjectTerm::Infinite => Self { client: f64::INFINITY, server: f64::INFINITY },
            ObjectTerm::Fixed(_) | ObjectTerm::Adaptive { .. } | ObjectTerm::ByUse { .. } => Self {
                client: drift.shorten(longest).saturating_sub(round_trip).as_secs_f64(),
                server: settings.object_wait(longest, drift).as_secs_f64(),
            },
        }
    }
}

/// The reads and writes of one object by one client, and the writes of it by others. All three are
/// Poisson processes, with these rates per second.
///
/// The client goes through cycles. It has a lease until the first of three events: the term ends,
/// another client writes, or it writes itself. Its next read or write brings a new lease. The mean
/// length of a cycle gives the rates of all messages.
///
/// ```
/// use leasehold_protocol::advice::{CopyTerm, LeaseCycle};
///
/// // Without writes, this is the formula of Gray and Cheriton: R / (1 + R t) reads ask a server.
/// let cycle = LeaseCycle { reads: 0.864, own_writes: 0.0, other_writes: 0.0 };
/// let ten = CopyTerm { client: 10.0, server: 10.1 };
/// assert!((cycle.rates(ten).validations - 0.864 / 9.64).abs() < 1e-12);
/// // If each read asks, there are as many validations as reads.
/// assert_eq!(cycle.rates(CopyTerm { client: 0.0, server: 0.0 }).validations, 0.864);
/// ```
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LeaseCycle {
    /// R: reads by the client.
    pub reads: f64,
    /// W: writes by the client.
    pub own_writes: f64,
    /// Writes by all other clients: (S - 1) W if S clients share the object.
    pub other_writes: f64,
}

/// The events of one copy, per second. Each of the first three costs two messages.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct CycleRates {
    /// Reads that ask a server because the term has ended.
    pub validations: f64,
    /// Reads that ask a server because the copy was recalled.
    pub fetches: f64,
    /// Recalls. Each is answered by a consent.
    pub recalls: f64,
    /// The share of the time in which the server has the lease, from 0 to 1.
    pub held: f64,
}

impl LeaseCycle {
    /// The rates with leases that last so long.
    pub fn rates(&self, term: CopyTerm) -> CycleRates {
        let Self { reads, own_writes, other_writes } = *self;
        let (writes, renewing) = (own_writes + other_writes, reads + own_writes);
        if renewing <= 0.0 {
            return CycleRates::default();
        }
        // The probability that the term ends at the client first, and the mean time until one of
        // the three events.
        let (useless, used_for) = lasts(writes, term.client);
        if used_for.is_infinite() {
            return CycleRates { held: 1.0, ..CycleRates::default() };
        }
        // Until the lease ends at the server too, a read or an own write renews it.
        let (ends, useless_for) = lasts(renewing + other_writes, (term.server - term.client).max(0.0));
        let (ends, useless_for) = (useless * ends, useless * useless_for);
        let held = used_for + useless_for;
        let recalled = other_writes * held;
        // A copy without a lease gets a new one by the next read or own write.
        let cycle = held + (ends + recalled) / renewing;
        let by_read = reads / renewing;
        CycleRates {
            validations: (reads * useless_for + ends * by_read) / cycle,
            fetches: recalled * by_read / cycle,
            recalls: recalled / cycle,
            held: held / cycle,
        }
    }
}

/// The probability that a time passes without an event, and the mean time until the first event or
/// the end of that time. Events come at this rate.
fn lasts(rate: f64, time: f64) -> (f64, f64) {
    if rate <= 0.0 {
        return (1.0, time);
    }
    let none = (-rate * time).exp();
    (none, (1.0 - none) / rate)
}
