//! The settings of a volume that is about to be made or changed.

use std::time::Duration;

use futures::future::BoxFuture;
use leasehold_protocol::{
    command::{Write, WriteRefusal, Written},
    lease_policy::{GrantPolicy, ObjectTerm, OnWrite},
    message::VolumeInfo,
    path::NodePath,
    quota::Quota,
    time::DriftAllowance,
    volume::{Tracking, VolumeError, VolumeSettings, VolumeTerm},
};

use super::Admin;
use crate::{
    call::GivenPath,
    error::{EnsureVolumeError, InspectError, WriteError},
};

/// A volume that is about to be made or changed: see [`Admin::create_volume`],
/// [`Admin::ensure_volume`] and [`Admin::set_volume`].
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
#[must_use = "no volume is made or changed until this is awaited"]
pub struct VolumeBuilder<'a, T> {
    admin: Admin<'a>,
    path: GivenPath,
    base: Option<VolumeSettings>,
    term: Option<VolumeTerm>,
    object_term: Option<ObjectTerm>,
    skew_margin: Option<Duration>,
    tracking: Option<Tracking>,
    on_write: Option<OnWrite>,
    grants: Option<GrantPolicy>,
    lease_limit: Option<Option<u32>>,
    quota_nodes: Option<Option<u64>>,
    quota_bytes: Option<Option<u64>>,
    execute: fn(Self) -> BoxFuture<'a, T>,
}

impl<'a, T> VolumeBuilder<'a, T> {
    pub(super) fn new(admin: Admin<'a>, path: GivenPath, execute: fn(Self) -> BoxFuture<'a, T>) -> Self {
        Self {
            admin,
            path,
            base: None,
            term: None,
            object_term: None,
            skew_margin: None,
            tracking: None,
            on_write: None,
            grants: None,
            lease_limit: None,
            quota_nodes: None,
            quota_bytes: None,
            execute,
        }
    }

    /// All settings at once. The other calls change single ones. By default, a new volume has
    /// [`VolumeSettings::DEFAULT`], and one that is changed keeps its settings.
    pub fn settings(mut self, settings: VolumeSettings) -> Self {
        self.base = Some(settings);
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

    /// The settings of the caller, over these. The servers check the margin, by their own drift
    /// allowance.
    fn over(&self, base: &VolumeSettings) -> Result<VolumeSettings, VolumeError> {
        let (term, margin) = (self.term.unwrap_or(base.term()), self.skew_margin.unwrap_or(base.skew_margin()));
        let tracking = self.tracking.unwrap_or(base.tracking());
        let object_term = self.object_term.unwrap_or(base.object_term());
        let (on_write, grants) = (self.on_write.unwrap_or(base.on_write()), self.grants.unwrap_or(base.grants()));
        let quota = Quota {
            nodes: self.quota_nodes.unwrap_or(base.quota().nodes),
            bytes: self.quota_bytes.unwrap_or(base.quota().bytes),
        };
        let none = DriftAllowance::from_ppm(0).unwrap_or(DriftAllowance::DEFAULT);
        // `with_policy` checks the policy against the volume term, so the term is set first.
        let terms = VolumeSettings::new(term, ObjectTerm::Zero, margin, tracking, none)?;
        let lease_limit = self.lease_limit.unwrap_or(base.lease_limit());
        Ok(terms.with_policy(object_term, on_write, grants)?.with_lease_limit(lease_limit).with_quota(quota))
    }

    /// The path, and the settings of a new volume.
    fn new_volume(&self) -> Result<(NodePath, VolumeSettings), WriteError> {
        let settings = self.over(&self.base.unwrap_or(VolumeSettings::DEFAULT));
        Ok((self.path.clone()?, settings.map_err(refused)?))
    }
}

impl<'a, T> IntoFuture for VolumeBuilder<'a, T> {
    type Output = T;
    type IntoFuture = BoxFuture<'a, T>;

    fn into_future(self) -> Self::IntoFuture {
        (self.execute)(self)
    }
}

impl VolumeBuilder<'_, Result<Written, WriteError>> {
    pub(super) async fn create(self) -> Result<Written, WriteError> {
        let (path, settings) = self.new_volume()?;
        self.admin.client.write(Write::CreateVolume { path, settings }, None).await
    }

    pub(super) async fn set(self) -> Result<Written, WriteError> {
        let path = self.path.clone()?;
        let base = match self.base {
            Some(base) => base,
            None => self.admin.settings_of(&path).await?,
        };
        let settings = self.over(&base).map_err(refused)?;
        self.admin.client.write(Write::SetVolume { path, settings }, None).await
    }
}

impl VolumeBuilder<'_, Result<Option<Written>, EnsureVolumeError>> {
    pub(super) async fn ensure(self) -> Result<Option<Written>, EnsureVolumeError> {
        let (path, expected) = self.new_volume()?;
        loop {
            match self.admin.volume_of(&path, &path).await? {
                Some(volume) if volume.settings == expected => return Ok(None),
                Some(VolumeInfo { settings, .. }) => {
                    return Err(EnsureVolumeError::Differs { path, expected: expected.into(), got: settings.into() });
                }
                None => {}
            }
            let create = Write::CreateVolume { path: path.clone(), settings: expected };
            match self.admin.client.write(create, None).await {
                // Somebody else has made it meanwhile.
                Err(error) if error.is_exists() => {}
                written => return Ok(Some(written?)),
            }
        }
    }
}

impl Admin<'_> {
    /// The present settings of a volume. Refused as by the servers if the node is no volume.
    async fn settings_of(self, path: &NodePath) -> Result<VolumeSettings, WriteError> {
        if let Some(volume) = self.volume_of(path, path).await? {
            return Ok(volume.settings);
        }
        let above = self.volume_of(path, &NodePath::root()).await?;
        let volume = above.map_or_else(NodePath::root, |volume| volume.path);
        Err(WriteError::Refused(WriteRefusal::NotAVolume { path: path.clone(), volume }.into()))
    }

    /// The innermost volume that contains the path, of those at and below `top`.
    async fn volume_of(self, path: &NodePath, top: &NodePath) -> Result<Option<VolumeInfo>, WriteError> {
        let volumes = self.volumes(top).await.map_err(|error| not_sent(error, path))?;
        let around = volumes.into_iter().filter(|volume| volume.path.contains(path));
        Ok(around.max_by(|one, other| one.path.cmp(&other.path)))
    }
}

/// The error of a write that was not sent, because the present settings could not be read.
fn not_sent(error: InspectError, path: &NodePath) -> WriteError {
    let path = Some(path.clone());
    match error {
        InspectError::Path(error) => WriteError::Path(error),
        InspectError::LeaseName(error) => WriteError::LeaseName(error),
        InspectError::Refused(refusal) => WriteError::Refused(refusal),
        InspectError::Unavailable { after, source } => WriteError::Unavailable { path, after, source },
        InspectError::TimedOut { after } => WriteError::NotSent { path, after },
        InspectError::UnexpectedAnswer => WriteError::NotSent { path, after: Duration::ZERO },
        InspectError::Closed => WriteError::SessionEnded { path },
    }
}

fn refused(error: VolumeError) -> WriteError {
    WriteError::Refused(error.into())
}
