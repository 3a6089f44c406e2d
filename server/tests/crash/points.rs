//! Faults at the calls of a history.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;
use rand::{Rng, SeedableRng, rngs::SmallRng};

use super::{
    child,
    disk::{Disk, Fault},
    history::Step,
    judge,
};

/// How many calls of a history get each fault; `all` for every call.
const POINTS: &str = "LEASEHOLD_CRASH_POINTS";
/// The seed of the history and of the chosen calls.
pub(crate) const SEED: &str = "LEASEHOLD_CRASH_SEED";

const THE_CHILD: &str = "child::a_history_is_gone_through";

/// A fault at a call of a history.
#[derive(Debug, Clone, Copy)]
struct Point {
    history: &'static str,
    seed: u64,
    fault: Fault,
    /// Only calls with this in their name and path count.
    of: &'static str,
    at: u64,
}

impl Point {
    fn run(&self, disk: &Disk) -> super::disk::Ended {
        let seed = self.seed.to_string();
        let told = [(child::HISTORY, self.history), (child::SEED, &seed), ("FAULTS_MATCH", self.of)];
        disk.run(THE_CHILD, self.fault, self.at, self.seed ^ self.at, &told)
    }

    /// Runs the child with the fault, then judges the result. Returns the call at which the fault
    /// happened, if it happened.
    fn try_it(&self, steps: &[Step]) -> Result<Option<String>, String> {
        let disk = Disk::new();
        let ended = self.run(&disk);
        let outcome = self.judge_end(&ended, steps).and_then(|()| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            let restarted = ended.stderr.lines().find_map(|line| line.strip_prefix(child::RESTARTED));
            // A process whose stores fail while they close ends at once. On a busy machine that can
            // be the call of this point.
            let is_closing = steps.get(ended.acknowledged.len()).is_none_or(|step| matches!(step, Step::Reopen));
            if restarted.is_none() && !is_closing && ended.status == Some(child::FAILED) && self.of == "fdatasync" {
                return Err("it was not started again".to_owned());
            }
            if let Some(restarted) = restarted {
                runtime.block_on(judge::judge_restart(&disk.data(), restarted))?;
            }
            runtime.block_on(judge::judge(&disk.data(), steps, ended.acknowledged.len(), self.seed))
        });
        outcome.map(|()| ended.at.clone()).map_err(|wrong| {
            let kept = disk.keep();
            let acknowledged = ended.acknowledged.len();
            let under_way = steps.get(acknowledged).map(|step| format!("{step:?}").chars().take(60).collect::<String>());
            format!(
                "{self:?}, at {:?}, status {:?}, {acknowledged} steps acknowledged, then {under_way:?}, left in {}: {wrong}\n{}",
                ended.at,
                ended.status,
                kept.display(),
                ended.stderr
            )
        })
    }

    /// Whether the process ended as it must.
    fn judge_end(&self, ended: &super::disk::Ended, steps: &[Step]) -> Result<(), String> {
        let is_whole = ended.acknowledged.len() == steps.len();
        match ended.status {
            _ if ended.hung => Err("it hangs".to_owned()),
            None if self.fault.kills() && ended.at.is_some() => Ok(()),
            // The failed call was not needed, or the fault was beyond the end.
            Some(0) if is_whole => Ok(()),
            Some(child::FAILED | child::NOT_OPENED)
                if matches!(self.fault, Fault::Eio | Fault::Enospc) && ended.at.is_some() =>
            {
                says_why(&ended.stderr)
            }
            _ => Err("it ended as it must not".to_owned()),
        }
    }
}

/// Whether the last output of a process names the fault.
pub(crate) fn says_why(stderr: &str) -> Result<(), String> {
    let why = ["Input/output error", "No space left on device", "Poisoned", "StorageFull"];
    if why.iter().any(|why| stderr.contains(why)) { Ok(()) } else { Err("it does not say why it ended".to_owned()) }
}

pub(crate) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text}: expected a number")))
}

/// Every call with every fault, or `usually` calls with each, evenly spread from a random start.
pub(crate) fn points_of(what: &str, seed: u64, calls: u64, usually: u64) -> Vec<(Fault, u64)> {
    let some = match std::env::var(POINTS).as_deref() {
        Ok("all") => calls,
        Ok(_) => number(POINTS).expect("set"),
        Err(_) => usually,
    };
    let stride = (calls / some.max(1)).max(1);
    println!(
        "{what}: {calls} calls, every {stride}. gets each fault; again: {SEED}={seed} {POINTS}={some} cargo test -p \
         leasehold-server --test crash"
    );
    let mut random = SmallRng::seed_from_u64(seed);
    let mut points = Vec::new();
    for fault in Fault::ALL {
        let begin = 1 + random.random_range(0..stride);
        points.extend((begin..=calls).step_by(usize::try_from(stride).expect("small")).map(|at| (fault, at)));
    }
    points
}

/// Tries all points, as many at a time as there are processors.
pub(crate) fn try_all(
    points: &[(Fault, u64)],
    try_it: impl Fn(&(Fault, u64)) -> Result<Option<String>, String> + Sync,
) {
    let next = AtomicUsize::new(0);
    let (happened, wrong) = (Mutex::new(BTreeMap::<&str, u64>::new()), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(point) = points.get(next.fetch_add(1, Ordering::Relaxed)) {
                    match try_it(point) {
                        Ok(at) => {
                            let count = u64::from(at.is_some());
                            *happened.lock().entry(point.0.name()).or_default() += count;
                        }
                        Err(message) => wrong.lock().push(message),
                    }
                }
            });
        }
    });
    let (happened, wrong) = (happened.into_inner(), wrong.into_inner());
    println!("of {} faults these happened and did no harm: {happened:?}", points.len());
    assert!(wrong.is_empty(), "{} of {} went wrong:\n{}", wrong.len(), points.len(), wrong.join("\n\n"));
    for fault in Fault::ALL {
        assert!(happened[fault.name()] > 0, "{} never happened", fault.name());
    }
}

/// Runs the named history undisturbed, then with faults.
fn disturb(history: &'static str, usually: u64) {
    let seed = number(SEED).unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
    let steps = child::history(history, seed);
    let disk = Disk::new();
    let ended = Point { history, seed, fault: Fault::None, of: "", at: 0 }.run(&disk);
    assert_eq!((ended.status, ended.acknowledged.len()), (Some(0), steps.len()), "{}", ended.stderr);
    let points = points_of(history, seed, ended.calls.expect("it came to its end"), usually);
    try_all(&points, |(fault, at)| Point { history, seed, fault: *fault, of: "", at: *at }.try_it(&steps));
}

/// The server is killed at a call, and started again. Then the machine crashes. Returns whether the
/// server had begun when it was killed.
fn kill_restart_crash(point: &Point, steps: &[Step]) -> Result<bool, String> {
    let disk = Disk::new();
    let undo = disk.undo();
    let undo = undo.to_str().expect("UTF-8");
    let seed = point.seed.to_string();
    let told =
        [(child::HISTORY, point.history), (child::SEED, &seed), ("FAULTS_MATCH", point.of), ("FAULTS_UNDO", undo)];
    let killed = disk.run(THE_CHILD, point.fault, point.at, point.seed, &told);
    // The number of calls depends on what shares an fsync. If this run had fewer, an earlier one is
    // tried: `at` gets smaller each time.
    if let Some(calls @ 1..) = killed.calls.filter(|calls| killed.status == Some(0) && *calls < point.at) {
        return kill_restart_crash(&Point { at: calls.div_ceil(2), ..*point }, steps);
    }
    if killed.status.is_some() || killed.hung || killed.at.is_none() {
        return Err(format!("{point:?}: it was not killed: {killed:?}"));
    }
    if killed.acknowledged.is_empty() {
        return Ok(false);
    }
    let told = [(child::RESTART, "1"), ("FAULTS_UNDO", undo)];
    let restarted = disk.run(THE_CHILD, Fault::Crash, 0, point.seed, &told);
    let Some(content) = restarted.stderr.lines().find_map(|line| line.strip_prefix(child::RESTARTED)) else {
        return Err(format!("{point:?}: not started again: {restarted:?}"));
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let outcome = runtime
        .block_on(judge::judge_restart(&disk.data(), content))
        .and_then(|()| runtime.block_on(judge::judge(&disk.data(), steps, killed.acknowledged.len(), point.seed)));
    outcome.map(|()| true).map_err(|wrong| {
        let kept = disk.keep();
        format!("{point:?}, at {:?}, left in {}: {wrong}", killed.at, kept.display())
    })
}

/// A killed server has written batches to its journal without an fsync. When it starts again, it
/// must not count them as durable while they are only in the kernel's cache.
#[test]
fn what_a_restarted_server_finds_survives_a_crash() {
    let seed = number(SEED).unwrap_or_else(|| rand::rng().random_range(0..1_000_000));
    for (history, fault, of, count) in [
        ("ordinary", Fault::Kill, "fdatasync", 20),
        ("ordinary", Fault::Kill, "log/0.jnl", 20),
        ("ordinary", Fault::Half, "log/0.jnl", 10),
        ("heavy", Fault::Kill, "fdatasync", 3),
    ] {
        let steps = child::history(history, seed);
        let undisturbed = Point { history, seed, fault: Fault::None, of, at: 0 }.run(&Disk::new());
        let calls = undisturbed.calls.expect("it came to its end");
        // The first calls create the stores. On a busy machine each call on a journal writes more,
        // so the last ones may not come.
        let (first, last) = (calls / 4, calls * 3 / 4);
        println!("{history}: {calls} calls of {of:?}; again: {SEED}={seed}");
        let begun = (1..=count).filter(|number| {
            let at = (first + number * (last - first) / count).max(1);
            let point = Point { history, seed, fault, of, at };
            kill_restart_crash(&point, &steps).unwrap_or_else(|wrong| panic!("{wrong}"))
        });
        let begun = begun.count();
        assert!(begun * 2 >= usize::try_from(count).expect("small"), "{begun} of {count} were killed after the start");
    }
}

#[test]
fn nothing_that_was_acknowledged_is_lost_whatever_call_fails() {
    disturb("ordinary", 30);
}

/// fjall creates a database in many steps, and refused one that a crash had left incomplete.
#[test]
fn a_first_start_that_ends_anywhere_is_begun_again() {
    disturb("first", 30);
}

/// Threads of fjall write tables and replace journals meanwhile.
#[test]
fn nothing_is_lost_while_tables_are_written() {
    disturb("heavy", 3);
}

/// Past failures, each with the call at which it happened.
#[test]
fn what_went_wrong_once_does_not_again() {
    let cases = [
        // A first start that was killed between these calls was refused for ever.
        ("first", Fault::Kill, "log.new/version", 1, "a journal without the version's marker"),
        ("first", Fault::Kill, "log.new/version", 2, "a marker without the version"),
        // The files were fsynced, but not their names. So the crash of the machine removed them
        // with all their content.
        ("ordinary", Fault::Lose, "fdatasync", 6, "the data directory"),
        ("ordinary", Fault::Lose, "log/0.jnl", 50, "the rows of a snapshot"),
        // After a restart, the batch was read from the kernel's cache, and counted as durable.
        ("ordinary", Fault::Eio, "fdatasync", 20, "a batch of the log whose fsync had failed"),
        // The replica continued as if its disk were not full.
        ("ordinary", Fault::Eio, "incoming-1", 1, "the file for a snapshot that is received"),
        ("ordinary", Fault::Enospc, "incoming-1", 2, "a piece of a snapshot that is received"),
    ];
    for (history, fault, of, at, what) in cases {
        // On a busy machine each call on a journal writes more, so there are fewer calls. Then the
        // last one counts.
        let undisturbed = Point { history, seed: 1, fault: Fault::None, of, at: 0 }.run(&Disk::new());
        let last = undisturbed.calls.expect("it came to its end");
        let steps = child::history(history, 1);
        let happens = |at: &u64| {
            let happened = Point { history, seed: 1, fault, of, at: *at }.try_it(&steps);
            happened.unwrap_or_else(|wrong| panic!("{what}: {wrong}")).is_some()
        };
        let at = (1..=at.min(last)).rev().find(happens);
        assert!(at.is_some(), "{what}: a run of {last} calls came to none of them again");
    }
}
