//! What can happen, and to whom.

use leasehold_protocol::{
    command::Proposal,
    holder::SendId,
    message::{Consent, Recall, Request, Response},
};

use crate::raft::{Peer, replication::Asked};

/// A machine: it has a clock, and can be paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host {
    Server(usize),
    Client(usize),
}

/// From a client to a server.
#[derive(Debug, Clone)]
pub(crate) enum Up {
    Request(SendId, Box<Request>),
    Consent(Consent),
}

/// From a server to a client.
#[derive(Debug, Clone)]
pub(crate) enum Down {
    Response(SendId, Box<Response>),
    Recall(Recall),
}

/// Something that happens at a time. Those with a `boot` are of one process of a server, those with
/// a `life` of one process of a client, and are nothing to the next.
#[derive(Debug, Clone)]
pub(crate) enum Event {
    /// The lessor's deadline.
    Step {
        server: usize,
        boot: u64,
        at: u64,
    },
    /// The server takes what its lessor wants to propose.
    Propose {
        server: usize,
        boot: u64,
    },
    /// A proposal has got from the shell to Raft.
    Hand {
        server: usize,
        boot: u64,
        proposal: Box<Proposal>,
    },
    /// The server applies the next entry.
    Apply {
        server: usize,
        boot: u64,
    },
    /// Something comes from one process of another server.
    Peer {
        from: usize,
        boot: u64,
        to: usize,
        message: Box<Peer>,
    },
    /// What was appended up to an entry (its index, its term) is on disk. Who is to be told, and
    /// which heartbeat asked.
    Synced {
        server: usize,
        boot: u64,
        upto: (u64, u64),
        answer: Option<Asked>,
    },
    /// Is there a leader?
    Campaign {
        server: usize,
        boot: u64,
    },
    /// The leader of a term has a heart that beats.
    Beat {
        server: usize,
        boot: u64,
        term: u64,
    },
    /// The shell hears that its Raft leads.
    Lead {
        server: usize,
        boot: u64,
        term: u64,
    },
    /// A proof of leadership has been waited for long enough.
    Unproven {
        server: usize,
        boot: u64,
        round: u64,
    },
    /// A server without a disk asks to be let in.
    Readmission {
        server: usize,
        boot: u64,
    },
    /// A deposed leader hears of it.
    Learn {
        server: usize,
        boot: u64,
    },
    Boot {
        server: usize,
    },

    Up {
        connection: usize,
        message: Up,
    },
    Down {
        connection: usize,
        message: Down,
    },

    Connect {
        client: usize,
        life: u64,
        server: usize,
    },
    Disconnect {
        client: usize,
        life: u64,
        connection: usize,
    },
    Timer {
        client: usize,
        life: u64,
        at: u64,
    },
    /// The application does something.
    Act {
        client: usize,
    },
    /// The client's process begins anew, with a new session.
    Open {
        client: usize,
        life: u64,
    },

    Resume(Host),
    Fault,
    /// A leader is cut off from the other servers.
    LeaderAlone,
    /// Faults stop.
    Heal,
    /// Everything has had time to heal: look.
    Ask,
    Judge,
    /// What had outlived its owner has had time to end.
    JudgeLeft,
    /// Sessions whose clients are gone have had time to end.
    JudgeSessions,
}

impl Event {
    /// Where it happens; none for what is nature's.
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

    /// A number for the trace.
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
