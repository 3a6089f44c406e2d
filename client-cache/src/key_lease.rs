//! Key leases: leases that the application grants, with nodes that are removed when they end.

use std::time::Duration;

use futures::future::BoxFuture;
use leasehold_protocol::{
    command::{Write, Written},
    id::{Incarnation, LeaseId},
    lease_name::{LeaseName, LeaseNameError},
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
    lease_ref::{GivenLease, LeaseRef, given_lease},
};

/// A grant of a key lease that is about to be requested: see [`Client::grant_lease`].
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_client_cache::LeaseId;
/// use std::time::Duration;
///
/// let id = client.grant_lease(Duration::from_secs(60)).id(LeaseId(7)).name("server1Lease").await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is granted until this is awaited"]
pub struct GrantLeaseBuilder<'a> {
    client: &'a Client,
    ttl: Duration,
    id: Option<LeaseId>,
    name: Option<Result<LeaseName, LeaseNameError>>,
    timeout: Option<Duration>,
}

impl GrantLeaseBuilder<'_> {
    /// The id of the lease. By default, the servers choose a new one.
    pub fn id(mut self, id: LeaseId) -> Self {
        self.id = Some(id);
        self
    }

    /// A name for the lease: 1 to 256 bytes of UTF-8 without control characters. The grant is
    /// refused if another lease has the name, so at most one of several clients gets it. The name
    /// is free again when the lease ends. Later calls may [refer](LeaseRef) to the lease by it.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// match client.grant_lease(Duration::from_secs(60)).name("server1Lease").await {
    ///     Ok(id) => println!("this client has it: {id:016x}"),
    ///     Err(error) if error.is_exists() => println!("another client was faster"),
    ///     Err(error) => return Err(error.into()),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn name(mut self, name: impl TryInto<LeaseName, Error: Into<LeaseNameError>>) -> Self {
        self.name = Some(name.try_into().map_err(Into::into));
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
        let Self { client, ttl, id, name, timeout } = self;
        Box::pin(async move {
            let name = name.transpose()?;
            let written = client.write(Write::GrantLease { id, name, ttl }, timeout).await?;
            written.lease.map(|granted| granted.id).ok_or(WriteError::OutcomeUnknown { path: None })
        })
    }
}

/// A request for a key lease's state that is about to be sent: see [`Client::lease`].
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// if let Some(lease) = client.lease("server1Lease").with_nodes().await? {
///     println!("{:?} remain, for {} nodes", lease.remaining, lease.nodes.len());
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is read until this is awaited"]
pub struct LeaseInfoBuilder<'a> {
    client: &'a Client,
    lease: GivenLease,
    with_nodes: bool,
}

impl LeaseInfoBuilder<'_> {
    /// Also lists all attached nodes, in the order of paths. Many nodes come in several pages, each
    /// as of its own moment.
    pub fn with_nodes(mut self) -> Self {
        self.with_nodes = true;
        self
    }

    async fn pages(self) -> Result<Option<LeaseInfo>, InspectError> {
        let (client, lease) = (self.client, self.lease?);
        let first = self.with_nodes.then_some(NodesAfter::Nothing);
        let Some(mut whole) = client.inspect_lease(lease, first).await? else { return Ok(None) };
        while let Some(last) = whole.nodes.last() {
            // Another lease may have the name or the id by now.
            match client.inspect_lease(whole.id.into(), Some(NodesAfter::Path(last.clone()))).await? {
                Some(page) if page.incarnation == whole.incarnation && !page.nodes.is_empty() => {
                    whole.nodes.extend(page.nodes);
                }
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
/// Then the lease ends by itself after its TTL. [`KeyLease::revoke`] ends it as soon as the readers
/// of its nodes have consented, or have lost their leases.
///
/// The lease is lost if no server answers in time, or if somebody revokes it. [`KeyLease::on_lost`]
/// is then cancelled, at the latest when the lease has ended by this client's clock. No server
/// counts it as expired earlier. After a suspension, the cancellation can come up to a second after
/// the machine has resumed. [`KeyLease::remaining`] is right at once. An application that listens
/// to `on_lost` stops in time. A request that the application has sent to another system may still
/// arrive there after the loss. Only that system can refuse it.
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let lease = client.keep_lease_alive(client.grant_lease(Duration::from_secs(30)).await?).await?;
/// client.put("/services/web/host-1", "10.0.0.1:80").lease(lease.id()).await?;
/// tokio::select! {
///     () = lease.on_lost().cancelled_owned() => println!("stopped in time"),
///     () = async { /* what needs the lease */ } => drop(lease.revoke().await?),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the lease is not renewed after this is dropped"]
pub struct KeyLease {
    renewals: RenewalGuard,
    /// Distinguishes the lease from other leases of the same id.
    incarnation: Incarnation,
    state: watch::Receiver<KeyLeaseState>,
    lost: CancellationToken,
}

/// The renewals of a key lease. They stop when this is dropped.
#[derive(Debug)]
struct RenewalGuard {
    client: Client,
    id: LeaseId,
    number: u64,
}

impl Drop for RenewalGuard {
    fn drop(&mut self) {
        self.client.driver().stop_keep_alive(self.id, self.number);
    }
}

impl KeyLease {
    /// The id of the lease.
    pub fn id(&self) -> LeaseId {
        self.renewals.id
    }

    /// For how long the lease certainly lasts, even if no server answers. Zero if it has ended.
    pub fn remaining(&self) -> Duration {
        match *self.state.borrow() {
            KeyLeaseState::Until { until, .. } => until.since(clock::now()),
            KeyLeaseState::Asked | KeyLeaseState::Lost => Duration::ZERO,
        }
    }

    /// Waits for the next renewal, and returns for how long the lease certainly lasts. `None` if
    /// the lease has ended. If the future is dropped, the next call still returns the renewal.
    ///
    /// ```no_run
    /// # async fn example(mut lease: leasehold_client_cache::KeyLease) -> Result<(), Box<dyn std::error::Error>> {
    /// while let Some(remaining) = lease.renewed().await {
    ///     println!("renewed: it lasts for {remaining:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn renewed(&mut self) -> Option<Duration> {
        if self.state.changed().await.is_ok()
            && let KeyLeaseState::Until { until, .. } = *self.state.borrow_and_update()
        {
            return Some(until.since(clock::now()));
        }
        // So a caller that gets `None` also sees the token cancelled.
        self.lost.cancelled().await;
        None
    }

    /// Cancelled when the lease has ended or is no longer certain, when its last handle is dropped,
    /// or when the client is closed, and never before. The lease does not become valid again.
    pub fn on_lost(&self) -> CancellationToken {
        self.lost.child_token()
    }

    /// Ends the lease, and removes all attached nodes. Waits as a write of these nodes does.
    ///
    /// It never ends another lease, even if another client has granted one with the same id after
    /// this one was lost.
    ///
    /// # Errors
    ///
    /// [`WriteError`]. Refused if this lease has ended.
    pub async fn revoke(self) -> Result<Written, WriteError> {
        let driver = self.renewals.client.driver();
        let revocation = Write::RevokeLease { id: self.id(), incarnation: Some(self.incarnation) };
        driver.execute_write(revocation, driver.options.timeout).await
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
    /// [`WriteError`]. Refused if the id or the name is taken, or if the TTL is out of bounds (200
    /// ms to 366 days). Refused as [busy](leasehold_protocol::message::Refusal::Busy), with the
    /// limit, if the servers could not renew one more lease in time.
    pub fn grant_lease(&self, ttl: Duration) -> GrantLeaseBuilder<'_> {
        GrantLeaseBuilder { client: self, ttl, id: None, name: None, timeout: None }
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
    pub async fn keep_lease_alive(
        &self,
        lease: impl TryInto<LeaseRef, Error: Into<LeaseNameError>>,
    ) -> Result<KeyLease, LeaseError> {
        match given_lease(lease)? {
            LeaseRef::Id(id) => self.keep_id_alive(id).await,
            LeaseRef::Name(name) => {
                let info = self.inspect_lease(name.clone().into(), None).await.map_err(LeaseError::Lookup)?;
                let Some(LeaseInfo { id, incarnation, .. }) = info else {
                    return Err(LeaseError::NameNotFound { name });
                };
                match self.keep_id_alive(id).await {
                    Ok(lease) if lease.incarnation == incarnation => Ok(lease),
                    // The lease has ended since. Another may have the id by now.
                    Ok(_) | Err(LeaseError::NotFound { .. }) => Err(LeaseError::NameNotFound { name }),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// Renews the lease that has this id.
    async fn keep_id_alive(&self, id: LeaseId) -> Result<KeyLease, LeaseError> {
        let after = self.driver().options.timeout;
        let (number, mut state, lost) = self.driver().start_keep_alive(id);
        let renewals = RenewalGuard { client: self.clone(), id, number };
        let answered = tokio::time::timeout(after, state.wait_for(|state| *state != KeyLeaseState::Asked)).await;
        let is_closed = self.driver().closed.is_cancelled();
        match answered.map(|state| state.map(|state| *state)) {
            Ok(Ok(KeyLeaseState::Until { incarnation, .. })) => {
                state.mark_unchanged();
                Ok(KeyLease { renewals, incarnation, state, lost })
            }
            _ if is_closed => Err(LeaseError::Closed),
            Ok(_) => Err(LeaseError::NotFound { id }),
            Err(_) => Err(match self.driver().status.unavailable() {
                Some(source) => LeaseError::Unavailable { after, source },
                None => LeaseError::TimedOut { after },
            }),
        }
    }

    /// Ends a key lease, and removes all attached nodes. Waits as a write of these nodes does.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// # let id = leasehold_client_cache::LeaseId(7);
    /// println!("{} nodes are gone", client.revoke_lease(id).await?.removed);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// It ends the lease that has the id or the name when the request arrives at the leader. If
    /// other clients may grant a lease with the same id or name, use [`KeyLease::revoke`], which
    /// ends no lease but its own.
    ///
    /// # Errors
    ///
    /// [`WriteError`]. Refused if there is no such lease.
    pub async fn revoke_lease(
        &self,
        lease: impl TryInto<LeaseRef, Error: Into<LeaseNameError>>,
    ) -> Result<Written, WriteError> {
        let revocation = match given_lease(lease)? {
            LeaseRef::Id(id) => Write::RevokeLease { id, incarnation: None },
            LeaseRef::Name(name) => Write::RevokeLeaseNamed { name },
        };
        self.write(revocation, None).await
    }

    /// A key lease, with its remaining time by the leader's clock. `None` if there is no such
    /// lease. [`LeaseInfoBuilder::with_nodes`] also lists its nodes.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// # let id = leasehold_client_cache::LeaseId(7);
    /// if let Some(lease) = client.lease(id).with_nodes().await? {
    ///     println!("{} nodes are attached", lease.nodes.len());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub fn lease(&self, lease: impl TryInto<LeaseRef, Error: Into<LeaseNameError>>) -> LeaseInfoBuilder<'_> {
        LeaseInfoBuilder { client: self, lease: given_lease(lease), with_nodes: false }
    }

    /// Asks the leader for a key lease. `nodes_after`: where the list of its nodes begins, or
    /// `None` without nodes.
    async fn inspect_lease(
        &self,
        lease: LeaseRef,
        nodes_after: Option<NodesAfter>,
    ) -> Result<Option<LeaseInfo>, InspectError> {
        let inspect = match lease {
            LeaseRef::Id(id) => Inspect::Lease { id, nodes_after },
            LeaseRef::Name(name) => Inspect::LeaseNamed { name, nodes_after },
        };
        match self.inspect(inspect).await? {
            Answer::Lease(lease) => Ok(lease),
            _ => Err(InspectError::UnexpectedAnswer),
        }
    }
}
