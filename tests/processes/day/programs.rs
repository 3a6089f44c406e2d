//! The programs of a day, as operators run them: jobs under one exclusive lock, and registered
//! services. A supervisor restarts a program that has ended, as systemd would.
//!
//! A job also takes a lock of the kernel without waiting (flock(1)). If that fails, another job
//! still runs, whatever all clocks say. The kernel releases the lock when the last process of a job
//! has ended.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Read, Seek, SeekFrom},
    os::unix::process::{CommandExt, ExitStatusExt},
    path::{Path, PathBuf},
    process::ExitStatus,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::common::{Cli, Process};

/// The node that jobs lock.
pub(super) const LOCK: &str = "/jobs/nightly";

/// The services are registered below this.
pub(super) const SERVICES: &str = "/services";

/// How often the supervisor checks the programs.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// How long after its end a program is restarted.
const RESTART_AFTER: Duration = Duration::from_millis(100);

/// The script of a job. Its arguments: the folder for its notes, and its host.
const JOB: &str = r#"
exec 9>>"$1/alone"
flock --nonblock --conflict-exit-code 9 9
case $? in
    0) ;;
    9) echo "overlap $LEASEHOLD_TOKEN $2" >> "$1/jobs" ;;
    *) echo "flock $LEASEHOLD_TOKEN $2" >> "$1/jobs" ;;
esac
echo "begin $LEASEHOLD_TOKEN $2" >> "$1/jobs"
sleep 0.25
echo "end $LEASEHOLD_TOKEN $2" >> "$1/jobs"
"#;

/// A program that is restarted again and again.
#[derive(Debug)]
struct Program {
    cli: Cli,
    arguments: Vec<String>,
    log: PathBuf,
    process: Option<Process>,
    started: u64,
    /// When it may be started.
    due: Instant,
    /// True if it is started when it is due.
    is_wanted: bool,
    /// Its ends since they were last taken: when, and with which status and last words.
    ends: Vec<(Instant, String)>,
}

impl Program {
    fn log(&self) -> PathBuf {
        self.log.with_extension(format!("{}.log", self.started))
    }

    fn check(&mut self) {
        if let Some(status) = self.process.as_mut().and_then(Process::has_ended) {
            let text = fs::read_to_string(self.log()).unwrap_or_default();
            let words = text.lines().last().unwrap_or_default();
            self.ends.push((Instant::now(), format!("{}: {status}: {words}", self.arguments.join(" "))));
            // Its output is no longer needed.
            let _ = fs::remove_file(self.log());
            self.process = None;
            self.due = Instant::now() + RESTART_AFTER;
        }
        if self.process.is_none() && self.is_wanted && Instant::now() >= self.due {
            self.started += 1;
            let mut command = self.cli.command(&self.arguments);
            // As systemd does. A paused lock owner may be in a process group without another parent
            // in its session. Then the end of its guard makes the kernel send SIGHUP to that group.
            command.process_group(0);
            self.process = Some(Process::start(command, &self.log()));
        }
    }
}

/// Programs by name.
#[derive(Debug, Clone, Default)]
pub(super) struct All(Arc<Mutex<BTreeMap<String, Program>>>);

impl All {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Program>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The start number of a registered service. `None` if it does not run or is not registered
    /// yet.
    pub(super) fn registered(&self, name: &str) -> Option<u64> {
        let all = self.lock();
        let program = all.get(name)?;
        program.process.as_ref()?;
        let said = fs::read_to_string(program.log()).unwrap_or_default();
        said.contains("registered").then_some(program.started)
    }
}

/// Programs, and the thread that supervises them.
#[derive(Debug)]
pub(super) struct Programs {
    all: All,
    directory: PathBuf,
    stops: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    /// The bytes of the jobs' log that were read.
    read: u64,
    jobs: Jobs,
}

/// A status as a shell reports it: 128 plus the signal, if a signal ended the program. A program
/// that has just started does not handle signals yet.
fn as_a_shell_says(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

/// The notes of the jobs.
#[derive(Debug, Default, Clone)]
pub(super) struct Jobs {
    pub(super) begun: u64,
    pub(super) ended: u64,
    /// The token and the host of the last job that began, and whether it has ended.
    pub(super) last: Option<(u64, String, bool)>,
    /// Jobs that ran beside others, and tokens that did not grow.
    pub(super) overlaps: Vec<String>,
    pub(super) old_tokens: Vec<String>,
}

impl Jobs {
    fn note(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let [what, token, host] = words[..] else { panic!("{line:?}: expected what, a token and a host") };
        let token: u64 = token.parse().unwrap_or_else(|_| panic!("{line:?}: expected a token"));
        match what {
            "begin" => {
                if let Some((before, ..)) = self.last.as_ref().filter(|(before, ..)| *before >= token) {
                    self.old_tokens.push(format!("{line} after {before}"));
                }
                self.begun += 1;
                self.last = Some((token, host.to_owned(), false));
            }
            "end" => {
                self.ended += 1;
                if let Some(last) = self.last.as_mut().filter(|last| last.0 == token) {
                    last.2 = true;
                }
            }
            "overlap" => self.overlaps.push(line.to_owned()),
            _ => panic!("{line:?}: flock(1) failed (Debian: util-linux)"),
        }
    }
}

impl Programs {
    /// Supervises programs that write below a directory. There are none yet.
    pub(super) fn supervised(directory: &Path) -> Self {
        let (all, stops) = (All::default(), Arc::new(AtomicBool::new(false)));
        let (programs, told) = (all.clone(), Arc::clone(&stops));
        let thread = std::thread::spawn(move || {
            while !told.load(Relaxed) {
                programs.lock().values_mut().for_each(Program::check);
                std::thread::sleep(CHECK_EVERY);
            }
        });
        let (directory, thread) = (directory.to_owned(), Some(thread));
        Self { all, directory, stops, thread, read: 0, jobs: Jobs::default() }
    }

    /// All programs, for code that only reads them.
    pub(super) fn all(&self) -> All {
        self.all.clone()
    }

    fn add(&self, name: &str, cli: Cli, arguments: &[&str]) {
        let program = Program {
            cli,
            arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
            log: self.directory.join(name),
            process: None,
            started: 0,
            due: Instant::now(),
            is_wanted: true,
            ends: Vec::new(),
        };
        assert!(self.all.lock().insert(name.to_owned(), program).is_none(), "{name} is there already");
    }

    /// Adds jobs that run at a host, one after the other, each under the lock.
    pub(super) fn add_jobs(&self, name: &str, cli: Cli) {
        let directory = self.directory.display().to_string();
        let job = ["sh", "-c", JOB, "job", &directory, name];
        self.add(name, cli, &[&["lock", LOCK, "--"][..], &job].concat());
    }

    /// Adds a service.
    pub(super) fn add_service(&self, name: &str, cli: Cli) {
        let node = format!("{SERVICES}/{name}");
        self.add(name, cli, &["register", &node, "here", "--replace"]);
    }

    /// Sends a signal to a program, if it runs. After SIGSTOP, it may run on for a moment.
    pub(super) fn signal(&self, name: &str, signal: Signal) -> bool {
        let all = self.all.lock();
        let process = all[name].process.as_ref();
        if let Some(process) = process {
            let id = Pid::from_raw(i32::try_from(process.id()).expect("process ids are small"));
            kill(id, signal).expect("it has not been waited for, so its id is its own");
        }
        process.is_some()
    }

    /// Sets whether a program is restarted when it has ended.
    pub(super) fn want(&self, name: &str, is_wanted: bool) {
        self.all.lock().get_mut(name).expect("it is there").is_wanted = is_wanted;
    }

    /// Takes the ends of a program since the last call.
    pub(super) fn take_ends(&self, name: &str) -> Vec<(Instant, String)> {
        std::mem::take(&mut self.all.lock().get_mut(name).expect("it is there").ends)
    }

    /// The notes of the jobs so far.
    pub(super) fn jobs(&mut self) -> &mut Jobs {
        // There is no file before the first job has begun.
        if let Ok(mut file) = File::open(self.directory.join("jobs")) {
            let mut new = String::new();
            file.seek(SeekFrom::Start(self.read)).expect("it only grows");
            file.read_to_string(&mut new).expect("text");
            let whole = new.rfind('\n').map_or(0, |at| at + 1);
            new[..whole].lines().for_each(|line| self.jobs.note(line));
            self.read += whole as u64;
        }
        &mut self.jobs
    }

    /// Ends all programs, and waits for that. Returns the status of each that was running.
    pub(super) fn stop(&mut self) -> Vec<(String, i32)> {
        self.end_supervision();
        let mut statuses = Vec::new();
        for (name, program) in self.all.lock().iter_mut() {
            if let Some(mut process) = program.process.take() {
                process.signal(Signal::SIGTERM);
                statuses.push((name.clone(), as_a_shell_says(process.ended())));
            }
        }
        statuses
    }

    fn end_supervision(&mut self) {
        self.stops.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // If it has panicked, the test fails too.
            thread.join().expect("programs can be looked after");
        }
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        self.stops.store(true, Relaxed);
        if let Some(thread) = self.thread.take() {
            // A test that drops it early is about to report why.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_that_overlap_and_tokens_that_do_not_grow_are_found() {
        let mut jobs = Jobs::default();
        for line in ["begin 3 c1", "overlap 4 c2", "begin 4 c2", "end 3 c1", "end 4 c2", "begin 4 c1"] {
            jobs.note(line);
        }
        assert_eq!((jobs.begun, jobs.ended, jobs.last), (3, 2, Some((4, "c1".to_owned(), false))));
        assert_eq!(
            (jobs.overlaps, jobs.old_tokens),
            (vec!["overlap 4 c2".to_owned()], vec!["begin 4 c1 after 4".to_owned()])
        );
    }

    #[test]
    fn job_beside_another_says_so() {
        let folder = tempfile::tempdir().expect("a directory");
        let job = |token: &str| {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", JOB, "job"]).arg(folder.path()).arg("here").env("LEASEHOLD_TOKEN", token);
            command.spawn().expect("it starts")
        };
        let mut jobs = [job("1"), job("2")];
        jobs.iter_mut().for_each(|job| assert!(job.wait().expect("it ends").success()));
        let text = fs::read_to_string(folder.path().join("jobs")).expect("written");
        assert_eq!(text.lines().filter(|line| line.starts_with("overlap ")).count(), 1, "{text}");
    }
}
