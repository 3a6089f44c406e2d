//! `leasehold shell`: runs commands, one per line, in one session with its cache.
//!
//! It splits each line into words as a shell does ([`words`]) and parses it like the command line.
//! Then it prints and flushes the answer or the error; an error does not end the shell. Empty lines
//! and comments (`# …`) have no answer. In text mode, standard error also has the source of each
//! value. The exit status is that of the last line that failed. It is 0 if none did, and after a
//! stop signal.
//!
//! Each line of a pasted text is a command, except within quotes. [`terminal`] has the history, and
//! [`completion`] completes commands and paths.
//!
//! A thread of its own reads the lines. So the session renews leases and consents to recalls while
//! the shell waits for the next line.

mod completion;
mod terminal;

use std::{
    io::{self, BufRead, IsTerminal},
    time::Duration,
};

use clap::{Command, CommandFactory, FromArgMatches, Parser, error::ErrorKind};
use leasehold_client_cache::{Client, NodePath, Stats};
use serde::Serialize;
use tokio::{
    runtime::Handle,
    signal::unix::{SignalKind, signal},
    sync::{mpsc, oneshot},
};

use crate::{
    arguments::{self, Global},
    background::BackgroundTasks,
    commands::{self, CommandRequest},
    context::Context,
    duration,
    exit::{CliStatus, CommandFailure},
    output::{CommandAnswer, Output, Text, visible},
    words, wrong_usage,
};
use completion::Completion;
use terminal::Terminal;

/// Run commands, one per line, in one session with its cache
#[derive(Debug, Parser)]
#[command(no_binary_name = true, name = "", override_usage = "COMMAND [ARGUMENTS]", disable_version_flag = true)]
struct ShellLine {
    #[command(subcommand)]
    command: ShellCommand,
}

#[derive(Debug, clap::Subcommand)]
enum ShellCommand {
    #[command(flatten)]
    Request(CommandRequest),
    /// Show the counters of this session's cache
    Stats,
    /// Wait
    Sleep {
        /// Duration: 500ms, 10s, 2m, 1h
        #[arg(value_parser = duration::parse)]
        duration: Duration,
    },
    /// Release a lock that this shell owns
    Unlock {
        /// Locked node
        #[arg(value_parser = arguments::path)]
        path: NodePath,
    },
    /// End the shell
    #[command(alias = "quit")]
    Exit,
}

/// The outcome of a line.
enum ShellOutcome {
    Nothing,
    Answer(Box<dyn CommandAnswer>),
    Failed(CommandFailure),
    Exit,
}

/// Runs lines until the input ends.
pub(crate) async fn run(global: &Global, output: Output) -> Result<CliStatus, CommandFailure> {
    let output = Output { notes: true, ..output };
    let signals = signal(SignalKind::terminate()).and_then(|term| Ok((term, signal(SignalKind::interrupt())?)));
    let (mut terminate, mut interrupt) =
        signals.map_err(|error| CommandFailure::io("cannot listen for signals", &error))?;
    let context = Context::new(global, output, "shell");
    let mut lines = read_lines(context.client().await?.clone())?;
    let mut background_tasks = BackgroundTasks::default();
    // At a signal the shell still returns its leases, so that they need not expire.
    let status = tokio::select! {
        status = serve(&context, &mut lines, &mut background_tasks) => status,
        _ = terminate.recv() => Ok(CliStatus::Done),
        _ = interrupt.recv() => Ok(CliStatus::Done),
    };
    background_tasks.end().await;
    context.close().await;
    status
}

async fn serve(
    context: &Context,
    lines: &mut mpsc::Receiver<Typed>,
    background_tasks: &mut BackgroundTasks,
) -> Result<CliStatus, CommandFailure> {
    let mut status = CliStatus::Done;
    while let Some(typed) = lines.recv().await {
        let line = typed.line.map_err(|error| CommandFailure::io("cannot read standard input", &error))?;
        match run_line(context, background_tasks, &line).await {
            ShellOutcome::Nothing => {}
            ShellOutcome::Answer(answer) => {
                context.output.answer(&*answer);
                if answer.status() != CliStatus::Done {
                    status = answer.status();
                }
                if let Some(kept) = context.take_background_task() {
                    background_tasks.add(kept, context.client().await?);
                }
            }
            ShellOutcome::Failed(failure) => {
                context.output.failure(&failure);
                status = failure.status;
            }
            ShellOutcome::Exit => break,
        }
        // The reader is gone only at the end of the input.
        let _ = typed.done.send(());
    }
    Ok(status)
}

/// The commands of the shell. Its help lists only those that it can run.
fn command() -> Command {
    let not_here = |name: &str| CommandRequest::NOT_IN_SHELL.contains(&name);
    ShellLine::command().mut_subcommands(|command| {
        let is_hidden = not_here(command.get_name());
        command.hide(is_hidden)
    })
}

fn parse(words: &[String]) -> Result<ShellLine, clap::Error> {
    let mut command = command();
    let parsed = command.try_get_matches_from_mut(words).and_then(|matches| ShellLine::from_arg_matches(&matches));
    parsed.map_err(|error| wrong_usage::with_suggestions(error, &command, words.iter().cloned()))
}

async fn run_line(context: &Context, background_tasks: &mut BackgroundTasks, line: &str) -> ShellOutcome {
    let words = match words::split(line) {
        Ok(words) if words.is_empty() => return ShellOutcome::Nothing,
        Ok(words) => words,
        Err(error) => return ShellOutcome::Failed(CommandFailure::usage(error)),
    };
    let command = match parse(&words) {
        Ok(line) => line.command,
        Err(error) if error.kind() == ErrorKind::DisplayHelp => {
            return ShellOutcome::Answer(Box::new(Help { help: error.to_string() }));
        }
        Err(error) => return ShellOutcome::Failed(wrong_usage::failure(&error)),
    };
    let answer = match command {
        ShellCommand::Request(request) if request.reads_standard_input() => {
            let remedy = match request {
                CommandRequest::Txn(_) => "use --when, --then and --otherwise",
                _ => "write the value on the line",
            };
            let failure = CommandFailure::usage("standard input has the shell's commands");
            Err(failure.and(remedy).with_subject(request.name()))
        }
        ShellCommand::Request(request) => commands::run(request, context).await,
        ShellCommand::Stats => {
            Ok(Box::new(StatsAnswer::from(context.connected().map(|client| client.stats()))) as Box<_>)
        }
        ShellCommand::Sleep { duration } => {
            tokio::time::sleep(duration).await;
            Ok(Box::new(Slept { slept_ms: duration::millis(duration) }) as Box<_>)
        }
        ShellCommand::Unlock { path } => match background_tasks.unlock(&path).await {
            Ok(()) => Ok(Box::new(Unlocked { path }) as Box<_>),
            Err(failure) => Err(failure.with_subject(path.as_str())),
        },
        ShellCommand::Exit => return ShellOutcome::Exit,
    };
    answer.map_or_else(ShellOutcome::Failed, ShellOutcome::Answer)
}

/// A line of input. The thread reads the next line, and shows its prompt, after this one is done.
struct Typed {
    line: io::Result<String>,
    done: oneshot::Sender<()>,
}

/// Starts the thread that reads lines. It ends with the input or with the process.
fn read_lines(client: Client) -> Result<mpsc::Receiver<Typed>, CommandFailure> {
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    let (sender, receiver) = mpsc::channel(1);
    let completion = Completion::new(command(), client, Handle::current());
    let read = move || {
        let next: Box<dyn FnMut() -> Option<io::Result<String>>> = match is_terminal.then(|| Terminal::open(completion))
        {
            Some(Ok(mut terminal)) => Box::new(move || terminal.next()),
            Some(Err(error)) => Box::new({
                let mut error = Some(error);
                move || error.take().map(Err)
            }),
            None => Box::new(piped_line),
        };
        forward(next, &sender);
    };
    let spawned = std::thread::Builder::new().name("lines".to_owned()).spawn(read);
    spawned.map_err(|error| CommandFailure::io("cannot start a thread", &error))?;
    Ok(receiver)
}

fn forward(mut next: impl FnMut() -> Option<io::Result<String>>, sender: &mpsc::Sender<Typed>) {
    while let Some(line) = next() {
        let (done, is_done) = oneshot::channel();
        let is_last = line.is_err();
        if sender.blocking_send(Typed { line, done }).is_err() || is_done.blocking_recv().is_err() || is_last {
            return;
        }
    }
}

fn piped_line() -> Option<io::Result<String>> {
    let mut line = String::new();
    match io::stdin().lock().read_line(&mut line) {
        Ok(0) => None,
        Ok(_) => Some(Ok(line)),
        Err(error) => Some(Err(error)),
    }
}

/// The help text.
#[derive(Debug, Serialize)]
struct Help {
    help: String,
}

impl Text for Help {
    fn text(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self.help.as_bytes());
    }
}

/// The result of `unlock`.
#[derive(Debug, Serialize)]
struct Unlocked {
    path: NodePath,
}

impl Text for Unlocked {
    fn text(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("unlocked {}\n", visible(self.path.as_str())).as_bytes());
    }
}

/// The result of `sleep`.
#[derive(Debug, Serialize)]
struct Slept {
    slept_ms: u64,
}

impl Text for Slept {
    fn text(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("slept {} ms\n", self.slept_ms).as_bytes());
    }
}

/// The counters of the session's cache.
#[derive(Debug, Default, Serialize)]
struct StatsAnswer {
    hits: u64,
    stale_hits: u64,
    misses: u64,
    server_reads: u64,
    validations: u64,
    recalls: u64,
    messages_sent: u64,
    evictions: u64,
    writes: u64,
    copies: u64,
}

impl From<Option<Stats>> for StatsAnswer {
    fn from(stats: Option<Stats>) -> Self {
        let stats = stats.unwrap_or_default();
        Self {
            hits: stats.hits,
            stale_hits: stats.stale_hits,
            misses: stats.misses,
            server_reads: stats.server_reads,
            validations: stats.validations,
            recalls: stats.recalls,
            messages_sent: stats.messages_sent,
            evictions: stats.evictions,
            writes: stats.writes,
            copies: stats.copies,
        }
    }
}

impl Text for StatsAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        let lines = [
            ("reads from memory", self.hits),
            ("old answers used", self.stale_hits),
            ("other reads", self.misses),
            ("read requests sent", self.server_reads),
            ("validations", self.validations),
            ("recalls", self.recalls),
            ("messages sent", self.messages_sent),
            ("evictions", self.evictions),
            ("writes", self.writes),
            ("copies", self.copies),
        ];
        for (name, count) in lines {
            out.extend_from_slice(format!("{name:18}  {count}\n").as_bytes());
        }
    }
}

/// The fuzzer's corpus.
#[cfg(test)]
#[path = "../tests/fuzz/corpus.rs"]
mod corpus;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lines_arguments_are_consistent() {
        command().debug_assert();
    }

    #[test]
    fn lines_are_parsed_like_the_command_line() {
        let parse = |line: &str| parse(&words::split(line).expect("words")).map(|line| line.command);
        assert!(matches!(parse("get /a"), Ok(ShellCommand::Request(CommandRequest::Get(_)))));
        assert!(
            matches!(parse("sleep 10ms"), Ok(ShellCommand::Sleep { duration }) if duration == Duration::from_millis(10))
        );
        assert!(matches!(parse("quit"), Ok(ShellCommand::Exit)));
        assert_eq!(parse("help").expect_err("help").kind(), ErrorKind::DisplayHelp);
        assert!(parse("serve").is_err());
    }

    /// Tries the fuzzer's corpus of typed text (`tests/fuzz`) alone, and as the arguments of each
    /// command.
    #[test]
    fn whatever_is_typed_is_a_command_or_an_error_of_one_line() {
        let inputs: Vec<_> = corpus::inputs().into_iter().filter(|input| input.target == "text").collect();
        assert!(!inputs.is_empty());
        let line = command();
        let mut begins = vec![String::new()];
        for command in line.get_subcommands() {
            let below = command.get_subcommands().map(|below| format!("{} {} ", command.get_name(), below.get_name()));
            begins.extend(below.chain([format!("{} ", command.get_name())]));
        }
        let texts: Vec<_> = inputs.iter().map(|input| String::from_utf8_lossy(&input.data)).collect();
        for (begin, typed) in begins.iter().flat_map(|begin| texts.iter().map(move |typed| (begin, typed))) {
            let Ok(words) = words::split(&format!("{begin}{typed}")) else { continue };
            if let Err(error) = parse(&words)
                && error.kind() != ErrorKind::DisplayHelp
            {
                let message = wrong_usage::failure(&error).message;
                assert!(!message.is_empty() && !message.contains(char::is_control), "{message:?}");
            }
        }
    }
}
