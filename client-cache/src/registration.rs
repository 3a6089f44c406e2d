//! Registrations: nodes that are attached to their session's lease on the volume.

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use leasehold_protocol::{
    command::{Attach, Written},
    id::Revision,
    object::{NodeOwner, Value},
    path::{NodePath, PathError},
};
use tokio_util::sync::CancellationToken;

use crate::{
    call::{GivenPath, given},
    client::Client,
    clock,
    driver::Driver,
    error::WriteError,
};

/// A registration that is about to be made: see [`Client::register`].
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let register = client.register("/services/web/host-1", "10.0.0.1:80").replace(true);
/// let registration = register.timeout(Duration::from_secs(5)).await?;
/// # Ok(())
/// # }
/// ```
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
    /// Whether to replace a node that is not attached to this session's lease: another session's
    /// registration, or any other node. By default such a node refuses the registration.
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
        let (number, lost) = client.driver().watch_registration_lease(&path);
        let registration_lease = RegistrationLease { driver: client.shared_driver(), path: path.clone(), number, lost };
        let revision = client.create_attached(&path, value, replace, client.timeout(timeout)).await?.revision;
        registration_lease.set_revision(revision);
        Ok(Registration { client: client.clone(), path, epoch: revision, revision, registration_lease })
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
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let registration = client.register("/services/web/host-1", "10.0.0.1:80").await?;
/// println!("epoch {}, {:?} remain", registration.epoch(), registration.remaining());
/// registration.leave().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "only this says that the registration is lost"]
pub struct Registration {
    client: Client,
    path: NodePath,
    epoch: Revision,
    /// The revision of the last put of the node.
    revision: Revision,
    registration_lease: RegistrationLease,
}

/// Watches the lease that a node is attached to.
#[derive(Debug)]
struct RegistrationLease {
    driver: Arc<Driver>,
    path: NodePath,
    number: u64,
    lost: CancellationToken,
}

impl RegistrationLease {
    fn set_revision(&self, put: Revision) {
        self.driver.set_registration_revision(&self.path, self.number, put);
    }
}

impl Drop for RegistrationLease {
    fn drop(&mut self) {
        self.driver.forget_registration_lease(&self.path, self.number);
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
    /// ([`Member::epoch`](crate::recipes::Member::epoch)).
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
        self.registration_lease.set_revision(self.revision);
        Ok(written)
    }

    /// For how long the node's lease certainly lasts, even if no server answers. If another call of
    /// this client puts or removes the node, this is zero.
    pub fn remaining(&self) -> Duration {
        let remaining = self.client.driver().registration_remaining(&self.path, self.revision);
        if self.registration_lease.lost.is_cancelled() { Duration::ZERO } else { remaining }
    }

    /// Cancelled when the node's lease has ended for good (a server says so, or the session has
    /// expired), and when the client is closed. After this handle is dropped, nothing cancels it.
    ///
    /// Before that, this client's own clock may say that the lease is no longer certain. Then
    /// [`Registration::remaining`] is zero and the session is in *jeopardy* (see
    /// [`Client::events`]), but the lease may still be renewed. This does not report that somebody
    /// removes or replaces the node: read the node for that.
    pub fn on_lost(&self) -> CancellationToken {
        self.registration_lease.lost.child_token()
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
    /// Registers a service: puts a node that is attached to this session's lease on its volume. The
    /// client renews that lease from then on.
    ///
    /// This always replaces a node that is attached to this session's own lease. Such a node comes
    /// from a registration with a dropped handle, or from an unanswered attempt. To replace a node,
    /// the client removes it, and then creates it again. Between these two changes it does not
    /// exist.
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
    /// [`WriteError`]. Refused if the node exists and is not attached to this session's lease,
    /// unless the options say to [replace](RegisterBuilder::replace) it. Also refused if the node
    /// has children or is a volume.
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
