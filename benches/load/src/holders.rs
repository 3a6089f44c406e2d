//! Writes of nodes that clients have cached: the cost of recalling all copies.

use std::time::Instant;

use futures::future::try_join_all;

use crate::{
    Bench, close,
    closed_loop::{Load, histogram, nanos},
    error::LoadError,
    result::BenchRow,
    server::value,
};

impl Bench<'_> {
    /// One write at a time of a node that other clients have just read.
    pub async fn holders(&self) -> Result<Vec<BenchRow>, LoadError> {
        let path = self.node("holders", 0);
        let writer = self.client("writer").await?;
        let mut rows = Vec::new();
        for &count in &self.options.holders {
            let holders = self.clients("holder", count).await?;
            let mut latency = histogram();
            let began = Instant::now();
            while began.elapsed() < self.options.span {
                // All have copies again before the next write begins. This time is not counted.
                try_join_all(holders.iter().map(|holder| holder.get(&path).into_future())).await?;
                let begin = Instant::now();
                writer.put(&path, value(latency.len())).await?;
                latency.saturating_record(nanos(begin.elapsed()));
                self.say(format_args!("writes with {count} holders: {}", latency.len()));
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
