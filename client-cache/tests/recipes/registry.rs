//! Registries: their members, the events of arrival and departure, and epochs.

use leasehold_client_cache::{LockError, RegisterCondition, RegisterOptions};
use leasehold_client_cache::{Member, MemberEvent, Members, RecipeError, Refusal, WriteError, WriteRefusal};

use super::{TERM, clients};
use crate::common::{Server, path, within};

fn names(members: &Members) -> Vec<&str> {
    members.current().map(|member| member.name.as_str()).collect()
}

async fn joined(members: &mut Members) -> Member {
    match within(members.next()).await.unwrap() {
        MemberEvent::Joined(member) => member,
        left @ MemberEvent::Left(_) => panic!("{left:?}"),
    }
}

async fn left(members: &mut Members) -> Member {
    match within(members.next()).await.unwrap() {
        MemberEvent::Left(member) => member,
        joined @ MemberEvent::Joined(_) => panic!("{joined:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_come_and_go_each_with_an_epoch_that_grows() {
    let server = Server::start(TERM).await;
    let [one, two, observer] = clients(&server).await;
    let (first, second) = (one.registry(&path("/r")), two.registry(&path("/r")));
    let registration = within(first.join("a", "1")).await.unwrap();
    let mut members = within(observer.registry(&path("/r")).members()).await.unwrap();
    assert_eq!(names(&members), ["a"]);

    let taken = within(second.join("a", "2")).await.unwrap_err();
    let RecipeError::Lock(LockError::Write(WriteError::Refused(Refusal::Write(WriteRefusal::Exists { .. })))) = taken
    else {
        panic!("{taken:?}")
    };
    let other = within(second.join("b", "2")).await.unwrap();
    let member = joined(&mut members).await;
    assert_eq!((member.name.as_str(), &member.value[..], member.epoch), ("b", &b"2"[..], other.epoch()));
    assert_eq!((Some(member.session), names(&members)), (two.session(), vec!["a", "b"]));

    // A node without a lease is no member, nor is a node further below.
    observer.put(&path("/r/c"), "by hand").await.unwrap();
    within(two.register(&path("/r/c/d"), "below", RegisterOptions::default())).await.unwrap();
    let epoch = registration.epoch();
    within(registration.leave()).await.unwrap();
    assert_eq!((left(&mut members).await.epoch, names(&members)), (epoch, vec!["b"]));
    let again = within(first.join("a", "1")).await.unwrap();
    assert!(again.epoch() > epoch && joined(&mut members).await.epoch == again.epoch());

    let replace = RegisterOptions { condition: RegisterCondition::Any, ..RegisterOptions::default() };
    let replaced = within(two.register(&path("/r/a"), "new", replace)).await.unwrap();
    assert_eq!(left(&mut members).await.epoch, again.epoch());
    assert_eq!((joined(&mut members).await.epoch, names(&members)), (replaced.epoch(), vec!["a", "b"]));
    two.close().await;
    let mut gone = [left(&mut members).await.name, left(&mut members).await.name];
    gone.sort();
    assert_eq!(gone, ["a", "b"]);
    assert_eq!(names(&members), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_become_of_members_is_told_after_a_gap_too() {
    let mut server = Server::start_with_history(TERM, 16).await;
    let [one, two, observer] = clients(&server).await;
    let (first, second) = (one.registry(&path("/r")), two.registry(&path("/r")));
    let stays = within(first.join("a", "1")).await.unwrap();
    let goes = within(second.join("b", "1")).await.unwrap();
    let mut members = within(observer.registry(&path("/r")).members()).await.unwrap();
    // The client has the first list by now. The changes after it do not fit into the history.
    let comes = within(second.join("c", "1")).await.unwrap();
    assert_eq!(joined(&mut members).await.epoch, comes.epoch());
    server.stop().await;
    server.write_meanwhile("/other", 100);
    server.lead();
    let epoch = goes.epoch();
    within(goes.leave()).await.unwrap();
    assert_eq!(left(&mut members).await.epoch, epoch);
    assert_eq!(names(&members), ["a", "c"]);
    assert!(!stays.on_lost().is_cancelled());
}
