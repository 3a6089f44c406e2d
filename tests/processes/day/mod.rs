//! A day in the life of a cluster. Three servers are installed, and programs use them all the time.
//! Then one fault after another happens. At the end, a table shows each promise and its verdict.
//!
//! Three uses run all the time:
//!
//! - jobs under one exclusive lock (`leasehold lock`), and services (`leasehold register`):
//!   [`programs`];
//! - a configuration that one writer puts and that readers cache: [`settings`];
//! - an operator who checks which services are registered: [`listing`].
//!
//! The faults are those of [`faults`], each once a round, in an order that a seed draws. After each
//! fault everything must work again. `tests/day-in-the-life` runs this for hours.
//!
//! - `LEASEHOLD_DAY_SECONDS=7200`: rounds begin for this long. By default there is one round.
//! - `LEASEHOLD_DAY_SEED=7`: the seed. It repeats the order of the faults and not the run.
//! - `LEASEHOLD_DAY_BINARY=/opt/leasehold/bin/leasehold`: an installed binary. By default, the
//!   binary of the tests is copied to its own folder.

mod crowd;
mod faults;
mod listing;
mod programs;
mod settings;
mod table;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use rand::{SeedableRng, rngs::SmallRng};

use crate::{
    alone,
    common::{Cli, Cluster, Place, Site, eventually, stall::Stalls},
    disk::Disk,
    network::Network,
    number,
    partition::OUTAGE_MAX,
    workload::now_ns,
    world::{MARGIN, TERM, WAIT_MAX, server},
};
use faults::Fault;
use listing::Listing;
use programs::Programs;
use settings::{Judge, Reader, Writer};
use table::Table;

/// The host of commands and of the writer. It has no faults.
const OPERATOR: &str = "op";

/// The hosts of readers, jobs and services.
const HOSTS: [&str; 2] = ["c1", "c2"];

/// The services at each host.
const SERVICES: [&str; 2] = ["web", "mail"];

/// How many files a server may open.
const FILES: usize = 512;

/// The time between two ticks: a tenth of the shortest term.
const TICK: Duration = Duration::from_millis(200);

/// The term of the services' leases. A client must be able to find the next leader within it. The
/// client waits for a third of the term before it looks, and up to a second for each server that
/// does not answer. With a term of 2 s, one of seven paused leaders ended a registration.
const SERVICE_TERM: Duration = Duration::from_secs(4);

/// The most time from the death of a lock owner to the end of its lease: the term, the margin, a
/// tick until the last renewal is in the log, and a tick until the end is.
const END_MAX: Duration = end_max(TERM);

/// The same for a service.
const GONE_MAX: Duration = end_max(SERVICE_TERM);

const fn end_max(term: Duration) -> Duration {
    term.saturating_add(MARGIN).saturating_add(TICK).saturating_add(TICK)
}

/// What a change of the leader adds to a write's wait, beside the time without a leader.
const RECALLED_AGAIN: Duration = Duration::from_millis(700);

/// The longest wait of a write while servers are at fault: for a lease, and for a leader.
const WAIT_THROUGH_FAULT_MAX: Duration = WAIT_MAX.saturating_add(OUTAGE_MAX).saturating_add(RECALLED_AGAIN);

/// The most time from a repair until everything works: a leader is elected within four of the
/// longest election times, and leases that nobody renews end.
const HEALED_MAX: Duration = WAIT_MAX.saturating_add(Duration::from_millis(4 * 600));

/// The most attempts at a fault: the machine may stall during one.
const TRIES: u32 = 3;

const CHECK_INSTALLED: &str = "the installed binary says its version";
const CHECK_ONE_JOB: &str = "no two jobs run at once under one exclusive lock";
const CHECK_TOKENS: &str = "fencing tokens grow from job to job";
const CHECK_FREE_LOCK: &str = "after its holder's end, the next job begins";
const CHECK_WRITE: &str = "a write waits, while the servers are whole";
const CHECK_WRITE_FAULT: &str = "a write waits, while servers are at fault";
const CHECK_ANSWERED: &str = "each write is acknowledged";
const CHECK_THERE: &str = "acknowledged writes are there, each once";
const CHECK_CACHED: &str = "reads from memory are linearizable";
const CHECK_READS: &str = "other reads are linearizable";
const CHECK_LISTED: &str = "services that live are listed";
const CHECK_KEPT: &str = "services that live stay registered";
const CHECK_GONE: &str = "a dead service is not listed any more";
const CHECK_STOPPED: &str = "a server that is told to stop ends with status 0";
const CHECK_DISK_FULL: &str = "a server whose disk is full says so and ends with status 1";
const CHECK_DESCRIPTORS: &str = "a follower without descriptors says so and lives";
const CHECK_NO_PANIC: &str = "no server has panicked";
const CHECK_PROGRAMS: &str = "programs that are told to stop end with status 0";
const CHECK_RESTART: &str = "nothing is lost by a restart of all at the end";

/// A cluster, the programs that use it, and the results.
struct Day {
    // Processes are dropped before their disks and network.
    listing: Listing,
    programs: Programs,
    writer: Writer,
    readers: BTreeMap<&'static str, Reader>,
    cluster: Cluster,
    disks: BTreeMap<u64, Disk>,
    network: Network,
    binary: PathBuf,
    table: Table,
    judge: Judge,
    /// When each reader last read from memory, by its notes.
    cached: BTreeMap<&'static str, u64>,
    /// When servers were at fault since the puts were last judged, in nanoseconds.
    faulty: Vec<(u64, u64)>,
    /// Since the beginning of the round.
    stalls: Stalls,
    random: SmallRng,
    started: u64,
    /// The latest fault, for messages.
    latest: &'static str,
    _folder: tempfile::TempDir,
}

/// The installed binary: the one that the environment names, or a copy of the one that the tests
/// were built with.
fn install(folder: &Path) -> PathBuf {
    if let Some(installed) = std::env::var_os("LEASEHOLD_DAY_BINARY") {
        return PathBuf::from(installed);
    }
    let binary = folder.join("leasehold");
    std::fs::copy(env!("CARGO_BIN_EXE_leasehold"), &binary).expect("there is room for a copy");
    binary
}

/// Checks that the binary runs, and has the version of these tests.
fn says_its_version(binary: &Path) -> Result<(), String> {
    let output = Command::new(binary).arg("--version").output();
    let said = output.map_err(|error| format!("{}: {error}", binary.display()))?;
    let (got, expected) = (String::from_utf8_lossy(&said.stdout).into_owned(), env!("CARGO_PKG_VERSION"));
    if got.contains(expected) { Ok(()) } else { Err(format!("{said:?}: expected {expected}")) }
}

fn table() -> Table {
    let mut table = Table::default();
    [CHECK_INSTALLED, CHECK_ONE_JOB, CHECK_TOKENS].into_iter().for_each(|check| table.declare(check));
    table.declare_bound(CHECK_FREE_LOCK, END_MAX);
    [CHECK_CACHED, CHECK_READS, CHECK_ANSWERED, CHECK_THERE].into_iter().for_each(|check| table.declare(check));
    table.declare_bound(CHECK_WRITE, WAIT_MAX);
    table.declare_bound(CHECK_WRITE_FAULT, WAIT_THROUGH_FAULT_MAX);
    [CHECK_LISTED, CHECK_KEPT].into_iter().for_each(|check| table.declare(check));
    table.declare_bound(CHECK_GONE, GONE_MAX);
    for check in [CHECK_STOPPED, CHECK_DISK_FULL, CHECK_DESCRIPTORS] {
        table.declare(check);
    }
    Fault::ALL.into_iter().for_each(|fault| table.declare_bound(&healed(fault), HEALED_MAX));
    [CHECK_RESTART, CHECK_NO_PANIC, CHECK_PROGRAMS].into_iter().for_each(|check| table.declare(check));
    table
}

/// The row for the time from a repair until everything works.
fn healed(fault: Fault) -> String {
    format!("healed after: {}", fault.words())
}

impl Day {
    /// `None` if the machine lacks something and the test is skipped.
    fn begin(seed: u64) -> Option<Self> {
        let hosts: Vec<String> =
            (1..=3).map(server).chain(HOSTS.map(str::to_owned)).chain([OPERATOR.to_owned()]).collect();
        let network = Network::of(&hosts.iter().map(String::as_str).collect::<Vec<_>>())?;
        let disks: BTreeMap<u64, Disk> = (1..=3).map(|id| Some((id, Disk::new()?))).collect::<Option<_>>()?;
        let folder = tempfile::tempdir().expect("a temporary directory");
        let mut table = table();
        let binary = install(folder.path());
        table.check(CHECK_INSTALLED, says_its_version(&binary));
        let limit = format!("ulimit -n {FILES} && exec \"$0\" \"$@\"");
        let sites = disks.iter().map(|(id, disk)| Site {
            place: network.place(&server(*id)).then(&["sh", "-c", &limit]).with_binary(&binary),
            address: format!("{}:7600", network.address(&server(*id))),
            data: Some(disk.data()),
        });
        let cluster = Cluster::start_at(sites.collect(), network.place(OPERATOR).with_binary(&binary), None);
        let cli = cluster.cli();
        let margin = format!("{}ms", MARGIN.as_millis());
        for (volume, term) in [("/config", TERM), ("/jobs", TERM), (programs::SERVICES, SERVICE_TERM)] {
            let term = format!("{}ms", term.as_millis());
            cli.done(["--timeout", "30s", "volume", "create", volume, "--term", &term, "--skew-margin", &margin]);
        }
        let programs = Programs::supervised(folder.path());
        let mut day = Self {
            listing: Listing::start(&cli, programs.all(), all_services()),
            programs,
            writer: Writer::start(&cli),
            readers: BTreeMap::new(),
            cluster,
            disks,
            network,
            binary,
            table,
            judge: Judge::default(),
            cached: BTreeMap::new(),
            faulty: Vec::new(),
            stalls: Stalls::watched(),
            random: SmallRng::seed_from_u64(seed),
            started: 0,
            latest: "nothing yet",
            _folder: folder,
        };
        for host in HOSTS {
            let cli = day.cli_at(host);
            day.start_reader(host);
            day.programs.add_jobs(host, cli.clone());
            services_at(host).iter().for_each(|name| day.programs.add_service(name, cli.clone()));
        }
        // Results from before all services are there do not count.
        day.listing.seen().struck.extend(all_services());
        day.until_healed(now_ns());
        day.take_news();
        Some(day)
    }

    fn cli_at(&self, host: &str) -> Cli {
        Cli { place: self.place(host), endpoints: self.cluster.endpoints().join(",") }
    }

    fn place(&self, host: &str) -> Place {
        self.network.place(host).with_binary(&self.binary)
    }

    fn start_reader(&mut self, host: &'static str) {
        let name = self.new_name(host);
        let reader =
            settings::start_reader(&self.place(host), self.cluster.endpoints(), &name, &self.cluster.directory(""));
        assert!(self.readers.insert(host, reader).is_none(), "a reader runs at {host} already");
    }

    fn kill_reader(&mut self, host: &'static str) {
        let mut reader = self.readers.remove(host).expect("one runs there");
        reader.process.kill();
        self.judge.add_reads(reader.news());
    }

    /// Reads the new notes of the readers.
    fn gather(&mut self) {
        for (host, reader) in &mut self.readers {
            let news = reader.news();
            let cached = news.iter().filter_map(settings::Reads::cached_at).max();
            self.cached.insert(host, self.cached.get(host).copied().max(cached).unwrap_or_default());
            self.judge.add_reads(news);
        }
    }

    /// Causes one fault, and waits until everything works again. False if this proves nothing.
    fn befall(&mut self, fault: Fault) -> bool {
        let (began, spared) = (now_ns(), self.listing.seen().struck.clone());
        assert!(spared.is_empty(), "{spared:?} were struck before");
        self.latest = fault.words();
        self.strike(fault);
        let (repaired, since) = (Instant::now(), now_ns());
        self.until_healed(since);
        let healed = Instant::now();
        if fault.is_of_servers() {
            self.faulty.push((began, now_ns()));
        }
        let (took, stall) = (healed - repaired, self.stalls.during(repaired, healed));
        println!("  {} for {:.2?}, healed after {took:.2?}", fault.words(), Duration::from_nanos(since - began));
        let there = self.writer.compare(&self.cluster.cli());
        self.compared(CHECK_THERE, there);
        let is_shown = self.table.took(&self::healed(fault), took, stall, fault.words());
        self.take_news();
        is_shown
    }

    fn compared(&mut self, check: &str, outcome: Result<u64, String>) {
        match outcome {
            Ok(writes) => self.table.at_least(check, writes),
            Err(why) => self.table.check(check, Err(why)),
        }
    }

    /// Waits until all uses that began after `since` work: writes, reads from memory, jobs,
    /// services.
    fn until_healed(&mut self, since: u64) {
        let begun = self.programs.jobs().begun;
        self.cluster.caught_up(&self.cluster.ids());
        eventually("all uses go on", || {
            self.gather();
            let writes = self.writer.log().last_acknowledged() > since;
            let reads = HOSTS.iter().all(|host| self.cached.get(host).is_some_and(|cached| *cached > since));
            let jobs = self.programs.jobs().begun > begun;
            let (all, seen) = (self.programs.all(), self.listing.seen());
            let is_listed = |name: &String| all.registered(name).is_some() && seen.is_listed(name);
            let services = seen.began > since && all_services().iter().all(is_listed);
            if writes && reads && jobs && services {
                return Ok(());
            }
            Err(format!("writes: {writes}, reads from memory: {reads}, jobs: {jobs}, services: {services}"))
        });
        self.cluster.assert_all_run();
    }

    /// Judges the results since the last call.
    fn take_news(&mut self) {
        let (puts, refused) = self.writer.log().take();
        self.table.passed(CHECK_ANSWERED, puts.len() as u64);
        refused.into_iter().for_each(|answer| self.table.check(CHECK_ANSWERED, Err(answer)));
        for put in &puts {
            self.took(put);
        }
        // The put in flight counts with the next ones.
        self.faulty.drain(..self.faulty.len().saturating_sub(1));
        self.judge.add_puts(&puts);
        let checks = std::mem::take(&mut self.listing.seen().checks);
        self.table.passed(CHECK_LISTED, checks.fine);
        checks.missing.into_iter().for_each(|why| self.table.check(CHECK_LISTED, Err(why)));
        self.take_ends();
        self.listing.seen().struck.clear();
    }

    /// Judges how long a put took.
    fn took(&mut self, put: &settings::Put) {
        let ended = put.acknowledged.expect("it has ended");
        let overlaps = |(from, to): &(u64, u64)| put.began <= *to && ended >= *from;
        let check = if self.faulty.iter().any(overlaps) { CHECK_WRITE_FAULT } else { CHECK_WRITE };
        let (now, now_at) = (Instant::now(), now_ns());
        let instant = |at: u64| now - Duration::from_nanos(now_at.saturating_sub(at));
        let stall = self.stalls.during(instant(put.began), instant(ended));
        let circumstances = format!("{put:?}, {}", self.latest);
        self.table.took(check, Duration::from_nanos(ended - put.began), stall, &circumstances);
    }

    /// Judges which services have ended without a fault.
    fn take_ends(&mut self) {
        let struck = self.listing.seen().struck.clone();
        for name in all_services() {
            let ends = self.programs.take_ends(&name);
            if struck.contains(&name) {
                continue;
            }
            if ends.is_empty() {
                self.table.passed(CHECK_KEPT, 1);
            }
            for (at, why) in ends {
                let from = at.checked_sub(SERVICE_TERM).expect("it has lived");
                match self.stalls.during(from, at) > crate::common::ALLOWANCE {
                    true => self.table.set_aside(CHECK_KEPT),
                    false => self.table.check(CHECK_KEPT, Err(format!("{why} ({})", self.latest))),
                }
            }
        }
    }

    /// Causes each fault once.
    fn round(&mut self) {
        self.stalls = Stalls::watched();
        let mut faults: Vec<(Fault, u32)> = self.shuffled().into_iter().map(|fault| (fault, 1)).rev().collect();
        while let Some((fault, tries)) = faults.pop() {
            if !self.befall(fault) && tries < TRIES {
                println!("  the machine stood still: {} again", fault.words());
                faults.push((fault, tries + 1));
            }
        }
        self.gather();
        // After this, all writes that a reader may have seen have ended.
        self.writes_on();
        self.judge_reads();
        self.judge_jobs();
    }

    /// Judges the reads.
    fn judge_reads(&mut self) {
        self.take_news();
        let judgement = self.judge.judge();
        self.table.passed(CHECK_CACHED, judgement.cached);
        self.table.passed(CHECK_READS, judgement.others);
        for (is_cached, why) in judgement.violations {
            self.table.check(if is_cached { CHECK_CACHED } else { CHECK_READS }, Err(why));
        }
    }

    fn judge_jobs(&mut self) {
        let jobs = self.programs.jobs();
        let (begun, overlaps, old) =
            (jobs.begun, std::mem::take(&mut jobs.overlaps), std::mem::take(&mut jobs.old_tokens));
        for (check, violations) in [(CHECK_ONE_JOB, overlaps), (CHECK_TOKENS, old)] {
            self.table.at_least(check, begun);
            violations.into_iter().for_each(|why| self.table.check(check, Err(why)));
        }
    }

    /// Ends all uses, and restarts all servers. Then all acknowledged writes must be there.
    fn end(mut self) -> Table {
        self.listing.stop();
        self.writer.stop();
        for (program, status) in self.programs.stop() {
            // A job that gets SIGTERM ends by that signal.
            let expected: &[i32] = if HOSTS.contains(&program.as_str()) { &[0, 128 + 15] } else { &[0] };
            let outcome = if expected.contains(&status) { Ok(()) } else { Err(format!("{program}: {status}")) };
            self.table.check(CHECK_PROGRAMS, outcome);
        }
        self.readers.values_mut().for_each(Reader::stop);
        self.gather();
        self.judge_reads();
        self.judge_jobs();
        let ids = self.cluster.ids();
        ids.iter().for_each(|id| self.cluster.kill(*id));
        ids.iter().for_each(|id| self.cluster.spawn(*id));
        self.cluster.caught_up(&ids);
        let there = self.writer.compare(&self.cluster.cli());
        self.compared(CHECK_RESTART, there);
        for id in ids {
            let log = self.cluster.log(id);
            let panic = log.lines().find(|line| line.contains("panicked at"));
            let outcome = panic.map_or(Ok(()), |line| Err(format!("server {id}: {line}")));
            self.table.check(CHECK_NO_PANIC, outcome);
        }
        self.table
    }

    fn services(&self) -> Vec<String> {
        all_services()
    }

    fn services_at(&self, host: &str) -> Vec<String> {
        services_at(host)
    }
}

fn services_at(host: &str) -> Vec<String> {
    SERVICES.map(|service| format!("{service}-{host}")).into()
}

fn all_services() -> Vec<String> {
    HOSTS.iter().flat_map(|host| services_at(host)).collect()
}

/// If the process must be a reader or a crowd, this runs it.
#[test]
fn a_day_in_the_life_of_a_cluster_breaks_no_promise() {
    if let Some(task) = settings::READER.task() {
        return settings::be_a_reader(task);
    }
    if let Some(task) = crowd::CROWD.task() {
        return crowd::be_a_crowd(task);
    }
    let _alone = alone();
    let (length, began) = (Duration::from_secs(number("LEASEHOLD_DAY_SECONDS", 0)), Instant::now());
    let seed = number("LEASEHOLD_DAY_SEED", rand::random());
    println!("LEASEHOLD_DAY_SEED={seed}");
    let Some(mut day) = Day::begin(seed) else { return };
    println!("everything works after {:.1?}", began.elapsed());
    for round in 1.. {
        println!("round {round}, after {:.0?}:", began.elapsed());
        day.round();
        if began.elapsed() >= length {
            break;
        }
        println!("{}", day.table);
    }
    let table = day.end();
    println!("{table}\nLEASEHOLD_DAY_SEED={seed}, {:.0?}", began.elapsed());
    assert!(table.is_fine(), "a promise was broken, or a check was not made: see the table");
}
