//! The models. Each function is one model: it panics if an interleaving breaks its property, and
//! returns the number of interleavings. `docs/PROTOCOL.md` defines the rule ids.
//!
//! In each model a reader reads from memory while a write of the object goes on elsewhere. If the
//! write was acknowledged before the read began, the read must not see the old value. This is
//! linearizability of one object, I1 in `tests/simulation/README.md`.

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

/// A thread's stack, in words. A step of the rules needs more than loom's default.
const STACK_WORDS: usize = 1 << 16;

/// Runs a reader beside other threads in every order. Returns the number of orders.
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
            // Read once more after all threads have ended.
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

/// A recall reaches a copy during a read of it. The client must drop it before it consents (S2).
pub fn a_recall_and_a_hit(planted: Planted) -> usize {
    explore(Client::cached, planted, &[Client::recall], Client::read)
}

/// A recall and the grant that it recalls arrive at the same time, on two threads (S4).
pub fn a_recall_and_a_fill(planted: Planted) -> usize {
    explore(Client::filling, planted, &[Client::recall, Client::end_fill], Client::read)
}

/// The volume lease ends during a read of a copy under it. The write waits for no consent, only for
/// the end of the lease (S1).
pub fn the_end_of_a_lease_and_a_hit() -> usize {
    explore(Client::cached, Planted::default(), &[let_the_lease_end], Client::read)
}

/// The same with a mistake: the reader reads the clock before it looks up the copy.
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

/// The client gives up its volume lease, and the write goes on without its consent. Then a copy of
/// the new value arrives under the next lease.
pub fn another_lease_and_a_hit() -> usize {
    explore(Client::cached, Planted::default(), &[begin_another_lease], Client::read)
}

/// The same with a mistake: under the next lease, copies of the earlier lease still count as valid.
pub fn another_lease_and_a_hit_without_a_border() -> usize {
    explore(Client::cached, Planted::default(), &[begin_another_lease_without_a_border], Client::read)
}

fn begin_another_lease(client: &Client) {
    end_the_lease(client);
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

/// The volume lease ends, and the write goes on without a consent. The next lease revives all
/// copies except the changed one, which the client drops before.
pub fn a_revival_and_a_hit() -> usize {
    explore(Client::cached, Planted::default(), &[revive_other_copies], Client::read)
}

/// The same with a mistake: the client drops the changed copy after the revival.
pub fn a_revival_before_the_drop_and_a_hit() -> usize {
    explore(Client::cached, Planted::default(), &[revive_all_copies], Client::read)
}

fn revive_other_copies(client: &Client) {
    end_the_lease(client);
    client.drop_copy();
    set(client, 1);
}

fn revive_all_copies(client: &Client) {
    end_the_lease(client);
    set(client, 1);
    client.drop_copy();
}

fn end_the_lease(client: &Client) {
    client.core.lock().expect("not poisoned").leases.set(&NodePath::root(), VolumeValidity::default());
    client.acknowledge();
}

/// A copy of the new value is installed after the recall of the old one. If the reader has the
/// shard, the installation waits, and the client tries it again.
pub fn an_installation_after_a_recall_and_a_hit() -> usize {
    explore(Client::cached, Planted::default(), &[recall_and_install], Client::read)
}

fn recall_and_install(client: &Client) {
    client.recall();
    client.install_new(Incarnation(1));
    client.try_waiting();
}

/// The session ends. The client drops all copies at once, and the write goes on.
pub fn the_end_of_a_session_and_a_hit() -> usize {
    explore(Client::cached, Planted::default(), &[end_the_session], Client::read)
}

fn end_the_session(client: &Client) {
    client.core.lock().expect("not poisoned").leases.end_all();
    client.acknowledge();
    client.cache.clear();
}
