//! Idle sessions: what their renewals cost the leader.

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use leasehold_client_cache::{Client, Registration, server_status};

use crate::{Bench, close, error::LoadError, process::processor_time, result::BenchRow};

/// Sessions that are opened or closed at one time.
const AT_ONCE: usize = 64;

/// The minimum measured time: the term of the root volume. Each lease is renewed about twice in it.
const SPAN_MIN: Duration = Duration::from_secs(10);

/// Time limit of a replica's answer who leads.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);

impl Bench<'_> {
    /// Each session registers a service, so it renews its lease on the volume as long as it lives.
    /// Replica `leader` leads, and has this process id.
    pub async fn renewals(&self, leader: u64, process: u32) -> Result<Vec<BenchRow>, LoadError> {
        let idle = self.core_of(process).await?.0;
        let count = self.options.renewing as u64;
        self.say(format_args!("opening {count} sessions"));
        let opening = (0..count).map(|number| self.registered(number));
        let all: Vec<(Client, Registration)> = stream::iter(opening).buffer_unordered(AT_ONCE).try_collect().await?;
        self.say(format_args!("{count} sessions renew their leases"));
        // Waits until the load of opening has passed and the renewals are spread over a term.
        tokio::time::sleep(SPAN_MIN).await;
        let sent = || all.iter().map(|(client, _)| client.stats().messages_sent).sum::<u64>();
        let before = sent();
        let (cores, span) = self.core_of(process).await?;
        let messages = (sent() - before) as f64 / span.as_secs_f64();
        let lost = all.iter().filter(|(_, registration)| registration.on_lost().is_cancelled()).count();
        if lost > 0 || self.leader().await != Some(leader) {
            return Err(LoadError::LeasesLost { lost, leases: all.len(), leader });
        }
        let row = BenchRow {
            bench: "renewals",
            settings: vec![("sessions", count)],
            figures: vec![("messages_per_second", messages), ("leader_cores", cores), ("leader_cores_idle", idle)],
        };
        stream::iter(all).for_each_concurrent(AT_ONCE, |(client, _)| close(vec![client])).await;
        Ok(vec![row])
    }

    async fn registered(&self, number: u64) -> Result<(Client, Registration), LoadError> {
        let client = self.client("renewing").await?;
        let registered = client.register(self.node("renewals", number), "here").await;
        Ok((client, registered?))
    }

    /// The leader, if a replica knows it.
    async fn leader(&self) -> Option<u64> {
        for endpoint in &self.endpoints {
            if let Ok(status) = server_status(endpoint, ANSWER_TIMEOUT).await
                && status.info.leader.is_some()
            {
                return status.info.leader;
            }
        }
        None
    }

    /// The process's share of a core, and the measured time.
    async fn core_of(&self, process: u32) -> Result<(f64, Duration), LoadError> {
        let (began, before) = (Instant::now(), processor_time(process)?);
        tokio::time::sleep(self.options.span.max(SPAN_MIN)).await;
        let (spent, span) = (processor_time(process)?.saturating_sub(before), began.elapsed());
        Ok((spent.as_secs_f64() / span.as_secs_f64(), span))
    }
}
