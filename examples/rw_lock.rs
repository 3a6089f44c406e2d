//! A readers-writer lock: many read, or one writes. A reader that must change something upgrades
//! its lock, and no other writer comes in between.
//!
//! Run it with `cargo run --example rw_lock`. It starts a server in this process, with its data in
//! a temporary folder, and three clients.
//!
//! - While a write guard has time `remaining`, no other client reads or writes under the lock.
//!   While a read guard has time `remaining`, no client writes.
//! - A write of a former owner may arrive after its lock ended. Only the fencing token stops it.
//!   Here the write is a transaction that compares the token, so a write with an old token has no
//!   effect.

use leasehold_client_cache::{Client, Compare, LockWait, NodePath, Operation, Options, Transaction};
use leasehold_server::{Server, ServerConfig};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let folder = tempfile::tempdir()?;
    let config =
        ServerConfig { data: folder.path().join("data"), listen: "127.0.0.1:0".to_owned(), ..ServerConfig::default() };
    let server = Server::start(config).await?;
    let connect = |name: &str| Client::connect(Options::new([server.address().to_string()]).name(name));
    let [one, two, three] = [connect("one").await?, connect("two").await?, connect("three").await?];

    let path: NodePath = "/locks/stock".parse()?;
    let stock: NodePath = "/stock".parse()?;
    one.put(&stock, "3").await?;
    let (first, second) = (one.rw_lock(&path).read().await?, two.rw_lock(&path).read().await?);
    println!("two read, under tokens {} and {}", first.token(), second.token());
    assert!(three.rw_lock(&path).try_write().await?.is_none(), "nobody writes meanwhile");

    // The first reader upgrades. The second one is notified of the contention and releases its
    // lock.
    let mut second = second;
    let leaves = async {
        second.contended().await;
        second.release().await
    };
    let (writer, left) = tokio::join!(first.upgrade(LockWait::Forever), leaves);
    let writer = writer.map_err(|(_, error)| error)?;
    left?;
    println!("one writes, under token {}", writer.token());
    let sell =
        |token| Transaction::new().when(Compare::locked(path.clone(), token)).then(Operation::put(stock.clone(), "2"));
    assert!(one.transaction(sell(writer.token())).await?.succeeded(), "the token is good");

    let token = writer.token();
    let reader = writer.downgrade().await?;
    let other = three.rw_lock(&path).read().await?;
    println!("two read again, under tokens {} and {}", reader.token(), other.token());
    reader.release().await?;
    other.release().await?;
    assert!(!one.transaction(sell(token)).await?.succeeded(), "the token is good no more");
    println!("what was sent under the token of a lock that is over changed nothing");

    for client in [one, two, three] {
        client.close().await;
    }
    server.stop().await?;
    Ok(())
}

#[cfg(test)]
#[test]
fn it_runs() {
    main().expect("it ends well");
}
