//! The lessor: the leader's volatile side. Who holds which objects, and which writes wait for whom.
//!
//! It guarantees, for as long as its epoch lasts: a write is proposed only when everyone who may hold an object it
//! changes has consented or can no longer use its copy (S2), nothing is granted meanwhile (S3), no promise goes beyond
//! the replicated horizon (T6), and a lease ends only through the log (T5). It knows the replicated state as it was
//! applied, and the time on this machine; it does not know other servers, connections or disks.
//!
//! A lessor lives for one epoch. The shell makes one when its replica becomes Raft's leader, proposes what
//! [`Lessor::take_proposal`] gives it, in that order, and drops the lessor with [`Lessor::step_down`] when the replica leads no more.
//!
//! ```text
//!   requests, consents ──►┌────────┐──► replies, recalls, proofs of leadership to be made
//!   committed proposals ─►│ lessor │
//!   the clock ───────────►└────────┘──► proposals, when the shell is ready for one
//! ```
//!
//! The parts: [`clock`] (T4, T6), `ends` (when leases end), `holdings` (who holds what, S7), `channel` (stamps and
//! recalls, S4, S5), `writes` (queues, S3); then what is done with them: `requests`, `granting`, `renewals`, `writing`, `gathering`, `committed`, `expiry`,
//! `removal`, `keeping`, `holding`, `caching`, `watching`, `clocks` (drift supervision), `inspect`.

pub mod clock;

mod bounds;
mod caching;
mod channel;
mod check;
mod clocks;
mod committed;
mod ends;
mod expiry;
mod gathering;
mod granting;
mod holding;
mod holdings;
mod inspect;
mod keeping;
mod load;
mod outbox;
mod removal;
mod renewals;
mod requests;
mod services;
#[cfg(test)]
mod tests;
mod waits;
mod watching;
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
    path::Path,
    planted::{Bug, Planted},
    state::{Applied, State},
    time::{ClusterTime, DriftAllowance, Instant},
};

use caching::Parked;
use channel::Channel;
use clock::ClusterClock;
use clocks::Clocks;
use ends::Ends;
use holding::Awaiting;
use holdings::Holdings;
use outbox::Outbox;
use renewals::Renewals;
use watching::Watching;
use writes::{Turn, Writes};

pub use bounds::Bounds;
pub use expiry::key_lease_margin;

/// What a lessor is told once.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Config {
    /// The replica that leads.
    pub replica: u64,
    /// Distinguishes its leaderships, over restarts too.
    pub attempt: u64,
    /// How far clocks may drift.
    pub drift: DriftAllowance,
    /// How large things may be.
    pub limits: Limits,
    /// How much this lessor takes on at a time.
    pub bounds: Bounds,
    /// Mistakes put back, in test builds.
    pub planted: Planted,
}

/// What happens to a lessor.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Input {
    /// A client asks. Answered by one [`Effect::Reply`] with this id, sooner or later.
    Request {
        /// Names the request among the unanswered ones.
        id: RequestId,
        /// What it asks.
        request: Request,
    },
    /// A client answers a recall.
    Consent(Consent),
    /// The proof of leadership that [`Effect::Prove`] asked for is there, and everything that was committed before it
    /// began has been applied (S6).
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
        held: BTreeSet<Path>,
        /// The leases whose nodes it has orphaned: [`Applied::orphaned`].
        orphaned: Vec<Incarnation>,
    },
    /// The deadline has come.
    Timeout,
}

impl Input {
    /// A proposal of this number was applied, and did this.
    pub fn committed(number: u64, applied: Applied) -> Self {
        let held = applied.held();
        Self::Committed { number, outcomes: applied.outcomes, held, orphaned: applied.orphaned }
    }
}

/// What a lessor wants done, in this order.
#[expect(clippy::large_enum_variant, reason = "an effect is made, moved once, and taken apart")]
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Effect {
    /// Answer a request.
    Reply {
        /// The request.
        id: RequestId,
        /// The answer.
        response: Response,
    },
    /// Ask a client for consent, on the connection that it registered on last.
    Recall(Recall),
    /// Begin a quorum round that shows that this replica leads, and say so when it is over: [`Input::Proven`] or
    /// [`Input::NotProven`] (S6). There is at most one under way.
    Prove {
        /// Names the round.
        round: u64,
    },
    /// Tell the log: a session has found that its clock and this server's ran further apart than they are allowed to, and
    /// serves nothing from memory; or, none, that they are within their allowances again.
    ClockChanged {
        /// The session.
        session: SessionId,
        /// What it calls itself.
        name: String,
        /// What both counted.
        beyond: Option<Excess>,
    },
}

/// Who wants an answer, and what came of the renewals that rode along when the request arrived: an answer may be long in coming, and its
/// client dead by then.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Asker {
    id: RequestId,
    session: SessionId,
    renewed: Vec<Renewed>,
}

/// What came of a renewal: a promise, or none if the lease was gone or its end was under way.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Renewed {
    renew: Renew,
    promise: Option<Promise>,
    /// The span that would be promised if the horizon set no limit.
    wanted: Duration,
}

/// A read that waits for a proof of leadership.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct WaitingRead {
    asker: Asker,
    wanted: Wanted,
}

/// What is read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Wanted {
    /// The content of an object. If somebody keeps it to itself the reader is told so, unless it waits for that.
    Object { object: Object, known: Option<Revision>, waits: bool },
    /// A page of a list.
    List { path: Path, after: Option<Path>, nodes_max: u32 },
    /// What *now* is, for a watch that begins.
    Now,
}

/// Why a command was proposed: what to do when it is committed.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Reason {
    Begin,
    Tick,
    Open(Asker),
    Close(Asker),
    /// With what the lease adds to the load, as reckoned when it was asked for.
    Acquire(Asker, Option<LastValid>, u64),
    Expire(LeaseKey, Incarnation),
    Remove(Turn),
    Write(Turn),
}

/// A proposal that is on its way through the log.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct InFlight {
    time: ClusterTime,
    proposed_at: Instant,
    reasons: Vec<Reason>,
}

/// The leader's volatile side, for one epoch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Lessor {
    config: Config,
    /// None until the first entry of the epoch is applied: nothing is answered before (S6).
    epoch: Option<Epoch>,
    /// How long the last leader's clock is known to have run beyond the log: part of where this one's starts (T4).
    heard: Duration,
    clock: ClusterClock,
    /// How often horizons move, as of the last step.
    tick: Duration,
    ends: Ends,
    holdings: Holdings,
    coverings: CoveringNumber,
    channels: BTreeMap<SessionId, Channel>,
    /// Who wants to be told of holds.
    awaiting: Awaiting,
    writes: Writes,
    /// The leases whose orphans are to be removed and are not being removed yet. Some may have gone by themselves.
    orphans: BTreeSet<Incarnation>,
    /// Reads of the round under way, and of the next.
    round: u64,
    proving: Vec<WaitingRead>,
    next_round: Vec<WaitingRead>,
    /// Reads whose round is over, to be answered in this step and the next.
    proven: VecDeque<WaitingRead>,
    /// Reads that wait for a holder to flush.
    parked: Parked,
    /// Commands that the next proposals take.
    outbox: Outbox,
    proposals: u64,
    in_flight: BTreeMap<u64, InFlight>,
    /// When the last tick of this epoch was proposed.
    last_tick: Option<ClusterTime>,
    /// What renewing the leases will take that requests under way may bring, of which `ends` knows nothing yet.
    load_to_come: u64,
    /// The sessions, and the results to be remembered, that requests under way may bring.
    sessions_to_come: usize,
    results_to_come: usize,
    /// A tick is on its way.
    is_ticking: bool,
    /// Requests to renew that wait for a tick.
    renewals: Renewals,
    watching: Watching,
    clocks: Clocks,
}

/// One step: what it may look at, and what it wants done.
struct StepContext<'a> {
    state: &'a State,
    now: Instant,
    effects: Vec<Effect>,
    /// About how many bytes the contents have that it has answered reads with.
    read_bytes: usize,
}

impl Lessor {
    /// The lessor of a replica that has just become leader. Its first proposal begins the epoch.
    ///
    /// `heard` is the time, on this machine's clock, from receiving the latest proposal in the replica's log to last hearing from the
    /// leader that proposed it: by an entry, a heartbeat, or whatever else only that leader sends (T4). It is given as measured: the lessor
    /// shortens it by the drift allowance. Entries of Raft's own are no proposals. Entries that are in the log and not applied yet count: that leader's
    /// clock had run up to the latest of them, wherever `state` is. Whoever does not know the time, such as a process
    /// that has just started, a replica that received the entry from another leader than the one that proposed it, or one that
    /// cut the entry off again, says [`Duration::ZERO`]: too little prolongs abandoned leases by what is missing, too much
    /// cuts leases short that were promised.
    pub fn new(config: Config, state: &State, heard: Duration, now: Instant) -> Self {
        Self {
            epoch: None,
            heard: config.drift.shorten(heard),
            tick: state.tick(),
            clock: ClusterClock::new(state.cluster_time(), now),
            ends: Ends::new(config.bounds.departed_max, config.planted),
            holdings: Holdings::new(config.planted),
            coverings: CoveringNumber::default(),
            channels: BTreeMap::new(),
            awaiting: Awaiting::default(),
            writes: Writes::new(config.planted),
            orphans: BTreeSet::new(),
            // Another lessor of this process may still have a proof under way: its round must not be taken for one of ours.
            round: if config.planted.has(Bug::ProofReusedAfterStepDown) { 0 } else { config.attempt },
            proving: Vec::new(),
            next_round: Vec::new(),
            proven: VecDeque::new(),
            parked: Parked::default(),
            outbox: Outbox::default(),
            proposals: 0,
            in_flight: BTreeMap::new(),
            last_tick: None,
            load_to_come: 0,
            sessions_to_come: 0,
            results_to_come: 0,
            is_ticking: false,
            renewals: Renewals::default(),
            watching: Watching::default(),
            clocks: Clocks::default(),
            config,
        }
        .with_first_proposal()
    }

    fn with_first_proposal(mut self) -> Self {
        let Config { replica, attempt, .. } = self.config;
        self.outbox.push(Command::BeginEpoch { replica, attempt }, Reason::Begin);
        self
    }

    /// Takes one input. `state` is the replicated state as applied, `now` this machine's clock. The effects are to be
    /// carried out in order.
    pub fn step(&mut self, input: Input, state: &State, now: Instant) -> Vec<Effect> {
        self.tick = state.tick();
        self.advance_clock(now);
        let mut turn = StepContext { state, now, effects: Vec::new(), read_bytes: 0 };
        let is_proof = matches!(input, Input::Proven { .. });
        match input {
            Input::Request { id, request } => self.request(id, request, &mut turn),
            Input::Consent(consent) => self.consent(consent, &mut turn),
            Input::Proven { round } => self.proven(round, &mut turn),
            Input::NotProven { round } => self.not_proven(round, &mut turn),
            Input::Committed { number, outcomes, held, orphaned } => {
                self.orphans.extend(orphaned);
                self.committed(number, (outcomes, &held), &mut turn);
            }
            Input::Timeout => self.end_waits_over(),
        }
        if !is_proof {
            self.answer_proven(&mut turn);
        }
        self.answer_renewals(&mut turn);
        self.look_at_the_clock(&mut turn);
        self.look_after_watches(&mut turn);
        turn.effects
    }

    /// Proposals are numbered in order: the first in flight is the oldest.
    fn advance_clock(&mut self, now: Instant) {
        let oldest = self.in_flight.values().next().map(|proposal| proposal.time);
        self.clock.advance(now, oldest, self.tick);
    }

    /// When the lessor wants [`Input::Timeout`] at the latest: often enough that its clock is not clamped (T4).
    pub fn next_deadline(&self, now: Instant) -> Instant {
        let ending = self.clock.ending();
        let until = self.ends.next_deadline().map_or(clock::STEP_EVERY, |deadline| deadline.since(ending));
        let is_behind = self.watching.is_behind() || self.holdings.is_tidying() || !self.proven.is_empty();
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
        !self.outbox.is_empty()
    }

    /// Whether so much is to be proposed that it gains nothing by waiting for more: [`Bounds::proposal_commands_full`]
    /// commands, or [`Bounds::proposal_bytes_max`] bytes.
    pub fn has_full_proposal(&self) -> bool {
        self.outbox.is_full(&self.config.bounds)
    }

    /// What to propose next: everything that is ready, up to a bound. Proposals are to enter the log in the order in
    /// which they are taken; their time is read here (T4).
    pub fn take_proposal(&mut self, now: Instant) -> Option<Proposal> {
        if self.outbox.is_empty() {
            return None;
        }
        self.advance_clock(now);
        let (commands, reasons) = self.outbox.take(&self.config.bounds);
        let (epoch, number) = match self.epoch {
            Some(epoch) => {
                self.proposals += 1;
                (epoch, self.proposals)
            }
            None => (Epoch(0), self.config.attempt),
        };
        let time = self.clock.ending();
        self.in_flight.insert(number, InFlight { time, proposed_at: now, reasons });
        Some(Proposal { epoch, number, time, commands })
    }

    /// Whether a committed proposal is one that this lessor made and waits for.
    pub fn is_mine(&self, proposal: &Proposal) -> bool {
        let Config { replica, attempt, .. } = self.config;
        match self.epoch {
            Some(epoch) => proposal.epoch == epoch && self.in_flight.contains_key(&proposal.number),
            None => proposal.commands == [Command::BeginEpoch { replica, attempt }],
        }
    }

    /// Ends the lessor: its replica leads no more. Waiting writes that were not proposed are to be sent again; of the
    /// others it is not known whether they will take effect (S9).
    pub fn step_down(mut self, state: &State, now: Instant) -> Vec<Effect> {
        let mut turn = StepContext { state, now, effects: Vec::new(), read_bytes: 0 };
        let parked = std::mem::take(&mut self.parked).into_reads();
        let proving = std::mem::take(&mut self.proving).into_iter().chain(std::mem::take(&mut self.next_round));
        for read in std::mem::take(&mut self.proven).into_iter().chain(proving).chain(parked) {
            self.reply_bare(&read.asker, Err(Refusal::Retry), &mut turn);
        }
        for asker in std::mem::take(&mut self.renewals).into_askers() {
            self.reply_bare(&asker, Err(Refusal::Retry), &mut turn);
        }
        let writes = std::mem::take(&mut self.writes);
        for (_, pending) in writes.iter() {
            let refusal = if pending.is_proposed { Refusal::Unknown } else { Refusal::Retry };
            for asker in pending.asked().iter().flat_map(|asked| &asked.askers) {
                self.reply_bare(asker, Err(refusal.clone()), &mut turn);
            }
        }
        for asker in self.awaiting.askers() {
            self.reply_bare(asker, Err(Refusal::Retry), &mut turn);
        }
        let proposed = self.in_flight.values().flat_map(|proposal| &proposal.reasons);
        for reason in self.outbox.reasons().chain(proposed) {
            if let Reason::Open(asker) | Reason::Close(asker) | Reason::Acquire(asker, ..) = reason {
                self.reply_bare(asker, Err(Refusal::Retry), &mut turn);
            }
        }
        for asker in std::mem::take(&mut self.watching).into_askers() {
            self.reply_bare(&asker, Err(Refusal::Retry), &mut turn);
        }
        turn.effects
    }

    /// Answers without promising anything.
    fn reply_bare(&self, asker: &Asker, result: Result<Answer, Refusal>, turn: &mut StepContext<'_>) {
        let epoch = self.epoch.unwrap_or_default();
        let response = Response { epoch, promises: Vec::new(), lapses: Vec::new(), result };
        turn.effects.push(Effect::Reply { id: asker.id, response });
    }

    /// Answers, and tells what was promised when the request arrived (T6).
    fn reply(&self, asker: &Asker, result: Result<Answer, Refusal>, turn: &mut StepContext<'_>) {
        let (mut promises, mut lapses) = (Vec::new(), Vec::new());
        for renewed in &asker.renewed {
            match self.told(asker.session, renewed, turn.state) {
                Some(Ok(promise)) => promises.push(promise),
                Some(Err(lapse)) => lapses.push(lapse),
                None => {}
            }
        }
        let response = Response { epoch: self.epoch.unwrap_or_default(), promises, lapses, result };
        turn.effects.push(Effect::Reply { id: asker.id, response });
    }

    fn propose(&mut self, command: Command, reason: Reason) {
        self.outbox.push(command, reason);
    }

    fn next_covering(&mut self) -> CoveringNumber {
        self.coverings = self.coverings.next();
        self.coverings
    }

    fn planted(&self, bug: Bug) -> bool {
        self.config.planted.has(bug)
    }
}
