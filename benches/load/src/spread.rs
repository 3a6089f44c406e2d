//! Very many leases that expire one after another, and how late each is.
//!
//! The due time of a lease is known here to within the delay of a message. All leases are renewed
//! before any expires, and a term counts from the renewal's arrival at the leader. A lease is *due*
//! a term and the margin (T3 in docs/PROTOCOL.md) after its renewal was sent, so no lag is reported
//! too short. The lag includes the commit of the expiry, the node's removal and the way to the
//! watcher.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use leasehold_client_cache::{Client, DriftAllowance, EventKind, LeaseId, NodePath, VolumeSettings, Watch, WatchItem};
use leasehold_protocol::{
    lessor::key_lease_margin,
    message::{KEEP_ALIVES_MAX, KeepAliveResult, KeyLeaseRenewal},
};

use crate::{
    Bench, close,
    closed_loop::{Until, histogram, nanos},
    error::LoadError,
    expiry::{AT_ONCE, BEFORE, FIRST, LEASES_PER_SECOND, TOLD_WITHIN, VALUE, row},
    result::BenchRow,
};

/// The parent of the nodes.
const SET: &str = "spread";

/// Leases per renewal message: few enough for the leader to answer soon.
const RENEWED_AT_ONCE: u64 = KEEP_ALIVES_MAX as u64 / 4;

/// The minimum rate at which renewals get into the log. Each tick takes a batch of them (S10b in
/// docs/PROTOCOL.md).
const RENEWED_PER_SECOND: u64 = 50_000;

/// When each lease is due.
#[derive(Debug)]
struct Schedule {
    leases: u64,
    /// The term of the first lease. That of the last is longer by `spread`.
    first: Duration,
    spread: Duration,
    /// When the renewal of each batch of [`RENEWED_AT_ONCE`] leases was sent.
    renewed: Vec<Instant>,
}

impl Schedule {
    fn term(&self, number: u64) -> Duration {
        self.first + self.spread.mul_f64(number as f64 / self.leases as f64)
    }

    /// When the term of this lease ends at the earliest.
    fn over(&self, number: u64) -> Option<Instant> {
        let renewed = self.renewed.get((number / RENEWED_AT_ONCE) as usize)?;
        Some(*renewed + self.term(number))
    }

    fn margin(&self, number: u64) -> Duration {
        key_lease_margin(self.term(number), VolumeSettings::DEFAULT.tick(), DriftAllowance::DEFAULT)
    }
}

impl Bench<'_> {
    /// Leases with a node each that expire evenly over `spread`.
    pub(crate) async fn one_after_the_other(&self, leases: u64, spread: Duration) -> Result<BenchRow, LoadError> {
        let seconds = leases / LEASES_PER_SECOND + leases / RENEWED_PER_SECOND;
        let first = Duration::from_secs(seconds) + BEFORE * 3;
        let (mut schedule, began) = (Schedule { leases, first, spread, renewed: Vec::new() }, Instant::now());
        self.make_named(&schedule).await?;
        let (client, writers) = (self.client("spread").await?, self.writers().await?);
        self.renew_all(&mut schedule).await?;
        if began.elapsed() + Duration::from_secs(leases / RENEWED_PER_SECOND) > first {
            return Err(LoadError::TooSlow { leases, per_second: LEASES_PER_SECOND });
        }
        let due = schedule.over(0).unwrap_or(began) + schedule.margin(0);
        self.say(format_args!("{leases} leases are about to end, over {spread:?}"));
        let timing = async {
            tokio::time::sleep_until((due - BEFORE).into()).await;
            drop(writers.take());
            tokio::time::sleep_until(due.into()).await;
            Ok::<_, LoadError>(writers.take())
        };
        let (lags, before) = tokio::try_join!(self.lags(self.watch_of(&client, SET).await?, &schedule), timing)?;
        let meanwhile = writers.end().await?;
        close(vec![client]).await;
        let ms = |nanos: u64| nanos as f64 / 1e6;
        let late = [
            ("lag_p50_ms", ms(lags.value_at_quantile(0.5))),
            ("lag_p99_ms", ms(lags.value_at_quantile(0.99))),
            ("lag_max_ms", ms(lags.max())),
        ];
        let settings = vec![("leases", leases), ("spread_ms", millis(spread))];
        Ok(row("leases that end one after the other, a node each", settings, late, &before, &meanwhile))
    }

    async fn make_named(&self, schedule: &Schedule) -> Result<(), LoadError> {
        let clients = self.clients("spread", self.options.clients).await?;
        let leases = schedule.leases;
        let nodes: Arc<[(NodePath, Duration)]> =
            (0..leases).map(|number| (self.node(SET, number), schedule.term(number))).collect();
        let shared = clients.clone();
        let op = move |worker: usize, number: u64| {
            let (client, nodes) = (shared[worker % shared.len()].clone(), Arc::clone(&nodes));
            async move {
                let (path, term) = &nodes[number as usize];
                make_one(&client, path, LeaseId(FIRST + number), *term).await
            }
        };
        let what = format!("making {leases} nodes that go with leases");
        let made = self.closed_loop(&what, AT_ONCE.min(leases as usize), Until::Count(leases), op).await;
        close(clients).await;
        made.map(drop)
    }

    /// Begins the terms of all leases, and records when.
    async fn renew_all(&self, schedule: &mut Schedule) -> Result<(), LoadError> {
        let line = self.line("spread").await?;
        for first in (0..schedule.leases).step_by(RENEWED_AT_ONCE as usize) {
            let numbers = first..schedule.leases.min(first + RENEWED_AT_ONCE);
            let keep = |number| KeyLeaseRenewal { id: LeaseId(FIRST + number), incarnation: None };
            let leases = numbers.map(keep).collect();
            schedule.renewed.push(Instant::now());
            if let Some(gone) =
                line.keep(leases).await?.into_iter().find(|kept| kept.result == KeepAliveResult::NotFound)
            {
                return Err(LoadError::LeaseGone(gone.id));
            }
        }
        line.close().await
    }

    /// Waits until the watch has returned all deletions. Returns the lags in nanoseconds.
    async fn lags(&self, mut watch: Watch, schedule: &Schedule) -> Result<Histogram<u64>, LoadError> {
        let mut lags = histogram();
        let within = schedule.first + TOLD_WITHIN;
        while lags.len() < schedule.leases {
            let (gone, leases) = (lags.len(), schedule.leases);
            let told = tokio::time::timeout(within, watch.next()).await;
            let told = told.map_err(|_| LoadError::NotGone { gone, nodes: leases })?;
            let told_at = Instant::now();
            let WatchItem::Change(change) = told? else { continue };
            for event in change.events.iter().filter(|event| matches!(event.kind, EventKind::Delete)) {
                let number = number_of(&event.path);
                let Some((number, over)) = number.and_then(|number| Some((number, schedule.over(number)?))) else {
                    return Err(LoadError::Stranger(event.path.clone()));
                };
                if told_at < over {
                    return Err(LoadError::TooEarly { path: event.path.clone(), early: over - told_at });
                }
                lags.saturating_record(nanos(told_at.saturating_duration_since(over + schedule.margin(number))));
            }
            self.say(format_args!("{gone} of {leases} nodes are gone"));
        }
        Ok(lags)
    }
}

async fn make_one(client: &Client, path: &NodePath, id: LeaseId, term: Duration) -> Result<(), LoadError> {
    let lease = client.grant_lease(term).id(id).await?;
    Ok(client.put(path, VALUE).lease(lease).await.map(drop)?)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// The number that [`Bench::node`] made the path from.
fn number_of(path: &NodePath) -> Option<u64> {
    let mut last = path.as_str().rsplit('/').map(str::parse::<u64>);
    let (low, high) = (last.next()?.ok()?, last.next()?.ok()?);
    Some(high * 1000 + low)
}
