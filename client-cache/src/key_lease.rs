//! Key leases: leases that the application grants, with nodes that are removed when they end.

use std::time::Duration;

use futures::future::BoxFuture;
use leasehold_protocol::{
    command::{Write, Written},
    id::LeaseId,
    message::{Answer, Inspect, LeaseInfo, NodesAfter},
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

#[cfg(doc)]
use crate::write::PutBuilder;
use crate::{
    client::Client,
    clock,
    driver::KeyLeaseState,
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
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let lease = client.keep_lease_alive(client.grant_lease(Duration::from_secs(30)).await?).await?;
    /// println!("it lasts for {:?}", lease.remaining());
    /// # Ok(())
    /// # }
    /// ```
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
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// # let id = leasehold_client_cache::LeaseId(7);
    /// println!("{} nodes are gone", client.revoke_lease(id).await?.removed);
    /// # Ok(())
    /// # }
    /// ```
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
}
