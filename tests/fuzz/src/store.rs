//! What a replica reads from its disk, or receives as a Raft snapshot: rows, snapshots, log
//! entries, the durable index, the store identity.
//!
//! Damage must be refused, and must cause no panic. Where a checksum guards a decoder, the checksum
//! is made right, so that the decoder sees the damage too. Rows that are accepted as a state must
//! be a state, and go on like any other.

use std::{cell::OnceCell, collections::BTreeMap, fs, path::PathBuf, sync::LazyLock};

use leasehold_protocol::{
    command::{Command, Condition, IntendedLeases, Proposal, Write},
    id::{Epoch, Revision, Sequence, SessionId},
    object::ObjectSet,
    path::NodePath,
    state::{RowKey, State},
    time::ClusterTime,
    volume::VolumeSettings,
};
use leasehold_server::store::{
    durable_index::{self, DurableIndex},
    log,
    snapshot::{self, SnapshotFileError, SnapshotHeader, SnapshotReader},
    store_identity,
};

use super::{draw::Draw, state::Replica};

type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

/// The size of each of the two slots of the durable index.
const SLOT_BYTES: usize = 128;

/// The rows of a small state that has something of each kind.
static ROWS: LazyLock<Rows> = LazyLock::new(|| small_state().rows().collect());

thread_local! {
    static DIR: OnceCell<tempfile::TempDir> = const { OnceCell::new() };
}

/// Reads the bytes as the kind that the first byte names.
pub fn run(data: &[u8]) {
    let mut draw = Draw::new(data);
    match draw.below(8) {
        0 => drop(read(draw.rest())),
        1 => row_key(draw.rest()),
        2 => durable_index_file(&mut draw),
        3 => store_identity_file(&mut draw),
        4 => entry(&mut draw),
        _ => snapshot(&mut draw),
    }
}

/// A key and its value.
type Pair = (Vec<u8>, Vec<u8>);

/// Reads a whole snapshot.
fn read(bytes: &[u8]) -> Result<(SnapshotHeader, Vec<Pair>), SnapshotFileError> {
    let mut reader = SnapshotReader::new(bytes)?;
    let mut rows = Vec::new();
    while let Some(row) = reader.next_row()? {
        rows.push(row);
    }
    assert!(rows.is_sorted_by(|one, other| one.0 < other.0));
    assert!(matches!(reader.next_row(), Ok(None)), "the end stays the end");
    Ok((reader.header().clone(), rows))
}

fn row_key(bytes: &[u8]) {
    match RowKey::decode(bytes) {
        Ok(key) => assert_eq!(key.encode(), bytes),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A log entry, under its own key or another.
fn entry(draw: &mut Draw<'_>) {
    let index = draw.number(64);
    let key = if draw.one_in(8) { draw.bytes(10) } else { index.to_be_bytes().to_vec() };
    let content = draw.bytes(255);
    let mut crc = crc32fast::Hasher::new();
    crc.update(&key);
    let format = if draw.one_in(8) { draw.below(256) as u8 } else { log::LOG_FORMAT };
    crc.update(&[format]);
    crc.update(&content);
    let crc = if draw.one_in(8) { 0 } else { crc.finalize() };
    let mut value = crc.to_le_bytes().to_vec();
    value.push(format);
    value.extend_from_slice(&content);
    value.truncate(value.len() - draw.below(2) as usize * draw.below(4) as usize);
    match log::rewritten_entry(&key, &value) {
        Ok(bytes) => assert_eq!(log::rewritten_entry(&key, &bytes).ok(), Some(bytes), "what is written is read back"),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// Rows with a few changes, and the snapshot that they would make.
fn snapshot(draw: &mut Draw<'_>) {
    let mut rows = ROWS.clone();
    for _ in 0..draw.below(5) {
        damage(&mut rows, draw);
    }
    let header = if draw.one_in(4) { draw.bytes(40) } else { whole_header() };
    let (off, extra) = if draw.one_in(8) { (draw.below(3), draw.bytes(4)) } else { (0, Vec::new()) };
    let mut bytes = b"LSHSNAP".to_vec();
    bytes.push(snapshot::FORMAT);
    bytes.extend_from_slice(&(header.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&header);
    for (key, value) in &rows {
        bytes.push(1);
        bytes.extend_from_slice(&(key.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value);
    }
    bytes.push(0);
    bytes.extend_from_slice(&(rows.len() as u64 + off).to_le_bytes());
    bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
    bytes.extend_from_slice(&extra);
    match read(&bytes) {
        Ok((_, read)) => {
            assert!(off == 0 && extra.is_empty() && read.iter().eq(rows.iter().map(pair).collect::<Vec<_>>().iter()))
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    match State::from_rows(rows) {
        Ok(state) => apply_more(state, draw),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

fn pair((key, value): (&Vec<u8>, &Vec<u8>)) -> (Vec<u8>, Vec<u8>) {
    (key.clone(), value.clone())
}

fn whole_header() -> Vec<u8> {
    let header = SnapshotHeader { applied: None, membership: Default::default() };
    postcard::to_allocvec(&header).expect("plain data encodes")
}

fn damage(rows: &mut Rows, draw: &mut Draw<'_>) {
    let at = draw.below(rows.len() as u64) as usize;
    let Some((mut key, mut value)) = rows.iter().nth(at).map(pair) else { return };
    match draw.below(8) {
        0 => drop(rows.remove(&key)),
        1 => drop(rows.insert(key, draw.bytes(40))),
        2 => drop(rows.insert(draw.bytes(24), draw.bytes(40))),
        3 if !key.is_empty() => {
            let place = draw.below(key.len() as u64) as usize;
            key[place] = draw.below(256) as u8;
            rows.insert(key, value);
        }
        4 => {
            value.truncate(draw.below(value.len() as u64 + 1) as usize);
            rows.insert(key, value);
        }
        _ if value.is_empty() => {}
        _ => {
            let place = draw.below(value.len().min(256) as u64) as usize;
            value.splice(place..=place, draw.bytes(10));
            rows.insert(key, value);
        }
    }
}

/// An accepted state must be valid, and must go on as one. It may stop when one of its counters
/// would overflow.
fn apply_more(mut state: State, draw: &mut Draw<'_>) {
    assert_eq!(state.check(), Ok(()));
    for _ in 0..8 {
        let proposal = draw.proposal(state.epoch(), state.revision());
        state.apply(state.applied_index() + 1, &proposal);
        match state.check() {
            Ok(()) => {}
            Err(what) if what.starts_with("a counter is at") => return,
            Err(what) => panic!("{what}, after {proposal:?}"),
        }
    }
    Replica::new(state).restart();
}

fn small_state() -> State {
    let path = |text: &str| NodePath::parse(text).unwrap_or_else(|_| NodePath::root());
    let session = SessionId(1);
    let write = |sequence, write| Command::Write {
        session,
        sequence: Sequence(sequence),
        unanswered_from: Sequence(1),
        write,
        consented: vec![ObjectSet::Subtree(NodePath::root())],
        intended: IntendedLeases::default(),
        attached_through: Revision(0),
    };
    let put = |text| Write::put(path(text), "value".into());
    let commands = vec![
        Command::OpenSession { name: "one".to_owned() },
        Command::OpenSession { name: "two".to_owned() },
        write(1, put("/a/b")),
        write(2, Write::CreateVolume { path: path("/v"), settings: VolumeSettings::DEFAULT }),
        write(3, put("/v/a")),
        write(4, Write::Delete { path: path("/none"), recursive: false, condition: Condition::Any }),
        Command::AcquireVolume { session, path: path("/v/a") },
        Command::AcquireVolume { session: SessionId(2), path: NodePath::root() },
    ];
    let mut state = State::new(VolumeSettings::DEFAULT);
    let entry = |epoch, commands| Proposal { epoch: Epoch(epoch), number: 1, time: ClusterTime::ZERO, commands };
    state.apply(1, &entry(0, vec![Command::BeginEpoch { replica: 1, attempt: 1 }]));
    state.apply(2, &entry(1, commands));
    state
}

/// Writes the bytes to a file of this name, and returns its folder.
fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let dir = DIR.with(|dir| dir.get_or_init(|| tempfile::tempdir().expect("a directory")).path().to_owned());
    fs::write(dir.join(name), bytes).expect("it can be written");
    dir
}

fn durable_index_file(draw: &mut Draw<'_>) {
    let mut bytes = Vec::new();
    for _ in 0..2 {
        let mut slot = draw.bytes(64);
        slot.resize(SLOT_BYTES, 0);
        if !draw.one_in(4) {
            if !draw.one_in(8) {
                slot[4] = durable_index::DURABLE_INDEX_FORMAT;
            }
            let crc = crc32fast::hash(&slot[4..]);
            slot[..4].copy_from_slice(&crc.to_le_bytes());
        }
        bytes.extend_from_slice(&slot);
    }
    bytes.truncate(2 * SLOT_BYTES - draw.below(2) as usize);
    let path = file("durable-index", &bytes).join("durable-index");
    let mut opened = match DurableIndex::open(&path) {
        Ok(opened) => opened,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let found = opened.current();
    if let Err(error) = opened.record(found.last, found.vote, false) {
        return assert!(error.to_string().contains("; expected less"), "{error}");
    }
    let next = opened.current();
    assert_eq!((next.last, next.vote), (found.last, found.vote));
    assert_eq!(DurableIndex::open(&path).expect("what was written is read").current(), next);
}

fn store_identity_file(draw: &mut Draw<'_>) {
    let mut bytes = vec![if draw.one_in(8) { 1 } else { store_identity::FORMAT }];
    bytes.extend_from_slice(&draw.bytes(80));
    if !draw.one_in(4) {
        bytes.extend_from_slice(&crc32fast::hash(&bytes).to_le_bytes());
    }
    let dir = file("store-identity", &bytes);
    match store_identity::load(&dir, 1) {
        Ok(identity) => assert_eq!(identity.map(|identity| identity.replica), Some(1)),
        Err(error) => assert!(error.to_string().contains("identity: "), "{error}"),
    }
}
