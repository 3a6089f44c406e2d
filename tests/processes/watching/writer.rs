//! A writer in a process of its own: it puts, removes and does several things in one transaction,
//! and writes down what, before and after. Every value that it writes it writes in one operation
//! only. A node that goes with its session says that it lives.

use std::time::Duration;

use leasehold_client_cache::{
    Client, Compare, DeleteOptions, Operation, RegisterOptions, Relation, Revision, Transaction, WriteError,
};
use rand::{Rng, SeedableRng, rngs::SmallRng, seq::index};
use serde::{Deserialize, Serialize};
use tokio::time::{MissedTickBehavior, interval};

use super::{Task, connect};
use crate::{path, worker::Notes};

/// Between two operations.
const PACE: Duration = Duration::from_millis(8);

/// What is written.
const PATHS: [&str; 9] = ["/n/a", "/n/b", "/n/c", "/n/d", "/n/e", "/n/f", "/n/dir/x", "/n/dir/y", "/n/dir/z"];

/// The node that is removed with all that is below it.
const DIRECTORY: &str = "/n/dir";

/// Where nodes are that go with a writer's session.
pub(super) const LIVE: &str = "/n/live";

/// What is done at one time: puts, and removals of nodes with all that is below.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Deed {
    /// All of the same value, which no other deed writes.
    pub(super) value: String,
    pub(super) puts: Vec<String>,
    pub(super) removals: Vec<String>,
}

/// What a writer says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Note {
    /// It is about to do one of these two: which, a comparison says.
    Begun { number: u64, then: Deed, otherwise: Deed },
    /// It is done.
    Done { number: u64, revision: u64, is_then: bool },
    /// It was not done, and never will be.
    Refused { number: u64 },
    /// Nobody knows.
    Unknown { number: u64 },
}

/// How something is asked for.
enum Way {
    Put,
    Delete,
    /// If this node was last changed then, or does not exist.
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
        // Until it is there.
        while self.client.register(&live, self.name.clone(), RegisterOptions::default()).await.is_err() {
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

    /// When a node was last changed, as far as this knows: mostly right.
    async fn seen(&mut self, at: &str) -> u64 {
        let read = self.client.get(&path(at)).await;
        let seen = read.ok().flatten().map_or(0, |entry| entry.stat.modify_revision.0);
        if self.random.random_bool(0.1) { seen + 1 } else { seen }
    }

    async fn carry_out(&self, way: Way, then: Deed, otherwise: Deed) -> Result<(Revision, bool), WriteError> {
        match way {
            Way::Put => Ok((self.client.put(&path(&then.puts[0]), then.value).await?.revision, true)),
            Way::Delete => {
                let options = DeleteOptions { recursive: true, ..DeleteOptions::default() };
                Ok((self.client.delete(&path(&then.removals[0]), options).await?.revision, true))
            }
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
