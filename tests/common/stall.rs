//! How long the machine stood still while a test measured time.
//!
//! What a test promises of time has a bound that follows from the configuration, and an
//! [`ALLOWANCE`] for the machine. A machine that stands still for longer than that shows nothing,
//! neither that the promise is kept nor that it is broken: a test that measures is repeated then,
//! and fails if the machine never runs well enough. Nothing widens the bound.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// What the machine may add to a bound: scheduling, the disk, and starting a process.
pub const ALLOWANCE: Duration = Duration::from_secs(1);

/// How often a thread of the test wakes, to see how late it is.
const WAKE_EVERY: Duration = Duration::from_millis(10);

/// A thread that is late by less was woken in time: timers and the scheduler are no finer on a busy
/// machine.
const LATE_MIN: Duration = Duration::from_millis(10);

/// How often a measurement is made at most.
const TRIES: u32 = 3;

/// Watches how late a thread of this process is woken. Ends when it is let go of.
#[derive(Debug)]
pub struct Stalls {
    ends: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread has noted.
#[derive(Debug)]
struct Seen {
    /// When it should have been woken, and when it was, each time that it was late.
    late: Vec<(Instant, Instant)>,
    /// When it should be woken next.
    due: Instant,
}

impl Stalls {
    /// From now on.
    pub fn watched() -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let seen = Arc::new(Mutex::new(Seen { late: Vec::new(), due: Instant::now() + WAKE_EVERY }));
        let (until, noted) = (Arc::clone(&ends), Arc::clone(&seen));
        let thread = std::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                std::thread::sleep(WAKE_EVERY);
                let mut seen = noted.lock().unwrap_or_else(PoisonError::into_inner);
                let (due, woken) = (seen.due, Instant::now());
                if woken.saturating_duration_since(due) > LATE_MIN {
                    seen.late.push((due, woken));
                }
                seen.due = Instant::now() + WAKE_EVERY;
            }
        });
        Self { ends, seen, thread: Some(thread) }
    }

    /// For how long the machine stood still, in all, until now.
    pub fn sum(mut self) -> Duration {
        // The thread may be late just now: it is waited for.
        self.end();
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.late.iter().map(|(due, woken)| *woken - *due).sum()
    }

    /// For how long it stood still between two times that have passed.
    pub fn during(&self, from: Instant, to: Instant) -> Duration {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let overlap = |(due, woken): &(Instant, Instant)| (*woken).min(to).saturating_duration_since((*due).max(from));
        // The thread may be late just now: whoever asks can have been woken before it.
        let now = Instant::now();
        let is_late = now.saturating_duration_since(seen.due) > LATE_MIN;
        let under_way = if is_late { overlap(&(seen.due, now)) } else { Duration::ZERO };
        seen.late.iter().map(overlap).sum::<Duration>() + under_way
    }

    fn end(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it only sleeps");
        }
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.end();
    }
}

/// A measurement that took longer than promised, or was shorter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missed(pub String);

/// What is promised of a duration: no less than `least`, and no more than `most` and the
/// [`ALLOWANCE`].
///
/// # Panics
///
/// If it took less than `least`: no machine that stands still makes anything end early.
#[track_caller]
pub fn check(what: &str, took: Duration, least: Duration, most: Duration) -> Result<(), Missed> {
    check_while(ALLOWANCE, what, took, least, most)
}

/// The same, of a bound with room for a machine that runs: it may add only the time that it was
/// seen to stand still, and the [`ALLOWANCE`] at most.
///
/// # Panics
///
/// As [`check`] does.
#[track_caller]
pub fn check_while(
    stood_still: Duration,
    what: &str,
    took: Duration,
    least: Duration,
    most: Duration,
) -> Result<(), Missed> {
    assert!(took >= least, "{what} after {took:.3?}: expected at least {least:.3?}");
    let allowance = stood_still.min(ALLOWANCE);
    if took <= most + allowance {
        return Ok(());
    }
    Err(Missed(format!("{what} after {took:.3?}: expected at most {most:.3?}, and {allowance:.3?} for the machine")))
}

/// Makes a measurement, again if it missed a bound while the machine stood still for longer than
/// the [`ALLOWANCE`].
///
/// # Panics
///
/// If a bound is missed though the machine ran, or the machine stood still in each of [`TRIES`].
#[track_caller]
pub fn measured<T>(mut measure: impl FnMut() -> Result<T, Missed>) -> T {
    let mut judge = Judge::default();
    loop {
        let stalls = Stalls::watched();
        let outcome = measure();
        if let Some(done) = judge.judge(outcome, stalls.sum()) {
            return done;
        }
    }
}

/// The same, of what is asynchronous.
pub async fn measured_async<T>(mut measure: impl AsyncFnMut() -> Result<T, Missed>) -> T {
    let mut judge = Judge::default();
    loop {
        let stalls = Stalls::watched();
        let outcome = measure().await;
        if let Some(done) = judge.judge(outcome, stalls.sum()) {
            return done;
        }
    }
}

/// Counts the tries.
#[derive(Debug, Default)]
struct Judge {
    tries: u32,
}

impl Judge {
    /// None if it is to be measured again.
    #[track_caller]
    fn judge<T>(&mut self, outcome: Result<T, Missed>, stall: Duration) -> Option<T> {
        self.tries += 1;
        let Missed(missed) = match outcome {
            Ok(done) => return Some(done),
            Err(missed) => missed,
        };
        assert!(stall > ALLOWANCE, "{missed}; the machine stood still for {stall:.3?} only");
        let tries = self.tries;
        assert!(
            tries < TRIES,
            "{missed}; the machine stood still in each of {tries} tries, for {stall:.3?} in the last"
        );
        eprintln!("measured again: {missed}; the machine stood still for {stall:.3?}");
        None
    }
}
