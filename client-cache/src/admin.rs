//! The operators' calls: volumes, and what the servers know about leases and waiting requests.
//!
//! An application needs none of them to read, write, lock or watch.

mod advise;

use std::time::Duration;

use futures::future::BoxFuture;
use leasehold_protocol::{
    command::{Write, Written},
    lease_policy::{GrantPolicy, ObjectTerm, OnWrite},
    message::{
        Answer, BlockedReadInfo, ClusterInfo, HolderInfo, Inspect, LeaseInfo, PendingWriteInfo, Refusal, ServiceInfo,
        VolumeInfo, VolumeStats,
    },
    path::{NodePath, PathError},
    quota::Quota,
    volume::{Tracking, VolumeError, VolumeSettings, VolumeTerm},
};

use crate::{
    call::{GivenPath, given},
    client::Client,
    error::{InspectError, WriteError},
};

/// The operators' calls of a client. See [`Client::admin`].
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let admin = client.admin();
/// for write in admin.pending_writes("/config/web/port").await? {
///     println!("{write:?}");
/// }
/// println!("{} key leases, {} members", admin.leases().await?.len(), admin.cluster().await?.members.len());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Admin<'a> {
    client: &'a Client,
}

impl<'a> Admin<'a> {
    pub(crate) fn new(client: &'a Client) -> Self {
        Self { client }
    }

    /// Lists the sessions whose caches have leases on the node's objects, or may have them, with
    /// the remaining time. A write of the node waits for these. The leader answers.
    ///
    /// Not to be confused with [`Client::locks`], which lists the owners of locks on the node and
    /// the lock queue. A client that only reads a node is one of its holders and locks nothing. A
    /// client that only locks a node caches nothing of it.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// for holder in client.admin().holders("/config/web/port").await? {
    ///     println!("{holder:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn holders(
        self,
        path: impl TryInto<NodePath, Error: Into<PathError>>,
    ) -> Result<Vec<HolderInfo>, InspectError> {
        match self.client.inspect(Inspect::Holders { path: given(path)? }).await? {
            Answer::Holders(holders) => Ok(holders),
            _ => Err(InspectError::UnexpectedAnswer),
        }
    }

    /// Lists the node's pending writes: what each waits for, and for how long at most. The leader
    /// answers.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// for write in client.admin().pending_writes("/config/web/port").await? {
    ///     println!("{write:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn pending_writes(
        self,
        path: impl TryInto<NodePath, Error: Into<PathError>>,
    ) -> Result<Vec<PendingWriteInfo>, InspectError> {
        match self.client.inspect(Inspect::PendingWrites { path: given(path)? }).await? {
            Answer::PendingWrites(waits) => Ok(waits),
            _ => Err(InspectError::UnexpectedAnswer),
        }
    }

    /// Lists the blocked reads of the node, and blocked lists that begin there, with their longest
    /// wait. They wait until the owner of a write lease has flushed. The leader answers.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{} reads wait", client.admin().blocked_reads("/documents/minutes").await?.len());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn blocked_reads(
        self,
        path: impl TryInto<NodePath, Error: Into<PathError>>,
    ) -> Result<Vec<BlockedReadInfo>, InspectError> {
        match self.client.inspect(Inspect::BlockedReads { path: given(path)? }).await? {
            Answer::BlockedReads(waits) => Ok(waits),
            _ => Err(InspectError::UnexpectedAnswer),
        }
    }

    /// Describes the cluster as the connected server sees it.
    /// [`server_status`](crate::server_status) asks any one server, and works without a quorum.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let cluster = client.admin().cluster().await?;
    /// println!("replica {:?} leads {} members", cluster.leader, cluster.members.len());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn cluster(self) -> Result<ClusterInfo, InspectError> {
        match self.client.inspect(Inspect::Cluster).await? {
            Answer::Cluster(info) => Ok(info),
            _ => Err(InspectError::UnexpectedAnswer),
        }
    }

    /// Lists all key leases, in the order of their ids, without their nodes. [`Client::lease`]
    /// shows one with its nodes. Many leases come in several pages.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// for lease in client.admin().leases().await? {
    ///     println!("{:x}: {:?} remain", lease.id, lease.remaining);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn leases(self) -> Result<Vec<LeaseInfo>, InspectError> {
        let mut all: Vec<LeaseInfo> = Vec::new();
        loop {
            let after = all.last().map(|lease| lease.id);
            match self.client.inspect(Inspect::Leases { after }).await? {
                Answer::Leases(page) if page.is_empty() => return Ok(all),
                Answer::Leases(page) => all.extend(page),
                _ => return Err(InspectError::UnexpectedAnswer),
            }
        }
    }

    /// Lists the services at and below a path, as the leader sees them, in the order of paths. A
    /// service is an attached node. The list also has ended services, as long as the leader
    /// remembers them. Many services come in several pages, each as of its own moment.
    ///
    /// An application that looks for members follows a [registry](Client::registry) instead.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// for service in client.admin().services("/services").await? {
    ///     println!("{} is {:?}", service.path, service.health);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn services(
        self,
        path: impl TryInto<NodePath, Error: Into<PathError>>,
    ) -> Result<Vec<ServiceInfo>, InspectError> {
        self.services_below(given(path)?).await
    }

    async fn services_below(self, path: NodePath) -> Result<Vec<ServiceInfo>, InspectError> {
        let mut all: Vec<ServiceInfo> = Vec::new();
        let mut after = None;
        loop {
            let inspect = Inspect::Services { path: path.clone(), after: after.clone() };
            let Answer::Services(page) = self.client.inspect(inspect).await? else {
                return Err(InspectError::UnexpectedAnswer);
            };
            all.extend(page.services);
            match page.through {
                None => return Ok(all),
                // Without progress, the pages would never end.
                Some(through) if after.as_ref().is_some_and(|after| through <= *after) => {
                    return Err(InspectError::UnexpectedAnswer);
                }
                through => after = through,
            }
        }
    }

    /// Lists the volumes at and below the path. The leader answers.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// for volume in client.admin().volumes("/").await? {
    ///     println!("{volume:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn volumes(
        self,
        path: impl TryInto<NodePath, Error: Into<PathError>>,
    ) -> Result<Vec<VolumeInfo>, InspectError> {
        match self.client.inspect(Inspect::Volumes { path: given(path)? }).await? {
            Answer::Volumes(volumes) => Ok(volumes),
            _ => Err(InspectError::UnexpectedAnswer),
        }
    }

    /// The present leases on a volume, and the counters of its leader: reads, renewals,
    /// recalls, consents and waits. `None` if the node is not the top of a volume. The counters
    /// begin at zero with each new leader, and after each change of the volume's settings. Clients
    /// report their reads from memory some time later, at most once a second:
    /// [`Client::volume_stats`] counts those of one client at once.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// if let Some(stats) = client.admin().volume_stats("/services").await? {
    ///     println!("{} recalls in {:?}", stats.counts.recalls, stats.counted_for);
    ///     println!("99 of 100 consents came within {:?}", stats.counts.consents.percentile(99));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn volume_stats(
        self,
        path: impl TryInto<NodePath, Error: Into<PathError>>,
    ) -> Result<Option<VolumeStats>, InspectError> {
        match self.client.inspect(Inspect::VolumeStats { path: given(path)? }).await? {
            Answer::VolumeStats(stats) => Ok(stats.map(|stats| *stats)),
            _ => Err(InspectError::UnexpectedAnswer),
        }
    }

    /// Makes the subtree at `path` a volume of its own. Creates the node if it does not exist. The
    /// settings are [`VolumeSettings::DEFAULT`], except those that the builder sets.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// client.admin().create_volume("/services").term(Duration::from_secs(2)).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`WriteError`]. Refused if the node is a volume already
    /// ([`is_exists`](WriteError::is_exists)), or with a
    /// [`VolumeError`](crate::VolumeError) if a setting is out of bounds, or if the margin is too
    /// small for the servers' drift allowance.
    pub fn create_volume(self, path: impl TryInto<NodePath, Error: Into<PathError>>) -> CreateVolumeBuilder<'a> {
        CreateVolumeBuilder::new(self.client, given(path))
    }

    /// Changes the settings of a volume.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold_client_cache::VolumeSettings;
    ///
    /// client.admin().set_volume("/services", VolumeSettings::DEFAULT).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`WriteError`]. Refused if the node is no volume, or as for [`Admin::create_volume`].
    pub async fn set_volume(
        self,
        path: impl TryInto<NodePath, Error: Into<PathError>>,
        settings: VolumeSettings,
    ) -> Result<Written, WriteError> {
        self.client.write(Write::SetVolume { path: given(path)?, settings }, None).await
    }

    /// Removes a volume. Its nodes stay, and belong to the volume above from then on.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// client.admin().remove_volume("/services").await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`WriteError`]. Refused if the node is no volume, or is the root, or if a session has locks
    /// or attached nodes in the volume.
    pub async fn remove_volume(
        self,
        path: impl TryInto<NodePath, Error: Into<PathError>>,
    ) -> Result<Written, WriteError> {
        self.client.write(Write::RemoveVolume { path: given(path)? }, None).await
    }
}

/// A volume that is about to be made: see [`Admin::create_volume`].
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_client_cache::OnWrite;
/// use std::time::Duration;
///
/// let prices = client.admin().create_volume("/prices").term(Duration::from_secs(2));
/// prices.on_write(OnWrite::Update).quota_nodes(1_000).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "no volume is made until this is awaited"]
pub struct CreateVolumeBuilder<'a> {
    client: &'a Client,
    path: GivenPath,
    base: VolumeSettings,
    term: Option<VolumeTerm>,
    object_term: Option<ObjectTerm>,
    skew_margin: Option<Duration>,
    tracking: Option<Tracking>,
    on_write: Option<OnWrite>,
    grants: Option<GrantPolicy>,
    lease_limit: Option<Option<u32>>,
    quota_nodes: Option<Option<u64>>,
    quota_bytes: Option<Option<u64>>,
}

impl<'a> CreateVolumeBuilder<'a> {
    fn new(client: &'a Client, path: GivenPath) -> Self {
        Self {
            client,
            path,
            base: VolumeSettings::DEFAULT,
            term: None,
            object_term: None,
            skew_margin: None,
            tracking: None,
            on_write: None,
            grants: None,
            lease_limit: None,
            quota_nodes: None,
            quota_bytes: None,
        }
    }

    /// All settings at once, instead of [`VolumeSettings::DEFAULT`]. The other calls change single
    /// ones.
    pub fn settings(mut self, settings: VolumeSettings) -> Self {
        self.base = settings;
        self
    }

    /// The term of volume leases: a [`Duration`] or a [`VolumeTerm`]. It is how long a dead client
    /// can delay a write, apart from the margin.
    pub fn term(mut self, term: impl Into<VolumeTerm>) -> Self {
        self.term = Some(term.into());
        self
    }

    /// The term of object leases: a [`Duration`] or an [`ObjectTerm`]. Zero means that each read
    /// asks a server.
    pub fn object_term(mut self, term: impl Into<ObjectTerm>) -> Self {
        self.object_term = Some(term.into());
        self
    }

    /// How long the leader waits after a lease's time has passed, before it counts the lease as
    /// ended.
    pub fn skew_margin(mut self, margin: Duration) -> Self {
        self.skew_margin = Some(margin);
        self
    }

    /// How the leader tracks object leases.
    pub fn tracking(mut self, tracking: Tracking) -> Self {
        self.tracking = Some(tracking);
        self
    }

    /// What a write does about object leases. With [`OnWrite::Wait`], the object term may be no
    /// longer than the shortest volume term, nor than a minute.
    pub fn on_write(mut self, on_write: OnWrite) -> Self {
        self.on_write = Some(on_write);
        self
    }

    /// Which reads get an object lease.
    pub fn grants(mut self, grants: GrantPolicy) -> Self {
        self.grants = Some(grants);
        self
    }

    /// The most object leases of all clients together; `None` for no limit. Beyond it, the leader
    /// recalls those that end first: [`VolumeSettings::lease_limit`].
    pub fn lease_limit(mut self, most: impl Into<Option<u32>>) -> Self {
        self.lease_limit = Some(most.into());
        self
    }

    /// The most nodes of the volume; `None` for no limit. Beyond it, writes are
    /// [refused](crate::WriteRefusal::QuotaExceeded), and deletes are not.
    pub fn quota_nodes(mut self, most: impl Into<Option<u64>>) -> Self {
        self.quota_nodes = Some(most.into());
        self
    }

    /// The most bytes of the volume; `None` for no limit. The path and the value of each node
    /// count. Beyond it, writes are refused, as for [`quota_nodes`](Self::quota_nodes).
    pub fn quota_bytes(mut self, most: impl Into<Option<u64>>) -> Self {
        self.quota_bytes = Some(most.into());
        self
    }

    fn checked(&self) -> Result<VolumeSettings, VolumeError> {
        let base = &self.base;
        let (term, margin) = (self.term.unwrap_or(base.term()), self.skew_margin.unwrap_or(base.skew_margin()));
        let tracking = self.tracking.unwrap_or(base.tracking());
        let object_term = self.object_term.unwrap_or(base.object_term());
        let (on_write, grants) = (self.on_write.unwrap_or(base.on_write()), self.grants.unwrap_or(base.grants()));
        let quota = Quota {
            nodes: self.quota_nodes.unwrap_or(base.quota().nodes),
            bytes: self.quota_bytes.unwrap_or(base.quota().bytes),
        };
        // `with_policy` checks the policy against the volume term, so the term is set first.
        let terms = VolumeSettings::new(term, ObjectTerm::Zero, margin, tracking, self.client.driver().options.drift)?;
        let lease_limit = self.lease_limit.unwrap_or(base.lease_limit());
        Ok(terms.with_policy(object_term, on_write, grants)?.with_lease_limit(lease_limit).with_quota(quota))
    }
}

impl<'a> IntoFuture for CreateVolumeBuilder<'a> {
    type Output = Result<Written, WriteError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let settings = self.checked().map_err(|error| WriteError::Refused(Refusal::Volume(error)))?;
            self.client.write(Write::CreateVolume { path: self.path?, settings }, None).await
        })
    }
}

impl Client {
    /// The operators' calls: volumes, and what the servers know about leases and waiting requests.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{} volumes", client.admin().volumes("/").await?.len());
    /// # Ok(())
    /// # }
    /// ```
    pub fn admin(&self) -> Admin<'_> {
        Admin::new(self)
    }
}
