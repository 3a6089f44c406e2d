//! Key leases, granted and revoked.

use std::time::Duration;

use crate::{Bench, close, closed_loop::Until, error::LoadError, result::BenchRow};

/// Long enough that no lease expires.
const TERM: Duration = Duration::from_secs(3600);

impl Bench<'_> {
    /// Pairs of a grant and its revocation. Both are durable writes.
    pub async fn leases(&self) -> Result<Vec<BenchRow>, LoadError> {
        let mut rows = Vec::new();
        for &inflight in &self.options.inflight {
            let clients = self.clients("leases", inflight.min(self.options.clients)).await?;
            let shared = clients.clone();
            let op = move |worker: usize, _| {
                let client = shared[worker % shared.len()].clone();
                async move {
                    let lease = client.grant_lease(TERM).await?;
                    Ok(client.revoke_lease(lease).await.map(drop)?)
                }
            };
            let what = format!("leases, {inflight} in flight");
            let load = self.closed_loop(&what, inflight, Until::Elapsed(self.options.span), op).await?;
            rows.push(load.row("lease grant and revoke, pairs", vec![("inflight", inflight as u64)]));
            close(clients).await;
        }
        Ok(rows)
    }
}
