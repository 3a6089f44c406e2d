//! A semaphore: eight workers share three licences. Then a program dies with all permits, and they
//! become free when its lease ends.
//!
//! Run it with `cargo run --example semaphore`. It starts a server in this process, with its data
//! in a temporary folder, and a client for each worker.
//!
//! - At most three clients have a permit, each while it has time `remaining` by its own clock.
//!   Permits are granted in the order of arrival.
//! - A request may arrive after its permit ended. Only the fencing token stops it. Permits overlap,
//!   so the order of tokens is not enough: the transaction here checks that the token is still
//!   valid.

mod local;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use leasehold_client_cache::{Client, Compare, NodePath, Operation, Options, Token, Transaction, recipes::Permit};
use local::{Failure, LocalServer};
use tokio::{runtime::Runtime, task::JoinSet};

const PERMITS: u32 = 3;
const WORKERS: usize = 8;
const TURNS: u32 = 4;
/// How long a permit outlives a crash. All other settings are the defaults.
const TERM: Duration = Duration::from_secs(4);

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let server = LocalServer::start().await?;
    let path: NodePath = "/licences".parse()?;
    let operator = server.client("operator").await?;
    operator.admin().create_volume(&path).term(TERM).await?;

    let (busy, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut workers = JoinSet::new();
    for number in 0..WORKERS {
        let licences = server.client(&format!("worker {number}")).await?.semaphore(&path, PERMITS);
        let (busy, most) = (Arc::clone(&busy), Arc::clone(&most));
        workers.spawn(async move {
            for _ in 0..TURNS {
                let permit = licences.acquire().await?;
                most.fetch_max(busy.fetch_add(1, SeqCst) + 1, SeqCst);
                tokio::task::yield_now().await;
                busy.fetch_sub(1, SeqCst);
                permit.release().await?;
            }
            Ok::<_, leasehold_client_cache::recipes::RecipeError>(())
        });
    }
    while let Some(done) = workers.join_next().await {
        done??;
    }
    println!("{WORKERS} workers had {TURNS} turns each, at most {} of them at a time", most.load(SeqCst));
    assert!(most.load(SeqCst) <= PERMITS);

    let (endpoint, at) = (server.endpoint(), path.clone());
    let old = tokio::task::spawn_blocking(move || take_all_and_die(endpoint, &at)).await??;
    assert!(operator.semaphore(&path, PERMITS).try_acquire().await?.is_none(), "none is left");
    let died = Instant::now();
    let permit = operator.semaphore(&path, PERMITS).acquire().await?;
    println!(
        "{:.1} s after the program died, a permit is free: token {}",
        died.elapsed().as_secs_f64(),
        permit.token()
    );
    let work: NodePath = "/work".parse()?;
    let write = |token| {
        let put = Operation::put(work.clone(), "done");
        Transaction::new().when(Compare::locked(path.clone(), token)).then(put)
    };
    assert!(operator.transaction(write(permit.token())).await?.succeeded(), "the token is valid");
    assert!(!operator.transaction(write(old)).await?.succeeded(), "a late request with an old token");

    permit.release().await?;
    operator.close().await;
    server.stop().await?;
    Ok(())
}

/// A program that acquires all permits and then stops all its tasks at once, as in a crash. Returns
/// one of its tokens.
fn take_all_and_die(endpoint: String, path: &NodePath) -> Result<Token, Failure> {
    let program = Runtime::new()?;
    let permits: Vec<Permit> = program.block_on(async {
        let client = Client::connect(Options::new([endpoint]).name("dying")).await?;
        let licences = client.semaphore(path, PERMITS);
        let mut permits = Vec::new();
        for _ in 0..PERMITS {
            permits.push(licences.acquire().await?);
        }
        Ok::<_, Failure>(permits)
    })?;
    program.shutdown_background();
    Ok(permits[0].token())
}

#[cfg(test)]
#[test]
fn it_runs() {
    main().expect("it ends well");
}
