//! The length of proposals: whatever clients ask, each fits into an entry of the log.

use super::*;
use crate::{
    command::Attach,
    id::{LeaseId, Token},
    object::ObjectSet,
    transaction::{Compare, CompareTarget, Operation, Transaction},
};

/// The longest entry that Raft takes: `PROPOSAL_MAX_BYTES` of the server.
const ENTRY_BYTES_MAX: usize = 8 << 20;

/// Pseudo-random numbers (Knuth's linear congruences), from a seed.
pub(super) struct Draw(pub(super) u64);

impl Draw {
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// A path of the greatest length, one for each number.
fn long(number: u64) -> NodePath {
    let last = format!("/{number:0>255}");
    path(&format!("{}{last}", format!("/{}", "d".repeat(255)).repeat(15)))
}

fn short(number: u64) -> NodePath {
    path(&format!("/{number}"))
}

impl World {
    /// A world whose limits are at their greatest.
    fn at_the_limits() -> Self {
        let mut world = Self::new();
        world.lessor.config.limits.value_max_bytes = Limits::VALUE_MAX_BYTES;
        world
    }

    /// Takes an input without a check of the invariants, because thousands follow.
    pub(super) fn input(&mut self, input: LessorInput) -> Vec<LessorEffect> {
        self.lessor.step(input, &self.state, self.now)
    }

    fn ask_unchecked(&mut self, session: SessionId, sequence: u64, body: Body) -> Vec<LessorEffect> {
        self.requests += 1;
        let header = RequestHeader {
            session,
            epoch: self.state.epoch(),
            registration: self.registration(session),
            sequence: Sequence(sequence),
            unanswered_from: Sequence(1),
            ..RequestHeader::default()
        };
        self.input(LessorInput::Request { id: RequestId(self.requests), request: Request { header, body } })
    }

    /// Takes all proposals and applies them. Returns the length of the longest.
    fn longest_proposal(&mut self) -> usize {
        let mut longest = 0;
        while let Some(proposal) = self.lessor.take_proposal(self.now) {
            longest = longest.max(postcard::to_allocvec(&proposal).expect("encodes").len());
            self.index += 1;
            let applied = self.state.apply(self.index, &proposal);
            self.input(LessorInput::committed(proposal.number, applied));
        }
        longest
    }
}

/// Any write that is as large as the limits allow in some respect.
fn extreme(draw: &mut Draw) -> Write {
    let value = |bytes: usize| Bytes::from(vec![7; bytes]);
    let operations = |count: u64, at: fn(u64) -> NodePath, from: u64| -> Vec<Operation> {
        let put = |number| Operation::Put { path: at(number), value: Bytes::new(), attach: Attach::Nothing };
        (from..from + count).map(put).collect()
    };
    let compare_locked = |at: NodePath| Compare { path: at, target: CompareTarget::Locked(false, Token(u64::MAX)) };
    let from = draw.below(10_000) * 1000;
    match draw.below(8) {
        0 => Write::put(long(from), value(Limits::VALUE_MAX_BYTES)),
        1 => Write::put(short(from), value(1)),
        2 => Write::Transaction(Transaction {
            compares: (0..128).map(|_| compare_locked(NodePath::root())).collect(),
            then: operations(128, short, from),
            otherwise: operations(128, short, from),
        }),
        3 => Write::Transaction(Transaction { then: operations(64, long, from), ..Transaction::new() }),
        4 => Write::Transaction(Transaction {
            compares: (0..32).map(|number| Compare::absent(long(number))).collect(),
            then: operations(16, long, from),
            otherwise: operations(16, long, from),
        }),
        5 => {
            let value = Bytes::from(vec![7; Limits::VALUE_MAX_BYTES]);
            let large = Operation::Put { path: short(1), value, attach: Attach::Nothing };
            let mut then = operations(63, long, from);
            then.push(large);
            Write::Transaction(Transaction { then, ..Transaction::new() })
        }
        6 => Write::GrantLease { id: Some(LeaseId(u64::MAX - draw.below(1000))), name: None, ttl: TERM },
        _ => Write::Delete { path: long(from), recursive: true, condition: Condition::Any },
    }
}

#[test]
fn proposals_of_any_admitted_requests_fit_an_entry() {
    for seed in 0..4 {
        let mut draw = Draw(seed);
        let mut world = World::at_the_limits();
        let sessions: Vec<SessionId> = (0..2).map(|_| world.session()).collect();
        let mut admitted = 0;
        for sequence in 2..=200 {
            for session in &sessions {
                let body = match draw.below(6) {
                    0 => Body::Open { name: "n".repeat(256) },
                    1 => Body::Acquire { path: long(draw.below(9)), last_valid: None, read: None },
                    _ => write_body(extreme(&mut draw)),
                };
                admitted += usize::from(replies(&world.ask_unchecked(*session, sequence, body)).is_empty());
            }
        }
        assert!(admitted > 300, "seed {seed}: {admitted} were admitted");
        let longest = world.longest_proposal();
        assert!(longest > Limits::VALUE_MAX_BYTES, "seed {seed}: {longest} bytes are no load");
        assert!(longest <= ENTRY_BYTES_MAX, "seed {seed}: a proposal has {longest} bytes");
    }
}

#[test]
fn footprint_too_long_for_a_command_becomes_one_subtree() {
    let mut world = World::at_the_limits();
    let session = world.session();
    // A lease with nodes in as many lists as a revocation names one by one, each with the longest
    // path.
    world.ask_unchecked(session, 2, write_body(Write::GrantLease { id: Some(LeaseId(9)), name: None, ttl: TERM }));
    world.longest_proposal();
    for number in 0..512 {
        let at = long(number).parent().expect("a parent").parent().expect("another");
        let at = path(&format!("{at}/{number:0>255}/{}", "k".repeat(240)));
        let put =
            Write::Put { path: at, value: Bytes::new(), attach: Attach::Lease(LeaseId(9)), condition: Condition::Any };
        world.ask_unchecked(session, 3 + number, write_body(put));
        world.longest_proposal();
    }
    world.ask_unchecked(session, 515, write_body(Write::RevokeLease { id: LeaseId(9), incarnation: None }));
    let proposal = world.lessor.take_proposal(world.now).expect("the revocation");
    let [Command::Write { consented, .. }] = proposal.commands.as_slice() else { panic!("{proposal:?}") };
    assert_eq!(consented.len(), 512);
    let encoded = postcard::to_allocvec(consented).expect("encodes").len();
    assert!((Write::CONSENTED_BYTES_MAX / 10 * 8..Write::CONSENTED_BYTES_MAX).contains(&encoded), "{encoded} bytes");

    let sets = |count| (0..count).map(|number| ObjectSet::One(Object::data(long(number)))).collect::<Vec<_>>();
    let fits = sets(570);
    assert_eq!(super::super::writes::arrival::within_a_command(fits.clone()), fits);
    let top = long(0).parent().expect("a parent");
    assert_eq!(super::super::writes::arrival::within_a_command(sets(600)), [ObjectSet::Subtree(top)]);
}

fn write_body(write: Write) -> Body {
    Body::Write { write, dropped: Vec::new(), seen: Stamp::default() }
}

#[test]
fn write_too_long_for_an_entry_is_refused() {
    let mut world = World::new();
    // No configuration that a server accepts allows such values.
    world.lessor.config.limits.value_max_bytes = 16 << 20;
    let session = world.session();
    let put = |bytes: usize| Write::put(path("/a"), Bytes::from(vec![7; bytes]));
    let around = put(1 << 20).encoded_bytes() - (1 << 20);
    let most = Write::BYTES_MAX - around - 1;
    assert_eq!(put(most).encoded_bytes(), Write::BYTES_MAX);
    let refused = result(&world.write(session, put(most + 1)));
    let error = crate::limits::LimitError::Write { got: Write::BYTES_MAX + 1, expected: Write::BYTES_MAX };
    assert_eq!(refused, Err(error.into()));
    assert!(!world.lessor.has_proposal(), "the refused write has no effect");
    assert_eq!(world.write(session, put(most)), []);
    assert!(world.longest_proposal() <= ENTRY_BYTES_MAX);
}
