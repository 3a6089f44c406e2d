//! How much servers log: a line for each change of a state, and few lines while it lasts.

use std::time::{Duration, Instant};

use crate::{
    alone,
    common::{Cluster, eventually},
};

/// How long lines are counted. A check that logs ten times a second would have dozens.
const COUNTED: Duration = Duration::from_secs(5);

/// A line that is logged once a minute at most must not come twice in this time.
const WAITED: Duration = Duration::from_secs(12);

/// The lines of a server's log after the first `from` bytes.
fn lines(cluster: &Cluster, id: u64, from: usize) -> Vec<String> {
    cluster.log(id)[from..].lines().map(str::to_owned).collect()
}

fn assert_few(lines: &[String], most: usize, what: &str) {
    println!("{what}: {} lines in {COUNTED:?}", lines.len());
    let first: Vec<&String> = lines.iter().take(20).collect();
    assert!(lines.len() <= most, "{} lines, expected at most {most}; the first are {first:#?}", lines.len());
}

fn time_passes(time: Duration) {
    let from = Instant::now();
    eventually("lines have been counted for long enough", || (from.elapsed() >= time).then_some(()));
}

#[test]
fn dead_follower_has_a_line_when_it_goes_and_when_it_comes() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let dead = cluster.others(leader)[0];
    cluster.caught_up(&cluster.ids());
    let from = cluster.log(leader).len();
    cluster.kill(dead);
    time_passes(COUNTED);
    let said = lines(&cluster, leader, from);
    assert_few(&said, 3, "a leader with a dead follower");
    let silent: Vec<_> = said.iter().filter(|line| line.contains("a replica does not answer")).collect();
    assert_eq!(silent.len(), 1, "{said:#?}");
    assert!(silent[0].contains(&format!("replica={dead}")), "{silent:?}");
    cluster.spawn(dead);
    eventually("the leader says that it answers again", || {
        let log = cluster.log(leader);
        if log[from..].contains("a replica answers again") { Ok(()) } else { Err(log[from..].to_owned()) }
    });
}

#[test]
fn replica_that_waits_to_be_let_in_has_few_lines() {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let [lost, other] = cluster.others(leader)[..] else { panic!("three") };
    cluster.kill(lost);
    cluster.wipe(lost);
    // Without it, no majority can admit the lost replica.
    cluster.kill(other);
    let from = cluster.log(lost).len();
    cluster.spawn(lost);
    eventually("it says that it waits", || {
        let log = cluster.log(lost);
        if log[from..].contains("may not rejoin its cluster yet") { Ok(()) } else { Err(log[from..].to_owned()) }
    });
    let waiting = cluster.log(lost).len();
    time_passes(COUNTED);
    assert_few(&lines(&cluster, lost, waiting), 3, "a replica that waits to be let in");
    cluster.spawn(other);
    cluster.caught_up(&cluster.ids());
    eventually("it says that it votes again", || {
        let log = cluster.log(lost);
        if log.contains("this replica rejoins") && log.contains("is a voter again") { Ok(()) } else { Err(log) }
    });
}

#[test]
fn replica_that_waits_for_members_has_few_lines() {
    let _alone = alone();
    let mut cluster = Cluster::start(1);
    cluster.kill(1);
    cluster.wipe(1);
    // Two more members that never run.
    let members = format!("1={},2=127.0.0.1:1,3=127.0.0.1:2", cluster.address(1));
    let log = cluster.directory("waiting.log");
    let mut command = crate::common::leasehold();
    command.args(["serve", "--cluster", &members, "--data"]).arg(cluster.data(1));
    let mut waiting = crate::common::Process::start(command, &log);
    let said = || std::fs::read_to_string(&log).unwrap_or_default();
    let waits = "waiting for the other members";
    eventually("it says that it waits", || said().contains(waits).then_some(()));
    time_passes(WAITED);
    assert_eq!(waiting.has_ended(), None, "{}", said());
    assert_eq!(said().lines().filter(|line| line.contains(waits)).count(), 1, "{}", said());
}
