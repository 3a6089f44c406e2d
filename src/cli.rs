//! The arguments, and who carries them out.

#[cfg(test)]
mod documented;

use std::{ffi::OsString, io, time::Duration};

use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum, error::ErrorKind};
use leasehold_protocol::path::{NodePath, PathError};

use crate::{
    bench,
    child::guard,
    commands::{
        self, CommandRequest,
        background::{self, StopSignal},
    },
    context::Context,
    demo, duration,
    exit::{CliStatus, CommandFailure},
    output::{CommandAnswer, Output},
    serve, shell,
};

/// Keeps copies of small, important data valid in the memory of the programs that use it.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, propagate_version = true, after_help = EXIT_STATUS)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    command: CliCommand,
}

const EXIT_STATUS: &str = "\
Exit status: 0 done; 1 refused (not found, exists, compare failed, lease gone, not permitted); 2 wrong usage;
3 no server or no quorum; 4 timed out, and whether it took effect is not known.

Paths are absolute; one written without its leading slash means the same with it.";

/// What every command takes.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// Servers to try, each HOST:PORT
    #[arg(
        long,
        global = true,
        env = "LEASEHOLD_ENDPOINTS",
        value_delimiter = ',',
        default_value = "127.0.0.1:7600",
        value_name = "A,B,C",
        value_parser = endpoint
    )]
    pub(crate) endpoints: Vec<String>,
    /// How long one operation may take: 500ms, 10s, 2m, 1h
    #[arg(long, global = true, default_value = "5s", value_name = "D", value_parser = duration::parse)]
    pub(crate) timeout: Duration,
    /// One JSON document on standard output, nothing else
    #[arg(long, global = true)]
    json: bool,
    /// What is written, in etcdctl's words: json is --json
    #[arg(short, long, global = true, value_name = "FORMAT")]
    write_out: Option<Format>,
    /// Say more on standard error: where a value came from, and how long it stays valid
    #[arg(short, long, global = true)]
    verbose: bool,
}

/// How answers are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Simple,
    /// For scripts
    Json,
}

impl Global {
    fn is_json(&self) -> bool {
        self.json || self.write_out == Some(Format::Json)
    }
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Show it all on real files: a cluster of its own, its leader killed, a client killed, each
    /// read checked
    Demo(demo::DemoArgs),
    /// Put load on a running cluster, or on one started for it, and measure
    Bench(bench::BenchArgs),
    /// A client of the demo
    #[command(hide = true)]
    DemoClient,
    /// A replica of the demo
    #[command(hide = true)]
    DemoReplica(serve::ServeArgs),
    /// Run a server: by itself, or as a replica of a cluster
    Serve(serve::ServeArgs),
    /// The guard of a command of `lock`, `elect` or `edit`
    #[command(hide = true)]
    Guard {
        /// Where it reads what its holder says: a file descriptor.
        feed: i32,
        /// Where it asks its holder: a file descriptor.
        question: i32,
        /// The command.
        #[arg(last = true)]
        command: Vec<OsString>,
    },
    /// A command of `lock`, `elect` or `edit`, before it is that command
    #[command(hide = true)]
    RunTied {
        /// The process id of its guard. It is killed when the guard ends.
        guard: u32,
        /// Where it reads that it may begin: a file descriptor.
        go: i32,
        /// The command.
        #[arg(last = true)]
        command: Vec<OsString>,
    },
    /// Run commands, one a line from standard input, in one session with its cache
    Shell,
    #[command(flatten)]
    Request(CommandRequest),
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Does what the arguments ask for.
pub(crate) fn run(args: impl IntoIterator<Item = OsString>) -> CliStatus {
    let args: Vec<OsString> = args.into_iter().collect();
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        // Not parsed, so looked for.
        Err(error) => return not_parsed(&error, asks_for_json(&args)),
    };
    let output = Output { json: cli.global.is_json(), notes: cli.global.verbose };
    // These have one thread only: the kernel kills what a thread started when that thread ends, and
    // blocks signals for each thread by itself.
    let alone = match &cli.command {
        CliCommand::Guard { feed, question, command } => Some(guard::run(*feed, *question, command)),
        CliCommand::RunTied { guard, go, command } => {
            let Err(failed) = guard::become_command(*guard, *go, command);
            Some(Err(failed))
        }
        _ => None,
    };
    if let Some(ended) = alone {
        return ended.unwrap_or_else(|(failure, status)| {
            output.failure(&failure);
            status
        });
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(output, &CommandFailure::io("cannot start threads", &error)),
    };
    match runtime.block_on(cli.command.run(&cli.global, output)) {
        Ok(status) => status,
        Err(failure) => failed(output, &failure),
    }
}

fn asks_for_json(args: &[OsString]) -> bool {
    let is_format = |pair: &[OsString]| (pair[0] == "-w" || pair[0] == "--write-out") && pair[1] == "json";
    args.iter().any(|arg| arg == "--json") || args.windows(2).any(is_format)
}

impl CliCommand {
    async fn run(self, global: &Global, output: Output) -> Result<CliStatus, CommandFailure> {
        match self {
            Self::Serve(args) => serve::run(args, output).await.map_err(|failure| failure.with_subject("serve")),
            Self::Demo(args) => demo::run(args, output).await.map_err(|failure| failure.with_subject("demo")),
            Self::Bench(args) => {
                bench::run(args, global, output).await.map_err(|failure| failure.with_subject("bench"))
            }
            Self::DemoClient => demo::client::run().await,
            Self::DemoReplica(args) => demo::replica::run(args, output).await,
            Self::Shell => shell::run(global, output).await.map_err(|failure| failure.with_subject("shell")),
            Self::Guard { .. } | Self::RunTied { .. } => unreachable!("they run without threads"),
            Self::Request(CommandRequest::Lock(lock)) if lock.wait_args.has_command() => {
                let context = Context::new(global, output, "lock");
                let status = lock.run_command(&context).await;
                context.close().await;
                status
            }
            Self::Request(CommandRequest::Edit(edit)) => {
                let context = Context::new(global, output, "edit");
                let status = edit.run(&context).await;
                context.close().await;
                status
            }
            Self::Request(CommandRequest::Elect(elect)) if elect.wait_args.has_command() => {
                let context = Context::new(global, output, &elect.session_name());
                let status = elect.run_command(&context).await;
                context.close().await;
                status
            }
            Self::Request(request) => {
                let context = match &request {
                    CommandRequest::Elect(elect) => Context::new(global, output, &elect.session_name()),
                    _ => Context::new(global, output, request.name()),
                };
                let result = execute_request(request, &context).await;
                context.close().await;
                let Some(answer) = result? else { return Ok(CliStatus::Done) };
                output.answer(&*answer);
                Ok(answer.status())
            }
            Self::Completions { shell } => {
                clap_complete::generate(shell, &mut Cli::command(), "leasehold", &mut io::stdout());
                Ok(CliStatus::Done)
            }
        }
    }
}

/// Carries a request out, and what goes on after it. Gives the answer, if it is yet to be said.
async fn execute_request(
    request: CommandRequest,
    context: &Context,
) -> Result<Option<Box<dyn CommandAnswer>>, CommandFailure> {
    let request = match request {
        CommandRequest::Watch(watch) => {
            let asked = format!("watch {}", watch.path);
            return watch.run(context).await.map(|()| None).map_err(|failure| failure.with_subject(&asked));
        }
        CommandRequest::Elect(elect) if elect.observes() => {
            let asked = elect.subject();
            return elect.run_observe(context).await.map(|()| None).map_err(|failure| failure.with_subject(&asked));
        }
        request => request,
    };
    let answer = commands::run(request, context).await?;
    let Some(kept) = context.take_background_task() else { return Ok(Some(answer)) };
    // Whoever has read the answer may tell this to stop at once.
    let stop = StopSignal::listen()?;
    context.output.answer(&*answer);
    background::run_until_stopped(kept, context.client().await?, stop.told(), Some(context.output)).await?;
    Ok(None)
}

fn failed(output: Output, failure: &CommandFailure) -> CliStatus {
    output.failure(failure);
    failure.status
}

/// Help and versions are answers; everything else is wrong usage, said in one line like all errors.
fn not_parsed(error: &clap::Error, json: bool) -> CliStatus {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // Whoever has stopped reading does not want the rest.
            let _ = error.print();
            CliStatus::Done
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand if !json => {
            let _ = error.print();
            CliStatus::Usage
        }
        _ => failed(Output { json, notes: false }, &usage(error)),
    }
}

/// What clap says about wrong usage.
pub(crate) fn usage(error: &clap::Error) -> CommandFailure {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return CommandFailure::usage("a command is missing: expected one, see --help");
    }
    let text = error.to_string();
    CommandFailure::usage(text.strip_prefix("error: ").unwrap_or(&text))
}

/// A path on the command line: with or without the leading slash.
pub(crate) fn path(text: &str) -> Result<NodePath, PathError> {
    // An empty text is more likely a variable that was not set than the root.
    if text.is_empty() || text.starts_with('/') { NodePath::parse(text) } else { NodePath::parse(&format!("/{text}")) }
}

pub(crate) fn endpoint(text: &str) -> Result<String, String> {
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).and_then(|(_, port)| port.parse().ok());
    match port {
        Some(1..=u16::MAX) => Ok(text.to_owned()),
        _ => Err(format!("{text:?} is not an address: expected HOST:PORT")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_path_may_lack_its_leading_slash_but_not_be_empty() {
        assert_eq!(path("a/b"), NodePath::parse("/a/b"));
        assert_eq!(path("/"), Ok(NodePath::root()));
        assert!(path("").is_err());
        assert!(path("a/").is_err());
    }

    #[test]
    fn wrong_usage_is_one_line_with_what_was_expected() {
        let error = Cli::try_parse_from(["leasehold", "get", "/a//b"]).expect_err("malformed");
        let failure = usage(&error);
        assert_eq!(failure.status, CliStatus::Usage);
        assert!(failure.message.contains("empty component at byte 3: expected"), "{}", failure.message);
        assert!(!failure.message.contains('\n'));
    }
}
