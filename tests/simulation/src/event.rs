//! The events of the simulation, and the machine that each concerns.

use leasehold_protocol::{
    command::Proposal,
    holder::SendId,
    message::{Consent, DelayNotice, Recall, Request, Response},
};

use crate::raft::{Peer, replication::Asked};

/// A machine. It has a clock, and can be paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host {
    Server(usize),
    Client(usize),
}

/// A message from a client to a server.
#[derive(Debug, Clone)]
pub(crate) enum Up {
    Request(SendId, Box<Request>),
    Consent(Consent),
    ConsentDelayed(DelayNotice),
}

/// A message from a server to a client.
#[derive(Debug, Clone)]
pub(crate) enum Down {
    Response(SendId, Box<Response>),
    Recall(Recall),
}

/// An event at a true time. Events with a `boot` belong to one process of a server, events with a
/// `life` to one process of a client. Later processes ignore them.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// The lessor's deadline has come.
    Step { server: usize, boot: u64, at: u64 },
    /// The shell takes proposals from its lessor.
    Propose { server: usize, boot: u64 },
    /// A proposal reaches Raft from the shell.
    Hand { server: usize, boot: u64, proposal: Box<Proposal> },
    /// The server applies the next entry.
    Apply { server: usize, boot: u64 },
    /// A message from one process of another server.
    Peer { from: usize, boot: u64, to: usize, message: Box<Peer> },
    /// The log is on disk up to an entry (its index and Raft term). `answer` names the leader and
    /// the heartbeat that asked.
    Synced { server: usize, boot: u64, upto: (u64, u64), answer: Option<Asked> },
    /// The server checks whether it hears from a leader.
    Campaign { server: usize, boot: u64 },
    /// The leader of a Raft term sends a heartbeat.
    Beat { server: usize, boot: u64, term: u64 },
    /// The shell learns that its Raft leads.
    Lead { server: usize, boot: u64, term: u64 },
    /// A quorum round has run out of time.
    Unproven { server: usize, boot: u64, round: u64 },
    /// A server without a disk asks to rejoin.
    Readmission { server: usize, boot: u64 },
    /// The shell of a deposed leader learns that it no longer leads.
    Learn { server: usize, boot: u64 },
    /// A server's process starts.
    Boot { server: usize },

    /// A message arrives at a server.
    Up { connection: usize, message: Up },
    /// A message arrives at a client.
    Down { connection: usize, message: Down },

    /// A client connects to a server.
    Connect { client: usize, life: u64, server: usize },
    /// A client notices that its connection has ended.
    Disconnect { client: usize, life: u64, connection: usize },
    /// The holder's deadline has come.
    Timer { client: usize, life: u64, at: u64 },
    /// The application does something.
    Act { client: usize },
    /// The client's process starts, with a new session.
    Open { client: usize, life: u64 },

    /// A paused machine goes on.
    Resume(Host),
    /// A fault happens.
    Fault,
    /// A leader is cut off from the other servers.
    LeaderAlone,
    /// Faults stop.
    Heal,
    /// Everything has had time to heal. The clients read all objects.
    Ask,
    /// The histories are judged.
    Judge,
    /// Leases that outlived their owners have had time to end.
    JudgeLeft,
    /// Sessions of departed clients have had time to end.
    JudgeSessions,
}

impl Event {
    /// The machine that the event concerns; none for events of the world itself.
    pub(crate) fn host(&self, client_of: impl Fn(usize) -> usize, server_of: impl Fn(usize) -> usize) -> Option<Host> {
        match self {
            Self::Step { server, .. }
            | Self::Propose { server, .. }
            | Self::Hand { server, .. }
            | Self::Apply { server, .. }
            | Self::Peer { to: server, .. }
            | Self::Synced { server, .. }
            | Self::Campaign { server, .. }
            | Self::Beat { server, .. }
            | Self::Lead { server, .. }
            | Self::Unproven { server, .. }
            | Self::Readmission { server, .. }
            | Self::Learn { server, .. } => Some(Host::Server(*server)),
            Self::Up { connection, .. } => Some(Host::Server(server_of(*connection))),
            Self::Down { connection, .. } => Some(Host::Client(client_of(*connection))),
            Self::Connect { client, .. }
            | Self::Disconnect { client, .. }
            | Self::Timer { client, .. }
            | Self::Act { client }
            | Self::Open { client, .. } => Some(Host::Client(*client)),
            Self::Boot { .. }
            | Self::Resume(_)
            | Self::Fault
            | Self::LeaderAlone
            | Self::Heal
            | Self::Ask
            | Self::Judge
            | Self::JudgeLeft
            | Self::JudgeSessions => None,
        }
    }

    /// The number of the event's kind, for the trace.
    pub(crate) fn code(&self) -> u64 {
        match self {
            Self::Step { .. } => 1,
            Self::Propose { .. } => 2,
            Self::Hand { .. } => 3,
            Self::Apply { .. } => 4,
            Self::Peer { .. } => 5,
            Self::Synced { .. } => 6,
            Self::Campaign { .. } => 7,
            Self::Beat { .. } => 8,
            Self::Lead { .. } => 9,
            Self::Unproven { .. } => 10,
            Self::Readmission { .. } => 11,
            Self::Learn { .. } => 12,
            Self::Boot { .. } => 13,
            Self::Up { .. } => 14,
            Self::Down { .. } => 15,
            Self::Connect { .. } => 16,
            Self::Disconnect { .. } => 17,
            Self::Timer { .. } => 18,
            Self::Act { .. } => 19,
            Self::Open { .. } => 20,
            Self::Resume(_) => 21,
            Self::Fault => 22,
            Self::Heal => 23,
            Self::Ask => 24,
            Self::Judge => 25,
            Self::JudgeSessions => 26,
            Self::LeaderAlone => 27,
            Self::JudgeLeft => 28,
        }
    }
}
