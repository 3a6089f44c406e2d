//! The operators' calls: volumes, and what the servers know about leases and waiting requests.
//!
//! An application needs none of them to read, write, lock or watch.

mod advise;
mod volume_builder;

use leasehold_protocol::{
    command::{Write, Written},
    message::{
        Answer, BlockedReadInfo, ClusterInfo, HolderInfo, Inspect, LeaseInfo, PendingWriteInfo, ServiceInfo,
        VolumeInfo, VolumeStats,
    },
    path::{NodePath, PathError},
};

pub use volume_builder::VolumeBuilder;

#[cfg(doc)]
use crate::VolumeSettings;
use crate::{
    call::given,
    client::Client,
    error::{EnsureVolumeError, InspectError, WriteError},
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
    pub fn create_volume(
        self,
        path: impl TryInto<NodePath, Error: Into<PathError>>,
    ) -> VolumeBuilder<'a, Result<Written, WriteError>> {
        VolumeBuilder::new(self, given(path), |volume| Box::pin(volume.create()))
    }

    /// Makes the subtree at `path` a volume as [`Admin::create_volume`] does, unless it is one with
    /// the same settings already. Returns `None` then, and writes nothing. Each process of an
    /// application may call this when it starts.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let made = client.admin().ensure_volume("/services").term(Duration::from_secs(2)).await?;
    /// println!("this process made it: {}", made.is_some());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`EnsureVolumeError`]. [`EnsureVolumeError::Differs`] names the settings that differ, if the
    /// volume exists with other ones.
    pub fn ensure_volume(
        self,
        path: impl TryInto<NodePath, Error: Into<PathError>>,
    ) -> VolumeBuilder<'a, Result<Option<Written>, EnsureVolumeError>> {
        VolumeBuilder::new(self, given(path), |volume| Box::pin(volume.ensure()))
    }

    /// Changes the settings that the builder sets. The others stay as they are: the client reads
    /// them first. If another client changes the volume between that read and this write, its
    /// change is undone. With [`VolumeBuilder::settings`], nothing is read, and all settings are
    /// replaced.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// client.admin().set_volume("/services").quota_nodes(1_000).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`WriteError`]. Refused if the node is no volume, or as for [`Admin::create_volume`].
    pub fn set_volume(
        self,
        path: impl TryInto<NodePath, Error: Into<PathError>>,
    ) -> VolumeBuilder<'a, Result<Written, WriteError>> {
        VolumeBuilder::new(self, given(path), |volume| Box::pin(volume.set()))
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
