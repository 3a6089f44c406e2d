//! A mirrored directory: a service keeps all its flags in memory and acts on each change of them,
//! once and in order.
//!
//! Run it with `cargo run --example mirror`. It starts a server in this process, with its data in a
//! temporary folder, and two clients. One mirrors `/flags`; the other changes flags. The mirror
//! returns each change with its value, so the service reads nothing again.

mod local;

use leasehold_client_cache::{EventKind, Mirrored};
use local::{Failure, LocalServer};

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let server = LocalServer::start().await?;
    let service = server.client("service").await?;
    let operator = server.client("operator").await?;

    operator.put("/flags/dark-mode", "off").await?;
    let mirror = service.mirror("/flags").await?;
    let (now, mut changes) = mirror.changes();
    println!("{} nodes at revision {}", now.nodes.len(), now.revision);

    operator.put("/flags/dark-mode", "on").await?;
    operator.put("/flags/beta", "yes").await?;
    let last = operator.delete("/flags/dark-mode").await?.revision;
    while mirror_says(changes.next().await)? < last {}

    // A writer can wait until the mirror shows its write.
    assert!(mirror.wait_for_revision(last).await);
    assert_eq!(mirror.get("/flags/dark-mode"), None);
    assert_eq!(mirror.children("/flags"), ["beta"]);

    drop(mirror);
    service.close().await;
    operator.close().await;
    server.stop().await?;
    Ok(())
}

/// Prints what has changed. Returns the revision.
fn mirror_says(told: Option<Mirrored>) -> Result<leasehold_client_cache::Revision, &'static str> {
    match told.ok_or("the client is open")? {
        Mirrored::Change(change) => {
            for event in change.events.iter() {
                match &event.kind {
                    EventKind::Put(data) => {
                        println!("{}: {} = {}", change.revision, event.path, String::from_utf8_lossy(&data.value));
                    }
                    EventKind::Delete => println!("{}: {} is gone", change.revision, event.path),
                }
            }
            Ok(change.revision)
        }
        // Only after an outage so long that the history is compacted.
        Mirrored::StartOver(revision) => Ok(revision),
    }
}

#[cfg(test)]
#[test]
fn it_runs() {
    main().expect("it ends well");
}
