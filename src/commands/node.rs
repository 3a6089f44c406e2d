//! The commands that write and read nodes: put, get, stat, ls.

use std::{
    ffi::OsString,
    io::{self, Read as _},
    os::unix::ffi::OsStringExt,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use clap::Args;
use futures::{StreamExt, TryStreamExt, stream};
use leasehold_client_cache::{
    Attach, Client, Compare, Condition, Content, LeaseId, LeaseName, NodeOwner, NodePath, Operation, OperationResult,
    ReadSource, Relation, Revision, Token, Transaction, WriteRefusal,
};
use serde::Serialize;

use super::{boxed, tree::walk, waits};
use crate::{
    arguments,
    context::Context,
    duration,
    exit::CommandFailure,
    failure::read_failure,
    lease_id,
    output::{CommandAnswer, Text, visible},
};

/// `put PATH VALUE`
#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    /// Node to write
    #[arg(value_parser = arguments::path)]
    pub(crate) path: NodePath,
    /// New value; - reads standard input to its end, unchanged
    #[arg(allow_negative_numbers = true)]
    value: OsString,
    /// Only if the node does not exist
    #[arg(long, conflicts_with = "if_revision")]
    create: bool,
    /// Only if the value was last changed at this revision
    #[arg(long, value_name = "N")]
    if_revision: Option<u64>,
    /// Attach the node to this lease, in hexadecimal: it is removed when the lease ends. Without,
    /// it is detached from any lease
    #[arg(long, value_name = "ID", value_parser = lease_id::parse)]
    lease: Option<LeaseId>,
    /// Attach the node to the lease that has this name
    #[arg(long, value_name = "NAME", conflicts_with = "lease")]
    lease_name: Option<LeaseName>,
    /// Only while a lock is owned under this fencing token
    #[arg(long, value_name = "T")]
    token: Option<u64>,
}

/// A put that took effect.
#[derive(Debug, Serialize)]
pub(crate) struct PutAnswer {
    path: NodePath,
    revision: u64,
    create_revision: Option<u64>,
    version: Option<u64>,
}

impl Text for PutAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("revision {}\n", self.revision).as_bytes());
    }
}

impl PutArgs {
    pub(crate) fn reads_standard_input(&self) -> bool {
        self.value == "-"
    }

    pub(crate) async fn run(self, context: &Context) -> Result<PutAnswer, CommandFailure> {
        let value = if self.reads_standard_input() { standard_input().await? } else { self.value.into_vec() };
        let condition = match self.if_revision {
            Some(revision) => Condition::Revision(Revision(revision)),
            None if self.create => Condition::Absent,
            None => Condition::Any,
        };
        let attach = lease_id::attach(self.lease, self.lease_name);
        let client = context.client().await?;
        let (revision, stat) = match self.token {
            Some(token) => put_under(context, &self.path, value, (condition, attach), Token(token)).await?,
            None => {
                let put = client.put(&self.path, value).condition(condition).attach(attach);
                let written = waits::write(context, &[&self.path], put).await?;
                (written.revision, written.stat)
            }
        };
        Ok(PutAnswer {
            path: self.path,
            revision: revision.0,
            create_revision: stat.map(|stat| stat.create_revision.0),
            version: stat.map(|stat| stat.version),
        })
    }
}

/// Puts the node if the token is valid and the condition holds, atomically.
async fn put_under(
    context: &Context,
    path: &NodePath,
    value: Vec<u8>,
    (condition, attach): (Condition, Attach),
    token: Token,
) -> Result<(Revision, Option<leasehold_client_cache::Stat>), CommandFailure> {
    let put = Operation::Put { path: path.clone(), value: value.into(), attach };
    let mut transaction = Transaction::new().when(Compare::locked(NodePath::root(), token)).then(put);
    match condition {
        Condition::Any => {}
        Condition::Absent => transaction = transaction.when(Compare::absent(path.clone())),
        Condition::Revision(revision) => {
            transaction = transaction.when(Compare::modify_revision(path.clone(), Relation::Equal, revision));
        }
    }
    let outcome = waits::write(context, &[path], context.client().await?.transaction(transaction)).await?;
    let Some(failed) = outcome.failed else {
        let stat = outcome.results.first().and_then(|result| match result {
            OperationResult::Put(stat) => Some(*stat),
            OperationResult::Deleted(_) => None,
        });
        return Ok((outcome.revision, stat));
    };
    let path = path.clone();
    Err(match (failed.index, condition, failed.found) {
        (0, ..) => {
            let text = "no current lock has this token; the lock was released or lost";
            CommandFailure::refused("token_not_held", text).with_subject(&format!("token {token}"))
        }
        (_, Condition::Revision(expected), Some(found)) => {
            let got = found.modify_revision;
            CommandFailure::from_refusal(&WriteRefusal::RevisionDiffers { path, got, expected }.into())
        }
        (_, _, Some(found)) => {
            let create_revision = found.create_revision;
            CommandFailure::from_refusal(&WriteRefusal::Exists { path, create_revision }.into())
        }
        (_, _, None) => CommandFailure::from_refusal(&WriteRefusal::NotFound { path }.into()),
    })
}

/// Reads all of standard input.
pub(super) async fn standard_input() -> Result<Vec<u8>, CommandFailure> {
    let read = tokio::task::spawn_blocking(|| {
        let mut value = Vec::new();
        io::stdin().lock().read_to_end(&mut value).map(|_| value)
    });
    let read = read.await.map_err(io::Error::other).flatten();
    read.map_err(|error| CommandFailure::io("cannot read standard input", &error))
}

/// Reads in flight: enough to hide round trips, and a small load for a server.
const READS_AT_ONCE: usize = 64;

/// `get PATH...`
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// Nodes to read, each as of its own moment; with several, each value follows its path
    #[arg(value_parser = arguments::path, required = true, value_name = "PATH")]
    pub(crate) paths: Vec<NodePath>,
    /// Also read all nodes below each path; unlike etcdctl, only whole components match
    #[arg(long)]
    prefix: bool,
    /// Print the bytes of values only, without paths and newlines
    #[arg(long)]
    raw: bool,
    /// Accept a value from memory that was current at most this long ago; only a shell has a memory
    #[arg(long, value_name = "D", value_parser = duration::parse)]
    max_stale: Option<Duration>,
}

/// How to read a value.
#[derive(Debug, Clone, Copy)]
struct ReadOptions {
    raw: bool,
    max_stale: Option<Duration>,
}

/// A value and its source.
#[derive(Debug, Serialize)]
pub(crate) struct GetAnswer {
    path: NodePath,
    value: String,
    encoding: &'static str,
    revision: u64,
    create_revision: u64,
    version: u64,
    /// The key lease that the node is attached to, in hexadecimal.
    lease: Option<String>,
    /// The session whose volume lease the node is attached to.
    session: Option<u64>,
    source: &'static str,
    valid_ms: u64,
    /// How long ago the value was current; null for one that was current during the read.
    age_ms: Option<u64>,
    #[serde(skip)]
    bytes: Bytes,
    #[serde(skip)]
    raw: bool,
    #[serde(skip)]
    valid_for: Duration,
}

impl Text for GetAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes);
        if !self.raw && !self.bytes.ends_with(b"\n") {
            out.push(b'\n');
        }
    }

    fn note(&self) -> Option<String> {
        let valid = match (self.age_ms, self.valid_for) {
            (Some(age), _) => format!("current {} ago", duration::rough(Duration::from_millis(age))),
            (None, Duration::ZERO) => "not kept".to_owned(),
            (None, span) => format!("valid for {} more", duration::rough(span)),
        };
        Some(format!("from {}, revision {}, {valid}", self.source, self.revision))
    }
}

/// The values of several nodes.
#[derive(Debug, Serialize)]
struct GetListAnswer {
    /// In the order of the arguments; those of one subtree in the order of paths.
    nodes: Vec<GetAnswer>,
}

impl Text for GetListAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        for node in &self.nodes {
            if !node.raw {
                out.extend_from_slice(format!("{}\n", visible(node.path.as_str())).as_bytes());
            }
            node.text(out);
        }
    }
}

impl GetArgs {
    pub(crate) async fn run(self, context: &Context) -> Result<Box<dyn CommandAnswer>, CommandFailure> {
        let client = context.client().await?;
        let options = ReadOptions { raw: self.raw, max_stale: self.max_stale };
        if let ([path], false) = (&self.paths[..], self.prefix) {
            return boxed(GetAnswer::read(client, path.clone(), options).await);
        }
        let mut nodes = Vec::new();
        for path in self.paths {
            // A node below that is removed after it was listed is left out.
            let below = if self.prefix { walk(client, &path).await?.into_keys().collect() } else { Vec::new() };
            let below = below.into_iter().filter(|node| *node != path);
            let reads = stream::iter(below).map(|node| GetAnswer::read_if_exists(client, node, options));
            let below: Vec<_> = reads.buffered(READS_AT_ONCE).try_collect().await?;
            nodes.push(GetAnswer::read(client, path, options).await?);
            nodes.extend(below.into_iter().flatten());
        }
        boxed(Ok(GetListAnswer { nodes }))
    }
}

impl GetAnswer {
    async fn read(client: &Client, path: NodePath, options: ReadOptions) -> Result<Self, CommandFailure> {
        let read = Self::read_if_exists(client, path.clone(), options).await?;
        read.ok_or_else(|| CommandFailure::not_found().with_subject(path.as_str()))
    }

    async fn read_if_exists(
        client: &Client,
        path: NodePath,
        options: ReadOptions,
    ) -> Result<Option<Self>, CommandFailure> {
        let read = client.read(&path);
        let read = match options.max_stale {
            Some(age) => read.max_stale(age),
            None => read,
        };
        let read = read.await.map_err(|error| read_failure(&error).with_subject(path.as_str()))?;
        let Content::Data(Some(data)) = &*read.content else { return Ok(None) };
        let valid_for = read.valid_for.unwrap_or_default();
        let (value, encoding) = match std::str::from_utf8(&data.value) {
            Ok(text) => (text.to_owned(), "utf8"),
            Err(_) => (BASE64_STANDARD.encode(&data.value), "base64"),
        };
        Ok(Some(Self {
            path,
            value,
            encoding,
            revision: data.stat.modify_revision.0,
            create_revision: data.stat.create_revision.0,
            version: data.stat.version,
            lease: read.owner.and_then(key_lease),
            session: read.owner.and_then(session),
            source: source_name(read.source),
            valid_ms: duration::millis(valid_for),
            age_ms: read.age.map(duration::millis),
            bytes: data.value.clone(),
            raw: options.raw,
            valid_for,
        }))
    }
}

fn source_name(source: ReadSource) -> &'static str {
    match source {
        ReadSource::Memory => "memory",
        ReadSource::Server => "server",
    }
}

/// The key lease that a node is attached to, in hexadecimal.
fn key_lease(owner: NodeOwner) -> Option<String> {
    match owner {
        NodeOwner::Lease(id) => Some(lease_id::hex(id)),
        NodeOwner::Session(_) => None,
    }
}

/// The session that a node is attached to.
fn session(owner: NodeOwner) -> Option<u64> {
    match owner {
        NodeOwner::Lease(_) => None,
        NodeOwner::Session(session) => Some(session.0),
    }
}

/// `stat PATH`
#[derive(Debug, Args)]
pub(crate) struct StatArgs {
    /// Node to show
    #[arg(value_parser = arguments::path)]
    pub(crate) path: NodePath,
}

/// A node's metadata.
#[derive(Debug, Serialize)]
pub(crate) struct StatAnswer {
    path: NodePath,
    create_revision: u64,
    revision: u64,
    version: u64,
    value_bytes: u64,
    children: u64,
    children_version: u64,
    children_revision: u64,
    /// The key lease that the node is attached to, in hexadecimal.
    lease: Option<String>,
    /// The session whose volume lease the node is attached to.
    session: Option<u64>,
}

impl Text for StatAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        let none = || "none".to_owned();
        let session = self.session.map(|session| format!("that of session {session}"));
        let lease = self.lease.clone().or(session).unwrap_or_else(none);
        let lines = [
            ("path", visible(self.path.as_str())),
            ("create_revision", self.create_revision.to_string()),
            ("revision", self.revision.to_string()),
            ("version", self.version.to_string()),
            ("value_bytes", self.value_bytes.to_string()),
            ("children", self.children.to_string()),
            ("children_version", self.children_version.to_string()),
            ("children_revision", self.children_revision.to_string()),
            ("lease", lease),
        ];
        for (name, value) in lines {
            out.extend_from_slice(format!("{name:17}  {value}\n").as_bytes());
        }
    }
}

impl StatArgs {
    pub(crate) async fn run(self, context: &Context) -> Result<StatAnswer, CommandFailure> {
        let client = context.client().await?;
        let stat = client.stat(&self.path).await.map_err(|error| read_failure(&error))?;
        let stat = stat.ok_or_else(CommandFailure::not_found)?;
        Ok(StatAnswer {
            path: self.path,
            create_revision: stat.create_revision.0,
            revision: stat.modify_revision.0,
            version: stat.version,
            value_bytes: stat.value_len,
            children: stat.child_count,
            children_version: stat.children_version,
            children_revision: stat.children_revision.0,
            lease: stat.owner.and_then(key_lease),
            session: stat.owner.and_then(session),
        })
    }
}

/// `ls PATH`
#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// Node whose children are listed
    #[arg(value_parser = arguments::path, default_value = "/")]
    pub(crate) path: NodePath,
}

/// The names of a node's children, sorted by their bytes.
#[derive(Debug, Serialize)]
pub(crate) struct LsAnswer {
    path: NodePath,
    children: Vec<String>,
}

impl Text for LsAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        for name in &self.children {
            out.extend_from_slice(visible(name).as_bytes());
            out.push(b'\n');
        }
    }
}

impl LsArgs {
    pub(crate) async fn run(self, context: &Context) -> Result<LsAnswer, CommandFailure> {
        let children = context.client().await?.children(&self.path).await.map_err(|error| read_failure(&error))?;
        let children = children.ok_or_else(CommandFailure::not_found)?;
        Ok(LsAnswer { path: self.path, children: children.names.clone() })
    }
}
