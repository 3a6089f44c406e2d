//! On which connection each session registered last, indexed by session and by connection.

use std::collections::{BTreeSet, HashMap};

use leasehold_protocol::{id::SessionId, message::Recall};

use super::{ConnectionId, RecallSender};

#[cfg(test)]
use self::tests::visit;

/// Counts visited entries, in tests only (S10b).
#[cfg(not(test))]
#[inline(always)]
fn visit(_count: usize) {}

/// The last registration of one session: its number and its connection.
struct RegisteredSession {
    registration: u64,
    connection: ConnectionId,
    recalls: RecallSender,
}

/// All sessions that have registered on a connection that still exists.
#[derive(Default)]
pub(super) struct Registrations {
    sessions: HashMap<SessionId, RegisteredSession>,
    /// The sessions of each connection, so that its end visits no others.
    connections: HashMap<ConnectionId, BTreeSet<SessionId>>,
}

impl Registrations {
    /// Routes the session's recalls to this connection, unless the session has a later
    /// registration.
    pub(super) fn register(
        &mut self,
        session: SessionId,
        registration: u64,
        connection: ConnectionId,
        recalls: &RecallSender,
    ) {
        visit(1);
        if self.sessions.get(&session).is_some_and(|other| other.registration >= registration) {
            return;
        }
        let registered = RegisteredSession { registration, connection, recalls: recalls.clone() };
        if let Some(earlier) = self.sessions.insert(session, registered) {
            self.leave(earlier.connection, session);
        }
        visit(1);
        self.connections.entry(connection).or_default().insert(session);
    }

    /// Whether the session registered on this connection last.
    pub(super) fn is_on(&self, session: SessionId, connection: ConnectionId) -> bool {
        visit(1);
        self.sessions.get(&session).is_some_and(|registered| registered.connection == connection)
    }

    /// Sends a recall on the connection of its session, if that connection still exists.
    pub(super) fn recall(&self, recall: Recall) {
        visit(1);
        if let Some(RegisteredSession { recalls, .. }) = self.sessions.get(&recall.session) {
            // The connection may have ended, or its client may accept no recalls. The lessor sends
            // the recall again.
            let _ = recalls.try_send(recall);
        }
    }

    /// Removes an ended session.
    pub(super) fn forget(&mut self, session: SessionId) {
        visit(1);
        if let Some(registered) = self.sessions.remove(&session) {
            self.leave(registered.connection, session);
        }
    }

    /// Removes an ended connection. Returns how many sessions had registered on it last.
    pub(super) fn disconnected(&mut self, connection: ConnectionId) -> usize {
        visit(1);
        let own = self.connections.remove(&connection).unwrap_or_default();
        for session in own.iter().inspect(|_| visit(1)) {
            self.sessions.remove(session);
        }
        own.len()
    }

    /// The number of registered sessions.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.sessions.len()
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn leave(&mut self, connection: ConnectionId, session: SessionId) {
        visit(1);
        if let Some(own) = self.connections.get_mut(&connection) {
            own.remove(&session);
            if own.is_empty() {
                self.connections.remove(&connection);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use leasehold_protocol::id::Stamp;
    use tokio::sync::mpsc;

    use super::*;

    thread_local! {
        static VISITED: Cell<usize> = const { Cell::new(0) };
    }

    pub(super) fn visit(count: usize) {
        VISITED.with(|visited| visited.set(visited.get() + count));
    }

    /// The number of sessions on each connection.
    const EACH: u64 = 3;

    /// How many entries each step visits when there are this many connections.
    fn visited_beside(connections: u64) -> Vec<(&'static str, usize)> {
        let (recalls, mut recalled) = mpsc::channel(1);
        let mut registrations = Registrations::default();
        for session in 0..EACH * connections {
            registrations.register(SessionId(session), 1, ConnectionId(session / EACH), &recalls);
        }
        assert_eq!(registrations.connections.len() as u64, connections);
        let (session, own, next) = (SessionId(EACH * connections), ConnectionId(connections), ConnectionId(0));
        let mut visited = Vec::new();
        let mut step = |what, step: &mut dyn FnMut(&mut Registrations)| {
            VISITED.take();
            step(&mut registrations);
            visited.push((what, VISITED.take()));
        };
        step("first registration", &mut |all| all.register(session, 1, own, &recalls));
        step("registration elsewhere", &mut |all| all.register(session, 2, next, &recalls));
        step("late registration", &mut |all| all.register(session, 1, own, &recalls));
        let recall =
            Recall { session, stamp: Stamp::default(), number: 1, sets: Vec::new(), offers_next_values: false };
        step("recall", &mut |all| all.recall(recall.clone()));
        step("end of a session", &mut |all| all.forget(session));
        step("first registration again", &mut |all| all.register(session, 3, next, &recalls));
        step("end of a connection", &mut |all| assert_eq!(all.disconnected(next) as u64, EACH + 1));
        step("end of a connection without sessions", &mut |all| assert_eq!(all.disconnected(own), 0));
        assert_eq!(recalled.try_recv(), Ok(recall));
        visited
    }

    #[test]
    fn end_among_many_connections_visits_its_own_sessions() {
        let visited = visited_beside(100_000);
        assert_eq!(visited, visited_beside(10));
        let most: Vec<usize> = visited.iter().map(|(_, visited)| *visited).collect();
        assert_eq!(most, [2, 3, 1, 1, 2, 2, 1 + EACH as usize + 1, 1], "{visited:?}");
    }

    #[test]
    fn end_of_a_connection_takes_its_own_sessions_only() {
        let (recalls, _recalled) = mpsc::channel(1);
        let mut registrations = Registrations::default();
        for session in 1..=100 {
            registrations.register(SessionId(session), 1, ConnectionId(session % 10), &recalls);
        }
        // Session 1 registers elsewhere, then there again, then late on the first connection.
        for registration in [2, 3, 1] {
            let connection = ConnectionId(if registration == 1 { 1 } else { 2 });
            registrations.register(SessionId(1), registration, connection, &recalls);
        }
        assert_eq!(registrations.disconnected(ConnectionId(1)), 9);
        assert_eq!(registrations.disconnected(ConnectionId(1)), 0);
        assert_eq!(registrations.disconnected(ConnectionId(2)), 11);
        assert_eq!((registrations.sessions.len(), registrations.connections.len()), (80, 8));
        for connection in 0..10 {
            registrations.disconnected(ConnectionId(connection));
        }
        assert!(registrations.sessions.is_empty() && registrations.connections.is_empty(), "nothing is left over");
    }
}
