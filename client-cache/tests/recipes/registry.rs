//! Registries: their members, the events of arrival and departure, and epochs.

use leasehold_client_cache::LockError;
use leasehold_client_cache::{
    Refusal, WriteError, WriteRefusal,
    recipes::{Member, MemberEvent, Members, RecipeError},
};

use super::{TERM, clients};
use crate::common::{Server, within};

fn names(members: &Members) -> Vec<&str> {
    members.current().map(|member| member.name.as_str()).collect()
}

async fn joined(members: &mut Members) -> Member {
    match within(members.next()).await.unwrap() {
        MemberEvent::Joined(member) => member,
        other => panic!("{other:?}"),
    }
}

async fn left(members: &mut Members) -> Member {
    match within(members.next()).await.unwrap() {
        MemberEvent::Left(member) => member,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_come_and_go_each_with_an_epoch_that_grows() {
    let server = Server::start(TERM).await;
    let [one, two, observer] = clients(&server).await;
    let (first, second) = (one.registry("/r"), two.registry("/r"));
    let registration = within(first.join("a", "1")).await.unwrap();
    let mut members = within(observer.registry("/r").members()).await.unwrap();
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
    observer.put("/r/c", "by hand").await.unwrap();
    drop(within(two.register("/r/c/d", "below")).await.unwrap());
    let epoch = registration.epoch();
    within(registration.leave()).await.unwrap();
    assert_eq!((left(&mut members).await.epoch, names(&members)), (epoch, vec!["b"]));
    let again = within(first.join("a", "1")).await.unwrap();
    assert!(again.epoch() > epoch && joined(&mut members).await.epoch == again.epoch());

    let replaced = within(two.register("/r/a", "new").replace(true)).await.unwrap();
    assert_eq!(left(&mut members).await.epoch, again.epoch());
    assert_eq!((joined(&mut members).await.epoch, names(&members)), (replaced.epoch(), vec!["a", "b"]));
    two.close().await;
    let mut gone = [left(&mut members).await.name, left(&mut members).await.name];
    gone.sort();
    assert_eq!(gone, ["a", "b"]);
    assert_eq!(names(&members), [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn member_update_keeps_its_epoch_and_comes_once() {
    let server = Server::start(TERM).await;
    let [one, two, observer] = clients(&server).await;
    let mut registration = within(one.registry("/r").join("a", "1")).await.unwrap();
    let epoch = registration.epoch();
    let mut members = within(observer.registry("/r").members()).await.unwrap();
    registration.update("2").await.unwrap();
    let MemberEvent::Updated(member) = within(members.next()).await.unwrap() else { panic!("no update") };
    assert_eq!((member.epoch, &member.value[..], member.session), (epoch, &b"2"[..], one.session().unwrap()));
    // An observer that comes later sees the same epoch.
    let later = within(observer.registry("/r").members()).await.unwrap();
    assert_eq!(later.current().collect::<Vec<_>>(), [&member]);
    assert_eq!(registration.epoch(), epoch);

    // A successor's epoch is a new one, also if it takes the place of a live member.
    let successor = within(two.register("/r/a", "3").replace(true)).await.unwrap();
    assert!(successor.epoch() > epoch);
    assert_eq!(left(&mut members).await.epoch, epoch);
    assert_eq!(joined(&mut members).await.epoch, successor.epoch());
    let again = within(two.registry("/r").join("a", "4")).await.unwrap();
    assert!(again.epoch() > successor.epoch());
    assert_eq!((left(&mut members).await.epoch, joined(&mut members).await.epoch), (successor.epoch(), again.epoch()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_has_become_of_members_is_told_after_a_gap_too() {
    let mut server = Server::start_with_history(TERM, 16).await;
    let [one, two, observer] = clients(&server).await;
    let (first, second) = (one.registry("/r"), two.registry("/r"));
    let stays = within(first.join("a", "1")).await.unwrap();
    let goes = within(second.join("b", "1")).await.unwrap();
    let mut members = within(observer.registry("/r").members()).await.unwrap();
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
