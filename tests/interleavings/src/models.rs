//! What is explored. Each function is one model: it panics if some interleaving breaks what it
//! says, and returns how many it saw.
//!
//! In all of them a reader reads from memory while a write of the object goes on elsewhere, and
//! must not see the old value if the write had been acknowledged before it began (linearizability,
//! as of one object; I1).

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use leasehold_protocol::{holder::validity::VolumeValidity, id::Incarnation, path::NodePath, planted::Planted};
use loom::thread::{self, JoinHandle};

use crate::{
    client::{Client, TERM},
    clock,
};

/// A thread's stack, in words: what a step of the rules takes is more than loom gives by itself.
const STACK_WORDS: usize = 1 << 16;

/// Runs a reader beside other threads, in every order.
fn explore(
    make: fn(Planted) -> Client,
    planted: Planted,
    others: &'static [fn(&Client)],
    reader: fn(&Client),
) -> usize {
    let seen = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&seen);
    loom::model(move || {
        count.fetch_add(1, Relaxed);
        join(spawn(move || {
            let client = loom::sync::Arc::new(make(planted));
            let with_it = |other: fn(&Client)| {
                let client = loom::sync::Arc::clone(&client);
                spawn(move || other(&client))
            };
            let others: Vec<_> = others.iter().map(|other| with_it(*other)).collect();
            reader(&client);
            others.into_iter().for_each(join);
            // When all is over too.
            reader(&client);
        }));
    });
    seen.load(Relaxed)
}

fn spawn(run: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    thread::Builder::new().stack_size(STACK_WORDS).spawn(run).expect("loom has room for another thread")
}

fn join(thread: JoinHandle<()>) {
    thread.join().expect("it did not panic");
}

/// A recall reaches a copy that is being read (S2: dropped before the consent).
pub fn a_recall_and_a_hit(planted: Planted) -> usize {
    explore(Client::cached, planted, &[Client::recall], Client::read)
}

/// A recall and the grant that it recalls come at the same time, on two threads (S4).
pub fn a_recall_and_a_fill(planted: Planted) -> usize {
    explore(Client::filling, planted, &[Client::recall, Client::end_fill], Client::read)
}

/// The volume lease ends while its copy is being read: the write waits for nobody's consent, only
/// for the time (S1).
pub fn the_end_of_a_lease_and_a_hit() -> usize {
    explore(Client::cached, Planted::default(), &[let_the_lease_end], Client::read)
}

/// The same with a mistake: a reader that reads the clock before it looks the copy up.
pub fn the_end_of_a_lease_and_a_hit_by_an_early_clock() -> usize {
    explore(Client::cached, Planted::default(), &[let_the_lease_end], |client| {
        clock::read_too_early();
        client.read();
    })
}

fn let_the_lease_end(client: &Client) {
    clock::pass(TERM);
    client.acknowledge();
}

/// The volume is given up, the write goes on without this client, and a copy of the new value comes
/// under the next lease.
pub fn another_lease_and_a_hit() -> usize {
    explore(Client::cached, Planted::default(), &[begin_another_lease], Client::read)
}

/// The same with a mistake: the leases are told of the next one while copies of the last one are as
/// good as before.
pub fn another_lease_and_a_hit_without_a_border() -> usize {
    explore(Client::cached, Planted::default(), &[begin_another_lease_without_a_border], Client::read)
}

fn begin_another_lease(client: &Client) {
    client.core.lock().expect("not poisoned").leases.set(&NodePath::root(), VolumeValidity::default());
    client.acknowledge();
    set(client, 2);
    client.install_new(Incarnation(2));
}

fn begin_another_lease_without_a_border(client: &Client) {
    client.acknowledge();
    set(client, 1);
    client.install_new(Incarnation(2));
}

fn set(client: &Client, since: u64) {
    let validity = VolumeValidity { since: Incarnation(since), until: clock::now().after(TERM) };
    client.core.lock().expect("not poisoned").leases.set(&NodePath::root(), validity);
}

/// The session is over: all copies go at once, and the write goes on.
pub fn the_end_of_a_session_and_a_hit() -> usize {
    explore(Client::cached, Planted::default(), &[end_the_session], Client::read)
}

fn end_the_session(client: &Client) {
    client.core.lock().expect("not poisoned").leases.end_all();
    client.acknowledge();
    client.cache.clear();
}
