//! A registry with epochs: a dispatcher follows which workers join and leave, and distinguishes a
//! worker from the one that replaced it.
//!
//! Run it with `cargo run --example registry`. It starts a server in this process, with its data in
//! a temporary folder, and a client for each program. The example `service_registry` shows the
//! calls below it, a crash, and cached reads.
//!
//! - A member is registered as long as its lease has time `remaining` by its own clock.
//! - `Members` returns each join and each leave once and in order. A member may have left when its
//!   join is read.
//! - A replaced worker may not know that it was replaced. Only its epoch stops it: the transaction
//!   here compares the epoch.

mod local;

use leasehold_client_cache::{
    Compare, NodePath, Operation, Relation, Transaction,
    recipes::{MemberEvent, Members},
};
use local::{Failure, LocalServer};

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let server = LocalServer::start().await?;
    let [dispatcher, one, two] =
        [server.client("dispatcher").await?, server.client("one").await?, server.client("two").await?];

    let path: NodePath = "/workers".parse()?;
    let first = one.registry(&path).join("a", "10.0.0.1").await?;
    let mut members = dispatcher.registry(&path).members().await?;
    println!("there are: {}", members.current().map(|member| member.name.as_str()).collect::<Vec<_>>().join(", "));
    assert!(two.registry(&path).join("a", "10.0.0.2").await.is_err(), "the name is taken");

    let second = two.registry(&path).join("b", "10.0.0.2").await?;
    say(&mut members).await?;
    let old = first.epoch();
    first.leave().await?;
    say(&mut members).await?;
    let again = two.registry(&path).join("a", "10.0.0.2").await?;
    say(&mut members).await?;
    assert!(again.epoch() > old, "epochs grow");

    let (node, work): (NodePath, NodePath) = (path.child("a")?, "/work".parse()?);
    let write = |epoch| {
        let is_it = Compare::create_revision(node.clone(), Relation::Equal, epoch);
        Transaction::new().when(is_it).then(Operation::put(work.clone(), "done"))
    };
    assert!(!one.transaction(write(old)).await?.succeeded(), "it has been replaced");
    assert!(two.transaction(write(again.epoch())).await?.succeeded(), "it is there");
    println!("what was sent under epoch {old} changed nothing, under {} it did", again.epoch());

    second.leave().await?;
    again.leave().await?;
    say(&mut members).await?;
    say(&mut members).await?;
    assert_eq!(members.current().count(), 0);
    for client in [one, two, dispatcher] {
        client.close().await;
    }
    server.stop().await?;
    Ok(())
}

async fn say(members: &mut Members) -> Result<(), Failure> {
    match members.next().await? {
        MemberEvent::Joined(member) => println!("{} has joined as epoch {}", member.name, member.epoch),
        MemberEvent::Updated(member) => println!("{} has a new address, as epoch {}", member.name, member.epoch),
        MemberEvent::Left(member) => println!("{} has left, which was epoch {}", member.name, member.epoch),
    }
    Ok(())
}

#[cfg(test)]
#[test]
fn it_runs() {
    main().expect("it ends well");
}
