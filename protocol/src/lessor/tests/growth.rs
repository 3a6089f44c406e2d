//! Nothing grows beyond what lives. After very many operations the tables of the lessor and the
//! state have no more than the present sessions, leases, nodes and waits account for.

use super::{sizes::Draw, *};
use crate::{
    command::Attach,
    id::{LeaseId, LockId, Token},
    lease_policy::LeaseRequest,
    lock::LockMode,
    message::{AwaitedLock, KeyLeaseRenewal},
    object::ObjectKind,
    transaction::{Compare, Operation, Transaction},
};

const OPERATIONS: u64 = 1_000_000;

/// The tables that follow the history, which is bounded by itself.
const OF_THE_HISTORY: [&str; 5] =
    ["changes", "sets that changed", "sets by volume", "changed nodes", "changes below nodes"];

/// How many sessions live at one time.
const SESSIONS: usize = 24;

impl Lessor {
    /// The number of entries of each table.
    fn sizes(&self) -> Vec<(&'static str, usize)> {
        let mut sizes = [self.leases.sizes(), self.object_leases.sizes(), self.writes.sizes()].concat();
        let recalls = self.recall_channels.values().map(RecallChannel::sizes);
        let [unanswered, by_set, by_sent] =
            recalls.fold([0; 3], |sum: [usize; 3], one| std::array::from_fn(|place| sum[place] + one[place]));
        let [awaiting, awaited, awaited_by_contention] = self.awaited_locks.sizes();
        let [blocking_nodes, blocked_by_session, blocked, recalled, early_consents] = self.blocked_reads.sizes();
        let [watches, by_node, by_subtree, by_session, by_time, woken, reports, reported, awaited_reports] =
            self.watches.sizes();
        let [commands, lengths, bytes, ends] = self.proposal_queue.sizes();
        let [marks, beyond] = self.drift_reports.sizes();
        let [renewals, renewing] = self.renewals.sizes();
        let [next_values, next_by_session, woken_next, proven_next, next_sessions] = self.next_values.sizes();
        sizes.extend([
            ("channels", self.recall_channels.len()),
            ("volumes with counters", self.counters.0.size()),
            ("volumes with terms by use", self.terms_by_use.size()),
            ("recalls", unanswered),
            ("recalls by set", by_set),
            ("recalls by time", by_sent),
            ("requests that wait for locks", awaiting),
            ("awaited locks", awaited),
            ("awaited locks by contention", awaited_by_contention),
            ("orphans to purge", self.orphans.len()),
            ("reads", self.round_reads.len() + self.next_round_reads.len()),
            ("reads that wait for write leases", blocked),
            ("nodes that reads wait for", blocking_nodes),
            ("reads that wait, by session", blocked_by_session),
            ("recalled write leases", recalled),
            ("early consents", early_consents),
            ("objects whose next value is read", next_values),
            ("reads of next values, by session", next_by_session),
            ("woken reads of next values", woken_next + proven_next),
            ("sessions with reads of next values", next_sessions),
            ("commands", commands),
            ("lengths of commands", lengths),
            ("bytes of commands", bytes),
            ("queued ends", ends),
            ("proposals", self.in_flight.len()),
            ("key leases to come", self.key_leases_to_come),
            ("load to come", usize::try_from(self.load_to_come).unwrap_or(usize::MAX)),
            ("watches", watches),
            ("watched nodes", by_node),
            ("watched subtrees", by_subtree),
            ("watching sessions", by_session),
            ("watches by time", by_time),
            ("watches woken", woken),
            ("reports to watchers", reports),
            ("sessions with reports", reported),
            ("awaited requests of watches", awaited_reports),
            ("clocks", marks + beyond),
            ("renewals that wait for a tick", renewals),
            ("leases whose renewals wait for a tick", renewing),
        ]);
        sizes
    }
}

/// Clients that do anything. They learn only what the test looks up.
struct Churn {
    world: World,
    draw: Draw,
    sessions: Vec<SessionId>,
    recalls: Vec<Recall>,
}

impl Churn {
    fn new() -> Self {
        let mut world = World::new();
        // Small, so that the bounds of what is remembered are reached.
        world.lessor.config.bounds.departed_max = 16;
        world.lessor.config.limits.session_objects_max = 24;
        Self { world, draw: Draw(1), sessions: Vec::new(), recalls: Vec::new() }
    }

    fn input(&mut self, input: LessorInput) {
        let effects = self.world.input(input);
        self.carry_out(effects);
    }

    fn carry_out(&mut self, effects: Vec<LessorEffect>) {
        for effect in effects {
            match effect {
                LessorEffect::Recall(recall) => self.recalls.push(recall),
                LessorEffect::Prove { round } => {
                    let is_proven = self.draw.below(16) > 0;
                    self.input(if is_proven {
                        LessorInput::Proven { round }
                    } else {
                        LessorInput::NotProven { round }
                    });
                }
                LessorEffect::Reply { .. } | LessorEffect::ClockChanged { .. } => {}
            }
        }
    }

    fn commit(&mut self) {
        while let Some(proposal) = self.world.lessor.take_proposal(self.world.now) {
            self.world.index += 1;
            let applied = self.world.state.apply(self.world.index, &proposal);
            self.input(LessorInput::committed(proposal.number, applied));
        }
        let state = &self.world.state;
        self.sessions.retain(|session| state.session(*session).is_some());
    }

    fn ask(&mut self, session: SessionId, body: Body) {
        let world = &mut self.world;
        world.sequence += 1;
        if body == Body::Register {
            *world.registrations.entry(session).or_default() += 1;
        }
        let renewed = world.state.leases_of(session).filter_map(|(key, lease)| {
            key.volume().map(|volume| Renew { volume: volume.clone(), incarnation: lease.incarnation })
        });
        let renewed: Vec<Renew> = renewed.collect();
        let renew = if self.draw.below(4) == 0 { renewed } else { Vec::new() };
        let is_sessionless = session == SessionId(0);
        let header = RequestHeader {
            session,
            epoch: world.state.epoch(),
            registration: world.registration(session),
            // Sometimes a retry of the last request.
            sequence: Sequence(world.sequence - u64::from(self.draw.below(16) == 0)),
            unanswered_from: Sequence(world.sequence.saturating_sub(40)),
            renew,
            ..RequestHeader::default()
        };
        let header = if is_sessionless { RequestHeader::default() } else { header };
        world.requests += 1;
        self.input(LessorInput::Request { id: RequestId(self.world.requests), request: Request { header, body } });
    }

    fn path(&mut self) -> NodePath {
        let top = ["/a", "/v", "/v/w", "/b/c/d"][self.draw.below(4) as usize];
        path(&match self.draw.below(20) {
            0 => top.to_owned(),
            number => format!("{top}/{number}"),
        })
    }

    fn object(&mut self) -> Object {
        let kind = if self.draw.below(3) == 0 { ObjectKind::Children } else { ObjectKind::Data };
        Object { path: self.path(), kind }
    }

    fn lease(&mut self) -> LeaseId {
        LeaseId(1 + self.draw.below(8))
    }

    fn attach(&mut self) -> Attach {
        match self.draw.below(5) {
            0 => Attach::Session,
            1 => Attach::Lease(self.lease()),
            2 => Attach::Unchanged,
            _ => Attach::Nothing,
        }
    }

    /// A lock of the session, if it has one.
    fn lock(&mut self, session: SessionId) -> Option<(NodePath, LockId, Option<Token>)> {
        let own = self.world.state.locks().filter(|(_, _, record)| record.lease.session() == Some(session));
        let own: Vec<_> = own.map(|(id, path, record)| (path.clone(), id, record.token)).collect();
        let place = self.draw.below(own.len().max(1) as u64) as usize;
        own.get(place).cloned()
    }

    fn write(&mut self, session: SessionId) -> Write {
        let value = Bytes::from_static(b"value");
        let path = self.path();
        let mode = if self.draw.below(2) == 0 { LockMode::Shared } else { LockMode::Exclusive };
        let lock = self.lock(session);
        let settings = VolumeSettings::DEFAULT;
        match (self.draw.below(26), lock) {
            (0..=6, _) => Write::Put { path, value, condition: Condition::Any, attach: self.attach() },
            (7..=9, _) => Write::Delete { path, recursive: self.draw.below(2) == 0, condition: Condition::Any },
            (10, _) if self.draw.below(8) == 0 => Write::CreateVolume { path: super::path("/v"), settings },
            (11, _) if self.draw.below(8) == 0 => Write::CreateVolume { path: super::path("/v/w"), settings },
            (12, _) if self.draw.below(8) == 0 => {
                let volume = ["/v", "/v/w"][self.draw.below(2) as usize];
                Write::RemoveVolume { path: super::path(volume) }
            }
            (13, _) if self.draw.below(64) == 0 => Write::SetVolume { path: super::path("/v"), settings },
            (14 | 15, _) => {
                let (id, ttl) = (self.lease(), Duration::from_secs(1 + self.draw.below(86_400)));
                Write::GrantLease { id: Some(id).filter(|_| self.draw.below(2) == 0), name: None, ttl }
            }
            (16, _) => {
                let all: Vec<LeaseId> = self.world.state.key_leases_after(None).map(|(id, _)| id).collect();
                let place = self.draw.below(all.len().max(1) as u64) as usize;
                Write::RevokeLease { id: all.get(place).copied().unwrap_or(LeaseId(1)), incarnation: None }
            }
            (17..=19, None) => {
                Write::Lock { path, mode, wait: self.draw.below(3) > 0, delay: MILLI * self.draw.below(3) as u32 }
            }
            (17, Some((path, lock, _))) => Write::ChangeLockMode { path, lock, mode, wait: true },
            (18 | 19, Some((path, lock, _))) => Write::TakeWriteLease { path, lock },
            (20, Some((path, lock, Some(token)))) => {
                let ends_write_lease = self.draw.below(2) == 0;
                Write::Flush { path, lock, token, value: Some(value), ends_write_lease }
            }
            (21 | 22, Some((path, lock, _))) => Write::Unlock { path, lock },
            _ => {
                let compares = vec![Compare::absent(self.path())];
                let then = vec![
                    Operation::Put { path: path.clone(), value, attach: self.attach() },
                    Operation::Delete { path: self.path(), recursive: true },
                ];
                Write::Transaction(Transaction { compares, then, otherwise: vec![Operation::put(path, "else")] })
            }
        }
    }

    fn consent(&mut self) {
        let place = self.draw.below(self.recalls.len().max(1) as u64) as usize;
        if place < self.recalls.len() {
            let Recall { session, stamp, .. } = self.recalls.swap_remove(place);
            self.input(LessorInput::Consent(Consent { session, stamp }));
        }
    }

    /// One random operation.
    fn operate(&mut self) {
        let place = self.draw.below(SESSIONS as u64) as usize;
        let Some(session) = self.sessions.get(place).copied() else { return self.open() };
        match self.draw.below(40) {
            0..=9 => {
                let write = self.write(session);
                let dropped = vec![ObjectSet::One(self.object())];
                let seen = Stamp { epoch: self.world.state.epoch(), sequence: self.draw.below(1 << 20) };
                self.ask(session, Body::Write { write, dropped, seen });
            }
            10..=15 => {
                let object = self.object();
                self.ask(session, Body::Read { object, known: None, lease: LeaseRequest::Implicit });
            }
            16 => {
                let (object, lease) = (Object::data(self.path()), LeaseRequest::Implicit);
                self.ask(session, Body::ReadNextValue { object: object.clone(), lease });
                self.ask(session, Body::AwaitRead { object, known: None, lease });
            }
            17 => {
                let path = self.path();
                self.ask(session, Body::List { path, after: None, nodes_max: 10 });
            }
            18 | 19 => {
                let path = self.path();
                self.ask(session, Body::Acquire { path, last_valid: None, read: None });
            }
            20 => self.ask(session, Body::Register),
            // One in four disappears without closing.
            21 if self.draw.below(8) == 0 => match self.draw.below(4) {
                0 => self.sessions.retain(|other| *other != session),
                _ => self.ask(session, Body::Close),
            },
            22 | 23 => {
                let known = crate::lock::LockStatus::Waiting;
                let locks = self.lock(session).map(|(path, lock, _)| AwaitedLock { path, lock, known });
                self.ask(session, Body::AwaitLockStatus { locks: locks.into_iter().collect() });
            }
            24 | 25 => {
                let watched = crate::change::WatchScope::Subtree(self.path());
                let after = Some(self.world.state.revision());
                let wait = Duration::from_secs(self.draw.below(30));
                self.ask(session, Body::Watch { watched, after, wait, bytes_max: 1000 });
            }
            26 | 27 => {
                let leases = (0..3).map(|_| KeyLeaseRenewal { id: self.lease(), incarnation: None }).collect();
                self.ask(session, Body::KeepAlive { leases });
            }
            28 => self.ask(session, Body::Heartbeat(Default::default())),
            29..=33 => self.consent(),
            34 => {
                for _ in 0..self.draw.below(20) {
                    self.world.now = self.world.now.after(clock::STEP_EVERY);
                    self.input(LessorInput::Timeout);
                }
            }
            35 => {
                let path = self.path();
                self.ask(SessionId(0), Body::Inspect(Inspect::PendingWrites { path }));
            }
            _ => self.commit(),
        }
        if self.recalls.len() > 1000 {
            // Recalls of sessions that have ended or do not answer.
            self.recalls.truncate(500);
        }
    }

    fn open(&mut self) {
        self.ask(SessionId(0), Body::Open { name: "churn".to_owned() });
        let before = self.world.state.sessions().last().map(|(id, _)| id);
        self.commit();
        let last = self.world.state.sessions().last().map(|(id, _)| id);
        if let Some(session) = last.filter(|_| last != before) {
            self.sessions.push(session);
            self.ask(session, Body::Register);
            self.ask(session, Body::Acquire { path: NodePath::root(), last_valid: None, read: None });
        }
    }

    fn sizes(&self) -> Vec<(&'static str, usize)> {
        [self.world.lessor.sizes(), self.world.state.sizes()].concat()
    }

    /// Closes all sessions, and lets time pass until the last lease has ended.
    fn drain(&mut self) {
        for _ in 0..40 {
            let sessions: Vec<SessionId> = self.world.state.sessions().map(|(id, _)| id).collect();
            for session in sessions {
                self.ask(session, Body::Register);
                self.ask(session, Body::Close);
            }
            self.commit();
            for recall in std::mem::take(&mut self.recalls) {
                self.input(LessorInput::Consent(Consent { session: recall.session, stamp: recall.stamp }));
            }
        }
        let session = self.world.session();
        // A request may be lost because it is taken for a retry of another.
        for _ in 0..20 {
            let leases: Vec<LeaseId> = self.world.state.key_leases_after(None).map(|(id, _)| id).collect();
            for id in leases {
                let (dropped, seen) = (Vec::new(), Stamp::default());
                self.ask(session, Body::Write { write: Write::RevokeLease { id, incarnation: None }, dropped, seen });
            }
            self.commit();
        }
        for _ in 0..1000 {
            self.commit();
            self.world.now = self.world.now.after(clock::STEP_EVERY);
            self.input(LessorInput::Timeout);
        }
        self.ask(session, Body::Close);
        self.commit();
        self.input(LessorInput::Timeout);
        self.commit();
    }
}

#[test]
fn tables_keep_no_entries_of_ended_leases_or_sessions() {
    let mut churn = Churn::new();
    // The tables of an unused lessor: the first tick already waits for its time.
    let fresh: BTreeMap<&str, usize> = churn.sizes().into_iter().collect();
    let mut early = BTreeMap::new();
    for operation in 0..OPERATIONS {
        churn.operate();
        if (OPERATIONS / 10..OPERATIONS / 5).contains(&operation) && operation % 1000 == 0 {
            for (table, size) in churn.sizes() {
                early.entry(table).and_modify(|most: &mut usize| *most = size.max(*most)).or_insert(size);
            }
        }
    }
    churn.world.lessor.check(&churn.world.state).expect("the invariants hold");
    churn.world.state.check().expect("those of the state too");
    let is_remembered = |table: &str| OF_THE_HISTORY.contains(&table) || ["nodes", "answers"].contains(&table);
    for (table, size) in churn.sizes().into_iter().filter(|(table, _)| !is_remembered(table)) {
        let most = early[table];
        assert!(
            size <= 3 * most + 64,
            "{table}: {size} after {OPERATIONS} operations, {most} at most in the second tenth"
        );
    }
    assert!(churn.world.state.sessions().count() <= 1000, "few sessions disappeared and did not expire");
    churn.drain();
    churn.world.lessor.check(&churn.world.state).expect("the invariants hold");
    let left: Vec<(&str, usize, usize)> = churn
        .sizes()
        .into_iter()
        .filter(|(table, _)| {
            let of_volumes = ["volumes", "volumes with counters", "tracks by volume"];
            !OF_THE_HISTORY.contains(table) && *table != "nodes" && !of_volumes.contains(table)
        })
        .map(|(table, size)| (table, size, fresh[table]))
        .filter(|(_, size, fresh)| size > fresh)
        .collect();
    assert_eq!(left, [], "table, entries, entries of a new one");
    let sizes: BTreeMap<&str, usize> = churn.sizes().into_iter().collect();
    assert!(sizes["nodes"] <= 100 && sizes["volumes"] <= 3, "{sizes:?}");
    assert!(sizes["volumes with counters"] <= sizes["volumes"], "{sizes:?}");
    assert!(sizes["changes"] <= State::HISTORY_MAX && sizes["sets that changed"] <= 1000, "{sizes:?}");
}
