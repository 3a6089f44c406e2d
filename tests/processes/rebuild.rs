//! A replica loses its disk.

use crate::{
    alone,
    common::Cluster,
    files::{make, tree},
};

/// Which replica loses its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Follower,
    Leader,
}

/// Imports files, wipes a replica, and waits until it is rebuilt. Then kills another one, so that a
/// quorum needs the rebuilt one, and exports.
fn what_was_imported_is_exported_when_one_loses_its_disk(victim: Victim) {
    let _alone = alone();
    let mut cluster = Cluster::start(3);
    let source = cluster.directory("source");
    let expected = make(&source);
    let source = source.display().to_string();
    let imported = cluster.cli().done(["--timeout", "30s", "import", &source, "/data"]);
    let files = expected.values().flatten().count() as u64;
    assert_eq!(imported["files"].as_u64(), Some(files), "{imported}");

    let leader = cluster.leader();
    let wiped = match victim {
        Victim::Leader => leader,
        Victim::Follower => cluster.others(leader)[0],
    };
    cluster.kill(wiped);
    cluster.wipe(wiped);
    cluster.spawn(wiped);
    cluster.caught_up(&cluster.ids());

    // Kill another one, the leader if possible. Now the rebuilt replica is one of two, and both
    // must have everything.
    let leader = cluster.leader();
    let other = if leader == wiped { cluster.others(wiped)[0] } else { leader };
    cluster.kill(other);
    cluster.leader();
    let target = cluster.directory("target");
    let to = target.display().to_string();
    let exported = cluster.cli().done(["--timeout", "30s", "export", "/data", &to]);
    assert_eq!(exported["files"].as_u64(), Some(files), "{exported}");
    let got = tree(&target);
    assert!(got.keys().eq(expected.keys()), "{:?}\nexpected {:?}", got.keys(), expected.keys());
    for (file, bytes) in &expected {
        assert!(got[file] == *bytes, "{} differs", file.display());
    }

    // It can write too.
    cluster.cli().done(["--timeout", "30s", "put", "/data/after", "all this"]);
    cluster.spawn(other);
    cluster.caught_up(&cluster.ids());
    cluster.assert_all_run();
}

#[test]
fn export_equals_import_after_follower_lost_its_disk() {
    what_was_imported_is_exported_when_one_loses_its_disk(Victim::Follower);
}

#[test]
fn export_equals_import_after_leader_lost_its_disk() {
    what_was_imported_is_exported_when_one_loses_its_disk(Victim::Leader);
}
