//! What remains of key leases, as `lease timetolive` says, through one change of the leader, two,
//! three and ten in a row, and a crash of all servers (A30): it goes on from where it was. Nobody
//! gets more time by that, and no lease ends before its time.

use std::time::Duration;

use leasehold_client_cache::{Client, DriftAllowance, LeaseId, LeaseOptions};

use crate::{
    alone,
    changes::{Changes, How},
    common::{Cli, eventually},
    ends::{Ends, grant},
    worker::boottime_ns,
};

/// Not over before the end of the test, and over at about that time.
const LONG: Duration = Duration::from_secs(120);
const SHORT: Duration = Duration::from_secs(8);

/// What the ticks are a tenth of.
const VOLUME_TERM: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(100);

/// What a busy machine may add to a tick: entries are late when disks are.
const GENEROUS: Duration = Duration::from_secs(5);

/// What a change of the leader may give at most: far less than a term.
const GAIN_MAX: Duration = Duration::from_secs(1);

/// Looks are told in milliseconds.
const ROUNDED: Duration = Duration::from_millis(1);

/// A lease, as it is seen from time to time.
#[derive(Debug)]
struct Seen {
    id: LeaseId,
    ttl: Duration,
    /// When its last renewal, or its grant, was asked for, and when that was answered.
    asked: u64,
    answered: u64,
    /// The least that has been seen to remain since then.
    least: Duration,
    /// By how much more has been seen to remain than before, at most.
    rise: Duration,
}

impl Seen {
    async fn grant(client: &Client, ttl: Duration) -> Self {
        let asked = boottime_ns();
        let id = client.grant_lease(ttl, LeaseOptions::default()).await.expect("the cluster serves");
        Self { id, ttl, asked, answered: boottime_ns(), least: Duration::MAX, rise: Duration::ZERO }
    }

    /// `lease keep-alive --once`. It has its whole term again when the next tick is in the log.
    fn renew(&mut self, cli: &Cli) {
        self.asked = boottime_ns();
        cli.done(["--timeout", "60s", "lease", "keep-alive", "--once", &format!("{:016x}", self.id)]);
        (self.answered, self.least) = (boottime_ns(), Duration::MAX);
        eventually("the renewal is in the log", || {
            let (remaining, at_least, _) = self.remaining(cli);
            if remaining >= at_least { Ok(()) } else { Err(format!("{remaining:?} of {at_least:?}")) }
        });
    }

    /// What remains, at least how much has to, and when that was asked.
    fn remaining(&self, cli: &Cli) -> (Duration, Duration, (u64, u64)) {
        let asked = boottime_ns();
        let lives = cli.done(["--timeout", "60s", "lease", "timetolive", &format!("{:016x}", self.id)]);
        let answered = boottime_ns();
        let remaining = Duration::from_millis(lives["remaining_ms"].as_u64().expect("a number"));
        (remaining, self.ttl.saturating_sub(since(self.asked, answered) + ROUNDED), (asked, answered))
    }

    /// Looks what remains, and whether that is neither too little nor too much.
    fn look(&mut self, cli: &Cli, changes: &Changes) -> Duration {
        let (remaining, at_least, (asked, answered)) = self.remaining(cli);
        assert!(remaining >= at_least, "{remaining:?} remain: expected at least {at_least:?} of {self:?}");
        // Where there was no leader time stood still, and a new one counts from the last time in
        // the log.
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
        abandoned.look(&cli, &changes);
        renewed.renew(&cli);
        renewed.look(&cli, &changes);
        let outage = changes.change(how).await;
        let remain = [abandoned.look(&cli, &changes), renewed.look(&cli, &changes)];
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
