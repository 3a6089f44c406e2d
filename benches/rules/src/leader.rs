//! A leader without a network and without a disk. Time is virtual: it stands still while nothing is
//! to be done, and each step takes as long as it really took.

use std::{
    collections::VecDeque,
    time::{Duration, Instant as Wall},
};

use leasehold_protocol::{
    command::{Command, IntendedLeases, Proposal, Write},
    id::{Epoch, LeaseId, RequestId, Revision, Sequence, SessionId, Stamp},
    lessor::{Lessor, LessorBounds, LessorConfig, LessorEffect, LessorInput},
    limits::Limits,
    message::{Answer, Body, Refusal, Request, RequestHeader},
    planted::Planted,
    state::State,
    time::{ClusterTime, DriftAllowance, Instant},
    volume::VolumeSettings,
};

/// Grants that share an entry while leases are made.
const GRANTS_PER_ENTRY: u64 = 512;

/// Which leases there are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Leases {
    pub(crate) count: u64,
    /// The shortest term; the longest is `spread` longer. They are spread evenly, in no order.
    pub(crate) first: Duration,
    pub(crate) spread: Duration,
}

impl Leases {
    pub(crate) fn term(&self, number: u64) -> Duration {
        // Far from the order of names: a prime greater than any count here.
        const STRIDE: u64 = 1_000_000_007;
        let rank = u128::from(number) * u128::from(STRIDE) % u128::from(self.count);
        self.first + self.spread.mul_f64(rank as f64 / self.count as f64)
    }
}

/// The replicated state with these leases, all granted at its beginning, as any replica has it when
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
            write: Write::GrantLease { id: Some(LeaseId(number)), ttl: leases.term(number) },
            consented: Vec::new(),
            intended: IntendedLeases::default(),
            attached_through: Revision(0),
        };
        apply(Epoch(1), numbers.map(grant).collect());
    }
    state
}

/// A proposal that is on its way through the log.
#[derive(Debug)]
struct InFlight {
    proposal: Proposal,
    /// When it is committed, in nanoseconds.
    at: u64,
}

/// What came of a turn of the leader.
#[derive(Debug, Default)]
pub(crate) struct Turn {
    pub(crate) effects: Vec<LessorEffect>,
    /// How long the step took.
    pub(crate) step: Duration,
    /// How long it took to apply what was committed, before the step.
    pub(crate) apply: Duration,
}

/// One leader.
#[derive(Debug)]
pub(crate) struct Leader {
    pub(crate) state: State,
    pub(crate) lessor: Lessor,
    /// Virtual time in nanoseconds: most steps take less than a microsecond.
    nanos: u64,
    /// From when a proposal is taken until it is committed: one at a time, as the server does it
    /// with what fills none.
    commit: Duration,
    in_flight: Option<InFlight>,
    /// What was proposed, and when by this machine's clock in nanoseconds; until somebody takes it.
    pub(crate) proposed: VecDeque<(Proposal, u64)>,
    session: SessionId,
    requests: u64,
    sequence: u64,
}

impl Leader {
    /// A replica with this state has just been elected. Nothing has been proposed yet.
    pub(crate) fn elected(state: State, commit: Duration) -> Self {
        Self::elected_with(state, commit, LessorBounds::DEFAULT, Limits::default())
    }

    /// The same of one that takes on more or less at a time, and from one session.
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

    /// Nothing happens before this.
    pub(crate) fn wait_until(&mut self, nanos: u64) {
        self.nanos = self.nanos.max(nanos);
    }

    fn spend(&mut self, begin: Wall) -> Duration {
        let took = begin.elapsed();
        self.nanos += u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        took
    }

    /// One step, and what it proposes.
    pub(crate) fn step(&mut self, input: LessorInput) -> Turn {
        let (now, begin) = (self.now(), Wall::now());
        let effects = self.lessor.step(input, &self.state, now);
        let step = self.spend(begin);
        self.propose();
        Turn { effects, step, apply: Duration::ZERO }
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

    /// The next thing that happens by itself, now or later: what is on its way is committed, or the
    /// lessor's deadline comes.
    pub(crate) fn go_on(&mut self) -> Turn {
        self.propose();
        let deadline = self.lessor.next_deadline(self.now()).as_micros() * 1000;
        match self.in_flight.take_if(|in_flight| in_flight.at <= deadline) {
            Some(InFlight { proposal, at }) => {
                self.wait_until(at);
                let (is_mine, begin) = (self.lessor.is_mine(&proposal), Wall::now());
                let applied = self.state.apply(self.state.applied_index() + 1, &proposal);
                let apply = self.spend(begin);
                assert!(is_mine, "nobody else proposes");
                let turn = self.step(LessorInput::committed(proposal.number, applied));
                Turn { apply, ..turn }
            }
            None => {
                self.wait_until(deadline);
                self.step(LessorInput::Timeout)
            }
        }
    }

    /// When something happens by itself next, in nanoseconds.
    pub(crate) fn next(&self) -> u64 {
        let deadline = self.lessor.next_deadline(self.now()).as_micros() * 1000;
        self.in_flight.as_ref().map_or(deadline, |in_flight| in_flight.at.min(deadline))
    }

    /// Goes on until the epoch has begun.
    pub(crate) fn begin(&mut self) {
        while self.lessor.epoch().is_none() {
            self.go_on();
        }
    }

    /// A session of its own, registered.
    pub(crate) fn open(&mut self) -> SessionId {
        let opened = self.ask(Body::Open { name: "bench".to_owned() });
        let Ok(Answer::Opened { session, .. }) = opened else { panic!("a session is opened: {opened:?}") };
        self.act_for(session);
        let registered = self.ask(Body::Register);
        assert!(matches!(registered, Ok(Answer::Registered { .. })), "{registered:?}");
        session
    }

    /// The next requests are of this session.
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

    /// A request, and its answer.
    pub(crate) fn ask(&mut self, body: Body) -> Result<Answer, Refusal> {
        self.time(body).0
    }

    /// A write, answered: how long its steps and the applying took together.
    pub(crate) fn write(&mut self, write: Write) -> Duration {
        let (answer, took) = self.time(Body::Write { write, dropped: Vec::new(), seen: Stamp::default() });
        assert!(matches!(answer, Ok(Answer::Written { .. })), "{answer:?}");
        took
    }

    /// A request, its answer, and how long its steps and the applying took together.
    pub(crate) fn time(&mut self, body: Body) -> (Result<Answer, Refusal>, Duration) {
        let request = self.request(body);
        let mut turn = self.step(request);
        let mut took = turn.step;
        loop {
            for effect in turn.effects {
                if let LessorEffect::Reply { id: RequestId(id), response } = effect
                    && id == self.requests
                {
                    return (response.result, took);
                }
            }
            turn = self.go_on();
            took += turn.step + turn.apply;
        }
    }
}
