//! A client that writes: one write after another with a short pause, whatever happens to the
//! servers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use leasehold_client_cache::{Client, NodePath, Value};
use rand::{Rng, SeedableRng, rngs::SmallRng};
use tokio::sync::mpsc::UnboundedSender;

use crate::{
    clock::now_ns,
    error::ClientError,
    oracle::Ack,
    session::TIMEOUT,
    talk::{Word, WorkerReport},
};

/// The pause between two writes: some hundred writes per second, which leave the machine to the
/// readers.
const PAUSE: Duration = Duration::from_millis(3);

/// The interval between reports.
const REPORT_EVERY_NS: u64 = 500_000_000;

/// A write that took this long is reported at once.
const NEWS_NS: u64 = 100_000_000;

/// The maximum number of error messages in a report.
const FAILURES_TOLD: usize = 3;

/// Writes until it is ordered to stop.
#[derive(Debug)]
pub(crate) struct DemoWriter {
    client: Client,
    /// Each written file: its index, its node and its original content.
    files: Vec<(u32, NodePath, Value)>,
    words: UnboundedSender<Word>,
    stop: Arc<AtomicBool>,
    report: WorkerReport,
    written: u64,
}

impl DemoWriter {
    /// A writer of the files with these indices. It reads their content first.
    pub(crate) async fn new(
        client: Client,
        files: &[NodePath],
        writes: &[u32],
        words: UnboundedSender<Word>,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, ClientError> {
        let mut known = Vec::new();
        for place in writes {
            let path = files.get(*place as usize).ok_or(ClientError::NoFile(*place))?;
            let entry = client.get(path).await?;
            let value = entry.map(|entry| entry.value.clone()).unwrap_or_default();
            known.push((*place, path.clone(), value));
        }
        Ok(Self { client, files: known, words, stop, report: WorkerReport::default(), written: 0 })
    }

    /// Writes and reports until it is ordered to stop.
    pub(crate) async fn run(mut self, seed: u64) {
        let mut random = SmallRng::seed_from_u64(seed);
        let mut next_report = now_ns() + REPORT_EVERY_NS;
        while !self.stop.load(Relaxed) {
            let at = random.random_range(0..self.files.len());
            let took = self.write(at).await;
            if took >= NEWS_NS || now_ns() >= next_report {
                next_report = now_ns() + REPORT_EVERY_NS;
                self.tell();
            }
            tokio::time::sleep(PAUSE).await;
        }
        self.tell();
    }

    /// Writes a file's content with one more line. Returns the latency.
    async fn write(&mut self, at: usize) -> u64 {
        let (file, path, content) = &self.files[at];
        self.written += 1;
        let value = [content.as_ref(), format!("\nwritten {} times\n", self.written).as_bytes()].concat();
        let begin = now_ns();
        let outcome = self.client.put(path, value).timeout(TIMEOUT).await;
        let end = now_ns();
        match outcome {
            Ok(written) => {
                self.report.acks.push(Ack { file: *file, revision: written.revision.0, begin, end });
            }
            Err(error) => {
                self.report.failed += 1;
                if self.report.failures.len() < FAILURES_TOLD {
                    self.report.failures.push(crate::error::causes(&error));
                }
            }
        }
        end - begin
    }

    fn tell(&mut self) {
        self.report.messages_sent = self.client.stats().messages_sent;
        // If the receiver has gone, this process ends too.
        let _ = self.words.send(Word::Report(std::mem::take(&mut self.report)));
    }
}
