//! The course of the demo.

use std::{
    fmt, io,
    time::{Duration, Instant},
};

use futures::{StreamExt, TryStreamExt, stream};
use leasehold_client_cache::{Client, DriftAllowance, NodePath, Tracking, VolumeSettings};
use leasehold_protocol::volume::{TICK_MAX, TICKS_PER_TERM};
use leasehold_server::RaftConfig;
use rand::{SeedableRng, rngs::StdRng, seq::SliceRandom};

use crate::{
    DemoOptions, Narrator,
    clock::now_ns,
    crowd::{Crowd, CrowdPart, Tally},
    error::DemoError,
    files::File,
    oracle::{self, Ack},
    replicas::Replicas,
    report::{DemoReport, Outage, millis, percentile},
    session::{TIMEOUT, connect},
    talk::Task,
};

/// The term of the files' volume. A client renews its lease when half of it remains, or earlier
/// with another request. So at least about half of the term remains when the leader dies. That is
/// longer than most outages. The readers report how much remains. The term is also short enough
/// that the demo can wait for its end.
const TERM: Duration = Duration::from_secs(4);

/// The object term. Copies stay valid for it while the volume lease is renewed.
const OBJECT_TERM: Duration = Duration::from_secs(3600);

/// The skew margin, which the server waits beyond a term.
const SKEW_MARGIN: Duration = Duration::from_millis(100);

/// Writers, each a process.
const WRITERS: usize = 2;

/// The maximum number of files that are written, of all ranks of popularity.
const WRITTEN_MAX: usize = 32;

/// Only files up to this length are written, if there are any: the demo does not measure the disk.
const WRITTEN_MAX_BYTES: u64 = 32 << 10;

/// Files imported at the same time.
const IMPORTS_AT_ONCE: usize = 32;

/// The minimum allowance for two commits, that of the expiry and that of the write.
const COMMITS_MIN_MS: f64 = 100.0;

/// The random seed. It is constant, so that two runs read alike.
const SEED: u64 = 0x1ea5e;

/// All participants.
pub(crate) struct Play<'a> {
    options: &'a DemoOptions,
    narrator: &'a dyn Narrator,
    /// Most popular first.
    files: Vec<File>,
    replicas: Replicas,
    client: Client,
    crowd: Crowd,
    /// The writes of this process.
    own: Vec<Ack>,
    began: Instant,
}

/// The node that has all files below it.
pub(crate) fn top() -> NodePath {
    NodePath::root().child("demo").expect("a valid name")
}

impl<'a> Play<'a> {
    /// Starts the cluster, imports the files, and starts the clients.
    pub(crate) async fn begin(
        options: &'a DemoOptions,
        narrator: &'a dyn Narrator,
        mut files: Vec<File>,
    ) -> Result<Self, DemoError> {
        files.shuffle(&mut StdRng::seed_from_u64(SEED));
        let mut replicas = Replicas::start(options.replicas, options.replica.clone()).await?;
        let leader = replicas.leader(None).await?;
        narrator.tell(&format!("{} replicas run, replica {leader} leads", options.replicas));
        let client = connect(replicas.endpoints(), "demo").await?;
        let crowd = Crowd::new(options.client.clone());
        let (own, began) = (Vec::new(), Instant::now());
        let mut play = Self { options, narrator, files, replicas, client, crowd, own, began };
        play.import().await?;
        play.invite().await?;
        Ok(play)
    }

    async fn import(&mut self) -> Result<(), DemoError> {
        let settings = VolumeSettings::new(TERM, OBJECT_TERM, SKEW_MARGIN, Tracking::Objects, DriftAllowance::DEFAULT);
        let settings = settings.expect("constant settings that are valid");
        self.client.admin().create_volume(top()).settings(settings).await?;
        let began = Instant::now();
        let client = &self.client;
        let puts = self.files.iter().enumerate().map(|(place, file)| import(client, place as u32, file));
        let acks: Vec<Ack> = stream::iter(puts).buffer_unordered(IMPORTS_AT_ONCE).try_collect().await?;
        self.own.extend(acks);
        let bytes: u64 = self.files.iter().map(|file| file.bytes).sum();
        let took = began.elapsed().as_secs_f64();
        self.narrator.tell(&format!("{} files with {bytes} bytes imported in {took:.2} s", self.files.len()));
        Ok(())
    }

    async fn invite(&mut self) -> Result<(), DemoError> {
        let written = written(&self.files);
        for number in 0..self.options.clients + WRITERS {
            let (kind, writes) =
                if number < self.options.clients { ("reader", Vec::new()) } else { ("writer", written.clone()) };
            let task = Task {
                endpoints: self.replicas.endpoints().to_vec(),
                name: format!("demo-{kind}-{number}"),
                seed: SEED + number as u64,
                files: self.files.iter().map(|file| file.node.to_string()).collect(),
                writes,
            };
            self.crowd.add(task).await?;
        }
        self.crowd.begin().await?;
        self.began = Instant::now();
        let (clients, written) = (self.options.clients, written.len());
        self.narrator.tell(&format!("{clients} clients read, {WRITERS} write {written} of the files, each a process"));
        Ok(())
    }

    /// Performs the demo.
    pub(crate) async fn perform(&mut self) -> Result<DemoReport, DemoError> {
        let length = self.options.length;
        self.run_until(length.mul_f64(0.2)).await?;
        let commit_ms = self.commit_ms();
        let (leader, outage) = self.kill_leader().await?;
        self.run_for(length.mul_f64(0.1)).await?;
        self.replicas.restart(leader)?;
        self.narrator.tell(&format!("replica {leader} starts again"));
        self.replicas.rejoined(leader).await?;
        self.narrator.tell(&format!("replica {leader} follows"));
        self.run_until(length.mul_f64(0.55)).await?;
        let (waited, left) = self.kill_client().await?;
        self.run_until(length).await?;
        self.crowd.end().await?;
        self.narrator.tell("all clients have stopped; each read is held against what was known when it began");
        let mut report = self.judge(outage);
        report.dead_client_wait_ms = millis(waited);
        report.dead_client_left_ms = millis(left);
        // After a failover the bound has one more tick (S5 in docs/PROTOCOL.md).
        let most = TERM + SKEW_MARGIN + TICK_MAX.min(TERM / TICKS_PER_TERM);
        report.dead_client_bound_ms = most.as_secs_f64() * 1e3 + commit_ms;
        report.outage_bound_ms = outage_bound().as_secs_f64() * 1e3;
        Ok(report)
    }

    /// Ends the cluster, or keeps it running and prints its endpoints.
    pub(crate) async fn end(self) -> Vec<String> {
        self.client.close().await;
        if !self.options.keep {
            return Vec::new();
        }
        let endpoints = self.replicas.endpoints().to_vec();
        let (dir, ids) = self.replicas.keep();
        let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
        let (at, dir) = (endpoints.join(","), dir.display());
        self.narrator.tell(&format!("the cluster runs on: endpoints {at}, processes {}, data in {dir}", ids.join(" ")));
        endpoints
    }

    /// Handles messages until this time since the clients began.
    async fn run_until(&mut self, elapsed: Duration) -> Result<(), DemoError> {
        let until = self.began + elapsed;
        loop {
            let counts = Counts { tally: &self.crowd.tally, elapsed: self.began.elapsed() };
            self.narrator.live(format_args!("{counts}"));
            match tokio::time::timeout_at(until.into(), self.crowd.listen()).await {
                Ok(heard) => heard?,
                Err(_) => return Ok(()),
            }
        }
    }

    async fn run_for(&mut self, span: Duration) -> Result<(), DemoError> {
        self.run_until(self.began.elapsed() + span).await
    }

    /// The allowance for two commits: twice the 99th percentile of the writes.
    fn commit_ms(&self) -> f64 {
        let acks = self.crowd.tally.members.iter().flat_map(|part| &part.acks);
        let mut waits: Vec<u64> = acks.map(|ack| ack.end - ack.begin).collect();
        waits.sort_unstable();
        (2.0 * millis(percentile(&waits, 0.99))).max(COMMITS_MIN_MS)
    }

    /// Returns the killed leader and the outage of writes.
    async fn kill_leader(&mut self) -> Result<(usize, Outage), DemoError> {
        self.crowd.until("readers to report", |crowd| crowd.tally.leases_until() > 0).await?;
        let leader = self.replicas.leader(None).await?;
        let (from, leases_until) = (now_ns(), self.crowd.tally.leases_until());
        self.replicas.kill(leader)?;
        let left = millis(leases_until.saturating_sub(from)) / 1e3;
        self.narrator
            .tell(&format!("replica {leader} led and was killed; each reader's lease lasts for {left:.1} s at least"));
        let has_gone_on = |part: &CrowdPart| part.reads || part.acks.last().is_some_and(|ack| ack.begin > from);
        self.crowd.until("writes to go on", |crowd| crowd.tally.members.iter().all(has_gone_on)).await?;
        // A write in flight at the kill may have been acknowledged before it and reported after it.
        // So only writes that began after the kill count.
        let first = |part: &CrowdPart| part.acks.iter().find(|ack| ack.begin > from).map(|ack| ack.end);
        let to = self.crowd.tally.members.iter().filter_map(first).max().unwrap_or(from);
        let next = self.replicas.leader(Some(leader)).await?;
        let out = millis(to - from);
        self.narrator.tell(&format!("replica {next} leads; all writers had gone on {out:.0} ms after the kill"));
        Ok((leader, Outage { from, to, leases_until }))
    }

    /// Returns how long the write waited, and how long the killed client's copy was still valid,
    /// both in nanoseconds.
    async fn kill_client(&mut self) -> Result<(u64, u64), DemoError> {
        let written = written(&self.files);
        let left = (0..self.files.len() as u32).find(|place| !written.contains(place));
        let file = left.ok_or(DemoError::AllAreWritten)?;
        // The client counts from its own read, which came after this request.
        let asked = now_ns();
        let certain = self.crowd.hold(0, file).await?;
        self.crowd.kill(0).await?;
        let node = self.files[file as usize].node.clone();
        self.narrator.tell(&format!("client 0 was killed; it had {node} for {:.1} s more", certain.as_secs_f64()));
        let client = self.client.clone();
        let begin = now_ns();
        let mut put =
            client.put(&node, "written after a client that held it was killed\n").timeout(TIMEOUT).into_future();
        let written = loop {
            tokio::select! {
                outcome = &mut put => break outcome?,
                heard = self.crowd.listen() => heard?,
            }
        };
        let end = now_ns();
        self.own.push(Ack { file, revision: written.revision.0, begin, end });
        self.narrator.tell(&format!("the write of {node} waited for {:.1} s", millis(end - begin) / 1e3));
        let left = asked.saturating_add(certain.as_nanos() as u64).saturating_sub(begin);
        Ok((end - begin, left))
    }

    fn judge(&self, outage: Outage) -> DemoReport {
        let tally = &self.crowd.tally;
        let acks = tally.members.iter().flat_map(|part| &part.acks).chain(&self.own).copied().collect::<Vec<_>>();
        let mut report = DemoReport::new(tally, oracle::judge(&tally.runs, &acks), outage);
        report.files = self.files.len() as u64;
        report.bytes = self.files.iter().map(|file| file.bytes).sum();
        for failure in tally.failures.iter().take(3) {
            self.narrator.tell(&format!("something failed: {failure}"));
        }
        report
    }
}

/// A follower waits for the leader's lease to run out, then for its own election timeout. Each
/// takes at most the maximum election timeout. A second is for the recall and everything else.
fn outage_bound() -> Duration {
    Duration::from_millis(RaftConfig::default().election_max_ms) * 2 + Duration::from_secs(1)
}

async fn import(client: &Client, place: u32, file: &File) -> Result<Ack, DemoError> {
    let source = file.source.clone();
    let value = tokio::task::spawn_blocking(move || std::fs::read(source)).await;
    let value = value.unwrap_or_else(|error| Err(io::Error::other(error)));
    let value = value.map_err(DemoError::io(file.source.display()))?;
    let begin = now_ns();
    let written = client.put(&file.node, value).await;
    let written =
        written.map_err(|source| DemoError::Import { file: file.source.clone(), source: Box::new(source) })?;
    Ok(Ack { file: place, revision: written.revision.0, begin, end: now_ns() })
}

/// The indices of the files that are written: short ones, of all ranks.
fn written(files: &[File]) -> Vec<u32> {
    let short: Vec<usize> = (0..files.len()).filter(|place| files[*place].bytes <= WRITTEN_MAX_BYTES).collect();
    let places: Vec<usize> = match short.len().div_ceil(WRITTEN_MAX) {
        0 => (0..files.len()).min_by_key(|place| files[*place].bytes).into_iter().collect(),
        // All short files if there are few, except one for the write that waits.
        1 if short.len() > 1 => short.into_iter().skip(1).collect(),
        step => short.into_iter().step_by(step).collect(),
    };
    places.into_iter().map(|place| place as u32).collect()
}

/// The counts so far.
struct Counts<'a> {
    tally: &'a Tally,
    elapsed: Duration,
}

impl fmt::Display for Counts<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tally, elapsed } = self;
        let reads = tally.from_memory + tally.from_server;
        let share = 100.0 * tally.from_memory as f64 / reads.max(1) as f64;
        let rate = reads as f64 / elapsed.as_secs_f64().max(0.001);
        write!(out, "{reads} reads, {share:.2} % from memory, {rate:.0}/s; {} writes", tally.writes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(lengths: &[u64]) -> Vec<File> {
        let file = |(i, bytes): (usize, &u64)| File {
            source: format!("{i}").into(),
            node: top().child(&i.to_string()).expect("valid"),
            bytes: *bytes,
        };
        lengths.iter().enumerate().map(file).collect()
    }

    #[test]
    fn short_files_are_written_and_one_is_left_unwritten() {
        assert_eq!(written(&files(&[10, 1 << 20, 20, 30])), [2, 3]);
        assert_eq!(written(&files(&[10])), [0]);
        assert_eq!(written(&files(&[1 << 20, 1 << 19])), [1]);
        let many = written(&files(&[1; 1000]));
        assert!(many.len() <= WRITTEN_MAX && many.len() > WRITTEN_MAX / 2);
        assert_eq!(many[0], 0, "the most popular too");
    }
}
