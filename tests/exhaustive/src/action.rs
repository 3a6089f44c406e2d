//! What may happen next: each a step of one process, of the network, of Raft, or of time.

use std::fmt;

use crate::situation::LinkId;

/// One of the things that may happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// A thread of an application does the next thing that it has to do.
    Begin {
        client: usize,
        thread: usize,
    },
    /// A thread that has looked a copy up reads the clock and uses it, if it may.
    Finish {
        client: usize,
        thread: usize,
    },
    /// The holder is called for its deadline.
    ClientTimer {
        client: usize,
    },
    /// The client hears that its connection is broken.
    Notice {
        client: usize,
    },
    /// The client connects to a server that says that it leads.
    Connect {
        client: usize,
        server: usize,
    },
    /// A request reaches the server: the first on its way, or the one behind it.
    Up {
        link: LinkId,
        place: usize,
    },
    UpConsent {
        link: LinkId,
    },
    /// An answer reaches the client: the first on its way, or the one behind it.
    Down {
        link: LinkId,
        place: usize,
    },
    DownRecall {
        link: LinkId,
    },
    /// A quorum has the oldest entry that the leader appended, and the leader applies it.
    Commit,
    /// The others say whether a server leads.
    Ask {
        server: usize,
    },
    /// The server hears what they said.
    Verdict {
        server: usize,
    },
    /// The lessor is called for its deadline.
    ServerTimer {
        server: usize,
    },
    /// A deposed leader hears of it.
    Learn {
        server: usize,
    },
    /// A server is elected. Of what the leader before it had appended the first few entries are
    /// kept; the rest comes late, if the same server leads again and its shell still had it, or
    /// never.
    Elect {
        server: usize,
        kept: usize,
        is_late: bool,
    },
    /// Time jumps to the next moment.
    Advance,
    /// A client's connection breaks.
    Break {
        client: usize,
    },
    /// A client's connection goes dead, and nobody is told.
    Cut {
        client: usize,
    },
    /// A recall is lost.
    LoseRecall {
        client: usize,
    },
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin { client, thread } => write!(f, "client {client}, thread {thread}, does its next thing"),
            Self::Finish { client, thread } => write!(f, "client {client}, thread {thread}, uses what it looked up"),
            Self::ClientTimer { client } => write!(f, "client {client} is called for its deadline"),
            Self::Notice { client } => write!(f, "client {client} notices that its connection is broken"),
            Self::Connect { client, server } => write!(f, "client {client} connects to server {server}"),
            Self::Up { link, place: 0 } => write!(f, "a request of {link} arrives"),
            Self::Up { link, .. } => write!(f, "a request of {link} arrives before the one ahead of it"),
            Self::UpConsent { link } => write!(f, "a consent of {link} arrives"),
            Self::Down { link, place: 0 } => write!(f, "an answer to {link} arrives"),
            Self::Down { link, .. } => write!(f, "an answer to {link} arrives before the one ahead of it"),
            Self::DownRecall { link } => write!(f, "a recall to {link} arrives"),
            Self::Commit => write!(f, "the leader's oldest entry is committed and applied"),
            Self::Ask { server } => write!(f, "the others say whether server {server} leads"),
            Self::Verdict { server } => write!(f, "server {server} hears whether it leads"),
            Self::ServerTimer { server } => write!(f, "server {server} is called for its deadline"),
            Self::Learn { server } => write!(f, "server {server} hears that it leads no more"),
            Self::Elect { server, kept, is_late } => {
                let rest = if *is_late { "and the rest comes late" } else { "and the rest is lost" };
                write!(f, "server {server} is elected; {kept} of the last leader's entries are kept, {rest}")
            }
            Self::Advance => write!(f, "time passes"),
            Self::Break { client } => write!(f, "the connection of client {client} breaks"),
            Self::Cut { client } => write!(f, "the connection of client {client} goes dead"),
            Self::LoseRecall { client } => write!(f, "a recall to client {client} is lost"),
        }
    }
}

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} (connection {})", self.client, self.number)
    }
}
