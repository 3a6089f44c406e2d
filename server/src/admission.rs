//! How many connections there may be at one time, and of whom.
//!
//! Clients, peers and handshakes are counted apart: however many clients there are, the other
//! replicas connect, and whoever is refused hears why. Each connection takes a file descriptor, and
//! a store that gets none fails for good. So the limits follow from how many the process may have,
//! less a reserve.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use leasehold_wire::Role;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;

/// The most connections of clients at one time. Each has a task and its buffers, some tens of
/// kilobytes.
const CLIENTS_MAX: usize = 1 << 14;

/// The most connections of other replicas at one time. Each replica has a few, and makes new ones
/// when it loses them.
const PEERS_MAX: usize = 64;

/// The most handshakes at one time. One more ends the oldest: whoever connects and says nothing keeps
/// nobody out.
const HANDSHAKES_MAX: usize = 64;

/// Descriptors that are kept for the store and for connections to other replicas.
const DESCRIPTORS_RESERVED: usize = 128;

/// Allows this process as many open files as the system lets it have. Returns how many those are.
///
/// A program that runs a [`Server`](crate::Server) calls this before it starts one. The limit that
/// most systems begin with, 1,024, allows some 700 clients.
///
/// # Errors
///
/// What the system says. The limit is as before.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

/// The room for connections of one server.
#[derive(Debug, Clone)]
pub(crate) struct Admission {
    clients: Room,
    peers: Room,
    handshakes: Arc<Handshakes>,
}

/// The handshakes that have not ended, from the oldest on.
#[derive(Debug)]
struct Handshakes {
    most: usize,
    next: AtomicU64,
    all: Mutex<BTreeMap<u64, CancellationToken>>,
}

/// One handshake, until this is dropped.
#[derive(Debug)]
pub(crate) struct Handshake {
    number: u64,
    handshakes: Arc<Handshakes>,
    given_up: CancellationToken,
}

impl Handshake {
    /// Resolves when others need its place.
    pub(crate) async fn given_up(&self) {
        self.given_up.cancelled().await;
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.handshakes.all.lock().remove(&self.number);
    }
}

#[derive(Debug, Clone)]
struct Room {
    most: usize,
    room: Arc<Semaphore>,
}

impl Admission {
    /// The room that the process's limit of open files leaves.
    pub(crate) fn of_this_process() -> io::Result<Self> {
        let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
        let admission = Self::within(usize::try_from(soft).unwrap_or(usize::MAX));
        let most = admission.clients.most;
        if most < CLIENTS_MAX {
            tracing::warn!(
                clients = most,
                open_files = soft,
                "the limit of open files leaves room for few clients: expected {CLIENTS_MAX} clients"
            );
        }
        Ok(admission)
    }

    /// The same, for a process that may have so many files open. A quarter of them is for clients, or more.
    fn within(descriptors: usize) -> Self {
        let others = PEERS_MAX + HANDSHAKES_MAX + DESCRIPTORS_RESERVED;
        let clients = descriptors.saturating_sub(others).max(descriptors / 4).clamp(1, CLIENTS_MAX);
        let peers = PEERS_MAX.min(descriptors / 8).max(1);
        let handshakes = HANDSHAKES_MAX.min(descriptors / 8).max(1);
        let room = |most| Room { most, room: Arc::new(Semaphore::new(most)) };
        Self {
            clients: room(clients),
            peers: room(peers),
            handshakes: Arc::new(Handshakes { most: handshakes, next: AtomicU64::new(0), all: Mutex::default() }),
        }
    }

    /// A handshake begins. If there are too many, the oldest is given up.
    pub(crate) fn handshake(&self) -> Handshake {
        let given_up = CancellationToken::new();
        let mut all = self.handshakes.all.lock();
        let number = self.handshakes.next.fetch_add(1, Ordering::Relaxed);
        while all.len() >= self.handshakes.most
            && let Some((_, oldest)) = all.pop_first()
        {
            oldest.cancel();
        }
        all.insert(number, given_up.clone());
        Handshake { number, handshakes: Arc::clone(&self.handshakes), given_up }
    }

    /// Room for one connection, until what is returned is dropped; or why there is none.
    pub(crate) fn admit(&self, role: Role) -> Result<OwnedSemaphorePermit, String> {
        let (whose, Room { most, room }) = match role {
            Role::Client => ("clients", &self.clients),
            Role::Peer => ("other replicas", &self.peers),
        };
        let permit = Arc::clone(room).try_acquire_owned();
        permit.map_err(|_| format!("{most} connections of {whose}: expected fewer than {most}, try another server"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_connections_leave_descriptors_to_the_store() {
        for descriptors in [64, 256, 1_024, 4_096, 1 << 14, 1 << 20] {
            let Admission { clients, peers, handshakes } = Admission::within(descriptors);
            let all = clients.most + peers.most + handshakes.most;
            assert!(all <= descriptors / 2 || all + DESCRIPTORS_RESERVED <= descriptors, "{all} of {descriptors}");
            assert!(clients.most >= descriptors / 4 || clients.most == CLIENTS_MAX);
        }
        assert_eq!(Admission::within(1_024).clients.most, 768);
        assert_eq!(Admission::within(1 << 20).clients.most, CLIENTS_MAX);
    }

    #[tokio::test]
    async fn oldest_handshake_gives_way_to_one_too_many() {
        let admission = Admission::within(64);
        let mut all: Vec<Handshake> = (0..8).map(|_| admission.handshake()).collect();
        drop(all.remove(3));
        all.push(admission.handshake());
        assert!(all.iter().all(|handshake| !handshake.given_up.is_cancelled()), "there was room");
        all.push(admission.handshake());
        all[0].given_up().await;
        assert!(all[1..].iter().all(|handshake| !handshake.given_up.is_cancelled()));
        drop(all);
        assert!(admission.handshakes.all.lock().is_empty());
    }

    #[test]
    fn clients_take_no_room_from_peers() {
        let admission = Admission::within(64);
        let clients: Vec<_> = (0..16).map(|_| admission.admit(Role::Client).expect("there is room")).collect();
        let refused = admission.admit(Role::Client).expect_err("it is full");
        assert_eq!(refused, "16 connections of clients: expected fewer than 16, try another server");
        drop(admission.admit(Role::Peer).expect("peers have room of their own"));
        drop(clients);
        drop(admission.admit(Role::Client).expect("there is room again"));
    }
}
