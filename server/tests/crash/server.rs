//! A whole server under load, on a disk that fails. It must end, give the reason, and have every
//! acknowledged write when it starts again.
//!
//! It is a cluster of one, so no other replica can restore its data.

use std::{collections::BTreeMap, fs::File, io::Write as _, path::Path, process, time::Duration};

use futures::StreamExt;
use leasehold_protocol::{
    command::Write,
    id::{Epoch, Sequence, Stamp},
    lease_policy::LeaseRequest,
    message::{Answer, Body, Consent, Push, Recall, RecallReply, Refusal, Request, RequestHeader, Response},
    object::{Content, Object},
    path::NodePath as Node,
};
use leasehold_server::{RaftConfig, Server, ServerConfig};
use leasehold_wire::{Callback, LeaseholdClient, Role};
use rand::Rng;
use tarpc::{
    context::Context,
    server::{BaseChannel, Channel},
};

use super::{
    child,
    disk::{Disk, Ended, Fault},
    points::{SEED, number, points_of},
};

const THE_CHILD: &str = "server::a_server_takes_writes";
const WRITERS: u64 = 3;
/// The nodes of each writer. No other writer writes them.
const NODES: u64 = 4;
/// The writes of each writer. Together they cause a few truncations of the log.
const WRITES: u64 = 60;
/// The longest time of a write, unless the server has ended.
const PATIENCE: Duration = Duration::from_secs(60);

fn config(dir: &Path) -> ServerConfig {
    let raft = RaftConfig {
        heartbeat_ms: 20,
        election_min_ms: 60,
        election_max_ms: 120,
        snapshot_entries: 50,
        keep_entries: 10,
        ..RaftConfig::default()
    };
    ServerConfig { data: dir.to_owned(), listen: "127.0.0.1:0".to_owned(), raft, ..ServerConfig::default() }
}

/// A client that caches nothing.
struct Client {
    calls: LeaseholdClient,
    header: RequestHeader,
}

#[derive(Clone)]
struct HoldsNothing;

impl Callback for HoldsNothing {
    async fn recall(self, _: Context, recall: Recall) -> RecallReply {
        let consent = Consent { session: recall.session, stamp: recall.stamp };
        RecallReply::Consented { consent, push_requests: Vec::new() }
    }

    async fn push(self, _: Context, push: Push) {
        panic!("nobody asked for {push:?}");
    }
}

impl Client {
    /// Opens a session. Returns `None` if the server has ended.
    async fn open(address: &str) -> Option<Self> {
        let stream = leasehold_wire::connect(address, Role::Client, PATIENCE).await.ok()?.stream;
        let (calls, recalls, task) = leasehold_wire::client_connection(stream);
        tokio::spawn(task);
        tokio::spawn(BaseChannel::with_defaults(recalls).execute(HoldsNothing.serve()).for_each(|recall| recall));
        let mut client = Self { calls, header: RequestHeader::default() };
        let Answer::Opened { session, .. } = client.answered(Body::Open { name: "writer".into() }).await? else {
            panic!("no session")
        };
        client.header.session = session;
        Some(client)
    }

    /// Registers with the current leadership. The caller repeats requests that were refused without
    /// a registration.
    async fn register(&mut self) -> Option<()> {
        self.header.registration += 1;
        self.header.epoch = Epoch(0);
        let response = self.call(Body::Register).await?;
        if response.result.is_ok() {
            self.header.epoch = response.epoch;
        }
        Some(())
    }

    async fn call(&self, body: Body) -> Option<Response> {
        let mut context = tarpc::context::current();
        context.deadline = std::time::Instant::now() + PATIENCE;
        self.calls.call(context, Request { header: self.header.clone(), body }).await.ok()
    }

    /// Repeats a request until it is answered. Returns `None` if the server has ended.
    async fn answered(&mut self, body: Body) -> Option<Answer> {
        loop {
            let response = self.call(body.clone()).await?;
            match response.result {
                Ok(answer) => return Some(answer),
                Err(Refusal::NotRegistered { .. }) => self.register().await?,
                // No leader is elected yet, and nothing reports when one is.
                Err(Refusal::NotLeader { .. } | Refusal::Retry | Refusal::OutcomeUnknown) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(refusal) => panic!("{refusal}"),
            }
        }
    }

    async fn put(&mut self, number: u64, path: &Node, value: String) -> Option<()> {
        (self.header.sequence, self.header.unanswered_from) = (Sequence(number), Sequence(number));
        let write = Write::put(path.clone(), value.into());
        let seen = Stamp { epoch: self.header.epoch, sequence: 0 };
        let answer = self.answered(Body::Write { write, dropped: Vec::new(), seen }).await?;
        assert!(matches!(answer, Answer::Written { .. }), "{answer:?}");
        Some(())
    }

    async fn read(&mut self, path: &Node) -> Option<String> {
        let body = Body::Read { object: Object::data(path.clone()), known: None, lease: LeaseRequest::Implicit };
        let answer = self.answered(body).await.expect("it runs");
        let Answer::Read(read) = answer else { panic!("{answer:?}") };
        match read.content.expect("asked for") {
            Content::Data(data) => data.map(|data| String::from_utf8(data.value.to_vec()).expect("text")),
            other => panic!("{other:?}"),
        }
    }
}

fn node(writer: u64, write: u64) -> Node {
    Node::parse(&format!("/writer-{writer}/node-{}", write % NODES)).expect("a path")
}

/// The number of the write, then filler up to some length.
fn value(write: u64) -> String {
    format!("{write} {}", "x".repeat(usize::try_from(write * 97 % 5_000).expect("small")))
}

async fn write_all(address: String, writer: u64, mut acknowledged: File) -> Option<()> {
    let mut client = Client::open(&address).await?;
    for write in 1..=WRITES {
        client.put(write, &node(writer, write), value(write)).await?;
        acknowledged.write_all(format!("{writer} {write}\n").as_bytes()).expect("written");
    }
    Some(())
}

/// Runs a server like `leasehold serve`, and its clients in the same process, until everything is
/// written or the server cannot continue.
async fn serve(dir: &Path, acknowledged: File) -> Result<(), (i32, String)> {
    let server = Server::start(config(dir)).await.map_err(|error| (child::NOT_OPENED, error.to_string()))?;
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let acknowledged = acknowledged.try_clone().expect("a handle");
        writers.spawn(write_all(server.address().to_string(), writer, acknowledged));
    }
    let written = async {
        while let Some(written) = writers.join_next().await {
            if written.expect("no panic").is_none() {
                // The cause of the broken connection appears elsewhere, or the process hangs, which
                // is detected.
                std::future::pending::<()>().await;
            }
        }
    };
    let failed = tokio::select! {
        reason = server.failed() => Some(reason),
        () = written => None,
    };
    match failed {
        Some(reason) => Err((child::FAILED, format!("replica 1 cannot go on: {reason}"))),
        None => server.stop().await.map_err(|error| (child::FAILED, error.to_string())),
    }
}

/// Run by itself, this runs a server on a good disk. As the child, it uses the folder that the
/// environment names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_takes_writes() {
    if let (Some(dir), Some(acknowledged)) = (std::env::var_os(child::DIR), std::env::var_os(child::ACKNOWLEDGED)) {
        let acknowledged = File::options().create(true).append(true).open(acknowledged).expect("opens");
        if let Err((status, reason)) = serve(Path::new(&dir), acknowledged).await {
            eprintln!("{reason}");
            process::exit(status);
        }
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let acknowledged = dir.path().join("acknowledged");
    serve(&dir.path().join("data"), File::create(&acknowledged).expect("made")).await.expect("all is written");
    let lines = std::fs::read_to_string(&acknowledged).expect("read");
    let lines: Vec<String> = lines.lines().map(str::to_owned).collect();
    assert_eq!(lines.len() as u64, WRITERS * WRITES);
    check(&dir.path().join("data"), &lines).await.expect("all of it is there");
}

/// Starts a server on the remaining files, and reads everything that was acknowledged.
async fn check(dir: &Path, acknowledged: &[String]) -> Result<(), String> {
    let mut last: BTreeMap<u64, u64> = BTreeMap::new();
    for line in acknowledged {
        let (writer, write) = line.split_once(' ').ok_or(line)?;
        last.insert(writer.parse().expect("a number"), write.parse().expect("a number"));
    }
    let server = Server::start(config(dir)).await.map_err(|error| format!("refused: {error}"))?;
    let mut client = Client::open(&server.address().to_string()).await.ok_or("no session")?;
    for writer in 0..WRITERS {
        let last = last.get(&writer).copied().unwrap_or(0);
        for offset in 0..NODES {
            // The last acknowledged write of each node. The write in flight may have been done too.
            let write = last.saturating_sub(offset);
            let expected = (write > 0).then(|| value(write));
            let found = client.read(&node(writer, write)).await;
            let is_next = offset == NODES - 1 && found == Some(value(last + 1));
            if found != expected && !is_next && write > 0 {
                let start = found.map(|found| found.chars().take(10).collect::<String>());
                return Err(format!("writer {writer}: write {write} of {last} was acknowledged, found {start:?}"));
            }
        }
    }
    client.put(1, &Node::parse("/afterwards").expect("a path"), value(1)).await.ok_or("it ended afterwards")?;
    server.stop().await.map_err(|error| format!("afterwards: {error}"))
}

fn judge_end(fault: Fault, ended: &Ended) -> Result<(), String> {
    match ended.status {
        _ if ended.hung => Err("it hangs".to_owned()),
        None if fault.kills() && ended.at.is_some() => Ok(()),
        Some(0) if ended.acknowledged.len() as u64 == WRITERS * WRITES => Ok(()),
        Some(child::FAILED | child::NOT_OPENED) if !fault.kills() && fault != Fault::Short && ended.at.is_some() => {
            super::points::says_why(&ended.stderr)
        }
        _ => Err("it ended as it must not".to_owned()),
    }
}

fn try_it(fault: Fault, at: u64, seed: u64) -> Result<Option<String>, String> {
    let disk = Disk::new();
    let ended = disk.run(THE_CHILD, fault, at, seed ^ at, &[]);
    let outcome = judge_end(fault, &ended).and_then(|()| {
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(check(&disk.data(), &ended.acknowledged))
    });
    outcome.map(|()| ended.at.clone()).map_err(|wrong| {
        let (kept, count) = (disk.keep(), ended.acknowledged.len());
        let Ended { at, status, stderr, .. } = ended;
        format!(
            "{fault:?} at {at:?}, status {status:?}, {count} writes acknowledged, left in {}: {wrong}\n{stderr}",
            kept.display()
        )
    })
}

#[test]
fn a_server_whose_disk_fails_ends_and_has_what_it_acknowledged() {
    let seed = number(SEED).unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
    let disk = Disk::new();
    let ended = disk.run(THE_CHILD, Fault::None, 0, seed, &[]);
    assert_eq!((ended.status, ended.acknowledged.len() as u64), (Some(0), WRITERS * WRITES), "{}", ended.stderr);
    let calls = ended.calls.expect("it came to its end");
    let points = points_of("a server under load", seed, calls, 6);
    super::points::try_all(&points, |(fault, at)| try_it(*fault, *at, seed));
}
