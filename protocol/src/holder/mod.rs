//! The client's half of the rules: which copies may be used now, what to renew, what a recall does
//! to a fetch under way.
//!
//! One [`Holder`] is one client: its session and, when that is gone, the next. It has one way in,
//! [`Holder::step`], and answers with a list of [`HolderEffect`]s. The shell around it owns the
//! connection, the contents of the copies and the clock; it carries effects out in order and
//! decides nothing.
//!
//! What it guarantees, if the shell does so and each server keeps its half:
//!
//! - no read is served from memory but under an object lease and a volume lease that both hold on
//!   this clock (S1), and none with a value older than a write that had been acknowledged before
//!   the read began;
//! - consent is given after the copy is gone, never before, and a grant that was overtaken by the
//!   recall is not cached (S4);
//! - a write takes effect at most once; when that cannot be known, it says so (S9);
//! - what is watched is told whole, each change once, in order, none left out, whatever becomes of
//!   connections, leaders and sessions;
//! - the application hears of each change of the session's state once, by this clock, not by the
//!   connection's (DESIGN section 2).
//!
//! What it does not know: what the copies contain, which servers there are, what time it is
//! anywhere else.
//!
//! Atomic steps (S4): the shell holds one lock around a step and those of its effects that touch
//! the cache. So checking the epoch, installing a copy and registering with a leader are each one
//! step, and a copy is never seen half recalled.
//!
//! Where to find the rules: promises, T2, T6 in `renewals.rs` and `volumes.rs`; grants and recalls,
//! S1, S4, S5 in `grants.rs` and `recalls.rs`; new incarnations and the revival of copies in
//! `acquiring.rs`; shared misses in `reads.rs`; S2w, S9 in `writes.rs`; S7 in `held.rs`; holds in
//! `holding.rs`, write leases in `caching.rs`, key leases in `keeping.rs`; sessions and registering
//! in `session.rs`; watches in `watching.rs`; drift supervision in `clocks.rs`; the invariants in
//! `check.rs`.

mod acquisitions;
mod attachments;
mod bounds;
mod check;
mod copies;
mod drift;
mod effect;
mod holder_reports;
mod in_flight;
mod input;
mod key_leases;
mod locks;
mod object_leases;
mod pace;
mod reads;
mod recalls;
mod renewals;
mod requests;
mod send_queue;
mod session;
pub mod validity;
mod volume_leases;
mod watches;
mod write_leases;
mod writes;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

pub use bounds::HolderBounds;
pub use effect::{ConnectionNews, HolderEffect, ReadFailure, WatchFailure, WriteFailure};
pub use input::{HolderConfig, HolderInput, ReadId, SendId, WatchId, WriteId};
pub use watches::WATCH_WAIT;

use self::{
    acquisitions::Acquisition,
    attachments::OwnRemovals,
    copies::CachedCopies,
    drift::DriftSupervision,
    holder_reports::HolderReport,
    in_flight::RequestsInFlight,
    key_leases::OwnKeyLeases,
    locks::OwnLocks,
    reads::Reads,
    recalls::RecallMemory,
    requests::Piggyback,
    send_queue::SendQueue,
    session::{LinkState, OwnSession, ReportedState},
    validity::{CopyValidity, VolumeValidity, may_use},
    volume_leases::KnownVolumes,
    watches::OwnWatches,
    write_leases::WriteLeases,
    writes::OwnWrites,
};
use crate::{
    command::Write,
    id::{Epoch, SessionId, Stamp},
    object::{Object, ObjectSet},
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
    /// The leadership that the session has registered with last. Never falls.
    epoch: Epoch,
    /// The highest stamp seen (S2w).
    stamp_seen: Stamp,
    /// When a server was last heard of on this connection.
    heard_at: Instant,
    in_flight: RequestsInFlight,
    send_queue: SendQueue,
    piggyback: Piggyback,
    volumes: KnownVolumes,
    copies: CachedCopies,
    recalls: RecallMemory,
    /// New leases that were asked for, by the top of the volume that is believed to be the one.
    acquisitions: BTreeMap<NodePath, Acquisition>,
    reads: Reads,
    writes: OwnWrites,
    holder_reports: BTreeMap<NodePath, HolderReport>,
    key_leases: OwnKeyLeases,
    removals: OwnRemovals,
    locks: OwnLocks,
    write_leases: WriteLeases,
    watches: OwnWatches,
    drift: DriftSupervision,
    /// What a planted mistake forgot to drop in time.
    late_drops: Vec<ObjectSet>,
    /// Effects of the step under way. Empty between steps.
    effects: Vec<HolderEffect>,
}

impl Holder {
    /// A client that has no session yet.
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
            volumes: KnownVolumes::new(&config.bounds),
            copies: CachedCopies::default(),
            recalls: RecallMemory::new(&config.bounds),
            acquisitions: BTreeMap::new(),
            reads: Reads::default(),
            writes: OwnWrites::new(config.bounds),
            holder_reports: BTreeMap::new(),
            key_leases: OwnKeyLeases::default(),
            removals: OwnRemovals::default(),
            locks: OwnLocks::default(),
            write_leases: WriteLeases::default(),
            watches: OwnWatches::default(),
            drift: DriftSupervision::default(),
            late_drops: Vec::new(),
            effects: Vec::new(),
            config,
        }
    }

    /// Takes one input and says what to do about it, in order.
    ///
    /// `now` is read from this client's own clock right before. It never runs backwards.
    pub fn step(&mut self, input: HolderInput, now: Instant) -> Vec<HolderEffect> {
        self.drop_late();
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
            HolderInput::Read { read, object } => self.read(read, object, now),
            HolderInput::Write { write, change } => self.write(write, change),
            HolderInput::KeepAlive(id) => self.start_keep_alive(id),
            HolderInput::StopKeepAlive(id) => self.stop_keep_alive(id),
            HolderInput::CancelRead(read) => self.cancel_read(read),
            HolderInput::CancelWrite(write) => self.cancel_write(write),
            HolderInput::Answered { send_id, response } => self.answered(send_id, response, now),
            HolderInput::Recalled(recall) => self.recalled(&recall, now),
            HolderInput::Evicted { object, stamp } => self.evicted(object, stamp, now),
            HolderInput::Timeout { .. } => self.timed_out(now),
            HolderInput::Probe => self.probe(now),
            HolderInput::Close => self.close(now),
            HolderInput::Watch { watch, watched, after, bytes_max } => self.watch(watch, watched, after, bytes_max),
            HolderInput::WatchMore(watch) => self.watch_more(watch),
            HolderInput::CancelWatch(watch) => self.cancel_watch(watch),
            HolderInput::SetUnderWriteLease { lock, value } => self.set_under_write_lease(lock, value, now),
            HolderInput::Flush(hold) => self.flush(hold),
            HolderInput::ReleaseWriteLease(hold) => self.release_write_lease(hold),
        }
        self.flush_and_consent(now);
        self.send_ready(now);
        self.send_keep_alive(now);
        self.await_locks(now);
        self.recalls.forget(self.in_flight.oldest_granting());
        std::mem::take(&mut self.effects)
    }

    /// When [`HolderInput::Timeout`] is wanted, at the latest. None while there is nothing to wait
    /// for.
    ///
    /// After each step it is another, later one: a shell that calls in time is never asked twice
    /// for the same moment.
    pub fn next_deadline(&self) -> Option<Instant> {
        let has_leader = self.link == LinkState::Registered;
        let deadlines = [
            self.send_queue.next_wake(),
            self.volumes.next_deadline(has_leader),
            self.session_deadline(),
            self.silence_deadline(),
            self.probe_deadline(),
            self.keep_alive_deadline(),
            self.await_locks_deadline(),
            self.flush_deadline(),
            self.clocks_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Whether the object's copy may be used now (S1). What a cache decides by itself with
    /// [`validity::may_use`].
    pub fn may_serve(&self, object: &Object, now: Instant) -> bool {
        self.copies.get(object).is_some_and(|copy| self.may_use(&copy.validity, now))
    }

    /// How long the volume's lease is certain to hold on this client's clock, if nothing more is
    /// heard.
    pub fn volume_remaining(&self, volume: &NodePath, now: Instant) -> Duration {
        self.validity_of(volume).until.since(now)
    }

    /// The top of the volume that a path belongs to, as far as is known: the nearest one at or
    /// above it, with a lease or without.
    pub fn volume_of(&self, path: &NodePath) -> NodePath {
        self.volumes.nearest(path)
    }

    /// The session, once there is one.
    pub fn session(&self) -> Option<SessionId> {
        self.session.as_ref().map(|session| session.id)
    }

    /// The leadership that the session has registered with last.
    pub fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// What the volume's copies may be used by.
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
        let mut volume = self.validity_of(&copy.volume);
        let mut lease = copy.lease();
        if self.planted(Bug::ServeAfterExpiry) && volume.until > Instant::ZERO {
            volume.until = now.after(Duration::from_secs(1));
            lease.until = volume.until;
        }
        if self.planted(Bug::ReviveEndedObjectLease) && self.is_revived(copy) {
            lease.until = volume.until;
        }
        may_use(lease, &volume, now)
    }

    /// Whether a copy is from before the volume lease that is held now.
    fn is_revived(&self, copy: &CopyValidity) -> bool {
        let lease = self.volumes.get(&copy.volume).and_then(|volume| volume.lease.as_ref());
        lease.is_some_and(|lease| copy.incarnation < lease.incarnation)
    }

    fn planted(&self, bug: Bug) -> bool {
        self.config.planted.has(bug)
    }

    /// How long a copy stays valid, if it may be used now.
    fn valid_until(&self, copy: &CopyValidity, now: Instant) -> Option<Instant> {
        self.may_use(copy, now).then(|| copy.until.min(self.validity_of(&copy.volume).until))
    }

    /// Tells the cache what a volume's copies may be used by, if that has changed.
    fn notify_validity(&mut self, volume: &NodePath) {
        let validity = self.validity_of(volume);
        if let Some(known) = self.volumes.get_mut(volume)
            && known.validity_notified != validity
        {
            known.validity_notified = validity;
            self.effects.push(HolderEffect::VolumeValidityChanged { volume: volume.clone(), validity });
        }
    }
}
