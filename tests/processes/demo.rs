//! The demo leaves nothing behind even if it is killed, and it notices stale reads.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::{
    alone,
    common::{Process, eventually, leasehold},
};

/// The demo, with its temporary files in a folder of the test.
fn demo(temporary: &Path, files: &Path) -> Command {
    for number in 0..20 {
        fs::write(files.join(format!("{number}")), format!("file {number}\n")).expect("written");
    }
    let mut command = leasehold();
    command.env("TMPDIR", temporary).args(["--json", "demo"]).arg(files);
    command
}

/// The live processes that a process has started, with their command lines.
fn children(parent: u32) -> Vec<(u32, String)> {
    let processes = fs::read_dir("/proc").expect("Linux has it").flatten();
    let ids = processes.filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok());
    let child = |id: u32| {
        let stat = fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // After the name, which is in parentheses and may be any text: the state and the parent.
        let mut fields = stat.rsplit(')').next()?.split_whitespace();
        let state = fields.next()?;
        let is_child = fields.next()?.parse() == Ok(parent) && state != "Z";
        let line = fs::read_to_string(format!("/proc/{id}/cmdline")).ok()?.replace('\0', " ");
        is_child.then_some((id, line))
    };
    ids.filter_map(child).collect()
}

#[test]
fn a_demo_that_is_killed_leaves_no_process_and_no_file() {
    let _alone = alone();
    let directory = tempfile::tempdir().expect("a directory");
    let (temporary, files) = (directory.path().join("tmp"), directory.path().join("files"));
    fs::create_dir(&temporary).and_then(|()| fs::create_dir(&files)).expect("made");
    let mut command = demo(&temporary, &files);
    command.args(["--seconds", "600"]);
    let mut demo = Process::start(command, &directory.path().join("log"));
    let started = eventually("replicas and clients run", || {
        assert_eq!(demo.has_ended(), None, "the demo has ended");
        let children = children(demo.id());
        let are = |what: &str, count: usize| children.iter().filter(|(_, line)| line.contains(what)).count() == count;
        // Three replicas; four readers and two writers.
        (are("demo-replica", 3) && are("demo-client", 6)).then_some(children)
    });
    assert!(fs::read_dir(&temporary).expect("a directory").next().is_some(), "it keeps its data here");
    demo.kill();
    eventually("all that it had started is gone", || {
        let is_there = |(id, line): &&(u32, String)| {
            let now = fs::read_to_string(format!("/proc/{id}/cmdline")).unwrap_or_default();
            now.replace('\0', " ") == *line
        };
        let left: Vec<_> = started.iter().filter(is_there).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    eventually("its files are gone", || {
        let left: Vec<_> = fs::read_dir(&temporary).expect("a directory").flatten().map(|it| it.path()).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
}

#[test]
fn demo_with_stale_reads_reports_them_and_fails() {
    let _alone = alone();
    let directory = tempfile::tempdir().expect("a directory");
    let (temporary, files) = (directory.path().join("tmp"), directory.path().join("files"));
    fs::create_dir(&temporary).and_then(|()| fs::create_dir(&files)).expect("made");
    // A reader's report has no acknowledged writes. This replaces each revision in it by the first
    // one, as if no recall had reached the reader.
    let program = directory.path().join("liar");
    let lies = r#"sed -u '/"acks":\[\]/s/"revision":[0-9]*/"revision":1/g'"#;
    let script = format!("#!/bin/sh\n{} \"$@\" | {lies}\n", env!("CARGO_BIN_EXE_leasehold"));
    fs::write(&program, script).expect("written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("ours");
    let mut command = demo(&temporary, &files);
    command.args(["--seconds", "8", "--client-program"]).arg(program);
    let output = command.stdout(Stdio::piped()).stderr(Stdio::piped()).output().expect("the binary starts");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: Value = serde_json::from_str(&said).unwrap_or_else(|error| panic!("{error}: {said}{stderr}"));
    let (stale, reads) =
        (report["stale_reads"].as_u64().expect("a number"), report["reads"].as_u64().expect("a number"));
    println!("{stale} of {reads} reads were stale, and found");
    // The first revision is right only for the file that was imported first.
    assert!(stale > reads / 2, "{report}");
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains(&format!("{stale} reads were stale: expected none")), "{stderr}");
}
