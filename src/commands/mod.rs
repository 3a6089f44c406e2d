//! The commands that work on a cluster: each a set of arguments, what it does in a [`Context`], and its answer.

pub(crate) mod cluster;
pub(crate) mod edit;
pub(crate) mod elect;
pub(crate) mod inspect;
pub(crate) mod kept;
pub(crate) mod lease;
pub(crate) mod lock;
pub(crate) mod node;
pub(crate) mod register;
pub(crate) mod services;
pub(crate) mod tree;
pub(crate) mod txn;
pub(crate) mod volume;
pub(crate) mod watch;

use clap::Subcommand;
use leasehold_client_cache::{InspectError, ReadError, WriteError};

use crate::{context::Context, exit::Failure, output::Answer, transfer};

/// A command that can be given on the command line, and on a line of the shell.
#[derive(Debug, Subcommand)]
pub(crate) enum Request {
    /// Write a node's value; nodes above it are made
    Put(node::Put),
    /// Read a node's value through the cache
    Get(node::Get),
    /// Show what is known of a node
    Stat(node::Stat),
    /// List the children of a node
    Ls(node::Ls),
    /// Show a node and all that lies below it
    Tree(tree::Tree),
    /// Remove a node
    Rm(node::Rm),
    /// Compare several nodes, then write several nodes, all at one moment; reads what from standard input, as etcdctl does
    Txn(txn::Txn),
    /// Put the files below a directory into the tree
    Import(transfer::import::Import),
    /// Write a node and all that lies below it into a directory
    Export(transfer::export::Export),
    /// Volumes: subtrees that share leases, and what these promise
    #[command(subcommand)]
    Volume(volume::Volume),
    /// Key leases: nodes that are put with one go when it ends
    #[command(subcommand)]
    Lease(lease::Lease),
    /// Keep a service registered while this runs: its node goes when this is stopped, or is not heard of for a term
    Register(register::Register),
    /// Show who is registered at and below a node: live, in jeopardy, gone, and when last seen
    Services(services::Services),
    /// Hold a node, alone or shared with others who read, while a command runs or until this is stopped
    Lock(lock::Lock),
    /// Edit a node's value with an editor; what it saves is written under a write lease
    Edit(edit::Edit),
    /// Lead, as one of several, while a command runs or until this is stopped; or say who leads
    Elect(elect::Elect),
    /// Show which sessions hold leases on a node, and for how long
    Holders(inspect::Holders),
    /// Show what reads and writes of a node wait for right now
    Why(inspect::Why),
    /// The servers
    #[command(subcommand)]
    Cluster(cluster::Cluster),
    /// Say each change of a node and of what lies below it, a line each, until this is stopped
    Watch(watch::Watch),
}

/// Carries a request out. A failure says what was asked.
pub(crate) async fn run(request: Request, context: &Context) -> Result<Box<dyn Answer>, Failure> {
    let asked = request.asked();
    let answer: Result<Box<dyn Answer>, Failure> = match request {
        Request::Put(put) => boxed(put.run(context).await),
        Request::Get(get) => boxed(get.run(context).await),
        Request::Stat(stat) => boxed(stat.run(context).await),
        Request::Ls(ls) => boxed(ls.run(context).await),
        Request::Tree(tree) => boxed(tree.run(context).await),
        Request::Rm(rm) => boxed(rm.run(context).await),
        Request::Txn(txn) => boxed(txn.run(context).await),
        Request::Import(import) => boxed(import.run(context).await),
        Request::Export(export) => boxed(export.run(context).await),
        Request::Volume(volume) => volume.run(context).await,
        Request::Lease(lease) => lease.run(context).await,
        Request::Register(register) => boxed(register.run(context).await),
        Request::Lock(lock) if lock.turn.has_command() => Err(runs_a_command()),
        Request::Elect(elect) if elect.turn.has_command() => Err(runs_a_command()),
        Request::Edit(_) => Err(runs_an_editor()),
        Request::Lock(lock) => boxed(lock.run(context).await),
        Request::Elect(elect) if elect.observes() => Err(answers_more_than_once()),
        Request::Elect(elect) => boxed(elect.run(context).await),
        Request::Services(services) => boxed(services.run(context).await),
        Request::Holders(holders) => boxed(holders.run(context).await),
        Request::Why(why) => boxed(why.run(context).await),
        Request::Cluster(cluster::Cluster::Status) => boxed(cluster::status(context).await),
        Request::Cluster(cluster::Cluster::Replace(replace)) => boxed(replace.run(context).await),
        Request::Watch(_) => Err(answers_more_than_once()),
    };
    answer.map_err(|failure| failure.of(&asked))
}

/// What goes on saying things has a place on the command line only.
fn answers_more_than_once() -> Failure {
    Failure::usage("the shell answers each line once: expected it on the command line")
}

/// So has what runs a command.
fn runs_a_command() -> Failure {
    Failure::usage("a command can be run on the command line only: expected none")
}

/// And an editor.
fn runs_an_editor() -> Failure {
    Failure::usage("an editor can be run on the command line only: expected put, which takes a value")
}

fn boxed<T: Answer + 'static>(answer: Result<T, Failure>) -> Result<Box<dyn Answer>, Failure> {
    answer.map(|answer| Box::new(answer) as Box<dyn Answer>)
}

impl Request {
    /// The command's name.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Put(_) => "put",
            Self::Get(_) => "get",
            Self::Stat(_) => "stat",
            Self::Ls(_) => "ls",
            Self::Tree(_) => "tree",
            Self::Rm(_) => "rm",
            Self::Txn(_) => "txn",
            Self::Import(_) => "import",
            Self::Export(_) => "export",
            Self::Volume(_) => "volume",
            Self::Lease(_) => "lease",
            Self::Register(_) => "register",
            Self::Lock(_) => "lock",
            Self::Edit(_) => "edit",
            Self::Elect(_) => "elect",
            Self::Services(_) => "services",
            Self::Holders(_) => "holders",
            Self::Why(_) => "why",
            Self::Cluster(_) => "cluster",
            Self::Watch(_) => "watch",
        }
    }

    /// Whether it would read standard input.
    pub(crate) fn reads_standard_input(&self) -> bool {
        match self {
            Self::Put(put) => put.reads_standard_input(),
            Self::Txn(txn) => txn.reads_standard_input(),
            _ => false,
        }
    }

    /// What is asked, as errors begin.
    fn asked(&self) -> String {
        let name = self.name();
        match self {
            Self::Put(node::Put { path, .. })
            | Self::Get(node::Get { path, .. })
            | Self::Stat(node::Stat { path })
            | Self::Ls(node::Ls { path })
            | Self::Tree(tree::Tree { path })
            | Self::Rm(node::Rm { path, .. })
            | Self::Register(register::Register { path, .. })
            | Self::Lock(lock::Lock { path, .. })
            | Self::Edit(edit::Edit { path, .. })
            | Self::Elect(elect::Elect { path, .. })
            | Self::Services(services::Services { path })
            | Self::Holders(inspect::Holders { path })
            | Self::Why(inspect::Why { path })
            | Self::Watch(watch::Watch { path, .. }) => format!("{name} {path}"),
            Self::Import(import) => format!("{name} {} {}", import.directory.display(), import.path),
            Self::Export(export) => format!("{name} {} {}", export.path, export.directory.display()),
            Self::Volume(volume) => format!("{name} {} {}", volume.name(), volume.path()),
            Self::Lease(lease) => format!("{name} {}", lease.asked()),
            Self::Cluster(cluster::Cluster::Status) => format!("{name} status"),
            Self::Cluster(cluster::Cluster::Replace(replace)) => format!("{name} {}", replace.asked()),
            Self::Txn(_) => name.to_owned(),
        }
    }
}

/// A read that was not answered changed nothing: the servers are not there, whichever way that shows.
pub(crate) fn read_failure(error: &ReadError) -> Failure {
    match error {
        ReadError::Refused(refusal) => Failure::from_refusal(refusal),
        ReadError::Unavailable { .. } | ReadError::TimedOut { .. } => Failure::unavailable(error),
        ReadError::Closed => Failure::refused("session_gone", error),
    }
}

/// A write that was not acknowledged may still happen, or not.
pub(crate) fn write_failure(error: &WriteError) -> Failure {
    match error {
        WriteError::Refused(refusal) => Failure::from_refusal(refusal),
        WriteError::Limit(_) => Failure::refused("limit", error),
        WriteError::Unavailable { .. } | WriteError::NotSent { .. } => Failure::unavailable(error),
        WriteError::TimedOut { .. } | WriteError::OutcomeUnknown => Failure::unknown(error),
        WriteError::SessionEnded => Failure::refused("session_gone", error),
    }
}

/// What could not be looked at.
pub(crate) fn inspect_failure(error: &InspectError) -> Failure {
    match error {
        InspectError::Refused(refusal) => Failure::from_refusal(refusal),
        InspectError::Unavailable { .. } | InspectError::TimedOut { .. } => Failure::unavailable(error),
        InspectError::OtherAnswer => Failure::refused("other_answer", error),
        InspectError::Closed => Failure::refused("session_gone", error),
    }
}
