//! Watches of real servers that are killed, paused and cut off. Whatever fails, watchers are
//! notified of each change once, whole and in order, and none is left out. They resume where they
//! were, also at other servers. Meanwhile writers write, also several nodes at once. Some writers
//! are killed.
//!
//! `LEASEHOLD_WATCH_ROUNDS=20 cargo test --test processes watching -- --nocapture` runs for longer.

mod judge;
mod record;
mod watcher;
mod writer;

use std::{path::PathBuf, time::Instant};

use leasehold_client_cache::{Client, Options};
use serde::{Deserialize, Serialize};

use self::{
    record::Record,
    watcher::{replay, watch},
    writer::Writer,
};
use crate::{
    alone,
    common::{Cluster, Place},
    number,
    worker::{Role, until_told_to_stop},
    world::{World, server},
};

/// How a process learns that it must write or watch.
const ROLE: Role =
    Role { variable: "LEASEHOLD_TEST_WATCH", test: "watching::watchers_are_told_what_a_writer_has_done" };

/// How often each fault happens by default.
const ROUNDS: u64 = 1;

/// The writes of each writer that must be done before the test goes on.
const WRITES: u64 = 15;

const WRITERS: [&str; 2] = ["c1", "c2"];
const WATCHERS: [&str; 2] = ["c3", "c4"];

/// The duty of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Duty {
    Write,
    Watch,
    /// To watch everything from the first revision on.
    Replay,
}

/// A duty, with its parameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Task {
    duty: Duty,
    endpoints: Vec<String>,
    name: String,
    seed: u64,
    notes: PathBuf,
}

impl Task {
    async fn carry_out(self) {
        match self.duty {
            Duty::Write => Writer::connect(self).await.write().await,
            Duty::Watch => watch(self).await,
            Duty::Replay => replay(self).await,
        }
    }
}

/// A client of these servers. Tries until it has connected.
async fn connect(endpoints: &[String], name: &str) -> Client {
    let options = Options::new(endpoints.iter().cloned()).name(name);
    loop {
        if let Ok(client) = Client::connect(options.clone()).await {
            return client;
        }
    }
}

#[derive(Debug, Clone, Copy)]
enum Fault {
    LeaderKilled,
    LeaderStopped,
    /// The leader and one of the watchers cannot reach the other servers.
    LeaderCutOff,
    AllServersKilled,
    /// A writer, and the node that is attached to its session.
    WriterKilled,
    /// A watcher is paused while the leader is killed.
    WatcherStopped,
}

impl Fault {
    const ALL: [Self; 6] = [
        Self::LeaderKilled,
        Self::WriterKilled,
        Self::LeaderStopped,
        Self::LeaderCutOff,
        Self::WatcherStopped,
        Self::AllServersKilled,
    ];
}

/// The servers and hosts, and the record of the processes.
struct Scene {
    record: Record,
    world: World,
}

impl Scene {
    fn start() -> Option<Self> {
        let world = World::of(WRITERS.len() + WATCHERS.len())?;
        let mut scene = Self { record: Record::default(), world };
        WRITERS.into_iter().for_each(|host| scene.start_writer(host));
        for host in WATCHERS {
            scene.record.start_watcher(&scene.world.place(host), &scene.world.cluster, host);
        }
        Some(scene)
    }

    fn start_writer(&mut self, host: &str) {
        self.record.start_writer(&self.world.place(host), &self.world.cluster, host);
    }

    fn kill_and_start(&mut self, server: u64) {
        self.world.cluster.kill(server);
        self.world.cluster.spawn(server);
    }

    fn suffer(&mut self, fault: Fault) {
        let began = Instant::now();
        let leader = self.world.cluster.leader();
        match fault {
            Fault::LeaderKilled => {
                self.kill_and_start(leader);
                self.record.all_goes_on(&WATCHERS);
            }
            Fault::LeaderStopped => {
                self.world.cluster.pause(leader, true);
                self.record.all_goes_on(&WATCHERS);
                self.world.cluster.pause(leader, false);
            }
            Fault::LeaderCutOff => {
                let others = self.world.cluster.others(leader);
                for other in others.into_iter().map(server) {
                    self.world.network.cut_both(&server(leader), &other);
                    self.world.network.cut_both("c4", &other);
                }
                self.record.all_goes_on(&["c3"]);
                self.world.network.heal_all();
            }
            Fault::AllServersKilled => {
                self.world.cluster.ids().into_iter().for_each(|id| self.world.cluster.kill(id));
                self.world.cluster.ids().into_iter().for_each(|id| self.world.cluster.spawn(id));
            }
            Fault::WriterKilled => {
                self.record.kill_writer("c1");
                self.start_writer("c1");
            }
            Fault::WatcherStopped => {
                self.record.pause_watcher("c3", true);
                self.kill_and_start(leader);
                self.record.all_goes_on(&["c4"]);
                self.record.pause_watcher("c3", false);
            }
        }
        self.record.all_goes_on(&WATCHERS);
        self.world.cluster.caught_up(&self.world.cluster.ids());
        let (took, revision) = (began.elapsed(), self.record.acknowledged());
        println!("{fault:?}: everybody has written, been told and caught up after {took:.1?}, at {revision}");
    }
}

#[test]
fn watchers_get_each_change_once_in_order_whatever_fails() {
    let _alone = alone();
    let rounds = number("LEASEHOLD_WATCH_ROUNDS", ROUNDS);
    let Some(mut scene) = Scene::start() else { return };
    scene.record.all_goes_on(&WATCHERS);
    for _ in 0..rounds {
        Fault::ALL.into_iter().for_each(|fault| scene.suffer(fault));
    }
    let Scene { record, mut world } = scene;
    record.finish(&world.place("c3"), &world.cluster);
    world.cluster.assert_all_run();
}

/// If the process must write or watch, this does that. Else this runs one writer and one watcher of
/// one server, without faults.
#[test]
fn watchers_are_told_what_a_writer_has_done() {
    if let Some(task) = ROLE.task::<Task>() {
        until_told_to_stop(task.carry_out());
        return;
    }
    let _alone = alone();
    let cluster = Cluster::start(1);
    cluster.cli().done(["volume", "create", "/n", "--term", "500ms", "--skew-margin", "5ms"]);
    let (mut record, here) = (Record::default(), Place::default());
    record.start_writer(&here, &cluster, "writer");
    record.start_watcher(&here, &cluster, "watcher");
    for _ in 0..3 {
        record.all_goes_on(&["watcher"]);
    }
    record.finish(&here, &cluster);
}
