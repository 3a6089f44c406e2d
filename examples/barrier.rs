//! Barriers: no worker begins a step before all have ended the step before. Three workers add up
//! numbers step by step, each its own part.
//!
//! Run it with `cargo run --example barrier`. It starts a server in this process, with its data in
//! a temporary folder, and a client for each worker.
//!
//! A barrier opens at one moment, when enough parties wait at it and the log has ended none of
//! their leases. A double barrier closes when all parties have left or their leases have ended.
//!
//! A barrier promises nothing about what a worker does after it, so it has no fencing token. Here
//! each written node has the number of its step in its path, and no worker reads another step's
//! nodes. `BarrierGuard::round` grows from step to step and could be used instead.

mod local;

use leasehold_client_cache::Client;
use local::{Failure, LocalServer};
use tokio::task::JoinSet;

const WORKERS: u32 = 3;
const STEPS: u32 = 4;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let server = LocalServer::start().await?;
    let mut workers = JoinSet::new();
    for number in 0..WORKERS {
        let client = server.client(&format!("worker {number}")).await?;
        workers.spawn(async move { work(&client, number).await });
    }
    while let Some(sum) = workers.join_next().await {
        println!("a worker has {} in the end", sum??);
    }
    server.stop().await?;
    Ok(())
}

/// In each step each worker writes a number, then reads the sum of all.
async fn work(client: &Client, number: u32) -> Result<u32, Failure> {
    client.barrier("/sums/all-are-there", WORKERS).wait().await?;
    let barrier = client.double_barrier("/sums/step", WORKERS);
    let part = |step: u32, number: u32| format!("/sums/{step}/{number}");
    let mut own = number + 1;
    for step in 0..STEPS {
        client.put(part(step, number), own.to_string()).await?;
        // From here on all workers have written.
        let inside = barrier.enter().await?;
        let mut sum = 0;
        for other in 0..WORKERS {
            let entry = client.get(part(step, other)).await?.ok_or("it was written before the barrier opened")?;
            sum += std::str::from_utf8(&entry.value)?.parse::<u32>()?;
        }
        println!("step {step}, round {}: worker {number} had {own}, the sum is {sum}", inside.round());
        own = sum + number;
        // From here on all workers have read.
        inside.leave().await?;
    }
    client.close().await;
    Ok(own)
}

#[cfg(test)]
#[test]
fn it_runs() {
    main().expect("it ends well");
}
