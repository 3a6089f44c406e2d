//! Full disks (F7 in tests/processes/README.md).

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    process::Command,
    sync::{
        Once,
        atomic::{AtomicU32, Ordering},
    },
};

use serde_json::Value;

use crate::{
    alone,
    common::{Cluster, Place, Site, Tool, eventually, free_address, require},
};

/// The first part of each disk's name. The id of the test process follows.
const PREFIX: &str = "leasehold-test-disk-";

/// More than a server needs.
const SIZE: &str = "192m";

static NUMBER: AtomicU32 = AtomicU32::new(0);

/// A small disk. Unmounted when it is dropped, or by the next test process.
#[derive(Debug)]
pub(crate) struct Disk(PathBuf);

impl Disk {
    /// `None` if nothing can be mounted and the test is skipped.
    pub(crate) fn new() -> Option<Self> {
        static SWEPT: Once = Once::new();
        SWEPT.call_once(sweep);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("{PREFIX}{}-{number}", std::process::id()));
        fs::create_dir(&folder).expect("a name of our own");
        let size = format!("size={SIZE}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &size, PREFIX]).arg(&folder).output();
        let why = match mounted {
            Ok(output) if output.status.success() => return Some(Self(folder)),
            Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
            Err(error) => error.to_string(),
        };
        fs::remove_dir(&folder).expect("it is empty");
        require(Tool::SmallDisks, Err(why))
    }

    /// The folder for a server's data.
    pub(crate) fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    fn ballast(&self) -> PathBuf {
        self.0.join("ballast")
    }

    /// Fills the disk.
    pub(crate) fn fill(&self) {
        let mut ballast = File::create(self.ballast()).expect("a file");
        let error = loop {
            if let Err(error) = ballast.write_all(&[0; 4096]) {
                break error;
            }
        };
        assert_eq!(error.kind(), io::ErrorKind::StorageFull, "{error}");
    }

    /// Makes room again.
    pub(crate) fn empty(&self) {
        fs::remove_file(self.ballast()).expect("it is there");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        unmount(&self.0);
    }
}

fn unmount(folder: &Path) {
    // Lazily, because a process that is about to end may have a file open there.
    let unmounted = Command::new("umount").arg("-l").arg(folder).status();
    if unmounted.is_ok_and(|status| status.success()) {
        // If it is not empty, it was not ours.
        let _ = fs::remove_dir(folder);
    }
}

/// Unmounts the disks of test processes that have ended.
fn sweep() {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    for folder in mounts.lines().filter_map(|line| line.split(' ').nth(1)).map(Path::new) {
        let name = folder.file_name().and_then(|name| name.to_str());
        let id = name.and_then(|name| name.strip_prefix(PREFIX)).and_then(|rest| rest.split('-').next());
        if id.is_some_and(|id| !Path::new("/proc").join(id).exists()) {
            unmount(folder);
        }
    }
}

fn site(disk: Option<&Disk>) -> Site {
    Site { place: Place::default(), address: free_address(), data: disk.map(Disk::data) }
}

/// Writes values until a write fails. Returns the acknowledged writes, and the failure.
fn write_until_refused(cluster: &Cluster, from: u64) -> (Vec<(String, String)>, Value) {
    let mut shell = cluster.cli().shell_with(&["--timeout", "10s"]);
    let mut acknowledged = Vec::new();
    for number in from.. {
        // Long enough to fill the rest of a page, and different each time.
        let (path, value) = (format!("/a/{number}"), format!("{number}-").repeat(200));
        let answer = shell.ask(&format!("put {path} {value}"));
        if answer.get("error").is_some() {
            shell.close();
            return (acknowledged, answer);
        }
        acknowledged.push((path, value));
    }
    unreachable!("numbers do not end")
}

fn assert_has_all(cluster: &Cluster, acknowledged: &[(String, String)]) {
    let mut shell = cluster.cli().shell();
    for (path, value) in acknowledged {
        assert_eq!(shell.ask(&format!("get {path}"))["value"].as_str(), Some(value.as_str()), "{path} is lost");
    }
    assert_eq!(shell.close().code(), Some(0));
    assert!(!acknowledged.is_empty(), "nothing was shown");
}

#[test]
fn server_with_full_disk_exits_and_restarts_with_all_writes() {
    let _alone = alone();
    let Some(disk) = Disk::new() else { return };
    let mut cluster = Cluster::start_at(vec![site(Some(&disk))], Place::default(), None);
    cluster.cli().done(["put", "/a/0", "first"]);
    disk.fill();
    let (acknowledged, refused) = write_until_refused(&cluster, 1);
    // The outcome of a write in flight is unknown. The server does not report it as done.
    let kind = refused["error"]["kind"].as_str().unwrap_or_default();
    assert!(["unavailable", "no_quorum", "outcome_unknown"].contains(&kind), "{refused}");
    let status = cluster.ended(1);
    assert_eq!(status.code(), Some(1), "{status}");
    let log = cluster.log(1);
    println!(
        "{} writes were acknowledged on a full disk; the last words: {:?}",
        acknowledged.len(),
        log.lines().last()
    );
    assert!(log.contains("cannot go on"), "{log}");

    // Without room it must not come back with a part of its data.
    cluster.spawn(1);
    let again = eventually("it ends again, or serves and has everything", || match cluster.has_ended(1) {
        Some(status) => Some(Some(status)),
        None => (cluster.cli().run(["--timeout", "1s", "stat", "/"]).status == 0).then_some(None),
    });
    match again {
        Some(status) => assert_eq!(status.code(), Some(1), "{status}"),
        None => {
            assert_has_all(&cluster, &acknowledged);
            cluster.kill(1);
        }
    }
    disk.empty();
    cluster.spawn(1);
    cluster.wait_until_it_serves();
    assert_has_all(&cluster, &acknowledged);
    assert_eq!(cluster.cli().done(["get", "/a/0"])["value"], "first");
    // This write waits for clients that had leases when the server ended, and that are gone.
    cluster.cli().done(["--timeout", "30s", "put", "/a/after", "room"]);
    cluster.assert_all_run();
}

#[test]
fn leader_with_full_disk_exits_and_others_have_all_writes() {
    let _alone = alone();
    let Some(disk) = Disk::new() else { return };
    let mut cluster = Cluster::start_at(vec![site(Some(&disk)), site(None), site(None)], Place::default(), None);
    // Replica 1 must lead, so any other leader is stopped and transfers its leadership.
    eventually("replica 1 leads", || {
        let leader = cluster.leader();
        if leader != 1 {
            cluster.stop(leader, nix::sys::signal::Signal::SIGTERM);
            cluster.leader();
            cluster.spawn(leader);
            cluster.caught_up(&[1, 2, 3]);
        }
        if leader == 1 { Ok(()) } else { Err(format!("{leader} does")) }
    });
    cluster.cli().done(["put", "/a/0", "first"]);
    disk.fill();
    let cli = cluster.cli();
    let mut acknowledged = Vec::new();
    eventually("its disk has failed it", || {
        for _ in 0..50 {
            let number = acknowledged.len() + 1;
            let (path, value) = (format!("/a/{number}"), format!("{number}-").repeat(200));
            cli.done(["--timeout", "30s", "put", &path, &value]);
            acknowledged.push((path, value));
            if let Some(status) = cluster.has_ended(1) {
                return Some(status);
            }
        }
        None
    });
    let log = cluster.log(1);
    assert!(log.contains("cannot go on"), "{log}");
    assert_ne!(cluster.leader(), 1);
    assert_has_all(&cluster, &acknowledged);
    disk.empty();
    cluster.spawn(1);
    cluster.caught_up(&[1, 2, 3]);
    // The quorum needs it now.
    cluster.kill(2);
    cluster.wait_until_it_serves();
    assert_has_all(&cluster, &acknowledged);
    println!("{} writes, all there", acknowledged.len());
}
