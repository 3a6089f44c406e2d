//! Two shells: one has a cached copy of what the other writes.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{
    alone,
    common::{
        Cli, Cluster, Missed, Shell,
        stall::{check, measured},
    },
};

const TERM: Duration = Duration::from_secs(3);
const MARGIN: Duration = Duration::from_millis(100);

/// How late a lease may end: a tick until its last renewal is in the log, and a tick until its end
/// is (T6 in docs/PROTOCOL.md). A tick is a tenth of the term, and at most 250 ms.
const TICKS: Duration = Duration::from_millis(2 * 250);

fn is_from(answer: &Value, source: &str, value: &str) -> bool {
    answer["source"] == source && answer["value"] == value
}

/// Reads until the answer comes from memory: no lease is granted while a write is pending. Returns
/// when this read was sent, and how long the copy may be used.
fn cache(shell: &mut Shell, value: &str) -> (Instant, Duration) {
    loop {
        let asked = Instant::now();
        let answer = shell.ask("get /v/a");
        assert_eq!(answer["value"], value, "{answer}");
        if answer["source"] == "memory" {
            return (asked, Duration::from_millis(answer["valid_ms"].as_u64().expect("a number")));
        }
    }
}

/// Two shells that use one node of a server.
struct Pair {
    cli: Cli,
    holder: Shell,
    writer: Shell,
    _cluster: Cluster,
}

impl Pair {
    fn start() -> Self {
        let cluster = Cluster::start(1);
        let cli = cluster.cli();
        let [holder, mut writer] = [(); 2].map(|()| cli.shell_with(&["--timeout", "30s"]));
        let created = writer.ask("volume create /v --term 3s --skew-margin 100ms");
        assert!(created["revision"].is_u64(), "{created}");
        assert_eq!(writer.ask("put /v/a one")["version"], 1);
        Self { cli, holder, writer, _cluster: cluster }
    }

    fn close(self) {
        assert_eq!(self.holder.close().code(), Some(0));
        assert_eq!(self.writer.close().code(), Some(0));
    }

    /// A put by another client returns only after the holder's consent, and soon after it. The
    /// holder's statistics show the consent.
    fn consent(&mut self) -> Result<(), Missed> {
        self.writer.ask("put /v/a one");
        let (_, valid) = cache(&mut self.holder, "one");
        let recalls = self.holder.ask("stats")["recalls"].as_u64().expect("a number");
        let put = Instant::now();
        let written = self.writer.ask("put /v/a two");
        let consented = put.elapsed();
        assert!(written["version"].is_u64(), "{written}");
        let stats = self.holder.ask("stats");
        assert_eq!(stats["recalls"].as_u64(), Some(recalls + 1), "{stats}");
        let next = self.holder.ask("get /v/a");
        assert!(is_from(&next, "server", "two"), "{next}");
        println!("a live holder, valid for {valid:?}, consented within {consented:?}");
        // A round trip and a commit. The machine's allowance is far more than they need. It is less
        // than any wait for a lease, because a lease is renewed when half of it has passed.
        check("a write of what a live holder has is done", consented, Duration::ZERO, Duration::ZERO)
    }

    /// A stopped holder cannot consent. The put waits as long as the holder's promise lasts, and
    /// `why` shows the wait.
    fn wait_for_a_stopped_holder(&mut self) -> Result<(), Missed> {
        self.writer.ask("put /v/a two");
        let (asked, valid) = cache(&mut self.holder, "two");
        let name = format!(":{}", self.holder.process.id());
        self.holder.process.pause(true);
        let put = Instant::now();
        self.writer.types("put /v/a three");
        let bound = TERM + MARGIN + TICKS;
        let wait = self.why(put);
        let holder_name = wait["holder_name"].as_str().expect("a name");
        assert!(holder_name.starts_with("shell@") && holder_name.ends_with(&name), "{wait}");
        assert!(wait["writer_name"].as_str().is_some_and(|writer| writer.starts_with("shell@")), "{wait}");
        let at_most = Duration::from_millis(wait["at_most_ms"].as_u64().expect("a number"));
        assert!(Duration::ZERO < at_most && at_most <= bound, "{wait}");
        let written = self.writer.answer();
        let (waited, since_asked) = (put.elapsed(), asked.elapsed());
        assert!(written["version"].is_u64(), "{written}");
        assert!(
            since_asked >= valid,
            "the put was done {since_asked:?} after a read that was valid for {valid:?} more"
        );
        println!("a stopped holder, valid for {valid:?}, held a put up for {waited:?}; why said at most {at_most:?}");

        // The next put does not wait for it. When it resumes, it does not use its copy.
        let put = Instant::now();
        let written = self.writer.ask("put /v/a four");
        let again = put.elapsed();
        assert!(written["version"].is_u64(), "{written}");
        self.holder.types("get /v/a");
        self.holder.process.pause(false);
        let after = self.holder.answer();
        assert!(is_from(&after, "server", "four"), "{after}");
        check("a write of what a stopped holder has is done", waited, Duration::ZERO, bound)?;
        check("a write of what nobody has any more is done", again, Duration::ZERO, Duration::ZERO)
    }

    /// The wait for the holder in the answer of `why`.
    fn why(&self, since: Instant) -> Value {
        loop {
            let why = self.cli.done(["why", "/v/a"]);
            let waits = why["writes"].as_array().expect("a list").clone();
            if let Some(wait) = waits.into_iter().find(|wait| wait["holder"].is_u64()) {
                return wait;
            }
            assert!(since.elapsed() < TERM * 2, "why has not told of a wait: {why}");
        }
    }
}

#[test]
fn write_waits_for_consent_or_lease_of_stopped_client() {
    let _alone = alone();
    let mut pair = Pair::start();
    // The second read comes from memory.
    let first = pair.holder.ask("get /v/a");
    assert!(is_from(&first, "server", "one"), "{first}");
    let second = pair.holder.ask("get /v/a");
    assert!(is_from(&second, "memory", "one"), "{second}");
    measured(|| pair.consent());
    measured(|| pair.wait_for_a_stopped_holder());
    pair.close();
}
