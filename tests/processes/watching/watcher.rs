//! A watcher in its own process. It watches in several ways at once, and records all that it is
//! notified of.

use std::{collections::BTreeMap, time::Duration};

use leasehold_client_cache::{Change, Client, Data, NodePath, Revision, Subtree, Watch, WatchItem};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use serde::{Deserialize, Serialize};
use tokio::time::interval;

use super::{Task, connect};
use crate::{path, worker::Notes};

/// The time between two attempts.
const PACE: Duration = Duration::from_millis(20);

/// The watched nodes.
const TOP: &str = "/n";
const NODE: &str = "/n/a";
const DIRECTORY: &str = "/n/dir";

/// A watcher's note on one of its watches.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Note {
    /// The name of the watch.
    pub(super) watch: String,
    pub(super) said: Said,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) enum Said {
    /// It watches a node, or also the subtree below it, from this revision on.
    From { top: NodePath, is_recursive: bool, revision: Revision },
    /// It was notified of this change.
    Change(Change),
    /// It was notified that everything up to this revision was reported.
    Mark(Revision),
    /// It has read a subtree.
    Listed { top: NodePath, revision: Revision, nodes: Vec<(NodePath, Data)> },
    /// The watch failed.
    Failed(String),
}

/// How a watch is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// From the first revision on, by one client.
    Steady,
    /// The same, with at most one change in flight.
    Narrow,
    /// Again and again by another client, which asks other servers first. It resumes where the last
    /// one ended.
    Resumed,
    /// The same, but the last one ended with a progress mark.
    ResumedFromMarks,
    /// A list, and a watch from its revision on, for a while. Then the same again.
    Listed,
}

/// What each watcher watches, and how.
pub(super) const WATCHES: [(&str, &str, bool, Way); 7] = [
    ("steady", TOP, true, Way::Steady),
    ("steady node", NODE, false, Way::Steady),
    ("steady directory", DIRECTORY, true, Way::Steady),
    ("narrow", TOP, true, Way::Narrow),
    ("resumed", TOP, true, Way::Resumed),
    ("resumed from marks", DIRECTORY, true, Way::ResumedFromMarks),
    ("listed", TOP, true, Way::Listed),
];

/// One watch at work.
struct Watcher<'a> {
    task: &'a Task,
    notes: &'a Notes,
    name: &'static str,
    top: NodePath,
    is_recursive: bool,
    random: SmallRng,
    /// How many clients it has had.
    clients: usize,
}

/// Watches in all ways.
pub(super) async fn watch(task: Task) {
    let notes = Notes::open(&task.notes);
    let watchers = WATCHES.into_iter().map(|(name, top, is_recursive, way)| {
        let random = SmallRng::seed_from_u64(task.seed);
        Watcher { task: &task, notes: &notes, name, top: path(top), is_recursive, random, clients: 0 }.watch(way)
    });
    futures::future::join_all(watchers).await;
}

/// Reads everything, and watches it from the first revision on.
pub(super) async fn replay(task: Task) {
    let notes = Notes::open(&task.notes);
    let random = SmallRng::seed_from_u64(task.seed);
    let (top, name) = (NodePath::root(), "replay");
    let mut replay = Watcher { task: &task, notes: &notes, name, top, is_recursive: true, random, clients: 0 };
    let client = replay.client().await;
    match client.list_and_watch(&replay.top).await {
        Ok((list, _)) => replay.say_listed(list),
        Err(error) => replay.say(Said::Failed(error.to_string())),
    }
    drop(client);
    replay.watch(Way::Steady).await;
}

impl Watcher<'_> {
    fn say(&self, said: Said) {
        self.notes.note(&Note { watch: self.name.to_owned(), said });
    }

    /// Makes another client, which asks the servers in another order.
    async fn client(&mut self) -> Client {
        let mut endpoints = self.task.endpoints.clone();
        let count = endpoints.len();
        endpoints.rotate_left(self.clients % count);
        self.clients += 1;
        connect(&endpoints, &format!("{} {} {}", self.task.name, self.name, self.clients)).await
    }

    async fn watch(mut self, way: Way) {
        let mut client = self.client().await;
        let mut from = Revision(1);
        let mut attempts = interval(PACE);
        loop {
            if way == Way::Listed {
                if let Ok((list, watch)) = client.list_and_watch(&self.top).await {
                    self.say_listed(list);
                    let count = self.random.random_range(1..100);
                    self.take(watch, |_, taken| taken >= count).await;
                }
            } else {
                let recursive = self.is_recursive;
                // This asks no server.
                let watch = client.watch(&self.top).from(from).recursive(recursive);
                let watch = if way == Way::Narrow { watch.buffer_bytes(1) } else { watch };
                let watch = watch.await.expect("a watch is begun from a given revision");
                self.say(Said::From { top: self.top.clone(), is_recursive: recursive, revision: from });
                let count = self.random.random_range(1..100);
                from = match way {
                    Way::Steady | Way::Narrow | Way::Listed => self.take(watch, |_, _| false).await,
                    Way::Resumed => self.take(watch, |_, taken| taken >= count).await,
                    Way::ResumedFromMarks => self.take(watch, |told, _| matches!(told, WatchItem::Progress(_))).await,
                };
            }
            client = self.client().await;
            attempts.tick().await;
        }
    }

    /// Records the items until `is_enough`. Returns where the next watch resumes.
    async fn take(&self, mut watch: Watch, is_enough: impl Fn(&WatchItem, u32) -> bool) -> Revision {
        let mut taken = 0;
        loop {
            let told = match watch.next().await {
                Ok(told) => told,
                Err(error) => {
                    self.say(Said::Failed(error.to_string()));
                    return watch.resume_from();
                }
            };
            taken += 1;
            let enough = is_enough(&told, taken);
            self.say(match told {
                WatchItem::Change(change) => Said::Change(change),
                WatchItem::Progress(revision) => Said::Mark(revision),
            });
            if enough {
                return watch.resume_from();
            }
        }
    }

    /// Records a list, and where the watch after it begins.
    fn say_listed(&self, list: Subtree) {
        let (top, revision, nodes) = (self.top.clone(), list.revision, BTreeMap::into_iter(list.nodes).collect());
        self.say(Said::Listed { top: top.clone(), revision, nodes });
        self.say(Said::From { top, is_recursive: true, revision: Revision(revision.0 + 1) });
    }
}
