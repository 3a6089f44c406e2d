//! Holds: locks on nodes, shared or exclusive, that end with the client.

mod asking;

use std::time::Duration;

use leasehold_protocol::{
    command::{Write, WriteRefusal},
    hold::{HoldMode, HoldStatus},
    id::{HoldId, Token},
    message::{Answer, HoldInfo, Inspect, Refusal},
    path::Path,
};
use tokio::{
    sync::{oneshot, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use asking::Asking;

use crate::{
    client::Client,
    driver::WriteResult,
    error::{InspectError, LockError, WriteError},
    write_lease::KeptStatus,
};

/// How long to wait for a hold.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: it is refused if somebody is in the way.
    No,
    /// For so long, counted from the call. Then the request is withdrawn. A time that is shorter
    /// than a round trip to the server is over before the answer is there, even if the node is
    /// free. [`Wait::No`] waits for the answer, and takes the node only if it is free.
    For(Duration),
    /// Until it is granted.
    #[default]
    Forever,
}

/// Why something was not handed over, or may not have been, and what has become of it.
#[derive(Debug, thiserror::Error)]
pub enum NotHandedOver<T> {
    /// It has not happened, and will not: it is held as before, under the same token.
    #[error("{1}: it is held as before")]
    Kept(T, LockError),
    /// It may have happened. It is given back in any case: whoever has it now or gets it next, this client has it no more.
    #[error("{0}: it is given back")]
    GivenBack(LockError),
}

/// How to take a hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockOptions {
    /// Exclusive unless told otherwise.
    pub mode: HoldMode,
    /// How long to wait in the node's queue, which is in order of arrival.
    pub wait: Wait,
    /// If the hold is lost with its lease, nobody gets the node for so long: time for what its holder has under way to come to an end,
    /// where nobody checks tokens (Chubby's lock delay). None unless told otherwise; 60 s at most.
    pub delay: Duration,
    /// How long the request may take to be answered, the waiting in the queue aside; as long as the client's operations do unless told
    /// otherwise.
    pub timeout: Option<Duration>,
}

impl Default for LockOptions {
    fn default() -> Self {
        Self { mode: HoldMode::Exclusive, wait: Wait::Forever, delay: Duration::ZERO, timeout: None }
    }
}

/// What is known of a hold, shared by the guard and the driver.
#[derive(Debug, Clone)]
pub(crate) struct HoldCell {
    pub(crate) status: watch::Sender<HoldStatus>,
    /// What it keeps to itself, if it is a write lease.
    pub(crate) kept: watch::Sender<KeptStatus>,
    pub(crate) over: CancellationToken,
}

impl HoldCell {
    pub(crate) fn new(status: HoldStatus) -> Self {
        Self {
            status: watch::Sender::new(status),
            kept: watch::Sender::new(KeptStatus::default()),
            over: CancellationToken::new(),
        }
    }

    pub(crate) fn end(&self) {
        self.status.send_replace(HoldStatus::Over);
        self.over.cancel();
    }
}

/// A node that is held by this client: a lock, until it is [released](Hold::release) or dropped.
///
/// # What it promises
///
/// Nobody holds the node exclusively, or at all if this hold is exclusive, while [`Hold::certain_for`] says more than zero. It lives under the
/// session's lease on the volume that the node belongs to, which the client keeps alive. If no server is heard of in time, this
/// client's own clock ends it: [`Hold::over`] is cancelled then, before any server gives the node to somebody else, by the volume's
/// skew margin at least. It does not come back.
///
/// # What only its token can
///
/// A message, or a write to a disk, that was sent while the node was held may arrive when it is not any more. Only whoever it arrives at
/// can refuse it, by the [`Hold::token`] that goes with it: tokens grow from holder to holder.
#[derive(Debug)]
pub struct Hold {
    /// While there is a hold, its client lives: else nobody would renew its lease, or look at the clock.
    client: Client,
    path: Path,
    id: HoldId,
    status: watch::Receiver<HoldStatus>,
    kept: watch::Receiver<KeptStatus>,
    over: CancellationToken,
    is_given_back: bool,
}

impl Hold {
    /// The node.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Names the hold in listings.
    pub fn id(&self) -> HoldId {
        self.id
    }

    /// The fencing token of its last grant: another when it has been made exclusive. Zero once it is over.
    pub fn token(&self) -> Token {
        match *self.status.borrow() {
            HoldStatus::Held { token, .. } => token,
            HoldStatus::Waiting | HoldStatus::Over => Token(0),
        }
    }

    /// As what it is held. One that is over is held as nothing, and said to be shared.
    pub fn mode(&self) -> HoldMode {
        match *self.status.borrow() {
            HoldStatus::Held { mode, .. } => mode,
            HoldStatus::Waiting | HoldStatus::Over => HoldMode::Shared,
        }
    }

    /// How long it is certain to be held if nothing more is heard; zero if it is over.
    pub fn certain_for(&self) -> Duration {
        self.client.driver().hold_certain_for(self.id)
    }

    /// Cancelled when the hold is over, or can no longer be relied on: by this client's own clock at the latest. Once for all.
    pub fn over(&self) -> CancellationToken {
        self.over.clone()
    }

    /// Whether somebody else waits for the node.
    pub fn is_wanted(&self) -> bool {
        matches!(*self.status.borrow(), HoldStatus::Held { is_wanted: true, .. } | HoldStatus::Over)
    }

    /// Waits until somebody else waits for the node, or the hold is over. Giving it back then is a kindness, not a duty. Nothing is
    /// lost if the future is dropped.
    pub async fn wanted(&mut self) {
        let is_wanted =
            |status: &HoldStatus| matches!(status, HoldStatus::Held { is_wanted: true, .. } | HoldStatus::Over);
        // The driver is there as long as this is.
        let _ = self.status.wait_for(is_wanted).await;
    }

    /// Makes a shared hold exclusive when all others have left; it is held shared until then, and gets a new token.
    ///
    /// # Errors
    ///
    /// [`LockError`]; refused if another holder waits for the same already: one of the two has to give its hold back. After an error, or if
    /// the future is dropped, the request is withdrawn: the hold stays shared, unless it is over. It may have been exclusive at the servers
    /// for a moment; then its [token](Self::token) is a new one.
    pub async fn upgrade(&mut self, wait: Wait) -> Result<Token, LockError> {
        self.until_withdrawn(wait).await?;
        if let HoldStatus::Held { token, mode: HoldMode::Exclusive, .. } = *self.status.borrow() {
            return Ok(token);
        }
        // Made before the request is sent, so that one that may have been sent is always withdrawn after an error; and dropped after what
        // waits for the answer, or the rules would still count the request as one that waits.
        let upgrading = Upgrading { client: self.client.clone(), path: self.path.clone(), id: self.id, is_done: false };
        let result = self.become_exclusive(wait).await;
        match &result {
            Err(LockError::NotGranted { .. }) => upgrading.withdraw().await,
            Err(LockError::Write(error)) if error.may_still_happen() => drop(upgrading),
            _ => upgrading.done(),
        }
        result
    }

    /// Waits until an upgrade of it that was withdrawn is gone: nothing else can be asked of it meanwhile.
    async fn until_withdrawn(&self, wait: Wait) -> Result<(), LockError> {
        let driver = self.client.driver();
        let after = if let Wait::For(most) = wait { driver.options.timeout.min(most) } else { driver.options.timeout };
        let gone = tokio::time::timeout(after, driver.withdrawals.gone(&self.path)).await;
        gone.map_err(|_| self.client.not_answered(&self.path, wait, after))
    }

    async fn become_exclusive(&mut self, wait: Wait) -> Result<Token, LockError> {
        let asked = Instant::now();
        self.make_exclusive(wait != Wait::No).await?;
        let is_exclusive = |status: &HoldStatus| {
            matches!(status, HoldStatus::Held { mode: HoldMode::Exclusive, .. } | HoldStatus::Over)
        };
        granted(&mut self.status, &self.path, wait, asked, is_exclusive).await
    }

    /// Makes an exclusive hold shared. Others who wait to share the node get it then.
    ///
    /// The hold is shared from the call on. If nobody answers in time, or the future is dropped, the client
    /// goes on asking until a server answers or the hold is over.
    ///
    /// # Errors
    ///
    /// [`LockError::Lost`] if the hold was over already; [`LockError::Write`] if nobody answered in time.
    pub async fn downgrade(&mut self) -> Result<(), LockError> {
        if self.mode() == HoldMode::Shared {
            self.until_withdrawn(Wait::Forever).await?;
        }
        let (path, hold) = (self.path.clone(), self.id);
        let change = Write::Convert { path, hold, mode: HoldMode::Shared, wait: true };
        let outcome = self.client.driver().give_back(&self.path, change);
        self.confirmed(outcome).await
    }

    async fn make_exclusive(&mut self, wait: bool) -> Result<(), LockError> {
        let (path, hold) = (self.path.clone(), self.id);
        let change = Write::Convert { path, hold, mode: HoldMode::Exclusive, wait };
        let after = self.client.driver().options.timeout;
        self.client.driver().carry(change, after).await.map(|_| ()).map_err(|error| self.lost_or(error))
    }

    /// Waits for the answer to a request that is not given up, for as long as the client's timeout.
    async fn confirmed(&self, outcome: oneshot::Receiver<WriteResult>) -> Result<(), LockError> {
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
    pub(crate) fn kept(&self) -> watch::Receiver<KeptStatus> {
        self.kept.clone()
    }

    fn lost_or(&self, error: WriteError) -> LockError {
        let is_not_found = matches!(&error, WriteError::Refused(Refusal::Write(WriteRefusal::HoldNotFound { .. })));
        if is_not_found { LockError::Lost { path: self.path.clone() } } else { LockError::Write(error) }
    }

    /// Gives the node back, and waits for the server to know. It is not held any more from the call on, whatever comes of it. (Dropping
    /// it gives it back too, and waits for nothing.)
    ///
    /// # Errors
    ///
    /// [`LockError::Lost`] if it was over already; [`LockError::Write`] if nobody answered in time: then it ends with the client's lease at
    /// the latest.
    pub async fn release(mut self) -> Result<(), LockError> {
        let outcome = self.give_back();
        self.confirmed(outcome).await
    }

    /// Gives the node to another that waits for it (see [`Client::holds`]), past those that came before it: nobody has it in between, and its
    /// token is larger. It has to be held by nobody else. It is not held any more from the call on.
    ///
    /// # Errors
    ///
    /// [`NotHandedOver`], which says whether it is held after all.
    pub async fn hand_over(mut self, to: HoldId) -> Result<(), NotHandedOver<Self>> {
        match self.try_hand_over(to).await {
            Ok(()) => Ok(()),
            Err(error) if self.over.is_cancelled() => Err(NotHandedOver::GivenBack(error)),
            Err(error) => Err(NotHandedOver::Kept(self, error)),
        }
    }

    /// The same. After an error it is held as before, or over.
    pub(crate) async fn try_hand_over(&mut self, to: HoldId) -> Result<(), LockError> {
        self.until_withdrawn(Wait::Forever).await?;
        let change = Write::HandOver { path: self.path.clone(), hold: self.id, to };
        let after = self.client.driver().options.timeout;
        let result = self.client.driver().carry(change, after).await.map_err(|error| self.lost_or(error));
        match &result {
            Ok(_) => self.is_given_back = true,
            // It is as it was.
            Err(LockError::Write(error)) if !error.may_still_happen() => return result.map(|_| ()),
            // If it has been done it is another's, and nothing comes of this; if not, nobody is to count on it.
            Err(_) => drop(self.give_back()),
        }
        self.over.cancel();
        result.map(|_| ())
    }

    /// Gives the node back. That goes on until it is known to be done, or the session is over, whoever waits for it.
    pub(crate) fn give_back(&mut self) -> oneshot::Receiver<WriteResult> {
        self.is_given_back = true;
        let change = Write::Unlock { path: self.path.clone(), hold: self.id };
        self.client.driver().give_back(&self.path, change)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.client.driver().forget_hold(self.id);
        // One that is over has been given back.
        if !self.is_given_back && !self.over.is_cancelled() {
            drop(self.give_back());
        }
    }
}

/// A shared hold that asks to be exclusive. If this is dropped before `done`, the request is withdrawn.
struct Upgrading {
    client: Client,
    path: Path,
    id: HoldId,
    is_done: bool,
}

impl Upgrading {
    fn done(mut self) {
        self.is_done = true;
    }

    /// Withdraws the request. Waits for the answer, but no longer than the client's timeout; the withdrawal itself goes on.
    async fn withdraw(mut self) {
        self.is_done = true;
        let after = self.client.driver().options.timeout;
        let _ = tokio::time::timeout(after, self.share_again()).await;
    }

    fn share_again(&self) -> oneshot::Receiver<WriteResult> {
        let (path, hold) = (self.path.clone(), self.id);
        let change = Write::Convert { path, hold, mode: HoldMode::Shared, wait: true };
        self.client.driver().give_back(&self.path, change)
    }
}

impl Drop for Upgrading {
    fn drop(&mut self) {
        if !self.is_done {
            drop(self.share_again());
        }
    }
}

/// Waits for a grant of what was asked for then.
async fn granted(
    status: &mut watch::Receiver<HoldStatus>,
    path: &Path,
    wait: Wait,
    asked: Instant,
    is_granted: impl Fn(&HoldStatus) -> bool,
) -> Result<Token, LockError> {
    let found = async { status.wait_for(|status| is_granted(status)).await.map_or(HoldStatus::Over, |status| *status) };
    let found = match wait {
        Wait::Forever => found.await,
        Wait::For(after) => match tokio::time::timeout(after.saturating_sub(asked.elapsed()), found).await {
            Ok(found) => found,
            Err(_) => return Err(LockError::NotGranted { path: path.clone(), after }),
        },
        // Whoever does not wait has been refused, or has it.
        Wait::No => found.await,
    };
    match found {
        HoldStatus::Held { token, .. } => Ok(token),
        HoldStatus::Waiting | HoldStatus::Over => Err(LockError::Lost { path: path.clone() }),
    }
}

impl Client {
    /// Takes a hold on a node: a lock. The node need not exist, and nothing is written.
    ///
    /// Dropping the future withdraws the request. One client can hold a node several times if the modes go together; it waits for
    /// itself otherwise. If it does not want to wait ([`Wait::No`]) it asks when what it has given up on the node before, by dropping a hold or a
    /// request, is gone.
    ///
    /// # Errors
    ///
    /// [`LockError`]; [`LockError::Write`] with [`WriteRefusal::Held`] if it cannot be had now and was not to be waited for.
    pub async fn lock(&self, path: &Path, options: LockOptions) -> Result<Hold, LockError> {
        let LockOptions { mode, wait, delay, timeout } = options;
        let after = timeout.unwrap_or(self.driver().options.timeout);
        let after = if let Wait::For(most) = wait { after.min(most) } else { after };
        let change = Write::Lock { path: path.clone(), mode, wait: wait != Wait::No, delay };
        // A request that was sent is never given up, else the node might stay held by a hold that nobody knows. If nobody wants the hold
        // when it is granted, it is given back.
        let taken = async {
            if wait == Wait::No {
                self.driver().withdrawals.gone(path).await;
            }
            Asking::new(self.clone(), path.clone(), change).answered().await
        };
        let asked = Instant::now();
        let mut hold = match tokio::time::timeout(after, taken).await {
            Ok(taken) => taken?,
            Err(_) => return Err(self.not_answered(path, wait, after)),
        };
        let is_granted = |status: &HoldStatus| !matches!(status, HoldStatus::Waiting);
        granted(&mut hold.status, path, wait, asked, is_granted).await?;
        Ok(hold)
    }

    /// Waits until what this client has given up at a node is gone.
    ///
    /// # Errors
    ///
    /// [`LockError`], if nobody confirms it in time.
    pub(crate) async fn until_withdrawn(&self, path: &Path) -> Result<(), LockError> {
        let after = self.driver().options.timeout;
        let gone = tokio::time::timeout(after, self.driver().withdrawals.gone(path)).await;
        gone.map_err(|_| self.not_answered(path, Wait::No, after))
    }

    fn not_answered(&self, path: &Path, wait: Wait, after: Duration) -> LockError {
        match (self.driver().status.unavailable(), wait) {
            (Some(source), _) => LockError::Write(WriteError::Unavailable { after, source }),
            (None, Wait::For(most)) if most == after => LockError::NotGranted { path: path.clone(), after },
            (None, _) => LockError::TimedOut { path: path.clone(), after },
        }
    }

    /// The holds on a node, those that are held and those that wait, in the order of arrival. From the leader.
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn holds(&self, path: &Path) -> Result<Vec<HoldInfo>, InspectError> {
        match self.inspect(Inspect::Holds { path: path.clone() }).await? {
            Answer::HoldInfos(holds) => Ok(holds),
            _ => Err(InspectError::OtherAnswer),
        }
    }
}

impl Hold {
    fn new(client: Client, path: Path, id: HoldId) -> Self {
        let cell = client.driver().hold_cell(id);
        let (status, kept, over) = (cell.status.subscribe(), cell.kept.subscribe(), cell.over.clone());
        Self { client, path, id, status, kept, over, is_given_back: false }
    }
}
