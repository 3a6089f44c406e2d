//! Garbage on the port, and invalid commands. Nothing changes, and the error says what was wrong.

use std::time::{Duration, Instant};

use bytes::BytesMut;
use leasehold_client_cache::{Client, ReadSource};
use leasehold_protocol::message::{Body, Request, RequestHeader};
use leasehold_wire::{
    codec::{Decode, Encode},
    frame::FRAME_MAX_BYTES,
    handshake::{CLUSTER_BYTES, HANDSHAKE_TIMEOUT, MAGIC, PROTOCOL_VERSION, REFUSAL_TIMEOUT},
    mux::{RECALLS, REQUESTS},
    service::{LeaseholdRequest, LeaseholdResponse},
};
use rand::{RngCore, SeedableRng, rngs::SmallRng};
use tarpc::ClientMessage;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    alone,
    common::{Cluster, soon, within},
    path,
};

const CLIENT: u8 = 1;
const PEER: u8 = 2;

/// The size of an accepting server's answer.
const ACCEPTED_BYTES: usize = MAGIC.len() + 2 + 1 + CLUSTER_BYTES;

/// The most that a busy machine may add to a wait.
const GENEROUS: Duration = Duration::from_secs(10);

/// The first bytes of a connection.
fn hello(version: u16, role: u8) -> Vec<u8> {
    let [high, low] = version.to_be_bytes();
    [&MAGIC[..], &[high, low, role]].concat()
}

/// A frame, after the first bytes of a connection.
fn frame(role: u8, announced: usize, bytes: &[u8]) -> Vec<u8> {
    let announced = u32::try_from(announced).expect("it fits").to_be_bytes();
    [&hello(PROTOCOL_VERSION, role)[..], &announced, bytes].concat()
}

fn garbage(random: &mut SmallRng, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    random.fill_bytes(&mut bytes);
    bytes
}

/// Sends these bytes, keeps the sending half open, and returns all that the server answers until it
/// closes.
async fn answer_to(address: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let mut answer = Vec::new();
    let talk = async {
        // The server may have closed before it read everything.
        let _ = stream.write_all(bytes).await;
        let _ = stream.read_to_end(&mut answer).await;
    };
    let most = HANDSHAKE_TIMEOUT + REFUSAL_TIMEOUT + GENEROUS;
    if tokio::time::timeout(most, talk).await.is_err() {
        panic!(
            "the server has not closed a connection after {most:?} on which {} bytes were sent: {:02x?}…",
            bytes.len(),
            &bytes[..bytes.len().min(32)]
        );
    }
    answer
}

/// The reason in a refusal. `None` for any other answer.
fn reason(answer: &[u8]) -> Option<&str> {
    let refused = hello(PROTOCOL_VERSION, 1);
    let rest = answer.strip_prefix(&refused[..])?;
    std::str::from_utf8(rest.get(2..)?).ok()
}

/// Reads until the answer comes from memory.
async fn cache(client: &Client) {
    soon("the copy is in memory", || async {
        let read = client.read("/kept").await.expect("served");
        if read.source == ReadSource::Memory { Ok(()) } else { Err(format!("{read:?}")) }
    })
    .await;
}

/// Checks that the server reads and writes, and recalls what it has granted.
async fn still_serves(client: &Client) {
    let node = path("/counter");
    let other = client.put(&node, "1").await.expect("written");
    let kept = client.get("/kept").await.expect("served").expect("there");
    assert_eq!(&kept.value[..], b"kept");
    let entry = client.get(&node).await.expect("served").expect("there");
    assert_eq!((&entry.value[..], entry.stat.modify_revision), (&b"1"[..], other.revision));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nonsense_connection_is_closed_and_changes_nothing() {
    let _alone = alone();
    let mut cluster = Cluster::start(1);
    let address = cluster.address(1).to_owned();
    let client = cluster.client("bystander").await;
    client.put("/kept", "kept").await.expect("written");
    cache(&client).await;
    let before = cluster.status().expect("it answers")["revision"].clone();

    // A refusal of another version or role says why.
    for role in [CLIENT, PEER] {
        let other = PROTOCOL_VERSION + 1;
        let answer = answer_to(&address, &hello(other, role)).await;
        let why = reason(&answer).unwrap_or_else(|| panic!("{answer:02x?}"));
        let (theirs, ours) = (format!("version {other}"), format!("the server version {PROTOCOL_VERSION}"));
        assert!(why.contains(&theirs) && why.contains(&ours), "{why}");
    }
    let answer = answer_to(&address, &hello(PROTOCOL_VERSION, 7)).await;
    assert!(reason(&answer).is_some_and(|why| why.contains("role 7") && why.contains("expected 1")), "{answer:02x?}");
    let answer = answer_to(&address, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await;
    assert!(reason(&answer).is_some_and(|why| why.contains("Leasehold")), "{answer:02x?}");

    // All kinds of nonsense, at the same time.
    let mut random = SmallRng::seed_from_u64(5);
    let mut nonsense = vec![MAGIC[..3].to_vec(), MAGIC.to_vec(), hello(PROTOCOL_VERSION, CLIENT)[..6].to_vec(), vec![]];
    nonsense.extend([1, 4, 7, 100, 10_000, 1_000_000].map(|length| garbage(&mut random, length)));
    for role in [CLIENT, PEER] {
        nonsense.push(frame(role, u32::MAX as usize, b""));
        nonsense.push(frame(role, FRAME_MAX_BYTES + 1, &[0; 64]));
        for length in [1, 2, 10, 100, 10_000] {
            let bytes = garbage(&mut random, length);
            nonsense.push(frame(role, length, &bytes));
            // As if it were for a channel.
            for channel in [REQUESTS, RECALLS, 2] {
                nonsense.push(frame(role, length + 1, &[&[channel][..], &bytes].concat()));
            }
        }
        nonsense.push(frame(role, 0, b""));
    }
    let ended = futures::future::join_all(nonsense.iter().map(|bytes| answer_to(&address, bytes)));
    for (bytes, answer) in nonsense.iter().zip(ended.await) {
        let is_hello =
            bytes.starts_with(&hello(PROTOCOL_VERSION, CLIENT)) || bytes.starts_with(&hello(PROTOCOL_VERSION, PEER));
        let is_accepted = answer.starts_with(&hello(PROTOCOL_VERSION, 0)) && answer.len() == ACCEPTED_BYTES;
        let expected = if is_hello { is_accepted } else { reason(&answer).is_some() };
        // If a server closes while there is more to read, its answer may be lost.
        assert!(
            expected || bytes.len() >= 10_000,
            "{:02x?}… was answered by {answer:02x?}",
            &bytes[..bytes.len().min(32)]
        );
    }
    assert_eq!(cluster.status().expect("it answers")["revision"], before, "something has changed");
    let read = client.read("/kept").await.expect("served");
    assert_eq!(read.source, ReadSource::Memory, "the bystander's copy has suffered");
    still_serves(&client).await;
    cluster.assert_all_run();
}

/// A frame that opens a session, which takes a write. Its deadline is `time` from now.
fn open_within(time: Duration, id: u64) -> Vec<u8> {
    let mut context = tarpc::context::current();
    context.deadline = Instant::now() + time;
    let request = Request { header: RequestHeader::default(), body: Body::Open { name: "late".to_owned() } };
    let message = LeaseholdRequest::Call { request };
    let call = ClientMessage::Request(tarpc::Request { context, id, message });
    let mut bytes = BytesMut::from(&[REQUESTS][..]);
    call.encode(&mut bytes, FRAME_MAX_BYTES).expect("it fits");
    let length = u32::try_from(bytes.len()).expect("it fits").to_be_bytes();
    [&length[..], &bytes[..]].concat()
}

/// tarpc logs a line for each late request. In a server's log, these lines could fill the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_are_over_on_arrival_leave_the_log_as_it_is() {
    const LATE: u64 = 1000;
    let _alone = alone();
    let mut cluster = Cluster::start(1);
    let client = cluster.client("bystander").await;
    client.put("/kept", "kept").await.expect("written");
    let before = cluster.log(1);
    let mut stream = TcpStream::connect(cluster.address(1)).await.expect("it listens");
    let mut frames = hello(PROTOCOL_VERSION, CLIENT);
    frames.extend((0..LATE).flat_map(|id| open_within(Duration::ZERO, id)));
    frames.extend(open_within(Duration::from_secs(60), LATE));
    stream.write_all(&frames).await.expect("sent");
    let mut accepted = [0; ACCEPTED_BYTES];
    let answered = async {
        stream.read_exact(&mut accepted).await.expect("accepted");
        loop {
            let length = stream.read_u32().await.expect("an answer");
            let mut frame = vec![0; length as usize];
            stream.read_exact(&mut frame).await.expect("an answer");
            let answer = frame.strip_prefix(&[REQUESTS]).map(tarpc::Response::<LeaseholdResponse>::decode);
            if answer.is_some_and(|answer| answer.expect("a message").request_id == LATE) {
                return;
            }
        }
    };
    within("the answer to the one that is not late", answered).await;
    still_serves(&client).await;
    cluster.assert_all_run();
    let log = cluster.log(1);
    let more: Vec<&str> = log[before.len()..].lines().collect();
    assert!(more.is_empty(), "{} lines more, of which the first is {:?}", more.len(), more[0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_commands_are_refused_with_numbers_and_no_change() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let cli = cluster.cli();
    let client = cluster.client("bystander").await;
    client.put("/kept", "first").await.expect("written");
    let written = client.put("/kept", "kept").await.expect("written").revision;
    let status = cluster.caught_up(&cluster.ids());

    let too_long = vec![b'x'; (1 << 20) + 1];
    let (status_of_put, _, message) = cli.run_with(["--json", "put", "/a", "-"], &too_long).error();
    assert!(status_of_put == 1 && message.contains("1048577") && message.contains("1048576"), "{message}");
    let component = format!("/{}", "c".repeat(256));
    let deep = "/x".repeat(2049);
    let old = (written.0 - 1).to_string();
    let cases: [(&[&str], i32, &[&str]); 14] = [
        (&["put", "/a//b", "x"], 2, &["/a//b", "byte 3"]),
        (&["put", "/a/../b", "x"], 2, &[".."]),
        (&["get", ""], 2, &["/"]),
        (&["put", &component, "x"], 2, &["256", "255"]),
        (&["put", &deep, "x"], 2, &["4098", "4096"]),
        (&["get", "/a", "--timeout", "soon"], 2, &["soon", "500ms"]),
        (&["put", "/kept", "x", "--create"], 1, &["/kept", "exists"]),
        (&["put", "/kept", "x", "--if-revision", &old], 1, &[&old, "expected"]),
        (&["get", "/missing"], 1, &["/missing"]),
        (&["volume", "set", "/nowhere", "--term", "5s"], 1, &["/nowhere", "not a volume"]),
        (&["volume", "remove", "/"], 1, &["root"]),
        // The margin must exceed twice 0.1 % of a term and a tick (T3).
        (&["volume", "create", "/v", "--term", "10s", "--skew-margin", "20ms"], 1, &["20ms", "1000 ppm", "10.25s"]),
        (&["volume", "create", "/v", "--term", "100ms"], 1, &["100ms", "200ms"]),
        (&["volume", "create", "/v", "--object-term", "100ms"], 1, &["100ms", "200ms"]),
    ];
    for (args, status, words) in cases {
        let (got, _, message) = cli.fails(args);
        assert_eq!(got, status, "{args:?}: {message}");
        assert!(words.iter().all(|word| message.contains(word)), "{args:?}: {message}: expected {words:?}");
    }
    let after = cluster.status().expect("they answer");
    assert_eq!(after["revision"], status["revision"], "something has changed: {after}");
    still_serves(&client).await;
    cluster.assert_all_run();
}
