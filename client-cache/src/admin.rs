//! The operators' calls: volumes, and what the servers know about leases and waiting requests.
//!
//! An application needs none of them to read, write, lock or watch.

use leasehold_protocol::{
    command::{Write, Written},
    message::{
        Answer, BlockedReadInfo, ClusterInfo, HolderInfo, Inspect, LeaseInfo, PendingWriteInfo, ServiceInfo, VolumeInfo,
    },
    path::{NodePath, PathError},
    volume::VolumeSettings,
};

use crate::{
    call::given,
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

    /// Makes the subtree at `path` a volume of its own. Creates the node if it does not exist.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold_client_cache::VolumeSettings;
    ///
    /// client.admin().create_volume("/services", VolumeSettings::DEFAULT).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`WriteError`]. Refused if the node is a volume already, or with
    /// [`VolumeError::SkewMargin`](crate::VolumeError::SkewMargin) if the margin is too small for
    /// the servers' drift allowance.
    pub async fn create_volume(
        self,
        path: impl TryInto<NodePath, Error: Into<PathError>>,
        settings: VolumeSettings,
    ) -> Result<Written, WriteError> {
        self.client.write(Write::CreateVolume { path: given(path)?, settings }, None).await
    }

    /// Changes the settings of a volume.
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
    /// # Errors
    ///
    /// [`WriteError`]. Refused if the node is no volume, or is the root.
    pub async fn remove_volume(
        self,
        path: impl TryInto<NodePath, Error: Into<PathError>>,
    ) -> Result<Written, WriteError> {
        self.client.write(Write::RemoveVolume { path: given(path)? }, None).await
    }
}
