//! A cluster of replica processes on free loopback ports, with their data in a temporary folder.

use std::{
    fs::File,
    io::{self, Write},
    net::TcpListener,
    path::{Path as FilePath, PathBuf},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use leasehold_client_cache::ClusterInfo;
use tempfile::TempDir;

use crate::{error::ReplicasError, launch::Launch, replica};

/// Time limit for a cluster to have a leader.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// How often replicas are asked for the leader.
const CHECK_EVERY: Duration = Duration::from_millis(25);

/// Time limit of one replica's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// The number of last log lines to show when a replica fails.
const LOG_TAIL: usize = 3;

/// A running cluster of processes on this machine. Replicas have the numbers from 1 on.
///
/// On drop it kills each process by its id and removes the data, except after
/// [`keep`](Replicas::keep). If this process is killed, the replicas remove the data and exit by
/// themselves.
#[derive(Debug)]
pub struct Replicas {
    launch: Launch,
    addresses: Vec<String>,
    // Dropped before the folder, so that the replicas end before it is removed.
    processes: Vec<Option<Process>>,
    dir: Option<TempDir>,
}

/// A process that is killed on drop.
#[derive(Debug)]
struct Process(Option<Child>);

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Replicas {
    /// Starts `count` replicas and waits until one leads.
    ///
    /// `launch` starts one replica. Its program takes the options `--id`, `--cluster` and `--data`
    /// of `leasehold serve`, and calls [`when_abandoned`](crate::when_abandoned).
    pub async fn start(count: usize, launch: Launch) -> Result<Self, ReplicasError> {
        let dir = tempfile::Builder::new().prefix("leasehold-").tempdir();
        let dir = dir.map_err(ReplicasError::io("cannot make a temporary folder"))?;
        let addresses = free_addresses(count).map_err(ReplicasError::io("cannot find free ports"))?;
        let mut replicas = Self { launch, addresses, processes: Vec::new(), dir: Some(dir) };
        for id in 1..=count {
            let process = replicas.spawn(id)?;
            replicas.processes.push(Some(process));
        }
        replicas.leader(None).await?;
        Ok(replicas)
    }

    /// The addresses of the replicas.
    pub fn endpoints(&self) -> &[String] {
        &self.addresses
    }

    /// Waits until a replica other than `not` leads. Returns its number, from 1.
    pub async fn leader(&mut self, not: Option<usize>) -> Result<usize, ReplicasError> {
        let began = Instant::now();
        while began.elapsed() < START_TIMEOUT {
            for id in 1..=self.addresses.len() {
                self.check(id)?;
                if Some(id) == not || self.processes[id - 1].is_none() {
                    continue;
                }
                let leader = self.ask(id).await.and_then(|info| info.leader);
                if let Some(leader) =
                    leader.and_then(|leader| usize::try_from(leader).ok()).filter(|it| Some(*it) != not)
                {
                    return Ok(leader);
                }
            }
            tokio::time::sleep(CHECK_EVERY).await;
        }
        Err(ReplicasError::NoLeader { within: START_TIMEOUT, logs: self.log_tails() })
    }

    /// Kills a replica with SIGKILL and waits until it has ended.
    pub fn kill(&mut self, id: usize) -> Result<(), ReplicasError> {
        let process = self.processes.get_mut(id.wrapping_sub(1)).and_then(Option::take);
        let child = process.and_then(|mut process| process.0.take());
        let mut child = child.ok_or(ReplicasError::NotRunning { id })?;
        let ended = child.kill().and_then(|()| child.wait()).map(drop);
        ended.map_err(ReplicasError::io(format!("cannot kill replica {id}")))
    }

    /// Restarts a killed replica on its data.
    pub fn restart(&mut self, id: usize) -> Result<(), ReplicasError> {
        self.processes[id - 1] = Some(self.spawn(id)?);
        Ok(())
    }

    /// Waits until a restarted replica knows the leader.
    pub async fn rejoined(&mut self, id: usize) -> Result<(), ReplicasError> {
        let began = Instant::now();
        while began.elapsed() < START_TIMEOUT {
            self.check(id)?;
            if self.ask(id).await.is_some_and(|info| info.leader.is_some()) {
                return Ok(());
            }
            tokio::time::sleep(CHECK_EVERY).await;
        }
        Err(ReplicasError::NotRejoined { id, within: START_TIMEOUT, logs: self.log_tails() })
    }

    /// The process id of a replica.
    pub fn process_id(&self, id: usize) -> Result<u32, ReplicasError> {
        let process = self.processes.get(id.wrapping_sub(1)).and_then(Option::as_ref);
        let child = process.and_then(|process| process.0.as_ref());
        child.map(Child::id).ok_or(ReplicasError::NotRunning { id })
    }

    /// Keeps the cluster running and its data. Returns the folder and the process ids.
    pub fn keep(mut self) -> (PathBuf, Vec<u32>) {
        let children = self.processes.iter_mut().flatten().filter_map(|process| process.0.take());
        let ids = children.map(stay).collect();
        (self.dir.take().map(TempDir::keep).unwrap_or_default(), ids)
    }

    fn dir(&self) -> &FilePath {
        self.dir.as_ref().map_or(FilePath::new("."), TempDir::path)
    }

    fn data_of(&self, id: usize) -> PathBuf {
        self.dir().join(format!("replica-{id}"))
    }

    fn log_of(&self, id: usize) -> PathBuf {
        replica::log_of(&self.data_of(id))
    }

    fn spawn(&self, id: usize) -> Result<Process, ReplicasError> {
        let cannot = || ReplicasError::io(format!("cannot start replica {id}"));
        let log = File::options().create(true).append(true).open(self.log_of(id)).map_err(cannot())?;
        let members: Vec<String> = self.addresses.iter().enumerate().map(|(i, at)| format!("{}={at}", i + 1)).collect();
        let mut command = self.launch.command();
        command.args(["--id", &id.to_string(), "--cluster", &members.join(",")]);
        command.arg("--data").arg(self.data_of(id));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        command.spawn().map(|child| Process(Some(child))).map_err(cannot())
    }

    async fn ask(&self, id: usize) -> Option<ClusterInfo> {
        let answer = leasehold_client_cache::server_status(&self.addresses[id - 1], ANSWER_TIMEOUT).await;
        answer.ok().map(|status| status.info)
    }

    /// Fails if a replica has exited by itself: it will not return.
    fn check(&mut self, id: usize) -> Result<(), ReplicasError> {
        let child = self.processes.get_mut(id - 1).and_then(Option::as_mut).and_then(|process| process.0.as_mut());
        match child.map(Child::try_wait) {
            Some(Ok(Some(status))) => Err(ReplicasError::Ended { id, status, log: self.log_tail(id) }),
            _ => Ok(()),
        }
    }

    fn log_tails(&self) -> String {
        (1..=self.addresses.len()).map(|id| self.log_tail(id)).collect()
    }

    fn log_tail(&self, id: usize) -> String {
        let log = std::fs::read_to_string(self.log_of(id)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_TAIL)..].join("; ");
        if tail.is_empty() { String::new() } else { format!("; replica {id} said: {tail}") }
    }
}

/// Lets a replica outlive this process. Returns its process id.
fn stay(mut child: Child) -> u32 {
    // Ignores the error of a replica that has exited by itself.
    let _ = child.stdin.take().map(|mut input| input.write_all(replica::STAY));
    child.id()
}

/// Currently free addresses. All listeners stay open until the last is bound, so that the ports
/// differ.
fn free_addresses(count: usize) -> io::Result<Vec<String>> {
    let listeners = (0..count).map(|_| TcpListener::bind("127.0.0.1:0")).collect::<io::Result<Vec<_>>>()?;
    listeners.iter().map(|listener| Ok(listener.local_addr()?.to_string())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_loopback_and_differ() {
        let addresses = free_addresses(5).expect("free ports");
        let distinct: std::collections::BTreeSet<_> = addresses.iter().collect();
        assert_eq!(distinct.len(), 5);
        assert!(addresses.iter().all(|address| address.starts_with("127.0.0.1:")));
    }

    #[test]
    fn a_process_does_not_outlive_its_owner() {
        let child = std::process::Command::new("sleep").arg("600").spawn().expect("starts");
        let id = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("an id"));
        drop(Process(Some(child)));
        assert_eq!(nix::sys::signal::kill(id, None), Err(nix::errno::Errno::ESRCH));
    }
}
