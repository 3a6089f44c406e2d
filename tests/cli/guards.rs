//! A lock owner's command ends before the next owner's command begins, whatever fails.

use std::{
    fs,
    os::unix::{
        fs::PermissionsExt,
        process::{CommandExt, ExitStatusExt},
    },
    path::Path,
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill, killpg},
    unistd::{Pid, getpgid},
};

use crate::common::{Cli, Cluster, Process, eventually};

/// The ways in which a command can start a job, by name. `$JOB` stands for the job.
const SHAPES: [(&str, &str); 7] = [
    ("plain", "exec $JOB"),
    ("under a shell", "$JOB; true"),
    ("forked", "$JOB & wait"),
    ("in a session of its own", "setsid $JOB & wait"),
    ("forked twice", "(setsid $JOB &); exec sleep 600"),
    ("that exits when it is told to", "trap 'exit 0' HUP TERM; setsid $JOB & wait"),
    (IGNORES, "trap '' TERM; $JOB; true"),
];

const IGNORES: &str = "ignoring SIGTERM";

/// Writes `$2` lines with its name `$1`, one every 20 ms, while its directory exists.
const JOB: &str = "i=0; while [ $i -lt $2 ]; do echo $1 >> $0.log || exit; i=$((i+1)); sleep 0.02; done";

/// How many lines the second job writes: one second of work.
const LINES: usize = 50;

const TERM: Duration = Duration::from_secs(2);

fn cluster() -> Cluster {
    let cluster = Cluster::start(1);
    let term = format!("{}s", TERM.as_secs());
    cluster.cli().done(["volume", "create", "/jobs", "--term", &term, "--skew-margin", "50ms"]);
    cluster
}

/// Starts a command under a lock, in its own process group, as a shell with job control does.
fn start(cli: &Cli, hold: &[&str], script: &str) -> Process {
    let mut command = cli.command(hold.iter().chain(&["--", "sh", "-c", script]));
    command.process_group(0).stdout(Stdio::null()).stderr(Stdio::null());
    Process::of(command.spawn().expect("the binary starts"))
}

fn id(process: &Process) -> Pid {
    Pid::from_raw(process.id().try_into().expect("process ids are small"))
}

/// The only child of a lock owner that runs a command.
pub fn guard_of(holder: &Process) -> Pid {
    only_child(id(holder)).expect("one child")
}

/// The child of a process that has exactly one.
fn only_child(process: Pid) -> Result<Pid, String> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).map_err(|error| error.to_string())?;
    let children = threads.filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("children")).ok());
    let children: String = children.collect();
    children.trim().parse().map(Pid::from_raw).map_err(|error| format!("{children:?}: {error}"))
}

/// The letter of the process's state. `None` if there is no such process.
fn state(process: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

pub fn is_running(process: Pid) -> bool {
    state(process).is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// Two owners of the lock on one node, one after the other.
struct Case<'a> {
    shape: &'a str,
    hold: Vec<String>,
    job: String,
    first: Process,
}

impl<'a> Case<'a> {
    /// Starts the first owner. Its job never ends by itself.
    fn start(cli: &Cli, verb: &[&str], directory: &Path, number: usize) -> Self {
        let (shape, script) = SHAPES[number];
        let job = directory.join(number.to_string()).display().to_string();
        fs::write(&job, JOB).expect("it can be written");
        let node = format!("/jobs/{number}");
        let hold: Vec<String> = [verb[0], &node].iter().chain(&verb[1..]).map(|word| (*word).to_owned()).collect();
        let first = Self::hold(cli, &hold, &script.replace("$JOB", &format!("sh {job} first 1000000")));
        Self { shape, hold, job, first }
    }

    fn hold(cli: &Cli, hold: &[String], script: &str) -> Process {
        start(cli, &hold.iter().map(String::as_str).collect::<Vec<_>>(), script)
    }

    fn second(&self, cli: &Cli) -> Process {
        Self::hold(cli, &self.hold, &format!("sh {} second {LINES}", self.job))
    }

    fn lines(&self) -> Vec<String> {
        let text = fs::read_to_string(format!("{}.log", self.job)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until a job has written `more` further lines.
    fn until_more(&self, name: &str, more: usize) {
        let count = || self.lines().iter().filter(|line| *line == name).count();
        let expected = count() + more;
        eventually("a job has written more", || {
            let found = count();
            if found >= expected { Ok(()) } else { Err(format!("{}: {found} of {expected}", self.shape)) }
        });
    }

    /// The lines that the first job wrote after the second began, if there are any.
    fn late(&self) -> Option<String> {
        let late = self.lines().into_iter().skip_while(|line| line != "second").filter(|line| line == "first").count();
        (late > 0).then(|| format!("{}: {late} lines", self.shape))
    }
}

/// Causes trouble for the first owners while their jobs run. Then the second owners get the locks.
fn none_is_late(verb: &[&str], trouble: impl Fn(&mut Cluster, &mut [Case])) {
    let (mut cluster, directory) = (cluster(), tempfile::tempdir().expect("a directory"));
    let cli = cluster.cli();
    let numbers = 0..SHAPES.len();
    let mut cases: Vec<Case> = numbers.map(|number| Case::start(&cli, verb, directory.path(), number)).collect();
    cases.iter().for_each(|case| case.until_more("first", 5));
    trouble(&mut cluster, &mut cases);
    let seconds: Vec<Process> = cases.iter().map(|case| case.second(&cli)).collect();
    for mut second in seconds {
        assert_eq!(second.ended().code(), Some(0));
    }
    let late: Vec<String> = cases.iter().filter_map(Case::late).collect();
    assert!(late.is_empty(), "of the first job after the second began: {late:?}");
}

#[test]
fn a_killed_holder_leaves_no_job_beside_the_next() {
    none_is_late(&["lock"], |_, cases| cases.iter().for_each(|case| case.first.signal(Signal::SIGKILL)));
}

#[test]
fn a_stopped_holder_leaves_no_job_beside_the_next() {
    none_is_late(&["lock"], |_, cases| cases.iter().for_each(|case| case.first.signal(Signal::SIGSTOP)));
}

#[test]
fn a_holder_that_is_told_to_stop_leaves_no_job_beside_the_next() {
    none_is_late(&["lock"], |_, cases| {
        cases.iter().for_each(|case| case.first.signal(Signal::SIGTERM));
        for case in cases.iter_mut().filter(|case| case.shape == IGNORES) {
            case.until_more("first", 5);
            assert!(case.first.has_ended().is_none(), "its command runs");
            case.first.kill();
        }
    });
}

/// No server answers until all owners have ended.
fn cut_off(cluster: &mut Cluster, cases: &mut [Case]) {
    cluster.kill(1);
    for case in cases {
        assert_eq!(case.first.ended().code(), Some(1), "{}", case.shape);
    }
    cluster.spawn(1);
    cluster.wait_until_it_serves();
}

#[test]
fn a_holder_that_is_cut_off_leaves_no_job_beside_the_next() {
    none_is_late(&["lock"], cut_off);
}

#[test]
fn a_killed_process_group_leaves_no_job_beside_the_next() {
    none_is_late(&["elect", "name"], |_, cases| {
        cases.iter().for_each(|case| killpg(id(&case.first), Signal::SIGKILL).expect("it is there"));
    });
}

#[test]
fn a_hangup_leaves_no_job_beside_the_next() {
    none_is_late(&["lock"], |_, cases| {
        cases.iter().for_each(|case| killpg(id(&case.first), Signal::SIGHUP).expect("it is there"));
    });
}

#[test]
fn a_stopped_process_group_leaves_no_job_beside_the_next() {
    none_is_late(&["lock"], |_, cases| {
        cases.iter().for_each(|case| killpg(id(&case.first), Signal::SIGSTOP).expect("it is there"));
    });
}

#[test]
fn a_killed_guard_leaves_no_job_beside_the_next() {
    none_is_late(&["lock"], |_, cases| {
        for case in cases {
            kill(guard_of(&case.first), Signal::SIGKILL).expect("it is there");
            assert_eq!(case.first.ended().code(), Some(1), "{}", case.shape);
        }
    });
}

#[test]
fn a_stopped_guard_does_not_stop_the_holder_from_killing() {
    none_is_late(&["lock"], |cluster, cases| {
        cases.iter().for_each(|case| kill(guard_of(&case.first), Signal::SIGSTOP).expect("it is there"));
        cut_off(cluster, cases);
    });
}

/// A process group can have a stopped process. When the last process ends that ties the group to
/// another one of its session, the kernel sends SIGHUP to the group. A guard must not be that last
/// process. A lock owner that cron or `setsid` started shares its group with all that was started
/// beside it.
#[test]
fn guard_of_a_stopped_holder_hangs_up_nobody_beside_it() {
    let cluster = cluster();
    let holder = cluster.cli().command(["lock", "/jobs/one", "--", "sleep", "600"]);
    let mut session = Command::new("setsid");
    session.args(["sh", "-c", "\"$0\" \"$@\" & exec sleep 600"]).arg(holder.get_program()).args(holder.get_args());
    session.envs(holder.get_envs().filter_map(|(name, value)| Some((name, value?))));
    session.stdout(Stdio::null()).stderr(Stdio::null());
    let mut session = Process::of(session.spawn().expect("setsid is installed"));
    let holder = eventually("the holder has started", || only_child(id(&session)));
    let guard = eventually("the guard has started", || only_child(holder));
    eventually("the command has started", || only_child(guard));
    kill(holder, Signal::SIGSTOP).expect("it runs");
    let guard_has_gone = || if is_running(guard) { Err("it runs".to_owned()) } else { Ok(()) };
    eventually("the guard has ended the command and itself", guard_has_gone);
    assert_eq!(state(holder), Some('T'), "the holder is still stopped");
    // Of two pending signals, the kernel delivers SIGHUP first.
    kill(id(&session), Signal::SIGTERM).expect("it runs");
    assert_eq!(session.ended().signal(), Some(Signal::SIGTERM as i32));
    kill(holder, Signal::SIGKILL).expect("it is stopped");
}

#[test]
fn the_status_of_a_command_is_what_a_shell_says() {
    let (cluster, directory) = (cluster(), tempfile::tempdir().expect("a directory"));
    let cli = cluster.cli();
    let file = directory.path().join("text");
    fs::write(&file, "true").expect("it can be written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("it is ours");
    let file = file.to_str().expect("UTF-8");
    let ran = |command: &[&str]| cli.run(["lock", "/jobs/a", "--"].iter().chain(command)).status;
    let scripts = ["exit 0", "exit 255", "kill -KILL $$", "kill -ALRM $$", "kill -34 $$"];
    let statuses = scripts.map(|script| ran(&["sh", "-c", script]));
    assert_eq!(statuses, [0, 255, 128 + 9, 128 + 14, 128 + 34]);
    assert_eq!([ran(&["/no/such/command"]), ran(&[file])], [127, 126]);
}

#[test]
fn a_command_has_the_input_and_the_process_group_of_its_holder() {
    let cluster = cluster();
    let cli = cluster.cli();
    let ran = cli.run_with(["lock", "/jobs/a", "--", "cat"], b"from the holder's input");
    assert_eq!((ran.status, ran.text()), (0, "from the holder's input"), "{ran:?}");

    let directory = tempfile::tempdir().expect("a directory");
    let noted = directory.path().join("id").display().to_string();
    let trap = "trap 'exit 3' INT";
    for (begin, status) in [(trap, 3), ("", 128 + 2)] {
        let script = format!("{begin}\necho $$ > {noted}; while :; do sleep 0.02; done");
        let mut holder = start(&cli, &["lock", "/jobs/a"], &script);
        let command = eventually("it is noted", || fs::read_to_string(&noted).ok()?.trim().parse().ok());
        assert_eq!(getpgid(Some(Pid::from_raw(command))), Ok(id(&holder)), "Ctrl-C reaches both");
        assert_ne!(getpgid(Some(guard_of(&holder))), Ok(id(&holder)), "and not the guard");
        killpg(id(&holder), Signal::SIGINT).expect("it is there");
        assert_eq!(holder.ended().code(), Some(status), "{begin}");
        fs::remove_file(&noted).expect("it is there");
    }
}

#[test]
fn a_job_that_is_stopped_for_a_moment_goes_on() {
    let (cluster, directory) = (cluster(), tempfile::tempdir().expect("a directory"));
    let case = Case::start(&cluster.cli(), &["lock"], directory.path(), 0);
    case.until_more("first", 5);
    killpg(id(&case.first), Signal::SIGSTOP).expect("it is there");
    eventually("it is stopped", || state(id(&case.first)).is_some_and(|state| state == 'T').then_some(()));
    killpg(id(&case.first), Signal::SIGCONT).expect("it is there");
    case.until_more("first", 5);
}

#[test]
fn a_guard_that_stood_still_goes_by_the_newest_deadline() {
    let (cluster, directory) = (cluster(), tempfile::tempdir().expect("a directory"));
    let mut case = Case::start(&cluster.cli(), &["lock"], directory.path(), 0);
    case.until_more("first", 5);
    let guard = guard_of(&case.first);
    kill(guard, Signal::SIGSTOP).expect("it is there");
    // Longer than a term, so that the deadline that the guard has read has passed.
    let stopped = Instant::now();
    eventually("a term has passed", || (stopped.elapsed() > TERM).then_some(()));
    kill(guard, Signal::SIGCONT).expect("it is there");
    case.until_more("first", 20);
    assert!(case.first.has_ended().is_none(), "its command runs");
}

#[test]
fn a_killed_edit_leaves_no_editor() {
    let (cluster, directory) = (cluster(), tempfile::tempdir().expect("a directory"));
    let noted = directory.path().join("id").display().to_string();
    let script = format!("sleep 600 & echo $$ $! > {noted}; wait");
    let edit = start(&cluster.cli(), &["edit", "/jobs/a"], &script);
    let ids = eventually("both are noted", || {
        let text = fs::read_to_string(&noted).ok()?;
        let ids: Vec<Pid> = text.split_whitespace().map(|id| Pid::from_raw(id.parse().expect("an id"))).collect();
        (ids.len() == 2).then_some(ids)
    });
    edit.signal(Signal::SIGKILL);
    eventually("they are gone", || (!ids.iter().any(|id| is_running(*id))).then_some(()));
}

#[test]
fn a_command_that_exits_leaves_running_what_it_began() {
    let cluster = cluster();
    let cli = cluster.cli();
    let script = "sleep 600 >&- 2>&- & echo $! $PPID";
    let ran = cli.run(["lock", "/jobs/a", "--", "sh", "-c", script]);
    let ids: Vec<Pid> = ran.text().split_whitespace().map(|id| Pid::from_raw(id.parse().expect("an id"))).collect();
    let [left, guard] = ids[..] else { panic!("{ran:?}") };
    assert_eq!((ran.status, is_running(guard), is_running(left)), (0, false, true));
    kill(left, Signal::SIGKILL).expect("it runs");
}
