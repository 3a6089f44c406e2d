//! The shell around the rules: carries out what the holder says, and decides nothing.
//!
//! One lock, [`Driver::core`], is held around each step and its effects, in order. So a copy is dropped before the consent leaves, and
//! checking the epoch, installing and registering are one step each (S4). It is never held across an await. Readers of
//! cached copies do not take it.

mod holds;
mod house;
mod keeping;
mod waiting;
mod watching;
mod write_leases;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use leasehold_protocol::{
    command::{Write, Written},
    holder::{self, Config, Effect, Holder, Input, ReadId, Ticket, WatchId, WriteId},
    id::{HoldId, LeaseId, SessionId, Stamp},
    message::{Body, Consent, Recall, Request, Response},
    object::{Content, Object},
    path::Path,
    time::Instant,
};
use leasehold_wire::LeaseholdClient;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use self::waiting::Waiting;
use crate::{
    cache::Cache,
    clock,
    hold::HoldCell,
    key_lease::{Held, Keeper},
    leases::Leases,
    options::Options,
    shared_content::SharedContent,
    stats::count,
    status::{ConnectionState, Status},
    withdrawal::{Withdrawal, Withdrawals},
    write_lease::LostChange,
};

/// Copies taken out of the cache with each one put in, at most: more than one, so that the cache shrinks to its bound.
const EVICTIONS_PER_INSTALLATION: usize = 4;

/// What a waiting read gets.
#[derive(Debug)]
pub(crate) enum Fetched {
    /// The content.
    Content {
        content: SharedContent,
        /// Whether a server was asked.
        from_server: bool,
        /// Until when it may be used, if it came with leases that hold.
        valid_until: Option<Instant>,
    },
    /// The cache lost the copy that was to be served: read again.
    Lost,
    /// Why there is none.
    Failed(holder::ReadError),
}

/// What the connection is asked to do, in order. Not bounded by itself: it holds at most one
/// request for each object that somebody waits for and each write that somebody waits for, which
/// [`waiting`] bounds, and what the rules send on their own, which has its bounds there.
// Nearly all of them are the large one.
#[allow(clippy::large_enum_variant)]
#[derive(Debug)]
pub(crate) enum Order {
    /// Send the request and bring the answer.
    Send(Ticket, Request),
    /// Give the connection up, and look for the leader, perhaps there.
    Leave(Option<String>),
}

pub(crate) type WriteResult = Result<Written, holder::WriteError>;

/// What the lock protects.
#[derive(Debug)]
struct Core {
    holder: Holder,
    leases: Leases,
    /// The reads and writes that somebody waits for.
    waiting: Waiting,
    /// The writes that give something back, until they are done.
    withdrawing: HashMap<WriteId, Withdrawal>,
    /// The key leases that are kept alive.
    keepers: HashMap<LeaseId, Keeper>,
    /// Who wants to know when the lease is over that a node goes with.
    carried: HashMap<u64, (Path, CancellationToken)>,
    /// What guards know of their holds.
    holds: HashMap<HoldId, (Path, HoldCell)>,
    /// Who is told what happens.
    watches: HashMap<WatchId, watching::Teller>,
    last_id: u64,
    orders: Option<mpsc::UnboundedSender<Order>>,
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
    pub(crate) line: watch::Sender<Option<LeaseholdClient>>,
    pub(crate) withdrawals: Withdrawals,
    /// Cancelled when the client is closed or its last handle dropped: all tasks end.
    pub(crate) over: CancellationToken,
    core: Mutex<Core>,
    timer: Notify,
}

/// Which effects come from an answer, and the consent among them.
#[derive(Debug, Default)]
struct Step {
    is_answer: bool,
    consent: Option<Consent>,
    /// What was installed last: most often it is what the reads that asked for it are served, too.
    installed: Option<(Arc<Content>, SharedContent)>,
    /// Inputs that the effects give rise to.
    follow: VecDeque<Input>,
}

impl Step {
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
        let config = Config { drift: options.drift, spread_permille, ..Config::new(options.name.clone()) };
        let core = Core {
            holder: Holder::new(config),
            leases: Leases::default(),
            waiting: Waiting::default(),
            withdrawing: HashMap::new(),
            keepers: HashMap::new(),
            carried: HashMap::new(),
            holds: HashMap::new(),
            watches: HashMap::new(),
            last_id: 0,
            orders: None,
            forgotten: VecDeque::new(),
            timer_at: Instant::ZERO,
        };
        Self {
            cache: Cache::new(options.cache_capacity_bytes),
            status: Status::new(options.endpoints.clone()),
            line: watch::Sender::new(None),
            withdrawals: Withdrawals::default(),
            over: CancellationToken::new(),
            core: Mutex::new(core),
            timer: Notify::new(),
            options,
        }
    }

    /// A read begins.
    pub(crate) fn read(&self, object: Object) -> (ReadId, oneshot::Receiver<Fetched>) {
        let mut core = self.core.lock();
        let read = ReadId(core.next_id());
        let (admitted, receiver) = core.waiting.read(read);
        if let Some(read) = admitted {
            self.step(&mut core, Input::Read { read, object });
        }
        (read, receiver)
    }

    /// Nobody waits for the read any more.
    pub(crate) fn give_up_read(&self, read: ReadId) {
        let mut core = self.core.lock();
        if core.waiting.give_up_read(read) {
            self.step(&mut core, Input::GiveUpRead(read));
        }
    }

    /// A write begins.
    pub(crate) fn write(&self, change: Write) -> (WriteId, oneshot::Receiver<WriteResult>) {
        self.begin_write(change, None)
    }

    fn begin_write(&self, change: Write, withdrawal: Option<Withdrawal>) -> (WriteId, oneshot::Receiver<WriteResult>) {
        count(&self.cache.counters.writes);
        let mut core = self.core.lock();
        let write = WriteId(core.next_id());
        let (admitted, receiver) = core.waiting.write(write, &change, withdrawal.is_some());
        if let Some(write) = admitted {
            core.withdrawing.extend(withdrawal.map(|withdrawal| (write, withdrawal)));
            core.lower(&change);
            self.step(&mut core, Input::Write { write, change });
        }
        (write, receiver)
    }

    /// Nobody wants to wait for the write any longer. What is known of it is sent to its receiver.
    pub(crate) fn give_up_write(&self, write: WriteId) {
        let mut core = self.core.lock();
        if core.waiting.has_write(write) {
            self.step(&mut core, Input::GiveUpWrite(write));
        }
    }

    /// Nobody wants the write any longer. If it has not been sent, it never will be. If it has, it may have happened, so its answer is
    /// still waited for.
    pub(crate) fn give_up_unsent(&self, write: WriteId) {
        let mut core = self.core.lock();
        if core.holder.is_unsent(write) {
            self.step(&mut core, Input::GiveUpWrite(write));
        }
    }

    /// A connection is up: what is to be sent on it comes out of the receiver.
    pub(crate) fn connected(&self) -> mpsc::UnboundedReceiver<Order> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut core = self.core.lock();
        core.orders = Some(sender);
        self.step(&mut core, Input::Connected);
        receiver
    }

    /// The connection is over.
    pub(crate) fn disconnected(&self) {
        let mut core = self.core.lock();
        core.orders = None;
        self.step(&mut core, Input::Disconnected);
    }

    /// An answer has come.
    pub(crate) fn answered(&self, ticket: Ticket, response: Response) {
        let mut core = self.core.lock();
        let had_session = core.holder.session().is_some();
        let refusal = response.result.as_ref().err().cloned();
        self.step(&mut core, Input::Answered { ticket, response });
        // Whoever waits for a server goes on when all that follows from its answer has been told.
        self.status.heard(refusal, had_session);
    }

    /// A recall has come. The copies are dropped when this returns. A recall from another session of this client is answered by
    /// a consent to no recall.
    pub(crate) fn recalled(&self, recall: Recall) -> Consent {
        count(&self.cache.counters.recalls);
        count(&self.cache.counters.messages_sent);
        let nothing = Consent { session: recall.session, stamp: Stamp::default() };
        let mut core = self.core.lock();
        self.step(&mut core, Input::Recalled(recall)).unwrap_or(nothing)
    }

    /// Has the rules ask the server for a sign of life, because a question that they do not know of is unanswered.
    pub(crate) fn probe(&self) {
        self.step(&mut self.core.lock(), Input::Probe);
    }

    /// The application closes the session.
    pub(crate) fn close(&self) {
        self.step(&mut self.core.lock(), Input::Close);
    }

    /// The session, once there is one.
    pub(crate) fn session(&self) -> Option<SessionId> {
        self.core.lock().holder.session()
    }

    /// How long the lease on the volume that the path belongs to, as far as is known, is certain to hold.
    pub(crate) fn certain_for(&self, path: &Path) -> Duration {
        let core = self.core.lock();
        core.holder.certain_for(&core.holder.volume_of(path), clock::now())
    }

    /// Takes a step of the rules and carries out its effects, in order. Returns the consent among them.
    fn step(&self, core: &mut Core, input: Input) -> Option<Consent> {
        let mut step = Step::default();
        let mut next = Some(input);
        while let Some(input) = next {
            step.is_answer = matches!(input, Input::Answered { .. });
            // Under the lock, so that the holder's time does not run backwards.
            let now = clock::now();
            for effect in core.holder.step(input, now) {
                self.carry_out(core, effect, &mut step);
            }
            if step.installed.take().is_some() {
                let evicted = std::iter::from_fn(|| self.cache.evict_next()).take(EVICTIONS_PER_INSTALLATION);
                step.follow.extend(evicted.map(|(object, stamp)| Input::Evicted { object, stamp }));
            }
            next = step.follow.pop_front();
        }
        self.wind_timer(core);
        step.consent
    }

    fn carry_out(&self, core: &mut Core, effect: Effect, step: &mut Step) {
        match effect {
            Effect::Send { ticket, request } => self.send(core, ticket, request),
            Effect::Install { object, content, validity } => {
                let volume = core.leases.cell(&validity.volume, validity.incarnation);
                let shared = self.cache.install(&object, Arc::clone(&content), &validity, volume);
                step.installed = Some((content, shared));
            }
            Effect::Revalidate { object, validity } => {
                let volume = core.leases.cell(&validity.volume, validity.incarnation);
                if !self.cache.revalidate(&object, &validity, volume) {
                    step.follow.push_back(Input::Evicted { object, stamp: validity.stamp });
                }
            }
            Effect::Drop(objects) => {
                objects.iter().for_each(|object| self.cache.remove(object));
                core.forgotten.extend(objects);
            }
            Effect::DropAll => self.drop_all(core),
            Effect::VolumeValid { volume, validity } => core.leases.set(&volume, validity),
            Effect::Consent(consent) => step.consent = Some(consent),
            Effect::Serve { reads, object, content, valid_until, .. } => {
                core.serve(reads, &step.shared(object, content), true, valid_until);
            }
            Effect::ServeCached { reads, object, stamp, valid_until } => match self.cache.content(&object, stamp) {
                Some(content) => {
                    if step.is_answer {
                        count(&self.cache.counters.revalidations);
                    }
                    core.serve(reads, &content, step.is_answer, valid_until);
                }
                None => {
                    step.follow.push_back(Input::Evicted { object, stamp });
                    core.waiting.finish_reads(reads, || Fetched::Lost);
                }
            },
            Effect::ReadFailed { reads, error } => core.waiting.finish_reads(reads, || Fetched::Failed(error.clone())),
            Effect::WriteDone { write, result } => {
                let withdrawal = core.withdrawing.remove(&write);
                if let Ok(written) = &result {
                    core.taken(written, withdrawal.is_some());
                }
                drop(withdrawal);
                core.waiting.finish_write(write, result);
            }
            Effect::LeaseKept { id, until, .. } => {
                if let Some(keeper) = core.keepers.get(&id) {
                    keeper.held.send_replace(Held::Until(until));
                }
            }
            Effect::LeaseOver { id } => core.end_lease(id),
            Effect::HoldChanged { hold, status } => core.hold_changed(hold, status),
            Effect::HoldsOver { holds } => self.holds_over(core, holds, step),
            Effect::CachingChanged { hold, status } => core.caching_changed(hold, status),
            Effect::FlushLost { hold, value, may_be_there, refusal } => {
                core.flush_lost(hold, |path| LostChange { path, value, may_be_there, refusal: refusal.map(Box::new) });
            }
            Effect::CarriedGone { nodes } => core.end_carried(|path| nodes.contains(path)),
            Effect::Connection(connection) => {
                if let holder::Connection::Expired { .. } = connection {
                    core.end_carried(|_| true);
                }
                self.status.changed(connection.into());
            }
            Effect::ClockChanged { beyond } => self.status.clock_changed(beyond),
            Effect::FindLeader { hint } => core.order(Order::Leave(hint)),
            Effect::Changes { watch, changes } => core.tell_changes(watch, changes),
            Effect::WatchLost { watch, error } => core.end_watch(watch, error),
            Effect::Closed => {
                core.keepers.drain().for_each(|(_, keeper)| keeper.end());
                core.end_carried(|_| true);
                self.status.changed(ConnectionState::Closed);
                self.over.cancel();
            }
        }
    }

    fn send(&self, core: &Core, ticket: Ticket, request: Request) {
        count(&self.cache.counters.messages_sent);
        if matches!(request.body, Body::Read { .. } | Body::AwaitRead { .. }) {
            count(&self.cache.counters.server_reads);
        }
        core.order(Order::Send(ticket, request));
    }

    fn drop_all(&self, core: &mut Core) {
        // Nothing is served between the first copy's end and the last's that could not have been served before it.
        core.leases.end_all();
        self.cache.clear();
        core.forgotten.clear();
    }

    /// Has the timer wake in time for what the rules want next.
    fn wind_timer(&self, core: &mut Core) {
        if core.holder.next_deadline().is_some_and(|deadline| deadline < core.timer_at) {
            self.timer.notify_one();
        }
    }
}

impl Core {
    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn order(&self, order: Order) {
        if let Some(orders) = &self.orders {
            // The connection may have ended this very moment: the rules will be told.
            let _ = orders.send(order);
        }
    }

    fn serve(&mut self, reads: Vec<ReadId>, content: &SharedContent, from_server: bool, valid_until: Option<Instant>) {
        let outcome = || Fetched::Content { content: content.clone(), from_server, valid_until };
        self.waiting.finish_reads(reads, outcome);
    }
}

#[cfg(test)]
mod tests {
    use leasehold_protocol::{
        id::{Epoch, Generation, Incarnation, Revision},
        message::{Acquired, Answer, Lapse, Promise, ReadAnswer, Revival},
    };

    use super::*;

    const TERM: Duration = Duration::from_secs(600);

    fn path(text: &str) -> Path {
        Path::parse(text).expect("valid")
    }

    fn response(answer: Answer) -> Response {
        Response { epoch: Epoch(1), promises: Vec::new(), lapses: Vec::new(), result: Ok(answer) }
    }

    /// A lease on the volume.
    fn acquired(volume: &str, incarnation: u64) -> Answer {
        let promise = Promise {
            volume: path(volume),
            incarnation: Incarnation(incarnation),
            generation: Generation::default(),
            span: TERM,
            term: TERM,
            revision: Revision::default(),
        };
        let stamp = Stamp { epoch: Epoch(1), sequence: incarnation };
        Answer::Acquired(Acquired { promise, stamp, revival: Revival::None })
    }

    fn sent(orders: &mut mpsc::UnboundedReceiver<Order>) -> (Ticket, Body) {
        match orders.try_recv().expect("something is sent") {
            Order::Send(ticket, request) => (ticket, request.body),
            Order::Leave(leader) => panic!("it leaves for {leader:?}"),
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
        assert!(driver.certain_for(&path("/v/b")) > Duration::ZERO && driver.certain_for(&path("/b")) > Duration::ZERO);

        let lapse = Lapse { volume: path("/v"), incarnation: Incarnation(1) };
        let content = Some(Content::Data(None));
        let read = ReadAnswer { content, grant: None, volume: path("/"), applied: Revision::default() };
        driver.answered(reads[1], Response { lapses: vec![lapse], ..response(Answer::Read(read)) });
        assert_eq!(driver.certain_for(&path("/v/b")), Duration::ZERO, "it is in a volume of which no lease is held");
        assert!(driver.certain_for(&path("/b")) > Duration::ZERO);
    }
}
