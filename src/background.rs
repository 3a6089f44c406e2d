//! The task that continues after a command's answer: a key lease that is renewed, a registered
//! service, a lock or a leadership.
//!
//! On the command line the task runs until its lease or lock is lost, or until a stop signal. Only
//! a loss is a failure. In the shell it runs until the shell ends; a loss before that is reported
//! on standard error.

pub(crate) mod keep_alive;
pub(crate) mod leadership;

use std::{fmt, time::Duration};

use leasehold_client_cache::{
    CancellationToken, Client, EventsError, KeyLease, Leadership, LeaseId, LockGuard, NodePath, Registration, Revision,
    SessionState,
};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    sync::oneshot,
    task::JoinSet,
};

use self::keep_alive::KeepAliveAnswer;
use crate::{
    exit::CommandFailure,
    failure::{leadership_lost_failure, lock_failure, lock_lost_failure, write_failure},
    lease_id::hex,
    output::{Output, visible},
};

/// How often to check that a registered node is still the one that was put. The read is answered
/// from memory unless the node was changed.
const CHECK_EVERY: Duration = Duration::from_millis(500);

/// A task that continues after the answer.
#[derive(Debug)]
pub(crate) enum BackgroundTask {
    /// Renews a key lease.
    Lease {
        lease: KeyLease,
        /// Its term.
        ttl: Duration,
    },
    /// Maintains a service registration.
    Registration(RegisteredNode),
    /// Owns a lock.
    Lock(LockGuard),
    /// Leads. When it ends, it hands over to this candidate, if any.
    Leadership(Leadership, Option<String>),
}

/// A node that shows that its service lives.
#[derive(Debug)]
pub(crate) enum RegisteredNode {
    /// Attached to the session's lease on the node's volume.
    Session(Registration),
    /// Attached to a key lease of its own.
    Lease {
        path: NodePath,
        /// The revision of the put.
        revision: Revision,
        /// The key lease that the node is attached to.
        lease: KeyLease,
    },
}

impl RegisteredNode {
    fn path(&self) -> &NodePath {
        match self {
            Self::Session(registration) => registration.path(),
            Self::Lease { path, .. } => path,
        }
    }

    /// The revision of the put.
    pub(crate) fn revision(&self) -> Revision {
        match self {
            Self::Session(registration) => registration.epoch(),
            Self::Lease { revision, .. } => *revision,
        }
    }

    /// The key lease that the node is attached to.
    pub(crate) fn lease(&self) -> Option<LeaseId> {
        match self {
            Self::Session(_) => None,
            Self::Lease { lease, .. } => Some(lease.id()),
        }
    }

    /// How long the node certainly remains without a further renewal.
    pub(crate) fn remaining(&self) -> Duration {
        match self {
            Self::Session(registration) => registration.remaining(),
            Self::Lease { lease, .. } => lease.remaining(),
        }
    }

    fn on_lost(&self) -> CancellationToken {
        match self {
            Self::Session(registration) => registration.on_lost(),
            Self::Lease { lease, .. } => lease.on_lost(),
        }
    }

    /// Waits until the service is no longer registered. Returns the reason.
    async fn wait_lost(&self, client: &Client) -> CommandFailure {
        let over = self.on_lost();
        let text = tokio::select! {
            biased;
            () = over.cancelled() => "lease expired; no server renewed it in time".to_owned(),
            () = self.changed(client) => {
                format!("removed or written by another client; it was registered at revision {}", self.revision())
            }
            () = self.report_jeopardy(client) => "the client is closed".to_owned(),
        };
        CommandFailure::refused("registration_lost", text)
    }

    /// Reports jeopardy until the client is closed. Jeopardy does not end the registration: without
    /// a leader no lease ends.
    async fn report_jeopardy(&self, client: &Client) {
        let mut events = client.events();
        loop {
            match events.next().await {
                Ok(SessionState::Jeopardy { volumes }) if self.may_be_in(&volumes) => {
                    let path = visible(self.path().as_str());
                    Output::notice(&format!("{path}: registration in jeopardy; no server answered in time"));
                }
                Err(EventsError::Ended) => return,
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Whether the end of the leases on these volumes may concern the registration. A key lease is
    /// on no volume.
    fn may_be_in(&self, volumes: &[NodePath]) -> bool {
        match self {
            Self::Session(_) => volumes.iter().any(|volume| volume.contains(self.path())),
            Self::Lease { .. } => true,
        }
    }

    /// Waits until the node is removed or replaced.
    async fn changed(&self, client: &Client) {
        let mut checks = tokio::time::interval(CHECK_EVERY);
        loop {
            checks.tick().await;
            // If no server answers, the lease decides how long the node certainly remains.
            let Ok(entry) = client.get(self.path()).await else { continue };
            if entry.is_none_or(|entry| entry.stat.modify_revision != self.revision()) {
                return;
            }
        }
    }

    /// Removes the node, unless another client has written it.
    async fn leave(self, client: &Client) -> Result<(), CommandFailure> {
        let left = match self {
            Self::Session(registration) => registration.leave().await,
            Self::Lease { path, revision, lease } => {
                let left = client.delete(&path).if_revision(revision).await;
                // If the revocation is lost, the lease expires by itself.
                let _ = lease.revoke().await;
                left
            }
        };
        left.map(|_| ()).map_err(|error| write_failure(&error))
    }
}

/// The subject of the task's failures.
impl fmt::Display for BackgroundTask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lease { lease, .. } => write!(f, "lease {}", hex(lease.id())),
            Self::Registration(node) => write!(f, "{}", node.path()),
            Self::Lock(lock) => write!(f, "{}", lock.path()),
            Self::Leadership(leadership, _) => write!(f, "{}", leadership.path()),
        }
    }
}

impl BackgroundTask {
    /// Waits until the lease or lock is lost. Prints renewals to `output`, if there is one.
    async fn wait_lost(&mut self, client: &Client, output: Option<Output>) -> CommandFailure {
        match self {
            Self::Registration(node) => node.wait_lost(client).await,
            Self::Lock(lock) => {
                lock.on_lost().cancelled().await;
                lock_lost_failure(lock.path())
            }
            Self::Leadership(leadership, _) => {
                leadership.on_lost().cancelled().await;
                leadership_lost_failure(leadership.path())
            }
            Self::Lease { lease, ttl } => {
                while let Some(remaining) = lease.renewed().await {
                    if let Some(output) = output {
                        output.answer(&KeepAliveAnswer::new(lease.id(), *ttl, remaining));
                    }
                }
                CommandFailure::refused("lease_lost", "expired or revoked")
            }
        }
    }

    /// Ends the task on purpose. A key lease that it renewed lasts for its term.
    async fn end(self, client: &Client) -> Result<(), CommandFailure> {
        match self {
            Self::Lease { .. } => Ok(()),
            Self::Registration(node) => node.leave(client).await,
            Self::Lock(lock) => lock.release().await.map_err(|error| lock_failure(&error)),
            Self::Leadership(leadership, to) => leadership::resign(leadership, to.as_deref()).await,
        }
    }
}

/// The signals that stop a process: SIGTERM and SIGINT.
#[derive(Debug)]
pub(crate) struct StopSignal {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignal {
    /// Listens from now on.
    pub(crate) fn listen() -> Result<Self, CommandFailure> {
        let signals = signal(SignalKind::terminate()).and_then(|term| Ok((term, signal(SignalKind::interrupt())?)));
        let (terminate, interrupt) =
            signals.map_err(|error| CommandFailure::io("cannot listen for signals", &error))?;
        Ok(Self { terminate, interrupt })
    }

    /// Waits for a stop signal.
    pub(crate) async fn requested(mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Runs until the task is lost, which is a failure, or until `stop`. Prints renewals to `output`,
/// if there is one.
pub(crate) async fn run_until_stopped(
    mut kept: BackgroundTask,
    client: &Client,
    stop: impl Future<Output = ()>,
    output: Option<Output>,
) -> Result<(), CommandFailure> {
    let subject = kept.to_string();
    let ended = tokio::select! {
        () = stop => kept.end(client).await,
        failure = kept.wait_lost(client, output) => Err(failure),
    };
    ended.map_err(|failure| failure.with_subject(&subject))
}

/// The background tasks of a shell.
#[derive(Debug, Default)]
pub(crate) struct BackgroundTasks {
    stop: CancellationToken,
    tasks: JoinSet<()>,
    /// The tasks that own locks, in order.
    locks: Vec<OwnedLock>,
}

/// A task of the shell that owns a lock.
#[derive(Debug)]
struct OwnedLock {
    path: NodePath,
    /// Tells the task to release the lock.
    release: oneshot::Sender<()>,
    /// How the task ended.
    ended: oneshot::Receiver<Result<(), CommandFailure>>,
}

impl BackgroundTasks {
    /// Runs a task until it is lost, which is reported, or until the shell ends.
    pub(crate) fn add(&mut self, kept: BackgroundTask, client: &Client) {
        let (client, stop) = (client.clone(), self.stop.clone());
        let (release, released) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        if let BackgroundTask::Lock(lock) = &kept {
            self.locks.retain(|lock| !lock.release.is_closed());
            self.locks.push(OwnedLock { path: lock.path().clone(), release, ended });
        }
        self.tasks.spawn(async move {
            let stopped = async {
                tokio::select! {
                    () = stop.cancelled() => false,
                    // The sender is dropped if nobody can ask for the release.
                    Ok(()) = released => true,
                }
            };
            let mut is_asked = false;
            let asked = async { is_asked = stopped.await };
            let result = run_until_stopped(kept, &client, asked, None).await;
            match result {
                Err(failure) if !is_asked => Output::notice(&failure.message),
                // The shell waits for the answer, or ends.
                result => drop(end.send(result)),
            }
        });
    }

    /// Releases a lock of the shell on a node. If it has several there, the one that it took last.
    pub(crate) async fn unlock(&mut self, path: &NodePath) -> Result<(), CommandFailure> {
        self.locks.retain(|lock| !lock.release.is_closed());
        let Some(at) = self.locks.iter().rposition(|lock| lock.path == *path) else {
            return Err(CommandFailure::refused("lock_not_found", "not locked by this shell"));
        };
        let OwnedLock { release, ended, .. } = self.locks.remove(at);
        // A task that has ended meanwhile has reported the loss.
        let _ = release.send(());
        ended.await.unwrap_or_else(|_| Err(lock_lost_failure(path)))
    }

    /// Ends all tasks. Waits no longer than their operations take.
    pub(crate) async fn end(mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}
