//! Write leases: several processes edit one file, each in its own memory.
//!
//! Run it with `cargo run --example edit_file`. It starts a server in this process, with its data
//! in a temporary folder, and four processes, as of two machines. Each process acquires a write
//! lease on the file, appends some lines in memory, flushes them, and releases the lease.
//!
//! One process is killed with SIGKILL in the middle. At the end the file has each flushed line
//! once, in its writer's order. Of the killed process, only unflushed lines may be missing.
//!
//! - While a process owns the write lease, no other client reads or writes the file. The owner
//!   reads its own writes.
//! - Only after `flush` or `release` is a value as safe as any other write.
//! - A process may be stopped past its lease and then continue to write. Only the fencing token
//!   stops it: each flush is a write under the token.

mod local;

use std::{
    env,
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    time::Duration,
};

use leasehold_client_cache::{Client, Options};
use local::{Failure, LocalServer};

/// How often each writer appends lines.
const ROUNDS: u32 = 20;
/// The lines that it appends each time.
const LINES: u32 = 5;
/// One of the writers is killed after this many flushes.
const KILLED_AFTER: u32 = 7;

/// The file that all of them edit.
const FILE: &str = "/documents/minutes";

const WRITERS: [&str; 4] = ["machine-1/a", "machine-1/b", "machine-2/a", "machine-2/b"];

type Outcome<T> = Result<T, Failure>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match &arguments[..] {
        [endpoint, name] => edit(endpoint, name).await,
        _ => oversee().await,
    }
}

/// One writer.
async fn edit(endpoint: &str, name: &str) -> Outcome<()> {
    let client = Client::connect(Options::new([endpoint.to_owned()]).name(name)).await?;
    for round in 0..ROUNDS {
        let lease = client.write_lease(FILE).await?;
        for line in 0..LINES {
            let mut text = lease.get().await?.to_vec();
            text.extend(format!("{name} {}\n", round * LINES + line).bytes());
            lease.set(text).await?;
        }
        lease.flush().await?;
        println!("{}", (round + 1) * LINES);
        lease.release().await?;
    }
    client.close().await;
    Ok(())
}

/// Starts the writers, kills one, and counts their lines.
async fn oversee() -> Outcome<()> {
    let server = LocalServer::start().await?;
    let endpoint = server.endpoint();
    let client = server.client("overseer").await?;
    // A volume with a short term, so that the others do not wait long for the killed writer.
    client.admin().create_volume("/documents").term(Duration::from_secs(2)).await?;

    let mut overseers = Vec::new();
    for name in WRITERS {
        let writer = Command::new(env::current_exe()?).args([&endpoint, name]).stdout(Stdio::piped()).spawn()?;
        let is_killed = name == WRITERS[0];
        overseers.push(tokio::task::spawn_blocking(move || flushed_by(writer, is_killed).map(|lines| (name, lines))));
    }
    let mut flushed = Vec::new();
    for overseer in overseers {
        flushed.push(overseer.await??);
    }

    let found = client.get(FILE).await?.ok_or("the file is there")?;
    let text = String::from_utf8(found.value.to_vec())?;
    for (name, lines) in flushed {
        let own: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix(name)).collect();
        let expected: Vec<String> = (0..own.len()).map(|line| format!(" {line}")).collect();
        println!("{name}: {lines} lines flushed, {} found", own.len());
        assert_eq!(own, expected, "each line once, in order");
        assert!(own.len() >= lines as usize, "what was flushed is there");
    }
    client.close().await;
    server.stop().await?;
    Ok(())
}

/// The number of lines that the writer had flushed when it ended.
fn flushed_by(mut writer: Child, is_killed: bool) -> std::io::Result<u32> {
    let mut flushed = 0;
    let told = writer.stdout.take().map(BufReader::new);
    for line in told.into_iter().flat_map(BufRead::lines) {
        flushed = line?.parse().unwrap_or(flushed);
        if is_killed && flushed == KILLED_AFTER * LINES {
            writer.kill()?;
        }
    }
    let status = writer.wait()?;
    if status.success() || is_killed { Ok(flushed) } else { Err(std::io::Error::other(status.to_string())) }
}
