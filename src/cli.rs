//! Parses the command line and runs the command.

#[cfg(test)]
mod documented;

use std::{ffi::OsString, fs, io, path::PathBuf};

use clap::{Command, CommandFactory, FromArgMatches, Parser, Subcommand, error::ErrorKind};
use clap_mangen::generate_to;
use serde::Serialize;

use crate::{
    arguments::Global,
    background::{self, StopSignal},
    child::guard,
    commands::{self, CommandRequest, bench, demo},
    context::Context,
    exit::{CliStatus, CommandFailure},
    output::{CommandAnswer, Output, Text},
    serve, shell, wrong_usage,
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

Paths are absolute. The leading slash may be left out: config/web means /config/web.";

/// Commands that ask no running cluster. Their help hides the options of clients.
const NO_CLIENTS: [&str; 5] = ["serve", "demo", "demo-replica", "completions", "man"];

/// The options of clients.
const CLIENT_OPTIONS: [&str; 3] = ["endpoints", "timeout", "verbose"];

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
    /// Write a man page for each command to a directory
    Man {
        /// Directory; created if it does not exist
        #[arg(value_name = "DIR")]
        directory: PathBuf,
    },
}

/// The man pages were written.
#[derive(Debug, Serialize)]
struct ManAnswer {
    directory: PathBuf,
}

impl Text for ManAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("man pages in {}\n", self.directory.display()).as_bytes());
    }
}

/// Parses the arguments and runs the command.
pub(crate) fn run(args: impl IntoIterator<Item = OsString>) -> CliStatus {
    let args: Vec<OsString> = args.into_iter().collect();
    let cli = match parse(&args) {
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

/// The command line. The help of a command that is no client hides the options of clients.
fn command() -> Command {
    built(Cli::command())
}

fn built(mut command: Command) -> Command {
    // Global options reach the subcommands when the command is built.
    command.build();
    command.mut_subcommands(|subcommand| {
        if !NO_CLIENTS.contains(&subcommand.get_name()) {
            return subcommand;
        }
        subcommand.mut_args(|arg| match CLIENT_OPTIONS.contains(&arg.get_id().as_str()) {
            true => arg.hide(true),
            false => arg,
        })
    })
}

fn parse(args: &[OsString]) -> Result<Cli, clap::Error> {
    let mut command = command();
    let parsed = command.try_get_matches_from_mut(args).and_then(|matches| Cli::from_arg_matches(&matches));
    parsed.map_err(|error| {
        wrong_usage::with_suggestions(error, &command, args.iter().map(|arg| arg.to_string_lossy().into_owned()))
    })
}

fn asks_for_json(args: &[OsString]) -> bool {
    // What follows belongs to a command under a lock.
    let own: Vec<&str> = args.iter().take_while(|arg| *arg != "--").filter_map(|arg| arg.to_str()).collect();
    let is_format = |pair: &[&str]| matches!(pair, ["-w" | "--write-out", "json"]);
    let is_json = |arg: &&str| matches!(*arg, "--json" | "-wjson" | "-w=json" | "--write-out=json");
    own.iter().any(is_json) || own.windows(2).any(is_format)
}

impl CliCommand {
    async fn run(self, global: &Global, output: Output) -> Result<CliStatus, CommandFailure> {
        match self {
            Self::Serve(args) => serve::run(args, output).await.map_err(|failure| failure.with_subject("serve")),
            Self::Demo(args) => demo::run(args, output).await.map_err(|failure| failure.with_subject("demo")),
            Self::Bench(args) => {
                bench::run(args, global, output).await.map_err(|failure| failure.with_subject("bench"))
            }
            Self::DemoClient => demo::run_client().await,
            Self::DemoReplica(args) => demo::run_replica(args, output).await,
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
                clap_complete::generate(shell, &mut command(), "leasehold", &mut io::stdout());
                Ok(CliStatus::Done)
            }
            Self::Man { directory } => {
                // `help` needs no page.
                let command = built(Cli::command().disable_help_subcommand(true));
                let written = fs::create_dir_all(&directory).and_then(|()| generate_to(command, &directory));
                written.map_err(|error| CommandFailure::io(directory.display(), &error))?;
                output.answer(&ManAnswer { directory });
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
            let subject = watch.path.to_string();
            return watch.run(context).await.map(|()| None).map_err(|failure| failure.with_subject(&subject));
        }
        CommandRequest::Elect(elect) if elect.observes() => {
            let subject = elect.path.to_string();
            return elect.run_observe(context).await.map(|()| None).map_err(|failure| failure.with_subject(&subject));
        }
        request => request,
    };
    let answer = commands::run(request, context).await?;
    let Some(kept) = context.take_background_task() else { return Ok(Some(answer)) };
    // The caller may send a stop signal as soon as it has read the answer.
    let stop = StopSignal::listen()?;
    context.output.answer(&*answer);
    background::run_until_stopped(kept, context.client().await?, stop.requested(), Some(context.output)).await?;
    Ok(None)
}

fn failed(output: Output, failure: &CommandFailure) -> CliStatus {
    output.failure(failure);
    failure.status
}

/// Help and version are answers. All else is wrong usage.
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
        _ => failed(Output { json, notes: false }, &wrong_usage::failure(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
        command().debug_assert();
    }

    #[test]
    fn wrong_usage_is_one_line_in_json_and_several_for_people() {
        let error = parsed(&["get", "/a//b"]).expect_err("malformed");
        let failure = wrong_usage::failure(&error);
        assert_eq!(failure.status, CliStatus::Usage);
        assert!(failure.message.contains("empty component at byte 3"), "{}", failure.message);
        assert!(!failure.message.contains('\n'));
        assert!(failure.text().lines().count() > 1, "{}", failure.text());
    }

    fn parsed(words: &[&str]) -> Result<Cli, clap::Error> {
        let args: Vec<OsString> = ["leasehold"].iter().chain(words).map(OsString::from).collect();
        parse(&args)
    }

    #[test]
    fn unknown_command_suggests_its_synonym_and_no_hidden_command() {
        let text = |words: &[&str]| parsed(words).expect_err("unknown").to_string();
        for (word, command) in [("del", "rm"), ("list", "ls"), ("set", "put"), ("watc", "watch")] {
            let text = text(&[word, "/a"]);
            assert!(text.contains(&format!("a similar subcommand exists: '{command}'")), "{text}");
        }
        for word in ["demo-clien", "guar", "run-tie"] {
            let text = text(&[word]);
            for hidden in ["demo-client", "demo-replica", "'guard'", "run-tied"] {
                assert!(!text.contains(hidden), "{word}: {text}");
            }
        }
        let below = text(&["--timeout", "3s", "lease", "revok", "7"]);
        assert!(below.contains("'revoke'"), "{below}");
        assert!(!text(&["volume", "del", "/v"]).contains("'rm'"), "volume has no such command");
    }

    #[test]
    fn refused_arguments_may_ask_for_json_in_each_form() {
        let asks = |words: &[&str]| asks_for_json(&words.iter().map(OsString::from).collect::<Vec<_>>());
        for form in [&["--json"][..], &["-w", "json"], &["-wjson"], &["-w=json"], &["--write-out=json"]] {
            assert!(asks(&[&["lock"][..], form].concat()), "{form:?}");
            assert!(!asks(&[&["lock", "--"][..], form].concat()), "{form:?} belongs to the command");
        }
        assert!(!asks(&["get", "json", "-w", "simple"]));
    }

    #[test]
    fn help_has_global_options_last_and_serve_has_no_client_options() {
        let help = |words: &[&str]| parsed(&[words, &["--help"]].concat()).expect_err("help").to_string();
        let put = help(&["put"]);
        let at = |text: &str| put.find(text).unwrap_or_else(|| panic!("{text}: {put}"));
        assert!(at("Options:") < at("--create") && at("--token") < at("Global options:"), "{put}");
        assert!(at("Global options:") < at("--endpoints") && at("--json") < at("--verbose"), "{put}");
        let serve = help(&["serve"]);
        assert!(serve.contains("--cluster") && serve.contains("--json"), "{serve}");
        assert!(!serve.contains("--endpoints") && !serve.contains("--verbose"), "{serve}");
        let main = help(&[]);
        assert!(main.find(" demo ") < main.find(" watch "), "the order is that of the source: {main}");
    }
}
