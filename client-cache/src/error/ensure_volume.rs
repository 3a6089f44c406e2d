//! The error of [`Admin::ensure_volume`](crate::Admin::ensure_volume). It names the settings that
//! differ.

use leasehold_protocol::{
    path::NodePath,
    volume::{VolumeSettings, VolumeTerm},
};

use super::WriteError;

/// Why a volume was not ensured.
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_client_cache::EnsureVolumeError;
///
/// match client.admin().ensure_volume("/services").quota_nodes(1_000).await {
///     Err(EnsureVolumeError::Differs { got, .. }) => println!("its quota is {:?}", got.quota()),
///     result => drop(result?),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnsureVolumeError {
    /// The volume exists with other settings. Nothing was changed.
    #[error("{path}: a volume with other settings: {}", differences(expected, got))]
    Differs {
        /// The top of the volume.
        path: NodePath,
        /// The settings of the call.
        expected: Box<VolumeSettings>,
        /// The settings of the volume.
        got: Box<VolumeSettings>,
    },
    /// The volume could not be looked up or made.
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// The settings that differ, by the names of the builder's methods.
fn differences(expected: &VolumeSettings, got: &VolumeSettings) -> String {
    let pairs = rows(expected).into_iter().zip(rows(got));
    let differing = pairs.filter(|(expected, got)| expected != got);
    let texts = differing.map(|((name, expected), (_, got))| format!("{name} is {got}, expected {expected}"));
    texts.collect::<Vec<_>>().join("; ")
}

fn rows(settings: &VolumeSettings) -> [(&'static str, String); 9] {
    fn limit(most: Option<impl ToString>) -> String {
        most.map_or_else(|| "none".to_owned(), |most| most.to_string())
    }
    let term = match settings.term() {
        VolumeTerm::Fixed(term) => format!("{term:?}"),
        adaptive @ VolumeTerm::Adaptive { .. } => format!("{adaptive:?}"),
    };
    [
        ("term", term),
        ("object_term", settings.object_term().to_string()),
        ("skew_margin", format!("{:?}", settings.skew_margin())),
        ("tracking", format!("{:?}", settings.tracking())),
        ("on_write", format!("{:?}", settings.on_write())),
        ("grants", format!("{:?}", settings.grants())),
        ("lease_limit", limit(settings.lease_limit())),
        ("quota_nodes", limit(settings.quota().nodes)),
        ("quota_bytes", limit(settings.quota().bytes)),
    ]
}
