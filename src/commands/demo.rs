//! `demo`: runs the demo of `leasehold-demo`, with this program for its processes.

use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

use leasehold_demo::{CLIENTS, ClientError, DemoError, DemoOptions, DemoReport, Launch, REPLICAS, ReplicasError};

use crate::{
    exit::{CliStatus, CommandFailure},
    failure::{connect_failure, write_failure},
    interrupt::unless_interrupted,
    live_line::LiveLine,
    output::{Output, Table, Text},
    serve,
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
    within(text, &REPLICAS)
}

fn clients(text: &str) -> Result<usize, String> {
    within(text, &CLIENTS)
}

fn within(text: &str, expected: &RangeInclusive<usize>) -> Result<usize, String> {
    let number = text.parse().ok().filter(|number| expected.contains(number));
    number.ok_or_else(|| format!("{text:?}: expected a number from {} to {}", expected.start(), expected.end()))
}

/// Runs the demo. Done only if no read was stale and no bound was exceeded.
pub(crate) async fn run(args: DemoArgs, output: Output) -> Result<CliStatus, CommandFailure> {
    let mut client = this_program("demo-client")?;
    client.program = args.client_program.unwrap_or(client.program);
    let options = DemoOptions {
        dir: args.dir,
        length: Duration::from_secs(args.seconds),
        replicas: args.servers,
        clients: args.clients,
        keep: args.keep,
        replica: replica()?,
        client,
    };
    let report = unless_interrupted(demonstrate(&options, output)).await?;
    output.answer(&report);
    let broken = report.broken();
    for bound in &broken {
        Output::notice(&format!("demo: {bound}"));
    }
    Ok(if broken.is_empty() { CliStatus::Done } else { CliStatus::Refused })
}

async fn demonstrate(options: &DemoOptions, output: Output) -> Result<DemoReport, CommandFailure> {
    // The line ends before the report is printed.
    Ok(leasehold_demo::run(options, &LiveLine::new(output)).await?)
}

/// How a replica is started that ends with this process.
pub(crate) fn replica() -> Result<Launch, CommandFailure> {
    this_program("demo-replica")
}

fn this_program(command: &str) -> Result<Launch, CommandFailure> {
    Launch::this_program(command).map_err(|error| CommandFailure::io("cannot find this program", &error))
}

/// `demo-client`: a client of the demo.
pub(crate) async fn run_client() -> Result<CliStatus, CommandFailure> {
    leasehold_demo::run_client().await.map(|()| CliStatus::Done).map_err(|error| match &error {
        ClientError::Input(cause) => CommandFailure::io(&error, cause),
        ClientError::Order(cause) => CommandFailure::usage(format!("{error}: {cause}")),
        error => CommandFailure::usage(error),
    })
}

/// `demo-replica`: a replica that runs until a stop signal, or until the demo ends.
pub(crate) async fn run_replica(args: serve::ServeArgs, output: Output) -> Result<CliStatus, CommandFailure> {
    if let Some(data) = args.data.clone() {
        leasehold_demo::when_abandoned(data, || std::process::exit(CliStatus::Refused.code().into()));
    }
    serve::run(args, output).await
}

impl From<DemoError> for CommandFailure {
    fn from(error: DemoError) -> Self {
        match error {
            DemoError::Count { .. } | DemoError::TooFewFiles { .. } | DemoError::AllAreWritten => Self::usage(error),
            DemoError::Io { what, source } => Self::io(what, &source),
            DemoError::Import { ref file, ref source } => {
                write_failure(source).with_subject(&file.display().to_string())
            }
            DemoError::Connect(error) => connect_failure(&error),
            DemoError::Write(error) => write_failure(&error),
            DemoError::Replicas(error) => error.into(),
            DemoError::Overdue { .. } => Self::unknown(error),
            error => Self::refused("client", error),
        }
    }
}

impl From<ReplicasError> for CommandFailure {
    fn from(error: ReplicasError) -> Self {
        match error {
            ReplicasError::Io { what, source } => Self::io(what, &source),
            ReplicasError::NoLeader { .. } | ReplicasError::NotRejoined { .. } => Self::unavailable(error),
            error => Self::refused("replica", error),
        }
    }
}

impl Text for DemoReport {
    fn text(&self, out: &mut Vec<u8>) {
        let share = 100.0 * self.from_memory as f64 / self.reads.max(1) as f64;
        let mut table = Table::new(&["", "MEASURED", "BOUND"]);
        let mut row = |what: &str, measured: String, bound: String| table.row([what.to_owned(), measured, bound]);
        let none = String::new;
        row("files", format!("{} ({} bytes)", self.files, self.bytes), none());
        row("reads", self.reads.to_string(), none());
        row("  from memory", format!("{} ({share:.3} %)", self.from_memory), none());
        row(
            "  cached, median and p99",
            format!("{} and {} ns", self.cached_read_p50_ns, self.cached_read_p99_ns),
            none(),
        );
        row("  stale", self.stale_reads.to_string(), "0".to_owned());
        row("  messages per read", format!("{:.6}", self.messages_per_read), none());
        row("writes", self.writes.to_string(), none());
        row("  median and p99", format!("{} and {} ms", self.write_p50_ms, self.write_p99_ms), none());
        row("leader killed: writes out for", ms(self.write_outage_ms), ms(self.outage_bound_ms));
        row("  longest gap in cached reads", ms(self.longest_read_gap_ms), ms(self.read_gap_bound_ms));
        let bounds = format!("{} to {}", self.dead_client_left_ms, ms(self.dead_client_bound_ms));
        row("client killed: write waited", ms(self.dead_client_wait_ms), bounds);
        if self.failed > 0 {
            row("reads and writes that failed", self.failed.to_string(), none());
        }
        table.write(out);
        if !self.endpoints.is_empty() {
            out.extend_from_slice(
                format!("\nThe cluster runs on: --endpoints {}\n", self.endpoints.join(",")).as_bytes(),
            );
        }
    }
}

fn ms(value: f64) -> String {
    format!("{value} ms")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_few_to_kill_one_are_refused() {
        assert_eq!(servers("3"), Ok(3));
        assert!(servers("2").is_err() && servers("x").is_err() && clients("1").is_err());
    }
}
