//! The client's half of the rules: which copies may be used now, what to renew, what a recall does to a fetch under way.
//!
//! One [`Holder`] is one client: its session and, when that is gone, the next. It has one way in,
//! [`Holder::step`], and answers with a list of [`Effect`]s. The shell around it owns the connection, the contents of the
//! copies and the clock; it carries effects out in order and decides nothing.
//!
//! What it guarantees, if the shell does so and each server keeps its half:
//!
//! - no read is served from memory but under an object lease and a volume lease that both hold on this clock (S1), and none
//!   with a value older than a write that had been acknowledged before the read began;
//! - consent is given after the copy is gone, never before, and a grant that was overtaken by the recall is not cached (S4);
//! - a write takes effect at most once; when that cannot be known, it says so (S9);
//! - what is watched is told whole, each change once, in order, none left out, whatever becomes of connections, leaders and sessions;
//! - the application hears of each change of the session's state once, by this clock, not by the connection's (DESIGN section 2).
//!
//! What it does not know: what the copies contain, which servers there are, what time it is anywhere else.
//!
//! Atomic steps (S4): the shell holds one lock around a step and those of its effects that touch the cache. So checking the
//! epoch, installing a copy and registering with a leader are each one step, and a copy is never seen half recalled.
//!
//! Where to find the rules: promises, T2, T6 in `renewals.rs` and `volumes.rs`; grants and recalls, S1, S4, S5 in `grants.rs` and
//! `recalls.rs`; new incarnations and the revival of copies in `acquiring.rs`; shared misses in `reads.rs`; S2w, S9 in
//! `writes.rs`; S7 in `held.rs`; holds in `holding.rs`, write leases in `caching.rs`, key leases in `keeping.rs`; sessions and registering in `session.rs`; watches in
//! `watching.rs`; drift supervision in `clocks.rs`; the invariants in `check.rs`.

mod acquiring;
mod bounds;
mod caching;
mod carried;
mod check;
mod clocks;
mod copies;
mod effect;
mod flights;
mod grants;
mod held;
mod holding;
mod input;
mod keeping;
mod pace;
mod queue;
mod reads;
mod recalls;
mod renewals;
mod requests;
mod session;
pub mod validity;
mod volumes;
mod watching;
mod writes;

#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, time::Duration};

pub use bounds::Bounds;
pub use effect::{Connection, Effect, ReadError, WatchError, WriteError};
pub use input::{Config, Input, ReadId, Ticket, WatchId, WriteId};
pub use watching::WATCH_WAIT;

use self::{
    acquiring::Acquisition,
    caching::WriteLeases,
    carried::Removals,
    clocks::Clocks,
    copies::Copies,
    flights::Flights,
    held::HeldList,
    holding::Holding,
    keeping::Keeping,
    queue::Queue,
    reads::Reads,
    recalls::Recalls,
    requests::Riders,
    session::{Link, Session, Standing},
    validity::{CopyValidity, VolumeValidity, may_use},
    volumes::Volumes,
    watching::Watching,
    writes::Writes,
};
use crate::{
    command::Write,
    id::{Epoch, SessionId, Stamp},
    object::{Object, ObjectSet},
    path::Path,
    planted::Bug,
    time::Instant,
};

/// The rules of one client.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Holder {
    config: Config,
    link: Link,
    session: Option<Session>,
    standing: Standing,
    /// The leadership that the session has registered with last. Never falls.
    epoch: Epoch,
    /// The highest stamp seen (S2w).
    seen: Stamp,
    /// When a server was last heard of on this connection.
    heard: Instant,
    flights: Flights,
    queue: Queue,
    riders: Riders,
    volumes: Volumes,
    copies: Copies,
    recalls: Recalls,
    /// New leases that were asked for, by the top of the volume that is believed to be the one.
    acquisitions: BTreeMap<Path, Acquisition>,
    reads: Reads,
    writes: Writes,
    held: BTreeMap<Path, HeldList>,
    keeping: Keeping,
    removals: Removals,
    holding: Holding,
    write_leases: WriteLeases,
    watching: Watching,
    clocks: Clocks,
    /// What a planted mistake forgot to drop in time.
    late_drops: Vec<ObjectSet>,
    /// Effects of the step under way. Empty between steps.
    effects: Vec<Effect>,
}

impl Holder {
    /// A client that has no session yet.
    pub fn new(config: Config) -> Self {
        Self {
            link: Link::Down,
            session: None,
            standing: Standing::New,
            epoch: Epoch(0),
            seen: Stamp::default(),
            heard: Instant::ZERO,
            flights: Flights::default(),
            queue: Queue::default(),
            riders: Riders::default(),
            volumes: Volumes::new(&config.bounds),
            copies: Copies::default(),
            recalls: Recalls::new(&config.bounds),
            acquisitions: BTreeMap::new(),
            reads: Reads::default(),
            writes: Writes::new(config.bounds),
            held: BTreeMap::new(),
            keeping: Keeping::default(),
            removals: Removals::default(),
            holding: Holding::default(),
            write_leases: WriteLeases::default(),
            watching: Watching::default(),
            clocks: Clocks::default(),
            late_drops: Vec::new(),
            effects: Vec::new(),
            config,
        }
    }

    /// Takes one input and says what to do about it, in order.
    ///
    /// `now` is read from this client's own clock right before. It never runs backwards.
    pub fn step(&mut self, input: Input, now: Instant) -> Vec<Effect> {
        self.drop_late();
        if let Input::Timeout { used } = &input {
            self.note_used(used);
        }
        if let Input::Write { change: Write::Unlock { hold, .. }, .. } = &input {
            self.forget_hold(*hold);
        }
        self.note_time(now);
        match input {
            Input::Connected => self.connected(now),
            Input::Disconnected => self.disconnected(),
            Input::Read { read, object } => self.read(read, object, now),
            Input::Write { write, change } => self.write(write, change),
            Input::Keep(id) => self.keep(id),
            Input::LetGo(id) => self.let_go(id),
            Input::GiveUpRead(read) => self.give_up_read(read),
            Input::GiveUpWrite(write) => self.give_up_write(write),
            Input::Answered { ticket, response } => self.answered(ticket, response, now),
            Input::Recalled(recall) => self.recalled(&recall, now),
            Input::Evicted { object, stamp } => self.evicted(object, stamp, now),
            Input::Timeout { .. } => self.timed_out(now),
            Input::Probe => self.probe(now),
            Input::Close => self.close(now),
            Input::Watch { watch, watched, after, bytes_max } => self.watch(watch, watched, after, bytes_max),
            Input::WatchMore(watch) => self.watch_more(watch),
            Input::GiveUpWatch(watch) => self.give_up_watch(watch),
            Input::SetCached { hold, value } => self.set_cached(hold, value, now),
            Input::Flush(hold) => self.flush(hold),
            Input::EndCaching(hold) => self.end_caching(hold),
        }
        self.look_after_caching(now);
        self.send_ready(now);
        self.keep_due(now);
        self.await_holds(now);
        self.recalls.forget(self.flights.oldest_granting());
        std::mem::take(&mut self.effects)
    }

    /// When [`Input::Timeout`] is wanted, at the latest. None while there is nothing to wait for.
    ///
    /// After each step it is another, later one: a shell that calls in time is never asked twice for the same moment.
    pub fn next_deadline(&self) -> Option<Instant> {
        let has_leader = self.link == Link::Registered;
        let deadlines = [
            self.queue.next_wake(),
            self.volumes.next_deadline(has_leader),
            self.session_deadline(),
            self.silence_deadline(),
            self.probe_deadline(),
            self.keeping_deadline(),
            self.holding_deadline(),
            self.flush_deadline(),
            self.clocks_deadline(),
        ];
        deadlines.into_iter().flatten().min()
    }

    /// Whether the object's copy may be used now (S1). What a cache decides by itself with [`validity::may_use`].
    pub fn may_serve(&self, object: &Object, now: Instant) -> bool {
        self.copies.get(object).is_some_and(|copy| self.may_use(&copy.validity, now))
    }

    /// How long the volume's lease is certain to hold on this client's clock, if nothing more is heard.
    pub fn certain_for(&self, volume: &Path, now: Instant) -> Duration {
        self.validity_of(volume).until.since(now)
    }

    /// The top of the volume that a path belongs to, as far as is known: the nearest one at or above it, with a lease or without.
    pub fn volume_of(&self, path: &Path) -> Path {
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
    pub fn validity_of(&self, volume: &Path) -> VolumeValidity {
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
    fn tell_validity(&mut self, volume: &Path) {
        let validity = self.validity_of(volume);
        if let Some(known) = self.volumes.get_mut(volume)
            && known.told != validity
        {
            known.told = validity;
            self.effects.push(Effect::VolumeValid { volume: volume.clone(), validity });
        }
    }
}
