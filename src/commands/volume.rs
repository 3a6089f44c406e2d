//! Volumes: subtrees with lease settings of their own.

mod stats;

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use leasehold_client_cache::Client;
use leasehold_protocol::{
    command::WriteRefusal,
    lease_policy::{GrantPolicy, ObjectTerm, OnWrite},
    message::VolumeInfo,
    path::NodePath,
    time::DriftAllowance,
    volume::{Tracking, VolumeSettings, VolumeTerm},
};
use serde::Serialize;

use self::stats::VolumeStatsAnswer;
use super::{
    boxed, object_term,
    quota::{self, LeaseLimit},
    volume_term, waits,
};
use crate::{
    arguments,
    context::Context,
    duration,
    exit::CommandFailure,
    failure::inspect_failure,
    output::{CommandAnswer, Table, Text, visible},
};

/// `volume …`
#[derive(Debug, Subcommand)]
pub(crate) enum VolumeCommand {
    /// Make a subtree a volume; its topmost node is created if it does not exist
    Create(VolumeChangeArgs),
    /// Change a volume's settings; omitted ones stay as they are
    Set(VolumeChangeArgs),
    /// Show one volume
    Show(VolumeArgs),
    /// Show the present leases on a volume, and its leader's counters
    ///
    /// The leader counts reads, renewals, recalls, consents and the waits of writes. It counts in
    /// memory, from when it became leader, or from when the volume was created or its settings last
    /// changed. A new leader counts from zero. Clients report the reads that they answer from
    /// memory some time later.
    Stats(VolumeArgs),
    /// List the volumes at and below a node
    List(VolumeListArgs),
    /// Merge the subtree into the volume above; its nodes stay
    Remove(VolumeArgs),
}

/// A volume and its settings.
#[derive(Debug, Args)]
pub(crate) struct VolumeChangeArgs {
    /// Topmost node of the volume
    #[arg(value_parser = arguments::path)]
    path: NodePath,
    /// Term of a volume lease. A write may wait as long for a client that died. A duration, or
    /// adaptive:LEAST:MOST:RENEWALS_PER_SECOND, which is longer with more leases [new volumes: 10s]
    #[arg(long, value_name = "TERM", value_parser = volume_term::parse)]
    term: Option<VolumeTerm>,
    /// Term of an object lease. A duration; 0, so that each read asks a server; infinite;
    /// adaptive:PERCENT:LEAST:MOST, a share of the time since the last change; or
    /// by-use:LEAST:MOST, which follows the reads and writes [new volumes: 1h]
    #[arg(long, value_name = "TERM", value_parser = object_term::parse)]
    object_term: Option<ObjectTerm>,
    /// How long the leader waits after a term. Must exceed what two clocks can drift apart in a
    /// term and a tick. If only the term changes, the margin changes in proportion [new volumes:
    /// 1 % of the term]
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    skew_margin: Option<Duration>,
    /// Whether the leader tracks the objects that each session caches, or assumes that a session
    /// caches all objects [new volumes: objects]
    #[arg(long)]
    tracking: Option<TrackingName>,
    /// What a write does about the object leases of others [new volumes: recall]
    #[arg(long)]
    on_write: Option<OnWriteName>,
    /// Which reads get an object lease [new volumes: all]
    #[arg(long)]
    grants: Option<GrantsName>,
    /// With --grants returning: the term of a client's first lease on an object [unless set: 200ms]
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    first_term: Option<Duration>,
    /// The most object leases of all clients together, or none: beyond it, the leader recalls those
    /// that end first [new volumes: none]
    #[arg(long, value_name = "N", value_parser = quota::leases)]
    lease_limit: Option<LeaseLimit>,
    /// The most nodes, or none: beyond it, writes are refused [new volumes: none]
    #[arg(long, value_name = "N", value_parser = quota::count)]
    quota_nodes: Option<quota::QuotaLimit>,
    /// The most bytes of paths and values, such as 64MiB, or none [new volumes: none]
    #[arg(long, value_name = "SIZE", value_parser = quota::size)]
    quota_bytes: Option<quota::QuotaLimit>,
}

/// A volume.
#[derive(Debug, Args)]
pub(crate) struct VolumeArgs {
    /// Topmost node of the volume
    #[arg(value_parser = arguments::path)]
    path: NodePath,
}

/// Where to look for volumes.
#[derive(Debug, Args)]
pub(crate) struct VolumeListArgs {
    /// Topmost node
    #[arg(value_parser = arguments::path, default_value = "/")]
    path: NodePath,
}

/// [`Tracking`] on the command line.
#[derive(Debug, Clone, Copy, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum TrackingName {
    /// Track each object lease
    Objects,
    /// Track none: assume that every session with a lease on the volume holds all its objects
    Covering,
}

/// [`OnWrite`] on the command line.
#[derive(Debug, Clone, Copy, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
enum OnWriteName {
    /// Recall the leases, and go on when the holders have consented
    Recall,
    /// Send nothing, and wait until the leases have ended
    Wait,
    /// Recall, and give holders that read their copy the new value with a new lease
    Update,
}

/// [`GrantPolicy`] on the command line.
#[derive(Debug, Clone, Copy, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
enum GrantsName {
    /// All reads
    All,
    /// Reads that ask for one
    OnRequest,
    /// All reads; a client's first lease on an object is short
    Returning,
}

/// A change of a volume that took effect.
#[derive(Debug, Serialize)]
struct ChangeAnswer {
    path: NodePath,
    revision: u64,
}

impl Text for ChangeAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("revision {}\n", self.revision).as_bytes());
    }
}

/// The settings and state of a volume.
#[derive(Debug, Serialize)]
struct VolumeAnswer {
    path: NodePath,
    /// As `--term` reads it.
    term: String,
    /// The present term of a volume lease.
    term_ms: u64,
    /// As `--object-term` reads it.
    object_term: String,
    /// The longest term of an object lease; null if it is infinite. If the term follows the use,
    /// the present term, and 0 if there are no object leases at present.
    object_term_ms: Option<u64>,
    skew_margin_ms: u64,
    tracking: TrackingName,
    on_write: OnWriteName,
    grants: GrantsName,
    /// The term of a first lease; null unless `grants` is `returning`.
    first_term_ms: Option<u64>,
    /// The most object leases; null if there is no limit.
    lease_limit: Option<u32>,
    generation: u64,
    leases: u64,
    nodes: u64,
    /// The bytes of the paths and values.
    bytes: u64,
    /// Null if there is no limit.
    quota_nodes: Option<u64>,
    quota_bytes: Option<u64>,
    #[serde(skip)]
    settings: VolumeSettings,
    #[serde(skip)]
    present_object_term: ObjectTerm,
}

impl Text for VolumeAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        table([self]).write(out);
    }
}

#[derive(Debug, Serialize)]
struct VolumeListAnswer {
    volumes: Vec<VolumeAnswer>,
}

impl Text for VolumeListAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        table(&self.volumes).write(out);
    }
}

fn table<'a>(volumes: impl IntoIterator<Item = &'a VolumeAnswer>) -> Table {
    let mut table = Table::new(&[
        "PATH",
        "TERM",
        "OBJECT TERM",
        "SKEW MARGIN",
        "TRACKING",
        "ON WRITE",
        "GRANTS",
        "GENERATION",
        "LEASES",
        "NODES",
        "BYTES",
    ]);
    for volume in volumes {
        let on_write = match volume.on_write {
            OnWriteName::Recall => "recall",
            OnWriteName::Wait => "wait",
            OnWriteName::Update => "update",
        };
        let grants = match volume.settings.grants() {
            GrantPolicy::All => "all".to_owned(),
            GrantPolicy::OnRequest => "on-request".to_owned(),
            GrantPolicy::Returning { first } => format!("returning:{}", duration::exact(first)),
        };
        let tracking = match volume.tracking {
            TrackingName::Objects => "objects",
            TrackingName::Covering => "covering",
        };
        let tracking = volume.lease_limit.map_or(tracking.to_owned(), |most| format!("{tracking} (at most {most})"));
        table.row([
            visible(volume.path.as_str()),
            match volume.settings.term() {
                VolumeTerm::Fixed(_) => volume.term.clone(),
                VolumeTerm::Adaptive { .. } => {
                    let now = volume.settings.term().for_leases(volume.leases);
                    format!("{} (now {})", volume.term, duration::duration_text(now))
                }
            },
            object_term::with_present(volume.settings.object_term(), volume.present_object_term),
            duration::exact(volume.settings.skew_margin()),
            tracking,
            on_write.to_owned(),
            grants,
            volume.generation.to_string(),
            volume.leases.to_string(),
            quota::text(volume.nodes, volume.quota_nodes),
            quota::text(volume.bytes, volume.quota_bytes),
        ]);
    }
    table
}

impl From<VolumeInfo> for VolumeAnswer {
    fn from(info: VolumeInfo) -> Self {
        let VolumeInfo { path, settings, generation, leases, present_object_term, used } = info;
        let (grants, first) = match settings.grants() {
            GrantPolicy::All => (GrantsName::All, None),
            GrantPolicy::OnRequest => (GrantsName::OnRequest, None),
            GrantPolicy::Returning { first } => (GrantsName::Returning, Some(first)),
        };
        Self {
            path,
            term: volume_term::text(settings.term()),
            term_ms: duration::millis(settings.term().for_leases(leases)),
            object_term: object_term::text(settings.object_term()),
            object_term_ms: object_term::millis(present_object_term),
            skew_margin_ms: duration::millis(settings.skew_margin()),
            tracking: match settings.tracking() {
                Tracking::Objects => TrackingName::Objects,
                Tracking::Covering => TrackingName::Covering,
            },
            on_write: match settings.on_write() {
                OnWrite::Recall => OnWriteName::Recall,
                OnWrite::Wait => OnWriteName::Wait,
                OnWrite::Update => OnWriteName::Update,
            },
            grants,
            first_term_ms: first.map(duration::millis),
            lease_limit: settings.lease_limit(),
            generation: generation.0,
            leases,
            nodes: used.nodes,
            bytes: used.bytes,
            quota_nodes: settings.quota().nodes,
            quota_bytes: settings.quota().bytes,
            settings,
            present_object_term,
        }
    }
}

impl VolumeCommand {
    /// The path of the volume, or the topmost node of the list.
    pub(super) fn path(&self) -> &NodePath {
        match self {
            Self::Create(VolumeChangeArgs { path, .. }) | Self::Set(VolumeChangeArgs { path, .. }) => path,
            Self::Show(VolumeArgs { path }) | Self::Stats(VolumeArgs { path }) | Self::Remove(VolumeArgs { path }) => {
                path
            }
            Self::List(VolumeListArgs { path }) => path,
        }
    }

    pub(super) async fn run(self, context: &Context) -> Result<Box<dyn CommandAnswer>, CommandFailure> {
        let client = context.client().await?;
        match self {
            Self::Create(change) => {
                let settings = change.settings(&VolumeSettings::DEFAULT)?;
                let create = client.admin().create_volume(&change.path).settings(settings);
                let written = waits::write(context, &[&change.path], create).await?;
                boxed(Ok(ChangeAnswer { path: change.path, revision: written.revision.0 }))
            }
            Self::Set(change) => {
                let current = show(client, &change.path).await?;
                let settings = change.settings(&current.settings)?;
                let set = client.admin().set_volume(&change.path).settings(settings);
                let written = waits::write(context, &[&change.path], set).await?;
                boxed(Ok(ChangeAnswer { path: change.path, revision: written.revision.0 }))
            }
            Self::Remove(VolumeArgs { path }) => {
                let written = waits::write(context, &[&path], client.admin().remove_volume(&path)).await?;
                boxed(Ok(ChangeAnswer { path, revision: written.revision.0 }))
            }
            Self::Show(VolumeArgs { path }) => boxed(show(client, &path).await.map(VolumeAnswer::from)),
            Self::Stats(VolumeArgs { path }) => {
                let stats = client.admin().volume_stats(&path).await.map_err(|error| inspect_failure(&error))?;
                match stats {
                    Some(stats) => boxed(Ok(VolumeStatsAnswer::from(stats))),
                    None => Err(not_a_volume(client, &path).await),
                }
            }
            Self::List(VolumeListArgs { path }) => {
                let volumes = client.admin().volumes(&path).await.map_err(|error| inspect_failure(&error))?;
                boxed(Ok(VolumeListAnswer { volumes: volumes.into_iter().map(VolumeAnswer::from).collect() }))
            }
        }
    }
}

/// The volume with this topmost node.
async fn show(client: &Client, path: &NodePath) -> Result<VolumeInfo, CommandFailure> {
    let volumes = client.admin().volumes(path).await.map_err(|error| inspect_failure(&error))?;
    match volumes.into_iter().find(|volume| volume.path == *path) {
        Some(volume) => Ok(volume),
        None => Err(not_a_volume(client, path).await),
    }
}

/// The same error as the server's for a change of a node that is no volume.
pub(super) async fn not_a_volume(client: &Client, path: &NodePath) -> CommandFailure {
    let all = match client.admin().volumes(&NodePath::root()).await {
        Ok(all) => all,
        Err(error) => return inspect_failure(&error),
    };
    let above = all.into_iter().map(|volume| volume.path).filter(|volume| volume.contains(path)).max();
    let volume = above.unwrap_or_else(NodePath::root);
    CommandFailure::from_refusal(&WriteRefusal::NotAVolume { path: path.clone(), volume }.into())
}

impl VolumeChangeArgs {
    /// `base` with the given settings. The drift allowance is that of the server, which checks it.
    fn settings(&self, base: &VolumeSettings) -> Result<VolumeSettings, CommandFailure> {
        let tracking = self.tracking.map_or(base.tracking(), |tracking| match tracking {
            TrackingName::Objects => Tracking::Objects,
            TrackingName::Covering => Tracking::Covering,
        });
        let none = DriftAllowance::from_ppm(0).unwrap_or(DriftAllowance::DEFAULT);
        let on_write = self.on_write.map_or(base.on_write(), |on_write| match on_write {
            OnWriteName::Recall => OnWrite::Recall,
            OnWriteName::Wait => OnWrite::Wait,
            OnWriteName::Update => OnWrite::Update,
        });
        let grants = self.grants(base.grants())?;
        let term = self.term.unwrap_or(base.term());
        let margin = self.skew_margin.unwrap_or_else(|| volume_term::margin(base, term));
        // The policy is checked against the volume term, so these belong together.
        let settings = VolumeSettings::new(term, ObjectTerm::Zero, margin, tracking, none).and_then(|settings| {
            settings.with_policy(self.object_term.unwrap_or(base.object_term()), on_write, grants)
        });
        let lease_limit = self.lease_limit.map_or(base.lease_limit(), |LeaseLimit(limit)| limit);
        let quota = quota::changed(base.quota(), self.quota_nodes, self.quota_bytes);
        let settings = settings.map_err(|error| CommandFailure::from_refusal(&error.into()))?;
        Ok(settings.with_lease_limit(lease_limit).with_quota(quota))
    }

    fn grants(&self, base: GrantPolicy) -> Result<GrantPolicy, CommandFailure> {
        let first = match base {
            GrantPolicy::Returning { first } => first,
            GrantPolicy::All | GrantPolicy::OnRequest => VolumeSettings::TERM_MIN,
        };
        let returning = GrantPolicy::Returning { first: self.first_term.unwrap_or(first) };
        let grants = match self.grants {
            None if matches!(base, GrantPolicy::Returning { .. }) => returning,
            None => base,
            Some(GrantsName::All) => GrantPolicy::All,
            Some(GrantsName::OnRequest) => GrantPolicy::OnRequest,
            Some(GrantsName::Returning) => returning,
        };
        if self.first_term.is_some() && grants != returning {
            return Err(CommandFailure::usage("--first-term: only with --grants returning"));
        }
        Ok(grants)
    }
}
