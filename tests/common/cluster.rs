//! A cluster of server processes.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitStatus,
};

use leasehold_client_cache::{Client, Options};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{Cli, Place, Process, SOON, eventually, free_address};

/// Where one server runs, and its address.
#[derive(Debug, Clone)]
pub struct Site {
    /// Where its process runs.
    pub place: Place,
    /// The address that it listens on.
    pub address: String,
    /// The folder of its data. `None` for a folder in the cluster's directory.
    pub data: Option<PathBuf>,
}

/// Servers that form one cluster, numbered from 1.
#[derive(Debug)]
pub struct Cluster {
    // Dropped before the directory.
    servers: BTreeMap<u64, Process>,
    sites: BTreeMap<u64, Site>,
    config: Option<PathBuf>,
    place: Place,
    directory: tempfile::TempDir,
}

impl Cluster {
    /// Starts `count` servers on this machine, and waits until they serve.
    pub fn start(count: u64) -> Self {
        Self::start_with(count, None)
    }

    /// The same, with a configuration file of this content.
    pub fn start_with(count: u64, config: Option<&str>) -> Self {
        let site = || Site { place: Place::default(), address: free_address(), data: None };
        Self::start_at((0..count).map(|_| site()).collect(), Place::default(), config)
    }

    /// Starts a server at each of these sites, and waits until they serve. Commands for the cluster
    /// run at `place`.
    pub fn start_at(sites: Vec<Site>, place: Place, config: Option<&str>) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let config = config.map(|text| {
            let file = directory.path().join("leasehold.toml");
            std::fs::write(&file, text).expect("written");
            file
        });
        let sites: BTreeMap<u64, Site> = (1..).zip(sites).collect();
        let mut cluster = Self { servers: BTreeMap::new(), sites, config, place, directory };
        cluster.ids().into_iter().for_each(|id| cluster.spawn(id));
        cluster.wait_until_it_serves();
        cluster
    }

    /// The ids of all servers.
    pub fn ids(&self) -> Vec<u64> {
        self.sites.keys().copied().collect()
    }

    /// The ids of all servers but one.
    pub fn others(&self, id: u64) -> Vec<u64> {
        self.sites.keys().copied().filter(|other| *other != id).collect()
    }

    /// The address that a server listens on.
    pub fn address(&self, id: u64) -> &str {
        &self.sites[&id].address
    }

    /// The addresses of all servers.
    pub fn endpoints(&self) -> Vec<String> {
        self.sites.values().map(|site| site.address.clone()).collect()
    }

    /// Commands for this cluster.
    pub fn cli(&self) -> Cli {
        Cli { place: self.place.clone(), endpoints: self.endpoints().join(",") }
    }

    /// A path in the cluster's temporary directory.
    pub fn directory(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The folder of a server's data.
    pub fn data(&self, id: u64) -> PathBuf {
        self.sites[&id].data.clone().unwrap_or_else(|| self.directory(&format!("data-{id}")))
    }

    /// Makes a server run at `place` from its next start on.
    pub fn move_to(&mut self, id: u64, place: Place) {
        self.sites.get_mut(&id).expect("a member").place = place;
    }

    /// Makes a server use the folder `data` from its next start on. No data is copied.
    pub fn move_data(&mut self, id: u64, data: PathBuf) {
        assert!(!self.runs(id), "server {id} runs");
        self.sites.get_mut(&id).expect("a member").data = Some(data);
    }

    /// Starts a server that is not running.
    pub fn spawn(&mut self, id: u64) {
        let (site, data) = (&self.sites[&id], self.data(id));
        let members: Vec<String> = self.sites.iter().map(|(id, site)| format!("{id}={}", site.address)).collect();
        let mut command = site.place.leasehold();
        command.args(["serve", "--id", &id.to_string(), "--cluster", &members.join(","), "--data"]).arg(data);
        command.args(self.config.iter().flat_map(|file| [Path::new("--config"), file]));
        let server = Process::start(command, &self.log_file(id));
        assert!(self.servers.insert(id, server).is_none(), "server {id} runs already");
    }

    /// Starts a server unless it runs.
    pub fn spawn_if_down(&mut self, id: u64) {
        if !self.runs(id) {
            self.spawn(id);
        }
    }

    /// True if a server was started, and since then neither killed nor found to have ended.
    pub fn runs(&self, id: u64) -> bool {
        self.servers.contains_key(&id)
    }

    /// Kills a server with SIGKILL.
    pub fn kill(&mut self, id: u64) {
        self.servers.remove(&id).expect("it runs").kill();
    }

    /// Removes all data of a server that does not run.
    pub fn wipe(&self, id: u64) {
        assert!(!self.runs(id), "server {id} runs");
        std::fs::remove_dir_all(self.data(id)).expect("it had data");
    }

    /// Pauses a server (SIGSTOP), or resumes it (SIGCONT).
    pub fn pause(&self, id: u64, pauses: bool) {
        self.servers[&id].pause(pauses);
    }

    /// Sends a server a signal, and waits until it has ended.
    pub fn stop(&mut self, id: u64, signal: Signal) -> ExitStatus {
        self.servers[&id].signal(signal);
        self.ended(id)
    }

    /// Waits until a server has ended by itself.
    pub fn ended(&mut self, id: u64) -> ExitStatus {
        self.servers.remove(&id).expect("it runs").ended()
    }

    /// The exit status of a server that has ended by itself. It can be started again then.
    pub fn has_ended(&mut self, id: u64) -> Option<ExitStatus> {
        let status = self.servers.get_mut(&id).and_then(Process::has_ended);
        if status.is_some() {
            self.servers.remove(&id);
        }
        status
    }

    /// A server's log so far.
    pub fn log(&self, id: u64) -> String {
        std::fs::read_to_string(self.log_file(id)).unwrap_or_default()
    }

    /// Panics if a server has ended by itself.
    pub fn assert_all_run(&mut self) {
        for (id, server) in &mut self.servers {
            assert_eq!(server.has_ended(), None, "server {id} has ended");
        }
    }

    /// Waits until the cluster answers reads.
    pub fn wait_until_it_serves(&mut self) {
        let cli = self.cli();
        eventually("the cluster serves", || {
            self.assert_all_run();
            let ran = cli.run(["--timeout", "1s", "stat", "/"]);
            if ran.status == 0 { Ok(()) } else { Err(ran.stderr) }
        });
    }

    /// A client of all servers, in this process.
    pub async fn client(&self, name: &str) -> Client {
        self.client_of(self.endpoints(), name).await
    }

    /// A client in this process that knows only these endpoints.
    pub async fn client_of(&self, endpoints: Vec<String>, name: &str) -> Client {
        let options = Options::new(endpoints).name(name).timeout(SOON);
        Client::connect(options).await.expect("the cluster serves")
    }

    /// The JSON of `cluster status`.
    pub fn status(&self) -> Result<Value, String> {
        let ran = self.cli().run(["--json", "--timeout", "1s", "cluster", "status"]);
        // Status 3: no quorum. The JSON still has each server's state, unless no server answers.
        match ran.status {
            0 => Ok(ran.json()),
            3 if ran.json().get("error").is_none() => Ok(ran.json()),
            _ => Err(ran.stderr),
        }
    }

    /// Waits for a leader that a majority of the servers follow. Returns its id.
    pub fn leader(&self) -> u64 {
        eventually("there is a leader", || {
            let status = self.status()?;
            leader(&status).ok_or_else(|| status.to_string())
        })
    }

    /// Waits until these servers are voters and have caught up with the leader. Returns the status.
    pub fn caught_up(&self, ids: &[u64]) -> Value {
        eventually(&format!("servers {ids:?} are voters and have caught up"), || {
            let status = self.status()?;
            if is_caught_up(&status, ids).unwrap_or(false) { Ok(status) } else { Err(status.to_string()) }
        })
    }

    fn log_file(&self, id: u64) -> PathBuf {
        self.directory(&format!("server-{id}.log"))
    }
}

fn members(status: &Value) -> Option<&Vec<Value>> {
    status["members"].as_array()
}

fn member(status: &Value, id: u64) -> Option<&Value> {
    members(status)?.iter().find(|member| member["replica"].as_u64() == Some(id))
}

/// `None` if the leader does not answer, or no majority has applied the first entry of its epoch.
fn leader(status: &Value) -> Option<u64> {
    let leader = status["leader"].as_u64()?;
    let follows = |member: &Value| member["answers"] == true && member["epoch"] == status["epoch"];
    let following = members(status)?.iter().filter(|member| follows(member)).count();
    (follows(member(status, leader)?) && following * 2 > members(status)?.len()).then_some(leader)
}

/// `None` if the status lacks a field that is needed to decide.
fn is_caught_up(status: &Value, ids: &[u64]) -> Option<bool> {
    let leader = member(status, status["leader"].as_u64()?)?;
    let (last, revision) = (leader["matched"].as_u64()?, leader["revision"].as_u64()?);
    let has_all = |id: &u64| {
        let member = member(status, *id)?;
        let is_voter = member["voter"].as_bool()? && member["answers"].as_bool()?;
        Some(is_voter && member["matched"].as_u64()? >= last && member["revision"].as_u64()? >= revision)
    };
    Some(ids.iter().all(|id| has_all(id).unwrap_or(false)))
}
