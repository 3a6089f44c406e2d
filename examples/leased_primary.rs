//! Consistency carried out to other servers: a primary that holds a lease orders operations for its followers by itself. The core is asked who is
//! primary, and kept in mind of it; of the operations it hears nothing.
//!
//! `cargo run --example leased_primary` starts a server in this process, with its data in a temporary folder, two clients of it that stand for primary,
//! and two followers that know neither.
//!
//! What the lease promises: an operation that all followers have, and after which the primary is still certain (`certain_for`), was ordered while
//! nobody else could order any, so the order is one, without a word to the core. What only the token can: keep out what a former primary sent before its end and
//! what arrives after it. A follower takes no order under a lower token than the highest that it has seen.

use std::{error::Error, time::Instant};

use leasehold_client_cache::{CampaignOptions, Client, Leadership, Options, Path, Token, VolumeSettings};
use leasehold_server::{Config, Server};
use tokio::sync::{mpsc, watch};

const OPERATIONS: u64 = 100_000;

/// Operations that are under way at one time: acknowledged together.
const BATCH: u64 = 1000;

/// An operation's place in the order, and under which token it has got that.
#[derive(Debug, Clone, Copy)]
struct Order {
    token: Token,
    number: u64,
}

/// What a follower has taken.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    token: Option<Token>,
    through: u64,
    refused: u64,
}

impl Progress {
    fn take(&mut self, order: Order) {
        if Some(order.token) < self.token || order.number != self.through + 1 {
            self.refused += 1;
            return;
        }
        *self = Self { token: Some(order.token), through: order.number, ..*self };
    }
}

/// A server that follows whoever has the highest token.
struct Follower {
    orders: mpsc::Sender<Order>,
    progress: watch::Receiver<Progress>,
}

impl Follower {
    fn start() -> Self {
        let (orders, mut given) = mpsc::channel(BATCH as usize);
        let (told, progress) = watch::channel(Progress::default());
        tokio::spawn(async move {
            while let Some(order) = given.recv().await {
                told.send_modify(|progress| progress.take(order));
            }
        });
        Self { orders, progress }
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let config = Config { data: folder.path().join("data"), listen: "127.0.0.1:0".to_owned(), ..Config::default() };
    let server = Server::start(config).await?;
    let connect = |name: &str| Client::connect(Options::new([server.address().to_string()]).name(name));
    let [one, two] = [connect("host-1").await?, connect("host-2").await?];
    let mut followers = [Follower::start(), Follower::start()];

    let path: Path = "/primary".parse()?;
    let first = one.campaign(&path, "host-1", CampaignOptions::default()).await?;
    let (before, began) = (one.stats(), Instant::now());
    order(&first, &mut followers, OPERATIONS).await?;
    let (after, took) = (one.stats(), began.elapsed());
    println!("host-1 has ordered {OPERATIONS} operations in {took:.1?}, under token {}", first.token());
    let (reads, writes) = (after.server_reads - before.server_reads, after.writes - before.writes);
    let renewals = after.messages_sent - before.messages_sent;
    println!("the core was sent {reads} reads and {writes} writes for them, and {renewals} renewals in that time");
    assert_eq!((reads, writes), (0, 0), "an operation needs no request");
    // What a primary sends that orders nothing: it renews after a quarter of a term at the soonest.
    let terms = took.as_secs_f64() / VolumeSettings::DEFAULT.term().as_secs_f64();
    assert!(renewals as f64 <= 4.0 * terms + 2.0, "{renewals} requests in {took:.1?}");

    let old = first.token();
    first.resign().await?;
    let second = two.campaign(&path, "host-2", CampaignOptions::default()).await?;
    order(&second, &mut followers, 1).await?;
    println!("host-2 has ordered another, under token {}", second.token());

    // Sent by the first before its end, as far as the followers can tell.
    for follower in &mut followers {
        follower.orders.send(Order { token: old, number: OPERATIONS + 2 }).await?;
        let progress = *follower.progress.wait_for(|progress| progress.refused == 1).await?;
        assert_eq!((progress.token, progress.through), (Some(second.token()), OPERATIONS + 1));
    }
    println!("what comes late from host-1 is refused by its token");

    second.resign().await?;
    for client in [one, two] {
        client.close().await;
    }
    server.stop().await?;
    Ok(())
}

/// Orders so many operations, behind those that the followers have.
async fn order(primary: &Leadership, followers: &mut [Follower], operations: u64) -> Result<(), Box<dyn Error>> {
    let token = primary.token();
    let mut last = followers.iter().map(|follower| follower.progress.borrow().through).max().unwrap_or(0);
    let end = last + operations;
    while last < end {
        let batch = last + 1..=end.min(last + BATCH);
        last = *batch.end();
        for number in batch {
            for follower in followers.iter() {
                follower.orders.send(Order { token, number }).await?;
            }
        }
        for follower in followers.iter_mut() {
            let is_over = |progress: &Progress| progress.through >= last || progress.token > Some(token);
            if follower.progress.wait_for(is_over).await?.through < last {
                return Err("another is primary: expected nobody while this one is".into());
            }
        }
        // Only now they are acknowledged: nobody else can have ordered anything before this.
        if primary.certain_for().is_zero() {
            return Err("the lease is over: whether the last operations count is for the next primary to say".into());
        }
    }
    Ok(())
}

#[cfg(test)]
#[test]
fn it_runs() {
    main().expect("it ends well");
}
