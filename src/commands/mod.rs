//! The commands that work on a cluster. Each has arguments, an execution in a [`Context`], and an
//! answer.

pub(crate) mod advise;
pub(crate) mod bench;
pub(crate) mod cluster;
pub(crate) mod demo;
pub(crate) mod edit;
pub(crate) mod elect;
pub(crate) mod health;
pub(crate) mod inspect;
pub(crate) mod lease;
pub(crate) mod lock;
pub(crate) mod node;
pub(crate) mod object_term;
mod quota;
pub(crate) mod register;
pub(crate) mod rm;
pub(crate) mod services;
pub(crate) mod tree;
pub(crate) mod txn;
pub(crate) mod volume;
mod volume_term;
pub(crate) mod waits;
pub(crate) mod watch;
pub(crate) mod why;

use clap::Subcommand;
use leasehold_client_cache::NodePath;

use crate::{context::Context, exit::CommandFailure, output::CommandAnswer, transfer};

/// A command of the command line and of the shell.
#[derive(Debug, Subcommand)]
pub(crate) enum CommandRequest {
    /// Write a node's value; missing nodes above it are created
    Put(node::PutArgs),
    /// Read the values of nodes through the cache
    Get(node::GetArgs),
    /// Show a node's metadata
    Stat(node::StatArgs),
    /// List the children of a node
    Ls(node::LsArgs),
    /// Show a node and all nodes below it
    Tree(tree::TreeArgs),
    /// Remove nodes: all of them, or none
    Rm(rm::RmArgs),
    /// Compare several nodes, then write several nodes, atomically; reads standard input as etcdctl
    /// does
    Txn(txn::TxnArgs),
    /// Write the files below a directory to the tree
    ///
    /// It writes names and values only. An import restores no volumes, no leases with their
    /// attached nodes, and no revisions. Nodes that are not in the directory stay.
    Import(transfer::import::ImportArgs),
    /// Write a node and all nodes below it to a directory
    ///
    /// It writes names and values only: no volumes, no leases, no revisions. Nodes that are
    /// attached to leases, such as registered services, are skipped.
    Export(transfer::export::ExportArgs),
    /// Volumes: subtrees with lease settings of their own
    #[command(subcommand)]
    Volume(volume::VolumeCommand),
    /// Show what the object term of a volume costs, and which one to use
    ///
    /// From what the leader has counted in the volume, a formula predicts the messages for several
    /// object terms. It needs a minute and 100 reads since the leader became leader and since the
    /// volume's settings last changed.
    Advise(advise::AdviseArgs),
    /// Key leases: nodes that are put with a lease are removed when it ends
    #[command(subcommand)]
    Lease(lease::LeaseCommand),
    /// Register a service while this command runs; its node is removed when the command is stopped,
    /// or when no server has heard from it for a term
    Register(register::RegisterArgs),
    /// Show the services registered at and below a node: live, in jeopardy, gone, and when last
    /// seen
    Services(services::ServicesArgs),
    /// Lock a node, exclusively or shared with other readers, while a command runs or until stopped
    Lock(lock::LockArgs),
    /// Edit a node's value with an editor; each save is written under a lock
    Edit(edit::EditArgs),
    /// Campaign for an election and lead while a command runs or until stopped; or print who leads
    Elect(elect::ElectArgs),
    /// Show which sessions have leases or locks on a node, and for how long
    Holders(inspect::HoldersArgs),
    /// Show for whom the reads, writes and lock requests of a node wait now
    Why(why::WhyArgs),
    /// The replicas of the cluster
    #[command(subcommand)]
    Cluster(cluster::ClusterCommand),
    /// Say of each endpoint whether it answers and knows a leader; the exit status is 0 if all do
    ///
    /// For service managers and load balancers: give the endpoint of one server. A server has a
    /// second to answer.
    Health,
    /// Print each change of a node and of the nodes below it, a line each, until stopped
    Watch(watch::WatchArgs),
}

/// Executes a request. A failure names its subject.
pub(crate) async fn run(request: CommandRequest, context: &Context) -> Result<Box<dyn CommandAnswer>, CommandFailure> {
    let subject = request.subject();
    let answer: Result<Box<dyn CommandAnswer>, CommandFailure> = match request {
        CommandRequest::Put(put) => boxed(put.run(context).await),
        CommandRequest::Get(get) => get.run(context).await,
        CommandRequest::Stat(stat) => boxed(stat.run(context).await),
        CommandRequest::Ls(ls) => boxed(ls.run(context).await),
        CommandRequest::Tree(tree) => boxed(tree.run(context).await),
        CommandRequest::Rm(rm) => rm.run(context).await,
        CommandRequest::Txn(txn) => boxed(txn.run(context).await),
        CommandRequest::Import(import) => boxed(import.run(context).await),
        CommandRequest::Export(export) => boxed(export.run(context).await),
        CommandRequest::Volume(volume) => volume.run(context).await,
        CommandRequest::Advise(advise) => boxed(advise.run(context).await),
        CommandRequest::Lease(lease) => lease.run(context).await,
        CommandRequest::Register(register) => boxed(register.run(context).await),
        CommandRequest::Lock(lock) if lock.wait_args.has_command() => Err(not_in_shell("lock with a command")),
        CommandRequest::Elect(elect) if elect.wait_args.has_command() => Err(not_in_shell("elect with a command")),
        CommandRequest::Edit(_) => Err(not_in_shell("edit")),
        CommandRequest::Lock(lock) => boxed(lock.run(context).await),
        CommandRequest::Elect(elect) if elect.observes() => Err(not_in_shell("elect --observe")),
        CommandRequest::Elect(elect) => boxed(elect.run(context).await),
        CommandRequest::Services(services) => boxed(services.run(context).await),
        CommandRequest::Holders(holders) => boxed(holders.run(context).await),
        CommandRequest::Why(why) => boxed(why.run(context).await),
        CommandRequest::Cluster(cluster::ClusterCommand::Status) => boxed(cluster::status(context).await),
        CommandRequest::Cluster(cluster::ClusterCommand::Replace(replace)) => boxed(replace.run(context).await),
        CommandRequest::Health => boxed(Ok(health::run(context).await)),
        CommandRequest::Watch(_) => Err(not_in_shell("watch")),
    };
    answer.map_err(|failure| failure.with_subject(&subject))
}

/// A command that prints several answers, or runs another command.
fn not_in_shell(command: &str) -> CommandFailure {
    CommandFailure::usage("not available in the shell; run it on the command line").with_subject(command)
}

fn boxed<T: CommandAnswer + 'static>(
    answer: Result<T, CommandFailure>,
) -> Result<Box<dyn CommandAnswer>, CommandFailure> {
    answer.map(|answer| Box::new(answer) as Box<dyn CommandAnswer>)
}

impl CommandRequest {
    /// The commands that the shell cannot run: they print several answers, or run an editor.
    pub(crate) const NOT_IN_SHELL: [&str; 2] = ["watch", "edit"];

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
            Self::Advise(_) => "advise",
            Self::Lease(_) => "lease",
            Self::Register(_) => "register",
            Self::Lock(_) => "lock",
            Self::Edit(_) => "edit",
            Self::Elect(_) => "elect",
            Self::Services(_) => "services",
            Self::Holders(_) => "holders",
            Self::Why(_) => "why",
            Self::Cluster(_) => "cluster",
            Self::Health => "health",
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

    /// The subject of this command's errors: a path, a lease, a directory or a replica.
    pub(crate) fn subject(&self) -> String {
        match self {
            Self::Get(node::GetArgs { paths, .. }) | Self::Rm(rm::RmArgs { paths, .. }) => {
                paths.first().map_or_else(String::new, NodePath::to_string)
            }
            Self::Put(node::PutArgs { path, .. })
            | Self::Stat(node::StatArgs { path })
            | Self::Ls(node::LsArgs { path })
            | Self::Tree(tree::TreeArgs { path })
            | Self::Advise(advise::AdviseArgs { path })
            | Self::Register(register::RegisterArgs { path, .. })
            | Self::Lock(lock::LockArgs { path, .. })
            | Self::Edit(edit::EditArgs { path, .. })
            | Self::Elect(elect::ElectArgs { path, .. })
            | Self::Services(services::ServicesArgs { path })
            | Self::Holders(inspect::HoldersArgs { path })
            | Self::Why(why::WhyArgs { path })
            | Self::Export(transfer::export::ExportArgs { path, .. })
            | Self::Watch(watch::WatchArgs { path, .. }) => path.to_string(),
            Self::Import(import) => import.directory.display().to_string(),
            Self::Volume(volume) => volume.path().to_string(),
            Self::Lease(lease) => lease.subject(),
            Self::Cluster(cluster::ClusterCommand::Status) => "cluster".to_owned(),
            Self::Cluster(cluster::ClusterCommand::Replace(replace)) => replace.subject(),
            Self::Txn(_) | Self::Health => self.name().to_owned(),
        }
    }
}
