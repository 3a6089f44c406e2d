//! Leasehold beside the systems that people use today: clusters on one machine, started one after
//! another, driven by one closed loop.
//!
//! It starts what is installed and installs nothing. Everything that it started ends with it, by
//! its own id, on an interrupt too. What the figures mean, and what the systems promise
//! differently, is in `benches/README.md`.

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
    // When interrupted, what is under way is dropped: servers end, folders go.
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
