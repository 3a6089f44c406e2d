//! One caller: a client, its guards and handles, and its calls.

mod recipes;

use std::{sync::Arc, time::Duration};

use futures::StreamExt;
use leasehold_client_cache::{
    Client, Content, ElectedLeaders, Events, HandOverError, KeyLease, Leadership, LockGuard, LockId, LockWait, Mirror,
    NodePath, Options, Read, Registration, Token, Watch, WriteLease,
    recipes::{BarrierGuard, Members, MutexGuard, Permit, ReadGuard, WriteGuard},
};

use crate::{
    draw::Draw,
    judge::{Floor, Judge},
};

/// The guards and handles of a caller. At most [`HELD_MAX`] of each: a new one replaces the oldest.
#[derive(Default)]
pub struct Held {
    pub holds: Vec<LockGuard>,
    pub write_leases: Vec<WriteLease>,
    pub key_leases: Vec<KeyLease>,
    pub registrations: Vec<Registration>,
    pub leaderships: Vec<Leadership>,
    mutex_guards: Vec<MutexGuard>,
    read_guards: Vec<ReadGuard>,
    write_guards: Vec<WriteGuard>,
    permits: Vec<Permit>,
    insides: Vec<BarrierGuard>,
    watches: Vec<Watch>,
    mirrors: Vec<Mirror>,
    members: Vec<Members>,
    leaders: Vec<ElectedLeaders>,
    events: Vec<Events>,
}

const HELD_MAX: usize = 3;

fn keep<T>(held: &mut Vec<T>, new: T) {
    held.push(new);
    if held.len() > HELD_MAX {
        held.remove(0);
    }
}

/// A client, and the state of its calls.
pub struct Caller {
    pub client: Client,
    pub held: Held,
    pub draw: Draw,
    options: Options,
    judge: Arc<Judge>,
}

impl Caller {
    pub async fn new(options: Options, draw: Draw, judge: Arc<Judge>) -> Self {
        let client = Client::connect(options.clone()).await.expect("a server leads");
        Self { client, held: Held::default(), draw, options, judge }
    }

    /// Makes one call. `None` if the guard or handle for it could not be created.
    pub async fn call(&mut self, name: &str) -> Option<()> {
        match name.split_once("::").map_or(name, |(on, _)| on) {
            "LockGuard" => self.call_hold(name).await,
            "WriteLease" => self.call_write_lease(name).await,
            "KeyLease" | "Registration" | "Registry" | "Members" => self.call_lease(name).await,
            "Leadership" | "ElectedLeaders" => self.call_election(name).await,
            "Mutex" | "MutexGuard" | "RwLock" | "ReadGuard" | "WriteGuard" => self.call_lock(name).await,
            "Semaphore" | "Permit" | "Barrier" | "DoubleBarrier" | "BarrierGuard" => self.call_gathering(name).await,
            "Watch" | "Mirror" | "MirrorChanges" | "Events" => self.call_watch(name).await,
            _ => match self.call_read(name).await {
                Ok(made) => made,
                Err(()) => self.call_write(name).await,
            },
        }
    }

    /// Creates the guard for the call, if other callers would often prevent that.
    pub async fn prepare(&mut self, name: &str) {
        let (client, own) = (self.client.clone(), self.draw.own_path());
        match name.split_once("::").map_or(name, |(on, _)| on) {
            "Permit" if self.held.permits.is_empty() => {
                self.held.permits.extend(client.semaphore(&own, 1).try_acquire().await.ok().flatten());
            }
            "BarrierGuard" if self.held.insides.is_empty() => {
                self.held.insides.extend(client.double_barrier(&own, 1).enter().await.ok());
            }
            "MutexGuard" if self.held.mutex_guards.is_empty() => {
                self.held.mutex_guards.extend(client.mutex(&own).try_lock().await.ok().flatten());
            }
            "ReadGuard" if self.held.read_guards.is_empty() => {
                self.held.read_guards.extend(client.rw_lock(&own).try_read().await.ok().flatten());
            }
            "WriteGuard" if self.held.write_guards.is_empty() => {
                self.held.write_guards.extend(client.rw_lock(&own).try_write().await.ok().flatten());
            }
            _ => {}
        }
    }

    fn tokens(&self) -> Option<Token> {
        self.held.holds.last().map(LockGuard::token).or(self.held.leaderships.last().map(Leadership::token))
    }

    fn judge_read(&self, path: &NodePath, floor: Floor, read: &Read) {
        if let Content::Data(found) = &*read.content {
            self.judge.read(path, floor, found.as_ref());
        }
    }

    /// Makes a read or an inspection. `Err` if the call is neither.
    async fn call_read(&mut self, name: &str) -> Result<Option<()>, ()> {
        let (client, path) = (self.client.clone(), self.draw.path());
        let floor = self.judge.floor(&path);
        match name {
            "Client::get" => {
                if let Ok(found) = self.draw.read(client.get(&path)).await {
                    self.judge.read(&path, floor, found.as_deref());
                }
            }
            "Client::cached" => {
                if let Some(content) = client.cached(&path)
                    && let Content::Data(found) = &*content
                {
                    self.judge.read(&path, floor, found.as_ref());
                }
            }
            "Client::read" => {
                let kind = self.draw.kind();
                let read = self.draw.read(client.read(&path).kind(kind));
                let read = if self.draw.chance(4) { read.max_stale(Duration::from_secs(1)) } else { read };
                if let Ok(read) = read.await
                    && read.age.is_none()
                {
                    self.judge_read(&path, floor, &read);
                }
            }
            "Client::snapshot" => {
                let paths = [path.clone(), self.draw.path(), self.draw.path()];
                if let Ok(snapshot) = self.draw.snapshot(client.snapshot(&paths)).await {
                    self.judge.read(&path, floor, snapshot.entries[0].as_deref());
                }
            }
            "Client::children" => drop(self.draw.read(client.children(&path)).await),
            "Client::stat" => drop(client.stat(&path).await),
            "Client::leader" => drop(client.leader(&path).await),
            "Client::list_and_watch" => drop(client.list_and_watch(&path).await),
            "Admin::holders" => drop(client.admin().holders(&path).await),
            "Admin::pending_writes" => drop(client.admin().pending_writes(&path).await),
            "Admin::blocked_reads" => drop(client.admin().blocked_reads(&path).await),
            "Admin::advise" => drop(client.admin().advise(&path).await),
            "Admin::volume_stats" => drop(client.admin().volume_stats(&path).await),
            "Admin::volumes" => drop(client.admin().volumes(&path).await),
            "Client::locks" => drop(client.locks(&path).await),
            "Admin::cluster" => drop(client.admin().cluster().await),
            "Admin::services" => drop(client.admin().services(&path).await),
            "Client::lease" => {
                let lease = client.lease(self.draw.lease_ref());
                drop(if self.draw.rng_bool() { lease.with_nodes().await } else { lease.await });
            }
            "Admin::leases" => drop(client.admin().leases().await),
            "Client::session_state" => drop(client.session_state()),
            "Client::clock_excess" => drop(client.clock_excess()),
            "Client::volume_remaining" => drop(client.volume_remaining(&path)),
            "Client::cached_for" => drop(client.cached_for(&path)),
            "Client::volume_stats" => drop(client.volume_stats()),
            "Client::stats" => drop(client.stats()),
            "Client::session" => drop(client.session()),
            "Client::admin" => drop(client.admin().cluster().await),
            _ => return Err(()),
        }
        Ok(Some(()))
    }

    async fn call_write(&mut self, name: &str) -> Option<()> {
        let (client, path) = (self.client.clone(), self.draw.path());
        match name {
            "Client::connect" => {
                self.held = Held::default();
                if let Ok(client) = Client::connect(self.options.clone()).await {
                    self.client = client;
                }
            }
            "Client::close" => {
                client.close().await;
                // The caller's other calls need an open client.
                self.client = Client::connect(self.options.clone()).await.ok()?;
            }
            "Client::put" => {
                let put = client.put(&path, self.draw.value());
                let put = if self.draw.rng_bool() { self.draw.put(put).await } else { put.await };
                put.iter().for_each(|written| self.judge.written(&path, written));
            }
            "Client::delete" => drop(self.draw.delete(client.delete(&path)).await),
            "Admin::create_volume" => drop(client.admin().create_volume(&path).settings(self.draw.settings()).await),
            "Admin::ensure_volume" => drop(client.admin().ensure_volume(&path).settings(self.draw.settings()).await),
            "Admin::set_volume" => {
                let (set, settings) = (client.admin().set_volume(&path), self.draw.settings());
                let set = if self.draw.rng_bool() { set.settings(settings) } else { set.tracking(settings.tracking()) };
                drop(set.await);
            }
            "Admin::remove_volume" => drop(client.admin().remove_volume(&path).await),
            "Client::transaction" => {
                let transaction = self.draw.transaction(self.tokens());
                drop(self.draw.transact(client.transaction(transaction)).await);
            }
            "Client::update" => {
                let (value, always) = (self.draw.value(), self.draw.rng_bool());
                let update = client.update(&path, |found| (always || found.is_some()).then(|| value.clone()));
                drop(self.draw.update(update).await);
            }
            "Client::lock" => keep(&mut self.held.holds, self.draw.lock(client.lock(&path)).await.ok()?),
            "Client::write_lease" => {
                let lease = self.draw.write_lease(client.write_lease(&path)).await.ok()?;
                keep(&mut self.held.write_leases, lease);
            }
            "Client::grant_lease" => {
                let ttl = self.draw.duration();
                drop(self.draw.grant(client.grant_lease(ttl)).await);
            }
            "Client::keep_lease_alive" => {
                keep(&mut self.held.key_leases, client.keep_lease_alive(self.draw.lease_ref()).await.ok()?);
            }
            "Client::revoke_lease" => drop(client.revoke_lease(self.draw.lease_ref()).await),
            "Client::register" => {
                let register = client.register(&path, self.draw.value());
                keep(&mut self.held.registrations, self.draw.register(register).await.ok()?);
            }
            "Client::campaign" => {
                let leadership = client.campaign(&path, self.draw.value()).wait(self.draw.wait()).await.ok()?;
                keep(&mut self.held.leaderships, leadership);
            }
            "Client::watch" => {
                keep(&mut self.held.watches, self.draw.watch(client.watch(&path)).await.ok()?);
            }
            "Client::mirror" => keep(&mut self.held.mirrors, client.mirror(&path).await.ok()?),
            "Client::observe" => keep(&mut self.held.leaders, client.observe(&path)),
            "Client::events" => keep(&mut self.held.events, client.events()),
            "Client::mutex" => drop(client.mutex(&path)),
            "Client::rw_lock" => drop(client.rw_lock(&path)),
            "Client::semaphore" => drop(client.semaphore(&path, self.draw.count())),
            "Client::barrier" => drop(client.barrier(&path, self.draw.count())),
            "Client::double_barrier" => drop(client.double_barrier(&path, self.draw.count())),
            "Client::registry" => drop(client.registry(&path)),
            _ => panic!("{name} is listed and cannot be made"),
        }
        Some(())
    }

    /// This caller's own locks: a hand-over may name one of them.
    fn hold_ids(&self) -> Vec<LockId> {
        self.held.holds.iter().map(LockGuard::id).collect()
    }

    async fn call_hold(&mut self, name: &str) -> Option<()> {
        let known = self.hold_ids();
        let mut hold = match self.held.holds.pop() {
            Some(hold) => hold,
            None => {
                let path = self.draw.path();
                self.draw.lock(self.client.lock(&path)).await.ok()?
            }
        };
        match name {
            "LockGuard::path" => drop(hold.path().clone()),
            "LockGuard::id" => drop(hold.id()),
            "LockGuard::token" => drop(hold.token()),
            "LockGuard::mode" => drop(hold.mode()),
            "LockGuard::remaining" => drop(hold.remaining()),
            "LockGuard::on_lost" => drop(hold.on_lost()),
            "LockGuard::is_contended" => drop(hold.is_contended()),
            "LockGuard::run" => drop(hold.run(tokio::task::yield_now()).await),
            "LockGuard::contended" => hold.contended().await,
            "LockGuard::upgrade" => drop(hold.upgrade(self.draw.wait()).await),
            "LockGuard::downgrade" => drop(hold.downgrade().await),
            "LockGuard::release" => {
                drop(hold.release().await);
                return Some(());
            }
            "LockGuard::hand_over" => {
                if let Err(HandOverError::Unchanged(hold, _)) = hold.hand_over(self.draw.hold_id(&known)).await {
                    keep(&mut self.held.holds, hold);
                }
                return Some(());
            }
            _ => panic!("{name} is listed and cannot be made"),
        }
        keep(&mut self.held.holds, hold);
        Some(())
    }

    async fn call_write_lease(&mut self, name: &str) -> Option<()> {
        let lease = match self.held.write_leases.pop() {
            Some(lease) => lease,
            None => {
                let path = self.draw.path();
                drop(self.client.put(&path, self.draw.value()).await);
                self.draw.write_lease(self.client.write_lease(&path)).await.ok()?
            }
        };
        match name {
            "WriteLease::get" => drop(lease.get().await),
            "WriteLease::set" => drop(lease.set(self.draw.value()).await),
            "WriteLease::flush" => drop(lease.flush().await),
            "WriteLease::is_dirty" => drop(lease.is_dirty()),
            "WriteLease::lost_change" => drop(lease.lost_change().await),
            "WriteLease::release" => {
                drop(lease.release().await);
                return Some(());
            }
            _ => panic!("{name} is listed and cannot be made"),
        }
        keep(&mut self.held.write_leases, lease);
        Some(())
    }

    async fn call_lease(&mut self, name: &str) -> Option<()> {
        let path = self.draw.path();
        match name {
            "Registry::join" => {
                let (node, value) = (["one", "two", "", "a/b"][self.draw.below(4)], self.draw.value());
                let joined = self.client.registry(&path).join(node, value).await.ok()?;
                keep(&mut self.held.registrations, joined);
            }
            "Registry::members" => {
                keep(&mut self.held.members, self.client.registry(&path).members().await.ok()?);
            }
            "Members::current" | "Members::next" => {
                if self.held.members.is_empty() {
                    self.held.members.push(self.client.registry(&path).members().await.ok()?);
                }
                let members = self.held.members.last_mut()?;
                match name {
                    "Members::current" => drop(members.current().count()),
                    _ if self.draw.rng_bool() => drop(StreamExt::next(members).await),
                    _ => drop(members.next().await),
                }
            }
            _ if name.starts_with("Registration::") => {
                let mut registration = match self.held.registrations.pop() {
                    Some(registration) => registration,
                    None => {
                        let register = self.client.register(&path, self.draw.value());
                        self.draw.register(register).await.ok()?
                    }
                };
                match name {
                    "Registration::path" => drop(registration.path().clone()),
                    "Registration::epoch" => drop(registration.epoch()),
                    "Registration::revision" => drop(registration.revision()),
                    "Registration::update" => {
                        let value = self.draw.value();
                        let put = registration.update(value).await;
                        put.iter().for_each(|written| self.judge.written(registration.path(), written));
                    }
                    "Registration::remaining" => drop(registration.remaining()),
                    "Registration::on_lost" => drop(registration.on_lost()),
                    "Registration::leave" => {
                        drop(registration.leave().await);
                        return Some(());
                    }
                    _ => panic!("{name} is listed and cannot be made"),
                }
                keep(&mut self.held.registrations, registration);
            }
            _ => return self.call_key_lease(name).await,
        }
        Some(())
    }

    async fn call_key_lease(&mut self, name: &str) -> Option<()> {
        let mut lease = match self.held.key_leases.pop() {
            Some(lease) => lease,
            None => {
                let id = self.draw.lease_id();
                drop(self.client.grant_lease(Duration::from_secs(2)).id(id).await);
                self.client.keep_lease_alive(id).await.ok()?
            }
        };
        match name {
            "KeyLease::id" => drop(lease.id()),
            "KeyLease::remaining" => drop(lease.remaining()),
            "KeyLease::renewed" => drop(lease.renewed().await),
            "KeyLease::on_lost" => drop(lease.on_lost()),
            "KeyLease::revoke" => {
                drop(lease.revoke().await);
                return Some(());
            }
            _ => panic!("{name} is listed and cannot be made"),
        }
        keep(&mut self.held.key_leases, lease);
        Some(())
    }

    async fn call_election(&mut self, name: &str) -> Option<()> {
        let path = self.draw.path();
        if name == "ElectedLeaders::next" {
            let mut leaders = self.client.observe(&path);
            drop(if self.draw.rng_bool() { StreamExt::next(&mut leaders).await } else { Some(leaders.next().await) });
            return Some(());
        }
        let leadership = match self.held.leaderships.pop() {
            Some(leadership) => leadership,
            None => self.client.campaign(&path, self.draw.value()).wait(LockWait::No).await.ok()?,
        };
        match name {
            "Leadership::path" => drop(leadership.path().clone()),
            "Leadership::token" => drop(leadership.token()),
            "Leadership::remaining" => drop(leadership.remaining()),
            "Leadership::on_lost" => drop(leadership.on_lost()),
            "Leadership::is_contended" => drop(leadership.is_contended()),
            "Leadership::run" => drop(leadership.run(tokio::task::yield_now()).await),
            "Leadership::proclaim" => drop(leadership.proclaim(self.draw.value()).await),
            "Leadership::candidates" => drop(leadership.candidates().await),
            "Leadership::hand_over" => {
                let to = self.draw.hold_id(&self.hold_ids());
                if let Err(HandOverError::Unchanged(leadership, _)) = leadership.hand_over(to).await {
                    keep(&mut self.held.leaderships, leadership);
                }
                return Some(());
            }
            "Leadership::resign" => {
                drop(leadership.resign().await);
                return Some(());
            }
            _ => panic!("{name} is listed and cannot be made"),
        }
        keep(&mut self.held.leaderships, leadership);
        Some(())
    }

    async fn call_watch(&mut self, name: &str) -> Option<()> {
        let path = self.draw.path();
        match name {
            "Events::next" => {
                let mut events = self.held.events.pop().unwrap_or_else(|| self.client.events());
                let _ =
                    if self.draw.rng_bool() { StreamExt::next(&mut events).await } else { Some(events.next().await) };
            }
            _ if name.starts_with("Watch::") => {
                let mut watch = match self.held.watches.pop() {
                    Some(watch) => watch,
                    None => self.draw.watch(self.client.watch(&path)).await.ok()?,
                };
                match name {
                    "Watch::next" if self.draw.rng_bool() => drop(StreamExt::next(&mut watch).await),
                    "Watch::next" => drop(watch.next().await),
                    "Watch::resume_from" => drop(watch.resume_from()),
                    _ => panic!("{name} is listed and cannot be made"),
                }
                keep(&mut self.held.watches, watch);
            }
            _ => {
                if self.held.mirrors.is_empty() {
                    self.held.mirrors.push(self.client.mirror(&path).await.ok()?);
                }
                let revision = leasehold_client_cache::Revision(self.draw.number());
                let mirror = self.held.mirrors.last()?;
                match name {
                    "Mirror::get" => drop(mirror.get(&path)),
                    "Mirror::children" => drop(mirror.children(&path)),
                    "Mirror::read" => drop(mirror.read(|subtree| subtree.nodes.len())),
                    "Mirror::snapshot" => drop(mirror.snapshot()),
                    "Mirror::revision" => drop(mirror.revision()),
                    "Mirror::wait_for_revision" => drop(mirror.wait_for_revision(revision).await),
                    "Mirror::changes" => drop(mirror.changes()),
                    "Mirror::on_closed" => drop(mirror.on_closed()),
                    "MirrorChanges::next" => drop(mirror.changes().1.next().await),
                    _ => panic!("{name} is listed and cannot be made"),
                }
            }
        }
        Some(())
    }
}
