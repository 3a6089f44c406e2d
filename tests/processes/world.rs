//! Three servers and some clients in network namespaces of their own, and the clients' operations.

use std::{collections::BTreeMap, time::Duration};

use leasehold_client_cache::DriftAllowance;

use crate::{
    common::{Cluster, Place, Site, eventually},
    history::{History, Progress},
    network::Network,
    worker::notes,
    workload::{self, Task, Worker, now_ns},
};

/// The host for the test's own commands.
const OPERATOR: &str = "op";

/// The term of the volume of the clients' nodes.
pub(crate) const TERM: Duration = Duration::from_secs(2);

/// The skew margin of that volume.
pub(crate) const MARGIN: Duration = Duration::from_millis(150);

/// The longest wait of a write for a silent client (S5 in docs/PROTOCOL.md), with a tick after a
/// failover.
pub(crate) const WAIT_MAX: Duration = Duration::from_millis(2_000 + 150 + 200);

/// All that a test of whole processes needs.
#[derive(Debug)]
pub(crate) struct World {
    // The processes are dropped before their network.
    workers: BTreeMap<String, Worker>,
    /// The servers. Server 1 runs at host "s1".
    pub(crate) cluster: Cluster,
    /// The network of all hosts.
    pub(crate) network: Network,
    /// The clients' operations.
    pub(crate) history: History,
    drift_ppm: u32,
    started: u64,
}

impl World {
    /// Three servers, and hosts for this many clients, from "c1" on. `None` if that is impossible
    /// and the test is skipped.
    pub(crate) fn of(clients: usize) -> Option<Self> {
        Self::with_drift(clients, DriftAllowance::DEFAULT.ppm(), MARGIN)
    }

    /// The same, with another drift allowance and margin.
    pub(crate) fn with_drift(clients: usize, drift_ppm: u32, margin: Duration) -> Option<Self> {
        Self::of_data(clients, drift_ppm, margin, BTreeMap::new())
    }

    /// The same, with the data of some servers in folders of their own.
    pub(crate) fn of_data(
        clients: usize,
        drift_ppm: u32,
        margin: Duration,
        mut data: BTreeMap<u64, std::path::PathBuf>,
    ) -> Option<Self> {
        let servers = (1..=3).map(|id| (id, server(id)));
        let names = (1..=clients).map(|number| format!("c{number}"));
        let hosts: Vec<String> =
            servers.clone().map(|(_, host)| host).chain(names).chain([OPERATOR.to_owned()]).collect();
        let network = Network::of(&hosts.iter().map(String::as_str).collect::<Vec<_>>())?;
        let sites = servers.map(|(id, host)| Site {
            place: network.place(&host),
            address: format!("{}:7600", network.address(&host)),
            data: data.remove(&id),
        });
        let config = format!("drift_ppm = {drift_ppm}\n");
        let cluster = Cluster::start_at(sites.collect(), network.place(OPERATOR), Some(&config));
        let world =
            Self { workers: BTreeMap::new(), cluster, network, history: History::default(), drift_ppm, started: 0 };
        let (term, margin) = (format!("{}ms", TERM.as_millis()), format!("{}ms", margin.as_millis()));
        let volume = ["--timeout", "30s", "volume", "create", "/n", "--term", &term, "--skew-margin", &margin];
        world.cluster.cli().done(volume);
        Some(world)
    }

    /// The default task of a client at a host: mostly reads, of a few nodes that all clients share.
    pub(crate) fn task(&mut self, host: &str) -> Task {
        self.started += 1;
        let name = format!("{host}-{}", self.started);
        Task {
            endpoints: self.cluster.endpoints(),
            paths: ["/n/a", "/n/b", "/n/c", "/n/d"].map(str::to_owned).into(),
            seed: self.started,
            drift_ppm: self.drift_ppm,
            writes_permille: 200,
            pace: Duration::from_millis(8),
            notes: notes(&self.cluster.directory(""), &name),
            name,
        }
    }

    /// The place for a host's processes.
    pub(crate) fn place(&self, host: &str) -> Place {
        self.network.place(host)
    }

    /// Starts a client at a host.
    pub(crate) fn start(&mut self, host: &str) {
        let task = self.task(host);
        self.start_as(host, &self.place(host), &task);
    }

    /// The same, at another place of that host or with another task.
    pub(crate) fn start_as(&mut self, host: &str, place: &Place, task: &Task) {
        let worker = workload::start(place, task);
        assert!(self.workers.insert(host.to_owned(), worker).is_none(), "a client runs at {host} already");
    }

    /// The hosts of the clients.
    pub(crate) fn clients(&self) -> Vec<String> {
        self.workers.keys().cloned().collect()
    }

    /// The client at a host.
    pub(crate) fn worker(&self, host: &str) -> &Worker {
        &self.workers[host]
    }

    /// Kills the client at a host with SIGKILL.
    pub(crate) fn kill(&mut self, host: &str) {
        let mut worker = self.workers.remove(host).expect("a client runs there");
        worker.process.kill();
        let news = worker.news();
        self.history.add(&worker.name, news);
    }

    /// Reads the new notes of the clients.
    pub(crate) fn gather(&mut self) {
        for worker in self.workers.values_mut() {
            let news = worker.news();
            self.history.add(&worker.name, news);
        }
    }

    /// The progress of the client at a host.
    pub(crate) fn progress(&mut self, host: &str) -> Progress {
        self.gather();
        self.history.progress(&self.workers[host].name)
    }

    /// Waits until the client at a host reads from memory, reads and writes, each by an operation
    /// that began after this call. Returns how long that took.
    pub(crate) fn goes_on(&mut self, host: &str) -> Duration {
        let from = now_ns();
        eventually(&format!("the client at {host} reads and writes"), || {
            let Progress { cached, read, written } = self.progress(host);
            if cached.min(read).min(written) > from { Ok(()) } else { Err(format!("{:?}", self.history.tally())) }
        });
        Duration::from_nanos(now_ns() - from)
    }

    /// The same, for a client that reads nothing from memory.
    pub(crate) fn goes_on_without_memory(&mut self, host: &str) {
        let from = now_ns();
        eventually(&format!("the client at {host} reads and writes"), || {
            let Progress { read, written, .. } = self.progress(host);
            if read.min(written) > from { Ok(()) } else { Err(format!("{:?}", self.history.tally())) }
        });
        assert!(self.progress(host).cached < from, "the client at {host} reads from memory");
    }

    /// Waits until the client at a host writes, by an operation that began after this call. Returns
    /// how long that took.
    pub(crate) fn writes(&mut self, host: &str) -> Duration {
        let from = now_ns();
        eventually(&format!("the client at {host} writes"), || (self.progress(host).written > from).then_some(()));
        Duration::from_nanos(now_ns() - from)
    }

    /// Waits until the client at a host reads from memory, by an operation that began after this
    /// call.
    pub(crate) fn reads_from_memory(&mut self, host: &str) {
        let from = now_ns();
        eventually(&format!("the client at {host} reads from memory"), || {
            (self.progress(host).cached > from).then_some(())
        });
    }

    /// Heals the network. Waits until every client reads and writes and every server has caught up.
    pub(crate) fn heal(&mut self) {
        self.network.heal_all();
        for host in self.clients() {
            self.goes_on(&host);
        }
        self.cluster.caught_up(&self.cluster.ids());
        self.cluster.assert_all_run();
    }

    /// Stops all clients, and checks their operations.
    pub(crate) fn finish(&mut self) {
        self.stop_clients();
        self.history.assert_linearizable();
        println!("{:?}", self.history.tally());
    }

    /// Makes all clients finish.
    pub(crate) fn stop_clients(&mut self) {
        self.workers.values_mut().for_each(Worker::stop);
        self.gather();
        self.workers.clear();
    }
}

/// The host of a server.
pub(crate) fn server(id: u64) -> String {
    format!("s{id}")
}
