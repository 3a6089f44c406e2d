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

mod local;

use leasehold_client_cache::{Compare, LockWait, NodePath, Operation, Transaction};
use local::{Failure, LocalServer};

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let server = LocalServer::start().await?;
    let [one, two, three] = [server.client("one").await?, server.client("two").await?, server.client("three").await?];

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
    assert!(one.transaction(sell(writer.token())).await?.succeeded(), "the token is valid");

    let token = writer.token();
    let reader = writer.downgrade().await?;
    let other = three.rw_lock(&path).read().await?;
    println!("two read again, under tokens {} and {}", reader.token(), other.token());
    reader.release().await?;
    other.release().await?;
    assert!(!one.transaction(sell(token)).await?.succeeded(), "the token is no longer valid");
    println!("a write under the token of an ended lock changed nothing");

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
