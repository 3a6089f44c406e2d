//! Attaches nodes to leases and detaches them, for leases with few attached nodes and with very
//! many.
//!
//! One loop alternates between the leases, operation by operation, so that other load on the
//! machine affects them equally.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use leasehold_client_cache::{Attach, LeaseId, NodePath};

use crate::{
    Bench, close,
    closed_loop::{Until, histogram, measured, nanos},
    error::LoadError,
    expiry::Carrier,
    result::BenchRow,
};

/// So long that no lease expires.
const TERM: Duration = Duration::from_secs(3600);

/// A lease, the number of its attached nodes, and the latencies of attaching and detaching one
/// more.
#[derive(Debug)]
struct Carrying {
    lease: LeaseId,
    carried: u64,
    attach: Mutex<Histogram<u64>>,
    detach: Mutex<Histogram<u64>>,
}

impl Carrying {
    /// p50 and p99 of both, in milliseconds. Resets the histograms.
    fn take(&self) -> Result<Vec<(&'static str, f64)>, LoadError> {
        let take = |times: &Mutex<Histogram<u64>>| {
            std::mem::replace(&mut *times.lock().unwrap_or_else(PoisonError::into_inner), histogram())
        };
        let ms = |times: &Histogram<u64>, quantile| times.value_at_quantile(quantile) as f64 / 1e6;
        let (attach, detach) = (take(&self.attach), take(&self.detach));
        measured("attach", &attach)?;
        measured("detach", &detach)?;
        Ok(vec![
            ("attach_p50_ms", ms(&attach, 0.5)),
            ("attach_p99_ms", ms(&attach, 0.99)),
            ("detach_p50_ms", ms(&detach, 0.5)),
            ("detach_p99_ms", ms(&detach, 0.99)),
        ])
    }
}

impl Bench<'_> {
    /// For each number in flight: a row for each lease, and a row of the last lease's figures
    /// divided by the first's.
    pub async fn attach(&self) -> Result<Vec<BenchRow>, LoadError> {
        let client = self.client("attach").await?;
        let mut leases = Vec::new();
        for carried in self.options.carried.iter().map(|carried| *carried as u64) {
            let lease = client.grant_lease(TERM).await?;
            self.make(&format!("carried-{carried}"), carried, Carrier::One(lease)).await?;
            let (attach, detach) = (Mutex::new(histogram()), Mutex::new(histogram()));
            leases.push(Carrying { lease, carried, attach, detach });
        }
        let leases: Arc<[Carrying]> = leases.into();
        let mut rows = Vec::new();
        let mut quotients = Vec::new();
        for &inflight in &self.options.inflight {
            self.attach_and_detach(&leases, inflight).await?;
            let figures = leases.iter().map(Carrying::take).collect::<Result<Vec<_>, _>>()?;
            if let ([first, .., last], [least, .., most]) = (&figures[..], &leases[..]) {
                let settings = [("inflight", inflight as u64), ("least", least.carried), ("most", most.carried)];
                quotients.push(quotient(settings.to_vec(), first, last));
            }
            rows.extend(leases.iter().zip(figures).map(|(lease, figures)| BenchRow {
                bench: "attach and detach, by the nodes that the lease carries",
                settings: vec![("inflight", inflight as u64), ("carried", lease.carried)],
                figures,
            }));
        }
        for lease in leases.iter() {
            client.revoke_lease(lease.lease).await?;
        }
        close(vec![client]).await;
        rows.extend(quotients);
        Ok(rows)
    }

    /// Puts a new node with a lease, then puts it again without one.
    async fn attach_and_detach(&self, leases: &Arc<[Carrying]>, inflight: usize) -> Result<(), LoadError> {
        let clients = self.clients("attach", inflight.min(self.options.clients)).await?;
        let (top, shared, leases) = (self.top.clone(), clients.clone(), Arc::clone(leases));
        let op = move |worker: usize, number: u64| {
            let (client, leases, top) = (shared[worker % shared.len()].clone(), Arc::clone(&leases), top.clone());
            async move {
                let turn = (number % leases.len() as u64) as usize;
                let (lease, node) = (&leases[turn], number / leases.len() as u64);
                let path = format!("{top}/attached-{turn}-{inflight}/{}/{}", node / 1000, node % 1000);
                let path: NodePath = path.parse()?;
                for (attach, times) in [(Attach::Lease(lease.lease), &lease.attach), (Attach::Nothing, &lease.detach)] {
                    let begin = Instant::now();
                    client.put(&path, "here").attach(attach).await?;
                    let took = nanos(begin.elapsed());
                    times.lock().unwrap_or_else(PoisonError::into_inner).saturating_record(took);
                }
                Ok(())
            }
        };
        let what = format!("attach and detach, {inflight} in flight");
        self.closed_loop(&what, inflight, Until::Elapsed(self.options.span), op).await?;
        close(clients).await;
        Ok(())
    }
}

/// The last lease's figures divided by the first's.
fn quotient(settings: Vec<(&'static str, u64)>, first: &[(&str, f64)], last: &[(&str, f64)]) -> BenchRow {
    let names = ["attach_p50_quotient", "attach_p99_quotient", "detach_p50_quotient", "detach_p99_quotient"];
    let quotients = first.iter().zip(last).map(|((_, first), (_, last))| last / first);
    BenchRow {
        bench: "attach and detach, most by least carried",
        settings,
        figures: names.into_iter().zip(quotients).collect(),
    }
}
