//! `leasehold demo`: the main uses on real files, with real processes, in about half a minute.
//!
//! Replicas, readers and writers are processes of their own. This one starts them, kills some with
//! SIGKILL, collects their reports, and judges all reads at the end ([`oracle`]). Even if it is
//! killed itself, no process and no file of it remains ([`replica`]), except with `--keep`.
//!
//! It does not show that data survive a power failure, nor the behaviour of several machines.

pub(crate) mod client;
pub(crate) mod clock;
mod crowd;
mod files;
mod oracle;
mod play;
mod reader;
pub(crate) mod replica;
pub(crate) mod replicas;
mod report;
mod story;
mod talk;
mod writer;
mod zipf;

use std::path::PathBuf;

use tokio::signal::unix::{SignalKind, signal};

use self::{play::Play, report::DemoReport, story::Story};
use crate::{
    exit::{CliStatus, CommandFailure},
    output::Output,
};

/// `demo [DIR]`
#[derive(Debug, clap::Args)]
pub(crate) struct DemoArgs {
    /// Directory whose files are used: those that git tracks, else all
    #[arg(value_name = "DIR", default_value = ".")]
    dir: PathBuf,
    /// How long clients read and write, approximately
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,
    /// Replicas: at least three, so that one can be killed
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = servers)]
    servers: usize,
    /// Clients that read with a cache: at least two, so that one can be killed
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clients)]
    clients: usize,
    /// Leave the cluster running, and print its endpoints
    #[arg(long)]
    keep: bool,
    /// Program that starts the clients instead of this one; a test supplies one that lies
    #[arg(long, value_name = "FILE", hide = true)]
    client_program: Option<PathBuf>,
}

fn servers(text: &str) -> Result<usize, String> {
    between(text, 3, 9)
}

fn clients(text: &str) -> Result<usize, String> {
    between(text, 2, 64)
}

fn between(text: &str, least: usize, most: usize) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number.ok_or_else(|| format!("{text:?}: expected a number from {least} to {most}"))
}

/// Runs the demo. Done only if no read was stale and no bound was exceeded.
pub(crate) async fn run(args: DemoArgs, output: Output) -> Result<CliStatus, CommandFailure> {
    let report = unless_interrupted(demonstrate(&args, output)).await?;
    output.answer(&report);
    let broken = report.broken();
    for bound in &broken {
        Output::notice(&format!("demo: {bound}"));
    }
    Ok(if broken.is_empty() { CliStatus::Done } else { CliStatus::Refused })
}

async fn demonstrate(args: &DemoArgs, output: Output) -> Result<DemoReport, CommandFailure> {
    let story = Story::new(output);
    let found = files::find(&args.dir, &play::top())?;
    for skipped in &found.skipped {
        story.tell(skipped);
    }
    let mut play = Play::begin(args, &story, found.files).await?;
    let mut report = play.perform().await?;
    report.endpoints = play.end().await;
    Ok(report)
}

/// Runs `work`, which owns processes and folders. On SIGINT, SIGTERM or SIGHUP it drops `work`, and
/// so ends and removes them.
pub(crate) async fn unless_interrupted<T>(
    work: impl Future<Output = Result<T, CommandFailure>>,
) -> Result<T, CommandFailure> {
    let listen = |kind| signal(kind).map_err(|error| CommandFailure::io("cannot listen for signals", &error));
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    tokio::select! {
        outcome = work => outcome,
        _ = interrupt.recv() => Err(CommandFailure::refused("interrupted", "it was interrupted")),
        _ = terminate.recv() => Err(CommandFailure::refused("interrupted", "it was told to end")),
        _ = hangup.recv() => Err(CommandFailure::refused("interrupted", "its terminal is gone")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_to_kill_one_are_refused() {
        assert_eq!(servers("3"), Ok(3));
        assert!(servers("2").is_err() && servers("x").is_err() && clients("1").is_err());
    }

    #[tokio::test]
    async fn what_is_not_interrupted_ends_by_itself() {
        assert_eq!(unless_interrupted(async { Ok(7) }).await, Ok(7));
    }
}
