//! `leasehold serve`: runs a replica until it gets a stop signal or fails.
//!
//! Options override the file; the file overrides the defaults. A replica without a listen address
//! uses its own address in the cluster.

use std::{collections::BTreeMap, io::IsTerminal, path::PathBuf};

use leasehold_server::{ConfigError, Server, ServerConfig, StartError, end_process_on_panic, raise_descriptor_limit};
use serde::Serialize;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::{
    exit::{CliStatus, CommandFailure},
    output::{Output, Text},
};

/// The log filter unless RUST_LOG is set:
///
/// - The spans of tarpc and the details of openraft cost time.
/// - tarpc logs an error for each expired request, so any client could fill the log.
/// - openraft warns at each failed connection to a replica; the server logs the changes itself.
const LOG_DEFAULT: &str = "info,tarpc=warn,tarpc::server::in_flight_requests=off,openraft=error";

/// The options of a server.
#[derive(Debug, clap::Args)]
pub(crate) struct ServeArgs {
    /// This replica's number in the cluster [default: 1]
    #[arg(long, value_name = "N")]
    id: Option<u64>,
    /// Directory of its data [default: ./leasehold-data]
    #[arg(long, value_name = "DIR")]
    pub(crate) data: Option<PathBuf>,
    /// Address to listen on [default: its address in the cluster, or 127.0.0.1:7600]
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
    /// All replicas of the cluster, including this one: 1=ADDR,2=ADDR,3=ADDR
    #[arg(long, value_name = "N=ADDR,..", value_delimiter = ',', value_parser = member)]
    cluster: Vec<(u64, String)>,
    /// TOML file with these and more settings; options override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// The answer once the server listens.
#[derive(Debug, Serialize)]
struct Listening {
    id: u64,
    address: String,
    data: PathBuf,
}

impl Text for Listening {
    fn text(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("replica {} listens on {}\n", self.id, self.address).as_bytes());
    }
}

/// Runs a server until SIGTERM or SIGINT.
pub(crate) async fn run(args: ServeArgs, output: Output) -> Result<CliStatus, CommandFailure> {
    let config = args.config()?;
    log();
    end_process_on_panic();
    if let Err(error) = raise_descriptor_limit() {
        tracing::warn!(%error, "cannot raise the limit of open files");
    }
    let signals = signal(SignalKind::terminate()).and_then(|term| Ok((term, signal(SignalKind::interrupt())?)));
    let (mut terminate, mut interrupt) =
        signals.map_err(|error| CommandFailure::io("cannot listen for signals", &error))?;
    let (id, data) = (config.id, config.data.clone());
    let (version, folder) = (env!("CARGO_PKG_VERSION"), data.display());
    tracing::info!(version, replica = id, data = %folder, address = config.listen, "starting a replica");
    let server = Server::start(config).await.map_err(|error| match &error {
        StartError::Config(error) => CommandFailure::usage(error),
        error => CommandFailure::refused("start", error),
    })?;
    output.answer(&Listening { id, address: server.address().to_string(), data });
    let ended = tokio::select! {
        reason = server.failed() => Err(reason),
        _ = terminate.recv() => Ok("SIGTERM"),
        _ = interrupt.recv() => Ok("SIGINT"),
    };
    match ended {
        Ok(signal) => {
            tracing::info!(signal, replica = id, "stopping the replica");
            server.stop().await.map_err(|error| CommandFailure::refused("stop", error))?;
            tracing::info!(replica = id, "the replica has stopped");
            Ok(CliStatus::Done)
        }
        // No graceful stop: a failed replica cannot persist anything.
        Err(reason) => {
            let text = format!("cannot go on: {reason}");
            Err(CommandFailure::refused("failed", text).with_subject(&format!("replica {id}")))
        }
    }
}

fn log() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOG_DEFAULT));
    let ansi = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi);
    // An unwritable log line is lost: to report the error would panic and end the server.
    // `try_init` fails only if a subscriber is installed already; that one then logs.
    let _ = log.log_internal_errors(false).try_init();
}

impl ServeArgs {
    fn config(self) -> Result<ServerConfig, CommandFailure> {
        let (mut config, mut says_listen) = match &self.config {
            Some(file) => read(file)?,
            None => (ServerConfig::default(), false),
        };
        config.id = self.id.unwrap_or(config.id);
        config.data = self.data.unwrap_or(config.data);
        if !self.cluster.is_empty() {
            config.cluster = members(self.cluster)?;
        }
        if let Some(listen) = self.listen {
            config.listen = listen;
            says_listen = true;
        }
        if !says_listen && let Some(address) = config.cluster.get(&config.id) {
            config.listen.clone_from(address);
        }
        config.checked().map_err(|error: ConfigError| CommandFailure::usage(error))
    }
}

/// The configuration of a file, and whether it has a listen address.
fn read(file: &std::path::Path) -> Result<(ServerConfig, bool), CommandFailure> {
    let text = std::fs::read_to_string(file).map_err(|error| {
        CommandFailure::usage(format!("cannot be read: {error}")).with_subject(&file.display().to_string())
    })?;
    let wrong = |error: toml::de::Error| {
        CommandFailure::usage_lines(&error.to_string()).with_subject(&file.display().to_string())
    };
    let table: toml::Table = toml::from_str(&text).map_err(wrong)?;
    Ok((toml::from_str(&text).map_err(wrong)?, table.contains_key("listen")))
}

fn member(text: &str) -> Result<(u64, String), String> {
    let parsed =
        text.split_once('=').and_then(|(id, address)| Some((id.trim().parse().ok()?, address.trim().to_owned())));
    parsed.ok_or_else(|| format!("replica {text:?}: not N=HOST:PORT"))
}

fn members(list: Vec<(u64, String)>) -> Result<BTreeMap<u64, String>, CommandFailure> {
    let mut members = BTreeMap::new();
    for (id, address) in list {
        if let Some(other) = members.insert(id, address.clone()) {
            let text = format!("replica {id}: two addresses in --cluster, {other} and {address}");
            return Err(CommandFailure::usage(text));
        }
    }
    Ok(members)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct ServeLine {
        #[command(flatten)]
        args: ServeArgs,
    }

    fn config(line: &str) -> Result<ServerConfig, CommandFailure> {
        ServeLine::try_parse_from(std::iter::once("serve").chain(line.split_whitespace()))
            .expect("parses")
            .args
            .config()
    }

    #[test]
    fn replica_listens_at_its_cluster_address_by_default() {
        let two = config("--id 2 --cluster 1=a:1,2=b:2").expect("valid");
        assert_eq!((two.id, two.listen.as_str()), (2, "b:2"));
        let behind = config("--id 2 --cluster 1=a:1,2=b:2 --listen 0.0.0.0:2").expect("valid");
        assert_eq!(behind.listen, "0.0.0.0:2");
        assert_eq!(config("").expect("valid").listen, "127.0.0.1:7600");
    }

    #[test]
    fn options_override_the_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("leasehold.toml");
        std::fs::write(&file, "id = 3\nlisten = \"127.0.0.1:9\"\n[cluster]\n3 = \"c:1\"\n").expect("written");
        let config = config(&format!("--config {} --data elsewhere", file.display())).expect("valid");
        assert_eq!((config.id, config.listen.as_str(), config.data), (3, "127.0.0.1:9", PathBuf::from("elsewhere")));
    }

    #[test]
    fn what_cannot_be_meant_is_wrong_usage() {
        let twice = config("--cluster 1=a:1,1=b:1").expect_err("two addresses");
        assert_eq!(twice.status, CliStatus::Usage);
        let stranger = config("--id 4 --cluster 1=a:1,2=b:1").expect_err("not a member");
        assert_eq!(stranger.status, CliStatus::Usage);
        let missing = config("--config /nowhere/at/all.toml").expect_err("no file");
        assert!(missing.message.contains("/nowhere/at/all.toml"), "{}", missing.message);
    }
}
