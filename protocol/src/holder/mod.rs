//! The client's rules: which cached copies may be used, what to renew, and how a recall affects the
//! requests in flight.
//!
//! One [`Holder`] serves one client. When the client's session expires, the holder opens another.
//! [`Holder::step`] is its only input, and returns [`HolderEffect`]s. The driver around it owns the
//! connection, the contents of the copies and the clock. The driver executes effects in order and
//! decides nothing.
//!
//! If the driver executes all effects and the servers obey their rules, the holder guarantees:
//!
//! - A read from memory needs an object lease and a volume lease that both hold on this clock (S1).
//!   It never returns a value older than a write that was acknowledged before the read began.
//! - The client consents only after it has dropped the copy. It never caches a grant that a recall
//!   has overtaken (S4).
//! - A write takes effect at most once. If its outcome cannot be known, the holder says so (S9).
//! - A watch reports each change once, complete and in order, across connections, leaders and
//!   sessions.
//! - The holder reports each change of the session's state to the application once. It reports the
//!   end of a lease by this client's clock, even without a connection.
//!
//! The holder does not know the contents of copies, the addresses of servers, or other clocks.
//!
//! Atomic steps (S4): the driver holds one lock around a step and its effects on the cache. So
//! checking the epoch, installing a copy and registering with a leader are one step each. No reader
//! sees a copy that is half recalled.
//!
//! docs/PROTOCOL.md defines the rules. They are in these files:
//!
//! - S1: `validity.rs`; S4, S5: `object_leases.rs`, `recalls.rs`; T2, T6: `renewals.rs`,
//!   `volume_leases.rs`;
//! - S7: `holder_reports.rs`, and `acquisitions.rs` for the revival of copies; S7b:
//!   `attachments.rs`;
//! - S2w, S9: `writes.rs`, `session.rs`; S10: `locks.rs`, `write_leases.rs`; drift supervision:
//!   `drift.rs`.

mod acquisitions;
mod attachments;
mod backlog;
mod bounds;
mod check;
mod copies;
mod delayed_consents;
mod drift;
mod effect;
mod holder_reports;
mod in_flight;
mod input;
mod key_leases;
mod known_volume;
mod locks;
mod next_values;
mod object_leases;
mod own_footprint;
mod own_write_lease;
mod pace;
mod path_counts;
mod reads;
mod recalls;
mod renewals;
mod requests;
mod send_queue;
mod session;
pub mod validity;
mod volume_index;
mod volume_leases;
mod watches;
mod write_leases;
mod writes;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

pub use bounds::HolderBounds;
pub use effect::{HolderEffect, ReadFailure, SessionNews, WatchFailure, WriteFailure};
pub use input::{HolderConfig, HolderInput, ReadId, RenewalMode, SendId, WatchId, WriteId};
pub use watches::WATCH_WAIT;

use self::{
    acquisitions::Acquisition,
    attachments::OwnRemovals,
    copies::CachedCopies,
    delayed_consents::DelayedConsents,
    drift::DriftSupervision,
    holder_reports::HolderReport,
    in_flight::RequestsInFlight,
    key_leases::OwnKeyLeases,
    locks::OwnLocks,
    next_values::NextValueRequests,
    path_counts::PathCounts,
    reads::Reads,
    recalls::RecallMemory,
    requests::Piggyback,
    send_queue::SendQueue,
    session::{LinkState, OwnSession, ReportedState},
    validity::{CopyValidity, VolumeValidity, may_use},
    volume_leases::{KnownVolumes, RenewalSelection},
    watches::OwnWatches,
    write_leases::WriteLeases,
    writes::OwnWrites,
};
use crate::{
    command::Write,
    id::{Epoch, SessionId, Stamp},
    object::Object,
    path::NodePath,
    planted::Bug,
    time::Instant,
};

/// The rules of one client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Holder {
    config: HolderConfig,
    link: LinkState,
    session: Option<OwnSession>,
    reported_state: ReportedState,
    /// The epoch in which the session last registered. Never falls.
    epoch: Epoch,
    /// The highest stamp seen (S2w).
    stamp_seen: Stamp,
    /// When this client last heard from a server on this connection.
    heard_at: Instant,
    in_flight: RequestsInFlight,
    send_queue: SendQueue,
    piggyback: Piggyback,
    volumes: KnownVolumes,
    copies: CachedCopies,
    recalls: RecallMemory,
    /// New volume leases that the client asks for, by the top of the believed volume.
    acquisitions: BTreeMap<NodePath, Acquisition>,
    /// The paths of those that were sent. All volumes that may contain one of them are suspended.
    suspending: PathCounts,
    reads: Reads,
    writes: OwnWrites,
    holder_reports: BTreeMap<NodePath, HolderReport>,
    key_leases: OwnKeyLeases,
    removals: OwnRemovals,
    locks: OwnLocks,
    write_leases: WriteLeases,
    watches: OwnWatches,
    drift: DriftSupervision,
    delayed_consents: DelayedConsents,
    next_values: NextValueRequests,
    /// Effects of the current step. Empty between steps.
    effects: Vec<HolderEffect>,
}

impl Holder {
    /// A client without a session.
    pub fn new(config: HolderConfig) -> Self {
        Self {
            link: LinkState::Down,
            session: None,
            reported_state: ReportedState::New,
            epoch: Epoch(0),
            stamp_seen: Stamp::default(),
            heard_at: Instant::ZERO,
            in_flight: RequestsInFlight::default(),
            send_queue: SendQueue::default(),
            piggyback: Piggyback::default(),
            volumes: KnownVolumes::new(&config),
            copies: CachedCopies::default(),
            recalls: RecallMemory::new(&config.bounds),
            acquisitions: BTreeMap::new(),
            suspending: PathCounts::default(),
            reads: Reads::default(),
            writes: OwnWrites::new(config.bounds),
            holder_reports: BTreeMap::new(),
            key_leases: OwnKeyLeases::default(),
            removals: OwnRemovals::default(),
            locks: OwnLocks::default(),
            write_leases: WriteLeases::default(),
            watches: OwnWatches::default(),
            drift: DriftSupervision::default(),
            delayed_consents: DelayedConsents::default(),
            next_values: NextValueRequests::default(),
            effects: Vec::new(),
            config,
        }
    }

    /// Handles one input, and returns the effects in the order in which the driver must execute
    /// them.
    ///
    /// The driver reads `now` from this client's own clock just before. `now` never goes back.
    pub fn step(&mut self, input: HolderInput, now: Instant) -> Vec<HolderEffect> {
        if let HolderInput::Timeout { used } = &input {
            self.note_used(used);
        }
        if let HolderInput::Write { change: Write::Unlock { lock, .. }, .. } = &input {
            self.forget_lock(*lock);
        }
        self.note_time(now);
        match input {
            HolderInput::Connected => self.connected(now),
            HolderInput::Disconnected => self.disconnected(),
            HolderInput::Read { read, object, lease } => self.read(read, object, lease, now),
            HolderInput::Write { write, change } => self.write(write, change),
            HolderInput::KeepAlive(id) => self.start_keep_alive(id),
            HolderInput::StopKeepAlive(id) => self.stop_keep_alive(id),
            HolderInput::CancelRead(read) => self.cancel_read(read),
            HolderInput::CancelWrite(write) => self.cancel_write(write),
            HolderInput::Answered { send_id, response } => self.answered(send_id, response, now),
            HolderInput::Recalled(recall) => self.recalled(&recall, now),
            HolderInput::Evicted { object, stamp } => self.evicted(object, stamp, now),
            HolderInput::ReadNextValues(objects) => self.read_next_values(objects, now),
            HolderInput::Timeout { .. } => self.timed_out(now),
            HolderInput::Probe => self.probe(now),
            HolderInput::Close => self.close(now),
            HolderInput::Watch { watch, watched, after, bytes_max } => self.watch(watch, watched, after, bytes_max),
            HolderInput::WatchMore(watch) => self.watch_more(watch),
            HolderInput::CancelWatch(watch) => self.cancel_watch(watch),
            HolderInput::SetUnderWriteLease { lock, value } => self.set_under_write_lease(lock, value, now),
            HolderInput::Flush(lock) => self.flush(lock),
            HolderInput::ReleaseWriteLease(lock) => self.release_write_lease(lock),
        }
        let has_flushed = self.flush_when_due(now);
        self.consent_when_due(now);
        if self.piggyback.needs_request() && self.link == LinkState::Registered {
            self.heartbeat(if has_flushed { RenewalSelection::Due } else { RenewalSelection::Ahead }, now);
        }
        self.send_ready(now);
        self.send_keep_alive(now);
        self.await_lock_status(now);
        self.recalls.forget(self.in_flight.oldest_granting());
        std::mem::take(&mut self.effects)
    }

    /// When the driver must send [`HolderInput::Timeout`] at the latest. `None` if nothing has a
    /// deadline.
    ///
    /// After a timeout at this time, the next deadline is later, unless more volume leases are due
    /// than one request can renew (`RENEWALS_MAX`).
    pub fn next_deadline(&self) -> Option<Instant> {
        let has_leader = self.link == LinkState::Registered;
        let deadlines = [
            self.send_queue.next_wake(),
            self.volumes.next_deadline(has_leader),
            self.session_deadline(),
            self.silence_deadline(),
            self.probe_deadline(),
            self.keep_alive_deadline(),
            self.await_lock_status_deadline(),
            self.flush_deadline(),
            self.clocks_deadline(),
            self.delayed_consents.deadline(),
            self.next_values_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Whether the copy of the object may be used now (S1). A cache comes to the same result with
    /// [`validity::may_use`].
    pub fn may_serve(&self, object: &Object, now: Instant) -> bool {
        self.copies.get(object).is_some_and(|copy| self.may_use(&copy.validity, now))
    }

    /// How long the volume's lease certainly holds on this client's clock, without another promise.
    pub fn volume_remaining(&self, volume: &NodePath, now: Instant) -> Duration {
        self.validity_of(volume).until.since(now)
    }

    /// The top of the volume that the path belongs to: the nearest known volume at or above the
    /// path, with or without a lease.
    pub fn volume_of(&self, path: &NodePath) -> NodePath {
        self.volumes.nearest(path)
    }

    /// The current session, if there is one.
    pub fn session(&self) -> Option<SessionId> {
        self.session.as_ref().map(|session| session.id)
    }

    /// The epoch in which the session last registered.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// The conditions under which the volume's copies may be used. The default permits none.
    pub fn validity_of(&self, volume: &NodePath) -> VolumeValidity {
        let lease = self.volumes.get(volume).and_then(|volume| volume.lease.as_ref());
        match lease {
            Some(lease) if !self.is_suspended(volume) && !self.is_clock_beyond() => {
                VolumeValidity { since: lease.since, until: lease.until }
            }
            _ => VolumeValidity::default(),
        }
    }

    fn may_use(&self, copy: &CopyValidity, now: Instant) -> bool {
        let now = if self.planted(Bug::ServeAfterExpiry) { Instant::ZERO } else { now };
        may_use(copy.lease(), &self.validity_of(&copy.volume), now)
    }

    fn planted(&self, bug: Bug) -> bool {
        self.config.planted.has(bug)
    }

    /// Until when a copy is valid, if it may be used now.
    fn valid_until(&self, copy: &CopyValidity, now: Instant) -> Option<Instant> {
        self.may_use(copy, now).then(|| copy.until.min(self.validity_of(&copy.volume).until))
    }

    /// Reports the validity of the volume's copies to the cache, if it has changed.
    fn notify_validity(&mut self, volume: &NodePath) {
        let validity = self.validity_of(volume);
        if let Some(mut known) = self.volumes.get_mut(volume)
            && known.validity_notified != validity
        {
            known.validity_notified = validity;
            self.effects.push(HolderEffect::VolumeValidityChanged { volume: volume.clone(), validity });
        }
    }
}
