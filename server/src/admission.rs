//! How many connections a server accepts at one time, by role.
//!
//! Clients, peers and handshakes have separate limits. So peers can connect however many clients
//! there are, and a refused client gets the reason. Each connection uses a file descriptor, and a
//! store that cannot get one fails permanently. So the limits follow from the process's limit of
//! open files, less a reserve.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_wire::Role;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use parking_lot::Mutex;
use tokio::{
    sync::{Notify, OwnedSemaphorePermit, Semaphore},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

/// The most client connections at one time. Each has a task and buffers of some tens of kilobytes.
const CLIENTS_MAX: usize = 1 << 14;

/// The most connections from other replicas at one time. Each replica has a few, and opens new ones
/// when it loses them.
const PEERS_MAX: usize = 64;

/// The most handshakes at one time. If one more waits, the server drops the oldest after
/// [`HANDSHAKE_GRACE`]. So silent connections do not block others.
const HANDSHAKES_MAX: usize = 64;

/// How long a handshake may take while others wait for its place: some round trips.
const HANDSHAKE_GRACE: Duration = Duration::from_millis(250);

/// Descriptors that are reserved for the store and for connections to other replicas.
const DESCRIPTORS_RESERVED: usize = 128;

/// Raises this process's limit of open files to the system's hard limit. Returns that limit.
///
/// A program that runs a [`Server`](crate::Server) calls this before it starts one. The usual soft
/// limit of 1,024 leaves room for 768 clients.
///
/// # Errors
///
/// The system's error. Then the limit is unchanged.
pub fn raise_descriptor_limit() -> io::Result<u64> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    if soft < hard {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    }
    Ok(hard)
}

/// The connection limits of one server.
#[derive(Debug, Clone)]
pub(crate) struct Admission {
    clients: ConnectionRoom,
    peers: ConnectionRoom,
    handshakes: Arc<Handshakes>,
}

/// The handshakes that have not ended, oldest first.
#[derive(Debug)]
struct Handshakes {
    most: usize,
    next: AtomicU64,
    all: Mutex<BTreeMap<u64, (Instant, CancellationToken)>>,
    ended: Notify,
}

impl Handshakes {
    /// Begins a handshake if there is room, or if the oldest has used up its time. Otherwise
    /// returns how much time the oldest has left.
    fn begin(&self) -> Result<(u64, CancellationToken), Duration> {
        let (mut all, now) = (self.all.lock(), Instant::now());
        if all.len() >= self.most
            && let Some(oldest) = all.first_entry()
        {
            let left = HANDSHAKE_GRACE.saturating_sub(now - oldest.get().0);
            if !left.is_zero() {
                return Err(left);
            }
            oldest.remove().1.cancel();
        }
        let (number, given_up) = (self.next.fetch_add(1, Ordering::Relaxed), CancellationToken::new());
        all.insert(number, (now, given_up.clone()));
        Ok((number, given_up))
    }
}

/// One handshake. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Handshake {
    number: u64,
    handshakes: Arc<Handshakes>,
    given_up: CancellationToken,
}

impl Handshake {
    /// Resolves when other handshakes need this one's place.
    pub(crate) async fn given_up(&self) {
        self.given_up.cancelled().await;
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.handshakes.all.lock().remove(&self.number);
        self.handshakes.ended.notify_one();
    }
}

#[derive(Debug, Clone)]
struct ConnectionRoom {
    most: usize,
    room: Arc<Semaphore>,
}

impl Admission {
    /// The limits that follow from the process's limit of open files.
    pub(crate) fn of_this_process() -> io::Result<Self> {
        let (soft, _) = getrlimit(Resource::RLIMIT_NOFILE)?;
        let admission = Self::within(usize::try_from(soft).unwrap_or(usize::MAX));
        let most = admission.clients.most;
        if most < CLIENTS_MAX {
            tracing::warn!(
                clients = most,
                open_files = soft,
                "the limit of open files leaves room for fewer than {CLIENTS_MAX} clients: raise it with ulimit -n"
            );
        }
        Ok(admission)
    }

    /// The limits of a process that may have this many files open. Clients get at least a quarter
    /// of them, and at most [`CLIENTS_MAX`].
    fn within(descriptors: usize) -> Self {
        let others = PEERS_MAX + HANDSHAKES_MAX + DESCRIPTORS_RESERVED;
        let clients = descriptors.saturating_sub(others).max(descriptors / 4).clamp(1, CLIENTS_MAX);
        let peers = PEERS_MAX.min(descriptors / 8).max(1);
        let handshakes = HANDSHAKES_MAX.min(descriptors / 8).max(1);
        let room = |most| ConnectionRoom { most, room: Arc::new(Semaphore::new(most)) };
        Self {
            clients: room(clients),
            peers: room(peers),
            handshakes: Arc::new(Handshakes {
                most: handshakes,
                next: AtomicU64::new(0),
                all: Mutex::default(),
                ended: Notify::new(),
            }),
        }
    }

    /// Waits for room for another handshake: until one ends, or the oldest has used up its time.
    pub(crate) async fn handshake(&self) -> Handshake {
        loop {
            let left = match self.handshakes.begin() {
                Ok((number, given_up)) => {
                    return Handshake { number, handshakes: Arc::clone(&self.handshakes), given_up };
                }
                Err(left) => left,
            };
            // After a notification and after the timeout, the loop checks again.
            let _ = tokio::time::timeout(left, self.handshakes.ended.notified()).await;
        }
    }

    /// Reserves room for one connection until the permit is dropped, or says why there is none.
    pub(crate) fn admit(&self, role: Role) -> Result<OwnedSemaphorePermit, String> {
        let (whose, ConnectionRoom { most, room }) = match role {
            Role::Client => ("clients", &self.clients),
            Role::Peer => ("other replicas", &self.peers),
        };
        let permit = Arc::clone(room).try_acquire_owned();
        permit.map_err(|_| format!("{most} connections of {whose}, the limit; try another server"))
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

    #[tokio::test(start_paused = true)]
    async fn oldest_handshake_gives_way_after_its_time() {
        let admission = Admission::within(64);
        let mut all = Vec::new();
        for _ in 0..8 {
            all.push(admission.handshake().await);
        }
        let began = Instant::now();
        let ends_soon = all.remove(3);
        let (next, ()) = tokio::join!(admission.handshake(), async { drop(ends_soon) });
        all.push(next);
        assert_eq!(began.elapsed(), Duration::ZERO, "one had ended");
        all.push(admission.handshake().await);
        assert!(began.elapsed() >= HANDSHAKE_GRACE, "{:?}", began.elapsed());
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
        assert_eq!(refused, "16 connections of clients, the limit; try another server");
        drop(admission.admit(Role::Peer).expect("peers have room of their own"));
        drop(clients);
        drop(admission.admit(Role::Client).expect("there is room again"));
    }
}
