//! The work of a step depends on what it finds, never on how much the client has.

use super::*;
use crate::{
    id::{LockId, Token},
    lock::{LockMode, LockOutcome},
    work::take_visited,
};

const FEW: u64 = 10;
const MANY: u64 = 10_000;

impl Client {
    /// Like `step`, but checks no invariants: the check walks everything.
    fn quick(&mut self, input: HolderInput) -> Vec<HolderEffect> {
        self.holder.step(input, self.now)
    }

    fn quick_read(&mut self, read: u64, text: &str) -> Vec<HolderEffect> {
        self.quick(HolderInput::Read { read: ReadId(read), object: data(text), lease: LeaseRequest::Implicit })
    }

    fn quick_answer(&mut self, send_id: SendId, answer: Answer) -> Vec<HolderEffect> {
        let response = Response { epoch: EPOCH, promises: vec![], lapses: vec![], clocks: None, result: Ok(answer) };
        self.quick(HolderInput::Answered { send_id, response })
    }

    /// Also with this many volumes `/v0`, `/v1` and so on, with leases of this term.
    fn volumes(mut self, count: u64, term: Duration) -> Self {
        for number in 0..count {
            self.volume(&format!("/v{number}"), number, term);
        }
        self
    }

    fn volume(&mut self, top: &str, number: u64, term: Duration) {
        let text = format!("{top}/a");
        let effects = self.quick_read(1_000_000 + number, &text);
        let read = self.only(&effects).0;
        let effects = self.quick_answer(read, Answer::Read(read_answer(top, Some(value(10)), None)));
        let acquire = self.only(&effects).0;
        let promise = Promise { span: term, term, ..promise(top, 2) };
        let read = Some(Box::new(read_answer(top, Some(value(10)), None)));
        let acquired = AcquiredVolume { promise, stamp: stamp(1_000 + number), revival: Revival::None, read };
        self.quick_answer(acquire, Answer::Acquired(acquired));
    }

    /// The application no longer uses the volumes.
    fn idle(mut self) -> Self {
        let tops: Vec<NodePath> = self.holder.volumes.iter().map(|(top, _)| top.clone()).collect();
        tops.iter().for_each(|top| self.holder.volumes.learn(top).is_used = false);
        self
    }

    /// Checks the invariants, and returns what `act` visits.
    fn visited(mut self, act: impl FnOnce(&mut Self)) -> u64 {
        self.holder.check(self.now).expect("the invariants hold");
        take_visited();
        act(&mut self);
        let visited = take_visited();
        self.holder.check(self.now).expect("the invariants hold");
        visited
    }
}

/// Asserts that a step visits as much with many things as with few.
fn assert_equal(visited: impl Fn(u64) -> u64) {
    assert_eq!(visited(MANY), visited(FEW));
}

const LONG: Duration = Duration::from_secs(3_600);

#[test]
fn step_visits_no_volume_that_is_not_due() {
    assert_equal(|count| {
        Client::leased().volumes(count, LONG).idle().visited(|client| {
            client.now = at(101);
            client.quick(HolderInput::Timeout { used: BTreeSet::new() });
            client.quick(HolderInput::Recalled(recall(900, 1, vec![one("/other")])));
            let effects = client.quick_read(1, "/b");
            let (read, request) = client.only(&effects);
            assert_eq!(request.header.renew, [root(1)]);
            client.quick_answer(read, answer(Some(value(10)), None));
            client.now = client.holder.next_deadline().expect("the lease on the root is due");
            client.timeout_used_root();
        })
    });
}

impl Client {
    fn timeout_used_root(&mut self) {
        let effects = self.quick(HolderInput::Timeout { used: BTreeSet::from([NodePath::root()]) });
        let (_, renewals) = keep_alive(&effects).expect("the lease on the root is due");
        assert_eq!(renewals, [root(1)]);
    }
}

#[test]
fn recall_and_lapse_visit_no_other_volume() {
    assert_equal(|count| {
        Client::cached().volumes(count, LONG).idle().visited(|client| {
            client.quick(HolderInput::Recalled(recall(900, 1, vec![one("/a")])));
            let effects = client.quick_read(1, "/b");
            let read = client.only(&effects).0;
            let lapses = vec![crate::message::Lapse { volume: NodePath::root(), incarnation: Incarnation(1) }];
            let result = Ok(answer(Some(value(10)), None));
            let response = Response { epoch: EPOCH, promises: vec![], lapses, clocks: None, result };
            client.quick(HolderInput::Answered { send_id: read, response });
        })
    });
}

#[test]
fn step_in_jeopardy_visits_no_ended_lease() {
    assert_equal(|count| {
        let mut client = Client::leased().volumes(count, TERM);
        client.quick(HolderInput::Disconnected);
        client.now = at(111);
        let effects = client.quick(HolderInput::Timeout { used: BTreeSet::new() });
        let is_jeopardy = |effect: &HolderEffect| matches!(effect, HolderEffect::Connection(SessionNews::Jeopardy { volumes }) if volumes.len() as u64 >= count);
        assert!(effects.iter().any(is_jeopardy), "{}", effects.len());
        client.now = at(200);
        client.visited(|client| {
            client.quick(HolderInput::Timeout { used: BTreeSet::new() });
            client.quick_read(1, "/b");
        })
    });
}

#[test]
fn cancelled_write_visits_no_other_waiting_write() {
    assert_equal(|count| {
        let mut client = Client::leased();
        let first_waiting = client.holder.config.bounds.writes_out_max;
        for number in 0..first_waiting + count {
            let change = put(&format!("/{number}"));
            client.quick(HolderInput::Write { write: WriteId(number), change });
        }
        client.visited(|client| {
            for number in 0..FEW {
                let effects = client.quick(HolderInput::CancelWrite(WriteId(first_waiting + count - 1 - number)));
                assert!(matches!(effects[..], [HolderEffect::WriteDone { .. }]), "{effects:?}");
            }
        })
    });
}

#[test]
fn client_without_registration_visits_no_request_in_flight() {
    assert_equal(|count| {
        let mut client = Client::leased();
        for number in 0..count {
            client.quick_read(number, &format!("/{number}"));
        }
        let effects = client.quick_read(count, "/b");
        let read = client.only(&effects).0;
        let refusal = Refusal::NotRegistered { got: EPOCH, expected: EPOCH };
        let response = Response { epoch: EPOCH, promises: vec![], lapses: vec![], clocks: None, result: Err(refusal) };
        client.quick(HolderInput::Answered { send_id: read, response });
        client.visited(|client| {
            client.quick_read(count + 1, "/c");
        })
    });
}

#[test]
fn on_demand_request_visits_no_attaching_write() {
    assert_equal(|count| {
        let mut client = Client::with(|config| {
            config.renewal = RenewalMode::OnDemand;
            config.bounds.writes_out_max = 2 * MANY;
        });
        client = client.connect();
        client.holder.settle_clocks();
        let mut client = client.lease().volumes(FEW, LONG).idle();
        for number in 0..count {
            let (path, attach) = (path(&format!("/node{number}")), crate::command::Attach::Session);
            let change = Write::Put { path, value: "v".into(), condition: Condition::Any, attach };
            client.quick(HolderInput::Write { write: WriteId(number), change });
        }
        client.now = at(109);
        client.visited(|client| {
            let effects = client.quick_read(1, "/b");
            assert_eq!(client.only(&effects).1.header.renew, [root(1)]);
        })
    });
}

#[test]
fn requested_leases_are_not_walked() {
    assert_equal(|count| {
        let mut client = Client::with(|config| config.bounds.volumes_max = 2 * MANY as usize).connect();
        client.holder.settle_clocks();
        let mut client = client.lease().volumes(count, TERM);
        client.now = at(111);
        for number in 0..count {
            let effects = client.quick_read(number, &format!("/v{number}/b"));
            assert!(matches!(sent(&effects)[..], [(_, Body::Acquire { .. })]), "{effects:?}");
        }
        client.visited(|client| {
            client.quick_read(count, "/b");
            client.quick(HolderInput::Timeout { used: BTreeSet::new() });
        })
    });
}

#[test]
fn answer_with_new_volume_forgets_an_idle_one() {
    const VOLUMES_MAX: usize = 8;
    let mut client = Client::with(|config| config.bounds.volumes_max = VOLUMES_MAX).connect();
    client.holder.settle_clocks();
    for number in 0..4 * VOLUMES_MAX as u64 {
        client.now = client.now.after(TERM);
        let top = format!("/v{number}");
        let effects = client.read(number, &format!("{top}/a"));
        let (acquire, request) = client.only(&effects);
        assert!(matches!(request.body, Body::Acquire { .. }), "{request:?}");
        let read = Some(Box::new(read_answer(&top, Some(value(10)), None)));
        let acquired =
            AcquiredVolume { promise: promise(&top, 2), stamp: stamp(1 + number), revival: Revival::None, read };
        client.answer(acquire, Answer::Acquired(acquired));
        assert_eq!(client.holder.volume_of(&path(&top)), path(&top));
    }
    assert_eq!(client.holder.volumes.iter().count(), VOLUMES_MAX);
}

impl Client {
    /// Also with this many locks under the lease on the root. Every second one waits.
    fn locks(mut self, count: u64) -> Self {
        for number in 1..=count {
            let grant = LockOutcome {
                path: path(&format!("/lock{number}")),
                lock: LockId(number),
                mode: LockMode::Exclusive,
                token: (number % 2 == 0).then_some(Token(number)),
                volume: NodePath::root(),
                incarnation: Incarnation(1),
            };
            let written = Written { lock: Some(Box::new(grant)), ..Written::default() };
            self.holder.apply_lock_outcome(&put("/any"), &written, self.now);
        }
        self.quick(HolderInput::Timeout { used: BTreeSet::new() });
        self
    }
}

#[test]
fn lease_on_another_volume_visits_no_lock() {
    assert_equal(|count| {
        Client::leased().volumes(2, LONG).idle().locks(count).visited(|client| {
            client.volume("/other", 5, LONG);
            let effects = client.quick_read(1, "/b");
            let read = client.only(&effects).0;
            let lapses = vec![crate::message::Lapse { volume: path("/v1"), incarnation: Incarnation(2) }];
            let result = Ok(answer(Some(value(10)), None));
            let response = Response { epoch: EPOCH, promises: vec![], lapses, clocks: None, result };
            client.quick(HolderInput::Answered { send_id: read, response });
        })
    });
}

#[test]
fn waiting_locks_of_an_ended_lease_are_not_walked() {
    assert_equal(|count| {
        let mut client = Client::leased().locks(count);
        client.quick(HolderInput::Disconnected);
        client.now = at(111);
        let effects = client.quick(HolderInput::Timeout { used: BTreeSet::new() });
        let lost = effects.iter().find_map(|effect| match effect {
            HolderEffect::LocksLost { locks, .. } => Some(locks.len() as u64),
            _ => None,
        });
        assert_eq!(lost, Some(count / 2), "those that were granted");
        client.visited(|client| {
            client.quick(HolderInput::Timeout { used: BTreeSet::new() });
        })
    });
}

impl Client {
    /// Also with this many copies under the lease on the root. Their object leases have this term.
    fn copies(mut self, count: u64, term: Duration) -> Self {
        for number in 0..count {
            let text = format!("/copy{number}");
            let effects = self.quick_read(2_000_000 + number, &text);
            let read = self.only(&effects).0;
            let grant = Grant { span: term, ..grant(1_000 + number) };
            self.quick_answer(read, answer(Some(value(10)), Some(grant)));
        }
        self
    }
}

#[test]
fn request_for_a_lease_visits_no_ended_copy() {
    assert_equal(|count| {
        let mut client = Client::leased().copies(count, TERM);
        client.now = at(120);
        client.visited(|client| {
            let effects = client.quick_read(1, "/b");
            let (_, request) = client.only(&effects);
            assert!(matches!(request.body, Body::Acquire { last_valid: None, .. }), "{request:?}");
        })
    });
}

#[test]
fn request_for_a_lease_visits_no_copy_of_a_volume_below() {
    assert_equal(|count| {
        let mut client = Client::leased().volumes(count, LONG);
        client.now = at(120);
        client.visited(|client| {
            let effects = client.quick_read(1, "/b");
            let (acquire, request) = client.only(&effects);
            assert!(matches!(request.body, Body::Acquire { last_valid: None, .. }), "{request:?}");
            client.quick_answer(acquire, acquired("/", 3, 20_000));
        })
    });
}

impl Client {
    /// Also with this many write leases under the lease on the root. Their values are not flushed.
    fn write_leases(count: u64) -> Self {
        let mut client = Self::with(|config| config.bounds.writes_out_max = 4 * MANY).connect();
        client.holder.settle_clocks();
        let mut client = client.lease();
        for number in 0..count {
            let (id, path) = (LockId(2 * number + 2), path(&format!("/lock{number}")));
            let grant = LockOutcome {
                path: path.clone(),
                lock: id,
                mode: LockMode::Exclusive,
                token: Some(Token(number + 1)),
                volume: NodePath::root(),
                incarnation: Incarnation(1),
            };
            let written = Written { lock: Some(Box::new(grant)), ..Written::default() };
            client.holder.apply_lock_outcome(&put("/any"), &written, client.now);
            let change = Write::TakeWriteLease { path, lock: id };
            let effects = client.quick(HolderInput::Write { write: WriteId(number), change });
            let taken = client.only(&effects).0;
            let Content::Data(data) = value(10) else { unreachable!("data") };
            let (written, stamp, applied) = (Written::default(), stamp(1_000 + number), Revision(30));
            let write_lease_data = data.map(Box::new);
            let answer = Answer::Written { written, stamp, grant: None, applied, key_lease: None, write_lease_data };
            client.quick_answer(taken, answer);
            client.quick(HolderInput::SetUnderWriteLease { lock: id, value: "new".into() });
        }
        client
    }
}

#[test]
fn step_visits_no_write_lease_that_need_not_be_flushed() {
    assert_equal(|count| {
        Client::write_leases(count).visited(|client| {
            client.quick(HolderInput::Timeout { used: BTreeSet::new() });
            client.quick(HolderInput::Recalled(recall(90_000, 1, vec![one("/other")])));
        })
    });
}

#[test]
fn recall_visits_only_write_leases_that_it_names() {
    assert_equal(|count| {
        let mut client = Client::write_leases(count + 1);
        let mut ended = Vec::new();
        for number in 0..count {
            let set = one(&format!("/lock{number}"));
            let effects = client.quick(HolderInput::Recalled(recall(90_000 + number, number + 1, vec![set])));
            ended.extend(requests(&effects).into_iter().map(|(send_id, _)| send_id));
        }
        client.visited(|client| {
            client.quick(HolderInput::Timeout { used: BTreeSet::new() });
            let set = one(&format!("/lock{count}"));
            client.quick(HolderInput::Recalled(recall(190_000, count + 1, vec![set])));
            client.quick_answer(ended[0], written_answer(Written::default()));
        })
    });
}
