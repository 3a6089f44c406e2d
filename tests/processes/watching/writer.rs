//! A writer in its own process. It puts and deletes nodes, also several in one transaction, and
//! records this before and after. Only one operation writes each of its values. A node that is
//! attached to its session shows that it lives.

use std::time::Duration;

use leasehold_client_cache::{Client, Compare, Operation, Relation, Revision, Transaction, WriteError};
use rand::{Rng, SeedableRng, rngs::SmallRng, seq::index};
use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval};

use super::{Task, connect};
use crate::{path, worker::Notes};

/// The time between two operations.
const PACE: Duration = Duration::from_millis(8);

/// The nodes that are written.
const PATHS: [&str; 9] = ["/n/a", "/n/b", "/n/c", "/n/d", "/n/e", "/n/f", "/n/dir/x", "/n/dir/y", "/n/dir/z"];

/// The node that is removed with its subtree.
const DIRECTORY: &str = "/n/dir";

/// The nodes that are attached to writers' sessions are below this.
pub(super) const LIVE: &str = "/n/live";

/// What is done at once: puts, and removals of nodes with their subtrees.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Deed {
    /// The value of all puts, which no other deed writes.
    pub(super) value: String,
    pub(super) puts: Vec<String>,
    pub(super) removals: Vec<String>,
}

/// A note of a writer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Note {
    /// It is about to do one of these two. A comparison chooses which.
    Begun { number: u64, then: Deed, otherwise: Deed },
    /// It is done.
    Done { number: u64, revision: u64, is_then: bool },
    /// It was not done, and never will be.
    Refused { number: u64 },
    /// The outcome is unknown.
    Unknown { number: u64 },
}

/// How a deed is sent.
enum Way {
    Put,
    Delete,
    /// Compares the revision of this node's last change, or 0 if the node does not exist.
    Transaction(String, u64),
}

/// A writer at work.
pub(super) struct Writer {
    client: Client,
    name: String,
    random: SmallRng,
    notes: Notes,
    number: u64,
}

impl Writer {
    pub(super) async fn connect(task: Task) -> Self {
        let client = connect(&task.endpoints, &task.name).await;
        let random = SmallRng::seed_from_u64(task.seed);
        Self { client, name: task.name, random, notes: Notes::open(&task.notes), number: 0 }
    }

    pub(super) async fn write(&mut self) {
        let mut paces = interval(PACE);
        paces.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let live = path(&format!("{LIVE}/{}", self.name));
        // Until it is registered.
        while self.client.register(&live, self.name.clone()).await.is_err() {
            paces.tick().await;
        }
        loop {
            paces.tick().await;
            let (way, then, otherwise) = self.draw().await;
            self.number += 1;
            let (number, begun) = (self.number, (then.clone(), otherwise.clone()));
            self.notes.note(&Note::Begun { number, then: begun.0, otherwise: begun.1 });
            self.notes.note(&match self.carry_out(way, then, otherwise).await {
                Ok((revision, is_then)) => Note::Done { number, revision: revision.0, is_then },
                Err(WriteError::Refused(_)) => Note::Refused { number },
                Err(error) if error.may_still_happen() => Note::Unknown { number },
                Err(_) => Note::Refused { number },
            });
        }
    }

    fn paths(&mut self, count: usize) -> Vec<String> {
        index::sample(&mut self.random, PATHS.len(), count).iter().map(|place| PATHS[place].to_owned()).collect()
    }

    fn put(&self, what: &str, puts: Vec<String>) -> Deed {
        Deed { value: format!("{}:{}{what}", self.name, self.number + 1), puts, removals: Vec::new() }
    }

    async fn draw(&mut self) -> (Way, Deed, Deed) {
        let one = |paths: Vec<String>| Deed { removals: paths, ..Deed::default() };
        match self.random.random_range(0..10) {
            0..4 => {
                let paths = self.paths(1);
                (Way::Put, self.put("", paths), Deed::default())
            }
            4 => (Way::Delete, one(self.paths(1)), Deed::default()),
            5 => (Way::Delete, one(vec![DIRECTORY.to_owned()]), Deed::default()),
            drawn => {
                let count = self.random.random_range(2..=5);
                let mut paths = self.paths(count);
                let last = paths.pop().expect("there are two at least");
                let mut then = self.put("", paths);
                if drawn < 8 {
                    then.puts.push(last.clone());
                } else {
                    then.removals.push(last.clone());
                }
                let otherwise = self.put(" otherwise", vec![last.clone()]);
                (Way::Transaction(last.clone(), self.seen(&last).await), then, otherwise)
            }
        }
    }

    /// The revision of a node's last change. One of ten is wrong on purpose.
    async fn seen(&mut self, at: &str) -> u64 {
        let read = self.client.get(at).await;
        let seen = read.ok().flatten().map_or(0, |entry| entry.stat.modify_revision.0);
        if self.random.random_bool(0.1) { seen + 1 } else { seen }
    }

    async fn carry_out(&self, way: Way, then: Deed, otherwise: Deed) -> Result<(Revision, bool), WriteError> {
        match way {
            Way::Put => Ok((self.client.put(&then.puts[0], then.value).await?.revision, true)),
            Way::Delete => Ok((self.client.delete(&then.removals[0]).recursive(true).await?.revision, true)),
            Way::Transaction(compared, seen) => {
                let compared = path(&compared);
                let compare = match seen {
                    0 => Compare::absent(compared),
                    _ => Compare::modify_revision(compared, Relation::Equal, Revision(seen)),
                };
                let mut transaction = Transaction::new().when(compare);
                for operation in operations(&then) {
                    transaction = transaction.then(operation);
                }
                for operation in operations(&otherwise) {
                    transaction = transaction.otherwise(operation);
                }
                let outcome = self.client.transaction(transaction).await?;
                Ok((outcome.revision, outcome.succeeded()))
            }
        }
    }
}

fn operations(deed: &Deed) -> impl Iterator<Item = Operation> {
    let puts = deed.puts.iter().map(|at| Operation::put(path(at), deed.value.clone()));
    puts.chain(deed.removals.iter().map(|at| Operation::delete(path(at))))
}
