//! A service registry: services register themselves, and a crashed service disappears.
//!
//! Run it with `cargo run --example service_registry`. It starts a server in this process, with its
//! data in a temporary folder, and a client for each service. A service's node is attached to its
//! client's volume lease: it exists while the client renews the lease.
//!
//! One service leaves. Another is dropped without leaving, as in a crash, and disappears when its
//! lease has ended. A third client polls the list. It reads from its own memory until a service
//! joins or leaves.

mod local;

use std::time::{Duration, Instant};

use leasehold_client_cache::{Client, NodePath};
use local::{Failure, LocalServer};

/// How long a service outlives a crash. All other settings are the defaults.
const TERM: Duration = Duration::from_secs(4);
const CHECK_EVERY: Duration = Duration::from_millis(20);

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let server = LocalServer::start().await?;
    let [web, database, watcher] =
        [server.client("web").await?, server.client("database").await?, server.client("watcher").await?];

    // A volume of its own with a short term, so that a crash is noticed soon.
    let services: NodePath = "/services".parse()?;
    watcher.admin().create_volume(&services).term(TERM).await?;

    let web_node = services.child("web")?;
    let web_registration = web.register(&web_node, "10.0.0.1:80").await?;
    let database_node = services.child("database")?;
    let database_registration = database.register(&database_node, "10.0.0.2:5432").await?;
    println!("registered: {}", list(&watcher, &services).await?.join(", "));

    // Live services stay for longer than a term. A service can ask how long its registration
    // certainly lasts.
    let began = Instant::now();
    wait(|| async { Ok(began.elapsed() > TERM + TERM / 2) }).await?;
    println!("{:.1} s later: {}", began.elapsed().as_secs_f64(), list(&watcher, &services).await?.join(", "));
    println!("the web service is certain of {} ms more", web_registration.remaining().as_millis());

    web_registration.leave().await?;
    println!("the web service has left: {}", list(&watcher, &services).await?.join(", "));

    // As in a crash: the server gets no message.
    let dropped = Instant::now();
    drop((database_registration, database));
    println!("the database is gone without a word: {}", list(&watcher, &services).await?.join(", "));
    wait(|| async { Ok(list(&watcher, &services).await?.is_empty()) }).await?;
    println!("{:.1} s later its lease has ended: nobody is registered", dropped.elapsed().as_secs_f64());
    println!(
        "the watcher had {} answers from memory, {} from the server",
        watcher.stats().hits,
        watcher.stats().misses
    );

    web.close().await;
    watcher.close().await;
    server.stop().await?;
    Ok(())
}

/// The registered services and their addresses.
async fn list(client: &Client, services: &NodePath) -> Result<Vec<String>, Failure> {
    let mut found = Vec::new();
    for name in &client.children(services).await?.ok_or("the volume was made")?.names {
        // A service that leaves between the two reads is left out.
        if let Some(entry) = client.get(&services.child(name)?).await? {
            found.push(format!("{name} at {}", String::from_utf8_lossy(&entry.value)));
        }
    }
    Ok(found)
}

/// Polls until the condition holds.
async fn wait<F>(mut is_so: impl FnMut() -> F) -> Result<(), Failure>
where
    F: Future<Output = Result<bool, Failure>>,
{
    let mut checks = tokio::time::interval(CHECK_EVERY);
    while !is_so().await? {
        checks.tick().await;
    }
    Ok(())
}

#[cfg(test)]
#[test]
fn it_runs() {
    main().expect("it ends well");
}
