//! `rm PATH...`: removes nodes as one change.

use clap::Args;
use leasehold_client_cache::{
    Condition, NodePath, Operation, OperationResult, Refusal, Revision, Transaction, WriteError, WriteRefusal,
};
use serde::Serialize;

use super::{boxed, waits};
use crate::{
    arguments,
    context::Context,
    exit::CommandFailure,
    output::{CommandAnswer, Text},
};

/// `rm [-r] PATH...`
#[derive(Debug, Args)]
pub(crate) struct RmArgs {
    /// Nodes to remove, as one change; one may not lie below another
    #[arg(value_parser = arguments::path, required = true, value_name = "PATH")]
    pub(crate) paths: Vec<NodePath>,
    /// Remove the nodes below it too
    #[arg(short, long)]
    recursive: bool,
    /// Only if the value was last changed at this revision
    #[arg(long, value_name = "N")]
    if_revision: Option<u64>,
}

/// The removal of several nodes that took effect.
#[derive(Debug, Serialize)]
struct RmListAnswer {
    revision: u64,
    /// The number of removed nodes for each path.
    nodes: Vec<RmRow>,
    #[serde(skip)]
    removed: u64,
}

/// One path of a removal.
#[derive(Debug, Serialize)]
struct RmRow {
    path: NodePath,
    removed: u64,
}

impl Text for RmListAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(removed_text(self.removed, self.revision).as_bytes());
    }
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
        out.extend_from_slice(removed_text(self.removed, self.revision).as_bytes());
    }
}

fn removed_text(removed: u64, revision: u64) -> String {
    let nodes = if removed == 1 { "node" } else { "nodes" };
    format!("removed {removed} {nodes} at revision {revision}\n")
}

impl RmArgs {
    pub(crate) async fn run(self, context: &Context) -> Result<Box<dyn CommandAnswer>, CommandFailure> {
        match &self.paths[..] {
            [path] => boxed(self.remove_one(context, path).await),
            _ if self.if_revision.is_some() => Err(CommandFailure::usage("--if-revision takes one path")),
            paths => boxed(self.remove_all(context, paths).await),
        }
    }

    async fn remove_one(&self, context: &Context, path: &NodePath) -> Result<RmAnswer, CommandFailure> {
        let condition = self.if_revision.map_or(Condition::Any, |revision| Condition::Revision(Revision(revision)));
        let delete = context.client().await?.delete(path).recursive(self.recursive).condition(condition);
        let written = waits::write(context, &[path], delete).await?;
        Ok(RmAnswer { path: path.clone(), revision: written.revision.0, removed: written.removed })
    }

    /// Removes all nodes by one transaction.
    async fn remove_all(&self, context: &Context, paths: &[NodePath]) -> Result<RmListAnswer, CommandFailure> {
        let delete = |path: &NodePath| Operation::Delete { path: path.clone(), recursive: self.recursive };
        let transaction = paths.iter().map(delete).fold(Transaction::new(), Transaction::then);
        let waited: Vec<&NodePath> = paths.iter().collect();
        let client = context.client().await?;
        let removal = async {
            // The refusal of one operation is that of its path.
            client.transaction(transaction).await.map_err(|error| match error {
                WriteError::Refused(Refusal::Write(WriteRefusal::Operation { refusal, .. })) => {
                    WriteError::Refused((*refusal).into())
                }
                error => error,
            })
        };
        let outcome = waits::write(context, &waited, removal).await?;
        let removed = outcome.results.iter().map(|result| match result {
            OperationResult::Deleted(removed) => *removed,
            OperationResult::Put(_) => 0,
        });
        let nodes = paths.iter().cloned().zip(removed).map(|(path, removed)| RmRow { path, removed });
        let nodes: Vec<RmRow> = nodes.collect();
        let removed = nodes.iter().map(|row| row.removed).sum();
        Ok(RmListAnswer { revision: outcome.revision.0, nodes, removed })
    }
}
