//! The lessor: the leader's rules about leases and writes, in memory, for one epoch.
//!
//! For as long as its epoch lasts, the lessor guarantees:
//!
//! - It proposes a write only when each session that may have copies of the changed objects has
//!   consented, or can no longer use them (S2). Meanwhile it grants no lease on these objects (S3).
//! - No promise goes beyond the replicated horizon (T6). A lease ends only through the log (T5).
//!
//! The lessor knows the applied state, and the time on this machine. It does not know other
//! servers, connections or disks.
//!
//! The shell creates a lessor when its replica becomes Raft's leader. It proposes the results of
//! [`Lessor::take_proposal`] in the order of the calls. When the replica stops leading, the shell
//! ends the lessor with [`Lessor::step_down`].
//!
//! ```text
//!   requests, consents ──►┌────────┐──► replies, recalls, proofs of leadership to be made
//!   committed proposals ─►│ lessor │
//!   the clock ───────────►└────────┘──► proposals, when the shell is ready for one
//! ```
//!
//! `leases`, `object_leases` (S7), `recall_channels` (S4, S5) and `writes` (S3) are the tables
//! of the lessor. [`clock`] implements T4 and T6. The other modules are the steps that use them.

pub mod clock;

mod attachments;
mod bounds;
mod check;
mod counters;
mod drift;
mod effect;
mod epoch;
mod holder_reports;
mod input;
mod inspect;
mod key_leases;
mod lease_ends;
mod lease_limits;
mod leases;
mod load;
mod locks;
mod next_values;
mod object_leases;
mod outcomes;
mod promises;
mod proposal_queue;
mod reads;
mod recalls;
mod renewals;
mod requests;
mod services;
mod sessions;
mod step_context;
mod terms_by_use;
#[cfg(test)]
mod tests;
mod volume_leases;
mod watch_reports;
mod watches;
mod write_leases;
mod writes;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use crate::{
    command::{AnyLease, Command, Proposal},
    drift::ClockAnswer,
    id::{CoveringNumber, Epoch, Incarnation, RequestId, Revision, SessionId},
    lease_policy::LeaseRequest,
    limits::Limits,
    message::{Answer, Promise, Refusal, Renew, Response},
    object::Object,
    path::NodePath,
    planted::{Bug, Planted},
    state::State,
    time::{ClusterTime, DriftAllowance, Instant},
};

use attachments::OrphanedLeases;
use clock::ClusterClock;
use counters::{Unhashed, VolumeCounters};
use drift::DriftReports;
use leases::LeaseTable;
use locks::AwaitedLocks;
use next_values::NextValueReads;
use object_leases::ObjectLeases;
use proposal_queue::ProposalQueue;
use recalls::RecallChannel;
use renewals::Renewals;
use step_context::StepContext;
use terms_by_use::TermsByUse;
use volume_leases::AcquireRequest;
use watches::WaitingWatches;
use write_leases::BlockedReads;
use writes::{PendingWriteId, PendingWrites};

pub use bounds::LessorBounds;
pub use effect::LessorEffect;
pub use input::LessorInput;
pub use lease_ends::key_lease_margin;

/// The configuration of a lessor, fixed for its life.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LessorConfig {
    /// The replica that leads.
    pub replica: u64,
    /// Distinguishes the replica's leaderships, also across restarts.
    pub attempt: u64,
    /// How far clocks may drift.
    pub drift: DriftAllowance,
    /// The size limits of requests.
    pub limits: Limits,
    /// The bounds of the lessor's queues, tables and batches.
    pub bounds: LessorBounds,
    /// The planted mistakes, in test builds.
    pub planted: Planted,
}

/// The requester of an answer, with the results of the renewals in its request. The lessor computes
/// them when the request arrives, because the answer may come much later, when the client is dead.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Requester {
    id: RequestId,
    session: SessionId,
    renewed: Vec<RenewedLease>,
    /// The answer to a question about clocks, and when it arrived.
    clocks: Option<Box<(ClockAnswer, Instant)>>,
}

/// The result of a renewal: a promise, or none if the lease has ended or its end is proposed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct RenewedLease {
    renew: Renew,
    promise: Option<Promise>,
    /// The span that the lessor would promise without the limit of the horizon.
    span_uncapped: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct WaitingRead {
    requester: Requester,
    target: ReadTarget,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum ReadTarget {
    /// The content of an object.
    Object {
        object: Object,
        known: Option<Revision>,
        lease: LeaseRequest,
        waits: ReadWait,
    },
    List {
        path: NodePath,
        after: Option<NodePath>,
        nodes_max: u32,
    },
    /// The revision from which a new watch starts.
    CurrentRevision,
}

/// What a read of an object may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum ReadWait {
    /// Nothing. If the object is under a write lease, the lessor recalls the write lease, and
    /// answers at once with [`Answer::ReadBlocked`].
    Nothing,
    /// The end of a write lease on the object.
    Flush,
    /// The ends of the writes of the object that are pending now. The read recalls no write lease.
    NextValue,
}

/// The reason for a command: it selects the step that follows when the command is committed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum ProposalReason {
    Begin,
    Tick,
    Open(Requester),
    Close(Requester),
    Acquire(AcquireRequest),
    Expire(AnyLease, Incarnation),
    Purge(PendingWriteId),
    Write(PendingWriteId),
}

/// A proposal that the shell has taken and that is not committed yet.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ProposalInFlight {
    time: ClusterTime,
    proposed_at: Instant,
    reasons: Vec<ProposalReason>,
}

/// The leader's rules about leases and writes, for one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lessor {
    config: LessorConfig,
    /// `None` until the first entry of the epoch is applied. Until then it refuses requests (S6).
    epoch: Option<Epoch>,
    /// How far the last leader's clock is known to have run beyond the log (T4).
    time_heard: Duration,
    clock: ClusterClock,
    /// The interval of ticks, as of the last step.
    tick: Duration,
    leases: LeaseTable,
    object_leases: ObjectLeases,
    /// The volumes that have more object leases than their limits allow, or had.
    over_lease_limit: BTreeSet<NodePath>,
    coverings: CoveringNumber,
    recall_channels: BTreeMap<SessionId, RecallChannel>,
    awaited_locks: AwaitedLocks,
    writes: PendingWrites,
    /// Leases whose orphans wait for their purge.
    orphans: OrphanedLeases,
    /// The number of the round in flight, its reads, and the reads of the next round.
    round: u64,
    round_reads: Vec<WaitingRead>,
    next_round_reads: Vec<WaitingRead>,
    /// Reads whose round has ended. This step and the next ones answer them.
    proven_reads: VecDeque<WaitingRead>,
    /// Reads that wait for a write lease to be flushed.
    blocked_reads: BlockedReads,
    next_values: NextValueReads,
    proposal_queue: ProposalQueue,
    proposals: u64,
    in_flight: BTreeMap<u64, ProposalInFlight>,
    last_tick: Option<ClusterTime>,
    /// The load of leases that requests in flight may bring. `leases` does not count it yet.
    load_to_come: u64,
    /// The sessions, key leases and remembered results that requests in flight may bring.
    sessions_to_come: usize,
    key_leases_to_come: usize,
    results_to_come: usize,
    is_tick_in_flight: bool,
    /// Renew-only requests that wait for a tick.
    renewals: Renewals,
    watches: WaitingWatches,
    drift_reports: DriftReports,
    /// The present object terms of volumes whose terms follow their use.
    terms_by_use: TermsByUse,
    counters: Unhashed<VolumeCounters>,
}

impl Lessor {
    /// The lessor of a replica that has just become leader. Its first proposal begins the epoch.
    ///
    /// `time_heard` is a span on this machine's clock (T4). It runs from receiving the latest
    /// proposal in the replica's log to last hearing from the leader that proposed it. Each message
    /// that only this leader sends counts, such as an entry or a heartbeat. The caller passes the
    /// span as measured, and the lessor shortens it by the drift allowance. The latest proposal may
    /// be one that is not applied yet, because that leader's clock had reached its time. An entry
    /// of Raft itself is no proposal.
    ///
    /// If the caller does not know the span, it passes [`Duration::ZERO`]: the process has just
    /// started, another leader sent the entry, or the replica cut the entry off again. Too small a
    /// span prolongs abandoned leases. Too large a span cuts promised leases short.
    pub fn new(config: LessorConfig, state: &State, time_heard: Duration, now: Instant) -> Self {
        Self {
            epoch: None,
            time_heard: config.drift.shorten(time_heard),
            tick: state.tick(),
            clock: ClusterClock::new(state.cluster_time(), now),
            leases: LeaseTable::new(config.bounds.departed_max),
            object_leases: ObjectLeases::default(),
            over_lease_limit: BTreeSet::new(),
            coverings: CoveringNumber::default(),
            recall_channels: BTreeMap::new(),
            awaited_locks: AwaitedLocks::default(),
            writes: PendingWrites::default(),
            orphans: OrphanedLeases::default(),
            // An earlier lessor of this process may have a round in flight, so the numbers must
            // differ.
            round: config.attempt,
            round_reads: Vec::new(),
            next_round_reads: Vec::new(),
            proven_reads: VecDeque::new(),
            blocked_reads: BlockedReads::default(),
            next_values: NextValueReads::default(),
            proposal_queue: ProposalQueue::default(),
            proposals: 0,
            in_flight: BTreeMap::new(),
            last_tick: None,
            load_to_come: 0,
            sessions_to_come: 0,
            key_leases_to_come: 0,
            results_to_come: 0,
            is_tick_in_flight: false,
            renewals: Renewals::default(),
            watches: WaitingWatches::default(),
            drift_reports: DriftReports::default(),
            terms_by_use: TermsByUse::default(),
            counters: Unhashed(VolumeCounters::new(now)),
            config,
        }
        .with_first_proposal()
    }

    fn with_first_proposal(mut self) -> Self {
        let LessorConfig { replica, attempt, .. } = self.config;
        self.proposal_queue.push(Command::BeginEpoch { replica, attempt }, ProposalReason::Begin);
        self
    }

    /// Handles one input. `state` is the applied state, `now` is this machine's clock.
    pub fn step(&mut self, input: LessorInput, state: &State, now: Instant) -> Vec<LessorEffect> {
        self.tick = state.tick();
        self.advance_clock(now);
        let mut cx = StepContext::new(state, now);
        let is_proof = matches!(input, LessorInput::Proven { .. });
        match input {
            LessorInput::Request { id, request } => self.handle_request(id, request, &mut cx),
            LessorInput::Consent(consent) => self.consent_in_reply(consent, &mut cx),
            LessorInput::ConsentDelayed(notice) => self.note_delay(notice, &mut cx),
            LessorInput::Proven { round } => self.handle_proof(round, &mut cx),
            LessorInput::NotProven { round } => self.handle_proof_failure(round, &mut cx),
            LessorInput::Committed { number, outcomes, locks_changed, orphaned } => {
                self.orphans.add(orphaned);
                self.handle_committed(number, (outcomes, &locks_changed), &mut cx);
            }
            // The timers run in each step.
            LessorInput::Timeout => {}
        }
        if !is_proof {
            self.answer_proven(&mut cx);
            self.begin_round(&mut cx);
        }
        self.answer_renewals(&mut cx);
        self.keep_lease_limits(&mut cx);
        self.run_timers(&mut cx);
        self.serve_watches(&mut cx);
        cx.effects
    }

    /// Proposals are numbered in order, so the first one in flight is the oldest.
    fn advance_clock(&mut self, now: Instant) {
        let oldest = self.in_flight.values().next().map(|proposal| proposal.time);
        self.clock.advance(now, oldest, self.tick);
    }

    /// The latest time for [`LessorInput::Timeout`]. If the step comes more than
    /// [`clock::STEP_MAX`] after the last one, the ending clock leaves out the rest (T4).
    pub fn next_deadline(&self, now: Instant) -> Instant {
        let ending = self.clock.ending_time();
        let until = self.leases.next_deadline().map_or(clock::STEP_EVERY, |deadline| deadline.since(ending));
        let is_behind = self.watches.is_behind(now, &self.config.bounds)
            || self.object_leases.is_tidying()
            || !self.proven_reads.is_empty();
        let is_behind = is_behind || self.next_values.has_proven();
        let is_behind = is_behind || self.renewals.has_ready(now) || self.may_remove_orphans();
        let is_behind = is_behind || !self.over_lease_limit.is_empty();
        let waits = self.writes.next_expiry().map_or(until, |deadline| deadline.since(ending));
        let answers = self.renewals.next_deadline().map_or(until, |deadline| deadline.since(now));
        let until = if is_behind { Duration::ZERO } else { until.min(waits).min(answers) };
        now.after(until.clamp(Duration::from_millis(1), clock::STEP_EVERY))
    }

    /// The epoch; `None` before it has begun.
    pub fn epoch(&self) -> Option<Epoch> {
        self.epoch
    }

    /// Whether a command waits to be proposed.
    pub fn has_proposal(&self) -> bool {
        !self.proposal_queue.is_empty()
    }

    /// Whether the next proposal gains nothing by waiting: it has
    /// [`LessorBounds::proposal_commands_full`] commands, or [`LessorBounds::proposal_bytes_max`]
    /// bytes.
    pub fn has_full_proposal(&self) -> bool {
        self.proposal_queue.is_full(&self.config.bounds)
    }

    /// Takes the next proposal: all commands that are ready, up to a bound. Proposals must enter
    /// the log in the order of the calls, because each call sets the proposal's time (T4).
    pub fn take_proposal(&mut self, now: Instant) -> Option<Proposal> {
        if self.proposal_queue.is_empty() {
            return None;
        }
        self.advance_clock(now);
        let (commands, reasons) = self.proposal_queue.take(&self.config.bounds);
        let (epoch, number) = match self.epoch {
            Some(epoch) => {
                self.proposals += 1;
                (epoch, self.proposals)
            }
            None => (Epoch(0), self.config.attempt),
        };
        let time = self.clock.ending_time();
        self.in_flight.insert(number, ProposalInFlight { time, proposed_at: now, reasons });
        Some(Proposal { epoch, number, time, commands })
    }

    /// Whether a committed proposal is one that this lessor made and waits for.
    pub fn is_mine(&self, proposal: &Proposal) -> bool {
        let LessorConfig { replica, attempt, .. } = self.config;
        match self.epoch {
            Some(epoch) => proposal.epoch == epoch && self.in_flight.contains_key(&proposal.number),
            None => proposal.commands == [Command::BeginEpoch { replica, attempt }],
        }
    }

    /// Ends the lessor when its replica stops leading. It answers *outcome unknown* to proposed
    /// writes, and *retry* to all other requests (S9).
    pub fn step_down(mut self, state: &State, now: Instant) -> Vec<LessorEffect> {
        let mut cx = StepContext::new(state, now);
        let blocked = std::mem::take(&mut self.blocked_reads).into_reads();
        let blocked = blocked.chain(std::mem::take(&mut self.next_values).into_reads());
        let proving =
            std::mem::take(&mut self.round_reads).into_iter().chain(std::mem::take(&mut self.next_round_reads));
        for read in std::mem::take(&mut self.proven_reads).into_iter().chain(proving).chain(blocked) {
            self.reply_without_promises(&read.requester, Err(Refusal::Retry), &mut cx);
        }
        for requester in std::mem::take(&mut self.renewals).into_requesters() {
            self.reply_without_promises(&requester, Err(Refusal::Retry), &mut cx);
        }
        let writes = std::mem::take(&mut self.writes);
        for (_, pending) in writes.iter() {
            let refusal = if pending.is_proposed { Refusal::OutcomeUnknown } else { Refusal::Retry };
            for requester in pending.client_write().iter().flat_map(|request| &request.requesters) {
                self.reply_without_promises(requester, Err(refusal.clone()), &mut cx);
            }
        }
        for requester in self.awaited_locks.requesters() {
            self.reply_without_promises(requester, Err(Refusal::Retry), &mut cx);
        }
        let proposed = self.in_flight.values().flat_map(|proposal| &proposal.reasons);
        for reason in self.proposal_queue.reasons().chain(proposed) {
            if let ProposalReason::Open(requester)
            | ProposalReason::Close(requester)
            | ProposalReason::Acquire(AcquireRequest { requester, .. }) = reason
            {
                self.reply_without_promises(requester, Err(Refusal::Retry), &mut cx);
            }
        }
        for requester in std::mem::take(&mut self.watches).into_requesters() {
            self.reply_without_promises(&requester, Err(Refusal::Retry), &mut cx);
        }
        cx.effects
    }

    fn reply_without_promises(&self, requester: &Requester, result: Result<Answer, Refusal>, cx: &mut StepContext<'_>) {
        let epoch = self.epoch.unwrap_or_default();
        let response = Response { epoch, promises: Vec::new(), lapses: Vec::new(), clocks: None, result };
        cx.effects.push(LessorEffect::Reply { id: requester.id, response });
    }

    /// Answers a request, with the promises that the lessor made when the request arrived (T6).
    fn reply(&self, requester: &Requester, result: Result<Answer, Refusal>, cx: &mut StepContext<'_>) {
        let (mut promises, mut lapses) = (Vec::new(), Vec::new());
        for renewed in &requester.renewed {
            match self.renewal_result(requester.session, renewed, cx.state) {
                Some(Ok(promise)) => promises.push(promise),
                Some(Err(lapse)) => lapses.push(lapse),
                None => {}
            }
        }
        let clocks = requester.clocks.as_ref().map(|asked| {
            let (answer, arrived) = &**asked;
            Box::new(ClockAnswer { delay: cx.now.since(*arrived), ..answer.clone() })
        });
        let response = Response { epoch: self.epoch.unwrap_or_default(), promises, lapses, clocks, result };
        cx.effects.push(LessorEffect::Reply { id: requester.id, response });
    }

    fn propose(&mut self, command: Command, reason: ProposalReason) {
        self.proposal_queue.push(command, reason);
    }

    fn next_covering(&mut self) -> CoveringNumber {
        self.coverings = self.coverings.next();
        self.coverings
    }

    fn planted(&self, bug: Bug) -> bool {
        self.config.planted.has(bug)
    }
}
