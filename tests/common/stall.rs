//! Measures how long the machine stalled while a test measured time.
//!
//! The bound of a measured duration follows from the configuration, and has an [`ALLOWANCE`] for
//! the machine. If the machine stalls for longer than that, a missed bound proves nothing. Then the
//! test measures again, and fails if the machine never runs well enough. Nothing widens the bound.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// What the machine may add to a bound: scheduling, the disk, and the start of a process.
pub const ALLOWANCE: Duration = Duration::from_secs(1);

/// How often the watching thread wakes.
const WAKE_EVERY: Duration = Duration::from_millis(10);

/// A thread that is late by less counts as on time: timers and the scheduler are no finer on a busy
/// machine.
const LATE_MIN: Duration = Duration::from_millis(10);

/// The most attempts at one measurement.
const TRIES: u32 = 3;

/// Watches how late a thread of this process wakes, until it is dropped.
#[derive(Debug)]
pub struct Stalls {
    ends: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    thread: Option<JoinHandle<()>>,
}

/// The notes of the watching thread.
#[derive(Debug)]
struct Seen {
    /// For each late wake-up: when it was due, and when it came.
    late: Vec<(Instant, Instant)>,
    /// When the next wake-up is due.
    due: Instant,
}

impl Stalls {
    /// Begins to watch.
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

    /// Ends the watch, and returns the sum of all stalls.
    pub fn sum(mut self) -> Duration {
        // The thread may be late at the moment, so wait for it.
        self.end();
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.late.iter().map(|(due, woken)| *woken - *due).sum()
    }

    /// The sum of the stalls between two past times.
    pub fn during(&self, from: Instant, to: Instant) -> Duration {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let overlap = |(due, woken): &(Instant, Instant)| (*woken).min(to).saturating_duration_since((*due).max(from));
        // The thread may be late at the moment: the caller may have woken before it.
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

/// A measurement that missed its bound, with a text about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missed(pub String);

/// Checks a duration: at least `least`, and at most `most` plus the [`ALLOWANCE`].
///
/// # Panics
///
/// If it took less than `least`: a stall makes nothing end early.
#[track_caller]
pub fn check(what: &str, took: Duration, least: Duration, most: Duration) -> Result<(), Missed> {
    check_while(ALLOWANCE, what, took, least, most)
}

/// [`check`] for a bound that already has room for a running machine. The machine may add only the
/// time `stood_still`, and at most the [`ALLOWANCE`].
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

/// Makes a measurement. If it misses a bound while the machine stalls for longer than the
/// [`ALLOWANCE`], makes it again.
///
/// # Panics
///
/// If it misses a bound though the machine ran, or if the machine stalled in each of [`TRIES`].
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

/// [`measured`] for an asynchronous measurement.
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

/// Counts the attempts.
#[derive(Debug, Default)]
struct Judge {
    tries: u32,
}

impl Judge {
    /// `None` if the measurement must be repeated.
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
