//! One leads at a time, and chooses who leads next: a scheduler hands over to a named successor
//! before it stops for maintenance.
//!
//! `cargo run --example election` starts a server in this process, with its data in a temporary
//! folder, and three clients of it.
//!
//! What an election promises: while a leadership is certain (`certain_for`), nobody else leads;
//! `over` tells the leader of its end by its own clock, before anybody else can be elected. Handing
//! over ends one leadership and begins the next in one step: nobody leads in between, past those in
//! front in the line. What only the token can: keep out what a leader sent before its end and what
//! arrives after it, as the transaction here does by comparing it.

use std::time::Duration;

use leasehold_client_cache::{
    CampaignOptions, Client, Compare, HandOverError, Leadership, LockError, NodePath, Operation, Options, Transaction,
};
use leasehold_server::{Server, ServerConfig};
use tokio::task::JoinHandle;

const LOOK_EVERY: Duration = Duration::from_millis(10);

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let config =
        ServerConfig { data: folder.path().join("data"), listen: "127.0.0.1:0".to_owned(), ..ServerConfig::default() };
    let server = Server::start(config).await?;
    let connect = |name: &str| Client::connect(Options::new([server.address().to_string()]).name(name));
    let [one, two, three] = [connect("host-1").await?, connect("host-2").await?, connect("host-3").await?];

    let path: NodePath = "/scheduler".parse()?;
    let mut leaders = three.observe(&path);
    let first = one.campaign(&path, "host-1", CampaignOptions::default()).await?;
    let leader = leaders.next().await?;
    println!("{} leads, under token {}", String::from_utf8_lossy(&leader.value), leader.token);
    let second = stand(&two, &path, "host-2");
    let mut looks = tokio::time::interval(LOOK_EVERY);
    while first.candidates().await?.is_empty() {
        looks.tick().await;
    }
    let third = stand(&three, &path, "host-3");

    // By name, though another came before it.
    let successor = loop {
        let candidates = first.candidates().await?;
        if let Some(found) = candidates.into_iter().find(|candidate| candidate.name == "host-3") {
            break found.lock;
        }
        looks.tick().await;
    };
    let old = first.token();
    match first.hand_over(successor).await {
        Ok(()) => println!("host-1 has handed over"),
        // It leads on, and could choose another.
        Err(HandOverError::Unchanged(_, error)) => return Err(error.into()),
        // Somebody leads or will, and this one does not.
        Err(HandOverError::Released(error)) => return Err(error.into()),
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

/// Stands for election, and waits for its turn.
fn stand(client: &Client, path: &NodePath, name: &'static str) -> JoinHandle<Result<Leadership, LockError>> {
    let (client, path) = (client.clone(), path.clone());
    tokio::spawn(async move { client.campaign(&path, name, CampaignOptions::default()).await })
}

#[cfg(test)]
#[test]
fn it_runs() {
    main().expect("it ends well");
}
