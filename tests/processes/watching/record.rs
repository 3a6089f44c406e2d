//! The processes that write and watch, and all their notes.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_client_cache::{Change, ChangeReason, EventKind, NodePath};

use super::{
    Duty, ROLE, Task, WRITES,
    judge::{Happened, Stream},
    watcher::{self, Said, WATCHES},
    writer::{self, LIVE},
};
use crate::{
    common::{Cluster, Place, eventually},
    worker::{Worker, notes},
};

/// Processes by their hosts. The notes of these and of earlier processes, by their names.
#[derive(Debug, Default)]
pub(super) struct Record {
    writers: BTreeMap<String, Worker<writer::Note>>,
    watchers: BTreeMap<String, Worker<watcher::Note>>,
    written: BTreeMap<String, Vec<writer::Note>>,
    told: BTreeMap<String, Vec<watcher::Note>>,
    /// The revision through which each watch of each watcher was notified.
    through: BTreeMap<(String, String), u64>,
    /// How many writes of each writer are known to be done.
    done: BTreeMap<String, u64>,
    /// The revision of the last write that is known to be done.
    acknowledged: u64,
    killed: BTreeSet<String>,
    started: u64,
}

impl Record {
    fn start<N: for<'a> serde::Deserialize<'a>>(
        &mut self,
        place: &Place,
        cluster: &Cluster,
        host: &str,
        duty: Duty,
    ) -> Worker<N> {
        self.started += 1;
        let name = format!("{host}-{}", self.started);
        let notes = notes(&cluster.directory(""), &name);
        let task = Task { duty, endpoints: cluster.endpoints(), name: name.clone(), seed: self.started, notes };
        Worker::start(place, ROLE, &name, &task, &task.notes)
    }

    pub(super) fn start_writer(&mut self, place: &Place, cluster: &Cluster, host: &str) {
        let writer = self.start(place, cluster, host, Duty::Write);
        self.writers.insert(host.to_owned(), writer);
    }

    pub(super) fn start_watcher(&mut self, place: &Place, cluster: &Cluster, host: &str) {
        let watcher = self.start(place, cluster, host, Duty::Watch);
        self.watchers.insert(host.to_owned(), watcher);
    }

    pub(super) fn kill_writer(&mut self, host: &str) {
        self.writers.get_mut(host).expect("it is there").process.kill();
        self.gather();
        self.killed.insert(self.writers.remove(host).expect("it is there").name);
    }

    pub(super) fn pause_watcher(&self, host: &str, pauses: bool) {
        self.watchers[host].process.pause(pauses);
    }

    /// The revision of the last write that is known to be done.
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Reads the new notes.
    fn gather(&mut self) {
        for writer in self.writers.values_mut() {
            let news = writer.news();
            for note in &news {
                if let writer::Note::Done { revision, .. } = note {
                    *self.done.entry(writer.name.clone()).or_default() += 1;
                    self.acknowledged = self.acknowledged.max(*revision);
                }
            }
            self.written.entry(writer.name.clone()).or_default().extend(news);
        }
        for (host, watcher) in &mut self.watchers {
            let news = watcher.news();
            for note in &news {
                let through = match &note.said {
                    Said::Change(change) => change.revision.0,
                    Said::Mark(revision) | Said::Listed { revision, .. } => revision.0,
                    Said::From { .. } | Said::Failed(_) => continue,
                };
                self.through.insert((host.clone(), note.watch.clone()), through);
            }
            self.told.entry(watcher.name.clone()).or_default().extend(news);
        }
    }

    /// Waits until every writer has written for a while, and these watchers were notified of that.
    pub(super) fn all_goes_on(&mut self, watchers: &[&str]) {
        self.gather();
        let before = self.done.clone();
        eventually("all writers write", || {
            self.gather();
            let count = |done: &BTreeMap<String, u64>, name| done.get(name).copied().unwrap_or_default();
            let wants = self.writers.values().map(|writer| &writer.name);
            let late: Vec<_> =
                wants.filter(|name| count(&self.done, *name) < count(&before, *name) + WRITES).cloned().collect();
            if late.is_empty() { Ok(()) } else { Err(format!("{late:?} do not")) }
        });
        self.told_through(watchers, self.acknowledged);
    }

    /// Waits until all watches of these watchers were notified through a revision.
    fn told_through(&mut self, watchers: &[&str], revision: u64) {
        eventually(&format!("{watchers:?} have been told through {revision}"), || {
            self.gather();
            let all = watchers.iter().flat_map(|host| WATCHES.map(|watch| ((*host).to_owned(), watch.0.to_owned())));
            let late: Vec<_> = all
                .map(|watch| (self.through.get(&watch).copied().unwrap_or_default(), watch))
                .filter(|(through, _)| *through < revision)
                .collect();
            if late.is_empty() { Ok(()) } else { Err(format!("{late:?}")) }
        });
    }

    /// Stops all processes, and judges their notes.
    pub(super) fn finish(mut self, place: &Place, cluster: &Cluster) {
        self.writers.values_mut().for_each(Worker::stop);
        let cli = cluster.cli();
        eventually("what goes with sessions that are no more is gone", || {
            let live = cli.run(["--json", "ls", LIVE]);
            let is_empty = live.status == 0 && live.json()["children"].as_array().is_some_and(Vec::is_empty);
            if is_empty { Ok(()) } else { Err(format!("{live:?}")) }
        });
        let status = cluster.caught_up(&cluster.ids());
        let of_leader = status["members"].as_array().expect("members");
        let of_leader = of_leader.iter().find(|member| member["replica"] == status["leader"]).expect("the leader");
        let last = of_leader["revision"].as_u64().expect("a revision");
        let hosts: Vec<String> = self.watchers.keys().cloned().collect();
        self.told_through(&hosts.iter().map(String::as_str).collect::<Vec<_>>(), last);
        self.watchers.values_mut().for_each(Worker::stop);
        self.gather();
        let happened = self.happened(place, cluster, last);
        self.judge_writers(&happened);
        self.judge_watchers(&happened, last);
    }

    /// What one watcher of everything is notified of at the end.
    fn happened(&mut self, place: &Place, cluster: &Cluster, last: u64) -> Happened {
        let mut replay: Worker<watcher::Note> = self.start(place, cluster, "replay", Duty::Replay);
        let (mut changes, mut list) = (Vec::new(), None);
        eventually("everything has been told once more", || {
            let mut through = changes.last().map_or(0, |change: &Change| change.revision.0);
            for note in replay.news() {
                match note.said {
                    Said::Change(change) => {
                        through = change.revision.0;
                        changes.push(change);
                    }
                    Said::Mark(revision) => through = revision.0,
                    Said::Listed { nodes, .. } => list = Some(nodes),
                    Said::From { .. } => {}
                    Said::Failed(why) => panic!("{why}"),
                }
            }
            if through >= last && list.is_some() { Ok(()) } else { Err(format!("through {through} of {last}")) }
        });
        let happened = Happened::of(changes).expect("what happened can have happened");
        let mut list: BTreeMap<_, _> = list.expect("it was listed").into_iter().collect();
        // The root was there before the first change.
        list.remove(&NodePath::root());
        assert_eq!(list, happened.at(last), "what is there is not what happened");
        happened
    }

    fn judge_writers(&self, happened: &Happened) {
        let (mut known, mut others) = (0, 0);
        for (name, notes) in &self.written {
            let judged = happened.check_writer(notes).unwrap_or_else(|why| panic!("{name}: {why}"));
            (known, others) = (known + judged.0, others + judged.1);
            let live = crate::path(&format!("{LIVE}/{name}"));
            let events = happened.of_node(&live);
            let removed = events.last().filter(|event| event.kind == EventKind::Delete);
            let expected = removed.is_some_and(|event| event.reason == ChangeReason::Expired);
            assert!(expected, "{name} was not heard of any more, and {live} went: {events:?}");
        }
        let (last, killed) = (happened.last(), self.killed.len());
        println!("{known} deeds known to be done, {others} others that were, up to {last}; writers killed: {killed}");
        assert!(known > 0);
    }

    fn judge_watchers(&self, happened: &Happened, last: u64) {
        for (name, notes) in &self.told {
            let mut streams: BTreeMap<&str, Stream> = BTreeMap::new();
            for note in notes {
                let stream = streams.entry(&note.watch).or_default();
                stream.hear(&note.said, happened).unwrap_or_else(|why| panic!("{name}, {}: {why}", note.watch));
            }
            for (watch, stream) in streams {
                assert!(stream.next > last && stream.changes > 0, "{name}, {watch}: {stream:?}");
                let Stream { changes, marks, begun, lists, .. } = stream;
                println!("{name}, {watch}: {changes} changes, {marks} marks, begun {begun} times, {lists} lists");
            }
        }
    }
}
