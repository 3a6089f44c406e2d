//! What goes on after a command has answered: a lease that is kept alive, a service that is registered, a node that is held.
//!
//! On the command line it goes on until it is lost, which is a failure, or until the process is told to stop, which is not. In the
//! shell it goes on until the shell ends; if it is lost before, that is said on standard error.

use std::{fmt, time::Duration};

use leasehold_client_cache::{
    CancellationToken, Client, Condition, ConnectionState, DeleteOptions, EventsError, Hold, KeyLease, Leadership,
    LeaseId, Path, Registration, Revision,
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    task::JoinSet,
};

use super::{
    elect,
    lease::{RenewalAnswer, hex},
    lock, write_failure,
};
use crate::{
    exit::Failure,
    output::{Output, visible},
};

/// How often it is looked whether a registered node is still the one that was put. It is read from memory unless somebody changed it.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Something that goes on.
#[derive(Debug)]
pub(crate) enum Kept {
    /// A key lease is kept alive.
    Lease {
        /// The lease.
        lease: KeyLease,
        /// Its term.
        ttl: Duration,
    },
    /// A service is registered.
    Node(Node),
    /// A node is held.
    Hold(Hold),
    /// This leads, and is to be handed over to that one in the end.
    Leadership(Leadership, Option<String>),
}

/// A node that shows that its service lives.
#[derive(Debug)]
pub(crate) enum Node {
    /// By the session's lease on the node's volume.
    Session(Registration),
    /// By a key lease of its own.
    Lease {
        /// The node.
        path: Path,
        /// When it was put.
        revision: Revision,
        /// The lease.
        lease: KeyLease,
    },
}

impl Node {
    fn path(&self) -> &Path {
        match self {
            Self::Session(registration) => registration.path(),
            Self::Lease { path, .. } => path,
        }
    }

    /// When it was put.
    pub(crate) fn revision(&self) -> Revision {
        match self {
            Self::Session(registration) => registration.epoch(),
            Self::Lease { revision, .. } => *revision,
        }
    }

    /// The key lease that it goes with.
    pub(crate) fn lease(&self) -> Option<LeaseId> {
        match self {
            Self::Session(_) => None,
            Self::Lease { lease, .. } => Some(lease.id()),
        }
    }

    /// How long it is certain to be there if nothing more is heard.
    pub(crate) fn certain_for(&self) -> Duration {
        match self {
            Self::Session(registration) => registration.certain_for(),
            Self::Lease { lease, .. } => lease.certain_for(),
        }
    }

    fn over(&self) -> CancellationToken {
        match self {
            Self::Session(registration) => registration.over(),
            Self::Lease { lease, .. } => lease.over(),
        }
    }

    /// Waits until the service is not registered any more; says why.
    async fn lost(&self, client: &Client) -> Failure {
        let over = self.over();
        let text = tokio::select! {
            biased;
            () = over.cancelled() => "the lease is over that the node went with: expected to be heard of in time".to_owned(),
            () = self.changed(client) => {
                format!("somebody removed or changed the node: expected it as put at revision {}", self.revision())
            }
            () = self.tell_jeopardy(client) => "the client is closed".to_owned(),
        };
        Failure::refused("registration_lost", text)
    }

    /// Says when it is not certain any more. It is not lost by that: without servers, no lease ends. Goes on until there is no client.
    async fn tell_jeopardy(&self, client: &Client) {
        let mut events = client.events();
        loop {
            match events.next().await {
                Ok(ConnectionState::Jeopardy) => {
                    let path = visible(self.path().as_str());
                    Output::notice(&format!("register {path}: no server is heard of, it may be lost"));
                }
                Ok(_) | Err(EventsError::Missed { .. }) => {}
                Err(EventsError::Ended) => return,
            }
        }
    }

    /// Waits until the node is another one, or none.
    async fn changed(&self, client: &Client) {
        let mut looks = tokio::time::interval(LOOK_EVERY);
        loop {
            looks.tick().await;
            // If nobody answers, the lease says how long the node is certain.
            let Ok(entry) = client.get(self.path()).await else { continue };
            if entry.is_none_or(|entry| entry.stat.modify_revision != self.revision()) {
                return;
            }
        }
    }

    /// Removes the node, unless it is another's by now.
    async fn leave(self, client: &Client) -> Result<(), Failure> {
        let left = match self {
            Self::Session(registration) => registration.leave().await,
            Self::Lease { path, revision, lease } => {
                let options = DeleteOptions { condition: Condition::Revision(revision), ..DeleteOptions::default() };
                let left = client.delete(&path, options).await;
                // If this is not heard of, the lease ends by itself.
                let _ = lease.revoke().await;
                left
            }
        };
        left.map(|_| ()).map_err(|error| write_failure(&error))
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lease { lease, .. } => write!(f, "lease keep-alive {}", hex(lease.id())),
            Self::Node(node) => write!(f, "register {}", node.path()),
            Self::Hold(hold) => write!(f, "lock {}", hold.path()),
            Self::Leadership(leadership, _) => write!(f, "elect {}", leadership.path()),
        }
    }
}

impl Kept {
    /// Waits until it is lost. Renewals are told to `output`, if there is one.
    async fn lost(&mut self, client: &Client, output: Option<Output>) -> Failure {
        match self {
            Self::Node(node) => node.lost(client).await,
            Self::Hold(hold) => {
                hold.over().cancelled().await;
                lock::lost(hold.path())
            }
            Self::Leadership(leadership, _) => {
                leadership.over().cancelled().await;
                elect::lost(leadership.path())
            }
            Self::Lease { lease, ttl } => {
                while let Some(remaining) = lease.renewed().await {
                    if let Some(output) = output {
                        output.answer(&RenewalAnswer::new(lease.id(), *ttl, remaining));
                    }
                }
                Failure::refused("lease_lost", format!("lease {} expired or revoked", hex(lease.id())))
            }
        }
    }

    /// Ends it on purpose. A lease that was kept alive lasts for its term.
    async fn end(self, client: &Client) -> Result<(), Failure> {
        match self {
            Self::Lease { .. } => Ok(()),
            Self::Node(node) => node.leave(client).await,
            Self::Hold(hold) => hold.release().await.map_err(|error| lock::lock_failure(&error)),
            Self::Leadership(leadership, to) => elect::end(leadership, to.as_deref()).await,
        }
    }
}

/// What tells a process to stop.
#[derive(Debug)]
pub(crate) struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    /// Listens from now on.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let signals = signal(SignalKind::terminate()).and_then(|term| Ok((term, signal(SignalKind::interrupt())?)));
        let (terminate, interrupt) = signals.map_err(|error| Failure::io("cannot listen for signals", &error))?;
        Ok(Self { terminate, interrupt })
    }

    /// Waits until the process is told to stop.
    pub(crate) async fn told(mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Goes on until it is lost, which is a failure, or until it is to stop. Renewals are told to `output`, if there is one.
pub(crate) async fn follow(
    mut kept: Kept,
    client: &Client,
    stop: impl Future<Output = ()>,
    output: Option<Output>,
) -> Result<(), Failure> {
    let asked = kept.to_string();
    let ended = tokio::select! {
        () = stop => kept.end(client).await,
        failure = kept.lost(client, output) => Err(failure),
    };
    ended.map_err(|failure| failure.of(&asked))
}

/// What goes on in a shell.
#[derive(Debug, Default)]
pub(crate) struct GoingOn {
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl GoingOn {
    /// Goes on until it is lost, which is said, or until the shell ends.
    pub(crate) fn add(&mut self, kept: Kept, client: &Client) {
        let (client, stop) = (client.clone(), self.stop.clone());
        self.tasks.spawn(async move {
            if let Err(failure) = follow(kept, &client, stop.cancelled_owned(), None).await {
                Output::notice(&failure.message);
            }
        });
    }

    /// Ends all of it. Waits no longer than operations take.
    pub(crate) async fn end(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}
