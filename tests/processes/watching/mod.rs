//! Watches of real servers while these are killed, stopped and cut off: whatever happens, watchers
//! are told each change once, whole, in order, none left out, and go on from where they were, also
//! at other servers. Writers write meanwhile, several things at once too; some of them die.
//!
//! `LEASEHOLD_WATCH_ROUNDS=20 cargo test --test processes watching -- --nocapture` goes on for
//! longer.

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

/// What a process is that is to write or watch.
const ROLE: Role =
    Role { variable: "LEASEHOLD_TEST_WATCH", test: "watching::watchers_are_told_what_a_writer_has_done" };

/// So many times all faults, unless told otherwise.
const ROUNDS: u64 = 1;

/// So many writes of each writer have to be done before it goes on.
const WRITES: u64 = 15;

const WRITERS: [&str; 2] = ["c1", "c2"];
const WATCHERS: [&str; 2] = ["c3", "c4"];

/// What a process is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Duty {
    Write,
    Watch,
    /// Watch everything from the first revision on.
    Replay,
}

/// The same, with what it needs to know.
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

/// A client of these servers; they are asked until there is one.
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
    /// The leader and one of the watchers hear only each other.
    LeaderCutOff,
    AllServersKilled,
    /// A writer, and what goes with its session.
    WriterKilled,
    /// A watcher stands still while the leader is killed.
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

/// Where it all happens.
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

/// In a process that is to write or watch, that is what it does. Else one writer and one watcher of
/// one server, whom nothing befalls.
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
