//! Holds: locks on nodes, shared or exclusive, that end with the client.

mod request;

use std::time::Duration;

use leasehold_protocol::{
    command::{Write, WriteRefusal},
    id::{LockId, Token},
    lock::{LockMode, LockStatus},
    message::{Answer, Inspect, LockInfo, Refusal},
    path::NodePath,
};
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use request::LockRequest;

use crate::{
    client::Client,
    driver::WriteOutcome,
    error::{InspectError, LockError, WriteError},
    write_lease::WriteLeaseCell,
};

/// How long to wait for a hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LockWait {
    /// Not at all: it is refused if somebody is in the way.
    No,
    /// For so long, counted from the call. Then the request is withdrawn. A time that is shorter
    /// than a round trip to the server is over before the answer is there, even if the node is
    /// free. [`LockWait::No`] waits for the answer, and takes the node only if it is free.
    For(Duration),
    /// Until it is granted.
    #[default]
    Forever,
}

/// Why something was not handed over, or may not have been, and what has become of it.
#[derive(Debug, thiserror::Error)]
pub enum HandOverError<T> {
    /// It has not happened, and will not: it is held as before, under the same token.
    #[error("{1}: it is held as before")]
    Unchanged(T, LockError),
    /// It may have happened. It is given back in any case: whoever has it now or gets it next, this
    /// client has it no more.
    #[error("{0}: it is given back")]
    Released(LockError),
}

/// How to take a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockOptions {
    /// Exclusive unless told otherwise.
    pub mode: LockMode,
    /// How long to wait in the node's queue, which is in order of arrival.
    pub wait: LockWait,
    /// If the hold is lost with its lease, nobody gets the node for so long: time for what its
    /// holder has under way to come to an end, where nobody checks tokens (Chubby's lock delay).
    /// None unless told otherwise; 60 s at most.
    pub lock_delay: Duration,
    /// How long the request may take to be answered, the waiting in the queue aside; as long as the
    /// client's operations do unless told otherwise.
    pub timeout: Option<Duration>,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self { mode: LockMode::Exclusive, wait: LockWait::Forever, lock_delay: Duration::ZERO, timeout: None }
    }
}

/// What is known of a hold, shared by the guard and the driver.
#[derive(Debug, Clone)]
pub(crate) struct LockCell {
    pub(crate) status: watch::Sender<LockStatus>,
    /// What it keeps to itself, if it is a write lease.
    pub(crate) write_lease: watch::Sender<WriteLeaseCell>,
    pub(crate) lost: CancellationToken,
}

impl LockCell {
    pub(crate) fn new(status: LockStatus) -> Self {
        Self {
            status: watch::Sender::new(status),
            write_lease: watch::Sender::new(WriteLeaseCell::default()),
            lost: CancellationToken::new(),
        }
    }

    pub(crate) fn end(&self) {
        self.status.send_replace(LockStatus::Ended);
        self.lost.cancel();
    }
}

/// A node that is held by this client: a lock, until it is [released](LockGuard::release) or
/// dropped.
///
/// # What it promises
///
/// Nobody holds the node exclusively, or at all if this hold is exclusive, while
/// [`LockGuard::certain_for`] says more than zero. It lives under the session's lease on the volume
/// that the node belongs to, which the client keeps alive. If no server is heard of in time, this
/// client's own clock ends it: [`LockGuard::over`] is cancelled then, before any server gives the
/// node to somebody else, by the volume's skew margin at least. It does not come back.
///
/// # What only its token can
///
/// A message, or a write to a disk, that was sent while the node was held may arrive when it is not
/// any more. Only whoever it arrives at can refuse it, by the [`LockGuard::token`] that goes with
/// it: tokens grow from holder to holder.
#[derive(Debug)]
pub struct LockGuard {
    /// While there is a hold, its client lives: else nobody would renew its lease, or look at the
    /// clock.
    client: Client,
    path: NodePath,
    id: LockId,
    status: watch::Receiver<LockStatus>,
    write_lease: watch::Receiver<WriteLeaseCell>,
    lost: CancellationToken,
    is_released: bool,
}

impl LockGuard {
    /// The node.
    pub fn path(&self) -> &NodePath {
        &self.path
    }

    /// Names the hold in listings.
    pub fn id(&self) -> LockId {
        self.id
    }

    /// The fencing token of its last grant: another when it has been made exclusive. Zero once it
    /// is over.
    pub fn token(&self) -> Token {
        match *self.status.borrow() {
            LockStatus::Granted { token, .. } => token,
            LockStatus::Waiting | LockStatus::Ended => Token(0),
        }
    }

    /// As what it is held. One that is over is held as nothing, and said to be shared.
    pub fn mode(&self) -> LockMode {
        match *self.status.borrow() {
            LockStatus::Granted { mode, .. } => mode,
            LockStatus::Waiting | LockStatus::Ended => LockMode::Shared,
        }
    }

    /// How long it is certain to be held if nothing more is heard; zero if it is over.
    pub fn remaining(&self) -> Duration {
        self.client.driver().lock_remaining(self.id)
    }

    /// Cancelled when the hold is over, or can no longer be relied on: by this client's own clock
    /// at the latest. Once for all.
    pub fn on_lost(&self) -> CancellationToken {
        self.lost.clone()
    }

    /// Whether somebody else waits for the node.
    pub fn is_contended(&self) -> bool {
        matches!(*self.status.borrow(), LockStatus::Granted { is_contended: true, .. } | LockStatus::Ended)
    }

    /// Waits until somebody else waits for the node, or the hold is over. Giving it back then is a
    /// kindness, not a duty. Nothing is lost if the future is dropped.
    pub async fn contended(&mut self) {
        let is_wanted =
            |status: &LockStatus| matches!(status, LockStatus::Granted { is_contended: true, .. } | LockStatus::Ended);
        // The driver is there as long as this is.
        let _ = self.status.wait_for(is_wanted).await;
    }

    /// Makes a shared hold exclusive when all others have left; it is held shared until then, and
    /// gets a new token.
    ///
    /// # Errors
    ///
    /// [`LockError`]; refused if another holder waits for the same already: one of the two has to
    /// give its hold back. After an error, or if the future is dropped, the request is withdrawn:
    /// the hold stays shared, unless it is over. It may have been exclusive at the servers for a
    /// moment; then its [token](Self::token) is a new one.
    pub async fn upgrade(&mut self, wait: LockWait) -> Result<Token, LockError> {
        self.wait_for_pending_releases(wait).await?;
        if let LockStatus::Granted { token, mode: LockMode::Exclusive, .. } = *self.status.borrow() {
            return Ok(token);
        }
        // Made before the request is sent, so that one that may have been sent is always withdrawn
        // after an error; and dropped after what waits for the answer, or the rules would still
        // count the request as one that waits.
        let upgrading =
            UpgradeRequest { client: self.client.clone(), path: self.path.clone(), id: self.id, is_done: false };
        let result = self.become_exclusive(wait).await;
        match &result {
            Err(LockError::NotGranted { .. }) => upgrading.cancel().await,
            Err(LockError::Write(error)) if error.may_still_happen() => drop(upgrading),
            _ => upgrading.done(),
        }
        result
    }

    /// Waits until an upgrade of it that was withdrawn is gone: nothing else can be asked of it
    /// meanwhile.
    async fn wait_for_pending_releases(&self, wait: LockWait) -> Result<(), LockError> {
        let driver = self.client.driver();
        let after =
            if let LockWait::For(most) = wait { driver.options.timeout.min(most) } else { driver.options.timeout };
        let gone = tokio::time::timeout(after, driver.pending_releases.wait(&self.path)).await;
        gone.map_err(|_| self.client.not_answered(&self.path, wait, after))
    }

    async fn become_exclusive(&mut self, wait: LockWait) -> Result<Token, LockError> {
        let asked = Instant::now();
        self.make_exclusive(wait != LockWait::No).await?;
        let is_exclusive = |status: &LockStatus| {
            matches!(status, LockStatus::Granted { mode: LockMode::Exclusive, .. } | LockStatus::Ended)
        };
        granted(&mut self.status, &self.path, wait, asked, is_exclusive).await
    }

    /// Makes an exclusive hold shared. Others who wait to share the node get it then.
    ///
    /// The hold is shared from the call on. If nobody answers in time, or the future is dropped,
    /// the client goes on asking until a server answers or the hold is over.
    ///
    /// # Errors
    ///
    /// [`LockError::CopyEvicted`] if the hold was over already; [`LockError::Write`] if nobody
    /// answered in time.
    pub async fn downgrade(&mut self) -> Result<(), LockError> {
        if self.mode() == LockMode::Shared {
            self.wait_for_pending_releases(LockWait::Forever).await?;
        }
        let (path, lock) = (self.path.clone(), self.id);
        let change = Write::ChangeLockMode { path, lock, mode: LockMode::Shared, wait: true };
        let outcome = self.client.driver().begin_release(&self.path, change);
        self.confirmed(outcome).await
    }

    async fn make_exclusive(&mut self, wait: bool) -> Result<(), LockError> {
        let (path, lock) = (self.path.clone(), self.id);
        let change = Write::ChangeLockMode { path, lock, mode: LockMode::Exclusive, wait };
        let after = self.client.driver().options.timeout;
        self.client.driver().execute_write(change, after).await.map(|_| ()).map_err(|error| self.lost_or(error))
    }

    /// Waits for the answer to a request that is not given up, for as long as the client's timeout.
    async fn confirmed(&self, outcome: oneshot::Receiver<WriteOutcome>) -> Result<(), LockError> {
        let after = self.client.driver().options.timeout;
        match tokio::time::timeout(after, outcome).await {
            Ok(Ok(Ok(_))) => Ok(()),
            Ok(Ok(Err(error))) => Err(self.lost_or(crate::write::ended(error))),
            Ok(Err(_)) => Err(LockError::Write(WriteError::SessionEnded)),
            Err(_) => Err(LockError::Write(WriteError::TimedOut { after })),
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// What it keeps to itself, if it is a write lease.
    pub(crate) fn write_lease_cell(&self) -> watch::Receiver<WriteLeaseCell> {
        self.write_lease.clone()
    }

    fn lost_or(&self, error: WriteError) -> LockError {
        let is_not_found = matches!(&error, WriteError::Refused(Refusal::Write(WriteRefusal::LockNotFound { .. })));
        if is_not_found { LockError::Lost { path: self.path.clone() } } else { LockError::Write(error) }
    }

    /// Gives the node back, and waits for the server to know. It is not held any more from the call
    /// on, whatever comes of it. (Dropping it gives it back too, and waits for nothing.)
    ///
    /// # Errors
    ///
    /// [`LockError::CopyEvicted`] if it was over already; [`LockError::Write`] if nobody answered
    /// in time: then it ends with the client's lease at the latest.
    pub async fn release(mut self) -> Result<(), LockError> {
        let outcome = self.begin_release();
        self.confirmed(outcome).await
    }

    /// Gives the node to another that waits for it (see [`Client::holds`]), past those that came
    /// before it: nobody has it in between, and its token is larger. It has to be held by nobody
    /// else. It is not held any more from the call on.
    ///
    /// # Errors
    ///
    /// [`HandOverError`], which says whether it is held after all.
    pub async fn hand_over(mut self, to: LockId) -> Result<(), HandOverError<Self>> {
        match self.try_hand_over(to).await {
            Ok(()) => Ok(()),
            Err(error) if self.lost.is_cancelled() => Err(HandOverError::Released(error)),
            Err(error) => Err(HandOverError::Unchanged(self, error)),
        }
    }

    /// The same. After an error it is held as before, or over.
    pub(crate) async fn try_hand_over(&mut self, successor: LockId) -> Result<(), LockError> {
        self.wait_for_pending_releases(LockWait::Forever).await?;
        let change = Write::HandOver { path: self.path.clone(), lock: self.id, successor };
        let after = self.client.driver().options.timeout;
        let result = self.client.driver().execute_write(change, after).await.map_err(|error| self.lost_or(error));
        match &result {
            Ok(_) => self.is_released = true,
            // It is as it was.
            Err(LockError::Write(error)) if !error.may_still_happen() => return result.map(|_| ()),
            // If it has been done it is another's, and nothing comes of this; if not, nobody is to
            // count on it.
            Err(_) => drop(self.begin_release()),
        }
        self.lost.cancel();
        result.map(|_| ())
    }

    /// Gives the node back. That goes on until it is known to be done, or the session is over,
    /// whoever waits for it.
    pub(crate) fn begin_release(&mut self) -> oneshot::Receiver<WriteOutcome> {
        self.is_released = true;
        let change = Write::Unlock { path: self.path.clone(), lock: self.id };
        self.client.driver().begin_release(&self.path, change)
    }
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        self.client.driver().forget_lock(self.id);
        // One that is over has been given back.
        if !self.is_released && !self.lost.is_cancelled() {
            drop(self.begin_release());
        }
    }
}

/// A shared hold that asks to be exclusive. If this is dropped before `done`, the request is
/// withdrawn.
struct UpgradeRequest {
    client: Client,
    path: NodePath,
    id: LockId,
    is_done: bool,
}

impl UpgradeRequest {
    fn done(mut self) {
        self.is_done = true;
    }

    /// Withdraws the request. Waits for the answer, but no longer than the client's timeout; the
    /// withdrawal itself goes on.
    async fn cancel(mut self) {
        self.is_done = true;
        let after = self.client.driver().options.timeout;
        let _ = tokio::time::timeout(after, self.begin_downgrade()).await;
    }

    fn begin_downgrade(&self) -> oneshot::Receiver<WriteOutcome> {
        let (path, lock) = (self.path.clone(), self.id);
        let change = Write::ChangeLockMode { path, lock, mode: LockMode::Shared, wait: true };
        self.client.driver().begin_release(&self.path, change)
    }
}

impl Drop for UpgradeRequest {
    fn drop(&mut self) {
        if !self.is_done {
            drop(self.begin_downgrade());
        }
    }
}

/// Waits for a grant of what was asked for then.
async fn granted(
    status: &mut watch::Receiver<LockStatus>,
    path: &NodePath,
    wait: LockWait,
    asked: Instant,
    is_granted: impl Fn(&LockStatus) -> bool,
) -> Result<Token, LockError> {
    let found =
        async { status.wait_for(|status| is_granted(status)).await.map_or(LockStatus::Ended, |status| *status) };
    let found = match wait {
        LockWait::Forever => found.await,
        LockWait::For(after) => match tokio::time::timeout(after.saturating_sub(asked.elapsed()), found).await {
            Ok(found) => found,
            Err(_) => return Err(LockError::NotGranted { path: path.clone(), after }),
        },
        // Whoever does not wait has been refused, or has it.
        LockWait::No => found.await,
    };
    match found {
        LockStatus::Granted { token, .. } => Ok(token),
        LockStatus::Waiting | LockStatus::Ended => Err(LockError::Lost { path: path.clone() }),
    }
}

impl Client {
    /// Takes a hold on a node: a lock. The node need not exist, and nothing is written.
    ///
    /// Dropping the future withdraws the request. One client can hold a node several times if the
    /// modes go together; it waits for itself otherwise. If it does not want to wait
    /// ([`LockWait::No`]) it asks when what it has given up on the node before, by dropping a hold
    /// or a request, is gone.
    ///
    /// # Errors
    ///
    /// [`LockError`]; [`LockError::Write`] with [`WriteRefusal::KeyLeaseState`] if it cannot be had
    /// now and was not to be waited for.
    pub async fn lock(&self, path: &NodePath, options: LockOptions) -> Result<LockGuard, LockError> {
        let LockOptions { mode, wait, lock_delay, timeout } = options;
        let after = timeout.unwrap_or(self.driver().options.timeout);
        let after = if let LockWait::For(most) = wait { after.min(most) } else { after };
        let change = Write::Lock { path: path.clone(), mode, wait: wait != LockWait::No, delay: lock_delay };
        // A request that was sent is never given up, else the node might stay held by a hold that
        // nobody knows. If nobody wants the hold when it is granted, it is given back.
        let taken = async {
            if wait == LockWait::No {
                self.driver().pending_releases.wait(path).await;
            }
            LockRequest::new(self.clone(), path.clone(), change).answered().await
        };
        let asked = Instant::now();
        let mut hold = match tokio::time::timeout(after, taken).await {
            Ok(taken) => taken?,
            Err(_) => return Err(self.not_answered(path, wait, after)),
        };
        let is_granted = |status: &LockStatus| !matches!(status, LockStatus::Waiting);
        granted(&mut hold.status, path, wait, asked, is_granted).await?;
        Ok(hold)
    }

    /// Waits until what this client has given up at a node is gone.
    ///
    /// # Errors
    ///
    /// [`LockError`], if nobody confirms it in time.
    pub(crate) async fn wait_for_pending_releases(&self, path: &NodePath) -> Result<(), LockError> {
        let after = self.driver().options.timeout;
        let gone = tokio::time::timeout(after, self.driver().pending_releases.wait(path)).await;
        gone.map_err(|_| self.not_answered(path, LockWait::No, after))
    }

    fn not_answered(&self, path: &NodePath, wait: LockWait, after: Duration) -> LockError {
        match (self.driver().status.unavailable(), wait) {
            (Some(source), _) => LockError::Write(WriteError::Unavailable { after, source }),
            (None, LockWait::For(most)) if most == after => LockError::NotGranted { path: path.clone(), after },
            (None, _) => LockError::TimedOut { path: path.clone(), after },
        }
    }

    /// The holds on a node, those that are held and those that wait, in the order of arrival. From
    /// the leader.
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn locks(&self, path: &NodePath) -> Result<Vec<LockInfo>, InspectError> {
        match self.inspect(Inspect::Locks { path: path.clone() }).await? {
            Answer::LockInfos(holds) => Ok(holds),
            _ => Err(InspectError::UnexpectedAnswer),
        }
    }
}

impl LockGuard {
    fn new(client: Client, path: NodePath, id: LockId) -> Self {
        let cell = client.driver().lock_cell(id);
        let (status, write_lease, lost) = (cell.status.subscribe(), cell.write_lease.subscribe(), cell.lost.clone());
        Self { client, path, id, status, write_lease, lost, is_released: false }
    }
}
