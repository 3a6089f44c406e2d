//! The lessor under any requests, consents, proofs, commits and elections, in any order.
//!
//! After each step the lessor's invariants hold. It answers each request once, at the latest when
//! it steps down. A request that it refuses as not its own leaves it unchanged. The shell follows
//! its contract: it applies proposals in the order in which it took them, and time does not run
//! backwards.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use leasehold_protocol::{
    command::{Command, Proposal},
    id::{Epoch, RequestId, SessionId},
    lessor::{Lessor, LessorBounds, LessorConfig, LessorEffect, LessorInput},
    limits::Limits,
    message::{Body, CachedReads, Consent, DelayNotice, DelayReason, ReadGaps, Recall, Refusal, Response},
    path::NodePath,
    planted::Planted,
    state::State,
    time::{DriftAllowance, Instant},
    volume::VolumeSettings,
};

use super::{draw::Draw, state::Replica};

/// The most steps of one input, so that it stays quick.
const STEPS_MAX: usize = 300;

/// No quorum round has this number, so a proof of it proves nothing.
const NO_ROUND: u64 = u64::MAX;

/// Steps a lessor by choices that are drawn from the bytes.
pub fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    let mut world = World::new(if draw.below(2) == 1 { 2 } else { 1000 });
    for _ in 0..STEPS_MAX {
        if draw.is_done() {
            break;
        }
        world.something(&mut draw);
    }
    world.elect();
    world.replica.restart();
}

struct World {
    replica: Replica,
    lessor: Lessor,
    session_objects_max: usize,
    attempt: u64,
    now: Instant,
    /// Proposed and not yet applied.
    log: VecDeque<Proposal>,
    requests: u64,
    unanswered: BTreeSet<RequestId>,
    registrations: BTreeMap<SessionId, u64>,
    recalls: Vec<Recall>,
    round: Option<u64>,
}

impl World {
    fn new(session_objects_max: usize) -> Self {
        let replica = Replica::new(State::new(VolumeSettings::DEFAULT));
        let now = Instant::from_micros(1_000_000);
        let lessor = Lessor::new(config(1, session_objects_max), &replica.state, Duration::ZERO, now);
        let mut world = Self {
            replica,
            lessor,
            session_objects_max,
            attempt: 1,
            now,
            log: VecDeque::new(),
            requests: 0,
            unanswered: BTreeSet::new(),
            registrations: BTreeMap::new(),
            recalls: Vec::new(),
            round: None,
        };
        world.take();
        world.commit();
        world
    }

    fn something(&mut self, draw: &mut Draw<'_>) {
        match draw.below(24) {
            0..=9 => self.request(draw),
            10 => self.consent_to_recall(draw),
            11 => {
                let consent = draw.consent(self.replica.state.epoch());
                self.consent(consent);
            }
            12 => {
                if let Some(round) = self.round.take() {
                    self.step(if draw.one_in(4) {
                        LessorInput::NotProven { round }
                    } else {
                        LessorInput::Proven { round }
                    });
                }
            }
            13 => self.let_be(LessorInput::Proven { round: NO_ROUND }),
            14 => self.take(),
            15..=17 => {
                self.take();
                self.commit();
            }
            18 => self.commit(),
            19 => {
                self.step(LessorInput::Timeout);
            }
            20 => self.now = self.now.after(draw.span()),
            21 | 22 => {
                let next = self.lessor.next_deadline(self.now);
                assert!(next > self.now || self.now == Instant::ZERO.after(Duration::MAX));
                self.now = next;
                self.step(LessorInput::Timeout);
            }
            _ => match draw.below(4) {
                0 => self.elect(),
                1 => self.elsewhere(draw),
                2 => self.let_be(LessorInput::Committed {
                    number: NO_ROUND,
                    outcomes: Vec::new(),
                    locks_changed: Default::default(),
                    orphaned: Vec::new(),
                }),
                _ => self.replica.restart(),
            },
        }
    }

    fn request(&mut self, draw: &mut Draw<'_>) {
        let session = draw.session();
        let registration = self.registrations.get(&session).copied().unwrap_or_default();
        let state = &self.replica.state;
        let mut request = draw.request(session, state.epoch(), registration, state.revision());
        if session != SessionId(0) {
            // An absurd report, without a draw: so the corpus keeps its meaning.
            request.header.cached_reads = vec![CachedReads {
                volume: NodePath::root(),
                reads: u64::MAX,
                gaps: ReadGaps { classes: [u64::MAX; ReadGaps::CLASSES] },
            }];
        }
        if request.body == Body::Register {
            // Mostly higher than the last one.
            if !draw.one_in(4) {
                request.header.registration = registration.saturating_add(1);
            }
            self.registrations.insert(session, registration.max(request.header.registration));
        }
        self.requests += 1;
        let id = RequestId(self.requests);
        self.unanswered.insert(id);
        let mut before = self.lessor.clone();
        let mut effects = self.step(LessorInput::Request { id, request });
        if matches!(effects.first(), Some(LessorEffect::Reply { response, .. }) if is_not_ours(response)) {
            effects.remove(0);
            self.is_as(&mut before, &effects);
        }
    }

    fn consent_to_recall(&mut self, draw: &mut Draw<'_>) {
        if let Some(Recall { session, stamp, .. }) = draw.pick(&self.recalls) {
            self.delay(Consent { session, stamp });
            self.recalls.retain(|recall| (recall.session, recall.stamp) != (session, stamp));
            self.step(LessorInput::Consent(Consent { session, stamp }));
        }
    }

    /// A notice that the consent comes later, without a draw: so the corpus keeps its meaning. No
    /// rule uses it, and the hash has all that the rules use.
    fn delay(&mut self, Consent { session, stamp }: Consent) {
        let mut before = self.lessor.clone();
        let reason = match stamp.sequence % 2 {
            0 => DelayReason::Flushing,
            _ => DelayReason::InUse { at_most: Duration::MAX },
        };
        let effects = self.step(LessorInput::ConsentDelayed(DelayNotice { session, stamp, reason }));
        let expected = before.step(LessorInput::NotProven { round: NO_ROUND }, &self.replica.state, self.now);
        assert_eq!(effects, expected);
        assert_eq!(hash(&self.lessor), hash(&before), "a notice had an effect");
    }

    fn consent(&mut self, consent: Consent) {
        self.delay(consent);
        let is_asked = |recall: &Recall| recall.session == consent.session && recall.stamp == consent.stamp;
        // A recall may wait for its session to register.
        let may_be_asked = !self.registrations.contains_key(&consent.session) || self.recalls.iter().any(is_asked);
        if may_be_asked {
            drop(self.step(LessorInput::Consent(consent)))
        } else {
            self.let_be(LessorInput::Consent(consent))
        }
    }

    /// Gives the lessor an input that must change nothing.
    fn let_be(&mut self, input: LessorInput) {
        let mut before = self.lessor.clone();
        let effects = self.step(input);
        self.is_as(&mut before, &effects);
    }

    /// The lessor must be as if time had passed and nothing else had happened.
    fn is_as(&self, before: &mut Lessor, effects: &[LessorEffect]) {
        let expected = before.step(LessorInput::NotProven { round: NO_ROUND }, &self.replica.state, self.now);
        assert_eq!(effects, expected);
        assert_eq!(&self.lessor, before);
    }

    fn step(&mut self, input: LessorInput) -> Vec<LessorEffect> {
        let effects = self.lessor.step(input, &self.replica.state, self.now);
        assert_eq!(self.lessor.check(&self.replica.state), Ok(()));
        self.carry_out(&effects);
        effects
    }

    fn carry_out(&mut self, effects: &[LessorEffect]) {
        for effect in effects {
            match effect {
                LessorEffect::Reply { id, .. } => assert!(self.unanswered.remove(id), "{id} is answered twice"),
                LessorEffect::Recall(recall) => self.recalls.push(recall.clone()),
                LessorEffect::ClockChanged { .. } => {}
                LessorEffect::Prove { round } => {
                    assert_eq!(self.round.replace(*round), None, "one round at a time");
                }
            }
        }
    }

    /// Appends the lessor's next proposal to the log.
    fn take(&mut self) {
        let has_proposal = self.lessor.has_proposal();
        let proposal = self.lessor.take_proposal(self.now);
        assert_eq!(proposal.is_some(), has_proposal);
        self.log.extend(proposal);
    }

    /// Applies the first entry of the log.
    fn commit(&mut self) {
        let Some(proposal) = self.log.pop_front() else { return };
        let is_mine = self.lessor.is_mine(&proposal);
        let applied = self.replica.apply(&proposal);
        if is_mine {
            self.step(LessorInput::committed(proposal.number, applied));
        } else if begins_epoch(&proposal) && self.lessor.epoch().is_some() {
            self.elect();
        }
    }

    /// The lessor steps down, and the replica is elected again.
    fn elect(&mut self) {
        self.attempt += 1;
        let next =
            Lessor::new(config(self.attempt, self.session_objects_max), &self.replica.state, Duration::ZERO, self.now);
        let lessor = std::mem::replace(&mut self.lessor, next);
        let effects = lessor.step_down(&self.replica.state, self.now);
        self.carry_out(&effects);
        assert!(self.unanswered.is_empty(), "{:?} are never answered", self.unanswered);
        (self.round, self.recalls) = (None, Vec::new());
        self.registrations.clear();
        self.take();
    }

    /// Another replica has led in the meantime.
    fn elsewhere(&mut self, draw: &mut Draw<'_>) {
        let commands = vec![Command::BeginEpoch { replica: 2, attempt: self.attempt }];
        let time = self.replica.state.cluster_time().after(draw.span());
        self.log.push_back(Proposal { epoch: Epoch(0), number: self.attempt, time, commands });
        self.commit();
    }
}

fn hash(lessor: &Lessor) -> u64 {
    let mut hasher = DefaultHasher::new();
    lessor.hash(&mut hasher);
    hasher.finish()
}

fn config(attempt: u64, session_objects_max: usize) -> LessorConfig {
    LessorConfig {
        replica: 1,
        attempt,
        drift: DriftAllowance::DEFAULT,
        limits: Limits { session_objects_max, ..Limits::default() },
        bounds: LessorBounds::DEFAULT,
        planted: Planted::default(),
    }
}

/// Refusals that come before the lessor looks at the rest of a request.
fn is_not_ours(response: &Response) -> bool {
    matches!(response.result, Err(Refusal::NotRegistered { .. } | Refusal::SessionNotFound { .. }))
}

fn begins_epoch(proposal: &Proposal) -> bool {
    proposal.commands.iter().any(|command| matches!(command, Command::BeginEpoch { .. }))
}
