//! The state of the session for the application, and whether a server can be reached.

use std::{
    future::poll_fn,
    pin::Pin,
    sync::atomic::{
        AtomicBool,
        Ordering::{Acquire, Release},
    },
    task::{Context, Poll, ready},
};

use futures::Stream;
use leasehold_protocol::{drift::Excess, holder::SessionNews, id::SessionId, message::Refusal, path::NodePath};
use parking_lot::Mutex;
use tokio::sync::{broadcast, watch};

use crate::{broadcast::PollReceiver, error::Unavailable};

/// The most changes that a subscriber may be behind. About one comes in a volume term. A slower
/// subscriber gets an error.
const EVENTS_MAX: usize = 256;

/// The state of the client's session (the states of Chubby).
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_client_cache::SessionState;
///
/// match client.events().next().await? {
///     SessionState::Jeopardy { volumes } => println!("an outage; leases on {volumes:?} have ended"),
///     SessionState::Expired { .. } => println!("all locks of this client are lost"),
///     state => println!("{state:?}"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SessionState {
    /// There is no session yet.
    Connecting,
    /// A leader answers, and the client renews its leases.
    Connected {
        /// The session that the leader knows.
        session: SessionId,
    },
    /// Leases have ended on this client's clock, because no server renewed them in time: no server
    /// answered, or the leader had no quorum and could not promise enough. Reads under them go to a
    /// server. The session may still exist.
    ///
    /// If the lease of another volume ends later, this state is reported again, with that volume.
    Jeopardy {
        /// The volumes whose leases have ended, in the order of their paths. A volume is left out
        /// once a server has renewed its lease, or if the client did not need it. Empty if only the
        /// session's own lease has ended.
        volumes: Vec<NodePath>,
    },
    /// The session has ended, with all that depended on it. The client opens a new one: see
    /// [`SessionState::Connected`].
    Expired {
        /// The session that has ended.
        session: SessionId,
    },
    /// The client is closed: the application has closed it, the runtime of its tasks has ended, or
    /// the client panicked.
    Closed,
}

impl From<SessionNews> for SessionState {
    fn from(connection: SessionNews) -> Self {
        match connection {
            SessionNews::Connected { session } => Self::Connected { session },
            SessionNews::Jeopardy { volumes } => Self::Jeopardy { volumes },
            SessionNews::Expired { session } => Self::Expired { session },
        }
    }
}

/// The changes of the session's state, each once and in order. See
/// [`Client::events`](crate::Client::events).
///
/// It is a [`Stream`], which ends after the last change. [`Events::next`] is the same without the
/// `Option`, and needs no import.
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let mut events = client.events();
/// println!("{:?}", events.next().await?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is received until this is polled"]
pub struct Events {
    receiver: PollReceiver<SessionState>,
    /// Whether the last change was [`SessionState::Closed`].
    has_ended: bool,
}

/// Why there is no next change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EventsError {
    /// The subscriber was too slow, and the oldest changes were dropped. Later ones follow.
    #[error("{missed} changes of the connection's state were missed")]
    Missed {
        /// The number of dropped changes.
        missed: u64,
    },
    /// The client is closed or dropped: there are no more changes.
    #[error("the client is closed")]
    Ended,
}

impl Events {
    /// Waits for the next change. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    ///
    /// [`EventsError::Missed`] if more than 256 changes were waiting. [`EventsError::Ended`] after
    /// the last change.
    pub async fn next(&mut self) -> Result<SessionState, EventsError> {
        poll_fn(|cx| self.poll_change(cx)).await
    }

    fn poll_change(&mut self, cx: &mut Context<'_>) -> Poll<Result<SessionState, EventsError>> {
        if self.has_ended {
            return Poll::Ready(Err(EventsError::Ended));
        }
        let change = ready!(self.receiver.poll_recv(cx));
        self.has_ended = matches!(change, Ok(SessionState::Closed) | Err(broadcast::error::RecvError::Closed));
        Poll::Ready(change.map_err(|error| match error {
            broadcast::error::RecvError::Lagged(missed) => EventsError::Missed { missed },
            broadcast::error::RecvError::Closed => EventsError::Ended,
        }))
    }
}

impl Stream for Events {
    type Item = Result<SessionState, EventsError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll_change(cx).map(|change| Some(change).filter(|change| *change != Err(EventsError::Ended)))
    }
}

/// Whether a server can be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ServerReach {
    /// The last server that answered leads.
    Leader,
    /// No leader is known.
    Nobody(Unavailable),
    /// A server refuses to open a session for this client.
    Refused(Refusal),
}

/// What is known about the session and the servers.
#[derive(Debug)]
pub(crate) struct Status {
    state: watch::Sender<SessionState>,
    events: broadcast::Sender<SessionState>,
    /// Set before [`SessionState::Closed`] is sent.
    is_closed: AtomicBool,
    reach: watch::Sender<ServerReach>,
    /// Why a server last refused a connection. Cleared when a leader answers.
    refused: Mutex<Option<String>>,
    clock: watch::Sender<Option<Excess>>,
}

impl Status {
    pub(crate) fn new(endpoints: Vec<String>) -> Self {
        let reason = "no connection has been tried".to_owned();
        let nobody = ServerReach::Nobody(Unavailable::NoServer { endpoints, reason });
        Self {
            state: watch::Sender::new(SessionState::Connecting),
            events: broadcast::Sender::new(EVENTS_MAX),
            is_closed: AtomicBool::new(false),
            reach: watch::Sender::new(nobody),
            refused: Mutex::default(),
            clock: watch::Sender::new(None),
        }
    }

    pub(crate) fn clock(&self) -> watch::Receiver<Option<Excess>> {
        self.clock.subscribe()
    }

    /// Records that the clocks exceed their allowances, or are within them again.
    pub(crate) fn clock_changed(&self, beyond: Option<Excess>) {
        match &beyond {
            Some(excess) => tracing::warn!(
                ppm = excess.ppm(),
                allowed_ppm = excess.allowed_ppm,
                "this machine's clock and the leading server's differ by more than allowed: nothing is served from memory"
            ),
            None => tracing::info!("this machine's clock and the leading server's are within their allowances again"),
        }
        self.clock.send_replace(beyond);
    }

    pub(crate) fn state(&self) -> watch::Receiver<SessionState> {
        self.state.subscribe()
    }

    pub(crate) fn events(&self) -> Events {
        let receiver = self.events.subscribe();
        // If `Closed` was sent before, the stream does not get it.
        let has_ended = self.is_closed.load(Acquire) && receiver.is_empty();
        Events { receiver: PollReceiver::new(receiver), has_ended }
    }

    pub(crate) fn reach(&self) -> watch::Receiver<ServerReach> {
        self.reach.subscribe()
    }

    /// Why no server can answer, if that is so.
    pub(crate) fn unavailable(&self) -> Option<Unavailable> {
        match &*self.reach.borrow() {
            ServerReach::Nobody(why) => Some(why.clone()),
            ServerReach::Leader | ServerReach::Refused(_) => None,
        }
    }

    /// Replaces the session's state, and sends the event under the same lock. So a caller that
    /// reads the new state and then subscribes does not get its event again. A caller that has the
    /// event reads the new state.
    pub(crate) fn changed(&self, state: SessionState) {
        if state == SessionState::Closed {
            self.is_closed.store(true, Release);
        }
        self.state.send_modify(|current| {
            current.clone_from(&state);
            // There may be no subscriber.
            let _ = self.events.send(state);
        });
    }

    /// No endpoint could be connected to or used.
    pub(crate) fn nobody(&self, why: Unavailable) {
        self.set(ServerReach::Nobody(why));
    }

    /// A server may be there, but no leader is known.
    pub(crate) fn no_leader(&self, reason: &str) {
        let refused = self.refused.lock().clone();
        let reason = refused.map_or_else(|| reason.to_owned(), |refused| format!("{reason}; {refused}"));
        self.set(ServerReach::Nobody(Unavailable::NoLeader { reason }));
    }

    /// A server, perhaps the leader, has refused a connection. That is part of the reason until a
    /// leader answers.
    pub(crate) fn refused(&self, reason: String) {
        *self.refused.lock() = Some(reason);
    }

    /// A server has answered or refused. `had_session`: whether a session existed before that.
    pub(crate) fn heard(&self, refusal: Option<Refusal>, had_session: bool) {
        match refusal {
            Some(refusal @ (Refusal::NotLeader { .. } | Refusal::Retry)) => self.no_leader(&refusal.to_string()),
            Some(refusal @ Refusal::Limit(_)) if !had_session => self.set(ServerReach::Refused(refusal)),
            _ => {
                *self.refused.lock() = None;
                self.set(ServerReach::Leader);
            }
        }
    }

    fn set(&self, reach: ServerReach) {
        self.reach.send_if_modified(|known| {
            let is_new = *known != reach;
            if is_new {
                *known = reach;
            }
            is_new
        });
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;

    use super::*;

    #[tokio::test]
    async fn events_stream_ends_with_its_client() {
        let status = Status::new(vec!["a:1".to_owned()]);
        let events = status.events();
        status.changed(SessionState::Closed);
        drop(status);
        assert_eq!(events.collect::<Vec<_>>().await, [Ok(SessionState::Closed)]);
    }

    #[tokio::test]
    async fn events_stream_ends_when_the_client_is_closed() {
        let status = Status::new(vec!["a:1".to_owned()]);
        let events = status.events();
        status.changed(SessionState::Closed);
        assert_eq!(events.collect::<Vec<_>>().await, [Ok(SessionState::Closed)], "a clone of the client is left");
    }

    #[tokio::test]
    async fn a_slow_subscriber_is_told_what_it_missed() {
        let status = Status::new(vec!["a:1".to_owned()]);
        let mut events = status.events();
        for _ in 0..EVENTS_MAX + 3 {
            status.changed(SessionState::Connecting);
        }
        assert_eq!(events.next().await, Err(EventsError::Missed { missed: 3 }));
        assert_eq!(events.next().await, Ok(SessionState::Connecting));
    }

    #[test]
    fn connection_event_and_state_change_are_atomic() {
        let session = |round| SessionState::Connected { session: SessionId(round) };
        let status = Status::new(vec!["a:1".to_owned()]);
        for round in 1..=2_000 {
            let mut subscribed = status.events.subscribe();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let state = status.state();
                    while *state.borrow() != session(round) {
                        std::hint::spin_loop();
                    }
                    let told = status.events.subscribe().try_recv();
                    assert_eq!(
                        told,
                        Err(broadcast::error::TryRecvError::Empty),
                        "told of a state that was seen before"
                    );
                });
                scope.spawn(|| {
                    while subscribed.try_recv().is_err() {
                        std::hint::spin_loop();
                    }
                    assert_eq!(*status.state().borrow(), session(round), "told of a state that is not there yet");
                });
                status.changed(session(round));
            });
        }
    }
}
