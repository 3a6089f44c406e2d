//! A client that reads like an application with all its data in memory. It never waits for a file
//! that is not cached.
//!
//! It reads in bursts with short pauses, so that two cores have time for the servers too. It
//! requests an uncached file in the background and continues with other files. So the interval
//! between two cached reads shows whether *any* cached read was possible.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
        mpsc,
    },
    time::Duration,
};

use hdrhistogram::Histogram;
use leasehold_client_cache::{Client, Content, NodePath, ReadError, ReadSource};
use rand::{SeedableRng, rngs::SmallRng};
use tokio::{runtime::Handle, sync::mpsc::UnboundedSender};

use crate::{
    clock::{now_ns, timer_cost_ns},
    oracle::Run,
    talk::{Word, WorkerReport},
    zipf::{self, Zipf},
};

/// Reads in a burst.
const BURST: usize = 256;

/// The pause after a burst: a twenty-fifth of the gap that cached reads may have, so that pauses do
/// not show as gaps.
const PAUSE: Duration = Duration::from_millis(2);

/// One in this many cached reads is timed, because reading the clock takes much of the time.
const SAMPLE_EVERY: u64 = 61;

/// The maximum number of server reads in flight. With more, the reader continues with cached files.
const ASKED_MAX: usize = 64;

/// The interval between reports.
const REPORT_EVERY_NS: u64 = 500_000_000;

/// The longest gap is recorded for each span of this length.
const GAP_SPAN_NS: u64 = 100_000_000;

/// The maximum number of error messages in a report.
const FAILURES_TOLD: usize = 3;

/// A read by a server.
type DemoRead = (u32, u64, u64, Result<(u64, ReadSource), ReadError>);

/// The reads of one file since the last report, with one revision.
type Slot = Option<Run>;

/// Records all reads.
#[derive(Debug)]
struct ReadLog {
    slots: Vec<Slot>,
    report: WorkerReport,
    cached_ns: Histogram<u64>,
    /// When the last cached read began.
    last: Option<u64>,
    /// The longest gap in the current span, and the end of the span.
    gap: (u64, u64),
    span_end: u64,
}

impl ReadLog {
    fn new(files: usize) -> Self {
        Self {
            slots: vec![None; files],
            report: WorkerReport::default(),
            cached_ns: histogram(),
            last: None,
            gap: (0, 0),
            span_end: 0,
        }
    }

    /// Records a read. `end` is called only if its value is needed.
    fn read(&mut self, file: u32, revision: u64, begin: u64, end: impl FnOnce() -> u64) {
        let slot = &mut self.slots[file as usize];
        match slot {
            Some(run) if run.revision == revision => {
                run.count += 1;
                // Reads by a server arrive in the order of their ends.
                run.first_begin = run.first_begin.min(begin);
                run.last_begin = run.last_begin.max(begin);
            }
            _ => {
                let new = Run { file, revision, count: 1, first_begin: begin, first_end: end(), last_begin: begin };
                self.report.runs.extend(slot.replace(new));
            }
        }
    }

    /// Records the start of a cached read.
    fn cached(&mut self, begin: u64) {
        self.report.from_memory += 1;
        if let Some(last) = self.last {
            if begin - last > self.gap.1 - self.gap.0 {
                self.gap = (last, begin);
            }
            if begin >= self.span_end {
                self.report.gaps.push(std::mem::take(&mut self.gap));
                self.span_end = begin + GAP_SPAN_NS;
            }
        }
        self.last = Some(begin);
    }

    fn fail(&mut self, failure: String) {
        self.report.failed += 1;
        if self.report.failures.len() < FAILURES_TOLD {
            self.report.failures.push(failure);
        }
    }

    fn take(&mut self, lease_until: u64, messages_sent: u64) -> WorkerReport {
        let slots = self.slots.iter_mut().filter_map(Option::take);
        self.report.runs.extend(slots);
        if self.gap.1 > 0 {
            self.report.gaps.push(std::mem::take(&mut self.gap));
        }
        self.report.cached_ns = recorded(&self.cached_ns);
        self.cached_ns.reset();
        self.report.lease_until = lease_until;
        self.report.messages_sent = messages_sent;
        std::mem::take(&mut self.report)
    }
}

/// Reads on a thread of its own until it is ordered to stop.
#[derive(Debug)]
pub(crate) struct Reader {
    client: Client,
    files: Arc<[NodePath]>,
    runtime: Handle,
    words: UnboundedSender<Word>,
    stop: Arc<AtomicBool>,
    log: ReadLog,
    asked: Vec<bool>,
    asked_count: usize,
    answers: (mpsc::Sender<DemoRead>, mpsc::Receiver<DemoRead>),
}

impl Reader {
    pub(crate) fn new(
        client: Client,
        files: Arc<[NodePath]>,
        words: UnboundedSender<Word>,
        stop: Arc<AtomicBool>,
    ) -> Self {
        let log = ReadLog::new(files.len());
        let asked = vec![false; files.len()];
        let runtime = Handle::current();
        Self { client, runtime, words, stop, log, asked, asked_count: 0, answers: mpsc::channel(), files }
    }

    /// Reads and reports until it is ordered to stop. It ignores reads that are unanswered by then.
    pub(crate) fn run(mut self, seed: u64) {
        let mut random = SmallRng::seed_from_u64(seed);
        let Some(zipf) = Zipf::new(self.files.len(), zipf::EXPONENT) else { return };
        let timer_cost = timer_cost_ns();
        let mut next_report = now_ns() + REPORT_EVERY_NS;
        let mut reads = 0;
        while !self.stop.load(Relaxed) {
            for _ in 0..BURST {
                reads += 1;
                self.read(zipf.sample(&mut random), (reads % SAMPLE_EVERY == 0).then_some(timer_cost));
            }
            while let Ok(answer) = self.answers.1.try_recv() {
                self.answered(answer);
            }
            if now_ns() >= next_report {
                next_report += REPORT_EVERY_NS;
                self.report();
            }
            std::thread::sleep(PAUSE);
        }
        while let Ok(answer) = self.answers.1.try_recv() {
            self.answered(answer);
        }
        self.report();
    }

    /// Reads a file. `sampled` is the cost of the timer if the read is to be timed.
    fn read(&mut self, file: usize, sampled: Option<u64>) {
        // A read of this file is already in flight.
        if self.asked[file] {
            return;
        }
        let begin = now_ns();
        let found = self.client.cached(&self.files[file]);
        if let (Some(timer_cost), Some(_)) = (sampled, &found) {
            self.log.cached_ns.saturating_record((now_ns() - begin).saturating_sub(timer_cost).max(1));
        }
        match found {
            Some(content) => {
                self.log.cached(begin);
                self.log.read(file as u32, revision_of(&content), begin, now_ns);
            }
            None => self.ask(file),
        }
    }

    fn ask(&mut self, file: usize) {
        if self.asked_count == ASKED_MAX {
            return;
        }
        self.asked_count += 1;
        self.asked[file] = true;
        let (client, path, answers) = (self.client.clone(), self.files[file].clone(), self.answers.0.clone());
        self.runtime.spawn(async move {
            let begin = now_ns();
            let outcome = client.read(&path).await;
            let outcome = outcome.map(|read| (revision_of(&read.content), read.source));
            // The reader may have stopped.
            let _ = answers.send((file as u32, begin, now_ns(), outcome));
        });
    }

    fn answered(&mut self, (file, begin, end, outcome): DemoRead) {
        self.asked_count -= 1;
        self.asked[file as usize] = false;
        match outcome {
            Ok((revision, source)) => {
                match source {
                    ReadSource::Memory => self.log.report.from_memory += 1,
                    ReadSource::Server => self.log.report.from_server += 1,
                }
                self.log.read(file, revision, begin, || end);
            }
            Err(error) => self.log.fail(crate::error::causes(&error)),
        }
    }

    fn report(&mut self) {
        // The clock is read first, so that the result is not too late. All files are in one volume.
        let now = now_ns();
        let remaining = self.files.first().map_or(Duration::ZERO, |file| self.client.volume_remaining(file));
        let lease_until = now.saturating_add(u64::try_from(remaining.as_nanos()).unwrap_or(u64::MAX));
        // If the receiver has gone, this process ends too.
        let _ = self.words.send(Word::Report(self.log.take(lease_until, self.client.stats().messages_sent)));
    }
}

/// The revision that a read returned; 0 for a node that does not exist.
pub(crate) fn revision_of(content: &Content) -> u64 {
    content.modify_revision().map_or(0, |revision| revision.0)
}

/// Records up to a minute in nanoseconds, with a precision of one percent.
pub(crate) fn histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, 60_000_000_000, 2).expect("constant bounds that hdrhistogram accepts")
}

/// The recorded values of a histogram with their counts.
pub(crate) fn recorded(histogram: &Histogram<u64>) -> Vec<(u64, u64)> {
    histogram.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_of_one_revision_form_one_run() {
        let mut log = ReadLog::new(2);
        log.read(0, 5, 10, || 11);
        log.read(0, 5, 20, || unreachable!("it is known when the first had ended"));
        log.read(0, 6, 30, || 31);
        log.read(1, 0, 32, || 33);
        let run = |file, revision, count, first_begin, first_end, last_begin| Run {
            file,
            revision,
            count,
            first_begin,
            first_end,
            last_begin,
        };
        assert_eq!(log.take(0, 0).runs, [run(0, 5, 2, 10, 11, 20), run(0, 6, 1, 30, 31, 30), run(1, 0, 1, 32, 33, 32)]);
        assert!(log.take(0, 0).runs.is_empty(), "each is told once");
    }

    #[test]
    fn the_longest_gap_is_kept_whichever_span_it_falls_into() {
        let mut log = ReadLog::new(1);
        for begin in [1_000, 2_000, 9_000, 10_000, 10_000 + 3 * GAP_SPAN_NS, 20_000 + 3 * GAP_SPAN_NS] {
            log.cached(begin);
        }
        let gaps = log.take(0, 0).gaps;
        assert_eq!(gaps.iter().map(|(from, to)| to - from).max(), Some(3 * GAP_SPAN_NS));
        assert!(gaps.contains(&(10_000, 10_000 + 3 * GAP_SPAN_NS)));
    }

    #[test]
    fn a_histogram_goes_over_the_line_and_comes_back() {
        let mut one = histogram();
        (1..=1000).for_each(|ns| one.saturating_record(ns));
        let mut other = histogram();
        for (value, count) in recorded(&one) {
            other.saturating_record_n(value, count);
        }
        assert_eq!(one.value_at_quantile(0.99), other.value_at_quantile(0.99));
        assert_eq!(one.len(), other.len());
    }
}
