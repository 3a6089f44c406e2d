//! Kills all servers at once, under load.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use leasehold_client_cache::{Client, Condition, NodePath, Refusal, Revision, WriteError, WriteRefusal};

use crate::{
    alone,
    common::{Cluster, soon},
    path,
};

const WRITERS: u64 = 6;

/// The number of nodes of each writer. No other writer writes them.
const NODES: u64 = 5;

/// How often all servers are killed.
const CRASHES: u64 = 3;

/// The writes that must be acknowledged between two crashes.
const PROGRESS: u64 = 150;

/// Longer than any outage here. A write in flight during a crash is sent again, with one outcome.
const PATIENT: Duration = Duration::from_secs(120);

/// What a writer knows of one of its nodes.
#[derive(Debug, Clone)]
struct Known {
    path: NodePath,
    /// The value and revision of the last acknowledged write.
    last: Option<(String, Revision)>,
    /// The number of acknowledged writes.
    acknowledged: u64,
    /// The values of later writes of unknown outcome.
    unknown: Vec<String>,
    /// The number of writes of unknown outcome so far.
    unknowns: u64,
}

/// The condition of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// None.
    Put,
    /// Only over the value that the writer knows.
    Compare,
    /// Only over a revision that is replaced: must be refused.
    CompareOld,
    /// Only if the node does not exist: must be refused if it does.
    Create,
}

impl Known {
    fn new(path: NodePath) -> Self {
        Self { path, last: None, acknowledged: 0, unknown: Vec::new(), unknowns: 0 }
    }

    fn condition(&self, attempt: Attempt) -> Condition {
        match (attempt, &self.last) {
            (Attempt::Put, _) => Condition::Any,
            (Attempt::Create, _) | (_, None) => Condition::Absent,
            (Attempt::Compare, Some((_, revision))) => Condition::Revision(*revision),
            (Attempt::CompareOld, Some((_, revision))) => Condition::Revision(Revision(revision.0 - 1)),
        }
    }

    /// True if the write must be refused, false if it must not be. `None` if that is unknown.
    fn must_be_refused(&self, attempt: Attempt) -> Option<bool> {
        match attempt {
            Attempt::Put => Some(false),
            Attempt::CompareOld if self.last.is_some() => Some(true),
            Attempt::Create if self.last.is_some() => Some(true),
            _ if self.unknown.is_empty() => Some(false),
            _ => None,
        }
    }

    /// Writes once. The outcome also decides about earlier writes.
    async fn write(&mut self, client: &Client, attempt: Attempt, value: String) {
        let must_be_refused = self.must_be_refused(attempt);
        match client.put(&self.path, value.clone()).condition(self.condition(attempt)).timeout(PATIENT).await {
            Ok(written) => {
                assert_ne!(must_be_refused, Some(true), "{attempt:?} took effect on {self:?}: {written:?}");
                let stat = written.stat.expect("a put has one");
                let last = self.last.as_ref().map_or(0, |(_, revision)| revision.0);
                assert!(written.revision.0 > last && stat.modify_revision == written.revision, "{self:?}: {written:?}");
                self.acknowledged += 1;
                let versions = self.acknowledged..=self.acknowledged + self.unknowns;
                assert!(versions.contains(&stat.version), "{attempt:?} on {self:?}: {written:?}");
                self.unknown.clear();
                self.last = Some((value, written.revision));
            }
            Err(WriteError::Refused(Refusal::Write(
                refusal @ (WriteRefusal::Exists { .. } | WriteRefusal::RevisionDiffers { .. }),
            ))) => assert_ne!(must_be_refused, Some(false), "{attempt:?} on {self:?}: {refusal}"),
            Err(error) if error.may_still_happen() => {
                self.unknowns += 1;
                self.unknown.push(value);
            }
            Err(error) => panic!("{attempt:?} on {self:?}: {error}"),
        }
    }

    /// Checks what a reader found.
    fn check(&self, value: Option<&str>, version: u64) {
        let last = self.last.as_ref().map(|(value, _)| value.as_str());
        let is_one = value == last || value.is_some_and(|value| self.unknown.iter().any(|unknown| unknown == value));
        assert!(is_one, "{value:?} is there: expected what {self:?} allows");
        let versions = self.acknowledged..=self.acknowledged + self.unknowns;
        assert!(versions.contains(&version), "version {version}: expected what {self:?} allows");
    }
}

/// Writes until it is stopped. Every value is written once.
async fn write_on(client: Client, writer: u64, done: Arc<AtomicU64>, stops: Arc<AtomicBool>) -> Vec<Known> {
    let mut nodes: Vec<Known> = (0..NODES).map(|node| Known::new(path(&format!("/writers/{writer}/{node}")))).collect();
    let attempts = [Attempt::Create, Attempt::Compare, Attempt::Put, Attempt::CompareOld, Attempt::Compare];
    let mut number: u64 = 0;
    while !stops.load(Ordering::Relaxed) {
        number += 1;
        let attempt = attempts[(number % attempts.len() as u64) as usize];
        // Another node each time. In the course of time, each attempt on each node.
        let node = &mut nodes[((number + number / NODES) % NODES) as usize];
        node.write(&client, attempt, format!("{writer}:{number}:{attempt:?}")).await;
        done.fetch_add(1, Ordering::Relaxed);
    }
    nodes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_writes_survive_crash_of_all_and_apply_once() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let (done, stops) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let client = cluster.client(&format!("writer-{writer}")).await;
        writers.push(tokio::spawn(write_on(client, writer, Arc::clone(&done), Arc::clone(&stops))));
    }
    let progress = async || {
        let from = done.load(Ordering::Relaxed);
        soon("writes are acknowledged", || async {
            let now = done.load(Ordering::Relaxed);
            if now >= from + PROGRESS { Ok(()) } else { Err(format!("{now}, from {from}")) }
        })
        .await;
    };
    for _ in 0..CRASHES {
        progress().await;
        cluster.ids().into_iter().for_each(|id| cluster.kill(id));
        cluster.ids().into_iter().for_each(|id| cluster.spawn(id));
    }
    progress().await;
    stops.store(true, Ordering::Relaxed);
    let mut nodes = Vec::new();
    for writer in writers {
        nodes.extend(writer.await.expect("every outcome was as it must be"));
    }
    // Once more, with nothing in flight, so that the reads come from the disks.
    cluster.ids().into_iter().for_each(|id| cluster.kill(id));
    cluster.ids().into_iter().for_each(|id| cluster.spawn(id));
    let reader = cluster.client("reader").await;
    for node in &nodes {
        let entry = reader.get(&node.path).await.expect("served");
        let value = entry.as_ref().map(|entry| String::from_utf8_lossy(&entry.value).into_owned());
        node.check(value.as_deref(), entry.map_or(0, |entry| entry.stat.version));
    }
    let acknowledged: u64 = nodes.iter().map(|node| node.acknowledged).sum();
    let unknowns: u64 = nodes.iter().map(|node| node.unknowns).sum();
    println!("{acknowledged} writes took effect in {CRASHES} crashes, {unknowns} outcomes are not known");
    assert!(nodes.iter().all(|node| node.acknowledged > 0));
    cluster.caught_up(&cluster.ids());
    cluster.assert_all_run();
}
