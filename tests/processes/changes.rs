//! Changes of the leader, and how long there was none each time.

use std::time::Duration;

use leasehold_client_cache::server_status;

use crate::{
    common::{Cluster, soon},
    worker::boottime_ns,
};

/// The longest wait for a server's answer whether it leads.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// How a leader is brought down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// It is killed, and started again at once.
    Killed,
    /// It is paused until another server leads.
    Stopped,
    /// All servers are killed, and started again at once.
    AllKilled,
}

/// A cluster, and its times without a leader in nanoseconds, on the clock that leases are counted
/// by.
#[derive(Debug)]
pub(crate) struct Changes {
    pub(crate) cluster: Cluster,
    outages: Vec<(u64, u64)>,
}

/// Waits until one of these servers reports that it leads in a later epoch. Returns its id and
/// epoch.
pub(crate) async fn leading(servers: &Cluster, of: &[u64], epoch: u64) -> (u64, u64) {
    soon("a server leads", || async {
        let mut said = Vec::new();
        for id in of {
            match server_status(servers.address(*id), ANSWER_MAX).await.map(|status| status.info) {
                Ok(info) if info.leader == Some(info.replica) && info.epoch.0 > epoch => {
                    return Ok((info.replica, info.epoch.0));
                }
                other => said.push(format!("{other:?}")),
            }
        }
        Err(said.join(", "))
    })
    .await
}

impl Changes {
    /// Three servers with a volume at `/n` of this term. Their tick is a tenth of it.
    pub(crate) fn of(term: Duration) -> Self {
        let cluster = Cluster::start(3);
        let term = format!("{}ms", term.as_millis());
        cluster.cli().done(["volume", "create", "/n", "--term", &term, "--skew-margin", "10ms"]);
        Self { cluster, outages: Vec::new() }
    }

    /// Three servers with the default settings, and a node `/n`.
    pub(crate) fn with_defaults() -> Self {
        let cluster = Cluster::start(3);
        cluster.cli().done(["put", "/n", "here"]);
        Self { cluster, outages: Vec::new() }
    }

    /// Brings the leader down, and waits for the next one. Returns how long there was none.
    pub(crate) async fn change(&mut self, how: How) -> Duration {
        let all = self.cluster.ids();
        self.cluster.caught_up(&all);
        let (old, epoch) = leading(&self.cluster, &all, 0).await;
        let down = if how == How::AllKilled { all.clone() } else { vec![old] };
        // A paused server never reports that it leads.
        let next = if how == How::Stopped { self.cluster.others(old) } else { all };
        let from = boottime_ns();
        for id in &down {
            match how {
                How::Stopped => self.cluster.pause(*id, true),
                How::Killed | How::AllKilled => self.cluster.kill(*id),
            }
        }
        if how != How::Stopped {
            down.into_iter().for_each(|id| self.cluster.spawn(id));
        }
        leading(&self.cluster, &next, epoch).await;
        let to = boottime_ns();
        if how == How::Stopped {
            self.cluster.pause(old, false);
        }
        self.outages.push((from, to));
        Duration::from_nanos(to - from)
    }

    /// How often there was no leader between two times, and for how long in all.
    pub(crate) fn out(&self, from: u64, to: u64) -> (u32, Duration) {
        let overlap = |(began, ended): &(u64, u64)| (*ended).min(to).saturating_sub((*began).max(from));
        let overlaps = self.outages.iter().map(overlap).filter(|overlap| *overlap > 0);
        overlaps.fold((0, Duration::ZERO), |(count, sum), overlap| (count + 1, sum + Duration::from_nanos(overlap)))
    }

    /// The longest time without a leader.
    pub(crate) fn longest(&self) -> Duration {
        let outages = self.outages.iter().map(|(from, to)| Duration::from_nanos(to - from));
        outages.max().unwrap_or_default()
    }
}
