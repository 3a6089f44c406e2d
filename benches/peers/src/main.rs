//! Compares Leasehold with other systems: clusters on one machine, started one after another, under
//! the load of one closed loop.
//!
//! It starts installed systems and installs nothing. It stops each process that it started by its
//! id, also when it is interrupted. `benches/README.md` explains the figures and how the systems'
//! guarantees differ.

mod cached;
mod closed_loop;
mod disk;
mod etcd;
mod failover;
mod leasehold;
mod measure;
mod process;
mod redis;
mod report;
mod system;
mod watched;
mod zookeeper;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use crate::measure::Args;

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    // An interrupt drops the run, which stops the servers and removes the folders.
    let outcome = tokio::select! {
        outcome = print(&args) => outcome,
        interrupted = interrupted() => interrupted,
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn print(args: &Args) -> Result<()> {
    let report = measure::run(args).await?;
    let text = if args.json { report.json()? } else { report.text() };
    println!("{}", text.trim_end());
    Ok(())
}

async fn interrupted() -> Result<()> {
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    bail!("interrupted; all servers that were started are stopped")
}
