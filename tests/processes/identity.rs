//! Servers that are started with a wrong identity: with the id of a member that is there, or at
//! another address. They end, say why, and change nothing.

use std::{collections::BTreeMap, path::Path};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::{
    alone,
    common::{Cli, Cluster, Process, eventually, free_address, leasehold},
};

/// A server that a test starts by hand, beside those of a cluster.
pub(crate) struct Started {
    process: Process,
    log: std::path::PathBuf,
}

impl Started {
    /// Starts a server with these members and this data. It listens on its member's address, or on
    /// `listen`.
    pub(crate) fn of(id: u64, members: &BTreeMap<u64, String>, data: &Path, listen: Option<&str>) -> Self {
        let list: Vec<String> = members.iter().map(|(id, address)| format!("{id}={address}")).collect();
        let mut command = leasehold();
        command.args(["serve", "--id", &id.to_string(), "--cluster", &list.join(",")]).arg("--data").arg(data);
        command.args(listen.iter().flat_map(|listen| ["--listen", listen]));
        let log = data.with_extension("log");
        // Only its output from now on.
        let _ = std::fs::remove_file(&log);
        Self { process: Process::start(command, &log), log }
    }

    /// Its output since it was started.
    pub(crate) fn says(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Waits until it answers reads.
    pub(crate) fn serves(&mut self, address: &str) {
        let cli = Cli::of(address);
        eventually("it serves", || {
            assert_eq!(self.process.has_ended(), None, "{}", self.says());
            let ran = cli.run(["--timeout", "1s", "stat", "/"]);
            if ran.status == 0 { Ok(()) } else { Err(ran.stderr) }
        });
    }

    /// Sends it SIGTERM, and waits until it has ended.
    pub(crate) fn stop(mut self) {
        self.process.signal(Signal::SIGTERM);
        self.process.ended();
    }

    /// Waits until it has ended with status 1. Returns its output.
    fn refused(mut self) -> String {
        let status = self.process.ended();
        assert_eq!(status.code(), Some(1), "{status}: {}", self.says());
        self.says()
    }
}

fn members(cluster: &Cluster) -> BTreeMap<u64, String> {
    cluster.ids().into_iter().map(|id| (id, cluster.address(id).to_owned())).collect()
}

/// The members as the leader knows them: id, address, and whether it is a voter.
fn known(status: &Value) -> Vec<(Value, Value, Value)> {
    let members = status["members"].as_array().expect("members");
    members.iter().map(|it| (it["replica"].clone(), it["address"].clone(), it["voter"].clone())).collect()
}

/// A cluster of three servers that has data, and its members.
fn three() -> (Cluster, Vec<(Value, Value, Value)>) {
    let cluster = Cluster::start(3);
    cluster.cli().done(["put", "/a", "1"]);
    let status = cluster.caught_up(&cluster.ids());
    (cluster, known(&status))
}

fn assert_untouched(cluster: &mut Cluster, before: &[(Value, Value, Value)]) {
    let status = cluster.caught_up(&cluster.ids());
    assert_eq!(known(&status), before);
    cluster.assert_all_run();
    assert_eq!(cluster.cli().done(["get", "/a"])["value"], "1");
}

#[test]
fn second_process_with_a_healthy_replicas_id_is_refused() {
    let _alone = alone();
    let (mut cluster, before) = three();
    // A follower, and the leader itself.
    let leader = cluster.leader();
    for taken in [cluster.others(leader)[0], leader] {
        let (recorded, other) = (cluster.address(taken).to_owned(), free_address());
        let mut named = members(&cluster);
        named.insert(taken, other.clone());
        let data = cluster.directory(&format!("second-{taken}"));
        let said = Started::of(taken, &named, &data, None).refused();
        for part in [&format!("replica {taken} is healthy at {recorded}"), &other, "stop the second process"] {
            assert!(said.contains(part), "{part}: {said}");
        }
        assert_untouched(&mut cluster, &before);
    }
}

#[test]
fn second_process_that_names_the_recorded_address_is_refused() {
    let _alone = alone();
    let (mut cluster, before) = three();
    let taken = cluster.others(cluster.leader())[0];
    let data = cluster.directory("second");
    let said = Started::of(taken, &members(&cluster), &data, Some(&free_address())).refused();
    assert!(said.contains(&format!("replica {taken} is healthy at {}", cluster.address(taken))), "{said}");
    assert_untouched(&mut cluster, &before);
}

#[test]
fn silent_member_does_not_return_from_another_address() {
    let _alone = alone();
    let (mut cluster, before) = three();
    let lost = cluster.others(cluster.leader())[0];
    cluster.kill(lost);
    cluster.wipe(lost);
    let (recorded, other) = (cluster.address(lost).to_owned(), free_address());
    let mut named = members(&cluster);
    named.insert(lost, other.clone());
    let data = cluster.directory("moved");
    let said = Started::of(lost, &named, &data, None).refused();
    for part in [&format!("is recorded at {recorded} and asks from {other}"), "in --cluster"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let status = eventually("the others answer", || cluster.status());
    assert_eq!(known(&status), before);
    cluster.spawn(lost);
    assert_untouched(&mut cluster, &before);
}

#[test]
fn stopped_replica_is_replaced_at_another_address() {
    let _alone = alone();
    let (mut cluster, before) = three();
    let cli = cluster.cli();
    let leader = cluster.leader();
    let moved = cluster.others(leader)[0];
    let (recorded, other) = (cluster.address(moved).to_owned(), free_address());
    let (id, taken) = (moved.to_string(), cluster.address(leader).to_owned());
    let refused = |address: &str| cli.fails(["cluster", "replace", &id, address]);
    let (status, kind, message) = refused(&other);
    assert_eq!((status, kind.as_str()), (1, "replace"), "it runs");
    assert!(message.contains(&format!("replica {moved}: answers at {recorded}; stop it")), "{message}");
    let (status, _, message) = refused(&taken);
    assert!(status == 1 && message.contains(&format!("{taken}: the address of replica {leader}")), "{message}");
    let (status, _, message) = refused(&recorded);
    assert!(status == 1 && message.contains(&format!("replica {moved}: answers at {recorded} already")), "{message}");
    let (status, _, message) = cli.fails(["cluster", "replace", "9", &other]);
    assert!(status == 1 && message.contains("replica 9: not a member of this cluster"), "{message}");

    assert_untouched(&mut cluster, &before);

    cluster.kill(moved);
    for _ in 0..2 {
        let answer = cli.done(["--timeout", "15s", "cluster", "replace", &id, &other]);
        assert_eq!(answer, json!({ "replica": moved, "address": other }));
    }
    let of = |status: &Value| status["members"][moved as usize - 1].clone();
    let now = of(&cluster.status().expect("two of three answer"));
    assert_eq!((&now["address"], &now["voter"]), (&json!(other), &json!(false)), "{now}");

    // The old process, at the old address and with the old folder.
    cluster.spawn(moved);
    eventually("it says that it was removed", || {
        cluster.log(moved).contains("this replica was removed from its cluster").then_some(())
    });
    cluster.kill(moved);

    let mut named = members(&cluster);
    named.insert(moved, other.clone());
    let data = cluster.directory("moved");
    let mut started = Started::of(moved, &named, &data, None);
    started.serves(&other);
    let own = Cli::of(other.as_str());
    let now = eventually("it has its vote again", || {
        let status = cluster.status()?;
        let now = of(&status);
        let votes = now["voter"] == true && now["address"] == json!(other) && now["answers"] == true;
        if votes { Ok(now) } else { Err(format!("{status}")) }
    });
    assert_eq!(now["replica"], json!(moved));
    // A majority needs it from here on.
    let third = cluster.others(leader).into_iter().find(|id| *id != moved).expect("three");
    cluster.kill(third);
    own.done(["--timeout", "15s", "put", "/b", "2"]);
    assert_eq!(own.done(["get", "/a"])["value"], "1");
    started.stop();
}

/// Makes a cluster of one server, and stops it. Returns its members and its data folder.
fn one(dir: &Path) -> (BTreeMap<u64, String>, std::path::PathBuf) {
    let (members, data) = (BTreeMap::from([(1, free_address())]), dir.join("one"));
    let mut server = Started::of(1, &members, &data, None);
    server.serves(&members[&1]);
    Cli::of(&members[&1]).done(["put", "/a", "1"]);
    server.stop();
    (members, data)
}

#[test]
fn changed_cluster_list_is_refused_with_both_lists() {
    let _alone = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let (alone, data) = one(dir.path());
    let mut three = alone.clone();
    three.extend([(2, free_address()), (3, free_address())]);
    let said = Started::of(1, &three, &data, None).refused();
    let founded = format!("bootstrapped with --cluster 1={}, not ", alone[&1]);
    let started = format!("not 1={},2={},3={};", three[&1], three[&2], three[&3]);
    for part in [&founded, &started, "empty the folder"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    // The data has not changed.
    let mut again = Started::of(1, &alone, &data, None);
    again.serves(&alone[&1]);
    assert_eq!(Cli::of(&alone[&1]).done(["get", "/a"])["value"], "1");
}

#[test]
fn changed_address_is_refused_with_both_addresses() {
    let _alone = alone();
    let (mut cluster, before) = three();
    let moved = cluster.others(cluster.leader())[0];
    cluster.stop(moved, Signal::SIGTERM);
    let (recorded, other) = (cluster.address(moved).to_owned(), free_address());
    let mut named = members(&cluster);
    named.insert(moved, other.clone());
    let said = Started::of(moved, &named, &cluster.data(moved), None).refused();
    let expected = format!("replica {moved} of cluster ");
    let both = format!("has the address {recorded}, not {other}");
    assert!(said.contains(&expected) && said.contains(&both), "{said}");
    cluster.spawn(moved);
    assert_untouched(&mut cluster, &before);
}

#[test]
fn folder_of_another_replica_is_refused_with_both_ids() {
    let _alone = alone();
    let dir = tempfile::tempdir().expect("a directory");
    let (alone, data) = one(dir.path());
    let said = Started::of(2, &BTreeMap::from([(2, alone[&1].clone())]), &data, None).refused();
    let expected = "belongs to replica 1, not 2; use --id 1";
    assert!(said.contains(expected), "{said}");
}

#[test]
fn old_cluster_list_is_warned_of_once_after_a_change() {
    let _alone = alone();
    let (mut cluster, before) = three();
    // The return of a replica changes the membership, though the members are the same afterwards.
    let lost = cluster.others(cluster.leader())[0];
    cluster.kill(lost);
    cluster.wipe(lost);
    cluster.spawn(lost);
    cluster.caught_up(&cluster.ids());
    let restarted = cluster.others(cluster.leader())[0];
    cluster.stop(restarted, Signal::SIGTERM);
    let mut four = members(&cluster);
    four.insert(4, free_address());
    let mut server = Started::of(restarted, &four, &cluster.data(restarted), None);
    server.serves(cluster.address(restarted));
    let said = server.says();
    let lines: Vec<&str> = said.lines().filter(|line| line.contains("--cluster differs")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    for address in four.values() {
        assert!(lines[0].contains(address), "{address}: {}", lines[0]);
    }
    let status = cluster.caught_up(&cluster.ids());
    assert_eq!(known(&status), before);
}
