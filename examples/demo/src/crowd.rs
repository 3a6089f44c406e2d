//! The demo's view of its clients: processes that take orders and report.

use std::{
    process::{ExitStatus, Stdio},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    process::{Child, ChildStdin, ChildStdout, Command},
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
};

use crate::{
    error::DemoError,
    launch::Launch,
    oracle::{Ack, Run},
    reader::histogram,
    talk::{Task, Word, WorkerOrder, WorkerReport},
};

/// Time limit of a client's work between two orders, apart from its waits for servers.
const PATIENCE: Duration = Duration::from_secs(60);

/// Time limit of a process to end, after it was killed or has closed its output.
const DEATH: Duration = Duration::from_secs(1);

/// All clients.
#[derive(Debug)]
pub(crate) struct Crowd {
    launch: Launch,
    members: Vec<CrowdMember>,
    events: UnboundedReceiver<(usize, CrowdEvent)>,
    sender: UnboundedSender<(usize, CrowdEvent)>,
    /// What they have reported.
    pub(crate) tally: Tally,
}

#[derive(Debug)]
struct CrowdMember {
    /// Killed and waited for on drop.
    child: Child,
    orders: Option<ChildStdin>,
    is_ready: bool,
    /// How long the requested cached copy was certainly valid, in milliseconds.
    holding_ms: Option<u64>,
    /// Whether its end is expected, because it was ordered to stop or was killed.
    may_end: bool,
    has_ended: bool,
}

impl Drop for CrowdMember {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.start_kill();
        self.exit_status();
    }
}

impl CrowdMember {
    /// How the process ended, if it ends in time.
    fn exit_status(&mut self) -> Option<ExitStatus> {
        let began = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && began.elapsed() < DEATH {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.child.try_wait().ok().flatten()
    }
}

#[derive(Debug)]
enum CrowdEvent {
    Word(Word),
    Ended(String),
}

/// The reports, in sum and for each client.
#[derive(Debug)]
pub(crate) struct Tally {
    /// All reads.
    pub(crate) runs: Vec<Run>,
    /// Reads answered from memory.
    pub(crate) from_memory: u64,
    /// Reads answered by a server.
    pub(crate) from_server: u64,
    /// Reads and writes that failed.
    pub(crate) failed: u64,
    /// The errors of some of them.
    pub(crate) failures: Vec<String>,
    /// The latency of cached reads.
    pub(crate) cached_ns: Histogram<u64>,
    /// The part of each client.
    pub(crate) members: Vec<CrowdPart>,
}

/// What one client reported.
#[derive(Debug, Clone, Default)]
pub(crate) struct CrowdPart {
    /// Whether it reads or writes.
    pub(crate) reads: bool,
    /// Its acknowledged writes, in order.
    pub(crate) acks: Vec<Ack>,
    /// The longest intervals between consecutive cached reads.
    pub(crate) gaps: Vec<(u64, u64)>,
    /// Until when its lease on the files certainly lasts.
    pub(crate) lease_until: u64,
    /// Messages that it has sent.
    pub(crate) messages_sent: u64,
}

impl Tally {
    fn new() -> Self {
        Self {
            runs: Vec::new(),
            from_memory: 0,
            from_server: 0,
            failed: 0,
            failures: Vec::new(),
            cached_ns: histogram(),
            members: Vec::new(),
        }
    }

    fn take(&mut self, member: usize, report: WorkerReport) {
        self.runs.extend(report.runs);
        self.from_memory += report.from_memory;
        self.from_server += report.from_server;
        self.failed += report.failed;
        self.failures.extend(report.failures);
        report.cached_ns.into_iter().for_each(|(ns, count)| self.cached_ns.saturating_record_n(ns, count));
        let part = &mut self.members[member];
        part.acks.extend(report.acks);
        part.gaps.extend(report.gaps);
        part.lease_until = report.lease_until;
        part.messages_sent = report.messages_sent;
    }

    /// Until when all readers' leases certainly last, as far as they have reported.
    pub(crate) fn leases_until(&self) -> u64 {
        self.members.iter().filter(|part| part.reads).map(|part| part.lease_until).min().unwrap_or(0)
    }

    /// The number of acknowledged writes.
    pub(crate) fn writes(&self) -> usize {
        self.members.iter().map(|part| part.acks.len()).sum()
    }
}

impl Crowd {
    /// No clients yet. `launch` starts them.
    pub(crate) fn new(launch: Launch) -> Self {
        let (sender, events) = mpsc::unbounded_channel();
        Self { launch, members: Vec::new(), events, sender, tally: Tally::new() }
    }

    /// Starts a client. Returns its number.
    pub(crate) async fn add(&mut self, task: Task) -> Result<usize, DemoError> {
        let member = self.members.len();
        let mut command = Command::from(self.launch.command());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn().map_err(DemoError::io("cannot start a client"))?;
        let (orders, said) = (child.stdin.take(), child.stdout.take());
        self.members.push(CrowdMember {
            child,
            orders,
            is_ready: false,
            holding_ms: None,
            may_end: false,
            has_ended: false,
        });
        self.tally.members.push(CrowdPart { reads: task.writes.is_empty(), ..CrowdPart::default() });
        if let Some(said) = said {
            tokio::spawn(hear(member, said, self.sender.clone()));
        }
        self.order(member, &WorkerOrder::Task(task)).await;
        Ok(member)
    }

    async fn order(&mut self, member: usize, order: &WorkerOrder) {
        let mut line = serde_json::to_vec(order).expect("each of our messages can be encoded as JSON");
        line.push(b'\n');
        if let Some(orders) = &mut self.members[member].orders {
            // A client that is gone is an event, which says how it ended.
            let _ = orders.write_all(&line).await;
        }
    }

    /// Waits until all are ready, then lets them begin.
    pub(crate) async fn begin(&mut self) -> Result<(), DemoError> {
        self.until("clients to be ready", |crowd| crowd.members.iter().all(|member| member.is_ready)).await?;
        for member in 0..self.members.len() {
            self.order(member, &WorkerOrder::Go).await;
        }
        Ok(())
    }

    /// Makes a client cache a file and do nothing else. Returns how long the copy is certainly
    /// valid.
    pub(crate) async fn hold(&mut self, member: usize, file: u32) -> Result<Duration, DemoError> {
        self.order(member, &WorkerOrder::Hold { file }).await;
        self.until("a client to hold a lease", |crowd| crowd.members[member].holding_ms.is_some()).await?;
        Ok(Duration::from_millis(self.members[member].holding_ms.unwrap_or_default()))
    }

    /// Kills a client with SIGKILL and waits until it has ended.
    pub(crate) async fn kill(&mut self, member: usize) -> Result<(), DemoError> {
        let killed = &mut self.members[member];
        killed.may_end = true;
        // The pipe closes after the kill: a client whose orders end closes its session and returns
        // its leases.
        killed.child.kill().await.map_err(DemoError::io("cannot kill a client"))?;
        killed.orders = None;
        Ok(())
    }

    /// Orders all to stop and waits for their last reports.
    pub(crate) async fn end(&mut self) -> Result<(), DemoError> {
        for member in 0..self.members.len() {
            if !self.members[member].may_end {
                self.members[member].may_end = true;
                self.order(member, &WorkerOrder::Stop).await;
            }
        }
        self.until("clients to stop", |crowd| crowd.members.iter().all(|member| member.has_ended)).await
    }

    /// Handles messages until a condition holds.
    pub(crate) async fn until(
        &mut self,
        awaited: &'static str,
        holds: impl Fn(&Self) -> bool,
    ) -> Result<(), DemoError> {
        let until = Instant::now() + PATIENCE;
        while !holds(self) {
            match tokio::time::timeout_at(until.into(), self.listen()).await {
                Ok(heard) => heard?,
                Err(_) => return Err(DemoError::Overdue { after: PATIENCE, awaited }),
            }
        }
        Ok(())
    }

    /// Handles the next message of any client. Cancel safe.
    pub(crate) async fn listen(&mut self) -> Result<(), DemoError> {
        let event = self.events.recv().await;
        // A sender always exists: `self.sender`.
        let Some((from, event)) = event else { return Ok(()) };
        let member = &mut self.members[from];
        match event {
            CrowdEvent::Word(Word::Ready) => member.is_ready = true,
            CrowdEvent::Word(Word::Holding { certain_ms }) => member.holding_ms = Some(certain_ms),
            CrowdEvent::Word(Word::Report(report)) => self.tally.take(from, report),
            CrowdEvent::Word(Word::Failed { message }) => return Err(DemoError::ClientFailed { message }),
            CrowdEvent::Ended(_) if member.may_end => member.has_ended = true,
            CrowdEvent::Ended(how) => {
                let status = member.exit_status().map(|status| format!("{how}: {status}"));
                return Err(DemoError::ClientGone { client: from, how: status.unwrap_or(how) });
            }
        }
        Ok(())
    }
}

async fn hear(member: usize, said: ChildStdout, events: UnboundedSender<(usize, CrowdEvent)>) {
    let mut lines = BufReader::new(said).lines();
    let how = loop {
        match lines.next_line().await {
            Ok(Some(line)) => match serde_json::from_str(&line) {
                // The demo may have ended.
                Ok(word) => drop(events.send((member, CrowdEvent::Word(word)))),
                Err(error) => break format!("a line of its report cannot be decoded: {error}"),
            },
            Ok(None) => break "it ended".to_owned(),
            Err(error) => break error.to_string(),
        }
    };
    let _ = events.send((member, CrowdEvent::Ended(how)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leases_last_as_long_as_that_of_any_reader() {
        let mut tally = Tally::new();
        for reads in [true, true, false] {
            tally.members.push(CrowdPart { reads, ..CrowdPart::default() });
        }
        let report = |lease_until| WorkerReport { lease_until, ..WorkerReport::default() };
        tally.take(0, report(900));
        assert_eq!(tally.leases_until(), 0, "one has not reported");
        tally.take(1, report(700));
        tally.take(2, report(0));
        assert_eq!(tally.leases_until(), 700, "a writer does not count");
        tally.take(1, report(1_200));
        assert_eq!(tally.leases_until(), 900, "the latest report counts");
    }
}
