//! A cluster of server processes.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::ExitStatus,
    time::{Duration, Instant},
};

use leasehold_client_cache::{Client, ClusterInfo, Options};
use nix::sys::signal::Signal;
use serde_json::Value;

use super::{PATIENCE, cli, eventually, port, process::Process};

/// How long one server is asked what it knows.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);

/// Servers on this machine, each with its data in the cluster's temporary directory.
#[derive(Debug)]
pub(crate) struct Cluster {
    // Ends before the directory does.
    servers: BTreeMap<u64, Process>,
    members: BTreeMap<u64, String>,
    config: Option<PathBuf>,
    directory: tempfile::TempDir,
}

impl Cluster {
    /// Starts this many servers and waits for a leader.
    pub(crate) async fn start(count: u64) -> Self {
        Self::start_with(count, None).await
    }

    /// Starts this many servers with a configuration file of this content.
    pub(crate) async fn start_with(count: u64, config: Option<&str>) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let config = config.map(|text| {
            let file = directory.path().join("leasehold.toml");
            std::fs::write(&file, text).expect("written");
            file
        });
        let members = (1..=count).map(|id| (id, format!("127.0.0.1:{}", port::free()))).collect();
        let mut cluster = Self { servers: BTreeMap::new(), members, config, directory };
        for id in 1..=count {
            cluster.spawn(id);
        }
        cluster.leader().await;
        cluster
    }

    /// All servers' numbers.
    pub(crate) fn ids(&self) -> Vec<u64> {
        self.members.keys().copied().collect()
    }

    /// All but one.
    pub(crate) fn others(&self, id: u64) -> Vec<u64> {
        self.members.keys().copied().filter(|other| *other != id).collect()
    }

    /// Where a server listens.
    pub(crate) fn address(&self, id: u64) -> &str {
        &self.members[&id]
    }

    /// Where all servers listen.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.members.values().cloned().collect()
    }

    /// A directory that goes with the cluster.
    pub(crate) fn directory(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Starts a server that does not run.
    pub(crate) fn spawn(&mut self, id: u64) {
        let cluster: Vec<String> = self.members.iter().map(|(id, address)| format!("{id}={address}")).collect();
        let data = self.data(id).display().to_string();
        let mut args = vec!["--id".to_owned(), id.to_string(), "--data".to_owned(), data];
        args.extend(["--cluster".to_owned(), cluster.join(",")]);
        args.extend(self.config.iter().flat_map(|file| ["--config".to_owned(), file.display().to_string()]));
        let server = Process::serve(&args, &self.log_file(id));
        assert!(self.servers.insert(id, server).is_none(), "server {id} runs already");
    }

    /// Starts a server unless it runs.
    pub(crate) fn spawn_if_down(&mut self, id: u64) {
        if !self.servers.contains_key(&id) {
            self.spawn(id);
        }
    }

    /// Kills a server with SIGKILL.
    pub(crate) fn kill(&mut self, id: u64) {
        self.servers.remove(&id).expect("it runs").kill();
    }

    /// Removes all data of a server that does not run.
    pub(crate) fn wipe(&self, id: u64) {
        assert!(!self.servers.contains_key(&id), "server {id} runs");
        std::fs::remove_dir_all(self.data(id)).expect("it had data");
    }

    /// Stops a server where it is (SIGSTOP), or lets it go on (SIGCONT).
    pub(crate) fn pause(&self, id: u64, pauses: bool) {
        self.servers[&id].signal(if pauses { Signal::SIGSTOP } else { Signal::SIGCONT });
    }

    /// Tells a server to stop (SIGTERM) and waits until it has.
    pub(crate) async fn terminate(&mut self, id: u64) -> ExitStatus {
        let mut server = self.servers.remove(&id).expect("it runs");
        server.signal(Signal::SIGTERM);
        let began = Instant::now();
        loop {
            if let Some(status) = server.ended() {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "server {id} has not stopped after {PATIENCE:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// What a server has said so far.
    pub(crate) fn log(&self, id: u64) -> String {
        std::fs::read_to_string(self.log_file(id)).unwrap_or_default()
    }

    /// Whether no server has ended by itself.
    pub(crate) fn assert_all_run(&mut self) {
        for (id, server) in &mut self.servers {
            assert_eq!(server.ended(), None, "server {id} has ended");
        }
    }

    /// A client of all servers.
    pub(crate) async fn client(&self, name: &str) -> Client {
        self.client_of(self.endpoints(), name).await
    }

    /// A client that knows only these endpoints.
    pub(crate) async fn client_of(&self, endpoints: Vec<String>, name: &str) -> Client {
        let options = Options::new(endpoints).name(name).timeout(PATIENCE);
        Client::connect(options).await.expect("the cluster serves")
    }

    /// What one server knows of the cluster; none if it does not answer.
    pub(crate) async fn info(&self, id: u64) -> Option<ClusterInfo> {
        leasehold_client_cache::cluster(self.address(id), ASK_TIMEOUT).await.ok()
    }

    /// Waits for a server that says that it leads, and that most of the others follow.
    pub(crate) async fn leader(&self) -> u64 {
        eventually("there is a leader", || async {
            let infos = futures::future::join_all(self.ids().into_iter().map(|id| self.info(id))).await;
            let leaders: Vec<Option<u64>> = infos.iter().flatten().map(|info| info.leader).collect();
            let claims = |id: &u64| infos.iter().flatten().any(|info| info.replica == *id && info.leader == Some(*id));
            let follow =
                |id: &u64| leaders.iter().filter(|leader| **leader == Some(*id)).count() * 2 > self.members.len();
            let leader = self.ids().into_iter().find(|id| claims(id) && follow(id));
            leader.ok_or_else(|| format!("they follow {leaders:?}"))
        })
        .await
    }

    /// `cluster status`, as scripts see it.
    pub(crate) async fn status(&self) -> Result<Value, String> {
        let done = cli::leasehold(&self.endpoints(), &["--timeout", "2s", "cluster", "status"]).await;
        if done.status == 0 { Ok(done.json) } else { Err(done.stderr) }
    }

    /// Waits until `cluster status` shows these servers as voters that have all that the leader has. Returns the status.
    pub(crate) async fn caught_up(&self, ids: &[u64]) -> Value {
        eventually(&format!("servers {ids:?} are voters and have caught up"), || async {
            let status = self.status().await?;
            let is_caught_up = is_caught_up(&status, ids).unwrap_or(false);
            if is_caught_up { Ok(status) } else { Err(status.to_string()) }
        })
        .await
    }

    fn data(&self, id: u64) -> PathBuf {
        self.directory(&format!("data-{id}"))
    }

    fn log_file(&self, id: u64) -> PathBuf {
        self.directory(&format!("server-{id}.log"))
    }
}

/// None if the status lacks what it takes to tell.
fn is_caught_up(status: &Value, ids: &[u64]) -> Option<bool> {
    let leader = status["leader"].as_u64()?;
    let members = status["members"].as_array()?;
    let member = |id: u64| members.iter().find(|member| member["replica"].as_u64() == Some(id));
    let last = member(leader)?["matched"].as_u64()?;
    let revision = member(leader)?["revision"].as_u64()?;
    let has_all = |id: &u64| {
        let member = member(*id)?;
        let is_voter = member["voter"].as_bool()? && member["answers"].as_bool()?;
        Some(is_voter && member["matched"].as_u64()? >= last && member["revision"].as_u64()? >= revision)
    };
    Some(ids.iter().all(|id| has_all(id).unwrap_or(false)))
}
