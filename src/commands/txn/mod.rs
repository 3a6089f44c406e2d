//! `txn`: compares several nodes, then writes several nodes, atomically. Comparisons and operations
//! are written as in etcdctl.
//!
//! Standard input has three paragraphs: comparisons, operations if all hold, operations if one does
//! not. An empty line or the end of input ends a paragraph. Comment lines belong to no paragraph.
//! In the shell and in scripts, options can take the place of standard input.

mod parse;

use clap::Args;
use leasehold_client_cache::{FailedCompare, Operation, OperationResult, Stat, Transaction, TransactionOutcome};
use serde::Serialize;

use self::parse::Piece;
use super::{node::standard_input, waits};
use crate::{
    context::Context,
    exit::{CliStatus, CommandFailure},
    output::{Text, visible},
};

/// `txn`
#[derive(Debug, Args)]
#[command(after_help = INPUT)]
pub(crate) struct TxnArgs {
    /// Comparison that must hold; can be repeated. With any of these options standard input is not
    /// read
    #[arg(long, value_name = "COMPARISON")]
    when: Vec<String>,
    /// Operation if all comparisons hold; can be repeated
    #[arg(long, value_name = "OPERATION")]
    then: Vec<String>,
    /// Operation if a comparison does not hold; can be repeated
    #[arg(long, value_name = "OPERATION")]
    otherwise: Vec<String>,
}

const INPUT: &str = "\
Standard input: comparisons, an empty line, operations if all hold, an empty line, operations if one does not hold.
A paragraph can be empty. As with etcdctl:

    value(\"/config\") = \"old\"
    mod(\"/owner\") < \"17\"

    put /config new
    del /owner

    put /failures \"once more\" --lease 1694d81417acd475

Comparisons: value, version, create, mod, with =, !=, < or >; exists (= \"true\" or \"false\"); locked (= a token). A node that does
not exist has version and revisions 0, and no comparison with its value holds. Operations: put PATH VALUE [--lease ID],
del [-r] PATH. A transaction cannot read values: unlike etcd's, it has no get.

All operations are applied as one change, or none is.
Exit status: 0 if all comparisons held, 1 if one did not.";

/// The result of a transaction.
#[derive(Debug, Serialize)]
pub(crate) struct TxnAnswer {
    succeeded: bool,
    revision: u64,
    /// The first comparison that did not hold.
    failed: Option<FailedAnswer>,
    results: Vec<ResultAnswer>,
}

/// A comparison that did not hold, and the node's metadata.
#[derive(Debug, Serialize)]
struct FailedAnswer {
    compare: String,
    found: Option<TxnStat>,
}

/// The result of an operation.
#[derive(Debug, Serialize)]
#[serde(tag = "operation", rename_all = "lowercase")]
enum ResultAnswer {
    Put {
        path: String,
        #[serde(flatten)]
        stat: TxnStat,
    },
    Del {
        path: String,
        removed: u64,
    },
}

/// A node's metadata.
#[derive(Debug, Serialize)]
struct TxnStat {
    revision: u64,
    create_revision: u64,
    version: u64,
}

impl From<Stat> for TxnStat {
    fn from(stat: Stat) -> Self {
        Self { revision: stat.modify_revision.0, create_revision: stat.create_revision.0, version: stat.version }
    }
}

impl TxnArgs {
    pub(crate) fn reads_standard_input(&self) -> bool {
        self.when.is_empty() && self.then.is_empty() && self.otherwise.is_empty()
    }

    pub(crate) async fn run(self, context: &Context) -> Result<TxnAnswer, CommandFailure> {
        let transaction = self.transaction().await?;
        let paths: Vec<_> = transaction.operations().map(Operation::path).collect();
        let outcome = context.client().await?.transaction(transaction.clone());
        let outcome = waits::write(context, &paths, outcome).await?;
        Ok(TxnAnswer::new(&transaction, outcome))
    }

    async fn transaction(self) -> Result<Transaction, CommandFailure> {
        if self.reads_standard_input() {
            let input = String::from_utf8(standard_input().await?);
            let input = input.map_err(|error| CommandFailure::usage(format!("standard input: not UTF-8: {error}")))?;
            return parse::paragraphs(&input).and_then(parse::transaction).map_err(CommandFailure::usage);
        }
        let pieces = |option: &str, texts: Vec<String>| -> Vec<Piece> {
            let place = |at: usize| format!("--{option} {}", at + 1);
            texts.into_iter().enumerate().map(|(at, text)| Piece { place: place(at), text }).collect()
        };
        let all = [pieces("when", self.when), pieces("then", self.then), pieces("otherwise", self.otherwise)];
        parse::transaction(all).map_err(CommandFailure::usage)
    }
}

impl TxnAnswer {
    fn new(transaction: &Transaction, outcome: TransactionOutcome) -> Self {
        let failed = outcome.failed.and_then(|FailedCompare { index, found }| {
            let compare = transaction.compares.get(usize::try_from(index).ok()?)?;
            Some(FailedAnswer { compare: compare.to_string(), found: found.map(TxnStat::from) })
        });
        let operations = transaction.branch(outcome.branch()).iter().map(Operation::path);
        let result = |(path, result): (&leasehold_client_cache::NodePath, OperationResult)| match result {
            OperationResult::Put(stat) => ResultAnswer::Put { path: path.to_string(), stat: stat.into() },
            OperationResult::Deleted(removed) => ResultAnswer::Del { path: path.to_string(), removed },
        };
        Self {
            succeeded: outcome.succeeded(),
            revision: outcome.revision.0,
            failed,
            results: operations.zip(outcome.results).map(result).collect(),
        }
    }
}

impl Text for TxnAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        let head = match &self.failed {
            None => format!("SUCCESS, revision {}\n", self.revision),
            Some(FailedAnswer { compare, found: None }) => {
                format!("FAILURE: {}: node not found\n", visible(compare))
            }
            Some(FailedAnswer { compare, found: Some(found) }) => {
                let TxnStat { revision, create_revision, version } = found;
                let compare = visible(compare);
                format!("FAILURE: {compare}: found version {version}, create {create_revision}, mod {revision}\n")
            }
        };
        out.extend_from_slice(head.as_bytes());
        for result in &self.results {
            let line = match result {
                ResultAnswer::Put { path, stat } => format!("put {}: revision {}\n", visible(path), stat.revision),
                ResultAnswer::Del { path, removed } => format!("del {}: removed {removed}\n", visible(path)),
            };
            out.extend_from_slice(line.as_bytes());
        }
    }

    fn status(&self) -> CliStatus {
        if self.succeeded { CliStatus::Done } else { CliStatus::Refused }
    }
}
