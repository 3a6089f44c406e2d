//! The lessor: the leader's volatile side. Who holds which objects, and which writes wait for whom.
//!
//! It guarantees, for as long as its epoch lasts: a write is proposed only when everyone who may
//! hold an object it changes has consented or can no longer use its copy (S2), nothing is granted
//! meanwhile (S3), no promise goes beyond the replicated horizon (T6), and a lease ends only
//! through the log (T5). It knows the replicated state as it was applied, and the time on this
//! machine; it does not know other servers, connections or disks.
//!
//! A lessor lives for one epoch. The shell makes one when its replica becomes Raft's leader,
//! proposes what [`Lessor::take_proposal`] gives it, in that order, and drops the lessor with
//! [`Lessor::step_down`] when the replica leads no more.
//!
//! ```text
//!   requests, consents ──►┌────────┐──► replies, recalls, proofs of leadership to be made
//!   committed proposals ─►│ lessor │
//!   the clock ───────────►└────────┘──► proposals, when the shell is ready for one
//! ```
//!
//! The parts: [`clock`] (T4, T6), `ends` (when leases end), `holdings` (who holds what, S7),
//! `channel` (stamps and recalls, S4, S5), `writes` (queues, S3); then what is done with them:
//! `requests`, `granting`, `renewals`, `writing`, `gathering`, `committed`, `expiry`, `removal`,
//! `keeping`, `holding`, `caching`, `watching`, `clocks` (drift supervision), `inspect`.

pub mod clock;

mod bounds;
mod check;
mod consent_waits;
mod drift;
mod expiry;
mod gathering;
mod inspect;
mod key_leases;
mod lease_ends;
mod load;
mod locks;
mod object_leases;
mod outcomes;
mod promises;
mod proposal_queue;
mod purges;
mod recall_channel;
mod renewals;
mod requests;
mod services;
#[cfg(test)]
mod tests;
mod watches;
mod write_leases;
mod writes;
mod writing;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use crate::{
    command::{Command, LeaseKey, Outcome, Proposal},
    drift::Excess,
    id::{CoveringNumber, Epoch, Incarnation, RequestId, Revision, SessionId},
    limits::Limits,
    message::{Answer, Consent, LastValid, Promise, Recall, Refusal, Renew, Request, Response},
    object::Object,
    path::NodePath,
    planted::{Bug, Planted},
    state::{Applied, State},
    time::{ClusterTime, DriftAllowance, Instant},
};

use clock::ClusterClock;
use drift::DriftReports;
use lease_ends::LeaseEnds;
use locks::AwaitedLocks;
use object_leases::ObjectLeases;
use proposal_queue::ProposalQueue;
use recall_channel::RecallChannel;
use renewals::Renewals;
use watches::WaitingWatches;
use write_leases::BlockedReads;
use writes::{PendingWriteId, PendingWrites};

pub use bounds::LessorBounds;
pub use expiry::key_lease_margin;

/// What a lessor is told once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LessorConfig {
    /// The replica that leads.
    pub replica: u64,
    /// Distinguishes its leaderships, over restarts too.
    pub attempt: u64,
    /// How far clocks may drift.
    pub drift: DriftAllowance,
    /// How large things may be.
    pub limits: Limits,
    /// How much this lessor takes on at a time.
    pub bounds: LessorBounds,
    /// Mistakes put back, in test builds.
    pub planted: Planted,
}

/// What happens to a lessor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LessorInput {
    /// A client asks. Answered by one [`LessorEffect::Reply`] with this id, sooner or later.
    Request {
        /// Names the request among the unanswered ones.
        id: RequestId,
        /// What it asks.
        request: Request,
    },
    /// A client answers a recall.
    Consent(Consent),
    /// The proof of leadership that [`LessorEffect::Prove`] asked for is there, and everything that
    /// was committed before it began has been applied (S6).
    Proven {
        /// Which round.
        round: u64,
    },
    /// It could not be had.
    NotProven {
        /// Which round.
        round: u64,
    },
    /// A proposal of this lessor ([`Lessor::is_mine`]) was applied to the state just now.
    Committed {
        /// Its number.
        number: u64,
        /// What came of its commands.
        outcomes: Vec<Outcome>,
        /// The nodes whose holds it has changed: [`Applied::held`].
        locks_changed: BTreeSet<NodePath>,
        /// The leases whose nodes it has orphaned: [`Applied::orphaned`].
        orphaned: Vec<Incarnation>,
    },
    /// The deadline has come.
    Timeout,
}

impl LessorInput {
    /// A proposal of this number was applied, and did this.
    pub fn committed(number: u64, applied: Applied) -> Self {
        let locks_changed = applied.nodes_with_changed_locks();
        Self::Committed { number, outcomes: applied.outcomes, locks_changed, orphaned: applied.new_orphans }
    }
}

/// What a lessor wants done, in this order.
#[expect(clippy::large_enum_variant, reason = "an effect is made, moved once, and taken apart")]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LessorEffect {
    /// Answer a request.
    Reply {
        /// The request.
        id: RequestId,
        /// The answer.
        response: Response,
    },
    /// Ask a client for consent, on the connection that it registered on last.
    Recall(Recall),
    /// Begin a quorum round that shows that this replica leads, and say so when it is over:
    /// [`LessorInput::Proven`] or [`LessorInput::NotProven`] (S6). There is at most one under way.
    Prove {
        /// Names the round.
        round: u64,
    },
    /// Tell the log: a session has found that its clock and this server's ran further apart than
    /// they are allowed to, and serves nothing from memory; or, none, that they are within their
    /// allowances again.
    ClockChanged {
        /// The session.
        session: SessionId,
        /// What it calls itself.
        name: String,
        /// What both counted.
        beyond: Option<Excess>,
    },
}

/// Who wants an answer, and what came of the renewals that rode along when the request arrived: an
/// answer may be long in coming, and its client dead by then.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Requester {
    id: RequestId,
    session: SessionId,
    renewed: Vec<RenewedLease>,
}

/// What came of a renewal: a promise, or none if the lease was gone or its end was under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct RenewedLease {
    renew: Renew,
    promise: Option<Promise>,
    /// The span that would be promised if the horizon set no limit.
    wanted: Duration,
}

/// A read that waits for a proof of leadership.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct WaitingRead {
    requester: Requester,
    wanted: ReadTarget,
}

/// What is read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum ReadTarget {
    /// The content of an object. If somebody keeps it to itself the reader is told so, unless it
    /// waits for that.
    Object { object: Object, known: Option<Revision>, waits: bool },
    /// A page of a list.
    List { path: NodePath, after: Option<NodePath>, nodes_max: u32 },
    /// What *now* is, for a watch that begins.
    CurrentRevision,
}

/// Why a command was proposed: what to do when it is committed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum ProposalReason {
    Begin,
    Tick,
    Open(Requester),
    Close(Requester),
    /// With what the lease adds to the load, as reckoned when it was asked for.
    Acquire(Requester, Option<LastValid>, u64),
    Expire(LeaseKey, Incarnation),
    Purge(PendingWriteId),
    Write(PendingWriteId),
}

/// A proposal that is on its way through the log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ProposalInFlight {
    time: ClusterTime,
    proposed_at: Instant,
    reasons: Vec<ProposalReason>,
}

/// The leader's volatile side, for one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lessor {
    config: LessorConfig,
    /// None until the first entry of the epoch is applied: nothing is answered before (S6).
    epoch: Option<Epoch>,
    /// How long the last leader's clock is known to have run beyond the log: part of where this
    /// one's starts (T4).
    heard: Duration,
    clock: ClusterClock,
    /// How often horizons move, as of the last step.
    tick: Duration,
    lease_ends: LeaseEnds,
    object_leases: ObjectLeases,
    coverings: CoveringNumber,
    recall_channels: BTreeMap<SessionId, RecallChannel>,
    /// Who wants to be told of holds.
    awaited_locks: AwaitedLocks,
    writes: PendingWrites,
    /// The leases whose orphans are to be removed and are not being removed yet. Some may have gone
    /// by themselves.
    orphans: BTreeSet<Incarnation>,
    /// Reads of the round under way, and of the next.
    round: u64,
    round_reads: Vec<WaitingRead>,
    next_round_reads: Vec<WaitingRead>,
    /// Reads whose round is over, to be answered in this step and the next.
    proven_reads: VecDeque<WaitingRead>,
    /// Reads that wait for a holder to flush.
    blocked_reads: BlockedReads,
    /// Commands that the next proposals take.
    proposal_queue: ProposalQueue,
    proposals: u64,
    in_flight: BTreeMap<u64, ProposalInFlight>,
    /// When the last tick of this epoch was proposed.
    last_tick: Option<ClusterTime>,
    /// What renewing the leases will take that requests under way may bring, of which `ends` knows
    /// nothing yet.
    load_to_come: u64,
    /// The sessions, and the results to be remembered, that requests under way may bring.
    sessions_to_come: usize,
    results_to_come: usize,
    /// A tick is on its way.
    is_tick_in_flight: bool,
    /// Requests to renew that wait for a tick.
    renewals: Renewals,
    watches: WaitingWatches,
    drift_reports: DriftReports,
}

/// One step: what it may look at, and what it wants done.
struct StepContext<'a> {
    state: &'a State,
    now: Instant,
    effects: Vec<LessorEffect>,
    /// About how many bytes the contents have that it has answered reads with.
    read_bytes: usize,
}

impl Lessor {
    /// The lessor of a replica that has just become leader. Its first proposal begins the epoch.
    ///
    /// `heard` is the time, on this machine's clock, from receiving the latest proposal in the
    /// replica's log to last hearing from the leader that proposed it: by an entry, a heartbeat, or
    /// whatever else only that leader sends (T4). It is given as measured: the lessor shortens it
    /// by the drift allowance. Entries of Raft's own are no proposals. Entries that are in the log
    /// and not applied yet count: that leader's clock had run up to the latest of them, wherever
    /// `state` is. Whoever does not know the time, such as a process that has just started, a
    /// replica that received the entry from another leader than the one that proposed it, or one
    /// that cut the entry off again, says [`Duration::ZERO`]: too little prolongs abandoned leases
    /// by what is missing, too much cuts leases short that were promised.
    pub fn new(config: LessorConfig, state: &State, heard: Duration, now: Instant) -> Self {
        Self {
            epoch: None,
            heard: config.drift.shorten(heard),
            tick: state.tick(),
            clock: ClusterClock::new(state.cluster_time(), now),
            lease_ends: LeaseEnds::new(config.bounds.departed_max, config.planted),
            object_leases: ObjectLeases::new(config.planted),
            coverings: CoveringNumber::default(),
            recall_channels: BTreeMap::new(),
            awaited_locks: AwaitedLocks::default(),
            writes: PendingWrites::new(config.planted),
            orphans: BTreeSet::new(),
            // Another lessor of this process may still have a proof under way: its round must not
            // be taken for one of ours.
            round: if config.planted.has(Bug::ProofReusedAfterStepDown) { 0 } else { config.attempt },
            round_reads: Vec::new(),
            next_round_reads: Vec::new(),
            proven_reads: VecDeque::new(),
            blocked_reads: BlockedReads::default(),
            proposal_queue: ProposalQueue::default(),
            proposals: 0,
            in_flight: BTreeMap::new(),
            last_tick: None,
            load_to_come: 0,
            sessions_to_come: 0,
            results_to_come: 0,
            is_tick_in_flight: false,
            renewals: Renewals::default(),
            watches: WaitingWatches::default(),
            drift_reports: DriftReports::default(),
            config,
        }
        .with_first_proposal()
    }

    fn with_first_proposal(mut self) -> Self {
        let LessorConfig { replica, attempt, .. } = self.config;
        self.proposal_queue.push(Command::BeginEpoch { replica, attempt }, ProposalReason::Begin);
        self
    }

    /// Takes one input. `state` is the replicated state as applied, `now` this machine's clock. The
    /// effects are to be carried out in order.
    pub fn step(&mut self, input: LessorInput, state: &State, now: Instant) -> Vec<LessorEffect> {
        self.tick = state.tick();
        self.advance_clock(now);
        let mut turn = StepContext { state, now, effects: Vec::new(), read_bytes: 0 };
        let is_proof = matches!(input, LessorInput::Proven { .. });
        match input {
            LessorInput::Request { id, request } => self.handle_request(id, request, &mut turn),
            LessorInput::Consent(consent) => self.consent(consent, &mut turn),
            LessorInput::Proven { round } => self.handle_proof(round, &mut turn),
            LessorInput::NotProven { round } => self.handle_proof_failure(round, &mut turn),
            LessorInput::Committed { number, outcomes, locks_changed, orphaned } => {
                self.orphans.extend(orphaned);
                self.handle_committed(number, (outcomes, &locks_changed), &mut turn);
            }
            LessorInput::Timeout => self.end_expired_waits(),
        }
        if !is_proof {
            self.answer_proven(&mut turn);
        }
        self.answer_renewals(&mut turn);
        self.run_timers(&mut turn);
        self.serve_watches(&mut turn);
        turn.effects
    }

    /// Proposals are numbered in order: the first in flight is the oldest.
    fn advance_clock(&mut self, now: Instant) {
        let oldest = self.in_flight.values().next().map(|proposal| proposal.time);
        self.clock.advance(now, oldest, self.tick);
    }

    /// When the lessor wants [`LessorInput::Timeout`] at the latest: often enough that its clock is
    /// not clamped (T4).
    pub fn next_deadline(&self, now: Instant) -> Instant {
        let ending = self.clock.expiry_time();
        let until = self.lease_ends.next_deadline().map_or(clock::STEP_EVERY, |deadline| deadline.since(ending));
        let is_behind = self.watches.is_behind() || self.object_leases.is_tidying() || !self.proven_reads.is_empty();
        let is_behind = is_behind || self.renewals.are_ready(now) || self.may_remove_orphans();
        let answers = self.renewals.next_deadline().map_or(until, |deadline| deadline.since(now));
        let until = if is_behind { Duration::ZERO } else { until.min(answers) };
        now.after(until.clamp(Duration::from_millis(1), clock::STEP_EVERY))
    }

    /// The epoch, once it has begun.
    pub fn epoch(&self) -> Option<Epoch> {
        self.epoch
    }

    /// Whether there is something to propose.
    pub fn has_proposal(&self) -> bool {
        !self.proposal_queue.is_empty()
    }

    /// Whether so much is to be proposed that it gains nothing by waiting for more:
    /// [`LessorBounds::proposal_commands_full`] commands, or [`LessorBounds::proposal_bytes_max`]
    /// bytes.
    pub fn has_full_proposal(&self) -> bool {
        self.proposal_queue.is_full(&self.config.bounds)
    }

    /// What to propose next: everything that is ready, up to a bound. Proposals are to enter the
    /// log in the order in which they are taken; their time is read here (T4).
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
        let time = self.clock.expiry_time();
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

    /// Ends the lessor: its replica leads no more. Waiting writes that were not proposed are to be
    /// sent again; of the others it is not known whether they will take effect (S9).
    pub fn step_down(mut self, state: &State, now: Instant) -> Vec<LessorEffect> {
        let mut turn = StepContext { state, now, effects: Vec::new(), read_bytes: 0 };
        let parked = std::mem::take(&mut self.blocked_reads).into_reads();
        let proving =
            std::mem::take(&mut self.round_reads).into_iter().chain(std::mem::take(&mut self.next_round_reads));
        for read in std::mem::take(&mut self.proven_reads).into_iter().chain(proving).chain(parked) {
            self.reply_without_promises(&read.requester, Err(Refusal::Retry), &mut turn);
        }
        for asker in std::mem::take(&mut self.renewals).into_askers() {
            self.reply_without_promises(&asker, Err(Refusal::Retry), &mut turn);
        }
        let writes = std::mem::take(&mut self.writes);
        for (_, pending) in writes.iter() {
            let refusal = if pending.is_proposed { Refusal::OutcomeUnknown } else { Refusal::Retry };
            for asker in pending.client_write().iter().flat_map(|asked| &asked.requesters) {
                self.reply_without_promises(asker, Err(refusal.clone()), &mut turn);
            }
        }
        for asker in self.awaited_locks.askers() {
            self.reply_without_promises(asker, Err(Refusal::Retry), &mut turn);
        }
        let proposed = self.in_flight.values().flat_map(|proposal| &proposal.reasons);
        for reason in self.proposal_queue.reasons().chain(proposed) {
            if let ProposalReason::Open(asker) | ProposalReason::Close(asker) | ProposalReason::Acquire(asker, ..) =
                reason
            {
                self.reply_without_promises(asker, Err(Refusal::Retry), &mut turn);
            }
        }
        for asker in std::mem::take(&mut self.watches).into_askers() {
            self.reply_without_promises(&asker, Err(Refusal::Retry), &mut turn);
        }
        turn.effects
    }

    /// Answers without promising anything.
    fn reply_without_promises(&self, asker: &Requester, result: Result<Answer, Refusal>, turn: &mut StepContext<'_>) {
        let epoch = self.epoch.unwrap_or_default();
        let response = Response { epoch, promises: Vec::new(), lapses: Vec::new(), result };
        turn.effects.push(LessorEffect::Reply { id: asker.id, response });
    }

    /// Answers, and tells what was promised when the request arrived (T6).
    fn reply(&self, asker: &Requester, result: Result<Answer, Refusal>, turn: &mut StepContext<'_>) {
        let (mut promises, mut lapses) = (Vec::new(), Vec::new());
        for renewed in &asker.renewed {
            match self.renewal_result(asker.session, renewed, turn.state) {
                Some(Ok(promise)) => promises.push(promise),
                Some(Err(lapse)) => lapses.push(lapse),
                None => {}
            }
        }
        let response = Response { epoch: self.epoch.unwrap_or_default(), promises, lapses, result };
        turn.effects.push(LessorEffect::Reply { id: asker.id, response });
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
