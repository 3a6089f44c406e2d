//! A server for the client's tests: the real rules of the leader and of the replicated state, in
//! memory, on a real socket. It commits each proposal, and proves each leadership, at once.
//!
//! Tests can delay its answers, stop it, and make it lead again.

// Each test binary uses a part of it. Helpers may panic, as tests do.
#![allow(dead_code, clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    sync::{Arc, Weak},
    time::Duration,
};

use futures::StreamExt;
use leasehold_client_cache::{Client, NodePath, Options, Value, VolumeSettings};
use leasehold_protocol::{
    command::{Command, IntendedLeases, Outcome, Proposal, Write},
    id::{RequestId, Revision, Sequence, SessionId},
    lessor::{Lessor, LessorBounds, LessorConfig, LessorEffect, LessorInput},
    limits::Limits,
    message::{Answer, Body, ClusterInfo, Inspect, Push, PushRequest, Recall, RecallReply, Refusal, Request, Response},
    object::ObjectSet,
    planted::Planted,
    state::State,
    time::{DriftAllowance, Instant},
    volume::Tracking,
};
use leasehold_wire::{CallbackClient, ClusterId, Leasehold, accept, server_connection};
use nix::time::{ClockId, clock_gettime};
use parking_lot::Mutex;
use tarpc::{
    context::Context,
    server::{BaseChannel, Channel},
};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{Notify, oneshot, watch},
    task::JoinSet,
};

/// A term of leases that end in a test. A stall of the machine for a second or two ends none,
/// because clients renew at half of the term.
pub const SHORT_TERM: Duration = Duration::from_secs(5);

/// The cluster of all servers here.
const CLUSTER: ClusterId = ClusterId { founder: 1, nonce: 1 };

/// Far longer than anything here takes on a slow machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn now() -> Instant {
    let reading = clock_gettime(ClockId::CLOCK_BOOTTIME).unwrap();
    Instant::from_micros(reading.tv_sec() as u64 * 1_000_000 + reading.tv_nsec() as u64 / 1_000)
}

/// The settings of a volume with this term.
pub fn settings(term: Duration) -> VolumeSettings {
    let (object_term, margin) = (Duration::from_secs(3600), Duration::from_millis(50));
    VolumeSettings::new(term, object_term, margin, Tracking::Objects, DriftAllowance::DEFAULT).unwrap()
}

pub fn path(text: &str) -> NodePath {
    NodePath::parse(text).unwrap()
}

/// Waits for something that must happen.
pub async fn within<T>(work: impl IntoFuture<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it takes far longer than it can")
}

/// Polls until a condition holds.
pub async fn until(mut holds: impl FnMut() -> bool) {
    within(async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

struct Rules {
    state: State,
    lessor: Option<Lessor>,
    attempt: u64,
    last_request: u64,
    replies: BTreeMap<RequestId, oneshot::Sender<Response>>,
    callbacks: BTreeMap<SessionId, CallbackClient>,
    /// The number of requests of each kind.
    asked: BTreeMap<&'static str, u64>,
    /// Whether to check the invariants after each step.
    checks: bool,
    /// The first invariant that did not hold.
    violation: Option<String>,
}

struct Shared {
    rules: Mutex<Rules>,
    wound: Notify,
    /// Answers to reads wait while this is set.
    holds_reads: watch::Sender<bool>,
    /// Writes that match wait before they reach the rules.
    holds_writes: watch::Sender<fn(&Write) -> bool>,
}

/// A leader, and the address that it listens on.
pub struct Server {
    shared: Arc<Shared>,
    listener: Arc<TcpListener>,
    address: String,
    tasks: JoinSet<()>,
}

impl Server {
    /// A leader of a new cluster. Its root volume has this term.
    pub async fn start(term: Duration) -> Self {
        Self::start_with_history(term, State::HISTORY_MAX).await
    }

    /// Like [`Self::start`], with a history of this many changes.
    pub async fn start_with_history(term: Duration, changes: usize) -> Self {
        Self::start_with(settings(term), changes).await
    }

    /// Like [`Self::start`], with this skew margin.
    pub async fn start_with_margin(term: Duration, margin: Duration) -> Self {
        let object_term = Duration::from_secs(3600);
        let settings =
            VolumeSettings::new(term, object_term, margin, Tracking::Objects, DriftAllowance::DEFAULT).unwrap();
        Self::start_with(settings, State::HISTORY_MAX).await
    }

    async fn start_with(settings: VolumeSettings, changes: usize) -> Self {
        let listener = Arc::new(TcpListener::bind("127.0.0.1:0").await.unwrap());
        let address = listener.local_addr().unwrap().to_string();
        let rules = Rules {
            state: State::new(settings).with_history(changes),
            lessor: None,
            attempt: 0,
            last_request: 0,
            replies: BTreeMap::new(),
            callbacks: BTreeMap::new(),
            asked: BTreeMap::new(),
            checks: false,
            violation: None,
        };
        let (holds_reads, holds_writes) =
            (watch::Sender::new(false), watch::Sender::new((|_| false) as fn(&Write) -> bool));
        let shared = Shared { rules: Mutex::new(rules), wound: Notify::new(), holds_reads, holds_writes };
        let mut server = Self { shared: Arc::new(shared), listener, address, tasks: JoinSet::new() };
        server.lead();
        server
    }

    /// Leads in a new epoch.
    pub fn lead(&mut self) {
        self.shared.rules.lock().lead();
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn(async move { shared.keep_time().await });
        let (shared, listener) = (Arc::clone(&self.shared), Arc::clone(&self.listener));
        self.tasks.spawn(async move {
            // The connections end with this task.
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                connections.spawn(serve(Arc::clone(&shared), stream));
            }
        });
    }

    /// Leads if it was stopped.
    pub fn lead_if_stopped(&mut self) {
        if self.shared.rules.lock().lessor.is_none() {
            self.lead();
        }
    }

    /// Stops like a killed process: all connections end, and only replicated state remains.
    pub async fn stop(&mut self) {
        self.tasks.shutdown().await;
        let mut rules = self.shared.rules.lock();
        rules.lessor = None;
        rules.callbacks.clear();
        rules.replies.clear();
    }

    /// Writes a node this many times, while no client can learn of it. Returns the last revision.
    pub fn write_meanwhile(&self, at: &str, times: u64) -> Revision {
        let state = &mut self.shared.rules.lock().state;
        let mut apply = |command| {
            let (epoch, time) = (state.epoch(), state.cluster_time());
            let proposal = Proposal { epoch, number: 0, time, commands: vec![command] };
            let outcome = state.apply(state.applied_index() + 1, &proposal).outcomes.remove(0);
            (outcome, state.revision())
        };
        let (Outcome::SessionOpened { session }, mut last) = apply(Command::OpenSession { name: String::new() }) else {
            panic!("a session is opened")
        };
        for number in 1..=times {
            let (sequence, write) = (Sequence(number), Write::put(path(at), "meanwhile".into()));
            let (consented, intended, attached_through) =
                (vec![ObjectSet::Subtree(NodePath::root())], IntendedLeases::default(), last);
            let command = Command::Write {
                session,
                sequence,
                unanswered_from: sequence,
                write,
                consented,
                intended,
                attached_through,
            };
            last = apply(command).1;
        }
        last
    }

    /// Delays answers to reads from now on, or releases them.
    pub fn hold_reads(&self, holds: bool) {
        self.shared.holds_reads.send_replace(holds);
    }

    /// Delays writes that match from now on, and releases all others, in any order.
    pub fn hold_writes(&self, holds: fn(&Write) -> bool) {
        self.shared.holds_writes.send_replace(holds);
    }

    pub fn address(&self) -> &str {
        &self.address
    }

    /// Checks all invariants of the state and of the lessor after each step from now on.
    pub fn check_steps(&self) {
        self.shared.rules.lock().checks = true;
    }

    /// The first invariant that did not hold after a step.
    pub fn violation(&self) -> Option<String> {
        self.shared.rules.lock().violation.clone()
    }

    /// Reads the replicated state.
    pub fn with_state<T>(&self, visit: impl FnOnce(&State) -> T) -> T {
        visit(&self.shared.rules.lock().state)
    }

    /// The number of requests of this kind so far, such as `"Read"`.
    pub fn asked(&self, kind: &str) -> u64 {
        self.shared.rules.lock().asked.get(kind).copied().unwrap_or_default()
    }

    pub fn options(&self) -> Options {
        Options::new([self.address()]).name("test").timeout(PATIENCE)
    }

    pub async fn client(&self) -> Client {
        Client::connect(self.options()).await.unwrap()
    }
}

impl Rules {
    fn lead(&mut self) {
        self.attempt += 1;
        let config = LessorConfig {
            replica: 1,
            attempt: self.attempt,
            drift: DriftAllowance::DEFAULT,
            limits: Limits::default(),
            bounds: LessorBounds::DEFAULT,
            planted: Planted::default(),
        };
        self.lessor = Some(Lessor::new(config, &self.state, Duration::ZERO, now()));
        let mut inputs = Vec::new();
        self.commit(&mut inputs);
        // Proposals at the start of the epoch are committed too. No client is connected, so nothing
        // is recalled.
        drop(self.step_all(inputs));
    }

    /// Runs a step, and all that follow from it. Returns the recalls to send.
    fn step(&mut self, input: LessorInput) -> Vec<(CallbackClient, Recall)> {
        self.step_all(vec![input])
    }

    fn step_all(&mut self, mut inputs: Vec<LessorInput>) -> Vec<(CallbackClient, Recall)> {
        let mut recalls = Vec::new();
        while let Some(input) = inputs.pop() {
            let Some(lessor) = &mut self.lessor else { break };
            let effects = lessor.step(input, &self.state, now());
            for effect in effects {
                match effect {
                    LessorEffect::Reply { id, response } => {
                        if let Some(reply) = self.replies.remove(&id) {
                            let _ = reply.send(response);
                        }
                    }
                    LessorEffect::Recall(recall) => {
                        recalls.extend(self.callbacks.get(&recall.session).map(|client| (client.clone(), recall)));
                    }
                    LessorEffect::ClockChanged { .. } => {}
                    LessorEffect::Prove { round } => inputs.insert(0, LessorInput::Proven { round }),
                }
            }
            self.commit(&mut inputs);
        }
        self.check();
        recalls
    }

    fn check(&mut self) {
        if self.checks && self.violation.is_none() {
            let of_lessor = self.lessor.as_ref().map_or(Ok(()), |lessor| lessor.check(&self.state));
            self.violation = self.state.check().and(of_lessor).err();
        }
    }

    fn commit(&mut self, inputs: &mut Vec<LessorInput>) {
        let Some(lessor) = &mut self.lessor else { return };
        while let Some(proposal) = lessor.take_proposal(now()) {
            let is_mine = lessor.is_mine(&proposal);
            let applied = self.state.apply(self.state.applied_index() + 1, &proposal);
            if is_mine {
                let committed = LessorInput::committed(proposal.number, applied);
                if proposal.epoch.0 == 0 {
                    // The first entry of the epoch: nothing waits for it.
                    assert!(lessor.step(committed, &self.state, now()).is_empty());
                } else {
                    inputs.insert(0, committed);
                }
            }
        }
    }

    fn next_deadline(&self) -> Option<Duration> {
        let now = now();
        self.lessor.as_ref().map(|lessor| lessor.next_deadline(now).since(now))
    }
}

impl Shared {
    fn step(self: &Arc<Self>, input: LessorInput) {
        let recalls = self.rules.lock().step(input);
        for (callback, recall) in recalls {
            let shared = Arc::downgrade(self);
            tokio::spawn(async move {
                let mut context = tarpc::context::current();
                context.deadline = std::time::Instant::now() + PATIENCE;
                let reply = callback.recall(context, recall).await;
                let Some(shared) = Weak::upgrade(&shared) else { return };
                match reply {
                    Ok(RecallReply::Consented { consent, push_requests }) => {
                        shared.step(LessorInput::Consent(consent));
                        push_requests.into_iter().for_each(|request| shared.push(request, callback.clone()));
                    }
                    Ok(RecallReply::Delayed(notice)) => shared.step(LessorInput::ConsentDelayed(notice)),
                    Ok(RecallReply::Ignored) | Err(_) => {}
                }
            });
        }
    }

    fn push(self: &Arc<Self>, request: PushRequest, callback: CallbackClient) {
        *self.rules.lock().asked.entry("Push").or_default() += 1;
        let (send_id, request) = request.into_request();
        let answer = Arc::clone(self).answer(request, callback.clone());
        tokio::spawn(async move {
            let response = answer.await;
            // The client may have gone.
            let _ = callback.push(tarpc::context::current(), Push { send_id, response }).await;
        });
    }

    async fn keep_time(self: Arc<Self>) {
        loop {
            let wait = self.rules.lock().next_deadline().unwrap_or(PATIENCE);
            tokio::time::sleep(wait).await;
            self.step(LessorInput::Timeout);
        }
    }

    async fn answer(self: Arc<Self>, request: Request, callback: CallbackClient) -> Response {
        let is_read = matches!(request.body, Body::Read { .. });
        *self.rules.lock().asked.entry(kind(&request.body)).or_default() += 1;
        if let Body::Write { write, .. } = &request.body {
            let _ = self.holds_writes.subscribe().wait_for(|holds| !holds(write)).await;
        }
        let answer = {
            let mut rules = self.rules.lock();
            if let Body::Inspect(Inspect::Cluster) = request.body {
                return rules.cluster();
            }
            if let Body::Register = request.body {
                rules.callbacks.insert(request.header.session, callback);
            }
            rules.last_request += 1;
            let id = RequestId(rules.last_request);
            let (sender, receiver) = oneshot::channel();
            rules.replies.insert(id, sender);
            drop(rules);
            self.step(LessorInput::Request { id, request });
            receiver
        };
        let response = answer.await.unwrap_or(Response {
            epoch: Default::default(),
            promises: Vec::new(),
            lapses: Vec::new(),
            clocks: None,
            result: Err(Refusal::Retry),
        });
        if is_read {
            let _ = self.holds_reads.subscribe().wait_for(|holds| !holds).await;
        }
        response
    }
}

impl Rules {
    fn cluster(&self) -> Response {
        let (epoch, revision) = (self.state.epoch(), self.state.revision());
        let members = Vec::new();
        let (clocks_beyond, clocks) = (0, Vec::new());
        let info = ClusterInfo { replica: 1, leader: Some(1), epoch, revision, members, clocks_beyond, clocks };
        Response { epoch, promises: Vec::new(), lapses: Vec::new(), clocks: None, result: Ok(Answer::Cluster(info)) }
    }
}

fn kind(body: &Body) -> &'static str {
    match body {
        Body::Open { .. } => "Open",
        Body::Register => "Register",
        Body::Close => "Close",
        Body::Heartbeat(_) => "Heartbeat",
        Body::Acquire { .. } => "Acquire",
        Body::Read { .. } => "Read",
        Body::AwaitRead { .. } => "AwaitRead",
        Body::ReadNextValue { .. } => "ReadNextValue",
        Body::Write { .. } => "Write",
        Body::HolderReport(_) => "HolderReport",
        Body::KeepAlive { .. } => "KeepAlive",
        Body::AwaitLockStatus { .. } => "AwaitLockStatus",
        Body::Inspect(_) => "Inspect",
        Body::Watch { .. } => "Watch",
        Body::List { .. } => "List",
    }
}

#[derive(Clone)]
struct Service {
    shared: Arc<Shared>,
    callback: CallbackClient,
}

impl Leasehold for Service {
    async fn call(self, _: Context, request: Request) -> Response {
        self.shared.answer(request, self.callback).await
    }
}

async fn serve(shared: Arc<Shared>, stream: TcpStream) {
    let Ok(accepted) = accept(stream, Some(CLUSTER)).await else { return };
    let (requests, callback, task) = server_connection(accepted.stream);
    let mut work = JoinSet::new();
    work.spawn(async { drop(task.await) });
    let service = Service { shared, callback };
    let mut requests = std::pin::pin!(BaseChannel::with_defaults(requests).execute(service.serve()));
    while let Some(request) = requests.next().await {
        work.spawn(request);
    }
}

/// A value that is this number.
pub fn value(number: u64) -> Value {
    Value::from(number.to_string())
}
