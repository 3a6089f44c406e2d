//! Advice on the terms of a volume.

use leasehold_protocol::{
    advice::{VolumeAdvice, advise},
    path::{NodePath, PathError},
};

use super::Admin;
use crate::{clock, error::InspectError};

impl Admin<'_> {
    /// Advises on the object term of a volume: the messages that a formula predicts for several
    /// terms, from what the leader has counted, and the term to use. `None` if the node is not the
    /// top of a volume. The round trip in it is that of this call.
    ///
    /// A prediction needs [`COUNTED_MIN`](crate::advice::COUNTED_MIN) of counting and
    /// [`READS_MIN`](crate::advice::READS_MIN) reads, since the leader became leader and since the
    /// volume's settings last changed. Without them, the answer says so.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// if let Some(advice) = client.admin().advise("/services").await? {
    ///     println!("{} reads and {} writes a second", advice.workload.reads, advice.workload.writes);
    ///     for prediction in advice.predictions.unwrap_or_default() {
    ///         println!("{}: {} messages a second", prediction.term, prediction.messages());
    ///     }
    ///     println!("{:?}", advice.recommendation);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn advise(
        self,
        path: impl TryInto<NodePath, Error: Into<PathError>>,
    ) -> Result<Option<VolumeAdvice>, InspectError> {
        let asked_at = clock::now();
        let stats = self.volume_stats(path).await?;
        let round_trip = clock::now().since(asked_at);
        let drift = self.client.driver().options.drift;
        Ok(stats.map(|stats| advise(&stats, round_trip, drift)))
    }
}
