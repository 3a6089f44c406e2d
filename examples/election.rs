//! Elections: one candidate leads at a time, and chooses the next leader. A scheduler hands over to
//! a named successor before it stops for maintenance.
//!
//! Run it with `cargo run --example election`. It starts a server in this process, with its data in
//! a temporary folder, and three clients.
//!
//! - While a leadership has time `remaining`, no other candidate leads. The leader's own clock
//!   cancels `on_lost` before another candidate can be elected (after a suspension of the machine,
//!   up to a second later).
//! - `hand_over` ends one leadership and begins the next in one step. No candidate leads in
//!   between, not even one ahead in the lock queue.
//! - A request of a former leader may arrive after its leadership ended. Only the fencing token
//!   stops it: the transaction here compares the token.

mod local;

use std::time::Duration;

use leasehold_client_cache::{Client, Compare, HandOverError, Leadership, LockError, NodePath, Operation, Transaction};
use local::{Failure, LocalServer};
use tokio::task::JoinHandle;

const CHECK_EVERY: Duration = Duration::from_millis(10);

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let server = LocalServer::start().await?;
    let [one, two, three] =
        [server.client("host-1").await?, server.client("host-2").await?, server.client("host-3").await?];

    let path: NodePath = "/scheduler".parse()?;
    let mut leaders = three.observe(&path);
    let first = one.campaign(&path, "host-1").await?;
    let leader = leaders.next().await?;
    println!("{} leads, under token {}", String::from_utf8_lossy(&leader.value), leader.token);
    let second = stand(&two, &path, "host-2");
    let mut checks = tokio::time::interval(CHECK_EVERY);
    while first.candidates().await?.is_empty() {
        checks.tick().await;
    }
    let third = stand(&three, &path, "host-3");

    // Chosen by name, although another candidate came first.
    let successor = loop {
        let candidates = first.candidates().await?;
        if let Some(found) = candidates.into_iter().find(|candidate| candidate.name == "host-3") {
            break found.lock;
        }
        checks.tick().await;
    };
    let old = first.token();
    match first.hand_over(successor).await {
        Ok(()) => println!("host-1 has handed over"),
        // It still leads, and could choose another successor.
        Err(HandOverError::Unchanged(_, error)) => return Err(error.into()),
        // It no longer leads. Another candidate leads or will lead.
        Err(error) => return Err(error.into()),
    }
    let third = third.await??;
    let leader = leaders.next().await?;
    println!("{} leads, under token {}", String::from_utf8_lossy(&leader.value), leader.token);
    assert_eq!((&leader.value[..], leader.token), (&b"host-3"[..], third.token()), "nobody led in between");

    let work: NodePath = "/work".parse()?;
    let write = |token| {
        Transaction::new().when(Compare::locked(path.clone(), token)).then(Operation::put(work.clone(), "done"))
    };
    assert!(!one.transaction(write(old)).await?.succeeded(), "what the first sends now changes nothing");
    assert!(three.transaction(write(third.token())).await?.succeeded(), "what the third sends does");
    third.resign().await?;
    let second = second.await??;
    println!("host-2 has kept its place, and leads next, under token {}", second.token());
    second.resign().await?;

    for client in [one, two, three] {
        client.close().await;
    }
    server.stop().await?;
    Ok(())
}

/// Campaigns in the background.
fn stand(client: &Client, path: &NodePath, name: &'static str) -> JoinHandle<Result<Leadership, LockError>> {
    let (client, path) = (client.clone(), path.clone());
    tokio::spawn(async move { client.campaign(&path, name).await })
}

#[cfg(test)]
#[test]
fn it_runs() {
    main().expect("it ends well");
}
