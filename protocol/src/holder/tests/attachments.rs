//! Nodes attached to volume leases: the outcome says to which, and outcomes come late and in any
//! order.

use super::{locks::LOCK, *};
use crate::{
    command::{Attach, VolumeLease, Written},
    id::LockId,
    message::Lapse,
};

fn attached(text: &str) -> Write {
    Write::Put { path: path(text), value: "v".into(), condition: Condition::Any, attach: Attach::Session }
}

fn delete(text: &str) -> Write {
    Write::Delete { path: path(text), recursive: false, condition: Condition::Any }
}

fn written(revision: u64, volume: &str, incarnation: u64) -> Answer {
    let attached = vec![VolumeLease { volume: path(volume), incarnation: Incarnation(incarnation) }];
    let written = Written { revision: Revision(revision), attached, ..Written::default() };
    let applied = Revision(revision);
    Answer::Written {
        written,
        stamp: stamp(40 + revision),
        grant: None,
        applied,
        key_lease: None,
        write_lease_data: None,
    }
}

fn node_lost(text: &str, revision: u64) -> HolderEffect {
    HolderEffect::AttachedNodesLost { nodes: vec![(path(text), Revision(revision))] }
}

fn reports_lost_node(effects: &[HolderEffect]) -> bool {
    effects.iter().any(|effect| matches!(effect, HolderEffect::AttachedNodesLost { .. }))
}

impl Client {
    fn send(&mut self, write: u64, change: Write) -> SendId {
        let effects = self.write(write, change);
        self.only(&effects).0
    }

    fn has_attached(&self, volume: &str, text: &str) -> bool {
        self.holder.volumes.get(&path(volume)).is_some_and(|volume| volume.attached.contains_key(&path(text)))
    }

    /// The lease on the root ends, and another replaces it.
    fn replace_lease(&mut self) -> Vec<HolderEffect> {
        let (mut effects, send_id) = self.lose_lease();
        effects.extend(self.answer(send_id, acquired("/", 2, 50)));
        effects
    }

    /// The lease on the root ends. Returns the step's effects, and the request for another lease.
    fn lose_lease(&mut self) -> (Vec<HolderEffect>, SendId) {
        let effects = self.read(70, "/lapsed");
        let read = self.only(&effects).0;
        let lapses = vec![Lapse { volume: NodePath::root(), incarnation: Incarnation(1) }];
        let result = Ok(answer(Some(value(9)), None));
        let lapsed = self.respond(read, Response { epoch: EPOCH, promises: vec![], lapses, clocks: None, result });
        let acquire = |effects: &[HolderEffect]| {
            let mut sent = sent(effects).into_iter().filter(|(_, body)| matches!(body, Body::Acquire { .. }));
            sent.next().map(|(send_id, _)| send_id)
        };
        let effects = self.read(71, "/anew");
        let send_id = acquire(&lapsed).or_else(|| acquire(&effects)).expect("a new lease is requested");
        (lapsed, send_id)
    }
}

#[test]
fn node_put_under_replaced_lease_is_reported_lost() {
    let mut client = Client::leased();
    let put = client.send(1, attached("/a"));
    assert!(!reports_lost_node(&client.replace_lease()));
    let effects = client.answer(put, written(30, "/", 1));
    assert!(effects.contains(&node_lost("/a", 30)), "the node was attached to the first lease: {effects:?}");
    assert!(!client.has_attached("/", "/a"));
}

#[test]
fn late_put_does_not_end_a_later_one_of_its_node() {
    let mut client = Client::leased();
    let late = client.send(1, attached("/a"));
    client.replace_lease();
    let put = client.send(2, attached("/a"));
    client.answer(put, written(31, "/", 2));
    let effects = client.answer(late, written(30, "/", 1));
    assert!(
        !reports_lost_node(&effects) && client.has_attached("/", "/a"),
        "the node is attached to the second lease: {effects:?}"
    );
}

#[test]
fn late_delete_does_not_forget_a_later_put() {
    let mut client = Client::leased();
    let put = client.send(1, attached("/a"));
    client.answer(put, written(30, "/", 1));
    let delete = client.send(2, delete("/a"));
    let put = client.send(3, attached("/a"));
    client.answer(put, written(32, "/", 1));
    client.answer(delete, written(31, "/", 1));
    assert!(client.has_attached("/", "/a"), "the later put attached the node");
}

#[test]
fn put_answered_after_its_delete_is_reported_lost() {
    let mut client = Client::leased();
    let put = client.send(1, attached("/a/b"));
    let other = client.send(2, attached("/c"));
    let delete = client.send(3, Write::Delete { path: path("/a"), recursive: true, condition: Condition::Any });
    client.answer(delete, written(32, "/", 1));
    assert!(client.answer(put, written(30, "/", 1)).contains(&node_lost("/a/b", 30)));
    assert!(!reports_lost_node(&client.answer(other, written(31, "/", 1))), "the delete does not remove /c");
    assert!(!client.has_attached("/", "/a/b") && client.has_attached("/", "/c"));
}

#[test]
fn node_is_attached_to_the_lease_its_outcome_names() {
    let mut client = Client::leased();
    client.holder.volumes.learn(&path("/v"));
    let acquire = client.send(1, attached("/v/a"));
    let effects = client.answer(acquire, acquired("/v", 2, 50));
    let put = client.only(&effects).0;
    // The volume was removed, and this client does not know it.
    client.answer(put, written(30, "/", 1));
    assert!(client.has_attached("/", "/v/a") && !client.has_attached("/v", "/v/a"));
    let effects = client.read(5, "/b");
    let read = client.only(&effects).0;
    let lapses = vec![Lapse { volume: path("/v"), incarnation: Incarnation(2) }];
    let result = Ok(answer(Some(value(9)), None));
    let effects = client.respond(read, Response { epoch: EPOCH, promises: vec![], lapses, clocks: None, result });
    assert!(!reports_lost_node(&effects), "{effects:?}");
}

#[test]
fn acquire_is_repeated_after_another_answer_grants_lease() {
    let mut client = Client::leased();
    client.holder.volumes.learn(&path("/v"));
    let outer = client.send(1, attached("/v/a"));
    client.holder.volumes.learn(&path("/v/w"));
    let inner = client.send(2, attached("/v/w/b"));
    // There is no volume `/v/w`. The answer brings the lease on `/v`, and a put then attaches a
    // node to it.
    let effects = client.answer(inner, acquired("/v", 5, 50));
    let put = client.only(&effects).0;
    client.answer(put, written(30, "/v", 5));
    client.refuse(outer, Refusal::Retry);
    let is_acquire = |(_, body): &(SendId, Body)| matches!(body, Body::Acquire { .. });
    let mut again = None;
    for _ in 0..20 {
        client.now = client.holder.next_deadline().expect("the request is repeated").max(client.now);
        again = sent(&client.timeout(&[])).into_iter().find(is_acquire);
        if again.is_some() {
            break;
        }
    }
    let (repeated, _) = again.expect("the request is sent again");
    assert!(client.has_attached("/v", "/v/w/b"));
    let effects = client.answer(repeated, acquired("/v", 5, 51));
    assert!(!reports_lost_node(&effects) && client.has_attached("/v", "/v/w/b"), "the server extended the same lease");
    assert_eq!(client.holder.volume_remaining(&path("/v"), client.now), TERM, "its promise counts");
    assert!(sent(&effects).iter().any(|(_, body)| matches!(body, Body::Write { .. })), "the queued write is sent");
}

#[test]
fn node_put_during_acquire_is_lost_with_the_old_lease() {
    for is_refused in [false, true] {
        let mut client = Client::leased();
        let put = client.send(1, attached("/a"));
        let (_, acquire) = client.lose_lease();
        assert!(!reports_lost_node(&client.answer(put, written(30, "/", 1))), "the server may extend the same lease");
        let effects = match is_refused {
            false => client.answer(acquire, acquired("/", 2, 50)),
            true => client.refuse(acquire, Refusal::Busy { what: "leases".into(), got: 1, most: 1 }),
        };
        assert!(effects.contains(&node_lost("/a", 30)) && !client.has_attached("/", "/a"), "{effects:?}");
    }
}

/// The lease has lapsed on this clock while a put that attaches a node is in flight. The client
/// first asks whether the lease still holds on the servers. With a new lease, the client would
/// report the node as lost, and the servers would keep it (seed 15885 of the wide worlds).
#[test]
fn lapsed_lease_of_attaching_put_is_renewed_before_new_one() {
    let mut client = Client::leased();
    let put = client.send(1, attached("/a"));
    client.now = client.now.after(TERM * 2);
    let mut effects = client.timeout(&["/"]);
    effects.extend(client.read(5, "/b"));
    let is_acquire = |(_, body): &(SendId, Body)| matches!(body, Body::Acquire { .. });
    assert!(!sent(&effects).iter().any(is_acquire), "{effects:?}");
    let (heartbeat, renewed) = keep_alive(&effects).expect("a heartbeat asks for a renewal");
    assert_eq!(renewed, [root(1)]);
    assert!(!reports_lost_node(&client.answer(put, written(30, "/", 1))));
    let effects = client.renew(heartbeat, promise("/", 1));
    assert!(!reports_lost_node(&effects) && client.has_attached("/", "/a"), "{effects:?}");
}

/// A read is answered before the volume is made. The answer arrives when the client has a lock
/// there.
#[test]
fn answer_older_than_a_volume_ends_no_lock_in_it() {
    use crate::{
        id::{LockId, Token},
        lock::{LockMode, LockOutcome},
    };
    let mut client = Client::leased();
    let effects = client.read(5, "/v/x");
    let late = client.only(&effects).0;
    let of_volume = Answer::Read(read_answer("/v", None, None));
    let effects = client.read(6, "/v/y");
    let read = client.only(&effects).0;
    let effects = client.answer(read, of_volume);
    let acquire = client.only(&effects).0;
    client.answer(acquire, acquired("/v", 2, 13));
    let lock = Write::Lock { path: path("/v/l"), mode: LockMode::Exclusive, wait: true, delay: Duration::ZERO };
    let send_id = client.send(7, lock);
    let (lock, token) = (LockId(4), Some(Token(5)));
    let (volume, incarnation) = (path("/v"), Incarnation(2));
    let grant = LockOutcome { path: path("/v/l"), lock, mode: LockMode::Exclusive, token, volume, incarnation };
    let written = Written { lock: Some(Box::new(grant)), ..Written::default() };
    let answered = written_answer(written);
    client.answer(send_id, answered);
    assert!(!client.holder.lock_remaining(lock, client.now).is_zero());
    let effects = client.answer(late, answer(Some(value(10)), None));
    assert!(!effects.iter().any(|effect| matches!(effect, HolderEffect::LocksLost { .. })), "{effects:?}");
    assert!(!client.holder.lock_remaining(lock, client.now).is_zero());
}

#[test]
fn node_is_attached_with_lock_only_to_the_lease_of_the_lock() {
    let mut client = Client::leased();
    client.lock(Some(9), 1);
    let is_with_lock =
        |client: &Client, revision, lock| client.holder.is_attached_with_lock(&path("/v/x"), Revision(revision), lock);
    let put = client.send(2, attached("/v/x"));
    assert!(!is_with_lock(&client, 30, LOCK), "it is not put yet");
    client.answer(put, written(30, "/", 1));
    assert!(is_with_lock(&client, 30, LOCK));
    assert!(!is_with_lock(&client, 29, LOCK), "another put");
    assert!(!is_with_lock(&client, 30, LockId(LOCK.0 + 1)), "another lock");
    // Somebody has made `/v` a volume between the request for the lock and this put.
    let put = client.send(3, attached("/v/x"));
    client.answer(put, written(31, "/v", 5));
    assert!(!is_with_lock(&client, 31, LOCK) && !is_with_lock(&client, 30, LOCK));
}

/// The put waits for another client. Meanwhile the application reads nothing.
#[test]
fn lease_is_renewed_while_a_put_that_attaches_is_in_flight() {
    let mut client = Client::leased();
    client.send(1, attached("/a"));
    while let Some(next) = client.holder.next_deadline().filter(|next| *next <= at(140)) {
        client.now = next;
        let effects = client.timeout(&[]);
        for (send_id, request) in requests(&effects) {
            let heartbeat = Answer::Heartbeat(Default::default());
            match request.header.renew.is_empty() {
                true => client.answer(send_id, heartbeat),
                false => client.answer_renewing(send_id, heartbeat),
            };
        }
        assert!(client.holder.volume_remaining(&path("/"), client.now) > Duration::ZERO, "at {}", client.now);
    }
}
