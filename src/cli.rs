//! Parses the command line and runs the command.

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

/// A replicated store for small, important data, with a coherent cache in each client.
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

/// The options of every command.
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
    /// Time limit of one operation: 500ms, 10s, 2m, 1h
    #[arg(long, global = true, default_value = "5s", value_name = "D", value_parser = duration::parse)]
    pub(crate) timeout: Duration,
    /// Print one JSON document on standard output, and nothing else
    #[arg(long, global = true)]
    json: bool,
    /// Output format, as in etcdctl: json means --json
    #[arg(short, long, global = true, value_name = "FORMAT")]
    write_out: Option<Format>,
    /// Print more on standard error: where a value came from, and how long it stays valid
    #[arg(short, long, global = true)]
    verbose: bool,
}

/// The output format.
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
    /// Demonstrate Leasehold on real files: start a cluster, kill its leader and a client, check
    /// each read
    Demo(demo::DemoArgs),
    /// Measure a running cluster under load, or one that is started for the measurement
    Bench(bench::BenchArgs),
    /// A client of the demo
    #[command(hide = true)]
    DemoClient,
    /// A replica of the demo
    #[command(hide = true)]
    DemoReplica(serve::ServeArgs),
    /// Run a server: alone, or as a replica of a cluster
    Serve(serve::ServeArgs),
    /// The guard process of a command of `lock`, `elect` or `edit`
    #[command(hide = true)]
    Guard {
        /// The file descriptor of the owner's messages.
        feed: i32,
        /// The file descriptor on which the guard asks the owner.
        question: i32,
        /// The command.
        #[arg(last = true)]
        command: Vec<OsString>,
    },
    /// The process that becomes a command of `lock`, `elect` or `edit`
    #[command(hide = true)]
    RunTied {
        /// The process id of its guard. The kernel kills the command when the guard ends.
        guard: u32,
        /// The file descriptor of the message that lets it begin.
        go: i32,
        /// The command.
        #[arg(last = true)]
        command: Vec<OsString>,
    },
    /// Run commands from standard input, one per line, in one session with its cache
    Shell,
    #[command(flatten)]
    Request(CommandRequest),
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Parses the arguments and runs the command.
pub(crate) fn run(args: impl IntoIterator<Item = OsString>) -> CliStatus {
    let args: Vec<OsString> = args.into_iter().collect();
    let cli = match Cli::try_parse_from(&args) {
        Ok(cli) => cli,
        // Parsing failed, so `--json` is searched for in the raw arguments.
        Err(error) => return not_parsed(&error, asks_for_json(&args)),
    };
    let output = Output { json: cli.global.is_json(), notes: cli.global.verbose };
    // These commands run in one thread. The kernel kills a child when the thread that started it
    // ends, and each thread has its own mask of blocked signals.
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

/// Executes a request and its background task. Returns the answer if it is not printed yet.
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
    // The caller may send a stop signal as soon as it has read the answer.
    let stop = StopSignal::listen()?;
    context.output.answer(&*answer);
    background::run_until_stopped(kept, context.client().await?, stop.told(), Some(context.output)).await?;
    Ok(None)
}

fn failed(output: Output, failure: &CommandFailure) -> CliStatus {
    output.failure(failure);
    failure.status
}

/// Help and version are answers. All else is wrong usage: one line, like every error.
fn not_parsed(error: &clap::Error, json: bool) -> CliStatus {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            // A closed pipe is no error: the reader has stopped reading.
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

/// clap's error as one line.
pub(crate) fn usage(error: &clap::Error) -> CommandFailure {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return CommandFailure::usage("a command is missing: expected one, see --help");
    }
    let text = error.to_string();
    CommandFailure::usage(text.strip_prefix("error: ").unwrap_or(&text))
}

/// Parses a path of the command line. The leading slash is optional.
pub(crate) fn path(text: &str) -> Result<NodePath, PathError> {
    // An empty text is more likely an unset variable than the root.
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
        assert!(failure.message.contains("empty component at byte 3"), "{}", failure.message);
        assert!(!failure.message.contains('\n'));
    }
}
