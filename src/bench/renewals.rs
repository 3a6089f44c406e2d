//! Idle sessions: what their renewals cost the leader.

use std::time::{Duration, Instant};

use futures::{StreamExt, TryStreamExt, stream};
use leasehold_client_cache::{Client, Registration};

use super::{Bench, TIMEOUT, close, result::BenchRow};
use crate::{commands::write_failure, demo::replicas::Replicas, exit::CommandFailure};

/// Sessions that are opened or closed at one time.
const AT_ONCE: usize = 64;

/// The minimum measured time: the term of the root volume. Each lease is renewed about twice in it.
const SPAN_MIN: Duration = Duration::from_secs(10);

impl Bench {
    /// Each session registers a service, so it renews its lease on the volume as long as it lives.
    pub(super) async fn renewals(&self, replicas: &mut Replicas) -> Result<Vec<BenchRow>, CommandFailure> {
        let leader = replicas.leader(None).await?;
        let idle = self.core_of(replicas, leader).await?.0;
        let count = self.args.renewing as u64;
        self.meter.say(|| format!("opening {count} sessions"));
        let opening = (0..count).map(|number| self.registered(number));
        let all: Vec<(Client, Registration)> = stream::iter(opening).buffer_unordered(AT_ONCE).try_collect().await?;
        self.meter.say(|| format!("{count} sessions renew their leases"));
        // Waits until the load of opening has passed and the renewals are spread over a term.
        tokio::time::sleep(SPAN_MIN).await;
        let sent = || all.iter().map(|(client, _)| client.stats().messages_sent).sum::<u64>();
        let before = sent();
        let (cores, span) = self.core_of(replicas, leader).await?;
        let messages = (sent() - before) as f64 / span.as_secs_f64();
        let lost = all.iter().filter(|(_, registration)| registration.on_lost().is_cancelled()).count();
        if lost > 0 || replicas.leader(None).await? != leader {
            let text = format!("{lost} of {count} leases were lost: expected none, and replica {leader} to lead on");
            return Err(CommandFailure::refused("renewals", text));
        }
        let row = BenchRow {
            bench: "renewals",
            settings: vec![("sessions", count)],
            figures: vec![("messages_per_second", messages), ("leader_cores", cores), ("leader_cores_idle", idle)],
        };
        stream::iter(all).for_each_concurrent(AT_ONCE, |(client, _)| close(vec![client])).await;
        Ok(vec![row])
    }

    async fn registered(&self, number: u64) -> Result<(Client, Registration), CommandFailure> {
        let client = self.client("renewing").await?;
        let registered = client.register(self.node("renewals", number), "here").timeout(TIMEOUT).await;
        registered.map(|registration| (client, registration)).map_err(|error| write_failure(&error))
    }

    /// The process's share of a core, and the measured time.
    async fn core_of(&self, replicas: &Replicas, id: usize) -> Result<(f64, Duration), CommandFailure> {
        let (began, before) = (Instant::now(), replicas.processor_time(id)?);
        tokio::time::sleep(self.seconds().max(SPAN_MIN)).await;
        let (spent, span) = (replicas.processor_time(id)?.saturating_sub(before), began.elapsed());
        Ok((spent.as_secs_f64() / span.as_secs_f64(), span))
    }
}
