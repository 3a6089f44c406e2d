//! Volumes: subtrees with lease settings of their own.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use leasehold_client_cache::Client;
use leasehold_protocol::{
    command::WriteRefusal,
    message::VolumeInfo,
    path::NodePath,
    time::DriftAllowance,
    volume::{Tracking, VolumeSettings},
};
use serde::Serialize;

use super::{boxed, waits};
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
    /// Term of a volume lease: how long a write may wait for a client that died [new volumes: 10s]
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    term: Option<Duration>,
    /// Term of an object lease [new volumes: 1h]
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    object_term: Option<Duration>,
    /// How long the server waits beyond a term; more than clocks can drift apart in it [new
    /// volumes: 100ms]
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    skew_margin: Option<Duration>,
    /// Whether the server tracks the objects that a session caches, or assumes all [new volumes:
    /// objects]
    #[arg(long)]
    tracking: Option<TrackingName>,
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
    term_ms: u64,
    object_term_ms: u64,
    skew_margin_ms: u64,
    tracking: TrackingName,
    generation: u64,
    leases: u64,
    #[serde(skip)]
    settings: VolumeSettings,
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
    let mut table = Table::new(&["PATH", "TERM", "OBJECT TERM", "SKEW MARGIN", "TRACKING", "GENERATION", "LEASES"]);
    for volume in volumes {
        let tracking = match volume.tracking {
            TrackingName::Objects => "objects",
            TrackingName::Covering => "covering",
        };
        table.row([
            visible(volume.path.as_str()),
            duration::exact(volume.settings.term()),
            duration::exact(volume.settings.object_term()),
            duration::exact(volume.settings.skew_margin()),
            tracking.to_owned(),
            volume.generation.to_string(),
            volume.leases.to_string(),
        ]);
    }
    table
}

impl From<VolumeInfo> for VolumeAnswer {
    fn from(info: VolumeInfo) -> Self {
        let VolumeInfo { path, settings, generation, leases } = info;
        Self {
            path,
            term_ms: duration::millis(settings.term()),
            object_term_ms: duration::millis(settings.object_term()),
            skew_margin_ms: duration::millis(settings.skew_margin()),
            tracking: match settings.tracking() {
                Tracking::Objects => TrackingName::Objects,
                Tracking::Covering => TrackingName::Covering,
            },
            generation: generation.0,
            leases,
            settings,
        }
    }
}

impl VolumeCommand {
    /// The path of the volume, or the topmost node of the list.
    pub(super) fn path(&self) -> &NodePath {
        match self {
            Self::Create(VolumeChangeArgs { path, .. }) | Self::Set(VolumeChangeArgs { path, .. }) => path,
            Self::Show(VolumeArgs { path }) | Self::Remove(VolumeArgs { path }) => path,
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
                let set = client.admin().set_volume(&change.path, settings);
                let written = waits::write(context, &[&change.path], set).await?;
                boxed(Ok(ChangeAnswer { path: change.path, revision: written.revision.0 }))
            }
            Self::Remove(VolumeArgs { path }) => {
                let written = waits::write(context, &[&path], client.admin().remove_volume(&path)).await?;
                boxed(Ok(ChangeAnswer { path, revision: written.revision.0 }))
            }
            Self::Show(VolumeArgs { path }) => boxed(show(client, &path).await.map(VolumeAnswer::from)),
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
    if let Some(volume) = volumes.into_iter().find(|volume| volume.path == *path) {
        return Ok(volume);
    }
    // The same error as the server's for a change of a node that is no volume.
    let all = client.admin().volumes(&NodePath::root()).await.map_err(|error| inspect_failure(&error))?;
    let above = all.into_iter().map(|volume| volume.path).filter(|volume| volume.contains(path)).max();
    let volume = above.unwrap_or_else(NodePath::root);
    Err(CommandFailure::from_refusal(&WriteRefusal::NotAVolume { path: path.clone(), volume }.into()))
}

impl VolumeChangeArgs {
    /// `base` with the given settings. The drift allowance is that of the server, which checks it.
    fn settings(&self, base: &VolumeSettings) -> Result<VolumeSettings, CommandFailure> {
        let tracking = self.tracking.map_or(base.tracking(), |tracking| match tracking {
            TrackingName::Objects => Tracking::Objects,
            TrackingName::Covering => Tracking::Covering,
        });
        let none = DriftAllowance::from_ppm(0).unwrap_or(DriftAllowance::DEFAULT);
        let settings = VolumeSettings::new(
            self.term.unwrap_or(base.term()),
            self.object_term.unwrap_or(base.object_term()),
            self.skew_margin.unwrap_or(base.skew_margin()),
            tracking,
            none,
        );
        settings.map_err(|error| CommandFailure::from_refusal(&error.into()))
    }
}
