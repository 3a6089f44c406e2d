//! The server's answers to a holder: honest ones, and lies.

use super::*;
use leasehold_protocol::lease_policy::LeaseOffer;

impl World {
    pub(super) fn response(&mut self, request: &Request, draw: &mut Draw<'_>) -> Response {
        let result = match draw.below(12) {
            1 => Err(Refusal::Retry),
            2 => Err(Refusal::OutcomeUnknown),
            3 => Err(Refusal::NotRegistered { got: request.header.epoch, expected: Epoch(self.epoch) }),
            4 if draw.one_in(4) => Err(Refusal::NotLeader { leader: None }),
            5 if draw.one_in(8) => Err(Refusal::SessionNotFound { session: request.header.session }),
            _ => Ok(self.answer(request, draw)),
        };
        let mut response =
            Response { epoch: Epoch(self.epoch), promises: vec![], lapses: vec![], clocks: None, result };
        for Renew { volume, incarnation } in request.header.renew.clone() {
            if draw.below(5) == 1 {
                response.lapses.push(Lapse { volume, incarnation });
            } else {
                let span = Duration::from_secs(10 - draw.below(11));
                response.promises.push(self.promise(volume, incarnation, span));
            }
        }
        response
    }

    pub(super) fn generation(&self) -> VolumeGeneration {
        VolumeGeneration(1 + self.stamps / 50)
    }

    pub(super) fn promise(&self, volume: NodePath, incarnation: Incarnation, span: Duration) -> Promise {
        let revision = Revision(self.stamps);
        Promise { volume, incarnation, generation: self.generation(), span, term: TERM, revision }
    }

    /// The volume of a path: mostly the nearest one, sometimes another, as if a border had just
    /// moved.
    pub(super) fn volume(&self, of: &NodePath, draw: &mut Draw<'_>) -> NodePath {
        let tops = TOPS.iter().filter_map(|top| NodePath::parse(top).ok());
        let above: Vec<NodePath> = tops.filter(|top| top.contains(of)).collect();
        let moved = if draw.one_in(8) { draw.pick(&above) } else { None };
        moved.or_else(|| above.last().cloned()).unwrap_or_else(NodePath::root)
    }

    pub(super) fn grant(&mut self, of: &NodePath, draw: &mut Draw<'_>) -> Option<Grant> {
        let volume = self.volume(of, draw);
        let incarnation = Incarnation(self.incarnations.saturating_sub(draw.below(4) / 3));
        let stamp = self.stamp(draw);
        let grant = Grant { stamp, volume, incarnation, generation: self.generation(), span: OBJECT_TERM };
        (draw.below(4) != 3).then_some(grant)
    }

    /// The answer to a read, perhaps with a grant.
    fn read_answer(&mut self, object: &Object, known: Option<Revision>, draw: &mut Draw<'_>) -> ReadAnswer {
        let applied = Revision(self.stamps);
        let is_unchanged = known.is_some() && draw.below(2) == 1;
        let content = (!is_unchanged).then(|| content(object.kind, applied, draw));
        let grant = self.grant(&object.path, draw);
        let volume = grant.as_ref().map(|grant| grant.volume.clone());
        let volume = volume.unwrap_or_else(|| self.volume(&object.path, draw));
        ReadAnswer { content, grant, volume, applied, offer: LeaseOffer::Everybody }
    }

    pub(super) fn answer(&mut self, request: &Request, draw: &mut Draw<'_>) -> Answer {
        let revision = Revision(self.stamps);
        match &request.body {
            Body::Open { .. } => {
                self.sessions += 1;
                Answer::Opened { session: SessionId(self.sessions), term: TERM * 60 }
            }
            Body::Register => {
                let volume = self.volume(&draw.path(), draw);
                let (incarnation, number) = (Incarnation(self.incarnations), CoveringNumber(1));
                Answer::Registered { coverings: vec![CoveringLease { volume, incarnation, number }] }
            }
            Body::Acquire { path, read, .. } => {
                self.incarnations += 1;
                let volume = self.volume(path, draw);
                let promise = self.promise(volume, Incarnation(self.incarnations), TERM);
                let revival = match draw.below(2) {
                    0 => Revival::None,
                    _ => Revival::AllExcept {
                        changed: draw.list(2, Draw::set),
                        covering: CoveringNumber(2),
                        reports_at_once: draw.below(2) == 0,
                    },
                };
                let stamp = self.stamp(draw);
                let read = read.as_ref().filter(|_| draw.below(4) > 0);
                let read = read.map(|read| Box::new(self.read_answer(&read.object, read.known, draw)));
                Answer::Acquired(AcquiredVolume { promise, stamp, revival, read })
            }
            Body::Read { .. } if self.stamps % 8 == 7 => Answer::ReadBlocked,
            Body::Read { object, known, .. } | Body::AwaitRead { object, known, .. } => {
                Answer::Read(self.read_answer(object, *known, draw))
            }
            Body::ReadNextValue { .. } if self.stamps % 8 == 7 => Answer::ReadBlocked,
            Body::ReadNextValue { object, .. } => Answer::Read(self.read_answer(object, None, draw)),
            Body::Write { write, .. } => {
                let lease = draw
                    .maybe(|draw| GrantedKeyLease { id: draw.lease_id(), incarnation: Incarnation(draw.number(12)) });
                let found = stat(revision);
                let stat = Some(found);
                let transaction = matches!(write, Write::Transaction(_)).then(|| {
                    let failed = (draw.below(2) == 1).then_some(FailedCompare { index: 0, found: None });
                    Box::new(Transacted { failed, results: Vec::new() })
                });
                let lock = self.taken(write, draw).map(Box::new);
                let written = Written { revision, stat, lease, lock, transaction, ..Written::default() };
                let stamp = self.stamp(draw);
                let grant = write.path().and_then(|path| self.grant(path, draw));
                let key_lease = draw.maybe(Draw::kept);
                let cached = matches!(write, Write::TakeWriteLease { .. }) && draw.below(4) > 0;
                let write_lease_data =
                    cached.then(|| Box::new(Data { value: Value::from(draw.bytes(6)), stat: found }));
                Answer::Written { written, stamp, grant, applied: revision, key_lease, write_lease_data }
            }
            Body::KeepAlive { leases } => {
                let kept = |lease: &KeyLeaseRenewal| KeyLeasePromise { id: lease.id, ..draw.kept() };
                Answer::KeptAlive(leases.iter().map(kept).collect())
            }
            Body::AwaitLockStatus { locks } => {
                let told = locks.iter().map(|hold| (hold.lock, draw.hold_status()));
                Answer::LockStatuses(told.collect())
            }
            Body::Close => Answer::Closed,
            Body::Heartbeat(question) => {
                let mark = |draw: &mut Draw<'_>| if draw.one_in(4) { draw.number(16) } else { question.references[0] };
                let since = draw.list(3, |draw| SinceExchange { mark: mark(draw), span: draw.span() });
                Answer::Heartbeat(ClockAnswer { since, allowance: DriftAllowance::DEFAULT, delay: draw.span() })
            }
            Body::HolderReport(_) | Body::Inspect(_) | Body::List { .. } => Answer::ReportReceived,
            Body::Watch { after, .. } => {
                let from = after.unwrap_or_default();
                let change = |draw: &mut Draw<'_>| {
                    let revision = Revision(from.0.saturating_add(draw.number(4)));
                    Change { revision, events: [].into() }
                };
                let changes = draw.list(3, change);
                Answer::Changes(Changes { changes, through: Revision(from.0.saturating_add(draw.number(4))) })
            }
        }
    }

    /// The lock that a request for a lock gets. `None` for other writes.
    fn taken(&self, write: &Write, draw: &mut Draw<'_>) -> Option<LockOutcome> {
        let (path, lock, mode) = match write {
            Write::Lock { path, mode, .. } => (path.clone(), LockId(draw.number(8)), *mode),
            Write::ChangeLockMode { path, lock, mode, .. } => (path.clone(), *lock, *mode),
            _ => return None,
        };
        let token = draw.maybe(|draw| Token(draw.number(12)));
        let incarnation = Incarnation(self.incarnations.saturating_sub(draw.below(4) / 3));
        Some(LockOutcome { volume: self.volume(&path, draw), path, lock, mode, token, incarnation })
    }

    /// Any answer to any request, under any epoch.
    pub(super) fn lie(&mut self, draw: &mut Draw<'_>) -> Response {
        let request = draw.request(SessionId(self.sessions), Epoch(self.epoch), 1, Revision(1));
        let mut response = self.response(&request, draw);
        response.epoch = Epoch(draw.number(8));
        for promise in &mut response.promises {
            (promise.span, promise.term) = (draw.span(), draw.span());
            (promise.incarnation, promise.generation) = (Incarnation(draw.number(8)), VolumeGeneration(draw.number(4)));
            promise.revision = Revision(draw.number(12));
        }
        match &mut response.result {
            Ok(Answer::Opened { session, term }) => (*session, *term) = (draw.session(), draw.span()),
            Ok(Answer::Registered { coverings }) => {
                *coverings = draw.list(3, |draw| CoveringLease {
                    volume: draw.top(),
                    incarnation: Incarnation(draw.number(8)),
                    number: CoveringNumber(draw.number(4)),
                });
            }
            Ok(Answer::Acquired(acquired)) => {
                (acquired.promise.span, acquired.promise.term) = (draw.span(), draw.span());
                acquired.promise.volume = draw.top();
                acquired.promise.incarnation = Incarnation(draw.number(8));
                acquired.stamp = draw.stamp(Epoch(self.epoch));
            }
            Ok(Answer::Read(ReadAnswer { content: answered, grant, volume, .. })) => {
                let kind = if draw.one_in(4) { ObjectKind::Children } else { ObjectKind::Data };
                *answered = draw.maybe(|draw| content(kind, Revision(draw.number(8)), draw));
                *volume = draw.top();
                if let Some(grant) = grant {
                    lie_in(grant, self.epoch, draw);
                }
            }
            Ok(Answer::Written { stamp, grant: Some(grant), .. }) => {
                *stamp = draw.stamp(Epoch(self.epoch));
                lie_in(grant, self.epoch, draw);
            }
            _ => {}
        }
        response
    }
}

fn lie_in(grant: &mut Grant, epoch: u64, draw: &mut Draw<'_>) {
    grant.stamp = draw.stamp(Epoch(epoch));
    (grant.incarnation, grant.generation) = (Incarnation(draw.number(8)), VolumeGeneration(draw.number(4)));
    (grant.volume, grant.span) = (draw.top(), draw.span());
}

fn stat(revision: Revision) -> Stat {
    Stat { create_revision: Revision(0), modify_revision: revision, version: 1, value_len: 1, owner: None }
}

fn content(kind: ObjectKind, revision: Revision, draw: &mut Draw<'_>) -> Content {
    let is_there = draw.below(4) != 3;
    match kind {
        ObjectKind::Data => Content::Data(is_there.then(|| Data { value: "v".into(), stat: stat(revision) })),
        ObjectKind::Children => Content::Children(is_there.then(|| Children {
            names: vec!["a".to_owned()],
            version: 1,
            modify_revision: revision,
        })),
    }
}
