//! What the applications of a wide world do. They share lease names, attach and detach nodes, nest
//! volumes, and exceed the leader's limits.

use leasehold_protocol::{
    command::{Attach, Command, Condition, Outcome, Write},
    holder::{HolderInput, SendId},
    id::{CoveringNumber, Incarnation, LeaseId, LockId, Stamp, Token},
    lessor::LessorBounds,
    lock::LockStatus,
    message::{
        AWAIT_LOCK_STATUS_MAX, AwaitedLock, Body, CONSENTS_MAX, DROPPED_SETS_MAX, HolderReportPart, Inspect,
        KEEP_ALIVES_MAX, KeyLeaseRenewal, NodesAfter, RENEWALS_MAX, REPORT_PART_OBJECTS_MAX, RETURNS_MAX, Renew,
        Request, RequestHeader, Return,
    },
    object::{Object, ObjectSet},
    path::NodePath,
    state::LeaseRecord,
    transaction::{Compare, CompareTarget, Operation as Part, Transaction},
    volume::{Tracking, VolumeSettings},
};

use crate::{
    event::{Event, Up},
    lease_names::text_name,
    locks::NODES,
    profile::MS,
    profile::policy,
    raft::SERVERS,
    swarm::{Operation, Swarm},
    world::World,
};

/// Send ids of requests that bypass the holder and whose answers nobody awaits.
const UNHEARD_SEND_IDS: u64 = 1 << 49;

/// The most nodes that one transaction attaches: more than `MANY_NODES`.
pub(crate) const MANY: u64 = 24;

/// A lease with more nodes ends with a recall of the subtree that contains them, not of each node.
const MANY_NODES: u64 = 16;

impl World {
    /// How the world is wide, if it is.
    pub(crate) fn swarm(&self) -> Option<&Swarm> {
        self.profile.swarm.as_ref()
    }

    /// The application may do an operation of a wide world. Returns whether it did.
    pub(crate) fn act_widely(&mut self, place: usize) -> bool {
        let Some(swarm) = &self.profile.swarm else { return false };
        let (share, burst, open_max, cancels) = (swarm.share, swarm.burst, swarm.open_max, swarm.cancels);
        if !self.rng.chance(share) {
            return false;
        }
        if cancels > 0 && self.rng.chance(cancels) {
            self.give_up_writes(place);
            return true;
        }
        let weights = self.swarm().map(|swarm| swarm.weights).unwrap_or_default();
        let operation = Operation::ALL[self.rng.weighted(&weights)];
        for _ in 0..=self.rng.below(burst) {
            let client = &self.clients[place];
            if client.shell.is_open && client.shell.reads.len() + client.shell.writes.len() <= open_max {
                self.operate(place, operation);
            }
        }
        true
    }

    fn operate(&mut self, place: usize, operation: Operation) {
        let Some(swarm) = self.profile.swarm.clone() else { return };
        match operation {
            Operation::GrantNamed => {
                let id = Some(*self.rng.pick(&swarm.names));
                let ttl = swarm.ttl(&mut self.rng);
                self.write(place, Write::GrantLease { id, name: None, ttl });
            }
            Operation::GrantAutomatic => {
                let ttl = swarm.ttl(&mut self.rng);
                // The TTL decides whether the lease has a text as its name, which others use too.
                let name = (ttl.subsec_micros() % 2 == 0).then(|| text_name(*self.rng.pick(&swarm.names)));
                self.write(place, Write::GrantLease { id: None, name, ttl });
            }
            Operation::Revoke => {
                let id = self.some_lease();
                // A client that renews the lease means only that one, as a handle does.
                let renewed = self.clients[place].shell.key_leases.until.get(&id);
                let incarnation = renewed.map(|(incarnation, _)| *incarnation);
                self.write(place, Write::RevokeLease { id, incarnation });
            }
            Operation::Keep => {
                let id = self.some_lease();
                self.keep(place, id);
            }
            Operation::LetGo => {
                let kept: Vec<LeaseId> = self.clients[place].shell.key_leases.renewed.iter().copied().collect();
                if !kept.is_empty() {
                    let id = *self.rng.pick(&kept);
                    self.let_go(place, id);
                }
            }
            Operation::Attach => {
                let path = self.rng.pick(&swarm.leaves).clone();
                let attach = match self.rng.below(8) {
                    0 => Attach::Session,
                    1 => Attach::Unchanged,
                    2 => Attach::LeaseNamed(text_name(*self.rng.pick(&swarm.names))),
                    _ => Attach::Lease(self.some_lease()),
                };
                self.put(place, path, attach);
            }
            Operation::Detach => {
                let path = self.rng.pick(&swarm.leaves).clone();
                if self.rng.chance(500) {
                    return self.put(place, path, Attach::Nothing);
                }
                let recursive = self.rng.chance(300);
                self.write(place, Write::Delete { path, recursive, condition: Condition::Any });
            }
            Operation::AttachMany => self.attach_many(place),
            Operation::CompareMany => self.compare_many(place),
            Operation::Volume => self.change_some_volume(place, &swarm),
            Operation::Lock => self.lock_or_unlock(place),
            Operation::Register => self.register_node(place),
            Operation::Read => {
                let object = self.rng.pick(&self.profile.objects).clone();
                self.read(place, object);
            }
            Operation::Watch => self.watch_something(place),
            Operation::List => self.begin_list(place),
            Operation::Inspect => self.inspect_something(place, &swarm),
            Operation::OpenSession => self.ask_unheard(place, Body::Open { name: "nobody".to_owned() }),
            Operation::ReadHeld => {
                for path in NODES {
                    self.read(place, Object::data(NodePath::parse(path).expect("a path")));
                }
            }
            Operation::AskTooMuch => self.ask_too_much(place),
            Operation::EvictAll => {
                while !self.clients[place].shell.cache.copies.is_empty() {
                    self.evict(place);
                }
            }
        }
    }

    /// A shared lease name, or the id of a lease that was granted lately.
    fn some_lease(&mut self) -> LeaseId {
        let lately = self.leases.len().saturating_sub(8);
        let names = self.profile.swarm.as_ref().map(|swarm| swarm.names.clone()).unwrap_or_default();
        let known: Vec<LeaseId> = self.leases[lately..].to_vec();
        if known.is_empty() || self.rng.chance(600) { *self.rng.pick(&names) } else { *self.rng.pick(&known) }
    }

    /// The application starts keep-alives of a key lease.
    pub(crate) fn keep(&mut self, place: usize, id: LeaseId) {
        // Events of an earlier keep-alive of this lease come in this step, before the new one
        // begins.
        self.step_holder(place, HolderInput::KeepAlive(id));
        self.clients[place].shell.key_leases.renewed.insert(id);
    }

    /// The application was granted a lease. It may start keep-alives.
    pub(crate) fn granted(&mut self, place: usize, id: LeaseId) {
        let keeps = self.swarm().map_or(0, |swarm| swarm.keeps);
        if !self.is_healing && self.clients[place].shell.is_open && keeps > 0 && self.rng.chance(keeps) {
            self.clients[place].keeps_next.push(id);
        }
    }

    fn value(&self, place: usize) -> Vec<u8> {
        let client = &self.clients[place];
        format!("{}.{}", client.life, client.shell.numbers).into_bytes()
    }

    fn put(&mut self, place: usize, path: NodePath, attach: Attach) {
        let value = self.value(place).into();
        self.write(place, Write::Put { path, value, condition: Condition::Any, attach });
    }

    /// Attaches nodes in up to four lists to one lease.
    fn attach_many(&mut self, place: usize) {
        let attach = Attach::Lease(self.some_lease());
        let (count, lists) = (self.rng.between(2, MANY), self.rng.between(1, 4));
        let value = self.value(place);
        let part = |number: u64| Part::Put {
            path: NodePath::parse(&format!("/m{}/{number}", number % lists)).expect("a path"),
            value: value.clone().into(),
            attach: attach.clone(),
        };
        let transaction = Transaction { then: (0..count).map(part).collect(), ..Transaction::new() };
        self.write(place, Write::Transaction(transaction));
    }

    /// A transaction with as many comparisons and operations as allowed, all of short paths. Its
    /// content is small, and its encoding is long.
    fn compare_many(&mut self, place: usize) {
        let number = self.clients[place].shell.numbers;
        let most = Transaction::COMPARES_MAX as u64;
        let count = if self.rng.chance(700) { most } else { self.rng.between(1, most) };
        let count = usize::try_from(count).expect("small");
        // The token was never granted, so the comparison holds and the transaction changes nothing.
        let target = |place: usize| CompareTarget::Locked(false, Token(u64::MAX - number - place as u64));
        let compare = |place: usize| Compare { path: NodePath::root(), target: target(place) };
        let compares = (0..count).map(compare).collect();
        // This branch is never chosen, because all comparisons hold.
        let put = |number: usize| Part::Put {
            path: NodePath::parse(&format!("/{number}")).expect("a path"),
            value: Vec::new().into(),
            attach: Attach::Lease(LeaseId(u64::MAX)),
        };
        let otherwise = (0..count.min(Transaction::OPERATIONS_MAX)).map(put).collect();
        self.write(place, Write::Transaction(Transaction { compares, otherwise, ..Transaction::new() }));
    }

    fn change_some_volume(&mut self, place: usize, swarm: &Swarm) {
        let path = self.rng.pick(&swarm.volumes).clone();
        let mut settings: Vec<VolumeSettings> = self.profile.inner.clone();
        settings.push(self.profile.volume);
        let chosen = *self.rng.pick(&settings);
        let tracking = *self.rng.pick(&[Tracking::Objects, Tracking::Objects, Tracking::Covering]);
        let settings = policy(chosen.with_tracking(tracking), self.profile.policies, &mut self.rng);
        let settings = self.quotas.draw(settings);
        let write = match self.rng.below(4) {
            _ if path.is_root() => Write::SetVolume { path, settings },
            0 => Write::SetVolume { path, settings },
            1 => Write::RemoveVolume { path },
            _ => Write::CreateVolume { path, settings },
        };
        self.write(place, write);
    }

    /// Puts the client's own registration node.
    fn register_node(&mut self, place: usize) {
        let path = NodePath::parse(&format!("/r/{place}")).expect("a path");
        let is_open = |write: &Write| matches!(write, Write::Put { path: other, .. } if *other == path);
        // One put at a time, so that the test knows which of them is in effect.
        if !self.clients[place].shell.writes.values().any(|open| is_open(&open.change)) {
            self.put(place, path, Attach::Session);
        }
    }

    fn inspect_something(&mut self, place: usize, swarm: &Swarm) {
        let path = self.rng.pick(&swarm.leaves).clone();
        let top = if self.rng.chance(500) { NodePath::root() } else { path.clone() };
        let truth = &self.oracle.truth;
        let carries = |lease: &LeaseRecord| truth.attached_node_count(lease.incarnation) > 0;
        let carrying = truth.key_leases_after(None).find(|(_, lease)| carries(lease)).map(|(id, _)| id);
        let id = carrying.unwrap_or_else(|| self.some_lease());
        let inspect = match self.rng.below(8) {
            0 => Inspect::Holders { path },
            1 => Inspect::PendingWrites { path },
            2 => Inspect::BlockedReads { path: top },
            3 => Inspect::Volumes { path: top },
            4 => Inspect::Lease { id, nodes_after: Some(NodesAfter::Nothing) },
            5 => Inspect::Leases { after: None },
            6 => Inspect::Locks { path, after: None },
            _ => Inspect::Services { path: top, after: None },
        };
        self.ask_unheard(place, Body::Inspect(inspect));
    }

    /// Whether leaders refuse contents of more than a few bytes.
    pub(crate) fn has_short_contents(&self) -> bool {
        self.swarm().is_some_and(|swarm| swarm.bounds.content_bytes_max < LessorBounds::DEFAULT.content_bytes_max)
    }

    /// Sends a request with one list that is one element too long.
    fn ask_too_much(&mut self, place: usize) {
        let (root, header) = (NodePath::root(), RequestHeader::default());
        let (renew, stamp) = (Renew { volume: root.clone(), incarnation: Incarnation(0) }, Stamp::default());
        let given_back = Return { object: Object::data(root.clone()), stamp };
        let held = |objects| {
            let (volume, incarnation, covering) = (root.clone(), Incarnation(0), CoveringNumber::default());
            Body::HolderReport(HolderReportPart { volume, incarnation, covering, part: 0, parts: 1, objects })
        };
        let keep = KeyLeaseRenewal { id: LeaseId(0), incarnation: None };
        let lock = AwaitedLock { path: root.clone(), lock: LockId(0), known: LockStatus::Ended };
        let dropped = vec![ObjectSet::Subtree(root.clone()); DROPPED_SETS_MAX + 1];
        let write = Write::RevokeLease { id: LeaseId(u64::MAX), incarnation: None };
        let (header, body) = match self.rng.below(7) {
            0 => (RequestHeader { renew: vec![renew; RENEWALS_MAX + 1], ..header }, Body::Close),
            1 => (RequestHeader { consents: vec![stamp; CONSENTS_MAX + 1], ..header }, Body::Close),
            2 => (RequestHeader { returns: vec![given_back; RETURNS_MAX + 1], ..header }, Body::Close),
            3 => (header, Body::Write { write, dropped, seen: stamp }),
            4 => (header, held(vec![Object::data(root.clone()); REPORT_PART_OBJECTS_MAX + 1])),
            5 => (header, Body::KeepAlive { leases: vec![keep; KEEP_ALIVES_MAX + 1] }),
            _ => (header, Body::AwaitLockStatus { locks: vec![lock; AWAIT_LOCK_STATUS_MAX + 1] }),
        };
        self.send_unheard(place, Request { header, body });
    }

    /// Sends a request whose answer nobody awaits.
    fn ask_unheard(&mut self, place: usize, body: Body) {
        self.send_unheard(place, Request { header: RequestHeader::default(), body });
    }

    fn send_unheard(&mut self, place: usize, request: Request) {
        let client = &mut self.clients[place];
        let (send_id, connection) = (SendId(UNHEARD_SEND_IDS + client.shell.next_number()), client.connection);
        if let Some(connection) = connection {
            self.send_up(connection, Up::Request(send_id, Box::new(request)));
        }
    }

    /// Cuts the leader off from the other servers for a while. It may go on leading without a
    /// quorum, and its clients do not notice.
    pub(crate) fn leave_leader_alone(&mut self) {
        let Some(every) = self.swarm().map(|swarm| swarm.alone_every).filter(|every| *every > 0) else { return };
        if self.is_healing {
            return;
        }
        let next = self.rng.wait(every);
        self.after(next, Event::LeaderAlone);
        let Some(leader) = self.apparent_leader() else { return };
        let span = self.rng.between(100 * MS, 3 * self.term());
        self.tally.add("leaders left alone");
        for other in (0..SERVERS).filter(|other| *other != leader) {
            self.links.cut(leader, other, self.now + span);
            self.links.cut(other, leader, self.now + span);
        }
    }

    /// Counts the events that wide worlds exist for.
    pub(crate) fn count_wide(&mut self, command: &Command, outcome: &Outcome) {
        let Command::Write { write, .. } = command else { return };
        match (write, outcome) {
            (write, Outcome::Written(Ok(written))) if write.is_revocation() && written.removed > MANY_NODES => {
                self.tally.add("drawn: revocations of many nodes");
            }
            (write, Outcome::Written(Ok(written))) if write.is_revocation() && written.removed > 0 => {
                self.tally.add("drawn: revocations of nodes");
            }
            (Write::GrantLease { id: Some(id), .. }, Outcome::Written(result)) => {
                if self
                    .clients
                    .iter()
                    .any(|client| client.shell.is_open && client.shell.key_leases.renewed.contains(id))
                {
                    self.tally.add("drawn: grants of a name that a client keeps");
                }
                if result.is_ok() {
                    self.tally.add("drawn: grants of a name of choice");
                }
            }
            (Write::GrantLease { name: Some(_), .. }, Outcome::Written(result)) => {
                self.tally.add(if result.is_ok() {
                    "drawn: leases with names"
                } else {
                    "drawn: names that were taken"
                });
            }
            (Write::Put { attach: Attach::LeaseNamed(_), .. }, Outcome::Written(Ok(_))) => {
                self.tally.add("drawn: puts by the name of a lease");
            }
            (Write::Transaction(transaction), Outcome::Written(Ok(_))) => {
                let is_attached = |part: &Part| matches!(part, Part::Put { attach: Attach::Lease(_), .. });
                if transaction.then.iter().any(is_attached) {
                    self.tally.add("drawn: transactions that attach");
                }
            }
            (Write::SetVolume { path, .. }, Outcome::Written(Ok(_))) if path.is_root() => {
                self.tally.add("drawn: changes of the root volume");
            }
            (Write::CreateVolume { path, .. }, Outcome::Written(Ok(_))) if path.as_str().matches('/').count() > 1 => {
                self.tally.add("drawn: volumes made below others");
            }
            _ => {}
        }
    }
}
