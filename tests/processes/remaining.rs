//! The remaining time of key leases, as `lease timetolive` reports it (A30 in
//! docs/verification.md). The leader changes once, twice, three and ten times in a row, and all
//! servers crash. The remaining time goes on from where it was. No lease gains more than a bounded
//! time, and none ends early.

use std::time::Duration;

use leasehold_client_cache::{Client, DriftAllowance, LeaseId};

use crate::{
    alone,
    changes::{Changes, How},
    common::{Cli, eventually},
    ends::{Ends, grant},
    worker::boottime_ns,
};

/// `LONG` ends after the test, and `SHORT` at about the end of the test.
const LONG: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_secs(8);

/// The ticks are a tenth of this.
const VOLUME_TERM: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(100);

/// What a busy machine may add to a tick: entries are late when disks are slow.
const GENEROUS: Duration = Duration::from_secs(5);

/// The most that a change of the leader may add: far less than a term.
const GAIN_MAX: Duration = Duration::from_secs(1);

/// Remaining times are reported in milliseconds.
const ROUNDED: Duration = Duration::from_millis(1);

/// A lease whose remaining time is checked from time to time.
#[derive(Debug)]
struct Seen {
    id: LeaseId,
    ttl: Duration,
    /// When its last renewal, or its grant, was sent, and when it was answered.
    asked: u64,
    answered: u64,
    /// The least remaining time since then.
    least: Duration,
    /// The largest increase of the remaining time without a renewal.
    rise: Duration,
}

impl Seen {
    async fn grant(client: &Client, ttl: Duration) -> Self {
        let asked = boottime_ns();
        let id = client.grant_lease(ttl).await.expect("the cluster serves");
        Self { id, ttl, asked, answered: boottime_ns(), least: Duration::MAX, rise: Duration::ZERO }
    }

    /// Runs `lease keep-alive --once`. With the next tick in the log, the lease has its whole term.
    fn renew(&mut self, cli: &Cli) {
        self.asked = boottime_ns();
        cli.done(["--timeout", "60s", "lease", "keep-alive", "--once", &format!("{:016x}", self.id)]);
        (self.answered, self.least) = (boottime_ns(), Duration::MAX);
        eventually("the renewal is in the log", || {
            let (remaining, at_least, _) = self.remaining(cli);
            if remaining >= at_least { Ok(()) } else { Err(format!("{remaining:?} of {at_least:?}")) }
        });
    }

    /// The remaining time, its lower bound, and when it was asked for and answered.
    fn remaining(&self, cli: &Cli) -> (Duration, Duration, (u64, u64)) {
        let asked = boottime_ns();
        let lives = cli.done(["--timeout", "60s", "lease", "timetolive", &format!("{:016x}", self.id)]);
        let answered = boottime_ns();
        let remaining = Duration::from_millis(lives["remaining_ms"].as_u64().expect("a number"));
        (remaining, self.ttl.saturating_sub(since(self.asked, answered) + ROUNDED), (asked, answered))
    }

    /// Checks that the remaining time is neither too short nor too long.
    fn check(&mut self, cli: &Cli, changes: &Changes) -> Duration {
        let (remaining, at_least, (asked, answered)) = self.remaining(cli);
        assert!(remaining >= at_least, "{remaining:?} remain: expected at least {at_least:?} of {self:?}");
        // Without a leader, cluster time stood still. A new leader counts from the log's last time.
        let (count, out) = changes.out(self.asked, answered);
        let still = out + count * (TICK + GAIN_MAX);
        let at_most = (self.ttl + 2 * TICK + GENEROUS + still).saturating_sub(since(self.answered, asked));
        assert!(
            remaining <= at_most,
            "{remaining:?} remain: expected at most {at_most:?} of {self:?}, {count} changes"
        );
        self.rise = self.rise.max(remaining.saturating_sub(self.least));
        assert!(self.rise <= 2 * TICK + GAIN_MAX, "{remaining:?} remain, and it was {:?} before: {self:?}", self.least);
        self.least = self.least.min(remaining);
        remaining
    }
}

fn since(from: u64, to: u64) -> Duration {
    Duration::from_nanos(to.saturating_sub(from))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn remaining_lease_time_survives_ten_leaders_and_crash_of_all() {
    let _alone = alone();
    let mut changes = Changes::of(VOLUME_TERM);
    let (client, cli) = (changes.cluster.client("keeper").await, changes.cluster.cli());
    let mut abandoned = Seen::grant(&client, LONG).await;
    let mut renewed = Seen::grant(&client, LONG).await;
    let ends = Ends::watched_by(&client).await;
    let short = grant(&client, "/n/short", SHORT).await;
    let began = boottime_ns();
    let hows = [How::Killed, How::Killed, How::Stopped].into_iter().cycle().take(10).chain([How::AllKilled]);
    for (number, how) in (1..).zip(hows) {
        abandoned.check(&cli, &changes);
        renewed.renew(&cli);
        renewed.check(&cli, &changes);
        let outage = changes.change(how).await;
        let remain = [abandoned.check(&cli, &changes), renewed.check(&cli, &changes)];
        if matches!(number, 1 | 2 | 3 | 10 | 11) {
            let (count, out) = changes.out(began, boottime_ns());
            let lived = Duration::from_nanos(boottime_ns() - abandoned.asked);
            println!(
                "after {count} changes, the last of which took {outage:.2?} ({how:?}): of {LONG:?} there remain {remain:.2?}, \
                 {lived:.2?} after the grant and after the last renewal; {out:.2?} without a leader"
            );
        }
    }
    for seen in [&abandoned, &renewed] {
        println!("what remained went up by {:?} at most without a renewal", seen.rise);
    }
    let gone = ends.of(&short.path).await;
    let lived = Duration::from_nanos(gone - short.asked);
    let (count, out) = changes.out(short.asked, gone);
    let margin = DriftAllowance::DEFAULT.over(SHORT + TICK) * 2 + Duration::from_millis(1);
    println!("of {SHORT:?}, abandoned, it lived for {lived:.2?}, with {count} changes and {out:.2?} without a leader");
    assert!(lived >= SHORT, "it was over after {lived:?} of {SHORT:?}");
    let at_most = SHORT + 2 * TICK + margin + out + count * (TICK + GAIN_MAX) + GENEROUS;
    assert!(lived <= at_most, "it lived for {lived:?}: expected at most {at_most:?}");
}
