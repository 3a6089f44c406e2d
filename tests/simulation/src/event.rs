//! What can happen, and to whom.

use leasehold_protocol::{
    holder::Ticket,
    message::{Consent, Recall, Request, Response},
};

/// A machine: it has a clock, and can be paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Host {
    Server(usize),
    Client(usize),
}

/// From a client to a server.
#[derive(Debug, Clone)]
pub(crate) enum Up {
    Request(Ticket, Box<Request>),
    Consent(Consent),
}

/// From a server to a client.
#[derive(Debug, Clone)]
pub(crate) enum Down {
    Response(Ticket, Box<Response>),
    Recall(Recall),
}

/// Something that happens at a time. Those with a `boot` are of one process of a server, those with a `life` of one process
/// of a client, and are nothing to the next.
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
    /// A quorum has the oldest entry of the server's tail.
    Commit {
        server: usize,
        boot: u64,
        term: u64,
    },
    /// The server applies the next entry.
    Apply {
        server: usize,
        boot: u64,
    },
    /// The server hears what is committed.
    Replicate {
        server: usize,
        boot: u64,
        index: u64,
    },
    /// The others answer a round that asks whether the server still leads.
    Round {
        server: usize,
        boot: u64,
        term: u64,
        round: u64,
        index: u64,
    },
    /// The server hears what came of it.
    Verdict {
        server: usize,
        boot: u64,
        term: u64,
        round: u64,
        index: u64,
        holds: bool,
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
    Elect {
        again: bool,
    },
    /// Faults stop.
    Heal,
    /// Everything has had time to heal: look.
    Ask,
    Judge,
}

impl Event {
    /// Where it happens; none for what is nature's.
    pub(crate) fn host(&self, client_of: impl Fn(usize) -> usize, server_of: impl Fn(usize) -> usize) -> Option<Host> {
        match self {
            Self::Step { server, .. }
            | Self::Propose { server, .. }
            | Self::Commit { server, .. }
            | Self::Apply { server, .. }
            | Self::Replicate { server, .. }
            | Self::Verdict { server, .. }
            | Self::Learn { server, .. } => Some(Host::Server(*server)),
            Self::Up { connection, .. } => Some(Host::Server(server_of(*connection))),
            Self::Down { connection, .. } => Some(Host::Client(client_of(*connection))),
            Self::Connect { client, .. }
            | Self::Disconnect { client, .. }
            | Self::Timer { client, .. }
            | Self::Act { client }
            | Self::Open { client, .. } => Some(Host::Client(*client)),
            Self::Round { .. }
            | Self::Boot { .. }
            | Self::Resume(_)
            | Self::Fault
            | Self::Elect { .. }
            | Self::Heal
            | Self::Ask
            | Self::Judge => None,
        }
    }

    /// A number for the trace.
    pub(crate) fn code(&self) -> u64 {
        match self {
            Self::Step { .. } => 1,
            Self::Propose { .. } => 2,
            Self::Commit { .. } => 3,
            Self::Apply { .. } => 4,
            Self::Replicate { .. } => 5,
            Self::Round { .. } => 6,
            Self::Verdict { .. } => 7,
            Self::Learn { .. } => 8,
            Self::Boot { .. } => 9,
            Self::Up { .. } => 10,
            Self::Down { .. } => 11,
            Self::Connect { .. } => 12,
            Self::Disconnect { .. } => 13,
            Self::Timer { .. } => 14,
            Self::Act { .. } => 15,
            Self::Open { .. } => 16,
            Self::Resume(_) => 17,
            Self::Fault => 18,
            Self::Elect { .. } => 19,
            Self::Heal => 20,
            Self::Ask => 21,
            Self::Judge => 22,
        }
    }
}
