//! A step beside a crowd of everything examines as much as beside few (S10b). Each input of the
//! lessor and each command of the state is about a quiet volume. Beside it is a crowd of sessions,
//! leases, locks, waits, recalls, orphans, watches, reads and changes.

use super::*;
use crate::{
    change::WatchScope,
    command::Attach,
    id::LeaseId,
    lease_policy::LeaseRequest,
    lock::{LockMode, LockStatus},
    message::{AwaitedLock, KeyLeaseRenewal, NodesAfter},
    transaction::{Compare, Transaction},
    work::take_visited,
};

/// What each step examined, beside this many of everything.
type Visited = Vec<(String, u64)>;

struct Crowd {
    world: World,
    visited: Visited,
}

fn write_body(write: Write) -> Body {
    Body::Write { write, dropped: Vec::new(), seen: Stamp::default() }
}

impl Crowd {
    fn new(count: u64) -> Self {
        let mut crowd = Self { world: World::new(), visited: Vec::new() };
        let owner = crowd.world.session();
        for top in ["/crowd", "/waits", "/orphans", "/quiet"] {
            crowd.world.write(owner, Write::CreateVolume { path: path(top), settings: VolumeSettings::DEFAULT });
            crowd.world.commit();
        }
        crowd.fill_state(owner, count);
        crowd.world.registrations.clear();
        crowd.world.lessor = Lessor::new(
            LessorConfig { bounds: Self::bounds(), ..config(crowd.world.lessor.config.attempt + 1) },
            &crowd.world.state,
            Duration::ZERO,
            crowd.world.now,
        );
        crowd.world.lessor.config.limits.session_objects_max = usize::MAX;
        crowd.commit();
        crowd.fill_lessor(owner, count);
        crowd.world.lessor.check(&crowd.world.state).expect("the invariants hold");
        crowd.world.state.check().expect("those of the state too");
        take_visited();
        crowd
    }

    /// No bounds, except those of the work of one step.
    fn bounds() -> LessorBounds {
        let many = usize::MAX >> 1;
        LessorBounds {
            writes_max: many,
            writes_bytes_max: many,
            reads_max: many,
            blocked_reads_max: many,
            watches_max: many,
            session_watches_max: many,
            key_leases_max: many,
            renewals_per_second_max: 1 << 30,
            sweep_max: 16,
            expiry_scan_max: 16,
            purge_leases_max: 16,
            ..LessorBounds::DEFAULT
        }
    }

    fn apply(&mut self, commands: Vec<Command>) -> Vec<crate::command::Outcome> {
        self.world.index += 1;
        let (epoch, time) = (self.world.state.epoch(), self.world.state.cluster_time());
        self.world.state.apply(self.world.index, &Proposal { epoch, number: 1 << 40, time, commands }).outcomes
    }

    fn command(&mut self, session: SessionId, write: Write) -> Command {
        self.world.sequence += 1;
        let sequence = Sequence(self.world.sequence);
        let (consented, attached_through) = (vec![ObjectSet::Subtree(NodePath::root())], Revision(u64::MAX));
        let intended = self.world.state.intended(session, &write);
        Command::Write { session, sequence, unanswered_from: sequence, write, consented, intended, attached_through }
    }

    fn fill_state(&mut self, owner: SessionId, count: u64) {
        let open = (0..count).map(|_| Command::OpenSession { name: "one of many".to_owned() }).collect();
        self.apply(open);
        let sessions: Vec<SessionId> = self.world.state.sessions().map(|(id, _)| id).collect();
        self.apply(sessions.iter().map(|id| Command::AcquireVolume { session: *id, path: path("/crowd") }).collect());
        self.apply(vec![
            Command::AcquireVolume { session: owner, path: path("/waits") },
            Command::AcquireVolume { session: owner, path: path("/orphans") },
        ]);
        let grant = |id: u64| Write::GrantLease { id: Some(LeaseId(id)), name: None, ttl: TERM };
        let granted = (1..=2 * count).map(|id| self.command(owner, grant(id))).collect();
        self.apply(granted);
        let attached = |id: u64| Write::Put {
            path: path(&format!("/orphans/{}/{id}", id % 100)),
            value: Bytes::new(),
            condition: Condition::Any,
            attach: Attach::Lease(LeaseId(id)),
        };
        let puts = (1..=count).map(|id| self.command(owner, attached(id))).collect();
        self.apply(puts);
        let expired = (1..=count).map(|id| {
            let lease = AnyLease::KeyLease(LeaseId(id));
            let found = self.world.state.lease(&lease).expect("the lease is granted");
            Command::Expire { incarnation: found.incarnation, horizon: found.horizon, lease }
        });
        let expired = expired.collect();
        self.apply(expired);
        assert_eq!(self.world.state.orphans().count() as u64, count);
        let lock = |number: u64| Write::Lock {
            path: path(&format!("/crowd/{number}")),
            mode: LockMode::Exclusive,
            wait: false,
            delay: Duration::ZERO,
        };
        let puts = (0..count).map(|number| self.command(owner, put(&format!("/crowd/{number}"), b""))).collect();
        self.apply(puts);
        let locks = (0..count).map(|number| self.command(owner, lock(number))).collect();
        self.apply(locks);
    }

    fn fill_lessor(&mut self, owner: SessionId, count: u64) {
        let reader = self.opened();
        self.register(owner);
        self.ask(reader, Body::Acquire { path: path("/crowd"), last_valid: None, read: None });
        self.commit();
        let mut writer = reader;
        for number in 0..count {
            // No session has more writes without an answer.
            if number % Sequence::WINDOW == Sequence::WINDOW - 1 {
                writer = self.opened();
            }
            // Waits and recalls: the owner may hold all of it, and does not consent.
            self.ask(writer, write_body(put(&format!("/waits/{number}"), b"")));
            let watched = WatchScope::Subtree(path(&format!("/crowd/{number}")));
            let after = Some(self.world.state.revision());
            self.ask(reader, Body::Watch { watched, after, wait: TERM, bytes_max: 100 });
            self.ask(
                reader,
                Body::Read { object: data(&format!("/crowd/{number}")), known: None, lease: LeaseRequest::Implicit },
            );
        }
        self.input(LessorInput::Proven { round: self.world.lessor.round });
        self.input(LessorInput::Proven { round: self.world.lessor.round });
        // One step answers only some of them. The others must not count for the probed steps.
        while !self.world.lessor.proven_reads.is_empty() {
            self.input(LessorInput::Timeout);
        }
        assert_eq!(
            self.world.lessor.writes.iter().filter(|(_, pending)| pending.client_write().is_some()).count() as u64,
            count
        );
    }

    fn input(&mut self, input: LessorInput) -> Vec<LessorEffect> {
        self.world.input(input)
    }

    fn commit(&mut self) -> Vec<LessorEffect> {
        let mut effects = Vec::new();
        while let Some(proposal) = self.world.lessor.take_proposal(self.world.now) {
            self.world.index += 1;
            let applied = self.world.state.apply(self.world.index, &proposal);
            effects.extend(self.input(LessorInput::committed(proposal.number, applied)));
        }
        effects
    }

    fn ask(&mut self, session: SessionId, body: Body) -> Vec<LessorEffect> {
        // Only writes use numbers up.
        let sequence = Sequence(self.world.sequence + 1);
        self.world.sequence += u64::from(matches!(body, Body::Write { .. }));
        let header = RequestHeader {
            session,
            epoch: self.world.state.epoch(),
            registration: self.world.registration(session),
            sequence,
            unanswered_from: self.world.lessor.writes.lowest_sequence(session).unwrap_or(sequence),
            ..RequestHeader::default()
        };
        let header = if session == SessionId(0) { RequestHeader::default() } else { header };
        self.world.requests += 1;
        let id = RequestId(self.world.requests);
        self.input(LessorInput::Request { id, request: Request { header, body } })
    }

    fn register(&mut self, session: SessionId) {
        *self.world.registrations.entry(session).or_default() += 1;
        self.ask(session, Body::Register);
    }

    fn opened(&mut self) -> SessionId {
        self.ask(SessionId(0), Body::Open { name: "quiet".to_owned() });
        let effects = self.commit();
        let opened = replies(&effects).into_iter().find_map(|response| match response.result {
            Ok(Answer::Opened { session, .. }) => Some(session),
            _ => None,
        });
        let session = opened.expect("a session");
        self.register(session);
        session
    }

    /// Records what was examined since the last call.
    fn note(&mut self, name: &str) {
        self.visited.push((name.to_owned(), take_visited()));
    }

    /// A request up to its answer: with its proposal, its proof, and the consents of others.
    fn probe(&mut self, name: &str, session: SessionId, body: Body) {
        let mut effects = self.ask(session, body);
        let mut rounds = 0;
        while !effects.is_empty() || self.world.lessor.has_proposal() {
            rounds += 1;
            assert!(rounds < 100, "{name} does not end: {effects:?}");
            for effect in std::mem::take(&mut effects) {
                match effect {
                    LessorEffect::Prove { round } => effects.extend(self.input(LessorInput::Proven { round })),
                    LessorEffect::Recall(Recall { session, stamp, .. }) => {
                        effects.extend(self.input(LessorInput::Consent(Consent { session, stamp })));
                    }
                    LessorEffect::Reply { response, .. } => assert!(response.result.is_ok(), "{name}: {response:?}"),
                    LessorEffect::ClockChanged { .. } => {}
                }
            }
            effects.extend(self.commit());
        }
        self.note(name);
    }

    fn write(&mut self, name: &str, session: SessionId, write: Write) {
        self.probe(name, session, write_body(write));
    }

    /// The session's lock on the node.
    fn lock_at(&self, at: &str) -> (crate::id::LockId, crate::id::Token) {
        let mut locks = self.world.state.locks_on(&path(at));
        locks.next().and_then(|(id, record)| Some((id, record.token?))).expect("a granted lock")
    }

    /// Every kind of request.
    fn probe_all(mut self) -> Visited {
        let (one, two) = (self.opened(), self.opened());
        self.note("open and register");
        let top = || path("/quiet");
        for session in [one, two] {
            self.probe("acquire", session, Body::Acquire { path: top(), last_valid: None, read: None });
        }
        let key = AnyLease::Volume(one, top());
        let incarnation = self.world.state.lease(&key).expect("a lease").incarnation;
        let generation = self.world.state.volume(&top()).expect("a volume").generation;
        let revision = self.world.state.revision();
        self.write("put that makes a node", one, put("/quiet/a", b"1"));
        for session in [one, two] {
            self.probe(
                "read",
                session,
                Body::Read { object: data("/quiet/a"), known: None, lease: LeaseRequest::Implicit },
            );
            self.probe(
                "await read",
                session,
                Body::AwaitRead { object: data("/quiet/b"), known: None, lease: LeaseRequest::Implicit },
            );
        }
        self.ask(two, Body::Read { object: data("/quiet/a"), known: None, lease: LeaseRequest::Implicit });
        let round = self.world.lessor.round;
        self.input(LessorInput::NotProven { round });
        self.note("the read is not proven");
        self.write("put that is recalled", one, put("/quiet/a", b"2"));
        let transaction = Transaction::new().then(crate::transaction::Operation::put(path("/quiet/b"), "x"));
        let compares = vec![Compare::absent(path("/quiet/b"))];
        self.write("transaction", two, Write::Transaction(Transaction { compares, ..transaction }));
        self.probe("list", one, Body::List { path: top(), after: None, nodes_max: 10 });
        self.write("grant", one, Write::GrantLease { id: Some(LeaseId(u64::MAX)), name: None, ttl: TERM });
        let attach = Attach::Lease(LeaseId(u64::MAX));
        let (value, condition) = (Bytes::new(), Condition::Any);
        self.write("attach", two, Write::Put { path: path("/quiet/c"), value, condition, attach });
        let leases = vec![KeyLeaseRenewal { id: LeaseId(u64::MAX), incarnation: None }];
        self.probe("keep alive a key lease", one, Body::KeepAlive { leases });
        self.write("revoke", two, Write::RevokeLease { id: LeaseId(u64::MAX), incarnation: None });
        let lock = |mode| Write::Lock { path: path("/quiet/a"), mode, wait: true, delay: Duration::ZERO };
        self.write("lock", one, lock(LockMode::Exclusive));
        let (lock, token) = self.lock_at("/quiet/a");
        let locks = vec![AwaitedLock { path: path("/quiet/a"), lock, known: LockStatus::Waiting }];
        self.probe("await lock status", one, Body::AwaitLockStatus { locks });
        self.write("cache", one, Write::TakeWriteLease { path: path("/quiet/a"), lock });
        let value = Some(Bytes::from_static(b"3"));
        self.write("flush", one, Write::Flush { path: path("/quiet/a"), lock, token, value, ends_write_lease: true });
        self.write(
            "convert",
            one,
            Write::ChangeLockMode { path: path("/quiet/a"), lock, mode: LockMode::Shared, wait: true },
        );
        self.write("unlock", one, Write::Unlock { path: path("/quiet/a"), lock });
        self.write("delete", two, Write::Delete { path: path("/quiet/b"), recursive: true, condition: Condition::Any });
        let settings = VolumeSettings::DEFAULT;
        self.write("make a volume", one, Write::CreateVolume { path: path("/quiet/v"), settings });
        self.write("change a volume", one, Write::SetVolume { path: path("/quiet/v"), settings });
        self.write("remove a volume", one, Write::RemoveVolume { path: path("/quiet/v") });
        for (name, inspect) in [
            ("holders", Inspect::Holders { path: path("/quiet/a") }),
            ("waits", Inspect::PendingWrites { path: path("/quiet/a") }),
            ("volumes", Inspect::Volumes { path: top() }),
            ("volume stats", Inspect::VolumeStats { path: top() }),
            ("locks", Inspect::Locks { path: path("/quiet/a"), after: None }),
            ("read waits", Inspect::BlockedReads { path: path("/quiet/a") }),
            ("lease", Inspect::Lease { id: LeaseId(1), nodes_after: None }),
            ("lease and its nodes", Inspect::Lease { id: LeaseId(2000), nodes_after: Some(NodesAfter::Nothing) }),
            ("leases", Inspect::Leases { after: None }),
        ] {
            self.probe(&format!("inspect {name}"), SessionId(0), Body::Inspect(inspect));
        }
        // The session returns, and learns what changed since.
        let last_valid = Some(LastValid { incarnation, generation, revision });
        self.probe("return", one, Body::Acquire { path: top(), last_valid, read: None });
        let watched = WatchScope::Subtree(top());
        let after = Some(self.world.state.revision());
        self.ask(two, Body::Watch { watched, after, wait: TERM, bytes_max: 100 });
        self.note("watch");
        self.write("put that is watched", one, put("/quiet/a", b"4"));
        self.probe("keep alive", one, Body::Heartbeat(Default::default()));
        for number in 0..3 {
            self.world.now = self.world.now.after(clock::STEP_EVERY);
            self.input(LessorInput::Timeout);
            self.commit();
            self.note(&format!("timeout {number}"));
        }
        self.register(two);
        self.note("register");
        self.probe("close", one, Body::Close);
        self.visited
    }
}

#[test]
fn step_examines_no_more_beside_many_than_beside_few() {
    let (few, many) = (Crowd::new(1_000).probe_all(), Crowd::new(100_000).probe_all());
    assert_eq!(few.len(), many.len());
    let beyond = few.iter().zip(&many).filter(|((_, few), (_, many))| *many > few + few / 2 + 32);
    let beyond: Vec<String> = beyond.map(|((name, few), (_, many))| format!("{name}: {few}, then {many}")).collect();
    assert!(beyond.is_empty(), "beside a hundred times as many, of {}:\n{}", few.len(), beyond.join("\n"));
}
