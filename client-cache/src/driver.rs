//! The shell around the rules: executes the effects of the [`Holder`], and decides nothing.
//!
//! Each step and its effects run in order under one lock, [`Driver::core`]. So the driver drops a
//! copy before it sends the consent. One step checks a grant's epoch and installs its copy.
//! Registering with a leader is a step too, so it never comes between these two (S4 in
//! docs/PROTOCOL.md). No task awaits under the lock, and readers of cached copies do not take it.

mod housekeeping;
mod key_leases;
mod lifetime;
mod locks;
mod step;
mod waiting;
mod watches;
mod write_leases;

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::Arc,
    time::Duration,
};

use leasehold_protocol::{
    command::{Write, Written},
    holder::{self, Holder, HolderConfig, HolderEffect, HolderInput, ReadId, SendId, WatchId, WriteId},
    id::{LeaseId, LockId, SessionId},
    lease_policy::LeaseRequest,
    message::{Body, Push, Recall, RecallReply, Request, Response},
    object::Object,
    path::NodePath,
    time::Instant,
};
use leasehold_wire::LeaseholdClient;
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{Notify, mpsc, oneshot, watch},
};
use tokio_util::sync::CancellationToken;

use self::{
    housekeeping::WAITING_RETRY,
    step::{DriverStep, drop_cause},
    waiting::WaitingCalls,
};
pub(crate) use self::{
    key_leases::{KeyLeaseShared, KeyLeaseState},
    locks::LockCell,
    write_leases::WriteLeaseCell,
};
use crate::{
    cache::Cache,
    cache_counters::CacheCounterTable,
    clock,
    lost_change::LostChange,
    options::Options,
    pending_release::{PendingRelease, PendingReleases},
    recent::{self, RecentAnswers},
    shared_content::SharedContent,
    stats::count,
    status::{SessionState, Status},
    volume_leases::VolumeLeases,
};

/// The most copies evicted for each one installed. It is more than one, so that the cache shrinks
/// to its bound.
const EVICTIONS_PER_INSTALLATION: usize = 4;

/// The result of a waiting read.
#[derive(Debug)]
pub(crate) enum ReadOutcome {
    Content {
        content: SharedContent,
        /// Whether a server was asked.
        from_server: bool,
        /// Until when the copy may be used, if it has leases that hold.
        valid_until: Option<Instant>,
    },
    /// The cache evicted the copy before it was served. The caller reads again.
    CopyEvicted,
    Failed(holder::ReadFailure),
}

/// An order to the connection's task, which executes its orders one after another.
///
/// The channel of orders is unbounded. But it has at most one request for each object that is read
/// and for each unanswered write, and [`waiting`] limits both. The rules limit all other requests.
// Nearly all orders are the large variant.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
pub(crate) enum ConnectionOrder {
    /// Send the request and return the answer.
    Send(SendId, Request),
    /// Close the connection and look for the leader, first at this address.
    Leave(Option<String>),
}

pub(crate) type WriteOutcome = Result<Written, holder::WriteFailure>;

/// The state that the lock protects.
#[derive(Debug)]
struct DriverCore {
    holder: Holder,
    leases: VolumeLeases,
    /// The reads and writes that the application waits for.
    waiting: WaitingCalls,
    /// The pending releases, by the write that releases.
    release_writes: HashMap<WriteId, PendingRelease>,
    /// The key leases that this client renews.
    key_leases: HashMap<LeaseId, KeyLeaseShared>,
    registration_leases: BTreeMap<(NodePath, u64), key_leases::WatchedRegistration>,
    /// The state of each lock, shared with its guard.
    locks: HashMap<LockId, (NodePath, LockCell)>,
    /// The channel for the changes of each watch.
    watches: HashMap<WatchId, watches::WatchSender>,
    last_id: u64,
    /// When this client last reported its reads from memory to a server.
    reads_reported_at: Instant,
    orders: Option<mpsc::UnboundedSender<ConnectionOrder>>,
    /// The dropped objects that the eviction policy does not know of yet. At most as many as there
    /// were copies.
    unreported_drops: VecDeque<Object>,
    /// When the timer wakes by itself.
    timer_at: Instant,
}

/// What the tasks and the application's handles share.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) options: Options,
    pub(crate) cache: Cache,
    pub(crate) recent: RecentAnswers,
    pub(crate) cache_counters: Arc<CacheCounterTable>,
    pub(crate) status: Status,
    /// The current connection, for requests that bypass the rules.
    pub(crate) connection: watch::Sender<Option<LeaseholdClient>>,
    pub(crate) pending_releases: PendingReleases,
    /// The runtime of the client's tasks: the one that the client connected on.
    runtime: Handle,
    /// Cancelled when the client is closed or its last handle is dropped. Then all tasks end.
    pub(crate) closed: CancellationToken,
    core: Mutex<DriverCore>,
    timer: Notify,
}

impl Driver {
    pub(crate) fn new(options: Options, spread_permille: u16) -> Self {
        let config = HolderConfig {
            drift_allowance: options.drift,
            spread_permille,
            renewal: options.renewal,
            consent_delay: options.consent_delay,
            ..HolderConfig::new(options.name.clone())
        };
        let core = DriverCore {
            holder: Holder::new(config),
            leases: VolumeLeases::default(),
            waiting: WaitingCalls::default(),
            release_writes: HashMap::new(),
            key_leases: HashMap::new(),
            registration_leases: BTreeMap::new(),
            locks: HashMap::new(),
            watches: HashMap::new(),
            last_id: 0,
            reads_reported_at: Instant::ZERO,
            orders: None,
            unreported_drops: VecDeque::new(),
            timer_at: Instant::ZERO,
        };
        Self {
            cache_counters: core.leases.counters(),
            cache: Cache::new(options.cache_capacity_bytes),
            recent: RecentAnswers::new(options.cache_capacity_bytes / recent::SHARE),
            status: Status::new(options.endpoints.clone()),
            connection: watch::Sender::new(None),
            pending_releases: PendingReleases::default(),
            runtime: Handle::current(),
            closed: CancellationToken::new(),
            core: Mutex::new(core),
            timer: Notify::new(),
            options,
        }
    }

    pub(crate) fn read(&self, object: Object, lease: LeaseRequest) -> (ReadId, oneshot::Receiver<ReadOutcome>) {
        let mut core = self.core.lock();
        let read = ReadId(core.next_id());
        let (admitted, receiver) = core.waiting.read(read);
        if let Some(read) = admitted {
            self.step(&mut core, HolderInput::Read { read, object, lease });
        }
        (read, receiver)
    }

    /// Cancels a read, unless it has ended.
    pub(crate) fn cancel_read(&self, read: ReadId) {
        let mut core = self.core.lock();
        if core.waiting.cancel_read(read) {
            self.step(&mut core, HolderInput::CancelRead(read));
        }
    }

    pub(crate) fn write(&self, write: Write) -> (WriteId, oneshot::Receiver<WriteOutcome>) {
        self.begin_write(write, None)
    }

    fn begin_write(
        &self,
        write: Write,
        pending_release: Option<PendingRelease>,
    ) -> (WriteId, oneshot::Receiver<WriteOutcome>) {
        count(&self.cache.counters.writes);
        let mut core = self.core.lock();
        let write_id = WriteId(core.next_id());
        let (admitted, receiver) = core.waiting.write(write_id, &write, pending_release.is_some());
        if let Some(write_id) = admitted {
            core.release_writes.extend(pending_release.map(|pending_release| (write_id, pending_release)));
            core.apply_downgrade(&write);
            core.apply_release(&write);
            self.step(&mut core, HolderInput::Write { write: write_id, change: write });
        }
        (write_id, receiver)
    }

    /// Cancels a write, unless it has ended. The holder then reports that the write was not sent,
    /// or that its outcome is unknown. It goes on with a request for a write lease, a flush and a
    /// downgrade, because the client needs their outcomes.
    pub(crate) fn cancel_write(&self, write_id: WriteId) {
        let mut core = self.core.lock();
        if core.waiting.has_write(write_id) {
            self.step(&mut core, HolderInput::CancelWrite(write_id));
        }
    }

    /// Cancels a write that has not been sent. A sent write may have taken effect, so the client
    /// continues to wait for its answer.
    pub(crate) fn cancel_unsent_write(&self, write_id: WriteId) {
        let mut core = self.core.lock();
        if core.holder.is_unsent(write_id) {
            self.step(&mut core, HolderInput::CancelWrite(write_id));
        }
    }

    /// Registers a new connection. Returns the receiver of its orders.
    pub(crate) fn connected(&self) -> mpsc::UnboundedReceiver<ConnectionOrder> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut core = self.core.lock();
        core.orders = Some(sender);
        self.step(&mut core, HolderInput::Connected);
        receiver
    }

    pub(crate) fn disconnected(&self) {
        let mut core = self.core.lock();
        core.orders = None;
        self.step(&mut core, HolderInput::Disconnected);
    }

    pub(crate) fn answered(&self, send_id: SendId, response: Response) {
        let mut core = self.core.lock();
        let had_session = core.holder.session().is_some();
        let refusal = response.result.as_ref().err().cloned();
        self.step(&mut core, HolderInput::Answered { send_id, response });
        // Wakes callers that wait for a server, after all effects of its answer.
        self.status.heard(refusal, had_session);
    }

    /// Handles a recall. If the reply is a consent, the copies are dropped when this returns. A
    /// delayed consent comes later.
    pub(crate) fn recalled(&self, recall: Recall) -> RecallReply {
        count(&self.cache.counters.recalls);
        count(&self.cache.counters.messages_sent);
        let mut core = self.core.lock();
        self.step(&mut core, HolderInput::Recalled(recall)).unwrap_or(RecallReply::Ignored)
    }

    /// Handles the push of a next value. The rules ignore one that the client no longer waits for.
    pub(crate) fn pushed(&self, push: Push) {
        let Push { send_id, response } = push;
        // A refused push does not change the status, because no call of the application waits for
        // it.
        self.step(&mut self.core.lock(), HolderInput::Answered { send_id: SendId(send_id), response });
    }

    /// Makes the rules check whether the server is alive. A caller does this when the answer to a
    /// request that bypasses the rules is late.
    pub(crate) fn probe(&self) {
        self.step(&mut self.core.lock(), HolderInput::Probe);
    }

    pub(crate) fn session(&self) -> Option<SessionId> {
        self.core.lock().holder.session()
    }

    /// How long the lease on the path's volume certainly lasts. The client may not know the
    /// innermost volume yet.
    pub(crate) fn volume_remaining(&self, path: &NodePath) -> Duration {
        let core = self.core.lock();
        core.holder.volume_remaining(&core.holder.volume_of(path), clock::now())
    }

    /// Runs a step of the rules, and executes its effects in order. Returns the reply to a recall
    /// among them.
    ///
    /// If the step panics, on whichever thread, the client ends. The rules may be in any state, and
    /// effects may be lost, for example the drop of a copy to whose recall the holder consented.
    fn step(&self, core: &mut DriverCore, input: HolderInput) -> Option<RecallReply> {
        catch_unwind(AssertUnwindSafe(|| self.step_unguarded(core, input))).unwrap_or_else(|panic| {
            self.end_after_panic(core);
            resume_unwind(panic)
        })
    }

    fn step_unguarded(&self, core: &mut DriverCore, input: HolderInput) -> Option<RecallReply> {
        let mut step = DriverStep::default();
        let mut next = Some(input);
        while let Some(input) = next {
            step.is_answer = matches!(input, HolderInput::Answered { .. });
            step.drop_cause = drop_cause(&input);
            // Read under the lock, so that the holder's time never runs backwards.
            let now = clock::now();
            for effect in core.holder.step(input, now) {
                self.execute(core, effect, &mut step);
            }
            if step.installed.take().is_some() {
                let evicted = std::iter::from_fn(|| self.cache.evict_next()).take(EVICTIONS_PER_INSTALLATION);
                step.follow_ups.extend(evicted.map(|(object, stamp)| HolderInput::Evicted { object, stamp }));
            }
            next = step.follow_ups.pop_front();
        }
        self.wind_timer(core);
        step.recall_reply
    }

    fn execute(&self, core: &mut DriverCore, effect: HolderEffect, step: &mut DriverStep) {
        match effect {
            HolderEffect::Send { send_id, request } => {
                if let Some(request) = step.attach_to_consent(send_id, request) {
                    self.send(core, send_id, request);
                }
            }
            HolderEffect::Install { object, content, validity } => {
                let volume = core.leases.cell(&validity.volume, validity.incarnation);
                let shared = self.cache.install(&object, Arc::clone(&content), &validity, volume);
                step.installed = Some((content, shared));
            }
            HolderEffect::CopyValidated { object, validity } => {
                let volume = core.leases.cell(&validity.volume, validity.incarnation);
                if !self.cache.copy_validated(&object, &validity, volume) {
                    step.follow_ups.push_back(HolderInput::Evicted { object, stamp: validity.stamp });
                }
            }
            HolderEffect::SelectWanted(objects) => {
                step.follow_ups.extend(self.cache.wanted_of(objects).map(HolderInput::ReadNextValues));
            }
            HolderEffect::Drop(objects) => {
                objects.iter().for_each(|object| self.cache.remove(object, step.drop_cause));
                core.unreported_drops.extend(objects);
            }
            HolderEffect::DropAll => self.drop_all(core),
            HolderEffect::VolumeValidityChanged { volume, validity } => core.set_validity(&volume, validity),
            HolderEffect::Consent(consent) => {
                step.recall_reply = Some(RecallReply::Consented { consent, push_requests: Vec::new() });
            }
            HolderEffect::ConsentDelayed(notice) => step.recall_reply = Some(RecallReply::Delayed(notice)),
            HolderEffect::Serve { reads, object, content, valid_until, .. } => {
                core.serve(reads, &step.shared(object, content), true, valid_until);
            }
            HolderEffect::ServeCached { reads, object, stamp, valid_until } => match self.cache.content(&object, stamp)
            {
                Some(content) => {
                    if step.is_answer {
                        count(&self.cache.counters.validations);
                    }
                    core.serve(reads, &content.fetched(), step.is_answer, valid_until);
                }
                None => {
                    step.follow_ups.push_back(HolderInput::Evicted { object, stamp });
                    core.waiting.finish_reads(reads, || ReadOutcome::CopyEvicted);
                }
            },
            HolderEffect::ReadFailed { reads, error } => {
                core.waiting.finish_reads(reads, || ReadOutcome::Failed(error.clone()))
            }
            HolderEffect::WriteDone { write, result } => {
                let pending_release = core.release_writes.remove(&write);
                if let Ok(written) = &result {
                    core.apply_lock_outcome(written, core.waiting.requests_lock(write));
                }
                // Other writes are noted by the calls that wait for them.
                if pending_release.is_some() && !matches!(result, Err(holder::WriteFailure::Refused(_))) {
                    self.recent.note_write(clock::now());
                }
                drop(pending_release);
                core.waiting.finish_write(write, result);
            }
            HolderEffect::KeyLeaseRenewed { id, incarnation, until, .. } => {
                if let Some(keeper) = core.key_leases.get(&id) {
                    keeper.state.send_replace(KeyLeaseState::Until { until, incarnation });
                }
            }
            HolderEffect::KeyLeaseLost { id } => core.lose_key_lease(id),
            HolderEffect::LockChanged { lock, status } => core.show_lock_status(lock, status),
            HolderEffect::LocksLost { locks, may_remain } => self.lose_locks(core, locks, may_remain, step),
            HolderEffect::WriteLeaseChanged { lock, status } => {
                // The value may have been set or flushed, which is a write of this client.
                self.recent.note_write(clock::now());
                core.update_write_lease(lock, status);
            }
            HolderEffect::FlushLost { lock, value, may_be_written, refusal } => {
                core.flush_lost(lock, |path| LostChange {
                    path,
                    value,
                    may_be_written,
                    refusal: refusal.map(Box::new),
                });
            }
            HolderEffect::AttachedNodesLost { nodes } => {
                nodes.iter().for_each(|(path, revision)| core.lose_registration_lease(path, *revision));
            }
            HolderEffect::Connection(connection) => {
                if let holder::SessionNews::Expired { .. } = connection {
                    core.lose_registration_leases();
                }
                self.report(core, connection.into());
            }
            HolderEffect::ClockExcessChanged { excess } => self.change_clock_excess(core, excess),
            HolderEffect::FindLeader { hint } => core.order(ConnectionOrder::Leave(hint)),
            HolderEffect::Changes { watch, changes } => core.tell_changes(watch, changes),
            HolderEffect::WatchLost { watch, error } => core.end_watch(watch, error),
            HolderEffect::Closed => {
                core.lose_all_leases();
                self.report(core, SessionState::Closed);
                self.closed.cancel();
            }
        }
    }

    fn send(&self, core: &mut DriverCore, send_id: SendId, mut request: Request) {
        count(&self.cache.counters.messages_sent);
        let now = clock::now();
        if request.takes_cached_reads(now.since(core.reads_reported_at)) {
            request.header.cached_reads = self.cache_counters.take_unreported();
            core.reads_reported_at = now;
        }
        let is_read =
            matches!(request.body, Body::Read { .. } | Body::AwaitRead { .. } | Body::Acquire { read: Some(_), .. });
        if is_read {
            count(&self.cache.counters.server_reads);
        }
        core.order(ConnectionOrder::Send(send_id, request));
    }

    fn drop_all(&self, core: &mut DriverCore) {
        // The leases end first. Otherwise readers could still use the remaining copies while others
        // are removed.
        core.leases.end_all();
        self.cache.clear();
        self.recent.clear();
        core.unreported_drops.clear();
    }

    /// Wakes the timer early if the rules now have an earlier deadline, or if changes of the cache
    /// wait for readers.
    fn wind_timer(&self, core: &mut DriverCore) {
        let is_earlier = core.holder.next_deadline().is_some_and(|deadline| deadline < core.timer_at);
        let has_waiting = self.cache.has_waiting() && core.timer_at > clock::now().after(WAITING_RETRY);
        if is_earlier || has_waiting {
            self.timer.notify_one();
        }
    }
}

impl DriverCore {
    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn order(&self, order: ConnectionOrder) {
        if let Some(orders) = &self.orders {
            // The connection may just have ended. Then another input notifies the rules.
            let _ = orders.send(order);
        }
    }

    fn serve(&mut self, reads: Vec<ReadId>, content: &SharedContent, from_server: bool, valid_until: Option<Instant>) {
        let outcome = || ReadOutcome::Content { content: content.clone(), from_server, valid_until };
        self.waiting.finish_reads(reads, outcome);
    }
}

#[cfg(test)]
mod tests;
