//! The actions: each is one step of a process, the network, Raft, or time.

use std::fmt;

use crate::situation::LinkId;

/// One possible step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// A thread of an application starts its next operation.
    Begin { client: usize, thread: usize },
    /// A thread that has looked up a copy reads the clock, and uses the copy if it may.
    Finish { client: usize, thread: usize },
    /// The holder's deadline has come.
    ClientTimer { client: usize },
    /// The client notices that its connection is broken.
    Notice { client: usize },
    /// The client connects to a server that claims to lead.
    Connect { client: usize, server: usize },
    /// A request reaches the server: the first in flight, or the one behind it.
    Up { link: LinkId, place: usize },
    /// A consent reaches the server.
    UpConsent { link: LinkId },
    /// An answer reaches the client: the first in flight, or the one behind it.
    Down { link: LinkId, place: usize },
    /// A recall reaches the client.
    DownRecall { link: LinkId },
    /// A quorum has the oldest entry that the leader appended, and the leader applies it.
    Commit,
    /// The other servers say whether a server leads.
    Ask { server: usize },
    /// The server receives that verdict.
    Verdict { server: usize },
    /// The lessor's deadline has come.
    ServerTimer { server: usize },
    /// A deposed leader learns of it.
    Learn { server: usize },
    /// A server is elected. The first few entries that the last leader appended are kept. The
    /// others are lost, or come late if the same server leads again and its shell still has them.
    Elect { server: usize, kept: usize, is_late: bool },
    /// Time jumps to the next moment.
    Advance,
    /// A client's connection breaks.
    Break { client: usize },
    /// A client's connection goes dead, and neither side notices.
    Cut { client: usize },
    /// A recall is lost.
    LoseRecall { client: usize },
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Begin { client, thread } => write!(f, "client {client}, thread {thread}, begins its next operation"),
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
            Self::Verdict { server } => write!(f, "server {server} learns whether it leads"),
            Self::ServerTimer { server } => write!(f, "server {server} is called for its deadline"),
            Self::Learn { server } => write!(f, "server {server} learns that it no longer leads"),
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
