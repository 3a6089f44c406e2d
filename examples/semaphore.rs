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

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use leasehold_client_cache::{
    Client, Compare, DriftAllowance, NodePath, Operation, Options, Permit, Token, Transaction, VolumeError,
    VolumeSettings,
};
use leasehold_server::{Server, ServerConfig};
use tokio::{runtime::Runtime, task::JoinSet};

const PERMITS: u32 = 3;
const WORKERS: usize = 8;
const TURNS: u32 = 4;
/// How long a permit outlives a crash. All other settings are the defaults.
const TERM: Duration = Duration::from_secs(4);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let config =
        ServerConfig { data: folder.path().join("data"), listen: "127.0.0.1:0".to_owned(), ..ServerConfig::default() };
    let server = Server::start(config).await?;
    let connect = |name: String| Client::connect(Options::new([server.address().to_string()]).name(name));
    let path: NodePath = "/licences".parse()?;
    let operator = connect("operator".to_owned()).await?;
    operator.create_volume(&path, settings()?).await?;

    let (busy, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let mut workers = JoinSet::new();
    for number in 0..WORKERS {
        let licences = connect(format!("worker {number}")).await?.semaphore(&path, PERMITS);
        let (busy, most) = (Arc::clone(&busy), Arc::clone(&most));
        workers.spawn(async move {
            for _ in 0..TURNS {
                let permit = licences.acquire().await?;
                most.fetch_max(busy.fetch_add(1, SeqCst) + 1, SeqCst);
                tokio::task::yield_now().await;
                busy.fetch_sub(1, SeqCst);
                permit.release().await?;
            }
            Ok::<_, leasehold_client_cache::RecipeError>(())
        });
    }
    while let Some(done) = workers.join_next().await {
        done??;
    }
    println!("{WORKERS} workers had {TURNS} turns each, at most {} of them at a time", most.load(SeqCst));
    assert!(most.load(SeqCst) <= PERMITS);

    let address = server.address().to_string();
    let at = path.clone();
    let old = tokio::task::spawn_blocking(move || take_all_and_die(address, &at)).await?;
    let old = old.map_err(|error| error.to_string())?;
    assert!(operator.semaphore(&path, PERMITS).try_acquire().await?.is_none(), "none is left");
    let died = Instant::now();
    let permit = operator.semaphore(&path, PERMITS).acquire().await?;
    println!(
        "{:.1} s after its holder was gone there is one again, with token {}",
        died.elapsed().as_secs_f64(),
        permit.token()
    );
    let work: NodePath = "/work".parse()?;
    let write = |token| {
        let put = Operation::put(work.clone(), "done");
        Transaction::new().when(Compare::locked(path.clone(), token)).then(put)
    };
    assert!(operator.transaction(write(permit.token())).await?.succeeded(), "the token is good");
    assert!(!operator.transaction(write(old)).await?.succeeded(), "the old one is not, whatever came late");

    permit.release().await?;
    operator.close().await;
    server.stop().await?;
    Ok(())
}

/// A program that acquires all permits and then stops all its tasks at once, as in a crash. Returns
/// one of its tokens.
fn take_all_and_die(address: String, path: &NodePath) -> Result<Token, Box<dyn std::error::Error + Send + Sync>> {
    let program = Runtime::new()?;
    let permits: Vec<Permit> = program.block_on(async {
        let client = Client::connect(Options::new([address]).name("dying")).await?;
        let licences = client.semaphore(path, PERMITS);
        let mut permits = Vec::new();
        for _ in 0..PERMITS {
            permits.push(licences.acquire().await?);
        }
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(permits)
    })?;
    program.shutdown_background();
    Ok(permits[0].token())
}

fn settings() -> Result<VolumeSettings, VolumeError> {
    let usual = VolumeSettings::DEFAULT;
    let (object_term, margin, tracking) = (usual.object_term(), usual.skew_margin(), usual.tracking());
    VolumeSettings::new(TERM, object_term, margin, tracking, DriftAllowance::DEFAULT)
}

#[cfg(test)]
#[test]
fn it_runs() {
    main().expect("it ends well");
}
