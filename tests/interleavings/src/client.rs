//! A client's threads around one cache: a small driver, and a reader.

use std::{sync::Arc, time::Duration};

use leasehold_protocol::{
    holder::{Holder, HolderConfig, HolderEffect, HolderInput, ReadId, SendId},
    id::{Epoch, Incarnation, Revision, SessionId, Stamp, VolumeGeneration},
    lease_policy::{LeaseOffer, LeaseRequest},
    message::{AcquiredVolume, Answer, Grant, Promise, ReadAnswer, Recall, Response, Revival},
    object::{Content, Data, Object, ObjectKind, ObjectSet, Stat},
    path::NodePath,
    planted::Planted,
    time::DriftAllowance,
};
use loom::sync::{
    Mutex,
    atomic::{
        AtomicBool,
        Ordering::{Acquire, Release},
    },
};

use crate::{cache::Cache, clock, dropped_copies::MissCause, volume_leases::VolumeLeases};

const SESSION: SessionId = SessionId(7);
const EPOCH: Epoch = Epoch(3);
/// The term of the volume lease.
pub(crate) const TERM: Duration = Duration::from_secs(10);
const OBJECT_TERM: Duration = Duration::from_secs(100);

/// The value before the write that happens in each model.
pub(crate) const OLD: &str = "old";
/// The value after that write.
pub(crate) const NEW: &str = "new";

/// The state behind the driver's lock.
pub(crate) struct Core {
    holder: Holder,
    pub(crate) leases: VolumeLeases,
    /// The requests in flight.
    sent: Vec<SendId>,
}

/// One client, and whether another client's write was acknowledged.
pub(crate) struct Client {
    pub(crate) cache: Cache,
    pub(crate) core: Mutex<Core>,
    /// The servers have acknowledged the write of [`NEW`] to its writer.
    acknowledged: AtomicBool,
}

pub(crate) fn object() -> Object {
    Object::data(NodePath::parse("/a").expect("valid"))
}

fn stamp(sequence: u64) -> Stamp {
    Stamp { epoch: EPOCH, sequence }
}

pub(crate) fn content(value: &str, revision: u64) -> Content {
    let revision = Revision(revision);
    let stat = Stat {
        create_revision: Revision(1),
        modify_revision: revision,
        version: revision.0,
        value_len: value.len() as u64,
        owner: None,
    };
    Content::Data(Some(Data { value: value.as_bytes().to_vec().into(), stat }))
}

impl Client {
    /// A registered client with a volume lease on the root.
    pub(crate) fn leased(planted: Planted) -> Self {
        let drift_allowance = DriftAllowance::from_ppm(0).expect("within bounds");
        let config = HolderConfig { drift_allowance, planted, ..HolderConfig::new("model") };
        let core = Core { holder: Holder::new(config), leases: VolumeLeases::default(), sent: Vec::new() };
        let client = Self { cache: Cache::new(1 << 20), core: Mutex::new(core), acknowledged: AtomicBool::new(false) };
        client.step(HolderInput::Connected);
        client.answer(Answer::Opened { session: SESSION, term: 6 * TERM });
        client.answer(Answer::Registered { coverings: vec![] });
        client.begin_read(1, "/first");
        client.answer(Answer::Acquired(AcquiredVolume {
            promise: promise(),
            stamp: stamp(1),
            revival: Revival::None,
            read: None,
        }));
        client.answer(read_answer(OLD, None));
        client
    }

    /// The same, with a cached copy of [`OLD`].
    pub(crate) fn cached(planted: Planted) -> Self {
        let client = Self::filling(planted);
        client.end_fill();
        assert_eq!(client.hit().as_deref(), Some(OLD));
        client
    }

    /// [`Client::leased`], with a read of the object in flight.
    pub(crate) fn filling(planted: Planted) -> Self {
        let client = Self::leased(planted);
        client.begin_read(2, object().path.as_str());
        client
    }

    /// Delivers the answer that a server gave before the write: [`OLD`], with a lease.
    pub(crate) fn end_fill(&self) {
        let grant = Grant {
            stamp: stamp(2),
            volume: NodePath::root(),
            incarnation: Incarnation(1),
            generation: VolumeGeneration(1),
            span: OBJECT_TERM,
        };
        self.answer(read_answer(OLD, Some(grant)));
    }

    /// Delivers the recall for the write. On the consent, the write takes effect and is
    /// acknowledged at once.
    pub(crate) fn recall(&self) {
        let sets = vec![ObjectSet::One(object())];
        self.step(HolderInput::Recalled(Recall {
            session: SESSION,
            stamp: stamp(3),
            number: 1,
            sets,
            offers_next_values: false,
        }));
    }

    /// No more consents are needed: the write takes effect, and is acknowledged to its writer.
    pub(crate) fn acknowledge(&self) {
        self.acknowledged.store(true, Release);
    }

    /// Reads from memory. The read must see a write that was acknowledged before the read began.
    pub(crate) fn read(&self) {
        let is_acknowledged = self.acknowledged.load(Acquire);
        let value = self.hit();
        assert!(!is_acknowledged || value.as_deref() != Some(OLD), "a stale read");
    }

    fn hit(&self) -> Option<String> {
        let hit = self.cache.hit(ObjectKind::Data, &object().path)?;
        match &*hit.content {
            Content::Data(Some(data)) => Some(String::from_utf8_lossy(&data.value).into_owned()),
            _ => None,
        }
    }

    fn begin_read(&self, read: u64, path: &str) {
        let object = Object::data(NodePath::parse(path).expect("valid"));
        self.step(HolderInput::Read { read: ReadId(read), object, lease: LeaseRequest::Implicit });
    }

    /// Answers the only request in flight.
    fn answer(&self, answer: Answer) {
        let send_id = self.core.lock().expect("not poisoned").sent.remove(0);
        let response = Response { epoch: EPOCH, promises: vec![], lapses: vec![], clocks: None, result: Ok(answer) };
        self.step(HolderInput::Answered { send_id, response });
    }

    /// Takes a step of the rules and carries out its effects, in order, under the lock.
    fn step(&self, input: HolderInput) {
        let mut core = self.core.lock().expect("not poisoned");
        for effect in core.holder.step(input, clock::now()) {
            self.carry_out(&mut core, effect);
        }
    }

    fn carry_out(&self, core: &mut Core, effect: HolderEffect) {
        match effect {
            HolderEffect::Send { send_id, .. } => core.sent.push(send_id),
            HolderEffect::Install { object, content, validity } => {
                let volume = core.leases.cell(&validity.volume, validity.incarnation);
                self.cache.install(&object, content, &validity, volume);
            }
            HolderEffect::CopyValidated { object, validity } => {
                let volume = core.leases.cell(&validity.volume, validity.incarnation);
                assert!(self.cache.copy_validated(&object, &validity, volume), "no model evicts");
            }
            HolderEffect::Drop(objects) => {
                objects.iter().for_each(|object| self.cache.remove(object, MissCause::Recalled))
            }
            HolderEffect::DropAll => {
                core.leases.end_all();
                self.cache.clear();
            }
            HolderEffect::VolumeValidityChanged { volume, validity } => core.leases.set(&volume, validity),
            HolderEffect::Consent(_) => self.acknowledge(),
            HolderEffect::ConsentDelayed(_) => unreachable!("no model delays consents"),
            HolderEffect::Serve { .. }
            | HolderEffect::ServeCached { .. }
            | HolderEffect::SelectWanted(_)
            | HolderEffect::ReadFailed { .. }
            | HolderEffect::WriteDone { .. }
            | HolderEffect::KeyLeaseRenewed { .. }
            | HolderEffect::KeyLeaseLost { .. }
            | HolderEffect::AttachedNodesLost { .. }
            | HolderEffect::LockChanged { .. }
            | HolderEffect::LocksLost { .. }
            | HolderEffect::WriteLeaseChanged { .. }
            | HolderEffect::FlushLost { .. }
            | HolderEffect::Changes { .. }
            | HolderEffect::WatchLost { .. }
            | HolderEffect::Connection(_)
            | HolderEffect::ClockExcessChanged { .. }
            | HolderEffect::FindLeader { .. }
            | HolderEffect::Closed => {}
        }
    }

    /// Drops the copy of the object.
    pub(crate) fn drop_copy(&self) {
        let _core = self.core.lock().expect("not poisoned");
        self.cache.remove(&object(), MissCause::Expired);
    }

    /// Tries the changes of the cache again that wait for readers.
    pub(crate) fn try_waiting(&self) {
        let _core = self.core.lock().expect("not poisoned");
        self.cache.try_waiting();
    }

    /// Installs a copy of [`NEW`] under this incarnation of the volume lease.
    pub(crate) fn install_new(&self, incarnation: Incarnation) {
        let mut core = self.core.lock().expect("not poisoned");
        let until = clock::now().after(OBJECT_TERM);
        let validity = leasehold_protocol::holder::validity::CopyValidity {
            stamp: stamp(9),
            volume: NodePath::root(),
            incarnation,
            until,
        };
        let cell = core.leases.cell(&validity.volume, incarnation);
        self.cache.install(&object(), Arc::new(content(NEW, 11)), &validity, cell);
    }
}

fn promise() -> Promise {
    Promise {
        volume: NodePath::root(),
        incarnation: Incarnation(1),
        generation: VolumeGeneration(1),
        span: TERM,
        term: TERM,
        revision: Revision(1),
    }
}

fn read_answer(value: &str, grant: Option<Grant>) -> Answer {
    Answer::Read(ReadAnswer {
        content: Some(content(value, 10)),
        grant,
        volume: NodePath::root(),
        applied: Revision(20),
        offer: LeaseOffer::Everybody,
    })
}
