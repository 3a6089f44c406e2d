//! How long the machine stood still while a test measured time.
//!
//! What a test promises of time has a bound that follows from the configuration, and an [`ALLOWANCE`] for the machine. A
//! machine that stands still for longer than that shows nothing, neither that the promise is kept nor that it is broken: a
//! test that measures is repeated then, and fails if the machine never runs well enough. Nothing widens the bound.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

/// What the machine may add to a bound: scheduling, the disk, and starting a process.
pub const ALLOWANCE: Duration = Duration::from_secs(1);

/// How often a thread of the test wakes, to see how late it is.
const WAKE_EVERY: Duration = Duration::from_millis(10);

/// A thread that is late by less was woken in time: timers and the scheduler are no finer on a busy machine.
const LATE_MIN: Duration = Duration::from_millis(10);

/// How often a measurement is made at most.
const TRIES: u32 = 3;

/// Watches how late a thread of this process is woken. Ends when it is let go of.
#[derive(Debug)]
pub struct Stalls {
    ends: Arc<AtomicBool>,
    late_ns: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Stalls {
    /// From now on.
    pub fn watched() -> Self {
        let (ends, late_ns) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (until, sum) = (Arc::clone(&ends), Arc::clone(&late_ns));
        let thread = std::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                let asleep = Instant::now();
                std::thread::sleep(WAKE_EVERY);
                let late = asleep.elapsed().saturating_sub(WAKE_EVERY);
                if late > LATE_MIN {
                    sum.fetch_add(u64::try_from(late.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
                }
            }
        });
        Self { ends, late_ns, thread: Some(thread) }
    }

    /// For how long the machine stood still, in all, until now.
    pub fn sum(mut self) -> Duration {
        // The thread may be late just now: it is waited for.
        self.end();
        Duration::from_nanos(self.late_ns.load(Ordering::Relaxed))
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

/// What is promised of a duration: no less than `least`, and no more than `most` and the [`ALLOWANCE`].
///
/// # Panics
///
/// If it took less than `least`: no machine that stands still makes anything end early.
#[track_caller]
pub fn check(what: &str, took: Duration, least: Duration, most: Duration) -> Result<(), Missed> {
    assert!(took >= least, "{what} after {took:.3?}: expected at least {least:.3?}");
    if took <= most + ALLOWANCE {
        return Ok(());
    }
    Err(Missed(format!("{what} after {took:.3?}: expected at most {most:.3?}, and {ALLOWANCE:?} for the machine")))
}

/// Makes a measurement, again if it missed a bound while the machine stood still for longer than the [`ALLOWANCE`].
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
