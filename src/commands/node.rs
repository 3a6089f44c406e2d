//! The commands for one node: put, get, stat, ls, rm.

use std::{
    ffi::OsString,
    io::{self, Read as _},
    os::unix::ffi::OsStringExt,
    time::Duration,
};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::Bytes;
use clap::Args;
use leasehold_client_cache::{
    Attach, Client, Compare, Condition, Content, LeaseId, NodeOwner, NodePath, Operation, OperationResult, ReadSource,
    Relation, Revision, Token, Transaction, WriteRefusal,
};
use serde::Serialize;

use super::{lease, read_failure, write_failure};
use crate::{
    cli,
    context::Context,
    duration,
    exit::CommandFailure,
    output::{Text, visible},
};

/// `put PATH VALUE`
#[derive(Debug, Args)]
pub(crate) struct PutArgs {
    /// Node to write
    #[arg(value_parser = cli::path)]
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
    #[arg(long, value_name = "ID", value_parser = lease::id)]
    lease: Option<LeaseId>,
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
        let attach = self.lease.map_or(Attach::Nothing, Attach::Lease);
        let client = context.client().await?;
        let (revision, stat) = match self.token {
            Some(token) => put_under(client, &self.path, value, (condition, attach), Token(token)).await?,
            None => {
                let written = client.put(&self.path, value).condition(condition).attach(attach).await;
                let written = written.map_err(|error| write_failure(&error))?;
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
    client: &Client,
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
    let outcome = client.transaction(transaction).await.map_err(|error| write_failure(&error))?;
    let Some(failed) = outcome.failed else {
        let stat = outcome.results.first().and_then(|result| match result {
            OperationResult::Put(stat) => Some(*stat),
            OperationResult::Deleted(_) => None,
        });
        return Ok((outcome.revision, stat));
    };
    let path = path.clone();
    Err(match (failed.index, condition, failed.found) {
        (0, ..) => CommandFailure::refused(
            "token_not_held",
            format!("nothing is held under token {token}: expected the token of a hold that is not over"),
        ),
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

/// `get PATH`
#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// Node to read
    #[arg(value_parser = cli::path)]
    pub(crate) path: NodePath,
    /// Print the value's bytes only, without a newline at the end
    #[arg(long)]
    raw: bool,
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
        let valid = match self.valid_for {
            Duration::ZERO => "not kept".to_owned(),
            span => format!("valid for {} more", duration::rough(span)),
        };
        Some(format!("from {}, revision {}, {valid}", self.source, self.revision))
    }
}

impl GetArgs {
    pub(crate) async fn run(self, context: &Context) -> Result<GetAnswer, CommandFailure> {
        let client = context.client().await?;
        let read = client.read(&self.path).await.map_err(|error| read_failure(&error))?;
        let Content::Data(Some(data)) = &*read.content else { return Err(CommandFailure::not_found()) };
        let valid_for = read.valid_for.unwrap_or_default();
        let (value, encoding) = match std::str::from_utf8(&data.value) {
            Ok(text) => (text.to_owned(), "utf8"),
            Err(_) => (BASE64_STANDARD.encode(&data.value), "base64"),
        };
        Ok(GetAnswer {
            path: self.path,
            value,
            encoding,
            revision: data.stat.modify_revision.0,
            create_revision: data.stat.create_revision.0,
            version: data.stat.version,
            lease: read.owner.and_then(key_lease),
            session: read.owner.and_then(session),
            source: source_name(read.source),
            valid_ms: duration::millis(valid_for),
            bytes: data.value.clone(),
            raw: self.raw,
            valid_for,
        })
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
        NodeOwner::Lease(id) => Some(lease::hex(id)),
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
    #[arg(value_parser = cli::path)]
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
    #[arg(value_parser = cli::path, default_value = "/")]
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

/// `rm [-r] PATH`
#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Node to remove
    #[arg(value_parser = cli::path)]
    pub(crate) path: NodePath,
    /// Remove the nodes below it too
    #[arg(short, long)]
    recursive: bool,
    /// Only if the value was last changed at this revision
    #[arg(long, value_name = "N")]
    if_revision: Option<u64>,
}

/// A removal that took effect.
#[derive(Debug, Serialize)]
pub(crate) struct RmAnswer {
    path: NodePath,
    revision: u64,
    removed: u64,
}

impl Text for RmAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        let nodes = if self.removed == 1 { "node" } else { "nodes" };
        out.extend_from_slice(format!("removed {} {nodes} at revision {}\n", self.removed, self.revision).as_bytes());
    }
}

impl RmArgs {
    pub(crate) async fn run(self, context: &Context) -> Result<RmAnswer, CommandFailure> {
        let condition = self.if_revision.map_or(Condition::Any, |revision| Condition::Revision(Revision(revision)));
        let written = context.client().await?.delete(&self.path).recursive(self.recursive).condition(condition).await;
        let written = written.map_err(|error| write_failure(&error))?;
        Ok(RmAnswer { path: self.path, revision: written.revision.0, removed: written.removed })
    }
}
