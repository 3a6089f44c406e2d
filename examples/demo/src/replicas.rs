//! A cluster of its own: replica processes on free loopback ports, with their data in a temporary
//! folder.
//!
//! On drop it kills each process by its id and removes the folder, except after
//! [`keep`](Replicas::keep). If this process is killed, the replicas exit by themselves
//! ([`replica`]).

use std::{
    fs::File,
    io::{self, Write},
    net::TcpListener,
    path::{Path as FilePath, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use leasehold_client_cache::ClusterInfo;
use nix::unistd::{SysconfVar, sysconf};
use tempfile::TempDir;

use super::replica;
use crate::exit::CommandFailure;

/// Time limit for a cluster to have a leader.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// How often replicas are asked for the leader.
const LOOK_EVERY: Duration = Duration::from_millis(25);

/// Time limit of one replica's answer.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// The number of last log lines to show when a replica fails.
const LOG_TAIL: usize = 3;

/// A running cluster.
#[derive(Debug)]
pub(crate) struct Replicas {
    dir: Option<TempDir>,
    addresses: Vec<String>,
    processes: Vec<Option<Process>>,
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
    pub(crate) async fn start(count: usize) -> Result<Self, CommandFailure> {
        let dir = tempfile::Builder::new().prefix("leasehold-").tempdir();
        let dir = dir.map_err(|error| CommandFailure::io("cannot make a temporary folder", &error))?;
        let addresses = free_addresses(count).map_err(|error| CommandFailure::io("cannot find free ports", &error))?;
        let mut replicas = Self { dir: Some(dir), addresses, processes: Vec::new() };
        for id in 1..=count {
            let process = replicas.spawn(id)?;
            replicas.processes.push(Some(process));
        }
        replicas.leader(None).await?;
        Ok(replicas)
    }

    /// The addresses of the replicas.
    pub(crate) fn endpoints(&self) -> &[String] {
        &self.addresses
    }

    /// Waits until a replica other than `not` leads. Returns its number, from 1.
    pub(crate) async fn leader(&mut self, not: Option<usize>) -> Result<usize, CommandFailure> {
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
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Err(CommandFailure::unavailable(format!("no replica led within {START_TIMEOUT:?}{}", self.log_tails())))
    }

    /// Kills a replica with SIGKILL and waits until it has ended.
    pub(crate) fn kill(&mut self, id: usize) -> Result<(), CommandFailure> {
        let process = self.processes.get_mut(id.wrapping_sub(1)).and_then(Option::take);
        match process.and_then(|mut process| process.0.take()) {
            Some(mut child) => child
                .kill()
                .and_then(|()| child.wait())
                .map(drop)
                .map_err(|error| CommandFailure::io(format!("cannot kill replica {id}"), &error)),
            None => {
                Err(CommandFailure::refused("replica", format!("replica {id} is not running: expected one that is")))
            }
        }
    }

    /// Restarts a killed replica on its data.
    pub(crate) fn restart(&mut self, id: usize) -> Result<(), CommandFailure> {
        self.processes[id - 1] = Some(self.spawn(id)?);
        Ok(())
    }

    /// Waits until a restarted replica knows the leader.
    pub(crate) async fn rejoined(&mut self, id: usize) -> Result<(), CommandFailure> {
        let began = Instant::now();
        while began.elapsed() < START_TIMEOUT {
            self.check(id)?;
            if self.ask(id).await.is_some_and(|info| info.leader.is_some()) {
                return Ok(());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
        Err(CommandFailure::unavailable(format!(
            "replica {id} found no leader within {START_TIMEOUT:?}{}",
            self.log_tails()
        )))
    }

    /// The resident memory of a replica's process in bytes: VmRSS.
    pub(crate) fn resident_bytes(&self, id: usize) -> Result<u64, CommandFailure> {
        let file = format!("/proc/{}/status", self.child(id)?.id());
        let status = std::fs::read_to_string(&file).map_err(|error| CommandFailure::io(&file, &error))?;
        resident_bytes(&status)
            .ok_or_else(|| CommandFailure::refused("proc", format!("{file} has no VmRSS: expected one")))
    }

    /// The processor time that a replica's process has used.
    pub(crate) fn processor_time(&self, id: usize) -> Result<Duration, CommandFailure> {
        let file = format!("/proc/{}/stat", self.child(id)?.id());
        let stat = std::fs::read_to_string(&file).map_err(|error| CommandFailure::io(&file, &error))?;
        let per_second = sysconf(SysconfVar::CLK_TCK).ok().flatten();
        match (processor_ticks(&stat), per_second) {
            (Some(ticks), Some(per_second)) => Ok(Duration::from_secs_f64(ticks as f64 / per_second as f64)),
            _ => Err(CommandFailure::refused("proc", format!("{file}: expected user and system time, in clock ticks"))),
        }
    }

    fn child(&self, id: usize) -> Result<&Child, CommandFailure> {
        let child = self.processes.get(id - 1).and_then(Option::as_ref).and_then(|process| process.0.as_ref());
        child.ok_or_else(|| CommandFailure::refused("replica", format!("replica {id} is not running")))
    }

    /// Keeps the cluster running and its data. Returns the folder and the process ids.
    pub(crate) fn keep(mut self) -> (PathBuf, Vec<u32>) {
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

    fn spawn(&self, id: usize) -> Result<Process, CommandFailure> {
        let cannot = |error: io::Error| CommandFailure::io(format!("cannot start replica {id}"), &error);
        let log = File::options().create(true).append(true).open(self.log_of(id)).map_err(cannot)?;
        let members: Vec<String> = self.addresses.iter().enumerate().map(|(i, at)| format!("{}={at}", i + 1)).collect();
        let mut command = Command::new(std::env::current_exe().map_err(cannot)?);
        command.arg("demo-replica").args(["--id", &id.to_string(), "--cluster", &members.join(",")]);
        command.arg("--data").arg(self.data_of(id));
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(log);
        // Its own group, so that Ctrl-C reaches only this process, which ends the replicas.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        command.spawn().map(|child| Process(Some(child))).map_err(cannot)
    }

    async fn ask(&self, id: usize) -> Option<ClusterInfo> {
        let answer = leasehold_client_cache::server_status(&self.addresses[id - 1], ANSWER_TIMEOUT).await;
        answer.ok().map(|status| status.info)
    }

    /// Fails if a replica has exited by itself: it will not return.
    fn check(&mut self, id: usize) -> Result<(), CommandFailure> {
        let child = self.processes.get_mut(id - 1).and_then(Option::as_mut).and_then(|process| process.0.as_mut());
        match child.map(Child::try_wait) {
            Some(Ok(Some(status))) => {
                let text = format!("replica {id} ended with {status}{}", self.log_tail(id));
                Err(CommandFailure::refused("replica", text))
            }
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

fn resident_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
}

/// User and system time. The process name in parentheses can contain anything.
fn processor_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let (user, system): (u64, u64) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
    Some(user + system)
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
    fn resident_memory_is_read_from_the_line_that_has_it() {
        assert_eq!(resident_bytes("Name:\tx\nVmHWM:\t 9 kB\nVmRSS:\t    5124 kB\n"), Some(5124 * 1024));
        assert_eq!(resident_bytes("Name:\tx\n"), None);
    }

    #[test]
    fn processor_time_is_found_behind_any_name() {
        assert_eq!(processor_ticks("17 (a) b) R 1 2 3 4 5 6 7 8 9 10 250 50 0 0 20 0 1"), Some(300));
        assert_eq!(processor_ticks("17 (a"), None);
    }

    #[test]
    fn a_process_does_not_outlive_its_owner() {
        let child = Command::new("sleep").arg("600").spawn().expect("starts");
        let id = nix::unistd::Pid::from_raw(i32::try_from(child.id()).expect("an id"));
        drop(Process(Some(child)));
        assert_eq!(nix::sys::signal::kill(id, None), Err(nix::errno::Errno::ESRCH));
    }
}
