//! Writes of nodes that clients have cached: the cost of recalling all copies.

use std::time::Instant;

use futures::future::try_join_all;

use super::{
    Bench, close,
    load::{Load, histogram, nanos},
    result::BenchRow,
    server::value,
};
use crate::{
    commands::{read_failure, write_failure},
    exit::CommandFailure,
};

impl Bench {
    /// One write at a time of a node that these clients have just read.
    pub(super) async fn holders(&self) -> Result<Vec<BenchRow>, CommandFailure> {
        let path = self.node("holders", 0);
        let writer = self.client("writer").await?;
        let mut rows = Vec::new();
        for &count in &self.args.holders {
            let holders = self.clients("holder", count).await?;
            let mut latency = histogram();
            let began = Instant::now();
            while began.elapsed() < self.seconds() {
                // All have copies again before the next write begins. This time is not counted.
                try_join_all(holders.iter().map(|holder| holder.get(&path).into_future()))
                    .await
                    .map_err(|error| read_failure(&error))?;
                let begin = Instant::now();
                writer.put(&path, value(latency.len())).await.map_err(|error| write_failure(&error))?;
                latency.saturating_record(nanos(begin.elapsed()));
                self.meter.say(|| format!("writes with {count} holders: {}", latency.len()));
            }
            let load = Load { count: latency.len(), elapsed: began.elapsed(), latency };
            // Omits the rate, which includes the repeated reads.
            rows.push(load.row_of_latencies("write, held by clients", vec![("holders", count as u64)]));
            close(holders).await;
        }
        close(vec![writer]).await;
        Ok(rows)
    }
}
