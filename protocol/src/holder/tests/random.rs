//! Random inputs in random order: the invariants hold, no deadline comes twice, and nothing waits
//! for ever.
//!
//! The seed fixes the inputs. A failure names its seed.

use super::*;
use crate::{
    change::{Change, Changes, WatchScope},
    command::Attach,
    lease_policy::{LeaseOffer, LeaseRequest},
    message::{CoveringLease, Lapse},
    transaction::{FailedCompare, Operation, Transacted, Transaction},
};

/// Pseudo-random numbers (Steele, Lea and Flood's splitmix64).
pub(super) struct Numbers(pub(super) u64);

impl Numbers {
    pub(super) fn below(&mut self, most: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % most
    }
}

struct World {
    client: Client,
    numbers: Numbers,
    outstanding: Vec<(SendId, Request)>,
    reads: BTreeSet<ReadId>,
    writes: BTreeSet<WriteId>,
    /// The revision that each watch has reported, and whether it is to report more.
    watches: BTreeMap<WatchId, (Revision, bool)>,
    stamps: u64,
    recalls: u64,
    incarnations: u64,
    epoch: u64,
    sessions: u64,
    ids: u64,
}

const PATHS: [&str; 6] = ["/", "/a", "/a/b", "/v", "/v/a", "/v/w/a"];
const VOLUMES: [&str; 3] = ["/", "/v", "/v/w"];

impl World {
    fn new(seed: u64) -> Self {
        Self {
            client: Client::new(),
            numbers: Numbers(seed),
            outstanding: Vec::new(),
            reads: BTreeSet::new(),
            writes: BTreeSet::new(),
            watches: BTreeMap::new(),
            stamps: 0,
            recalls: 0,
            incarnations: 0,
            epoch: 1,
            sessions: 1,
            ids: 0,
        }
    }

    fn path(&mut self) -> &'static str {
        PATHS[self.numbers.below(PATHS.len() as u64) as usize]
    }

    fn volume(&mut self, of: &NodePath) -> NodePath {
        let all: Vec<NodePath> = VOLUMES.iter().map(|top| path(top)).filter(|top| top.contains(of)).collect();
        // Usually the nearest. Sometimes its border has just moved.
        let at = if self.numbers.below(8) == 0 { self.numbers.below(all.len() as u64) as usize } else { all.len() - 1 };
        all[at].clone()
    }

    fn next_stamp(&mut self) -> Stamp {
        self.stamps += 1;
        // Some overtake others.
        let sequence = self.stamps.saturating_sub(self.numbers.below(3));
        Stamp { epoch: Epoch(self.epoch), sequence }
    }

    fn step(&mut self, input: HolderInput) {
        let mut offered = Vec::new();
        for effect in self.client.step(input) {
            match effect {
                HolderEffect::Send { send_id, request } => self.outstanding.push((send_id, request)),
                HolderEffect::Serve { reads, .. }
                | HolderEffect::ServeCached { reads, .. }
                | HolderEffect::ReadFailed { reads, .. } => {
                    for read in reads {
                        assert!(self.reads.remove(&read), "{read:?} is answered twice");
                    }
                }
                HolderEffect::WriteDone { write, .. } => {
                    assert!(self.writes.remove(&write), "{write:?} is answered twice");
                }
                HolderEffect::Changes { watch, changes } => {
                    let (reported, waits) = self.watches.get_mut(&watch).expect("a cancelled watch reports nothing");
                    let revisions = || changes.changes.iter().map(|change| change.revision);
                    assert!(*waits && *reported <= changes.through && revisions().all(|revision| revision > *reported));
                    assert!(revisions().is_sorted() && revisions().all(|revision| revision <= changes.through));
                    (*reported, *waits) = (changes.through, false);
                }
                HolderEffect::WatchLost { watch, .. } => {
                    assert!(self.watches.remove(&watch).is_some(), "{watch:?} is lost twice");
                }
                HolderEffect::FindLeader { .. } => self.ids += 1,
                HolderEffect::SelectWanted(objects) => offered.extend(objects),
                _ => {}
            }
        }
        if !offered.is_empty() {
            self.step(HolderInput::ReadNextValues(offered));
        }
    }

    fn answer(&mut self, (send_id, request): (SendId, Request), is_kind: bool) {
        let choice = if is_kind { 9 } else { self.numbers.below(10) };
        let result = match choice {
            0 => Err(Refusal::Retry),
            1 => Err(Refusal::OutcomeUnknown),
            2 => Err(Refusal::NotRegistered { got: request.header.epoch, expected: Epoch(self.epoch) }),
            3 if self.numbers.below(4) == 0 => Err(Refusal::NotLeader { leader: None }),
            5 if self.numbers.below(8) == 0 && matches!(request.body, Body::Watch { .. }) => {
                Err(Refusal::Compacted { after: Revision(0), earliest_after: Revision(self.stamps) })
            }
            4 if self.numbers.below(8) == 0 => Err(Refusal::SessionNotFound { session: request.header.session }),
            _ => Ok(self.answer_to(&request)),
        };
        let mut response =
            Response { epoch: Epoch(self.epoch), promises: vec![], lapses: vec![], clocks: None, result };
        for renew in request.header.renew {
            if !is_kind && self.numbers.below(5) == 0 {
                response.lapses.push(Lapse { volume: renew.volume, incarnation: renew.incarnation });
            } else {
                let generation = VolumeGeneration(1 + self.stamps / 200);
                let span = Duration::from_secs(if is_kind { 10 } else { self.numbers.below(11) });
                let volume = renew.volume.as_str();
                response.promises.push(Promise { generation, span, ..promise(volume, renew.incarnation.0) });
            }
        }
        self.step(HolderInput::Answered { send_id, response });
    }

    fn grant(&mut self, of: &NodePath) -> Option<Grant> {
        let volume = self.volume(of);
        let generation = VolumeGeneration(1 + self.stamps / 200);
        let incarnation = Incarnation(self.incarnations.saturating_sub(self.numbers.below(3)));
        let grant = Grant { stamp: self.next_stamp(), volume, incarnation, generation, span: OBJECT_TERM };
        (self.numbers.below(4) > 0).then_some(grant)
    }

    fn read_answer(&mut self, object: &Object, known: Option<Revision>) -> ReadAnswer {
        let content = if known.is_some() && self.numbers.below(2) == 0 { None } else { Some(value(self.stamps)) };
        let grant = self.grant(&object.path);
        let volume = grant.as_ref().map_or_else(|| self.volume(&object.path), |grant| grant.volume.clone());
        ReadAnswer { content, grant, volume, applied: Revision(self.stamps), offer: LeaseOffer::Everybody }
    }

    fn answer_to(&mut self, request: &Request) -> Answer {
        match &request.body {
            Body::Open { .. } => {
                self.sessions += 1;
                Answer::Opened { session: SessionId(self.sessions), term: SESSION_TERM }
            }
            Body::Register => {
                let volume = self.volume(&path("/v/w/a"));
                let incarnation = Incarnation(self.incarnations);
                Answer::Registered { coverings: vec![CoveringLease { volume, incarnation, number: CoveringNumber(1) }] }
            }
            Body::Acquire { path, read, .. } => {
                self.incarnations += 1;
                let volume = self.volume(path);
                let generation = VolumeGeneration(1 + self.stamps / 200);
                let promise = Promise { generation, ..promise(volume.as_str(), self.incarnations) };
                let changed = vec![ObjectSet::Subtree(self::path(self.path()))];
                let revival = match self.numbers.below(2) {
                    0 => Revival::None,
                    _ => Revival::AllExcept {
                        changed,
                        covering: CoveringNumber(2),
                        reports_at_once: self.numbers.below(2) == 0,
                    },
                };
                let stamp = self.next_stamp();
                let read = read.as_ref().filter(|_| self.numbers.below(4) > 0);
                let read = read.map(|read| Box::new(self.read_answer(&read.object, read.known)));
                Answer::Acquired(AcquiredVolume { promise, stamp, revival, read })
            }
            Body::Read { .. } if self.numbers.below(8) == 0 => Answer::ReadBlocked,
            Body::Read { object, known, .. } | Body::AwaitRead { object, known, .. } => {
                Answer::Read(self.read_answer(object, *known))
            }
            Body::ReadNextValue { .. } if self.numbers.below(8) == 0 => Answer::ReadBlocked,
            Body::ReadNextValue { object, .. } => Answer::Read(self.read_answer(object, None)),
            Body::Write { write, .. } => {
                let Content::Data(Some(found)) = value(self.stamps) else { unreachable!("a value") };
                let revision = Revision(self.stamps);
                let mut written = crate::command::Written { revision, stat: Some(found.stat), ..Default::default() };
                if let Write::Transaction(_) = write {
                    let index = self.numbers.below(2) as u32;
                    let failed = (index == 0).then_some(FailedCompare { index, found: None });
                    written.transaction = Some(Box::new(Transacted { failed, results: vec![] }));
                }
                // Only a lease that the client may have. Sometimes it does not have it.
                let volume = write.path().map_or_else(NodePath::root, |path| self.volume(path));
                let incarnation = crate::id::Incarnation(1 + self.numbers.below(8));
                written.attached = vec![crate::command::VolumeLease { volume, incarnation }];
                let stamp = self.next_stamp();
                let grant = write.path().and_then(|path| self.grant(path));
                Answer::Written { written, stamp, grant, applied: revision, key_lease: None, write_lease_data: None }
            }
            Body::Close => Answer::Closed,
            Body::Watch { after, .. } => {
                // Sometimes not the changes that were asked for.
                let from = after.map_or(self.stamps, |after| after.0).saturating_sub(self.numbers.below(8) / 7);
                let revisions = from + 1..from + 1 + self.numbers.below(3);
                let through = Revision(revisions.end + self.numbers.below(2) - 1);
                let change = |revision| Change { revision: Revision(revision), events: [].into() };
                Answer::Changes(Changes { changes: revisions.map(change).collect(), through })
            }
            _ => Answer::ReportReceived,
        }
    }

    fn random_input(&mut self) {
        let used = VOLUMES.iter().map(|top| path(top)).collect();
        match self.numbers.below(27) {
            24 => self.new_watch(),
            25 => {
                if let Some((watch, (_, waits))) = self.watches.iter_mut().next() {
                    *waits = true;
                    let watch = *watch;
                    self.step(HolderInput::WatchMore(watch));
                }
            }
            26 if self.watches.len() > 2 => {
                if let Some((watch, _)) = self.watches.pop_first() {
                    self.step(HolderInput::CancelWatch(watch));
                }
            }
            0 if self.numbers.below(4) == 0 => self.disconnect(),
            1 => self.connect(),
            2..=6 => self.new_read(),
            7 | 8 => self.new_write(),
            9 => {
                self.recalls += 1 + self.numbers.below(10) / 9;
                let sets = vec![ObjectSet::Subtree(path(self.path())), one(self.path())];
                let stamp = self.next_stamp();
                let session = SessionId(self.sessions);
                self.step(HolderInput::Recalled(Recall {
                    session,
                    stamp,
                    number: self.recalls,
                    sets,
                    offers_next_values: stamp.sequence.is_multiple_of(2),
                }));
            }
            10 => {
                let object = data(self.path());
                let stamp = self.client.holder.copies.get(&object).map(|copy| copy.validity.stamp);
                self.step(HolderInput::Evicted { object, stamp: stamp.unwrap_or_default() });
            }
            11 => {
                if let Some(read) = self.reads.pop_first() {
                    self.step(HolderInput::CancelRead(read));
                }
            }
            12 => {
                if let Some(write) = self.writes.first().copied() {
                    self.step(HolderInput::CancelWrite(write));
                    assert!(!self.writes.contains(&write));
                }
            }
            13 => self.client.now = self.client.now.after(Duration::from_millis(self.numbers.below(4000))),
            14 => {
                if let Some(next) = self.client.holder.next_deadline() {
                    self.client.now = self.client.now.max(next);
                    self.step(HolderInput::Timeout { used });
                    let next = self.client.holder.next_deadline();
                    assert!(next.is_none_or(|next| next > self.client.now), "the deadline {next:?} has passed");
                }
            }
            _ => {
                if !self.outstanding.is_empty() {
                    let at = self.numbers.below(self.outstanding.len() as u64) as usize;
                    let request = self.outstanding.remove(at);
                    self.answer(request, false);
                }
            }
        }
    }

    fn new_watch(&mut self) {
        self.ids += 1;
        let after = (self.numbers.below(3) > 0).then(|| Revision(self.numbers.below(100)));
        let (watch, watched) = (WatchId(self.ids), WatchScope::Subtree(path(self.path())));
        self.watches.insert(watch, (after.unwrap_or_default(), true));
        self.step(HolderInput::Watch { watch, watched, after, bytes_max: 1 });
    }

    fn new_read(&mut self) {
        self.ids += 1;
        let (read, object) = (ReadId(self.ids), data(self.path()));
        self.reads.insert(read);
        self.step(HolderInput::Read { read, object, lease: LeaseRequest::Implicit });
    }

    fn new_write(&mut self) {
        self.ids += 1;
        let (write, recursive) = (WriteId(self.ids), self.numbers.below(2) == 0);
        let change = match self.numbers.below(6) {
            0 | 1 => Write::Delete { path: path(self.path()), recursive, condition: Condition::Any },
            2 => Write::Transaction(self.transaction()),
            _ => put(self.path()),
        };
        self.writes.insert(write);
        self.step(HolderInput::Write { write, change });
    }

    /// Some operations attach nodes to leases of the session.
    fn transaction(&mut self) -> Transaction {
        let mut operation = || {
            let (path, value) = (path(self.path()), Default::default());
            match self.numbers.below(4) {
                0 => Operation::Delete { path, recursive: self.numbers.below(2) == 0 },
                1 => Operation::Put { path, value, attach: Attach::Session },
                _ => Operation::Put { path, value, attach: Attach::Nothing },
            }
        };
        Transaction::new().then(operation()).then(operation()).otherwise(operation())
    }

    fn disconnect(&mut self) {
        self.step(HolderInput::Disconnected);
        // Some requests are still answered. The holder must ignore these answers.
        self.outstanding.truncate(4);
    }

    fn connect(&mut self) {
        if self.numbers.below(3) == 0 {
            (self.epoch, self.recalls) = (self.epoch + 1, 0);
        }
        self.step(HolderInput::Connected);
    }

    /// From here on the servers answer, so every wait must end.
    fn settle(&mut self) {
        self.outstanding.clear();
        self.step(HolderInput::Connected);
        for _ in 0..2000 {
            let is_told = self.watches.values().all(|(_, waits)| !waits);
            if self.reads.is_empty() && self.writes.is_empty() && is_told {
                return;
            }
            match self.outstanding.pop() {
                Some(request) => self.answer(request, true),
                None => {
                    let next = self.client.holder.next_deadline().expect("an operation waits");
                    self.client.now = self.client.now.max(next);
                    self.step(HolderInput::Timeout { used: BTreeSet::new() });
                }
            }
        }
        let Self { reads, writes, watches, client, .. } = self;
        panic!("{reads:?}, {writes:?} and {watches:?} never end: {:#?}", client.holder);
    }
}

#[test]
fn invariants_hold_and_every_operation_ends() {
    for seed in 0..400 {
        let run = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            for _ in 0..500 {
                world.random_input();
            }
            world.settle();
        });
        assert!(run.is_ok(), "failed at seed {seed}; see above");
    }
}
