//! The bytes of every format, and its version: neither may change without the other.
//!
//! Plain data (messages, log entries, the snapshot's header, the store identity) is compared by its
//! shape: the names, order and types of all fields and variants, as its decoder requests them.
//! postcard's bytes follow from that, and no variant can be missing. Samples are encoded for the
//! bytes around it, and for rows, whose types are private.
//!
//! When a test here fails, raise the version that it names. Then record the mark that it prints for
//! that version.

use std::collections::BTreeSet;

use leasehold_protocol::{
    change::{ChangeReason, EventKind, WatchScope},
    command::{AnyLease, Attach, Command, Condition, IntendedLeases, Outcome, Proposal, Write, WriteRefusal, Written},
    id::{Epoch, Incarnation, LeaseId, LockId, Revision, Sequence, SessionId},
    lease_name::LeaseName,
    lease_policy::{GrantPolicy, LeaseOffer, LeaseRequest, ObjectTerm, OnWrite},
    limits::LimitError,
    lock::{LockMode, LockStatus},
    message::{
        self, Answer, Body, Consent, DelayReason, Inspect, KeepAliveResult, Lapse, NodesAfter, Promise, Push,
        PushRequest, Recall, RecallReply, Refusal, Request, Response, Revival,
    },
    object::{Content, NodeOwner, ObjectKind, ObjectSet},
    path::{NodePath, PathError},
    quota::QuotaFigure,
    state::{RowKey, State},
    time::ClusterTime,
    transaction::{Branch, CompareTarget, Operation, OperationResult, Relation},
    volume::{Tracking, VolumeError, VolumeSettings, VolumeTerm},
};
use leasehold_server::{
    raft::{
        peer::{
            Admitted, Installation, Joining, MembershipRefusal, PeerRefusal, PeerReport, PeerRequest, ReplicaStage,
        },
        types::{Logged, TypeConfig},
    },
    store::{
        durable_index::{DURABLE_INDEX_FORMAT, DurableIndex},
        log::{self, LOG_FORMAT},
        poison::Poison,
        snapshot,
        state::{STATE_FORMAT, StateStore},
        store_identity::{self, StoreIdentity},
    },
};
use leasehold_wire::handshake::PROTOCOL_VERSION;
use openraft::{
    EntryPayload,
    raft::{AppendEntriesResponse, SnapshotResponse, TransferLeaderResponse, VoteResponse},
    type_config::alias::{EntryOf, LogIdOf, VoteOf},
    vote::RaftLeaderId,
};
use serde::de::DeserializeOwned;
use serde_reflection::{Format, FormatHolder, Registry, Samples, Tracer, TracerConfig};
use xxhash_rust::xxh3::xxh3_64;

/// The recorded marks, each for the version with these bytes.
const WIRE: (u16, u64) = (11, 0x802a_5f52_ff56_8f24);
const LOG: (u8, u64) = (7, 0x36d8_5cae_61a5_6492);
const STATE: (u8, u64) = (7, 0x452c_d6ed_d142_d79b);
const SNAPSHOT: (u8, u64) = (6, 0x1afb_b5e0_6f3e_40e5);
const DURABLE_INDEX: (u8, u64) = (2, 0xdba7_8029_99de_8e18);
const STORE_IDENTITY: (u8, u64) = (6, 0xb5a6_ce50_a0fb_af44);

/// Fails unless version and bytes are the recorded ones.
fn expect<V: PartialEq + std::fmt::Display>(what: &str, version: V, bytes: &[u8], (recorded, mark): (V, u64)) {
    let got = xxh3_64(bytes);
    assert!(
        version == recorded,
        "{what} has version {version}: expected {recorded}; record it, with the mark {got:#018x}"
    );
    assert!(
        got == mark,
        "the bytes of {what} changed: raise its version, which is {version}, then record it with the mark {got:#018x} \
         (expected {mark:#018x})"
    );
}

fn proposal() -> Proposal {
    let commands = vec![Command::OpenSession { name: "one".to_owned() }];
    Proposal { epoch: Epoch(3), number: 9, time: ClusterTime::from_micros(77), commands }
}

/// Traces a type.
type Trace = fn(&mut Tracer, &Samples);

fn traced<T: DeserializeOwned>(tracer: &mut Tracer, samples: &Samples) {
    if let Err(error) = tracer.trace_type::<T>(samples) {
        panic!("{}: {error}", std::any::type_name::<T>());
    }
}

/// The shapes of types and of all their parts. An enum must come before the types that contain it.
/// Otherwise the tracer reports variants that it has not seen.
///
/// Values that the decoder checks must be valid: paths, settings, the proposal in an entry.
fn shapes(types: &[Trace]) -> Registry {
    let encoded = postcard::to_allocvec(&proposal()).expect("encodes");
    let config = TracerConfig::default()
        .is_human_readable(false)
        // Seconds (of settings, among others), then nanoseconds.
        .default_u64_value(300)
        .default_u32_value(5)
        .default_string_value("/a".to_owned())
        .default_borrowed_str_value("/a")
        .default_byte_buf_value(encoded.clone())
        .default_borrowed_bytes_value(encoded.leak());
    let mut tracer = Tracer::new(config.record_samples_for_structs(true));
    let mut samples = Samples::new();
    // A leader's id must name a leader to be decoded.
    let leader = openraft::impls::leader_id_std::LeaderId::<u64, u64>::new(4, 2);
    tracer.trace_value(&mut samples, &leader).expect("encodes");
    for trace in types {
        trace(&mut tracer, &samples);
    }
    tracer.registry().unwrap_or_else(|error| panic!("{error}"))
}

/// The shapes of these types and of all their parts, as text.
fn text(shapes: &Registry, roots: &[&str]) -> String {
    let mut names: BTreeSet<String> = BTreeSet::new();
    let mut open: Vec<String> = roots.iter().map(|root| (*root).to_owned()).collect();
    while let Some(name) = open.pop() {
        if !names.insert(name.clone()) {
            continue;
        }
        let shape = shapes.get(&name).unwrap_or_else(|| panic!("no shape of {name}"));
        let visited = shape.visit(&mut |format| {
            if let Format::TypeName(inner) = format {
                open.push(inner.clone());
            }
            Ok(())
        });
        visited.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    names.iter().map(|name| format!("{name}: {:?}\n", shapes[name])).collect()
}

/// The messages between clients and servers, and the content of the log.
fn of_the_protocol() -> Registry {
    shapes(&[
        traced::<PathError>,
        traced::<VolumeError>,
        traced::<LimitError>,
        traced::<Tracking>,
        traced::<VolumeTerm>,
        traced::<ObjectTerm>,
        traced::<OnWrite>,
        traced::<GrantPolicy>,
        traced::<LeaseRequest>,
        traced::<LeaseOffer>,
        traced::<LockMode>,
        traced::<LockStatus>,
        traced::<ObjectKind>,
        traced::<ObjectSet>,
        traced::<NodeOwner>,
        traced::<Content>,
        traced::<EventKind>,
        traced::<ChangeReason>,
        traced::<WatchScope>,
        traced::<AnyLease>,
        traced::<Attach>,
        traced::<Condition>,
        traced::<Branch>,
        traced::<CompareTarget>,
        traced::<Relation>,
        traced::<Operation>,
        traced::<OperationResult>,
        traced::<Write>,
        traced::<Command>,
        traced::<Proposal>,
        traced::<QuotaFigure>,
        traced::<WriteRefusal>,
        traced::<Result<Written, WriteRefusal>>,
        traced::<Outcome>,
        traced::<KeepAliveResult>,
        traced::<Revival>,
        traced::<message::ServiceHealth>,
        traced::<NodesAfter>,
        traced::<DelayReason>,
        traced::<Inspect>,
        traced::<Body>,
        traced::<Request>,
        traced::<Refusal>,
        traced::<Answer>,
        traced::<Promise>,
        traced::<Lapse>,
        traced::<Recall>,
        traced::<Consent>,
        traced::<PushRequest>,
        traced::<RecallReply>,
    ])
}

/// The messages between replicas.
fn of_peers() -> Registry {
    shapes(&[
        traced::<Tracking>,
        traced::<VolumeTerm>,
        traced::<ObjectTerm>,
        traced::<OnWrite>,
        traced::<GrantPolicy>,
        traced::<LeaseRequest>,
        traced::<LeaseOffer>,
        traced::<EntryPayload<Logged, u64, openraft::BasicNode>>,
        traced::<AppendEntriesResponse<TypeConfig>>,
        traced::<VoteResponse<TypeConfig>>,
        traced::<openraft::raft::TransferLeaderError<TypeConfig>>,
        traced::<TransferLeaderResponse<TypeConfig>>,
        traced::<SnapshotResponse<TypeConfig>>,
        traced::<Installation>,
        traced::<PeerRefusal>,
        traced::<ReplicaStage>,
        traced::<PeerReport>,
        traced::<Admitted>,
        traced::<Joining>,
        traced::<MembershipRefusal>,
        traced::<PeerRequest>,
    ])
}

/// A response. Its parts are compared by their shapes.
fn response() -> Response {
    let result = Err(Refusal::Retry);
    Response { epoch: Epoch(3), promises: Vec::new(), lapses: Vec::new(), clocks: None, result }
}

#[test]
fn messages_change_with_the_protocol_version() {
    let protocol = text(
        &of_the_protocol(),
        &["Request", "Answer", "Refusal", "Promise", "Lapse", "Recall", "RecallReply", "PushRequest", "Proposal"],
    );
    let peers = of_peers();
    let names: Vec<&str> = peers.keys().map(String::as_str).collect();
    let push = Push { send_id: 7, response: response() };
    let samples = postcard::to_allocvec(&(response(), push)).expect("encodes");
    let all = [protocol.as_bytes(), text(&peers, &names).as_bytes(), &samples].concat();
    expect("messages", PROTOCOL_VERSION, &all, WIRE);
}

fn log_id(index: u64) -> LogIdOf<TypeConfig> {
    LogIdOf::<TypeConfig>::new(openraft::impls::leader_id_std::LeaderId::new(4, 2).to_committed(), index)
}

fn entry() -> EntryOf<TypeConfig> {
    EntryOf::<TypeConfig> {
        log_id: log_id(12),
        payload: EntryPayload::Normal(Logged::new(proposal()).expect("encodes")),
    }
}

#[test]
fn log_entries_change_with_their_format() {
    let sample = log::written_entry(&entry()).expect("encodes");
    let entries = shapes(&[
        traced::<EntryPayload<Logged, u64, openraft::BasicNode>>,
        traced::<EntryOf<TypeConfig>>,
        traced::<VoteOf<TypeConfig>>,
    ]);
    let (entries, commands) = (text(&entries, &["Entry", "Vote"]), text(&of_the_protocol(), &["Proposal"]));
    expect("the log", LOG_FORMAT, &[&sample, entries.as_bytes(), commands.as_bytes()].concat(), LOG);
}

#[test]
fn log_entry_of_another_format_is_refused_with_both_numbers() {
    let mut value = log::written_entry(&entry()).expect("encodes");
    value[4] = 9;
    let key = 12_u64.to_be_bytes();
    let crc = crc32fast::hash(&[&key, &value[4..]].concat());
    value[..4].copy_from_slice(&crc.to_le_bytes());
    let refused = log::rewritten_entry(&key, &value).expect_err("another format").to_string();
    assert_eq!(refused, format!("entry 12: format 9; expected {LOG_FORMAT}"));
}

fn path(text: &str) -> NodePath {
    NodePath::parse(text).expect("a path")
}

/// A state with a row of each kind that has a value.
fn state() -> State {
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
    let delay = std::time::Duration::from_secs(1);
    let name = LeaseName::parse("server1Lease").expect("a name");
    let commands = vec![
        Command::OpenSession { name: "one".to_owned() },
        write(1, Write::put(path("/a/b"), "value".into())),
        write(2, Write::CreateVolume { path: path("/v"), settings: VolumeSettings::DEFAULT }),
        Command::AcquireVolume { session, path: path("/a") },
        write(3, Write::GrantLease { id: Some(LeaseId(7)), name: Some(name), ttl: delay * 60 }),
        write(4, Write::Delete { path: path("/none"), recursive: false, condition: Condition::Any }),
    ];
    let mut state = State::new(VolumeSettings::DEFAULT);
    let entry = |epoch, commands| Proposal { epoch: Epoch(epoch), number: 1, time: ClusterTime::ZERO, commands };
    state.apply(1, &entry(0, vec![Command::BeginEpoch { replica: 1, attempt: 1 }]));
    state.apply(2, &entry(1, commands));
    let lock = Write::Lock { path: path("/a/b"), mode: LockMode::Exclusive, wait: true, delay };
    let attached = Write::Put {
        path: path("/a/c"),
        value: "value".into(),
        condition: Condition::Any,
        attach: Attach::Lease(LeaseId(7)),
    };
    for (sequence, mut command) in (5..).zip([write(5, lock), write(6, attached)]) {
        if let Command::Write { write, intended, .. } = &mut command {
            *intended = state.intended(session, write);
        }
        state.apply(sequence, &entry(1, vec![command]));
    }
    state
}

/// All kinds of keys, including those of rows without values.
fn keys() -> Vec<RowKey> {
    let (session, hold, lease) = (SessionId(1), LockId(2), Incarnation(3));
    vec![
        RowKey::Meta,
        RowKey::Node(path("/a")),
        RowKey::Volume(path("/a")),
        RowKey::Session(session),
        RowKey::Answer(session, Sequence(4)),
        RowKey::Lease(AnyLease::Session(session)),
        RowKey::Lease(AnyLease::Volume(session, path("/a"))),
        RowKey::Lease(AnyLease::KeyLease(LeaseId(5))),
        RowKey::Lease(AnyLease::LockDelay(hold)),
        RowKey::Change(Revision(6)),
        RowKey::Lock(hold, path("/a")),
        RowKey::Tombstone(lease),
        RowKey::ClosedSessionOrphan(lease),
    ]
}

#[test]
fn rows_change_with_the_format_of_the_state() {
    let rows: Vec<(Vec<u8>, Vec<u8>)> = state().rows().collect();
    let tags: BTreeSet<u8> = rows.iter().map(|(key, _)| key[0]).collect();
    // The lease of a lock delay has the tag of other leases. The last two kinds have no values.
    let expected: BTreeSet<u8> =
        keys().iter().map(|key| key.encode()[0]).filter(|tag| ![8, 11, 12].contains(tag)).collect();
    assert_eq!(tags, expected, "a row of each kind");
    let keys: Vec<u8> = keys().iter().flat_map(RowKey::encode).collect();
    // The stored outcomes of answers, and the names of leases and changes.
    let outcomes = text(&of_the_protocol(), &["Outcome", "AnyLease", "ObjectSet", "EventKind", "ChangeReason"]);
    let bytes = [postcard::to_allocvec(&rows).expect("encodes"), keys, outcomes.into_bytes()].concat();
    expect("rows of the state", STATE_FORMAT, &bytes, STATE);
}

#[tokio::test]
async fn snapshots_change_with_their_format() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, ..) = StateStore::open(&dir.path().join("state"), Poison::default()).expect("opens");
    let state = state();
    store.begin(state.clone()).await.expect("begins");
    store.write(log_id(6), None, []).await.expect("written");
    let mut bytes = Vec::new();
    snapshot::write(&store.view().await.expect("viewed"), &mut bytes).expect("written");
    let header = shapes(&[traced::<snapshot::SnapshotHeader>]);
    bytes.extend_from_slice(text(&header, &["SnapshotHeader"]).as_bytes());
    expect("snapshots", snapshot::FORMAT, &bytes, SNAPSHOT);
}

#[test]
fn durable_index_changes_with_its_format_and_another_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("durable-index");
    let mut index = DurableIndex::open(&file).expect("made");
    let vote = VoteOf::<TypeConfig>::new(4, 2);
    index.record(Some(log_id(11)), Some(vote), false).expect("written");
    index.record(Some(log_id(12)), Some(vote), true).expect("written");
    let mut bytes = std::fs::read(&file).expect("read");
    expect("the durable index", DURABLE_INDEX_FORMAT, &bytes, DURABLE_INDEX);

    let slot = &mut bytes[..128];
    slot[4] = 9;
    let crc = crc32fast::hash(&slot[4..]);
    slot[..4].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&file, &bytes).expect("written");
    let refused = DurableIndex::open(&file).expect_err("another format").to_string();
    assert_eq!(refused, format!("file durable-index: format 9; expected {DURABLE_INDEX_FORMAT}"));
}

#[test]
fn identity_changes_with_its_format_and_another_is_refused() {
    let dir = tempfile::tempdir().expect("a directory");
    let cluster = store_identity::ClusterId { founder: 1, nonce: 77 };
    let participation = store_identity::Participation::Rejoining { vote_floor: VoteOf::<TypeConfig>::new(4, 2) };
    let sample = StoreIdentity { replica: 2, cluster, root: VolumeSettings::DEFAULT, participation };
    store_identity::store(dir.path(), &sample).expect("stored");
    let file = dir.path().join("store-identity");
    let mut bytes = std::fs::read(&file).expect("read");
    let shapes = shapes(&[
        traced::<Tracking>,
        traced::<VolumeTerm>,
        traced::<ObjectTerm>,
        traced::<OnWrite>,
        traced::<GrantPolicy>,
        traced::<store_identity::Participation>,
        traced::<StoreIdentity>,
    ]);
    let all = [&bytes, text(&shapes, &["StoreIdentity"]).as_bytes()].concat();
    expect("the identity", store_identity::FORMAT, &all, STORE_IDENTITY);

    let end = bytes.len() - 4;
    bytes[0] = 9;
    let crc = crc32fast::hash(&bytes[..end]);
    bytes[end..].copy_from_slice(&crc.to_le_bytes());
    std::fs::write(&file, &bytes).expect("written");
    let refused = store_identity::load(dir.path(), 2).expect_err("another format").to_string();
    assert!(refused.ends_with(&format!("format 9; expected format {}", store_identity::FORMAT)), "{refused}");
}

/// Sets the format of a database, or removes it.
fn reformat(dir: &std::path::Path, format: Option<u8>) {
    let database = fjall::Database::builder(dir).open().expect("opens");
    let meta = database.keyspace("meta", Default::default).expect("opens");
    meta.insert("something", "else").expect("written");
    match format {
        Some(format) => meta.insert("format", [format]).expect("written"),
        None => meta.remove("format").expect("removed"),
    }
    database.persist(fjall::PersistMode::SyncAll).expect("persists");
}

#[tokio::test]
async fn databases_of_another_format_are_refused_with_both_numbers() {
    for (format, got) in [(Some(9), 9), (None, 1)] {
        let dir = tempfile::tempdir().expect("a directory");
        let (log, state) = (dir.path().join("log"), dir.path().join("state"));
        let open = || log::LogStore::open(&log, &dir.path().join("durable-index"), Poison::default());
        open().expect("made").close().await;
        StateStore::open(&state, Poison::default()).expect("made").0.close().await.expect("closed");
        reformat(&log, format);
        reformat(&state, format);
        let refused = open().err().expect("another format").to_string();
        assert_eq!(refused, format!("log: format {got}; expected format {LOG_FORMAT}"));
        let refused = StateStore::open(&state, Poison::default()).err().expect("another format").to_string();
        assert_eq!(refused, format!("state: format {got}; expected format {STATE_FORMAT}"));
    }
}

#[tokio::test]
async fn journal_of_another_store_format_is_refused_and_not_cut() {
    let dir = tempfile::tempdir().expect("a directory");
    let state = dir.path().join("state");
    StateStore::open(&state, Poison::default()).expect("made").0.close().await.expect("closed");
    std::fs::write(state.join("version"), b"FJL\x04").expect("written");
    let refused = StateStore::open(&state, Poison::default()).err().expect("another format").to_string();
    assert!(refused.contains("store format 4; expected 3"), "{refused}");
    assert!(!dir.path().join("state.cut").exists(), "nothing was cut off");
}
