//! Two shells: one holds what the other writes.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::{
    alone,
    common::{Cluster, Shell},
};

const TERM: Duration = Duration::from_secs(3);
const MARGIN: Duration = Duration::from_millis(100);

/// What a busy machine may add to the longest wait.
const GENEROUS: Duration = Duration::from_secs(4);

fn is_from(answer: &Value, source: &str, value: &str) -> bool {
    answer["source"] == source && answer["value"] == value
}

/// Reads until the answer comes from memory: a lease that is granted while a write is under way is none. Returns how long
/// the copy may be used, and when that was asked.
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

#[test]
fn a_write_waits_for_consent_and_for_a_stopped_client_no_longer_than_its_lease() {
    let _alone = alone();
    let cluster = Cluster::start(1);
    let cli = cluster.cli();
    let (mut holder, mut writer) = (cli.shell_with(&["--timeout", "30s"]), cli.shell_with(&["--timeout", "30s"]));
    let created = writer.ask("volume create /v --term 3s --skew-margin 100ms");
    assert!(created["revision"].is_u64(), "{created}");
    assert_eq!(writer.ask("put /v/a one")["version"], 1);

    // The second read comes from memory; a put by another returns only after the holder has consented, which its cache tells.
    let first = holder.ask("get /v/a");
    assert!(is_from(&first, "server", "one"), "{first}");
    let second = holder.ask("get /v/a");
    assert!(is_from(&second, "memory", "one"), "{second}");
    let recalls = holder.ask("stats")["recalls"].as_u64().expect("a number");
    let put = Instant::now();
    assert_eq!(writer.ask("put /v/a two")["version"], 2);
    let consented = put.elapsed();
    let stats = holder.ask("stats");
    assert_eq!(stats["recalls"].as_u64(), Some(recalls + 1), "{stats}");
    let next = holder.ask("get /v/a");
    assert!(is_from(&next, "server", "two"), "{next}");
    println!("a live holder consented within {consented:?}");

    // Stopped, the holder cannot consent: the put waits for as long as the holder was promised, and `why` tells.
    let (asked, valid) = cache(&mut holder, "two");
    let name = format!(":{}", holder.process.id());
    holder.process.pause(true);
    let put = Instant::now();
    writer.types("put /v/a three");
    let bound = TERM + MARGIN + TERM / 5;
    let wait = loop {
        let why = cli.done(["why", "/v/a"]);
        let waits = why["waits"].as_array().expect("a list").clone();
        if let Some(wait) = waits.into_iter().find(|wait| wait["holder"].is_u64()) {
            break wait;
        }
        if let Some(written) = writer.answered() {
            panic!("{written} after {:?}, and why had not told of a wait", put.elapsed());
        }
    };
    let holder_name = wait["holder_name"].as_str().expect("a name");
    assert!(holder_name.starts_with("shell@") && holder_name.ends_with(&name), "{wait}");
    assert!(wait["writer_name"].as_str().is_some_and(|writer| writer.starts_with("shell@")), "{wait}");
    let at_most = Duration::from_millis(wait["at_most_ms"].as_u64().expect("a number"));
    assert!(Duration::ZERO < at_most && at_most <= bound, "{wait}");
    let written = writer.answer();
    let (waited, since_asked) = (put.elapsed(), asked.elapsed());
    assert_eq!(written["version"], 3, "{written}");
    assert!(since_asked >= valid, "the put was done {since_asked:?} after a read that was valid for {valid:?} more");
    assert!(waited <= bound + GENEROUS, "the put waited {waited:?}: expected at most {bound:?}");
    println!("a stopped holder, valid for {valid:?}, held a put up for {waited:?}; why said at most {at_most:?}");

    // Nobody waits for it again; and it does not take its copy for valid when it goes on.
    let put = Instant::now();
    assert_eq!(writer.ask("put /v/a four")["version"], 4);
    let again = put.elapsed();
    assert!(again < TERM / 2, "a put waited {again:?} for a client whose lease had ended");
    holder.types("get /v/a");
    holder.process.pause(false);
    let after = holder.answer();
    assert!(is_from(&after, "server", "four"), "{after}");
    assert_eq!(holder.close().code(), Some(0));
    assert_eq!(writer.close().code(), Some(0));
}
