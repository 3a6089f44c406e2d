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
//! recalls, S4, S5), `writes` (queues, S3); then what is done with them: `requests`, `granting`, `writing`, `committed`, `expiry`, `removal`,
//! `keeping`, `holding`, `caching`, `watching`, `inspect`.

pub mod clock;

mod caching;
mod channel;
mod check;
mod committed;
mod ends;
mod expiry;
mod granting;
mod holding;
mod holdings;
mod inspect;
mod keeping;
mod outbox;
mod removal;
mod requests;
mod services;
#[cfg(test)]
mod tests;
mod watching;
mod writes;
mod writing;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    command::{Command, LeaseKey, Outcome, Proposal},
    id::{CoveringNumber, Epoch, Incarnation, RequestId, Revision, SessionId},
    limits::Limits,
    message::{Answer, Consent, LastValid, Recall, Refusal, Renew, Request, Response},
    object::Object,
    path::Path,
    planted::{Bug, Planted},
    state::{Applied, State},
    time::{ClusterTime, DriftAllowance, Instant},
};

use caching::Parked;
use channel::Channel;
use clock::ClusterClock;
use ends::Ends;
use holding::Awaiting;
use holdings::Holdings;
use outbox::Outbox;
use watching::Watching;
use writes::{Turn, Writes};

pub use expiry::key_lease_margin;
pub use outbox::PROPOSAL_COMMANDS_FULL;

/// The most commands in one proposal: an entry stays quick to apply.
pub const PROPOSAL_COMMANDS_MAX: usize = 4096;
/// About the most bytes in one proposal, but for the last command: an entry stays well below a frame.
pub const PROPOSAL_BYTES_MAX: usize = 2 << 20;
/// The most writes that may wait at one time; one more is refused as busy.
pub const WRITES_MAX: usize = 1 << 16;
/// The most bytes that waiting writes may have; with more, one more is refused as busy.
pub const WRITES_BYTES_MAX: usize = 256 << 20;
/// The longest content of one answer: with the rest of the answer it fits into a frame.
pub const CONTENT_BYTES_MAX: usize = 8 << 20;
/// The most reads that may wait for a proof of leadership; one more is refused as busy.
pub const READS_MAX: usize = 1 << 16;
/// The most reads that may wait for holders to flush; one more is refused as busy, and no other read is.
pub const PARKED_MAX: usize = 1 << 16;
/// About the most bytes of renewals in one tick: an entry stays quick to apply. With more, horizons move a tick later.
pub const TICK_BYTES_MAX: usize = 2 << 20;
/// About the most bytes of nodes in one page of a list, but for the first node.
pub const LIST_BYTES_MAX: usize = 1 << 20;
/// The most watches that may wait at one time; one more is refused as busy.
pub const WATCHES_MAX: usize = 1 << 17;
/// The most of them that may be one session's; one more is refused as busy.
pub const SESSION_WATCHES_MAX: usize = 1 << 14;
/// The object leases looked at for being over with each tick.
const SWEEP_MAX: usize = 4096;

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
    },
    /// The deadline has come.
    Timeout,
}

impl Input {
    /// A proposal of this number was applied, and did this.
    pub fn committed(number: u64, applied: Applied) -> Self {
        let held = applied.held();
        Self::Committed { number, outcomes: applied.outcomes, held }
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
}

/// Who wants an answer, and the renewals that ride along.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Asker {
    id: RequestId,
    session: SessionId,
    renew: Vec<Renew>,
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
    Acquire(Asker, Option<LastValid>),
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
    clock: ClusterClock,
    ends: Ends,
    holdings: Holdings,
    coverings: CoveringNumber,
    channels: BTreeMap<SessionId, Channel>,
    /// Who wants to be told of holds.
    awaiting: Awaiting,
    writes: Writes,
    /// Reads of the round under way, and of the next.
    round: u64,
    proving: Vec<WaitingRead>,
    next_round: Vec<WaitingRead>,
    /// Reads that wait for a holder to flush.
    parked: Parked,
    /// Commands that the next proposals take.
    outbox: Outbox,
    proposals: u64,
    in_flight: BTreeMap<u64, InFlight>,
    last_tick: ClusterTime,
    /// A tick is on its way.
    is_ticking: bool,
    watching: Watching,
}

/// One step: what it may look at, and what it wants done.
struct StepContext<'a> {
    state: &'a State,
    now: Instant,
    effects: Vec<Effect>,
}

impl Lessor {
    /// The lessor of a replica that has just become leader. Its first proposal begins the epoch.
    pub fn new(config: Config, state: &State, now: Instant) -> Self {
        Self {
            epoch: None,
            clock: ClusterClock::new(state.cluster_time(), now),
            ends: Ends::default(),
            holdings: Holdings::new(config.planted),
            coverings: CoveringNumber::default(),
            channels: BTreeMap::new(),
            awaiting: Awaiting::default(),
            writes: Writes::default(),
            // Another lessor of this process may still have a proof under way: its round must not be taken for one of ours.
            round: if config.planted.has(Bug::ProofReusedAfterStepDown) { 0 } else { config.attempt },
            proving: Vec::new(),
            next_round: Vec::new(),
            parked: Parked::default(),
            outbox: Outbox::default(),
            proposals: 0,
            in_flight: BTreeMap::new(),
            last_tick: state.cluster_time(),
            is_ticking: false,
            watching: Watching::default(),
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
        self.clock.advance(now);
        let mut turn = StepContext { state, now, effects: Vec::new() };
        match input {
            Input::Request { id, request } => self.request(id, request, &mut turn),
            Input::Consent(consent) => self.consent(consent, &mut turn),
            Input::Proven { round } => self.proven(round, &mut turn),
            Input::NotProven { round } => self.not_proven(round, &mut turn),
            Input::Committed { number, outcomes, held } => self.committed(number, (outcomes, &held), &mut turn),
            Input::Timeout => self.end_waits_over(),
        }
        self.look_at_the_clock(&mut turn);
        self.look_after_watches(&mut turn);
        turn.effects
    }

    /// When the lessor wants [`Input::Timeout`] at the latest: often enough that its clock is not clamped (T4).
    pub fn next_deadline(&self, now: Instant) -> Instant {
        let ending = self.clock.ending();
        let until = self.ends.next_deadline().map_or(clock::STEP_EVERY, |deadline| deadline.since(ending));
        let until = if self.watching.is_behind() { Duration::ZERO } else { until };
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

    /// Whether so much is to be proposed that it gains nothing by waiting for more: [`PROPOSAL_COMMANDS_FULL`] commands, or
    /// [`PROPOSAL_BYTES_MAX`] bytes.
    pub fn has_full_proposal(&self) -> bool {
        self.outbox.is_full()
    }

    /// What to propose next: everything that is ready, up to a bound. Proposals are to enter the log in the order in
    /// which they are taken; their time is read here (T4).
    pub fn take_proposal(&mut self, now: Instant) -> Option<Proposal> {
        if self.outbox.is_empty() {
            return None;
        }
        self.clock.advance(now);
        let (commands, reasons) = self.outbox.take();
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
        let mut turn = StepContext { state, now, effects: Vec::new() };
        let parked = std::mem::take(&mut self.parked).into_reads();
        let proving = std::mem::take(&mut self.proving).into_iter().chain(std::mem::take(&mut self.next_round));
        for read in proving.chain(parked) {
            self.reply_bare(&read.asker, Err(Refusal::Retry), &mut turn);
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

    /// Answers, and renews what was asked for with the request (T6).
    fn reply(&mut self, asker: &Asker, result: Result<Answer, Refusal>, turn: &mut StepContext<'_>) {
        let (mut promises, mut lapses) = (Vec::new(), Vec::new());
        for renew in &asker.renew {
            match self.renew(asker.session, renew, turn) {
                Ok(promise) => promises.push(promise),
                Err(lapse) => lapses.push(lapse),
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
