//! Steps that nobody begins before all have ended the one before: three workers add up numbers,
//! each its own part, step by step.
//!
//! `cargo run --example barrier` starts a server in this process, with its data in a temporary
//! folder, and a client for each worker.
//!
//! What a barrier promises: at the moment at which it opens, so many stand there, and none of them
//! is known to be gone; a double barrier closes when all have left, by themselves or with their
//! leases. It promises nothing of what they do afterwards, so there is no token: what is written in
//! a step carries its number here (`BarrierGuard::round` grows too), and nobody reads another
//! step's.

use leasehold_client_cache::{Client, NodePath, Options};
use leasehold_server::{Server, ServerConfig};
use tokio::task::JoinSet;

const WORKERS: u32 = 3;
const STEPS: u32 = 4;

type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let config =
        ServerConfig { data: folder.path().join("data"), listen: "127.0.0.1:0".to_owned(), ..ServerConfig::default() };
    let server = Server::start(config).await?;
    let mut workers = JoinSet::new();
    for number in 0..WORKERS {
        let options = Options::new([server.address().to_string()]).name(format!("worker {number}"));
        workers.spawn(async move { work(&Client::connect(options).await?, number).await });
    }
    while let Some(sum) = workers.join_next().await {
        println!("a worker has {} in the end", sum??);
    }
    server.stop().await?;
    Ok(())
}

/// In each step everybody writes a number, and then reads the sum of all.
async fn work(client: &Client, number: u32) -> Result<u32, Failure> {
    client.barrier(&"/sums/all-are-there".parse()?, WORKERS).wait().await?;
    let barrier = client.double_barrier(&"/sums/step".parse()?, WORKERS);
    let part = |step: u32, number: u32| format!("/sums/{step}/{number}").parse::<NodePath>();
    let mut own = number + 1;
    for step in 0..STEPS {
        client.put(&part(step, number)?, own.to_string()).await?;
        // From here on everybody has written.
        let inside = barrier.enter().await?;
        let mut sum = 0;
        for other in 0..WORKERS {
            let entry = client.get(&part(step, other)?).await?.ok_or("it was written before the barrier opened")?;
            sum += std::str::from_utf8(&entry.value)?.parse::<u32>()?;
        }
        println!("step {step}, round {}: worker {number} had {own}, the sum is {sum}", inside.round());
        own = sum + number;
        // From here on everybody has read.
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
