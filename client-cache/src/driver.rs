//! The shell around the rules: carries out what the holder says, and decides nothing.
//!
//! One lock, [`Driver::core`], is held around each step and its effects, in order. So a copy is
//! dropped before the consent leaves, and checking the epoch, installing and registering are one
//! step each (S4). It is never held across an await. Readers of cached copies do not take it.

mod housekeeping;
mod key_leases;
mod locks;
mod waiting;
mod watches;
mod write_leases;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use leasehold_protocol::{
    command::{Write, Written},
    holder::{self, Holder, HolderConfig, HolderEffect, HolderInput, ReadId, SendId, WatchId, WriteId},
    id::{LeaseId, LockId, SessionId, Stamp},
    message::{Body, Consent, Recall, Request, Response},
    object::{Content, Object},
    path::NodePath,
    time::Instant,
};
use leasehold_wire::LeaseholdClient;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use self::waiting::WaitingCalls;
use crate::{
    cache::Cache,
    clock,
    key_lease::{KeyLeaseShared, KeyLeaseState},
    lock::LockCell,
    options::Options,
    pending_release::{PendingRelease, PendingReleases},
    shared_content::SharedContent,
    stats::count,
    status::{ConnectionState, Status},
    volume_leases::VolumeLeases,
    write_lease::LostChange,
};

/// Copies taken out of the cache with each one put in, at most: more than one, so that the cache
/// shrinks to its bound.
const EVICTIONS_PER_INSTALLATION: usize = 4;

/// What a waiting read gets.
#[derive(Debug)]
pub(crate) enum ReadOutcome {
    /// The content.
    Content {
        content: SharedContent,
        /// Whether a server was asked.
        from_server: bool,
        /// Until when it may be used, if it came with leases that hold.
        valid_until: Option<Instant>,
    },
    /// The cache lost the copy that was to be served: read again.
    CopyEvicted,
    /// Why there is none.
    Failed(holder::ReadFailure),
}

/// What the connection is asked to do, in order. Not bounded by itself: it holds at most one
/// request for each object that somebody waits for and each write that somebody waits for, which
/// [`waiting`] bounds, and what the rules send on their own, which has its bounds there.
// Nearly all of them are the large one.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
pub(crate) enum ConnectionOrder {
    /// Send the request and bring the answer.
    Send(SendId, Request),
    /// Give the connection up, and look for the leader, perhaps there.
    Leave(Option<String>),
}

pub(crate) type WriteOutcome = Result<Written, holder::WriteFailure>;

/// What the lock protects.
#[derive(Debug)]
struct DriverCore {
    holder: Holder,
    leases: VolumeLeases,
    /// The reads and writes that somebody waits for.
    waiting: WaitingCalls,
    /// The writes that give something back, until they are done.
    release_writes: HashMap<WriteId, PendingRelease>,
    /// The key leases that are kept alive.
    key_leases: HashMap<LeaseId, KeyLeaseShared>,
    /// Who wants to know when the lease is over that a node goes with.
    owner_leases: HashMap<u64, (NodePath, CancellationToken)>,
    /// What guards know of their holds.
    locks: HashMap<LockId, (NodePath, LockCell)>,
    /// Who is told what happens.
    watches: HashMap<WatchId, watches::WatchSender>,
    last_id: u64,
    orders: Option<mpsc::UnboundedSender<ConnectionOrder>>,
    /// Dropped from the cache; the policy has yet to be told. At most as many as there were copies.
    forgotten: VecDeque<Object>,
    /// When the timer will wake by itself.
    timer_at: Instant,
}

/// Everything that the tasks and the application's handles share.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) options: Options,
    pub(crate) cache: Cache,
    pub(crate) status: Status,
    /// The current connection, for questions that the rules have no part in.
    pub(crate) connection: watch::Sender<Option<LeaseholdClient>>,
    pub(crate) pending_releases: PendingReleases,
    /// Cancelled when the client is closed or its last handle dropped: all tasks end.
    pub(crate) closed: CancellationToken,
    core: Mutex<DriverCore>,
    timer: Notify,
}

/// Which effects come from an answer, and the consent among them.
#[derive(Debug, Default)]
struct StepOrigin {
    is_answer: bool,
    consent: Option<Consent>,
    /// What was installed last: most often it is what the reads that asked for it are served, too.
    installed: Option<(Arc<Content>, SharedContent)>,
    /// Inputs that the effects give rise to.
    follow: VecDeque<HolderInput>,
}

impl StepOrigin {
    /// The content as readers share it: with the cache, if it has just been installed there.
    fn shared(&self, object: Object, content: Arc<Content>) -> SharedContent {
        match &self.installed {
            Some((installed, shared)) if Arc::ptr_eq(installed, &content) => shared.clone(),
            _ => SharedContent::new(object.path, content),
        }
    }
}

impl Driver {
    pub(crate) fn new(options: Options, spread_permille: u16) -> Self {
        let config =
            HolderConfig { drift_allowance: options.drift, spread_permille, ..HolderConfig::new(options.name.clone()) };
        let core = DriverCore {
            holder: Holder::new(config),
            leases: VolumeLeases::default(),
            waiting: WaitingCalls::default(),
            release_writes: HashMap::new(),
            key_leases: HashMap::new(),
            owner_leases: HashMap::new(),
            locks: HashMap::new(),
            watches: HashMap::new(),
            last_id: 0,
            orders: None,
            forgotten: VecDeque::new(),
            timer_at: Instant::ZERO,
        };
        Self {
            cache: Cache::new(options.cache_capacity_bytes),
            status: Status::new(options.endpoints.clone()),
            connection: watch::Sender::new(None),
            pending_releases: PendingReleases::default(),
            closed: CancellationToken::new(),
            core: Mutex::new(core),
            timer: Notify::new(),
            options,
        }
    }

    /// A read begins.
    pub(crate) fn read(&self, object: Object) -> (ReadId, oneshot::Receiver<ReadOutcome>) {
        let mut core = self.core.lock();
        let read = ReadId(core.next_id());
        let (admitted, receiver) = core.waiting.read(read);
        if let Some(read) = admitted {
            self.step(&mut core, HolderInput::Read { read, object });
        }
        (read, receiver)
    }

    /// Nobody waits for the read any more.
    pub(crate) fn cancel_read(&self, read: ReadId) {
        let mut core = self.core.lock();
        if core.waiting.cancel_read(read) {
            self.step(&mut core, HolderInput::CancelRead(read));
        }
    }

    /// A write begins.
    pub(crate) fn write(&self, change: Write) -> (WriteId, oneshot::Receiver<WriteOutcome>) {
        self.begin_write(change, None)
    }

    fn begin_write(
        &self,
        change: Write,
        withdrawal: Option<PendingRelease>,
    ) -> (WriteId, oneshot::Receiver<WriteOutcome>) {
        count(&self.cache.counters.writes);
        let mut core = self.core.lock();
        let write = WriteId(core.next_id());
        let (admitted, receiver) = core.waiting.write(write, &change, withdrawal.is_some());
        if let Some(write) = admitted {
            core.release_writes.extend(withdrawal.map(|withdrawal| (write, withdrawal)));
            core.apply_downgrade(&change);
            self.step(&mut core, HolderInput::Write { write, change });
        }
        (write, receiver)
    }

    /// Nobody wants to wait for the write any longer. What is known of it is sent to its receiver.
    pub(crate) fn cancel_write(&self, write: WriteId) {
        let mut core = self.core.lock();
        if core.waiting.has_write(write) {
            self.step(&mut core, HolderInput::CancelWrite(write));
        }
    }

    /// Nobody wants the write any longer. If it has not been sent, it never will be. If it has, it
    /// may have happened, so its answer is still waited for.
    pub(crate) fn cancel_unsent_write(&self, write: WriteId) {
        let mut core = self.core.lock();
        if core.holder.is_unsent(write) {
            self.step(&mut core, HolderInput::CancelWrite(write));
        }
    }

    /// A connection is up: what is to be sent on it comes out of the receiver.
    pub(crate) fn connected(&self) -> mpsc::UnboundedReceiver<ConnectionOrder> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut core = self.core.lock();
        core.orders = Some(sender);
        self.step(&mut core, HolderInput::Connected);
        receiver
    }

    /// The connection is over.
    pub(crate) fn disconnected(&self) {
        let mut core = self.core.lock();
        core.orders = None;
        self.step(&mut core, HolderInput::Disconnected);
    }

    /// An answer has come.
    pub(crate) fn answered(&self, send_id: SendId, response: Response) {
        let mut core = self.core.lock();
        let had_session = core.holder.session().is_some();
        let refusal = response.result.as_ref().err().cloned();
        self.step(&mut core, HolderInput::Answered { send_id, response });
        // Whoever waits for a server goes on when all that follows from its answer has been told.
        self.status.heard(refusal, had_session);
    }

    /// A recall has come. The copies are dropped when this returns. A recall from another session
    /// of this client is answered by a consent to no recall.
    pub(crate) fn recalled(&self, recall: Recall) -> Consent {
        count(&self.cache.counters.recalls);
        count(&self.cache.counters.messages_sent);
        let nothing = Consent { session: recall.session, stamp: Stamp::default() };
        let mut core = self.core.lock();
        self.step(&mut core, HolderInput::Recalled(recall)).unwrap_or(nothing)
    }

    /// Has the rules ask the server for a sign of life, because a question that they do not know of
    /// is unanswered.
    pub(crate) fn probe(&self) {
        self.step(&mut self.core.lock(), HolderInput::Probe);
    }

    /// The application closes the session.
    pub(crate) fn close(&self) {
        self.step(&mut self.core.lock(), HolderInput::Close);
    }

    /// The session, once there is one.
    pub(crate) fn session(&self) -> Option<SessionId> {
        self.core.lock().holder.session()
    }

    /// How long the lease on the volume that the path belongs to, as far as is known, is certain to
    /// hold.
    pub(crate) fn volume_remaining(&self, path: &NodePath) -> Duration {
        let core = self.core.lock();
        core.holder.volume_remaining(&core.holder.volume_of(path), clock::now())
    }

    /// Takes a step of the rules and carries out its effects, in order. Returns the consent among
    /// them.
    fn step(&self, core: &mut DriverCore, input: HolderInput) -> Option<Consent> {
        let mut step = StepOrigin::default();
        let mut next = Some(input);
        while let Some(input) = next {
            step.is_answer = matches!(input, HolderInput::Answered { .. });
            // Under the lock, so that the holder's time does not run backwards.
            let now = clock::now();
            for effect in core.holder.step(input, now) {
                self.execute(core, effect, &mut step);
            }
            if step.installed.take().is_some() {
                let evicted = std::iter::from_fn(|| self.cache.evict_next()).take(EVICTIONS_PER_INSTALLATION);
                step.follow.extend(evicted.map(|(object, stamp)| HolderInput::Evicted { object, stamp }));
            }
            next = step.follow.pop_front();
        }
        self.wind_timer(core);
        step.consent
    }

    fn execute(&self, core: &mut DriverCore, effect: HolderEffect, step: &mut StepOrigin) {
        match effect {
            HolderEffect::Send { send_id, request } => self.send(core, send_id, request),
            HolderEffect::Install { object, content, validity } => {
                let volume = core.leases.cell(&validity.volume, validity.incarnation);
                let shared = self.cache.install(&object, Arc::clone(&content), &validity, volume);
                step.installed = Some((content, shared));
            }
            HolderEffect::Revalidate { object, validity } => {
                let volume = core.leases.cell(&validity.volume, validity.incarnation);
                if !self.cache.revalidate(&object, &validity, volume) {
                    step.follow.push_back(HolderInput::Evicted { object, stamp: validity.stamp });
                }
            }
            HolderEffect::Drop(objects) => {
                objects.iter().for_each(|object| self.cache.remove(object));
                core.forgotten.extend(objects);
            }
            HolderEffect::DropAll => self.drop_all(core),
            HolderEffect::VolumeValidityChanged { volume, validity } => core.leases.set(&volume, validity),
            HolderEffect::Consent(consent) => step.consent = Some(consent),
            HolderEffect::Serve { reads, object, content, valid_until, .. } => {
                core.serve(reads, &step.shared(object, content), true, valid_until);
            }
            HolderEffect::ServeCached { reads, object, stamp, valid_until } => match self.cache.content(&object, stamp)
            {
                Some(content) => {
                    if step.is_answer {
                        count(&self.cache.counters.revalidations);
                    }
                    core.serve(reads, &content, step.is_answer, valid_until);
                }
                None => {
                    step.follow.push_back(HolderInput::Evicted { object, stamp });
                    core.waiting.finish_reads(reads, || ReadOutcome::CopyEvicted);
                }
            },
            HolderEffect::ReadFailed { reads, error } => {
                core.waiting.finish_reads(reads, || ReadOutcome::Failed(error.clone()))
            }
            HolderEffect::WriteDone { write, result } => {
                let withdrawal = core.release_writes.remove(&write);
                if let Ok(written) = &result {
                    core.apply_lock_grant(written, withdrawal.is_some());
                }
                drop(withdrawal);
                core.waiting.finish_write(write, result);
            }
            HolderEffect::KeyLeaseRenewed { id, until, .. } => {
                if let Some(keeper) = core.key_leases.get(&id) {
                    keeper.state.send_replace(KeyLeaseState::Until(until));
                }
            }
            HolderEffect::KeyLeaseLost { id } => core.lose_key_lease(id),
            HolderEffect::LockChanged { lock, status } => core.update_lock_status(lock, status),
            HolderEffect::LocksLost { locks } => self.lose_locks(core, locks, step),
            HolderEffect::WriteLeaseChanged { lock, status } => core.update_write_lease(lock, status),
            HolderEffect::FlushLost { lock, value, may_be_there: may_be_written, refusal } => {
                core.flush_lost(lock, |path| LostChange {
                    path,
                    value,
                    may_be_written,
                    refusal: refusal.map(Box::new),
                });
            }
            HolderEffect::AttachedNodesLost { nodes } => core.lose_owner_leases(|path| nodes.contains(path)),
            HolderEffect::Connection(connection) => {
                if let holder::ConnectionNews::Expired { .. } = connection {
                    core.lose_owner_leases(|_| true);
                }
                self.status.changed(connection.into());
            }
            HolderEffect::ClockExcessChanged { excess } => self.status.clock_changed(excess),
            HolderEffect::FindLeader { hint } => core.order(ConnectionOrder::Leave(hint)),
            HolderEffect::Changes { watch, changes } => core.tell_changes(watch, changes),
            HolderEffect::WatchLost { watch, error } => core.end_watch(watch, error),
            HolderEffect::Closed => {
                core.key_leases.drain().for_each(|(_, keeper)| keeper.end());
                core.lose_owner_leases(|_| true);
                self.status.changed(ConnectionState::Closed);
                self.closed.cancel();
            }
        }
    }

    fn send(&self, core: &DriverCore, ticket: SendId, request: Request) {
        count(&self.cache.counters.messages_sent);
        if matches!(request.body, Body::Read { .. } | Body::AwaitRead { .. }) {
            count(&self.cache.counters.server_reads);
        }
        core.order(ConnectionOrder::Send(ticket, request));
    }

    fn drop_all(&self, core: &mut DriverCore) {
        // Nothing is served between the first copy's end and the last's that could not have been
        // served before it.
        core.leases.end_all();
        self.cache.clear();
        core.forgotten.clear();
    }

    /// Has the timer wake in time for what the rules want next.
    fn wind_timer(&self, core: &mut DriverCore) {
        if core.holder.next_deadline().is_some_and(|deadline| deadline < core.timer_at) {
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
            // The connection may have ended this very moment: the rules will be told.
            let _ = orders.send(order);
        }
    }

    fn serve(&mut self, reads: Vec<ReadId>, content: &SharedContent, from_server: bool, valid_until: Option<Instant>) {
        let outcome = || ReadOutcome::Content { content: content.clone(), from_server, valid_until };
        self.waiting.finish_reads(reads, outcome);
    }
}

#[cfg(test)]
mod tests {
    use leasehold_protocol::{
        id::{Epoch, Incarnation, Revision, VolumeGeneration},
        message::{AcquiredVolume, Answer, Lapse, Promise, ReadAnswer, Revival},
    };

    use super::*;

    const TERM: Duration = Duration::from_secs(600);

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).expect("valid")
    }

    fn response(answer: Answer) -> Response {
        Response { epoch: Epoch(1), promises: Vec::new(), lapses: Vec::new(), result: Ok(answer) }
    }

    /// A lease on the volume.
    fn acquired(volume: &str, incarnation: u64) -> Answer {
        let promise = Promise {
            volume: path(volume),
            incarnation: Incarnation(incarnation),
            generation: VolumeGeneration::default(),
            span: TERM,
            term: TERM,
            revision: Revision::default(),
        };
        let stamp = Stamp { epoch: Epoch(1), sequence: incarnation };
        Answer::Acquired(AcquiredVolume { promise, stamp, revival: Revival::None })
    }

    fn sent(orders: &mut mpsc::UnboundedReceiver<ConnectionOrder>) -> (SendId, Body) {
        match orders.try_recv().expect("something is sent") {
            ConnectionOrder::Send(ticket, request) => (ticket, request.body),
            ConnectionOrder::Leave(leader) => panic!("it leaves for {leader:?}"),
        }
    }

    #[test]
    fn unleased_inner_volume_gets_no_remaining_from_outer_lease() {
        let driver = Driver::new(Options::new(["nobody:1"]), 0);
        let mut orders = driver.connected();
        let (open, _) = sent(&mut orders);
        driver.answered(open, response(Answer::Opened { session: SessionId(1), term: TERM }));
        let (register, _) = sent(&mut orders);
        driver.answered(register, response(Answer::Registered { coverings: Vec::new() }));
        let mut reads = Vec::new();
        for (object, volume, incarnation) in [("/v/a", "/v", 1), ("/a", "/", 2)] {
            let (_read, _answer) = driver.read(Object::data(path(object)));
            let (acquire, body) = sent(&mut orders);
            assert!(matches!(body, Body::Acquire { .. }), "{body:?}");
            driver.answered(acquire, response(acquired(volume, incarnation)));
            reads.push(sent(&mut orders).0);
        }
        assert!(
            driver.volume_remaining(&path("/v/b")) > Duration::ZERO
                && driver.volume_remaining(&path("/b")) > Duration::ZERO
        );

        let lapse = Lapse { volume: path("/v"), incarnation: Incarnation(1) };
        let content = Some(Content::Data(None));
        let read = ReadAnswer { content, grant: None, volume: path("/"), applied: Revision::default() };
        driver.answered(reads[1], Response { lapses: vec![lapse], ..response(Answer::Read(read)) });
        assert_eq!(
            driver.volume_remaining(&path("/v/b")),
            Duration::ZERO,
            "it is in a volume of which no lease is held"
        );
        assert!(driver.volume_remaining(&path("/b")) > Duration::ZERO);
    }
}
