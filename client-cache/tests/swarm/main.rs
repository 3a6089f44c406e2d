//! A swarm: several clients make every call of the public API in a random order, with any arguments
//! that the types allow. Calls are cancelled at random, and the leader stops again and again.
//!
//! During the run, no call may panic, no read may be stale, and the rules' invariants must hold in
//! the server. At the end, without disturbances, the test compares clients and server:
//!
//! - the server has what a client counts as its own, and nothing that the client dropped;
//! - a client reads what the server has.
//!
//! A seed repeats the calls and arguments of each caller, but not the order in which tasks run:
//! `LEASEHOLD_SWARM_SEED=N cargo test -p leasehold-client-cache --test swarm`.

// Helpers may panic, as tests do.
#![allow(clippy::unwrap_used)]

mod caller;
#[path = "../common/mod.rs"]
mod common;
mod draw;
mod judge;
mod not_drawn;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path as FilePath,
    sync::Arc,
    time::{Duration, Instant},
};

use caller::Caller;
use common::{Server, within};
use draw::Draw;
use judge::Judge;
use leasehold_client_cache::{LockId, LockStatus, ObjectKind, SessionState, VolumeSettings};
use leasehold_protocol::{command::AnyLease, object::Object};
use not_drawn::NOT_DRAWN;
use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::StdRng, seq::SliceRandom};

const CALLERS: u64 = 4;
/// How often each caller makes each call, if it can.
const ROUNDS: usize = 3;
/// Further rounds have only the calls that nobody has made yet, and end after this time.
const MADE_WITHIN: Duration = Duration::from_secs(120);
/// The longest time before a call is cancelled.
const CALL_MAX: Duration = Duration::from_millis(60);
/// The longest wait for the guard or handle of a call.
const PREPARE_MAX: Duration = Duration::from_millis(300);
/// How often the leader stops in a run.
const STOPS: usize = 6;
/// Much longer than the last effects of the disturbances.
const PATIENCE: Duration = Duration::from_secs(60);

/// The calls that the swarm draws: type and method.
const CALLS: &[&str] = &[
    "Admin::advise",
    "Admin::blocked_reads",
    "Admin::cluster",
    "Admin::create_volume",
    "Admin::ensure_volume",
    "Admin::holders",
    "Admin::leases",
    "Admin::pending_writes",
    "Admin::remove_volume",
    "Admin::services",
    "Admin::set_volume",
    "Admin::volume_stats",
    "Admin::volumes",
    "Barrier::wait",
    "Client::admin",
    "Client::barrier",
    "Client::cached",
    "Client::cached_for",
    "Client::campaign",
    "Client::volume_remaining",
    "Client::volume_stats",
    "Client::children",
    "Client::clock_excess",
    "Client::close",
    "Client::connect",
    "Client::session_state",
    "Client::delete",
    "Client::double_barrier",
    "Client::events",
    "Client::get",
    "Client::grant_lease",
    "Client::locks",
    "Client::keep_lease_alive",
    "Client::leader",
    "Client::lease",
    "Client::list_and_watch",
    "Client::lock",
    "Client::mirror",
    "Client::mutex",
    "Client::observe",
    "Client::put",
    "Client::read",
    "Client::register",
    "Client::registry",
    "Client::revoke_lease",
    "Client::rw_lock",
    "Client::semaphore",
    "Client::session",
    "Client::snapshot",
    "Client::stat",
    "Client::stats",
    "Client::transaction",
    "Client::update",
    "Client::watch",
    "Client::write_lease",
    "DoubleBarrier::enter",
    "Events::next",
    "LockGuard::remaining",
    "LockGuard::downgrade",
    "LockGuard::hand_over",
    "LockGuard::id",
    "LockGuard::is_contended",
    "LockGuard::mode",
    "LockGuard::on_lost",
    "LockGuard::path",
    "LockGuard::release",
    "LockGuard::run",
    "LockGuard::token",
    "LockGuard::upgrade",
    "LockGuard::contended",
    "BarrierGuard::remaining",
    "BarrierGuard::leave",
    "BarrierGuard::on_lost",
    "BarrierGuard::round",
    "KeyLease::remaining",
    "KeyLease::id",
    "KeyLease::on_lost",
    "KeyLease::renewed",
    "KeyLease::revoke",
    "ElectedLeaders::next",
    "Leadership::candidates",
    "Leadership::remaining",
    "Leadership::hand_over",
    "Leadership::is_contended",
    "Leadership::on_lost",
    "Leadership::path",
    "Leadership::proclaim",
    "Leadership::resign",
    "Leadership::run",
    "Leadership::token",
    "Members::next",
    "Members::current",
    "Mirror::changes",
    "Mirror::children",
    "Mirror::get",
    "Mirror::on_closed",
    "Mirror::read",
    "Mirror::revision",
    "Mirror::wait_for_revision",
    "Mirror::snapshot",
    "MirrorChanges::next",
    "Mutex::lock",
    "Mutex::lock_timeout",
    "Mutex::try_lock",
    "MutexGuard::release",
    "Permit::remaining",
    "Permit::on_lost",
    "Permit::path",
    "Permit::release",
    "Permit::token",
    "ReadGuard::release",
    "ReadGuard::upgrade",
    "ReadGuard::contended",
    "Registration::remaining",
    "Registration::epoch",
    "Registration::leave",
    "Registration::on_lost",
    "Registration::path",
    "Registration::revision",
    "Registration::update",
    "Registry::join",
    "Registry::members",
    "RwLock::read",
    "RwLock::read_timeout",
    "RwLock::try_read",
    "RwLock::try_write",
    "RwLock::write",
    "RwLock::write_timeout",
    "Semaphore::acquire",
    "Semaphore::acquire_timeout",
    "Semaphore::try_acquire",
    "Watch::next",
    "Watch::resume_from",
    "WriteGuard::downgrade",
    "WriteGuard::release",
    "WriteGuard::contended",
    "WriteLease::flush",
    "WriteLease::get",
    "WriteLease::is_dirty",
    "WriteLease::lost_change",
    "WriteLease::release",
    "WriteLease::set",
    "server_status",
];

/// How often each call was made.
type Made = Arc<Mutex<BTreeMap<&'static str, u64>>>;

#[test]
fn every_public_function_is_drawn_or_listed() {
    let root = FilePath::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut found = BTreeSet::new();
    public_functions(&root, &mut found);
    let listed: BTreeSet<String> = CALLS.iter().chain(NOT_DRAWN).map(|name| (*name).to_owned()).collect();
    assert_eq!(found, listed, "left: public functions; right: those that the swarm draws or lists as not drawn");
}

/// The public functions in a folder, with their types.
fn public_functions(folder: &FilePath, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        if file.is_dir() {
            public_functions(&file, found);
            continue;
        }
        let text = fs::read_to_string(&file).unwrap();
        let mut of_type: Option<String> = None;
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("impl") {
                of_type = rest.strip_suffix(" {").filter(|rest| !rest.contains(" for ")).map(|rest| {
                    let generics = if rest.starts_with('<') { rest.find("> ").map_or(0, |end| end + 1) } else { 0 };
                    let name = rest[generics..].trim_start();
                    name.split('<').next().unwrap_or(name).to_owned()
                });
            } else if line == "}" {
                of_type = None;
            }
            let Some(rest) = line.trim_start().strip_prefix("pub ") else { continue };
            let rest = rest.strip_prefix("const ").unwrap_or(rest);
            let Some(rest) = rest.strip_prefix("async ").unwrap_or(rest).strip_prefix("fn ") else { continue };
            let name: String = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            match (&of_type, line.starts_with(' ')) {
                (Some(of_type), true) => drop(found.insert(format!("{of_type}::{name}"))),
                (None, false) => drop(found.insert(name)),
                _ => {}
            }
        }
    }
}

/// The calls of `Client` and `Admin`, and the guards, handles and builders, in a folder whose
/// documentation has no example. All types that must be used are guards, handles or builders.
fn entries_without_example(folder: &FilePath, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        if file.is_dir() {
            entries_without_example(&file, found);
            continue;
        }
        let (mut is_entry, mut is_marked, mut has_example) = (false, false, false);
        for line in fs::read_to_string(&file).unwrap().lines() {
            match line.trim_start() {
                text if line.starts_with("impl") => is_entry = text.ends_with(" Client {") || text.contains(" Admin<"),
                "" => (is_marked, has_example) = (false, false),
                text if text.starts_with("/// ```") => has_example = true,
                text if text.starts_with("#[must_use") => is_marked = true,
                text if (is_entry && (text.starts_with("pub fn ") || text.starts_with("pub async fn ")))
                    || (is_marked && text.starts_with("pub struct ")) =>
                {
                    let missing = (!has_example).then(|| format!("{}: {text}", file.display()));
                    found.extend(missing);
                }
                _ => {}
            }
        }
    }
}

#[test]
fn every_call_guard_and_builder_has_an_example() {
    let mut found = Vec::new();
    entries_without_example(&FilePath::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut found);
    assert_eq!(found, [""; 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_calls_in_any_order_break_no_promise() {
    let seed = std::env::var("LEASEHOLD_SWARM_SEED").ok().and_then(|text| text.parse().ok());
    let seed: u64 = seed.unwrap_or_else(|| rand::rng().random());
    println!("LEASEHOLD_SWARM_SEED={seed} cargo test -p leasehold-client-cache --test swarm");
    let mut server = Server::start(Duration::from_secs(2)).await;
    server.check_steps();
    let (judge, made): (Arc<Judge>, Made) = Default::default();
    let mut tasks = Vec::new();
    for number in 0..CALLERS {
        let draw = Draw::new(StdRng::seed_from_u64(seed ^ (number << 32)), number);
        let options = server.options().name(format!("swarm-{number}")).timeout(Duration::from_millis(700));
        let caller = Caller::new(options, draw, Arc::clone(&judge)).await;
        let made = Arc::clone(&made);
        let address = server.address().to_owned();
        tasks.push(tokio::spawn(async move { make_calls(caller, &address, &made).await }));
    }
    let mut stops = 0;
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        tokio::time::sleep(Duration::from_millis(400)).await;
        if stops < STOPS {
            server.stop().await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            server.lead();
            stops += 1;
        }
    }
    let mut callers = Vec::new();
    for task in tasks {
        callers.push(task.await.expect("no call panics"));
    }
    assert_eq!(stops, STOPS, "the leader was stopped while calls were made");
    let made = made.lock().clone();
    let never: Vec<_> = CALLS.iter().filter(|name| !made.contains_key(*name)).collect();
    assert!(never.is_empty(), "never made: {never:?}");
    agree(&server, &mut callers).await;
    assert_eq!(server.violation(), None);
}

/// Makes each call several times, in a random order.
async fn make_calls(mut caller: Caller, address: &str, made: &Made) -> Caller {
    let began = Instant::now();
    for round in 0.. {
        let mut calls = CALLS.to_vec();
        if round >= ROUNDS {
            // A busy machine may not have prepared a call in time. It is drawn until it was made.
            calls.retain(|name| !made.lock().contains_key(name));
            // A quota that was drawn may leave no room for its guard or handle.
            drop(caller.client.admin().set_volume("/").settings(VolumeSettings::DEFAULT).await);
        }
        if calls.is_empty() || began.elapsed() > MADE_WITHIN {
            break;
        }
        calls.shuffle(&mut caller.draw.rng);
        for name in calls {
            let prepare_max = if round < ROUNDS { PREPARE_MAX } else { PATIENCE };
            drop(tokio::time::timeout(prepare_max, caller.prepare(name)).await);
            let most = caller.draw.rng.random_range(Duration::ZERO..CALL_MAX);
            // Connecting takes time that is not the call's.
            let most = if matches!(name, "Client::connect" | "Client::close") { PATIENCE } else { most };
            let call = async {
                if name == "server_status" {
                    drop(leasehold_client_cache::server_status(address, Duration::from_secs(1)).await);
                    return Some(());
                }
                caller.call(name).await
            };
            // A cancelled call had begun, so it counts.
            if tokio::time::timeout(most, call).await != Ok(None) {
                *made.lock().entry(name).or_default() += 1;
            }
        }
    }
    caller
}

/// Waits until there is no violation, or panics with the violation.
async fn eventually(what: &str, mut violation: impl AsyncFnMut() -> Option<String>) {
    let began = Instant::now();
    while let Some(violation) = violation().await {
        assert!(began.elapsed() < PATIENCE, "{what}: {violation}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Checks, after the disturbances, that clients and server agree on locks, leases and contents.
async fn agree(server: &Server, callers: &mut [Caller]) {
    for caller in &*callers {
        let is_connected = |state: &SessionState| matches!(state, SessionState::Connected { .. });
        if caller.client.session().is_some() {
            within(caller.client.session_state().wait_for(is_connected)).await.unwrap();
        }
    }
    eventually("what a client holds is held in the server", async || {
        callers.iter().find_map(|caller| held_by_client_only(server, caller))
    })
    .await;
    for caller in &mut *callers {
        caller.held = caller::Held::default();
    }
    let sessions: BTreeSet<_> = callers.iter().filter_map(|caller| caller.client.session()).collect();
    eventually("what was dropped is released", async || {
        server.with_state(|state| {
            let mut holds = state.locks().filter(|(_, _, hold)| sessions.contains(&hold.session));
            holds.next().map(|(id, path, hold)| format!("{id:?} of {path}: {hold:?}"))
        })
    })
    .await;
    for caller in &*callers {
        for path in Draw::paths() {
            for kind in [ObjectKind::Data, ObjectKind::Children] {
                same_content(server, caller, &path, kind).await;
            }
        }
        within(caller.client.close()).await;
    }
}

/// Something that a client counts as its own and the server does not have.
fn held_by_client_only(server: &Server, caller: &Caller) -> Option<String> {
    let is_held =
        |path: &_, id: LockId| server.with_state(|state| !matches!(state.lock_status(path, id), LockStatus::Ended));
    let holds = caller.held.holds.iter().filter(|hold| !hold.on_lost().is_cancelled());
    let mut holds = holds.filter(|hold| !is_held(hold.path(), hold.id()));
    let registered = caller.held.registrations.iter().filter(|registration| !registration.on_lost().is_cancelled());
    // Other callers may delete the node on purpose, but nobody else ends its lease.
    let mut registered = registered.filter(|registration| {
        server.with_state(|state| {
            let volume = state.volume_of(registration.path()).0;
            let key = |session| AnyLease::Volume(session, volume.clone());
            caller.client.session().is_none_or(|session| state.lease(&key(session)).is_none())
        })
    });
    let leases = caller.held.key_leases.iter().filter(|lease| !lease.on_lost().is_cancelled());
    let mut leases = leases.filter(|lease| {
        let key = AnyLease::KeyLease(lease.id());
        server.with_state(|state| state.lease(&key).is_none())
    });
    holds
        .next()
        .map(|hold| format!("{:?} of {}", hold.id(), hold.path()))
        .or_else(|| registered.next().map(|registration| format!("the registration of {}", registration.path())))
        .or_else(|| leases.next().map(|lease| format!("{:?}", lease.id())))
}

/// Leases may still end for a while. So the contents are compared if they did not change during the
/// read.
async fn same_content(server: &Server, caller: &Caller, path: &leasehold_client_cache::NodePath, kind: ObjectKind) {
    let object = Object { path: path.clone(), kind };
    eventually("a client reads what the server has", async || {
        let before = server.with_state(|state| state.content(&object));
        let found = match caller.client.read(path).kind(kind).await {
            Ok(read) => (*read.content).clone(),
            Err(error) => return Some(format!("{path}: {error}")),
        };
        let after = server.with_state(|state| state.content(&object));
        (found != before || before != after).then(|| format!("{path}: read {found:?}, the server has {after:?}"))
    })
    .await;
}
