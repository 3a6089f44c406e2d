//! Key leases, granted and revoked.

use std::time::Duration;

use super::{Bench, close, load::Until, result::BenchRow};
use crate::{commands::write_failure, exit::CommandFailure};

/// Long enough that no lease expires.
const TERM: Duration = Duration::from_secs(3600);

impl Bench {
    /// Pairs of a grant and its revocation. Both are durable writes.
    pub(super) async fn leases(&self) -> Result<Vec<BenchRow>, CommandFailure> {
        let mut rows = Vec::new();
        for &inflight in &self.args.inflight {
            let clients = self.clients("leases", inflight.min(self.args.clients)).await?;
            let shared = clients.clone();
            let op = move |worker: usize, _| {
                let client = shared[worker % shared.len()].clone();
                async move {
                    let lease = client.grant_lease(TERM).await;
                    let lease = lease.map_err(|error| write_failure(&error))?;
                    client.revoke_lease(lease).await.map(drop).map_err(|error| write_failure(&error))
                }
            };
            let what = format!("leases, {inflight} in flight");
            let load = self.meter.run(&what, inflight, Until::Elapsed(self.seconds()), op).await?;
            rows.push(load.row("lease grant and revoke, pairs", vec![("inflight", inflight as u64)]));
            close(clients).await;
        }
        Ok(rows)
    }
}
