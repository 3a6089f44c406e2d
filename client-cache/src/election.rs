//! Elections: one candidate leads while it has the exclusive lock on a node, and the node names it.
//!
//! An election is a thin layer over [`Client::lock`]. The elected leader is the lock owner.
//! Candidates wait in the lock queue, so only the next one is woken.
//!
//! An elected candidate writes the node: its fencing token, a space, and its value. The write is a
//! transaction that compares the token. The node is attached to the session's lease on the volume.
//! The lock lives under the same lease, so both end together.
//!
//! Three values together identify a leadership:
//! - the *token*: it grows with each leadership, and is valid only while the lock lasts;
//! - the *session* whose lease the node is attached to ([`ElectedLeader::session`]);
//! - the *revision* of the proclamation, in the order of all changes.
//!
//! The name alone proves nothing: it may be a former leader's.

mod leaders;

use std::{future::Future, time::Duration};

use futures::future::BoxFuture;
use leasehold_protocol::{
    command::{Attach, Write},
    id::{LockId, Revision, SessionId, Token},
    message::LockInfo,
    object::{Data, NodeOwner, Value},
    path::{NodePath, PathError},
    transaction::{Compare, Operation, Transaction},
};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub use leaders::ElectedLeaders;

use crate::{
    call::given,
    client::Client,
    error::{InspectError, LockError, ReadError, WriteError},
    lock::{HandOverError, LockBuilder, LockGuard, LockWait},
    pending_release::PendingRelease,
};

/// A campaign that is about to begin: see [`Client::campaign`].
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_client_cache::LockWait;
/// use std::time::Duration;
///
/// let campaign = client.campaign("/scheduler", "host-1").wait(LockWait::For(Duration::from_secs(60)));
/// let leadership = campaign.lock_delay(Duration::from_secs(2)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nobody stands for election until this is awaited"]
pub struct CampaignBuilder<'a> {
    lock: LockBuilder<'a>,
    value: Vec<u8>,
}

impl CampaignBuilder<'_> {
    /// How long to wait in the queue. Candidates are elected in the order of arrival. By default,
    /// until this one is elected.
    pub fn wait(mut self, wait: LockWait) -> Self {
        self.lock = self.lock.wait(wait);
        self
    }

    /// If the servers end this leadership with its lease, how long nobody is elected after that.
    /// See [`LockBuilder::lock_delay`].
    pub fn lock_delay(mut self, delay: Duration) -> Self {
        self.lock = self.lock.lock_delay(delay);
        self
    }

    /// How long each request may take, without the time in the queue. By default, the client's
    /// timeout.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.lock = self.lock.timeout(timeout);
        self
    }
}

impl<'a> IntoFuture for CampaignBuilder<'a> {
    type Output = Result<Leadership, LockError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let LockBuilder { client, timeout, .. } = self.lock;
            let lock = self.lock.await?;
            // From here on, an error or a drop releases the lock and removes the node.
            let leadership = Leadership::new(client.clone(), lock, timeout);
            leadership.proclaim(&self.value).await?;
            Ok(leadership)
        })
    }
}

/// An elected leader, as its node describes it.
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// if let Some(leader) = client.leader("/scheduler").await? {
///     println!("{:?} leads, under token {}, since revision {}", leader.value, leader.token, leader.revision);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ElectedLeader {
    /// What the leader wrote: usually its name.
    pub value: Value,
    /// The fencing token of the leadership.
    pub token: Token,
    /// The session whose lease the node is attached to.
    pub session: SessionId,
    /// The revision of this proclamation.
    pub revision: Revision,
}

impl ElectedLeader {
    /// Parses a node. `None` if no leader has written it.
    pub fn of(data: &Data) -> Option<Self> {
        let Some(NodeOwner::Session(session)) = data.stat.owner else { return None };
        let space = data.value.iter().position(|byte| *byte == b' ')?;
        let token = std::str::from_utf8(&data.value[..space]).ok()?.parse().ok()?;
        let value = data.value.slice(space + 1..);
        Some(Self { value, token: Token(token), session, revision: data.stat.modify_revision })
    }
}

/// The value that a leader writes to the node.
fn written(token: Token, value: &[u8]) -> Value {
    [token.to_string().as_bytes(), b" ", value].concat().into()
}

/// A leadership of this client. It lasts until the client [resigns](Leadership::resign), [hands it
/// over](Leadership::hand_over), drops this or loses the lock.
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let leadership = client.campaign("/scheduler", "host-1").await?;
/// leadership.proclaim("host-1 is ready").await?;
/// leadership.on_lost().cancelled().await;
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// Nobody else leads while [`Leadership::remaining`] is above zero: see [`LockGuard`]. When it
/// reaches zero, [`Leadership::on_lost`] is cancelled; after a suspension of the machine, up to a
/// second later. Only the receiver of a late request can refuse it, by the [`Leadership::token`] in
/// the request. A transaction compares the token with [`Compare::locked`].
#[derive(Debug)]
#[must_use = "the leadership ends when this is dropped"]
pub struct Leadership {
    /// `None` once it is released.
    lock: Option<LockGuard>,
    client: Client,
    path: NodePath,
    token: Token,
    lost: CancellationToken,
    timeout: Option<Duration>,
}

impl Leadership {
    fn new(client: Client, lock: LockGuard, timeout: Option<Duration>) -> Self {
        let (path, token, lost) = (lock.path().clone(), lock.token(), lock.on_lost());
        Self { lock: Some(lock), client, path, token, lost, timeout }
    }

    /// The node of the election.
    pub fn path(&self) -> &NodePath {
        &self.path
    }

    /// The fencing token. It grows with each leadership, and stays readable when this one has
    /// ended.
    pub fn token(&self) -> Token {
        self.token
    }

    /// How long nobody else can lead, even if no server answers. Zero if the leadership has ended.
    pub fn remaining(&self) -> Duration {
        self.lock.as_ref().map_or(Duration::ZERO, LockGuard::remaining)
    }

    /// Cancelled when the leadership has ended or is no longer certain: by this client's own clock
    /// at the latest. The leadership never becomes valid again.
    pub fn on_lost(&self) -> CancellationToken {
        self.lost.child_token()
    }

    /// Runs `work` until it ends or the leadership is lost. Then `work` is dropped.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let leadership = client.campaign("/scheduler", "host-1").await?;
    /// leadership.run(async { /* what only the leader does */ }).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`LockError::Lost`] if the leadership was lost first.
    pub async fn run<T>(&self, work: impl Future<Output = T>) -> Result<T, LockError> {
        match &self.lock {
            Some(lock) => lock.run(work).await,
            None => Err(LockError::Lost { path: self.path.clone() }),
        }
    }

    /// Whether another candidate waits. Also true once the lock has ended.
    pub fn is_contended(&self) -> bool {
        self.lock.as_ref().is_some_and(LockGuard::is_contended)
    }

    /// Replaces the value in the node, such as an address or a state, while this client leads.
    ///
    /// ```no_run
    /// # async fn example(leadership: leasehold_client_cache::Leadership) -> Result<(), Box<dyn std::error::Error>> {
    /// let revision = leadership.proclaim("10.0.0.1:80").await?;
    /// println!("observers see the address from revision {revision} on");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`LockError::Lost`] if this client does not lead any longer: nothing was written.
    /// [`LockError::Write`] if the write failed.
    pub async fn proclaim(&self, value: impl AsRef<[u8]>) -> Result<Revision, LockError> {
        self.proclaim_value(written(self.token, value.as_ref())).await
    }

    async fn proclaim_value(&self, value: Value) -> Result<Revision, LockError> {
        let put = Operation::Put { path: self.path.clone(), value, attach: Attach::Session };
        let transaction = Transaction::new().when(Compare::locked(self.path.clone(), self.token)).then(put);
        let outcome = self.client.transaction(transaction).timeout(self.client.timeout(self.timeout)).await?;
        if outcome.succeeded() { Ok(outcome.revision) } else { Err(LockError::Lost { path: self.path.clone() }) }
    }

    /// The candidates that wait, in the order of arrival. [`Leadership::hand_over`] can name one.
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn candidates(&self) -> Result<Vec<LockInfo>, InspectError> {
        let locks = self.client.locks(&self.path).await?;
        Ok(locks.into_iter().filter(|lock| lock.token.is_none()).collect())
    }

    /// Makes one of the [candidates](Leadership::candidates) the leader, even if others came before
    /// it. One entry of the log ends this leadership and begins the next, under a larger token. So
    /// nobody leads in between.
    ///
    /// ```no_run
    /// # async fn example(leadership: leasehold_client_cache::Leadership) -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold_client_cache::HandOverError;
    ///
    /// if let Some(next) = leadership.candidates().await?.first() {
    ///     match leadership.hand_over(next.lock).await {
    ///         Err(HandOverError::Unchanged(leadership, _)) => leadership.resign().await?,
    ///         result => result?,
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Guarantees
    ///
    /// The application must stop acting as the leader before the call. From the call on,
    /// [`Leadership::remaining`] is zero. If the servers refuse (the candidate may have left), this
    /// client leads as before: [`HandOverError::Unchanged`]. If no server answers in time, it no
    /// longer leads: the successor does, or the next in the queue. In each case, nobody else led
    /// while `remaining` was above zero.
    ///
    /// # Errors
    ///
    /// [`HandOverError`].
    pub async fn hand_over(mut self, to: LockId) -> Result<(), HandOverError<Self>> {
        let handed_over = match &mut self.lock {
            Some(lock) => lock.try_hand_over(to).await,
            None => Err(LockError::Lost { path: self.path.clone() }),
        };
        match handed_over {
            Err(error) if !self.lost.is_cancelled() => Err(HandOverError::Unchanged(self, error)),
            handed_over => {
                delete_proclamation(&self.client, &self.path, self.token, self.timeout).await;
                handed_over.map_err(HandOverError::Released)
            }
        }
    }

    /// Ends the leadership: removes the node, and releases the lock. Then the next candidate is
    /// elected. Dropping the leadership does the same without waiting.
    ///
    /// # Errors
    ///
    /// [`LockError::Lost`] if the leadership had ended already. [`LockError::Write`] if no server
    /// answered in time. In that case, and if the future is dropped, the client continues until
    /// the node is removed and the lock is released, or until its session ends.
    pub async fn resign(mut self) -> Result<(), LockError> {
        let Some(lock) = self.lock.take() else { return Ok(()) };
        let (path, after) = (Some(self.path.clone()), self.client.timeout(self.timeout));
        let released = self.begin_release(lock);
        match tokio::time::timeout(after, released).await {
            Ok(Ok(released)) => released,
            // The runtime of the client has ended.
            Ok(Err(_)) => Err(LockError::Write(WriteError::SessionEnded { path })),
            Err(_) => Err(LockError::Write(WriteError::TimedOut { path, after })),
        }
    }

    /// Starts the task that ends the leadership. This client's next candidacy waits for it.
    fn begin_release(&self, lock: LockGuard) -> JoinHandle<Result<(), LockError>> {
        let driver = self.client.driver();
        let pending_release = driver.pending_releases.begin(&self.path);
        driver.spawn(release_leadership(self.client.clone(), lock, self.token, pending_release))
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        if let Some(lock) = self.lock.take() {
            drop(self.begin_release(lock));
        }
    }
}

/// Removes the proclamation of the leader with this token, unless a later leader has written the
/// node. If no server is reached, the next proclamation replaces it.
async fn delete_proclamation(client: &Client, path: &NodePath, token: Token, timeout: Option<Duration>) {
    if let Ok(Some(leader)) = client.leader(path).await
        && leader.token == token
    {
        let _ = client.delete(path).if_revision(leader.revision).timeout(client.timeout(timeout)).await;
    }
}

/// Removes the node, and then releases the lock: after the release, the node could be the next
/// leader's. The client repeats both requests until they are answered or its session has ended. If
/// the leadership was lost, the driver has released the lock already. But the node may still be
/// there, if its lease was renewed.
async fn release_leadership(
    client: Client,
    lock: LockGuard,
    token: Token,
    _pending_release: PendingRelease,
) -> Result<(), LockError> {
    let path = lock.path().clone();
    let transaction = Transaction::new()
        .when(Compare::locked(path.clone(), token))
        .when(Compare::exists(path.clone()))
        .then(Operation::delete(path.clone()));
    let lost = lock.on_lost();
    let removal = async { client.driver().begin_pending_release(&path, Write::Transaction(transaction)).await };
    let Some(removed) = lost.run_until_cancelled(removal).await else {
        delete_proclamation(&client, &path, token, None).await;
        return Err(LockError::Lost { path });
    };
    lock.release().await?;
    match removed {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(LockError::Write(crate::write::ended(error, Some(path)))),
        Err(_) => Err(LockError::Write(WriteError::SessionEnded { path: Some(path) })),
    }
}

impl Client {
    /// Waits to be elected, then writes `value` (usually a name) to the node. The node must not be
    /// a volume, and must not have children. Dropping the future cancels the candidacy.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let leadership = client.campaign("/scheduler", "host-1").await?;
    /// leadership.run(async { /* what only the leader does */ }).await?;
    /// leadership.resign().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`LockError`] as from [`Client::lock`], or if the node cannot be written.
    pub fn campaign(
        &self,
        path: impl TryInto<NodePath, Error: Into<PathError>>,
        value: impl AsRef<[u8]>,
    ) -> CampaignBuilder<'_> {
        CampaignBuilder { lock: self.lock(path), value: value.as_ref().to_vec() }
    }

    /// The elected leader, as the node names it, read through the cache. `None` if nobody leads, or
    /// if the leader has not written the node yet.
    ///
    /// The leadership may have ended already. A resource that serves it must check the token.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// if let Some(leader) = client.leader("/scheduler").await? {
    ///     println!("{:?} leads, under token {}", leader.value, leader.token);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ReadError`].
    pub async fn leader(
        &self,
        path: impl TryInto<NodePath, Error: Into<PathError>>,
    ) -> Result<Option<ElectedLeader>, ReadError> {
        let node = self.get(path).await?;
        Ok(node.and_then(|node| ElectedLeader::of(&node)))
    }

    /// Follows the leaders of a node, from the first call of [`ElectedLeaders::next`] on.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut leaders = client.observe("/scheduler");
    /// loop {
    ///     let leader = leaders.next().await?;
    ///     println!("{:?} leads, under token {}", leader.value, leader.token);
    /// }
    /// # }
    /// ```
    pub fn observe(&self, path: impl TryInto<NodePath, Error: Into<PathError>>) -> ElectedLeaders {
        ElectedLeaders::new(self.clone(), given(path))
    }
}

#[cfg(test)]
mod tests {
    use leasehold_protocol::{id::LeaseId, object::Stat};

    use super::*;

    fn data(value: &[u8], owner: Option<NodeOwner>) -> Data {
        let stat = Stat {
            create_revision: Revision(3),
            modify_revision: Revision(4),
            version: 2,
            value_len: value.len() as u64,
            owner,
        };
        Data { value: Value::copy_from_slice(value), stat }
    }

    #[test]
    fn what_a_leader_writes_is_read_back_and_nothing_else_is() {
        let session = SessionId(7);
        let owner = Some(NodeOwner::Session(session));
        let leader = |value: &'static str| ElectedLeader {
            value: Value::from(value),
            token: Token(12),
            session,
            revision: Revision(4),
        };
        for value in ["host 1", "", " "] {
            assert_eq!(ElectedLeader::of(&data(&written(Token(12), value.as_bytes()), owner)), Some(leader(value)));
        }
        for (value, owner) in [
            ("12 host", None),
            ("12 host", Some(NodeOwner::Lease(LeaseId(7)))),
            ("host 1", owner),
            ("12", owner),
            ("-1 host", owner),
            ("", owner),
        ] {
            assert_eq!(ElectedLeader::of(&data(value.as_bytes(), owner)), None, "{value}");
        }
    }
}
