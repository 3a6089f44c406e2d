//! The holder between an application that does anything and a server that answers anything.
//!
//! After each step the holder's invariants hold, each read and write ends once, and its effects on
//! the cache fit the content of the cache. Half of the inputs have a server that follows the
//! protocol. Then everything that waits must end. The other inputs have a server that lies: it must
//! only do no harm.

mod answers;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use leasehold_protocol::{
    change::{Change, Changes},
    command::{GrantedKeyLease, Write, Written},
    drift::{ClockAnswer, SinceExchange},
    holder::{Holder, HolderConfig, HolderEffect, HolderInput, ReadId, SendId, WatchId, WriteId},
    id::{CoveringNumber, Epoch, Incarnation, LockId, Revision, SessionId, Stamp, Token, VolumeGeneration},
    lease_policy::LeaseRequest,
    lock::LockOutcome,
    message::{
        AcquiredVolume, Answer, Body, CoveringLease, Grant, KeyLeasePromise, KeyLeaseRenewal, Lapse, Promise,
        ReadAnswer, Recall, Refusal, Renew, Request, Response, Revival,
    },
    object::{Children, Content, Data, Object, ObjectKind, Stat, Value},
    path::NodePath,
    time::{DriftAllowance, Instant},
    transaction::{FailedCompare, Transacted},
};

use super::draw::Draw;

/// The most steps of one input, so that it stays quick.
const STEPS_MAX: usize = 300;

/// The most answers and timeouts until everything must have ended.
const SETTLE_MAX: usize = 4000;

const TERM: Duration = Duration::from_secs(10);
const OBJECT_TERM: Duration = Duration::from_secs(100);
const TOPS: [&str; 3] = ["/", "/v", "/v/w"];

/// Steps a holder by choices that are drawn from the bytes.
pub fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    let is_honest = draw.below(2) == 0;
    let mut world = World::new(is_honest);
    for _ in 0..STEPS_MAX {
        if draw.is_done() {
            break;
        }
        world.something(&mut draw);
    }
    if is_honest {
        world.settle();
    }
}

struct World {
    holder: Holder,
    now: Instant,
    is_honest: bool,
    is_closed: bool,
    outstanding: Vec<(SendId, Request)>,
    /// The copies in the cache, each with the stamp of its grant.
    cache: BTreeMap<Object, Stamp>,
    /// The recall that the holder handles at the moment.
    recalling: Option<Recall>,
    reads: BTreeSet<ReadId>,
    writes: BTreeSet<WriteId>,
    /// The writes that cannot be cancelled.
    lasting: BTreeSet<WriteId>,
    /// The stamps of all recalls.
    recalled: BTreeSet<Stamp>,
    /// The revision up to which each watch was notified.
    watches: BTreeMap<WatchId, Option<Revision>>,
    ids: u64,
    /// The server's counters.
    epoch: u64,
    sessions: u64,
    stamps: u64,
    recalls: u64,
    incarnations: u64,
}

impl World {
    fn new(is_honest: bool) -> Self {
        Self {
            holder: Holder::new(HolderConfig::new("fuzz")),
            now: Instant::from_micros(1_000_000),
            is_honest,
            is_closed: false,
            outstanding: Vec::new(),
            cache: BTreeMap::new(),
            recalling: None,
            reads: BTreeSet::new(),
            writes: BTreeSet::new(),
            lasting: BTreeSet::new(),
            recalled: BTreeSet::new(),
            watches: BTreeMap::new(),
            ids: 0,
            epoch: 1,
            sessions: 1,
            stamps: 0,
            recalls: 0,
            incarnations: 0,
        }
    }

    fn something(&mut self, draw: &mut Draw<'_>) {
        match draw.below(32) {
            0..=12 => self.answer_any(draw),
            13 => self.connect(draw.below(3) == 1),
            14 => {
                self.step(HolderInput::Disconnected);
                // Some of the sent requests are still answered. The holder must ignore that.
                self.outstanding.truncate(4);
            }
            15..=19 => self.read(draw.object()),
            20..=22 => self.write(draw),
            23 => self.recall(draw),
            24 => {
                let object = draw.object();
                let stamp = self.cache.remove(&object).unwrap_or_default();
                self.step(HolderInput::Evicted { object, stamp });
            }
            25 => {
                let one = self.reads.first().copied();
                let read = if draw.one_in(4) { Some(ReadId(draw.wild())) } else { one };
                if let Some(read) = read {
                    self.reads.remove(&read);
                    self.step(HolderInput::CancelRead(read));
                }
            }
            26 => {
                let write = if draw.one_in(4) { Some(WriteId(draw.wild())) } else { self.writes.first().copied() };
                if let Some(write) = write {
                    self.step(HolderInput::CancelWrite(write));
                    let is_there = self.writes.contains(&write) && !self.lasting.contains(&write);
                    assert!(!is_there, "given up, and still there");
                }
            }
            27 => self.now = self.now.after(Duration::from_millis(16 * draw.below(256))),
            28..=30 => self.time_out(),
            _ => match draw.below(4) {
                0 if !self.is_honest => self.now = self.now.after(draw.span()),
                2 if draw.one_in(2) => {
                    let id = draw.lease_id();
                    self.step(if draw.below(3) == 1 {
                        HolderInput::StopKeepAlive(id)
                    } else {
                        HolderInput::KeepAlive(id)
                    });
                }
                2 if draw.one_in(2) => self.watch(draw),
                2 => self.cache(draw),
                1 if draw.one_in(8) => {
                    self.is_closed = true;
                    self.step(HolderInput::Close);
                }
                _ => self.step(HolderInput::Timeout { used: BTreeSet::new() }),
            },
        }
    }

    /// The application uses a write lease, which may not exist.
    fn cache(&mut self, draw: &mut Draw<'_>) {
        let lock = LockId(draw.number(8));
        match draw.below(4) {
            0 => self.step(HolderInput::Flush(lock)),
            1 => self.step(HolderInput::ReleaseWriteLease(lock)),
            _ => {
                let value: Value = draw.bytes(6).into();
                let is_open = self.holder.write_lease_value(lock, self.now).is_some();
                self.step(HolderInput::SetUnderWriteLease { lock, value: value.clone() });
                let kept = self.holder.write_lease_value(lock, self.now);
                assert_eq!(kept, Some(&value).filter(|_| is_open), "what is set is there, if it may be set");
            }
        }
    }

    /// A watch begins, goes on, or ends.
    fn watch(&mut self, draw: &mut Draw<'_>) {
        let one = self.watches.keys().next().copied();
        match (draw.below(4), one) {
            (0, Some(watch)) => self.step(HolderInput::WatchMore(watch)),
            (1, Some(watch)) => {
                self.watches.remove(&watch);
                self.step(HolderInput::CancelWatch(watch));
            }
            _ => {
                self.ids += 1;
                let watch = WatchId(self.ids);
                let (watched, after) = (draw.watched(), draw.maybe(|draw| Revision(draw.number(12))));
                self.watches.insert(watch, after);
                self.step(HolderInput::Watch { watch, watched, after, bytes_max: draw.number(200) as u32 });
            }
        }
    }

    /// Whatever a server answers, the holder reports each change once and in order.
    fn told(&mut self, watch: WatchId, changes: &Changes) {
        let told = self.watches.get_mut(&watch).expect("nothing is told of what was given up");
        let last = told.replace(changes.through).unwrap_or_default();
        let revisions = || changes.changes.iter().map(|change| change.revision);
        assert!(last <= changes.through && revisions().all(|revision| last < revision && revision <= changes.through));
        assert!(revisions().is_sorted_by(|one, other| one < other));
    }

    fn step(&mut self, input: HolderInput) {
        let effects = self.holder.step(input, self.now);
        assert_eq!(self.holder.check(self.now), Ok(()));
        let mut offered = Vec::new();
        for effect in effects {
            match effect {
                HolderEffect::SelectWanted(objects) => offered.extend(objects),
                effect => self.carry_out(effect),
            }
        }
        if !offered.is_empty() {
            self.step(HolderInput::ReadNextValues(offered));
        }
        for object in self.cache.keys() {
            // The cache asks this about each of its copies. Only the holder knows the answer.
            let _ = self.holder.may_serve(object, self.now);
        }
    }

    fn carry_out(&mut self, effect: HolderEffect) {
        match effect {
            HolderEffect::Send { send_id, request } => self.outstanding.push((send_id, request)),
            HolderEffect::Install { object, validity, .. } => {
                self.cache.insert(object, validity.stamp);
            }
            HolderEffect::CopyValidated { object, validity } => {
                assert!(self.cache.insert(object, validity.stamp).is_some(), "what is not there is validated");
            }
            HolderEffect::Drop(objects) => {
                for object in objects {
                    assert!(self.cache.remove(&object).is_some(), "{object} is dropped, and was not there");
                }
            }
            HolderEffect::DropAll => self.cache.clear(),
            HolderEffect::Consent(consent) => self.consented(consent.stamp),
            HolderEffect::ConsentDelayed(notice) => {
                let is_handled = self.recalling.as_ref().is_some_and(|recall| recall.stamp == notice.stamp);
                assert!(is_handled, "it delays a consent outside of a recall: {notice:?}");
            }
            HolderEffect::Serve { reads, .. } | HolderEffect::ReadFailed { reads, .. } => self.end_reads(&reads),
            HolderEffect::ServeCached { reads, object, stamp, .. } => {
                assert_eq!(self.cache.get(&object), Some(&stamp), "{object} is served from what is not there");
                self.end_reads(&reads);
            }
            HolderEffect::WriteDone { write, .. } => assert!(self.writes.remove(&write), "{write:?} ends twice"),
            HolderEffect::Changes { watch, changes } => self.told(watch, &changes),
            HolderEffect::WatchLost { watch, .. } => {
                assert!(self.watches.remove(&watch).is_some(), "{watch:?} is lost twice");
            }
            // These effects concern no copy, read or write.
            _ => {}
        }
    }

    fn end_reads(&mut self, reads: &[ReadId]) {
        for read in reads {
            assert!(self.reads.remove(read), "{read:?} ends twice");
        }
    }

    /// Before the holder consents, it drops what was granted before the recall. It consents at once
    /// to the recall that it handles, or later when a write lease has been flushed. A server that
    /// lies may use one stamp for two recalls.
    fn consented(&mut self, stamp: Stamp) {
        assert!(self.recalled.contains(&stamp), "consented to what was not recalled");
        let recall = self.recalling.as_ref().filter(|recall| recall.stamp == stamp);
        let is_recalled =
            |object: &Object| recall.is_some_and(|recall| recall.sets.iter().any(|set| set.contains(object)));
        let left = self.cache.iter().find(|(object, granted)| **granted < stamp && is_recalled(object));
        assert_eq!(left, None, "consented to {stamp}, and kept it");
    }

    fn read(&mut self, object: Object) {
        self.ids += 1;
        self.reads.insert(ReadId(self.ids));
        self.step(HolderInput::Read { read: ReadId(self.ids), object, lease: LeaseRequest::Implicit });
    }

    fn write(&mut self, draw: &mut Draw<'_>) {
        self.ids += 1;
        self.writes.insert(WriteId(self.ids));
        let change = draw.write(Revision(self.stamps));
        if matches!(change, Write::TakeWriteLease { .. } | Write::Flush { .. }) {
            self.lasting.insert(WriteId(self.ids));
        }
        self.step(HolderInput::Write { write: WriteId(self.ids), change });
    }

    fn connect(&mut self, is_new_leader: bool) {
        if is_new_leader {
            (self.epoch, self.recalls) = (self.epoch + 1, 0);
        }
        self.step(HolderInput::Connected);
    }

    /// Advances the clock to the holder's next deadline.
    fn time_out(&mut self) {
        let Some(next) = self.holder.next_deadline() else { return };
        self.now = self.now.max(next);
        let tops = TOPS.iter().filter_map(|top| NodePath::parse(top).ok());
        self.step(HolderInput::Timeout { used: tops.collect() });
        let next = self.holder.next_deadline();
        let is_end = self.now == Instant::ZERO.after(Duration::MAX);
        assert!(is_end || next.is_none_or(|next| next > self.now), "{next:?} has been");
    }

    fn recall(&mut self, draw: &mut Draw<'_>) {
        self.recalls += 1 + draw.below(10) / 9;
        let session = SessionId(self.sessions);
        let recall = if self.is_honest {
            let sets = vec![draw.set(), draw.set()];
            Recall {
                session,
                stamp: self.stamp(draw),
                number: self.recalls,
                sets,
                offers_next_values: draw.below(2) == 0,
            }
        } else {
            draw.recall(session, Epoch(self.epoch))
        };
        self.recalled.insert(recall.stamp);
        self.recalling = Some(recall.clone());
        self.step(HolderInput::Recalled(recall));
        self.recalling = None;
    }

    /// The next stamp. Some are lower than an earlier one, as if they were overtaken.
    fn stamp(&mut self, draw: &mut Draw<'_>) -> Stamp {
        self.stamps += 1;
        Stamp { epoch: Epoch(self.epoch), sequence: self.stamps.saturating_sub(draw.below(3)) }
    }

    fn answer_any(&mut self, draw: &mut Draw<'_>) {
        if self.outstanding.is_empty() {
            if !self.is_honest {
                let response = self.lie(draw);
                self.step(HolderInput::Answered { send_id: SendId(draw.number(16)), response });
            }
            return;
        }
        let at = draw.below(self.outstanding.len().min(256) as u64) as usize;
        let (send_id, request) = self.outstanding.remove(at);
        let is_lie = !self.is_honest && draw.below(3) == 1;
        let response = if is_lie { self.lie(draw) } else { self.response(&request, draw) };
        self.step(HolderInput::Answered { send_id, response });
    }

    /// From here on the server answers, so everything that waits must end.
    fn settle(&mut self) {
        self.outstanding.clear();
        self.step(HolderInput::Connected);
        let nothing_more: &[u8] = &[];
        let mut kind = Draw::new(nothing_more);
        for _ in 0..SETTLE_MAX {
            if self.reads.is_empty() && self.writes.is_empty() {
                return;
            }
            match self.outstanding.pop() {
                Some((send_id, request)) => {
                    let response = self.response(&request, &mut kind);
                    self.step(HolderInput::Answered { send_id, response });
                }
                None => {
                    let next = self.holder.next_deadline();
                    let next = next.unwrap_or_else(|| panic!("{:?} {:?} wait for nothing", self.reads, self.writes));
                    self.now = self.now.max(next);
                    self.step(HolderInput::Timeout { used: BTreeSet::new() });
                }
            }
        }
        panic!("{:?} and {:?} wait for ever (closed: {}): {:#?}", self.reads, self.writes, self.is_closed, self.holder);
    }
}
