//! Random faults, one after another and at the same time, while clients read and write. Then all
//! faults are healed, everything must work again, and the clients' operations must be linearizable.
//!
//! A seed draws the faults. It is printed. The run also depends on the machine, so a seed repeats
//! the faults and not the run.
//! `LEASEHOLD_NEMESIS_SEED=7 LEASEHOLD_NEMESIS_SECONDS=3600 cargo test --test processes nemesis -- --nocapture`
//! runs for an hour.

use std::{
    collections::{BTreeMap, BTreeSet},
    os::unix::process::ExitStatusExt,
    time::{Duration, Instant},
};

use nix::sys::signal::Signal;
use rand::{Rng, SeedableRng, rngs::SmallRng, seq::IndexedRandom};

use crate::{
    alone,
    clocks::{at_rate, faketime},
    common::{Place, Tool, require},
    world::{World, server},
};

/// How long it runs by default.
const LONG: Duration = Duration::from_secs(75);

/// After this many rounds all faults are healed, and everything must work again.
const ROUNDS_UNTIL_CALM: u32 = 5;

/// The drift allowance, and the margin that it needs.
const ALLOWANCE_PPM: u32 = 20_000;
const MARGIN: Duration = Duration::from_millis(150);

/// A duration in seconds from the environment.
pub(crate) fn seconds(name: &str, unless_set: Duration) -> Duration {
    let set = std::env::var(name).ok();
    set.map_or(unless_set, |text| {
        Duration::from_secs(text.parse().unwrap_or_else(|_| panic!("{name}={text:?}: expected a number of seconds")))
    })
}

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    ServerKilled,
    AllServersKilled,
    ServerPaused,
    ServerStopped,
    ServerIsolated,
    ClientKilled,
    ClientPaused,
    CutInBothDirections,
    CutInOneDirection,
    PacketsLost,
    LinkSlow,
}

impl Fault {
    /// The faults to draw from. A fault that is listed twice is drawn twice as often.
    const DRAWN: [Self; 15] = [
        Self::ServerKilled,
        Self::ServerKilled,
        Self::AllServersKilled,
        Self::ServerPaused,
        Self::ServerPaused,
        Self::ServerStopped,
        Self::ServerIsolated,
        Self::ClientKilled,
        Self::ClientPaused,
        Self::ClientPaused,
        Self::CutInBothDirections,
        Self::CutInOneDirection,
        Self::CutInOneDirection,
        Self::PacketsLost,
        Self::LinkSlow,
    ];
}

/// The source of all faults.
struct Nemesis {
    random: SmallRng,
    world: World,
    library: Option<std::path::PathBuf>,
    paused_servers: BTreeSet<u64>,
    paused_clients: BTreeSet<String>,
    counts: BTreeMap<Fault, u64>,
    /// The faults to draw from: those that this machine can cause.
    drawn: Vec<Fault>,
    longest_out: Duration,
}

impl Nemesis {
    fn new(seed: u64) -> Option<Self> {
        let mut nemesis = Self {
            random: SmallRng::seed_from_u64(seed),
            world: World::with_drift(3, ALLOWANCE_PPM, MARGIN)?,
            library: faketime(),
            drawn: Fault::DRAWN.into(),
            paused_servers: BTreeSet::new(),
            paused_clients: BTreeSet::new(),
            counts: BTreeMap::new(),
            longest_out: Duration::ZERO,
        };
        nemesis.drop_what_this_machine_cannot_do();
        ["c1", "c2", "c3"].into_iter().for_each(|host| nemesis.start_client(host));
        nemesis.calm();
        Some(nemesis)
    }

    /// Each of these faults is required. Where skips are allowed, an impossible one is left out.
    fn drop_what_this_machine_cannot_do(&mut self) {
        let network = &self.world.network;
        let is_lossy = require(Tool::PacketLoss, network.lose("c1", 0.5)).is_some();
        let is_slow = require(Tool::SlowLinks, network.slow("c1", Duration::from_millis(5))).is_some();
        network.heal_all();
        self.drawn.retain(|fault| is_lossy || *fault != Fault::PacketsLost);
        self.drawn.retain(|fault| is_slow || *fault != Fault::LinkSlow);
    }

    /// A host whose clocks are fast, slow or right, within the drift allowance.
    fn place(&mut self, host: &str) -> Place {
        let place = self.world.place(host);
        let rate = *[0.985, 1.0, 1.015].choose(&mut self.random).expect("some");
        match &self.library {
            Some(library) => at_rate(library, &place, rate),
            None => place,
        }
    }

    fn start_client(&mut self, host: &str) {
        let (place, task) = (self.place(host), self.world.task(host));
        self.world.start_as(host, &place, &task);
    }

    fn start_server(&mut self, id: u64) {
        let place = self.place(&server(id));
        self.world.cluster.move_to(id, place);
        self.world.cluster.spawn(id);
    }

    fn any_server(&mut self) -> u64 {
        self.random.random_range(1..=3)
    }

    fn any_client(&mut self) -> String {
        format!("c{}", self.random.random_range(1..=3))
    }

    /// A server, and another host that is not the operator's.
    fn any_link(&mut self) -> (String, String) {
        let one = self.any_server();
        let mut others: Vec<String> = self.world.cluster.others(one).into_iter().map(server).collect();
        others.extend(["c1", "c2", "c3"].map(str::to_owned));
        (server(one), others.choose(&mut self.random).expect("some").clone())
    }

    /// Causes a fault, unless it is there already.
    fn strike(&mut self, fault: Fault) {
        let done = match fault {
            Fault::ServerKilled => {
                let id = self.any_server();
                self.kill_server(id)
            }
            Fault::AllServersKilled => (1..=3).map(|id| self.kill_server(id)).fold(Ok(()), Result::or),
            Fault::ServerPaused => {
                let id = self.any_server();
                self.pause_server(id)
            }
            Fault::ServerStopped => {
                let id = self.any_server();
                self.stop_server(id)
            }
            Fault::ServerIsolated => {
                let id = self.any_server();
                let hosts = self.world.network.hosts();
                for other in hosts.iter().filter(|host| **host != server(id)) {
                    self.world.network.cut_both(&server(id), other);
                }
                Ok(())
            }
            Fault::ClientKilled => {
                let host = self.any_client();
                self.paused_clients.remove(&host);
                self.world.kill(&host);
                self.start_client(&host);
                Ok(())
            }
            Fault::ClientPaused => {
                let host = self.any_client();
                self.world.worker(&host).process.pause(true);
                self.paused_clients.insert(host);
                Ok(())
            }
            Fault::CutInBothDirections | Fault::CutInOneDirection => {
                let (one, other) = self.any_link();
                let (from, to) = if self.random.random() { (&one, &other) } else { (&other, &one) };
                self.world.network.cut(from, to);
                if fault == Fault::CutInBothDirections {
                    self.world.network.cut(to, from);
                }
                Ok(())
            }
            Fault::PacketsLost => {
                let share = self.random.random_range(0.05..0.4);
                let hosts = self.world.network.hosts();
                hosts.iter().map(|host| self.world.network.lose(host, share)).fold(Ok(()), Result::and)
            }
            Fault::LinkSlow => {
                let (host, by) = (self.any_link().1, Duration::from_millis(self.random.random_range(5..60)));
                self.world.network.slow(&host, by).map(drop)
            }
        };
        match done {
            Ok(()) => *self.counts.entry(fault).or_default() += 1,
            Err(why) if matches!(fault, Fault::PacketsLost | Fault::LinkSlow) => panic!("{fault:?}: {why}"),
            // A server that is down already is left alone.
            Err(_) => {}
        }
    }

    fn kill_server(&mut self, id: u64) -> Result<(), String> {
        if !self.world.cluster.runs(id) {
            return Err("it does not run".to_owned());
        }
        self.paused_servers.remove(&id);
        self.world.cluster.kill(id);
        Ok(())
    }

    fn pause_server(&mut self, id: u64) -> Result<(), String> {
        if !self.world.cluster.runs(id) {
            return Err("it does not run".to_owned());
        }
        self.world.cluster.pause(id, true);
        self.paused_servers.insert(id);
        Ok(())
    }

    fn stop_server(&mut self, id: u64) -> Result<(), String> {
        if !self.world.cluster.runs(id) || self.paused_servers.contains(&id) {
            return Err("it does not run".to_owned());
        }
        let status = self.world.cluster.stop(id, Signal::SIGTERM);
        // A server that was just started may not handle signals yet. `stop.rs` checks too that
        // other servers exit with 0.
        let is_too_early = status.signal() == Some(Signal::SIGTERM as i32);
        assert!(status.success() || is_too_early, "server {id} was told to stop, and ended with {status}");
        Ok(())
    }

    /// Resumes what is paused and starts what was killed, each with this probability.
    fn relent(&mut self, chance: f64) {
        for id in 1..=3 {
            if self.paused_servers.contains(&id) && self.random.random_bool(chance) {
                self.paused_servers.remove(&id);
                self.world.cluster.pause(id, false);
            }
            if !self.world.cluster.runs(id) && self.random.random_bool(chance) {
                self.start_server(id);
            }
        }
        for host in self.paused_clients.clone() {
            if self.random.random_bool(chance) {
                self.world.worker(&host).process.pause(false);
                self.paused_clients.remove(&host);
            }
        }
        if self.random.random_bool(chance) {
            self.world.network.heal_all();
        }
    }

    /// Ends all faults, and waits until everything works again.
    fn calm(&mut self) {
        self.relent(1.0);
        let healed = Instant::now();
        self.world.heal();
        self.longest_out = self.longest_out.max(healed.elapsed());
    }

    fn wait(&mut self, from_ms: u64, to_ms: u64) {
        std::thread::sleep(Duration::from_millis(self.random.random_range(from_ms..to_ms)));
        self.world.gather();
    }

    fn rage(&mut self, long: Duration) {
        let began = Instant::now();
        let mut round = 0;
        while began.elapsed() < long {
            round += 1;
            for _ in 0..self.random.random_range(1..=3) {
                let fault = *self.drawn.choose(&mut self.random).expect("some");
                self.strike(fault);
                self.wait(0, 600);
            }
            self.wait(200, 2500);
            if round % ROUNDS_UNTIL_CALM == 0 {
                self.calm();
                println!("{:6.1} s: {:?}", began.elapsed().as_secs_f64(), self.world.history.tally());
            } else {
                self.relent(0.7);
            }
        }
    }
}

#[test]
fn random_faults_cause_no_stale_read_and_all_recovers() {
    let _alone = alone();
    let seed = std::env::var("LEASEHOLD_NEMESIS_SEED").ok();
    let seed = seed.map_or_else(rand::random, |text| text.parse().expect("LEASEHOLD_NEMESIS_SEED: a number"));
    println!("LEASEHOLD_NEMESIS_SEED={seed}");
    let Some(mut nemesis) = Nemesis::new(seed) else { return };
    nemesis.rage(seconds("LEASEHOLD_NEMESIS_SECONDS", LONG));
    nemesis.calm();
    let status = nemesis.world.cluster.caught_up(&[1, 2, 3]);
    assert_eq!(status["members"].as_array().map(Vec::len), Some(3), "{status}");
    nemesis.world.finish();
    let tally = nemesis.world.history.tally();
    println!("seed {seed}: faults {:?}", nemesis.counts);
    println!("clocks bent: {}; drawn from {:?}", nemesis.library.is_some(), nemesis.drawn);
    println!("{tally:?}; healed at the latest after {:?}; stale 0", nemesis.longest_out);
    assert!(nemesis.counts.values().sum::<u64>() > 0, "nothing went wrong: nothing was shown");
}
