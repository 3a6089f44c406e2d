//! Many leases that expire at the same time, one lease with very many attached nodes, and the
//! latency of other clients' writes meanwhile.
//!
//! *Told* is the time until a watcher has seen the last deletion. If there are more nodes than the
//! history has changes, a watcher may be compacted. Then *gone* is the time until a reader that
//! polls a sample of the nodes at the leader finds none.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use leasehold_client_cache::{Client, EventKind, LeaseId, NodePath, Watch, WatchItem};
use tokio::task::JoinSet;

use crate::{
    Bench, close,
    closed_loop::{Until, histogram, nanos},
    error::LoadError,
    result::BenchRow,
    server::value,
};

/// Requests in flight while leases are granted and nodes attached.
pub(crate) const AT_ONCE: usize = 256;

/// The value of an attached node.
pub(crate) const VALUE: &str = "here";

/// How long the writers are measured before anything ends, for comparison.
pub(crate) const BEFORE: Duration = Duration::from_secs(2);

/// The term of a lease that is revoked: longer than the benchmark.
const TERM: Duration = Duration::from_secs(3600);

/// The minimum rate at which leases with one node each are created. Their end is computed from it.
pub(crate) const LEASES_PER_SECOND: u64 = 2000;

/// The same for leases without nodes.
const BARE_PER_SECOND: u64 = 5000;

/// The first of the lease ids that are chosen here. No other id is as large.
pub(crate) const FIRST: u64 = 1 << 40;

/// Clients that write meanwhile.
const WRITERS: usize = 4;

/// Time limit of a watcher's next event.
pub(crate) const TOLD_WITHIN: Duration = Duration::from_secs(120);

/// How often to check whether leases or nodes remain.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// The number of nodes that are checked. They are spread over all.
const SAMPLES: u64 = 500;

/// The benchmark uses a watcher for up to this many leases. The history then has room for their
/// ends and for the other writes.
const TOLD_MAX: u64 = 50_000;

/// How [`Bench::expiry`] lets leases end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ends {
    /// One lease with many nodes is revoked. Then leases with one node each expire together.
    Together,
    /// Leases without nodes expire together.
    Bare,
    /// Leases with one node each expire one after another over this time.
    OneAfterTheOther(Duration),
}

impl Bench<'_> {
    /// How leases end.
    pub async fn expiry(&self, ends: Ends) -> Result<Vec<BenchRow>, LoadError> {
        let leases = self.options.leases as u64;
        Ok(match ends {
            Ends::Together => {
                let nodes = self.options.objects.iter().copied().max().unwrap_or(100_000) as u64;
                vec![self.one_with_many(nodes).await?, self.many_at_once(leases, true).await?]
            }
            Ends::Bare => vec![self.many_at_once(leases, false).await?],
            Ends::OneAfterTheOther(spread) => vec![self.one_after_the_other(leases, spread).await?],
        })
    }

    async fn one_with_many(&self, nodes: u64) -> Result<BenchRow, LoadError> {
        let client = self.client("expiry").await?;
        let lease = client.grant_lease(TERM).await?;
        self.make("one", nodes, Carrier::One(lease)).await?;
        let (watch, writers) = (self.watch_of(&client, "one").await?, self.writers().await?);
        tokio::time::sleep(BEFORE).await;
        let (before, began) = (writers.take(), Instant::now());
        client.revoke_lease(lease).await?;
        let answered = began.elapsed();
        let told = self.told_of(watch, nodes, began).await?;
        let meanwhile = writers.end().await?;
        close(vec![client]).await;
        let ended = [("answered_ms", millis(answered)), ("last_told_ms", millis(told))];
        Ok(row("one lease revoked", vec![("nodes", nodes)], ended, &before, &meanwhile))
    }

    async fn many_at_once(&self, leases: u64, carry: bool) -> Result<BenchRow, LoadError> {
        let per_second = if carry { LEASES_PER_SECOND } else { BARE_PER_SECOND };
        let end = Instant::now() + Duration::from_secs(leases / per_second) + BEFORE * 3;
        self.make("many", leases, if carry { Carrier::Each(end) } else { Carrier::Nothing(end) }).await?;
        let client = self.client("expiry").await?;
        let writers = self.writers().await?;
        if end < Instant::now() + BEFORE {
            return Err(LoadError::TooSlow { leases, per_second });
        }
        self.say(format_args!("{leases} leases are about to end"));
        let watcher = async {
            match carry && leases <= TOLD_MAX {
                // The watcher reads from the beginning: one that does not read falls behind.
                true => self.told_of(self.watch_of(&client, "many").await?, leases, end).await.map(Some),
                false => Ok(None),
            }
        };
        let timing = async {
            tokio::time::sleep_until((end - BEFORE).into()).await;
            drop(writers.take());
            tokio::time::sleep_until(end.into()).await;
            let before = writers.take();
            match carry {
                true => self.until_gone(leases).await?,
                false => self.until_over(&client, leases).await?,
            }
            Ok::<_, LoadError>((before, end.elapsed()))
        };
        let (told, (before, gone)) = tokio::try_join!(watcher, timing)?;
        let meanwhile = writers.end().await?;
        while !client.admin().leases().await?.is_empty() {
            tokio::time::sleep(CHECK_EVERY).await;
        }
        let none = end.elapsed();
        close(vec![client]).await;
        let told = told.map(|told| ("last_told_ms", millis(told)));
        let ended = [("sampled_gone_ms", millis(gone)), ("none_left_ms", millis(none))].into_iter().chain(told);
        let what = if carry { "leases that end together, a node each" } else { "leases that end together" };
        Ok(row(what, vec![("leases", leases)], ended, &before, &meanwhile))
    }

    /// Waits until the leader reports that a sample of the nodes is gone.
    async fn until_gone(&self, leases: u64) -> Result<(), LoadError> {
        let line = self.line("expiry").await?;
        for number in samples(leases) {
            let path = self.node("many", number);
            while line.exists(&path).await? {
                tokio::time::sleep(CHECK_EVERY).await;
            }
        }
        line.close().await
    }

    /// Waits until the leader reports that a sample of the leases has ended.
    async fn until_over(&self, client: &Client, leases: u64) -> Result<(), LoadError> {
        for number in samples(leases) {
            let is_there = || client.lease(LeaseId(FIRST + number));
            while is_there().await?.is_some() {
                tokio::time::sleep(CHECK_EVERY).await;
            }
        }
        Ok(())
    }

    /// Creates attached nodes, or leases without nodes.
    pub(crate) async fn make(&self, set: &str, nodes: u64, carrier: Carrier) -> Result<(), LoadError> {
        let clients = self.clients("expiry", self.options.clients).await?;
        let shared = clients.clone();
        let paths: Arc<[NodePath]> = (0..nodes).map(|number| self.node(set, number)).collect();
        let op = move |worker: usize, number: u64| {
            let (client, paths) = (shared[worker % shared.len()].clone(), Arc::clone(&paths));
            async move { carrier.put(&client, number, &paths[number as usize]).await }
        };
        let made = if let Carrier::Nothing(_) = carrier { "leases" } else { "nodes that go with leases" };
        let what = format!("making {nodes} {made}");
        let made = self.closed_loop(&what, AT_ONCE.min(nodes as usize), Until::Count(nodes), op).await;
        close(clients).await;
        made.map(drop)
    }

    pub(crate) async fn watch_of(&self, client: &Client, set: &str) -> Result<Watch, LoadError> {
        let top = self.node(set, 0).ancestors().nth(1).unwrap_or_else(NodePath::root);
        Ok(client.watch(&top).await?)
    }

    /// Waits until the watch has returned this many deletions. Returns the time from `began` to the
    /// last.
    async fn told_of(&self, mut watch: Watch, nodes: u64, began: Instant) -> Result<Duration, LoadError> {
        let mut gone = 0;
        while gone < nodes {
            let told = tokio::time::timeout(TOLD_WITHIN, watch.next()).await;
            let told = told.map_err(|_| LoadError::NotGone { gone, nodes })?;
            if let WatchItem::Change(change) = told? {
                gone += change.events.iter().filter(|event| matches!(event.kind, EventKind::Delete)).count() as u64;
                self.say(format_args!("{gone} of {nodes} nodes are gone"));
            }
        }
        Ok(began.elapsed())
    }

    pub(crate) async fn writers(&self) -> Result<Writers, LoadError> {
        let clients = self.clients("writer", WRITERS).await?;
        let (is_over, latency) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(histogram())));
        let mut tasks = JoinSet::new();
        for (number, client) in (0..).zip(clients) {
            let path = self.node("others", number);
            tasks.spawn(write(client, path, Arc::clone(&is_over), Arc::clone(&latency)));
        }
        Ok(Writers { tasks, is_over, latency })
    }
}

/// The lease that a node is attached to.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Carrier {
    /// This lease.
    One(LeaseId),
    /// A new lease of its own, which ends at this instant.
    Each(Instant),
    /// No node: only a lease that ends at this instant. Its id follows from its number.
    Nothing(Instant),
}

impl Carrier {
    async fn put(self, client: &Client, number: u64, path: &NodePath) -> Result<(), LoadError> {
        let lease = match self {
            Self::One(lease) => lease,
            Self::Each(end) => grant(client, None, end).await?,
            Self::Nothing(end) => return grant(client, Some(LeaseId(FIRST + number)), end).await.map(drop),
        };
        Ok(client.put(path, VALUE).lease(lease).await.map(drop)?)
    }
}

/// Grants a lease that ends at `end`.
async fn grant(client: &Client, id: Option<LeaseId>, end: Instant) -> Result<LeaseId, LoadError> {
    let left = end.saturating_duration_since(Instant::now());
    let grant = client.grant_lease(left);
    Ok(match id {
        Some(id) => grant.id(id).await?,
        None => grant.await?,
    })
}

/// A sample of the numbers below `leases`, spread over all and including the last.
fn samples(leases: u64) -> impl Iterator<Item = u64> {
    let samples = SAMPLES.min(leases);
    (0..samples).map(move |sample| (sample + 1) * leases / samples - 1)
}

/// Clients that are unaffected by the leases. Each writes a node of its own, one write at a time.
#[derive(Debug)]
pub(crate) struct Writers {
    tasks: JoinSet<Result<(), LoadError>>,
    is_over: Arc<AtomicBool>,
    latency: Arc<Mutex<Histogram<u64>>>,
}

impl Writers {
    /// The writes that have ended since the last call.
    pub(crate) fn take(&self) -> Histogram<u64> {
        std::mem::replace(&mut *self.latency.lock().unwrap_or_else(PoisonError::into_inner), histogram())
    }

    pub(crate) async fn end(mut self) -> Result<Histogram<u64>, LoadError> {
        // Includes the writes in flight, as they may be the slowest.
        self.is_over.store(true, Relaxed);
        while let Some(ended) = self.tasks.join_next().await {
            ended??;
        }
        Ok(self.take())
    }
}

async fn write(
    client: Client,
    path: NodePath,
    is_over: Arc<AtomicBool>,
    latency: Arc<Mutex<Histogram<u64>>>,
) -> Result<(), LoadError> {
    let mut number = 0;
    while !is_over.load(Relaxed) {
        let begin = Instant::now();
        client.put(&path, value(number)).await?;
        latency.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(nanos(begin.elapsed()));
        number += 1;
    }
    close(vec![client]).await;
    Ok(())
}

fn millis(span: Duration) -> f64 {
    span.as_secs_f64() * 1e3
}

pub(crate) fn row(
    bench: &'static str,
    settings: Vec<(&'static str, u64)>,
    ended: impl IntoIterator<Item = (&'static str, f64)>,
    before: &Histogram<u64>,
    meanwhile: &Histogram<u64>,
) -> BenchRow {
    let ms = |nanos: u64| nanos as f64 / 1e6;
    let writes = [
        ("others_p99_before_ms", ms(before.value_at_quantile(0.99))),
        ("others_p50_ms", ms(meanwhile.value_at_quantile(0.5))),
        ("others_p99_ms", ms(meanwhile.value_at_quantile(0.99))),
        ("others_max_ms", ms(meanwhile.max())),
    ];
    BenchRow { bench, settings, figures: ended.into_iter().chain(writes).collect() }
}
