//! The arguments that several commands share: the options of every command, and the parsers of
//! paths and addresses.

use std::time::Duration;

use clap::{Args, ValueEnum};
use leasehold_protocol::path::{NodePath, PathError};

use crate::duration;

/// The options of every command.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Global options")]
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
    #[arg(long, global = true, default_value = "15s", value_name = "D", value_parser = duration::parse)]
    pub(crate) timeout: Duration,
    /// Print one JSON document on standard output, and nothing else
    #[arg(long, global = true)]
    json: bool,
    /// Output format, as in etcdctl: json means --json
    #[arg(short, long, global = true, value_name = "FORMAT")]
    write_out: Option<Format>,
    /// Print more on standard error: where a value came from, and how long it stays valid
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
}

/// The output format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people: lines, and tables where there are columns
    #[value(alias = "table")]
    Simple,
    /// For scripts
    Json,
}

impl Global {
    /// Whether to print JSON.
    pub(crate) fn is_json(&self) -> bool {
        self.json || self.write_out == Some(Format::Json)
    }
}

/// Parses a path of the command line. The leading slash is optional.
pub(crate) fn path(text: &str) -> Result<NodePath, PathError> {
    // An empty text is more likely an unset variable than the root.
    if text.is_empty() || text.starts_with('/') { NodePath::parse(text) } else { NodePath::parse(&format!("/{text}")) }
}

/// Parses the address of a server: HOST:PORT.
pub(crate) fn endpoint(text: &str) -> Result<String, String> {
    let port = text.rsplit_once(':').filter(|(host, _)| !host.is_empty()).and_then(|(_, port)| port.parse().ok());
    match port {
        Some(1..=u16::MAX) => Ok(text.to_owned()),
        _ => Err(format!("address {text:?}: not HOST:PORT")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_may_lack_its_leading_slash_but_not_be_empty() {
        assert_eq!(path("a/b"), NodePath::parse("/a/b"));
        assert_eq!(path("/"), Ok(NodePath::root()));
        assert!(path("").is_err());
        assert!(path("a/").is_err());
    }
}
