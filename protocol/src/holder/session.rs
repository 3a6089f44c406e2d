//! The session: opened once, registered on each connection, in jeopardy when its time passes unheard, gone when a server
//! says so.
//!
//! S4: registering with a leader is one atomic step. Installed copies survive it; what is still on its way from an older
//! epoch does not count any more. S9: when the session is gone, writes that were sent end as *unknown* and are never sent
//! under another; reads go on under a new one.

use super::{
    Connection, Effect, Holder, ReadError, Ticket, WatchError, WriteError,
    flights::{Flight, Purpose},
    pace::Pace,
    recalls::Recalls,
    volumes::{Ride, Volumes},
};
use crate::{
    id::{Epoch, SessionId, Stamp},
    message::{Answer, Body, Covering, Refusal},
    time::Instant,
};
use std::time::Duration;

/// What there is to send on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Link {
    /// Nothing.
    Down,
    /// A connection, to somebody who may lead.
    Up,
    /// A connection to a leader that the session has registered with.
    Registered,
    /// A connection that was given up: another is being looked for.
    Leaving,
}

/// What the application has been told last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Standing {
    /// Nothing yet, or that the session has expired.
    New,
    /// The session is connected.
    Connected,
    /// The session is in jeopardy.
    Jeopardy,
    /// The application has closed the session; the server has not said so yet.
    Closing,
    /// The session is closed.
    Closed,
}

/// The session that there is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Session {
    pub(super) id: SessionId,
    /// Until when it is remembered for certain.
    pub(super) until: Instant,
    pub(super) pace: Pace,
    /// The latest sending of [`Body::Register`] that was answered.
    pub(super) registered: Option<Ticket>,
}

impl Holder {
    /// Whether the application has closed the session.
    pub(super) fn is_closed(&self) -> bool {
        matches!(self.standing, Standing::Closing | Standing::Closed)
    }

    /// A new connection is up.
    pub(super) fn connected(&mut self, now: Instant) {
        self.disconnected();
        if !self.is_closed() {
            self.link = Link::Up;
            self.heard = now;
            self.greet(now);
        }
    }

    /// The connection is over. What was sent on it is sent again on the next, under the same number; what was
    /// answered meanwhile is not heard.
    pub(super) fn disconnected(&mut self) {
        self.link = Link::Down;
        // Each leader asks for its own lists.
        self.held.clear();
        self.reads.unsend_all();
        self.holding.unsend();
        self.watching.unsend_all();
        for purpose in self.flights.end_all() {
            match purpose {
                Purpose::Open
                | Purpose::Register
                | Purpose::KeepAlive
                | Purpose::KeepLeases
                | Purpose::AwaitHolds
                | Purpose::Held(_) => {}
                Purpose::Close => self.closed(),
                Purpose::Acquire(_) | Purpose::Read(_) | Purpose::Write(_) | Purpose::Watch(_) => {
                    self.queue.push(purpose);
                }
            }
        }
        self.queue.wake_all();
        self.queue.drop_greetings();
    }

    /// Whether there is anything to have a session for.
    pub(super) fn has_work(&self) -> bool {
        !(self.reads.is_empty() && self.writes.is_empty() && self.keeping.is_empty() && self.watching.is_empty())
    }

    /// Says who is there, on a connection on which nothing has been said yet: everything else waits for the answer.
    pub(super) fn greet(&mut self, now: Instant) {
        let is_greeting = |purpose: &Purpose| matches!(purpose, Purpose::Open | Purpose::Register);
        let on_its_way = self.flights.iter().any(|(_, flight)| is_greeting(&flight.purpose));
        if self.link != Link::Up || on_its_way || self.queue.iter().any(is_greeting) {
            return;
        }
        if self.session.is_some() {
            self.send(Purpose::Register, Body::Register, Ride::All, now);
        } else {
            let name = self.config.name.clone();
            self.send(Purpose::Open, Body::Open { name }, Ride::Due, now);
        }
    }

    /// Says it again if the server asked to be asked later.
    pub(super) fn greet_again(&mut self, now: Instant) {
        if self.link == Link::Up {
            self.queue.drop_greetings();
            self.greet(now);
        }
    }

    /// A request was done.
    pub(super) fn accepted(&mut self, ticket: Ticket, flight: Flight, epoch: Epoch, answer: Answer, now: Instant) {
        // Of a read that has to wait the setbacks still count.
        if answer != Answer::Recalling {
            self.queue.settle(&flight.purpose);
        }
        let Flight { purpose, sent, .. } = flight;
        match (purpose, answer) {
            (Purpose::Open, Answer::Opened { session, term }) => self.opened(session, term, sent, now),

            (Purpose::Close, _) => self.closed(),
            (Purpose::Held(volume), Answer::Noted) => self.held_noted(&volume),
            (Purpose::Acquire(volume), Answer::Acquired(answer)) => self.acquired(&volume, sent, epoch, answer, now),
            (Purpose::Read(object), Answer::Read(answer)) => self.read_answered(object, sent, epoch, answer, now),
            (Purpose::Read(object), Answer::Recalling) => self.read_recalling(object, now),
            (Purpose::KeepLeases, Answer::Kept(kept)) => self.kept(ticket, &kept, sent, now),
            (Purpose::AwaitHolds, Answer::Holds(told)) => self.holds_told(ticket, told, now),
            (Purpose::Write(write), Answer::Written { written, stamp, grant, applied, kept, cached }) => {
                if let Some(kept) = kept {
                    self.granted(ticket, &kept, sent, now);
                }
                let done = super::writes::Done { written, stamp, grant, applied, cached };
                self.written(write, sent, epoch, done, now);
            }
            (Purpose::Watch(watch), Answer::Changes(changes)) => self.watch_answered(watch, changes, now),
            (Purpose::KeepAlive, Answer::Alive(answer)) if epoch == self.epoch => {
                self.clocks_compared(ticket, sent, &answer, now);
            }
            // Dealt with before the rest of the answer.
            (Purpose::Register, Answer::Registered { .. }) | (Purpose::KeepAlive, _) => {}
            // Not an answer to what was asked: as good as none.
            (purpose, _) => self.wants_again(purpose, now),
        }
    }

    fn opened(&mut self, id: SessionId, term: Duration, sent: Instant, now: Instant) {
        let until = self.ends_at(sent, term, now);
        let pace = Pace::new(sent, term, term, self.config.spread_permille, now);
        self.session = Some(Session { id, until, pace, registered: None });
        self.greet(now);
    }

    /// A leader knows the session from now on (S4: in one step with refusing what older ones granted).
    pub(super) fn registered(
        &mut self,
        ticket: Ticket,
        sent: Instant,
        epoch: Epoch,
        coverings: &[Covering],
        now: Instant,
    ) {
        if self.link != Link::Up {
            return;
        }
        if epoch < self.epoch {
            return self.find_leader(None);
        }
        if epoch > self.epoch {
            self.epoch = epoch;
            self.clocks.begin_epoch();
            self.seen = self.seen.max(Stamp { epoch, sequence: 0 });
            self.recalls.begin_epoch(epoch);
            self.riders.begin_epoch(epoch);
            self.write_leases.begin_epoch(epoch);
        }
        if let Some(session) = &mut self.session {
            session.registered = Some(ticket);
        }
        self.link = Link::Registered;
        self.session_renewed(sent, now);
        self.clocks_registered(ticket, sent, now);
        for covering in coverings {
            self.list_held(covering, now);
        }
    }

    /// The leader says that the session has not registered with it, or not on this connection.
    pub(super) fn not_registered(&mut self, ticket: Ticket, purpose: Purpose, now: Instant) {
        self.wants_again(purpose, now);
        let since = self.session.as_ref().and_then(|session| session.registered);
        if self.link == Link::Registered && since.is_none_or(|since| since < ticket) {
            self.link = Link::Up;
            self.greet(now);
        }
    }

    /// The leader has answered a request that was sent at `sent`: a sign of life of both.
    pub(super) fn session_renewed(&mut self, sent: Instant, now: Instant) {
        let Some(term) = self.session.as_ref().map(|session| session.pace.term) else { return };
        let until = self.ends_at(sent, term, now);
        let Some(session) = &mut self.session else { return };
        if until > session.until {
            session.until = until;
        }
        session.pace.renewed(sent, term, term, now);
    }

    /// The leader has answered: the session is connected, or again. Not while leases that are in use have ended here and are
    /// still to be renewed: a leader without a quorum answers, but it promises nothing.
    pub(super) fn tell_connected(&mut self, now: Instant) {
        let Some(session) = &self.session else { return };
        let id = session.id;
        let is_certain = now < session.until && self.link == Link::Registered;
        let is_due = match self.standing {
            Standing::New => true,
            Standing::Jeopardy => !self.volumes.are_overdue() && self.acquisitions.is_empty(),
            Standing::Connected | Standing::Closing | Standing::Closed => false,
        };
        if is_certain && is_due {
            self.standing = Standing::Connected;
            self.effects.push(Effect::Connection(Connection::Connected { session: id }));
        }
    }

    /// Leases have ended on this clock, unheard.
    pub(super) fn endangered(&mut self) {
        if self.standing == Standing::Connected {
            self.standing = Standing::Jeopardy;
            self.effects.push(Effect::Connection(Connection::Jeopardy));
        }
    }

    /// When the session wants something: to be kept, or to be in jeopardy.
    pub(super) fn session_deadline(&self) -> Option<Instant> {
        let session = self.session.as_ref()?;
        let due = (self.link == Link::Registered).then_some(session.pace.due);
        let until = (self.standing == Standing::Connected).then_some(session.until);
        due.into_iter().chain(until).min()
    }

    /// The session is gone, and all that depended on it (S9). Reads begin anew under another.
    pub(super) fn expire(&mut self, refused: Purpose, now: Instant) {
        let Some(session) = self.session.take() else { return };
        if refused == Purpose::Close {
            return self.closed();
        }
        self.flights.end_all();
        self.reset();
        self.standing = Standing::New;
        self.effects.push(Effect::DropAll);
        self.end_writes();
        self.end_all_holds();
        self.effects.push(Effect::Connection(Connection::Expired { session: session.id }));
        self.reads.unsend_all();
        for object in self.reads.begin_anew() {
            self.queue.push(Purpose::Read(object));
        }
        self.watch_on();
        if self.link == Link::Registered {
            self.link = Link::Up;
        }
        self.greet(now);
    }

    /// Forgets everything that depended on the session.
    fn reset(&mut self) {
        self.seen = Stamp::default();
        self.queue = Default::default();
        self.riders = Default::default();
        self.volumes = Volumes::new(&self.config.bounds);
        self.copies = Default::default();
        self.recalls = Recalls::new(&self.config.bounds);
        self.acquisitions.clear();
        self.held.clear();
        self.write_leases.owe_nothing();
        self.late_drops.clear();
    }

    /// The server will not give this client a session.
    pub(super) fn refused_session(&mut self, refusal: Refusal) {
        self.end_writes();
        let reads = self.reads.end_all();
        if !reads.is_empty() {
            self.effects.push(Effect::ReadFailed { reads, error: ReadError::Refused(refusal.clone()) });
        }
        self.end_watches(&WatchError::Refused(refusal));
    }

    /// The application has no more use for the session: everything ends, and the server is told if it can be.
    pub(super) fn close(&mut self, now: Instant) {
        if self.is_closed() {
            return;
        }
        self.flights.end_all();
        self.reset();
        self.keeping.clear();
        self.effects.push(Effect::DropAll);
        self.end_writes();
        self.end_all_holds();
        let reads = self.reads.end_all();
        if !reads.is_empty() {
            self.effects.push(Effect::ReadFailed { reads, error: ReadError::Closed });
        }
        self.end_watches(&WatchError::Closed);
        self.standing = Standing::Closing;
        if self.link == Link::Registered {
            self.send(Purpose::Close, Body::Close, Ride::Due, now);
        } else {
            self.closed();
        }
    }

    /// The session is closed, as far as it can be known.
    pub(super) fn closed(&mut self) {
        if self.standing == Standing::Closing {
            self.standing = Standing::Closed;
            self.session = None;
            self.link = Link::Down;
            self.effects.push(Effect::Closed);
        }
    }

    /// Ends all writes: those never sent have changed nothing, of the others nobody knows.
    fn end_writes(&mut self) {
        for (write, was_sent) in self.writes.end_all() {
            let error = if was_sent { WriteError::OutcomeUnknown } else { WriteError::NotSent };
            self.write_done(write, Err(error));
        }
    }
}
