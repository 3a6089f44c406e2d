//! Watches: the time from a write's acknowledgement until the last of many watchers has seen it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tokio::{sync::mpsc, task::JoinSet};

use crate::{
    closed_loop::{Lines, Load},
    system::Cluster,
};

/// Time limit for all watchers to see a write.
const TOLD_WITHIN: Duration = Duration::from_secs(60);

/// Watchers of one node. They end on drop.
#[derive(Debug)]
pub(crate) struct Watchers {
    /// The time at which a watcher saw a change, for each watcher and change.
    pub(crate) told: mpsc::UnboundedReceiver<Instant>,
    /// Dropping it ends the watchers.
    pub(crate) _tasks: JoinSet<Result<()>>,
}

/// The median in milliseconds. Each write begins when all watchers have seen the previous one.
pub(crate) async fn last_told_ms(cluster: &Cluster, watchers: usize, span: Duration) -> Result<Option<f64>> {
    let Some(mut watching) = cluster.watched(watchers).await? else { return Ok(None) };
    let lines: Lines = cluster.lines(Load::Write, 1).await?;
    let mut late = Vec::new();
    let began = Instant::now();
    while began.elapsed() < span {
        lines[0].request(Load::Write, 0).await?;
        late.push(last_told(&mut watching, watchers).await?);
    }
    lines[0].close().await;
    late.sort_unstable();
    ensure!(!late.is_empty(), "no write was made in {span:?}");
    Ok(Some(late[late.len() / 2].as_secs_f64() * 1e3))
}

/// The time from now until the last watcher has seen the write. Zero if all have seen it already.
async fn last_told(watching: &mut Watchers, watchers: usize) -> Result<Duration> {
    let acknowledged = Instant::now();
    let mut last = acknowledged;
    for number in 0..watchers {
        let told = tokio::time::timeout(TOLD_WITHIN, watching.told.recv()).await;
        let told = told.with_context(|| format!("{number} of {watchers} watchers were told in {TOLD_WITHIN:?}"))?;
        last = last.max(told.context("the watchers have ended")?);
    }
    Ok(last - acknowledged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn watch_delay_is_that_of_last_watcher_and_never_negative() {
        let (sender, told) = mpsc::unbounded_channel();
        let mut watching = Watchers { told, _tasks: JoinSet::new() };
        let now = Instant::now();
        let later = now + Duration::from_secs(5);
        for at in [now, later, now] {
            sender.send(at).expect("it listens");
        }
        let last = last_told(&mut watching, 3).await.expect("all were told");
        assert!(last <= Duration::from_secs(5) && last > Duration::from_secs(4), "{last:?}");
        sender.send(now).expect("it listens");
        assert_eq!(last_told(&mut watching, 1).await.expect("told"), Duration::ZERO);
    }
}
