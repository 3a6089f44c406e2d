//! Key leases and registrations: nodes that are removed when their lease ends.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use leasehold_protocol::{
    command::{Attach, Write, Written},
    id::{LeaseId, Revision},
    message::{Answer, Inspect, LeaseInfo, NodesAfter},
    object::{NodeOwner, Value},
    path::{NodePath, PathError},
    time::Instant,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

#[cfg(doc)]
use crate::write::PutBuilder;
use crate::{
    call::{GivenPath, given},
    client::Client,
    clock,
    driver::Driver,
    error::{InspectError, LeaseError, WriteError},
};

/// A grant of a key lease that is about to be requested: see [`Client::grant_lease`].
#[derive(Debug, Clone)]
#[must_use = "nothing is granted until this is awaited"]
pub struct GrantLeaseBuilder<'a> {
    client: &'a Client,
    ttl: Duration,
    id: Option<LeaseId>,
    timeout: Option<Duration>,
}

impl GrantLeaseBuilder<'_> {
    /// The id of the lease. By default, the servers choose a new one.
    pub fn id(mut self, id: LeaseId) -> Self {
        self.id = Some(id);
        self
    }

    /// How long the grant may take. By default, the client's timeout.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl<'a> IntoFuture for GrantLeaseBuilder<'a> {
    type Output = Result<LeaseId, WriteError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { client, ttl, id, timeout } = self;
        Box::pin(async move {
            let written = client.write(Write::GrantLease { id, ttl }, timeout).await?;
            written.lease.map(|granted| granted.id).ok_or(WriteError::OutcomeUnknown)
        })
    }
}

/// A request for a key lease's state that is about to be sent: see [`Client::lease`].
#[derive(Debug, Clone)]
#[must_use = "nothing is read until this is awaited"]
pub struct LeaseInfoBuilder<'a> {
    client: &'a Client,
    id: LeaseId,
    with_keys: bool,
}

impl LeaseInfoBuilder<'_> {
    /// Also lists all attached nodes, in the order of paths. Many nodes come in several pages, each
    /// as of its own moment.
    pub fn with_keys(mut self) -> Self {
        self.with_keys = true;
        self
    }

    async fn page(&self, keys_after: Option<NodesAfter>) -> Result<Option<LeaseInfo>, InspectError> {
        match self.client.inspect(Inspect::Lease { id: self.id, keys_after }).await? {
            Answer::Lease(lease) => Ok(lease),
            _ => Err(InspectError::UnexpectedAnswer),
        }
    }

    async fn pages(self) -> Result<Option<LeaseInfo>, InspectError> {
        let Some(mut whole) = self.page(self.with_keys.then_some(NodesAfter::Nothing)).await? else { return Ok(None) };
        while let Some(last) = whole.keys.last() {
            match self.page(Some(NodesAfter::Path(last.clone()))).await? {
                Some(page) if !page.keys.is_empty() => whole.keys.extend(page.keys),
                _ => break,
            }
        }
        Ok(Some(whole))
    }
}

impl<'a> IntoFuture for LeaseInfoBuilder<'a> {
    type Output = Result<Option<LeaseInfo>, InspectError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.pages())
    }
}

/// The state of a key lease that this client renews.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyLeaseState {
    /// No answer yet.
    Asked,
    /// The lease certainly lasts until then.
    Until(Instant),
    /// The lease has ended, or is no longer certain.
    Lost,
}

/// What all handles of one key lease share.
#[derive(Debug)]
pub(crate) struct KeyLeaseShared {
    pub(crate) state: watch::Sender<KeyLeaseState>,
    pub(crate) lost: CancellationToken,
    pub(crate) handles: usize,
    /// Distinguishes successive renewals of one id: a late handle does not stop a newer one.
    pub(crate) number: u64,
}

impl KeyLeaseShared {
    pub(crate) fn new(number: u64) -> Self {
        Self { state: watch::Sender::new(KeyLeaseState::Asked), lost: CancellationToken::new(), handles: 0, number }
    }

    pub(crate) fn end(self) {
        self.state.send_replace(KeyLeaseState::Lost);
        self.lost.cancel();
    }
}

/// A key lease that this client renews, until the last handle is dropped or the client is closed.
/// Then the lease ends by itself after its TTL. [`KeyLease::revoke`] ends it at once.
///
/// The lease is lost if no server answers in time, or if somebody revokes it. [`KeyLease::on_lost`]
/// is then cancelled: by this client's own clock at the latest, and before any server counts the
/// lease as expired. So an application that listens to it stops in time. If a request is already on
/// its way, only its receiver can refuse it.
#[derive(Debug)]
#[must_use = "the lease is not renewed after this is dropped"]
pub struct KeyLease {
    client: Client,
    id: LeaseId,
    number: u64,
    state: watch::Receiver<KeyLeaseState>,
    lost: CancellationToken,
}

impl KeyLease {
    /// The id of the lease.
    pub fn id(&self) -> LeaseId {
        self.id
    }

    /// For how long the lease certainly lasts, even if no server answers. Zero if it has ended.
    pub fn remaining(&self) -> Duration {
        match *self.state.borrow() {
            KeyLeaseState::Until(until) => until.since(clock::now()),
            KeyLeaseState::Asked | KeyLeaseState::Lost => Duration::ZERO,
        }
    }

    /// Waits for the next renewal, and returns for how long the lease certainly lasts. `None` if
    /// the lease has ended. Nothing is lost if the future is dropped.
    pub async fn renewed(&mut self) -> Option<Duration> {
        if self.state.changed().await.is_ok()
            && let KeyLeaseState::Until(until) = *self.state.borrow_and_update()
        {
            return Some(until.since(clock::now()));
        }
        // So a caller that gets `None` also sees the token cancelled.
        self.lost.cancelled().await;
        None
    }

    /// Cancelled when the lease has ended or is no longer certain, and never before. The lease does
    /// not become valid again.
    pub fn on_lost(&self) -> CancellationToken {
        self.lost.clone()
    }

    /// Ends the lease at once, and removes all attached nodes.
    ///
    /// # Errors
    ///
    /// [`WriteError`]. Refused if the lease has ended already.
    pub async fn revoke(self) -> Result<Written, WriteError> {
        let timeout = self.client.driver().options.timeout;
        self.client.driver().execute_write(Write::RevokeLease { id: self.id }, timeout).await
    }
}

impl Drop for KeyLease {
    fn drop(&mut self) {
        self.client.driver().stop_keep_alive(self.id, self.number);
    }
}

/// A registration that is about to be made: see [`Client::register`].
#[derive(Debug, Clone)]
#[must_use = "nothing is registered until this is awaited"]
pub struct RegisterBuilder<'a> {
    client: &'a Client,
    path: GivenPath,
    value: Value,
    replace: bool,
    timeout: Option<Duration>,
}

impl RegisterBuilder<'_> {
    /// Whether to replace a registration of another session. Otherwise, and by default, no other
    /// session may be registered there.
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }

    /// How long the registration may take. By default, the client's timeout.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    async fn register(self) -> Result<Registration, WriteError> {
        let Self { client, path, value, replace, timeout } = self;
        let path = path?;
        // Watched before the put, so that this sees any end of the lease after the put.
        let (number, lost) = client.driver().watch_owner_lease(&path);
        let owner_lease = OwnerLease { driver: client.shared_driver(), number, lost };
        let revision = client.create_attached(&path, value, replace, client.timeout(timeout)).await?.revision;
        Ok(Registration { client: client.clone(), path, epoch: revision, revision, owner_lease })
    }
}

impl<'a> IntoFuture for RegisterBuilder<'a> {
    type Output = Result<Registration, WriteError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.register())
    }
}

/// A node that is attached to its session's lease on the node's volume, like ZooKeeper's ephemeral
/// nodes. It exists while the client lives and renews that lease.
///
/// Dropping this leaves the node until the client is closed or dies. [`Registration::leave`]
/// removes the node.
#[derive(Debug)]
#[must_use = "only this says that the registration is lost"]
pub struct Registration {
    client: Client,
    path: NodePath,
    epoch: Revision,
    /// The revision of the last put of the node.
    revision: Revision,
    owner_lease: OwnerLease,
}

/// Watches the lease that a node is attached to.
#[derive(Debug)]
struct OwnerLease {
    driver: Arc<Driver>,
    number: u64,
    lost: CancellationToken,
}

impl Drop for OwnerLease {
    fn drop(&mut self) {
        self.driver.forget_owner_lease(self.number);
    }
}

impl Registration {
    /// The node.
    pub fn path(&self) -> &NodePath {
        &self.path
    }

    /// The number of the registration: the create revision of its node. It grows with each
    /// registration of the node by any session (as Kafka's broker epoch does), and
    /// [`Registration::update`] does not change it. Observers see the same number
    /// ([`Member::epoch`](crate::Member::epoch)).
    pub fn epoch(&self) -> Revision {
        self.epoch
    }

    /// The revision of the node's value: that of the registration, or of the last
    /// [`Registration::update`].
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Replaces the node's value, unless another session has the node by now. The epoch stays the
    /// same.
    ///
    /// # Errors
    ///
    /// [`WriteError`]. Refused if the node was removed, belongs to another session, or was written
    /// in another way. If a failed update [may still happen](WriteError::may_still_happen) and did
    /// happen, later updates and [`Registration::leave`] are refused.
    pub async fn update(&mut self, value: impl AsRef<[u8]>) -> Result<Written, WriteError> {
        let put = self.client.put(&self.path, value).if_revision(self.revision).attach(Attach::Session);
        let written = put.await?;
        self.revision = written.revision;
        Ok(written)
    }

    /// For how long the node's lease certainly lasts, even if no server answers.
    pub fn remaining(&self) -> Duration {
        if self.owner_lease.lost.is_cancelled() { Duration::ZERO } else { self.client.volume_remaining(&self.path) }
    }

    /// Cancelled when the node's lease has ended for good: a server says so, or the session has
    /// expired.
    ///
    /// Before that, this client's own clock may say that the lease is no longer certain. Then
    /// [`Registration::remaining`] is zero and the session is in *jeopardy* (see
    /// [`Client::events`]), but the lease may still be renewed. This does not report that somebody
    /// removes or replaces the node: read the node for that.
    pub fn on_lost(&self) -> CancellationToken {
        self.owner_lease.lost.clone()
    }

    /// Removes the node, unless another session has it by now.
    ///
    /// # Errors
    ///
    /// [`WriteError`]. Refused if the node was removed, belongs to another session, or was written
    /// in another way than by [`Registration::update`].
    pub async fn leave(self) -> Result<Written, WriteError> {
        self.client.delete(&self.path).if_revision(self.revision).await
    }
}

impl Client {
    /// Grants a key lease, as in etcd. Nodes that are [attached](PutBuilder::lease) to it are
    /// removed when it ends. It ends after its TTL, unless some client
    /// [renews](Client::keep_lease_alive) it.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let id = client.grant_lease(Duration::from_secs(30)).await?;
    /// client.put("/services/web/host-1", "10.0.0.1:80").lease(id).await?;
    /// let lease = client.keep_lease_alive(id).await?;
    /// lease.on_lost().cancelled().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`WriteError`]. Refused if the id is taken, or if the TTL is out of bounds (200 ms to 366
    /// days). Refused as [busy](leasehold_protocol::message::Refusal::Busy), with the limit, if the
    /// servers could not renew one more lease in time.
    pub fn grant_lease(&self, ttl: Duration) -> GrantLeaseBuilder<'_> {
        GrantLeaseBuilder { client: self, ttl, id: None, timeout: None }
    }

    /// Renews a key lease from now on, for as long as the handle lives. All leases that one client
    /// renews share their requests.
    ///
    /// # Errors
    ///
    /// [`LeaseError`] if the lease has ended, or was not confirmed in time.
    pub async fn keep_lease_alive(&self, id: LeaseId) -> Result<KeyLease, LeaseError> {
        let after = self.driver().options.timeout;
        let (number, mut held, lost) = self.driver().start_keep_alive(id);
        let mut lease = KeyLease { client: self.clone(), id, number, state: held.clone(), lost };
        let answered = tokio::time::timeout(after, held.wait_for(|held| *held != KeyLeaseState::Asked)).await;
        let is_closed = self.driver().closed.is_cancelled();
        match answered.map(|held| held.map(|held| *held)) {
            Ok(Ok(KeyLeaseState::Until(_))) => {
                lease.state.mark_unchanged();
                Ok(lease)
            }
            _ if is_closed => Err(LeaseError::Closed),
            Ok(_) => Err(LeaseError::NotFound { id }),
            Err(_) => Err(match self.driver().status.unavailable() {
                Some(source) => LeaseError::Unavailable { after, source },
                None => LeaseError::TimedOut { after },
            }),
        }
    }

    /// Ends a key lease at once, and removes all attached nodes.
    ///
    /// # Errors
    ///
    /// [`WriteError`]. Refused if there is no such lease.
    pub async fn revoke_lease(&self, id: LeaseId) -> Result<Written, WriteError> {
        self.write(Write::RevokeLease { id }, None).await
    }

    /// A key lease, with its remaining time by the leader's clock. `None` if there is no such
    /// lease. [`LeaseInfoBuilder::with_keys`] also lists its nodes.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// # let id = leasehold_client_cache::LeaseId(7);
    /// if let Some(lease) = client.lease(id).with_keys().await? {
    ///     println!("{} nodes are attached", lease.keys.len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub fn lease(&self, id: LeaseId) -> LeaseInfoBuilder<'_> {
        LeaseInfoBuilder { client: self, id, with_keys: false }
    }

    /// Registers a service: puts a node that is attached to this session's lease on its volume. The
    /// client renews that lease from then on.
    ///
    /// This always replaces a node that is attached to this session's own lease. Such a node comes
    /// from a registration with a dropped handle, or from an unanswered attempt. A node that is
    /// replaced is removed, and then created again: between the two changes there is none.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut registration = client.register("/services/web/host-1", "10.0.0.1:80").await?;
    /// registration.update("10.0.0.1:81").await?;
    /// registration.on_lost().cancelled().await;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`WriteError`]. Refused if another session is registered there and is not
    /// [replaced](RegisterBuilder::replace), or if the node has children or is a volume.
    pub fn register(
        &self,
        path: impl TryInto<NodePath, Error: Into<PathError>>,
        value: impl AsRef<[u8]>,
    ) -> RegisterBuilder<'_> {
        RegisterBuilder {
            client: self,
            path: given(path),
            value: Value::copy_from_slice(value.as_ref()),
            replace: false,
            timeout: None,
        }
    }

    /// Creates a node that is attached to this session. A node that is there is removed first, so
    /// that the create revision is always the registration's own. It is removed only if it is this
    /// session's own, or if any node may be replaced.
    async fn create_attached(
        &self,
        path: &NodePath,
        value: Value,
        replace: bool,
        after: Duration,
    ) -> Result<Written, WriteError> {
        let began = clock::now();
        let left = || after.saturating_sub(clock::now().since(began));
        loop {
            let create = self.put(path, &value).if_absent().attach(Attach::Session).timeout(left());
            let refused = match create.await {
                Err(error) if error.is_exists() && !left().is_zero() => error,
                done => return done,
            };
            // If the node cannot be read, or is gone, the next put says so.
            let Ok(Some(node)) = self.get(path).timeout(left()).await else { continue };
            let own = self.session().map(NodeOwner::Session);
            if !replace && (own.is_none() || node.stat.owner != own) {
                return Err(refused);
            }
            match self.delete(path).if_revision(node.stat.modify_revision).timeout(left()).await {
                Ok(_) => {}
                // Somebody changed the node in between.
                Err(error) if error.is_revision_differs() || error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
    }
}
