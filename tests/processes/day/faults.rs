//! The faults of a cluster's day, one after the other, and their repairs.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use rand::{Rng, seq::IndexedRandom};

use super::{
    CHECK_DESCRIPTORS, CHECK_DISK_FULL, CHECK_FREE_LOCK, CHECK_GONE, CHECK_STOPPED, Day, FILES, HOSTS, OPERATOR, crowd,
};
use crate::{
    common::{Cli, eventually},
    disk::Disk,
    workload::now_ns,
    world::server,
};

/// A cut that must end nothing: far less than half of a term.
const SHORT: Duration = Duration::from_millis(500);

/// More clients than a server has room for: half of its files are for clients.
const CROWD: usize = FILES / 2 + 32;

/// How many puts go to a full disk between two checks whether its server has ended.
const PUTS_PER_CHECK: usize = 10;

/// A kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fault {
    ServerKilled,
    LeaderPaused,
    LeaderCutOff,
    LeaderStopped,
    AllServersKilled,
    DiskFull,
    DescriptorsTaken,
    DiskLost,
    MachineReplaced,
    HostCutOff,
    HostCutShortly,
    ReaderKilled,
    ReaderPaused,
    JobKilled,
    JobPaused,
    ServiceKilled,
}

impl Fault {
    pub(super) const ALL: [Self; 16] = [
        Self::ServerKilled,
        Self::LeaderPaused,
        Self::LeaderCutOff,
        Self::LeaderStopped,
        Self::AllServersKilled,
        Self::DiskFull,
        Self::DescriptorsTaken,
        Self::DiskLost,
        Self::MachineReplaced,
        Self::HostCutOff,
        Self::HostCutShortly,
        Self::ReaderKilled,
        Self::ReaderPaused,
        Self::JobKilled,
        Self::JobPaused,
        Self::ServiceKilled,
    ];

    /// The fault's name in the table.
    pub(super) fn words(self) -> &'static str {
        match self {
            Self::ServerKilled => "a server is killed",
            Self::LeaderPaused => "the leader is paused",
            Self::LeaderCutOff => "the leader is cut off",
            Self::LeaderStopped => "the leader is told to stop",
            Self::AllServersKilled => "all servers are killed",
            Self::DiskFull => "a server's disk is full",
            Self::DescriptorsTaken => "a follower runs out of descriptors",
            Self::DiskLost => "a server is killed and its disk wiped",
            Self::MachineReplaced => "a server is replaced",
            Self::HostCutOff => "a client's host is cut off",
            Self::HostCutShortly => "a client's host is cut off for 0.5 s",
            Self::ReaderKilled => "a reader is killed",
            Self::ReaderPaused => "a reader is paused",
            Self::JobKilled => "a job's holder is killed",
            Self::JobPaused => "a job's holder is paused",
            Self::ServiceKilled => "a service is killed",
        }
    }

    /// True if it may take the leader away.
    pub(super) fn is_of_servers(self) -> bool {
        matches!(
            self,
            Self::ServerKilled
                | Self::LeaderPaused
                | Self::LeaderCutOff
                | Self::LeaderStopped
                | Self::AllServersKilled
                | Self::DiskFull
                | Self::DiskLost
                | Self::MachineReplaced
        )
    }
}

impl Day {
    /// Causes a fault, and repairs it. When this returns, the recovery has begun.
    pub(super) fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::ServerKilled => {
                let id = self.any_server();
                self.cluster.kill(id);
                self.writes_on();
                self.cluster.spawn(id);
            }
            Fault::LeaderPaused => {
                let id = self.cluster.leader();
                self.cluster.pause(id, true);
                self.writes_on();
                self.cluster.pause(id, false);
            }
            Fault::LeaderCutOff => {
                let host = server(self.cluster.leader());
                self.network.cut_off(&host);
                self.writes_on();
                self.network.plug_in(&host);
            }
            Fault::LeaderStopped => {
                let id = self.cluster.leader();
                self.stop_server(id);
                self.writes_on();
                self.cluster.spawn(id);
            }
            Fault::AllServersKilled => {
                self.cluster.ids().into_iter().for_each(|id| self.cluster.kill(id));
                self.cluster.ids().into_iter().for_each(|id| self.cluster.spawn(id));
            }
            Fault::DiskFull => self.fill_a_disk(),
            Fault::DescriptorsTaken => self.take_descriptors(),
            Fault::DiskLost => {
                let id = self.any_server();
                self.cluster.kill(id);
                self.cluster.wipe(id);
                self.writes_on();
                self.cluster.spawn(id);
            }
            Fault::MachineReplaced => self.replace_a_server(),
            Fault::HostCutOff => self.cut_off_a_host(),
            Fault::HostCutShortly => {
                let host = self.any_host();
                let ends = Instant::now() + SHORT;
                self.network.cut_off(host);
                eventually("the cut is over", || (Instant::now() >= ends).then_some(()));
                self.network.plug_in(host);
            }
            Fault::ReaderKilled => {
                let host = self.any_host();
                self.kill_reader(host);
                self.writes_on();
                self.start_reader(host);
            }
            Fault::ReaderPaused => {
                let host = self.any_host();
                self.readers[host].process.pause(true);
                self.writes_on();
                self.readers[host].process.pause(false);
            }
            Fault::JobKilled => self.end_a_job(Signal::SIGKILL),
            Fault::JobPaused => self.end_a_job(Signal::SIGSTOP),
            Fault::ServiceKilled => {
                let name = self.services().choose(&mut self.random).expect("some").clone();
                self.listing.seen().struck.insert(name.clone());
                self.programs.want(&name, false);
                self.programs.signal(&name, Signal::SIGKILL);
                self.until_gone(&name, Instant::now());
                self.programs.want(&name, true);
            }
        }
    }

    fn any_server(&mut self) -> u64 {
        *self.cluster.ids().choose(&mut self.random).expect("some")
    }

    fn any_host(&mut self) -> &'static str {
        HOSTS.choose(&mut self.random).expect("some")
    }

    /// Waits until a write is acknowledged that begins from now on.
    pub(super) fn writes_on(&self) {
        let since = now_ns();
        eventually("writes go on", || (self.writer.log().last_acknowledged() > since).then_some(()));
    }

    fn stop_server(&mut self, id: u64) {
        let status = self.cluster.stop(id, Signal::SIGTERM);
        let outcome = if status.success() { Ok(()) } else { Err(format!("server {id} ended with {status}")) };
        self.table.check(CHECK_STOPPED, outcome);
    }

    fn replace_a_server(&mut self) {
        let id = self.any_server();
        self.stop_server(id);
        let disk = Disk::new().expect("one could be had before");
        self.cluster.move_data(id, disk.data());
        // The old disk is gone, with all its data.
        self.disks.insert(id, disk);
        self.writes_on();
        self.cluster.spawn(id);
    }

    fn fill_a_disk(&mut self) {
        let id = self.any_server();
        self.disks[&id].fill();
        let cli = self.cluster.cli();
        let mut shell = cli.shell_with(&["--timeout", "30s"]);
        let mut number = 0;
        let status = eventually("the server whose disk is full ends", || {
            for _ in 0..PUTS_PER_CHECK {
                number += 1;
                // Long enough to fill the rest of a page, and different each time. Another check
                // covers its acknowledgement.
                shell.ask(&format!("put /ballast {}", format!("{number}-").repeat(200)));
            }
            self.cluster.has_ended(id)
        });
        shell.close();
        let says_so = self.cluster.log(id).contains("cannot go on");
        let outcome = match (status.code(), says_so) {
            (Some(1), true) => Ok(()),
            _ => Err(format!("server {id} ended with {status}, and says that it cannot go on: {says_so}")),
        };
        self.table.check(CHECK_DISK_FULL, outcome);
        self.disks[&id].empty();
        self.cluster.spawn(id);
    }

    /// Takes all the room for clients that a follower has. (While a leader has no room, no server
    /// serves a client that must connect anew.)
    fn take_descriptors(&mut self) {
        let followers = self.cluster.others(self.cluster.leader());
        let id = *followers.choose(&mut self.random).expect("two");
        let (place, directory) = (self.network.place(OPERATOR), self.cluster.directory(""));
        let name = self.new_name("crowd");
        let mut crowd = crowd::start(&place, self.cluster.address(id), CROWD, &directory, &name);
        let came = eventually("the crowd is there", || crowd.news().pop());
        self.writes_on();
        let all = self.cluster.cli();
        let alone = Cli { place: all.place.clone(), endpoints: self.cluster.address(id).to_owned() };
        let says_so = |words: &String| words.contains("connections of clients, the limit");
        // Another client may have left just before.
        let one_more = eventually("one more client is refused", || {
            let ran = alone.run(["--timeout", "500ms", "get", "/config/0"]);
            if ran.status == 0 { Err(format!("{ran:?}")) } else { Ok(ran) }
        });
        let elsewhere = all.run(["--timeout", "10s", "get", "/config/0"]);
        let lives = self.cluster.has_ended(id).is_none();
        let is_told = !came.refused.is_empty() && came.refused.iter().all(says_so);
        let is_fine = is_told && one_more.status == 3 && says_so(&one_more.stderr) && elsewhere.status == 0 && lives;
        let found = || {
            format!(
                "server {id} admitted {} of {CROWD} and told the others {:?}; one more: {one_more:?}; through the other \
                 servers: {elsewhere:?}; it lives: {lives}",
                came.admitted,
                came.refused.first()
            )
        };
        self.table.check(CHECK_DESCRIPTORS, if is_fine { Ok(()) } else { Err(found()) });
        crowd.stop();
        eventually("the server has room again", || {
            let ran = alone.run(["--timeout", "1s", "get", "/config/0"]);
            if ran.status == 0 { Ok(()) } else { Err(ran.stderr) }
        });
    }

    fn cut_off_a_host(&mut self) {
        let host = self.any_host();
        let services = self.services_at(host);
        self.listing.seen().struck.extend(services.clone());
        let began = Instant::now();
        self.network.cut_off(host);
        services.iter().for_each(|name| self.until_gone(name, began));
        self.writes_on();
        self.network.plug_in(host);
    }

    /// Waits until a service that ended at `since` is no longer listed.
    fn until_gone(&mut self, name: &str, since: Instant) {
        eventually(&format!("{name} is gone"), || (!self.listing.seen().is_listed(name)).then_some(()));
        let took = since.elapsed();
        let stall = self.stalls.during(since, Instant::now());
        self.table.took(CHECK_GONE, took, stall, name);
    }

    /// Kills or pauses the lock owner while its job runs. The next job must begin in time.
    fn end_a_job(&mut self, signal: Signal) {
        let (token, host, since) = eventually("a holder is struck while its job runs", || {
            let (token, host, has_ended) = self.programs.jobs().last.clone().ok_or("no job has begun")?;
            if has_ended || !self.programs.signal(&host, signal) {
                return Err(format!("{token} at {host} has ended"));
            }
            let since = Instant::now();
            // It may have ended before the signal. Then this tries again with the next owner.
            let last = self.programs.jobs().last.clone();
            if last == Some((token, host.clone(), false)) {
                return Ok((token, host, since));
            }
            self.programs.signal(&host, Signal::SIGCONT);
            Err(format!("{token} at {host} had ended"))
        });
        eventually("the next job begins", || {
            let next = self.programs.jobs().last.clone().filter(|(next, ..)| *next > token);
            next.map(drop)
        });
        let took = since.elapsed();
        let stall = self.stalls.during(since, Instant::now());
        self.table.took(CHECK_FREE_LOCK, took, stall, &format!("{signal} to token {token} at {host}"));
        if signal == Signal::SIGSTOP {
            self.programs.signal(&host, Signal::SIGCONT);
        }
    }

    /// A name that was not used before.
    pub(super) fn new_name(&mut self, what: &str) -> String {
        self.started += 1;
        format!("{what}-{}", self.started)
    }

    /// All faults, in a random order.
    pub(super) fn shuffled(&mut self) -> Vec<Fault> {
        let mut faults = Fault::ALL.to_vec();
        for last in (1..faults.len()).rev() {
            faults.swap(last, self.random.random_range(0..=last));
        }
        faults
    }
}
