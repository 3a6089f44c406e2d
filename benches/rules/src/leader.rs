//! A leader without network and disk. Its time is virtual. A step advances it by the time that the
//! step really took. Between steps it jumps to the next event.

use std::{
    collections::VecDeque,
    time::{Duration, Instant as Wall},
};

use leasehold_protocol::{
    command::{Command, IntendedLeases, Proposal, Write},
    id::{Epoch, LeaseId, RequestId, Revision, Sequence, SessionId, Stamp},
    lessor::{Lessor, LessorBounds, LessorConfig, LessorEffect, LessorInput},
    limits::Limits,
    message::{AcquiredVolume, Answer, Body, LastValid, Refusal, Request, RequestHeader},
    path::NodePath,
    planted::Planted,
    state::State,
    time::{ClusterTime, DriftAllowance, Instant},
    volume::{Tracking, VolumeSettings},
};

/// Grants that share an entry while leases are created.
const GRANTS_PER_ENTRY: u64 = 512;

/// The leases of a benchmark.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leases {
    pub(crate) count: u64,
    /// The shortest term; the longest is `spread` longer. Evenly spread, in a mixed order.
    pub(crate) first: Duration,
    pub(crate) spread: Duration,
}

impl Leases {
    pub(crate) fn term(&self, number: u64) -> Duration {
        // A prime greater than any count here, so that the order of terms is unlike that of ids.
        const STRIDE: u64 = 1_000_000_007;
        let rank = u128::from(number) * u128::from(STRIDE) % u128::from(self.count);
        self.first + self.spread.mul_f64(rank as f64 / self.count as f64)
    }
}

/// Terms so long that no lease needs a renewal during the measurement.
pub(crate) fn settings() -> VolumeSettings {
    let (term, margin) = (Duration::from_secs(3600), Duration::from_secs(8));
    VolumeSettings::new(term, term, margin, Tracking::Objects, DriftAllowance::DEFAULT).expect("valid settings")
}

/// The replicated state with these leases, all granted at its beginning, as a replica has it when
/// it is elected.
pub(crate) fn state_with(leases: Leases) -> State {
    let mut state = State::new(VolumeSettings::DEFAULT);
    let mut index = 0;
    let mut apply = |epoch, commands| {
        index += 1;
        state.apply(index, &Proposal { epoch, number: index, time: ClusterTime::ZERO, commands })
    };
    apply(Epoch(0), vec![Command::BeginEpoch { replica: 1, attempt: 0 }]);
    apply(Epoch(1), vec![Command::OpenSession { name: "bench".to_owned() }]);
    for first in (0..leases.count).step_by(GRANTS_PER_ENTRY as usize) {
        let numbers = first..leases.count.min(first + GRANTS_PER_ENTRY);
        let grant = |number| Command::Write {
            session: SessionId(1),
            sequence: Sequence(number + 1),
            unanswered_from: Sequence(number + 1),
            write: Write::GrantLease { id: Some(LeaseId(number)), name: None, ttl: leases.term(number) },
            consented: Vec::new(),
            intended: IntendedLeases::default(),
            attached_through: Revision(0),
        };
        apply(Epoch(1), numbers.map(grant).collect());
    }
    state
}

/// A proposal in the log that is not committed yet.
#[derive(Debug)]
struct InFlight {
    proposal: Proposal,
    /// When it is committed, in nanoseconds.
    at: u64,
}

/// The result of one step of the leader.
#[derive(Debug, Default)]
pub(crate) struct LeaderStep {
    pub(crate) effects: Vec<LessorEffect>,
    /// How long the step took.
    pub(crate) step: Duration,
    /// How long applying committed entries took before the step.
    pub(crate) apply: Duration,
}

#[derive(Debug)]
pub(crate) struct Leader {
    pub(crate) state: State,
    pub(crate) lessor: Lessor,
    /// Virtual time in nanoseconds: most steps take less than a microsecond.
    nanos: u64,
    /// The time from the taking of a proposal to its commit. One proposal is in flight at a time,
    /// as in the server if the proposals do not fill an entry.
    commit: Duration,
    in_flight: Option<InFlight>,
    /// The proposals and when they were taken, in virtual nanoseconds. Callers drain it.
    pub(crate) proposed: VecDeque<(Proposal, u64)>,
    session: SessionId,
    requests: u64,
    sequence: u64,
}

impl Leader {
    /// A replica with this state that has just been elected, before its first proposal.
    pub(crate) fn elected(state: State, commit: Duration) -> Self {
        Self::elected_with(state, commit, LessorBounds::DEFAULT, Limits::default())
    }

    /// Like [`Self::elected`], with other bounds and limits.
    pub(crate) fn elected_with(state: State, commit: Duration, bounds: LessorBounds, limits: Limits) -> Self {
        let config = LessorConfig {
            replica: 1,
            attempt: state.applied_index(),
            drift: DriftAllowance::DEFAULT,
            limits,
            bounds,
            planted: Planted::default(),
        };
        let nanos = 1_000_000_000;
        let lessor = Lessor::new(config, &state, Duration::ZERO, Instant::from_micros(nanos / 1000));
        let (session, in_flight, proposed) = (SessionId(0), None, VecDeque::new());
        Self { state, lessor, nanos, commit, in_flight, proposed, session, requests: 0, sequence: 0 }
    }

    pub(crate) fn nanos(&self) -> u64 {
        self.nanos
    }

    pub(crate) fn now(&self) -> Instant {
        Instant::from_micros(self.nanos / 1000)
    }

    /// Advances the time to this instant, if it is later.
    pub(crate) fn wait_until(&mut self, nanos: u64) {
        self.nanos = self.nanos.max(nanos);
    }

    fn spend(&mut self, begin: Wall) -> Duration {
        let took = begin.elapsed();
        self.nanos += u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        took
    }

    /// Runs one step of the lessor. Then takes its next proposal, if none is in flight.
    pub(crate) fn step(&mut self, input: LessorInput) -> LeaderStep {
        let (now, begin) = (self.now(), Wall::now());
        let effects = self.lessor.step(input, &self.state, now);
        let step = self.spend(begin);
        self.propose();
        LeaderStep { effects, step, apply: Duration::ZERO }
    }

    fn propose(&mut self) {
        let (now, begin) = (self.now(), Wall::now());
        if self.in_flight.is_none()
            && let Some(proposal) = self.lessor.take_proposal(now)
        {
            self.spend(begin);
            self.proposed.push_back((proposal.clone(), self.nanos));
            let at = self.nanos + u64::try_from(self.commit.as_nanos()).unwrap_or(u64::MAX);
            self.in_flight = Some(InFlight { proposal, at });
        }
    }

    /// Jumps to the next event and runs it: the commit of the proposal in flight, or the lessor's
    /// deadline.
    pub(crate) fn run_next_event(&mut self) -> LeaderStep {
        self.propose();
        let deadline = self.lessor.next_deadline(self.now()).as_micros() * 1000;
        match self.in_flight.take_if(|in_flight| in_flight.at <= deadline) {
            Some(InFlight { proposal, at }) => {
                self.wait_until(at);
                let (is_mine, begin) = (self.lessor.is_mine(&proposal), Wall::now());
                let applied = self.state.apply(self.state.applied_index() + 1, &proposal);
                let apply = self.spend(begin);
                assert!(is_mine, "nobody else proposes");
                let step = self.step(LessorInput::committed(proposal.number, applied));
                LeaderStep { apply, ..step }
            }
            None => {
                self.wait_until(deadline);
                self.step(LessorInput::Timeout)
            }
        }
    }

    /// The time of the next event in nanoseconds.
    pub(crate) fn next(&self) -> u64 {
        let deadline = self.lessor.next_deadline(self.now()).as_micros() * 1000;
        self.in_flight.as_ref().map_or(deadline, |in_flight| in_flight.at.min(deadline))
    }

    /// Runs until the epoch has begun.
    pub(crate) fn begin(&mut self) {
        while self.lessor.epoch().is_none() {
            self.run_next_event();
        }
    }

    /// Opens and registers a session.
    pub(crate) fn open(&mut self) -> SessionId {
        let opened = self.ask(Body::Open { name: "bench".to_owned() });
        let Ok(Answer::Opened { session, .. }) = opened else { panic!("a session is opened: {opened:?}") };
        self.act_for(session);
        let registered = self.ask(Body::Register);
        assert!(matches!(registered, Ok(Answer::Registered { .. })), "{registered:?}");
        session
    }

    /// Opens a session with a lease on the root.
    pub(crate) fn join(&mut self) -> SessionId {
        let session = self.open();
        self.acquire(None);
        session
    }

    /// Acquires a lease on the root for the session. Returns it with the time of all steps.
    pub(crate) fn acquire(&mut self, last_valid: Option<LastValid>) -> (AcquiredVolume, Duration) {
        let (acquired, took) = self.time(Body::Acquire { path: NodePath::root(), last_valid, read: None });
        let Ok(Answer::Acquired(acquired)) = acquired else { panic!("a lease is granted: {acquired:?}") };
        (acquired, took)
    }

    /// Makes the next requests come from this session.
    pub(crate) fn act_for(&mut self, session: SessionId) {
        self.session = session;
    }

    /// A request of the session.
    pub(crate) fn request(&mut self, body: Body) -> LessorInput {
        self.requests += 1;
        self.sequence += u64::from(matches!(body, Body::Write { .. }));
        let header = RequestHeader {
            session: self.session,
            epoch: self.state.epoch(),
            registration: 1,
            sequence: Sequence(self.sequence),
            unanswered_from: Sequence(self.sequence),
            ..RequestHeader::default()
        };
        LessorInput::Request { id: RequestId(self.requests), request: Request { header, body } }
    }

    /// Sends a request and returns its answer.
    pub(crate) fn ask(&mut self, body: Body) -> Result<Answer, Refusal> {
        self.time(body).0
    }

    /// Sends a write and waits for its answer. Returns the time of all its steps and applications.
    pub(crate) fn write(&mut self, write: Write) -> Duration {
        let (answer, took) = self.time(Body::Write { write, dropped: Vec::new(), seen: Stamp::default() });
        assert!(matches!(answer, Ok(Answer::Written { .. })), "{answer:?}");
        took
    }

    /// Sends a request. Returns its answer, and the time of all its steps and applications.
    pub(crate) fn time(&mut self, body: Body) -> (Result<Answer, Refusal>, Duration) {
        let request = self.request(body);
        let mut step = self.step(request);
        let mut took = step.step;
        loop {
            for effect in step.effects {
                if let LessorEffect::Reply { id: RequestId(id), response } = effect
                    && id == self.requests
                {
                    return (response.result, took);
                }
            }
            step = self.run_next_event();
            took += step.step + step.apply;
        }
    }
}
