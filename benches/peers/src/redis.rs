//! Redis: one server that appends each write to its file and syncs the file before it answers.
//! Connections are multiplexed.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use futures::future::BoxFuture;
use redis::{AsyncConnectionConfig, Client, aio::MultiplexedConnection, caching::CacheConfig, cmd};

use crate::{
    cached,
    closed_loop::{Line, Load},
    process::in_path,
    system::{path_of, value},
};

/// Time limit of a request: slow requests are measured, not aborted.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The path of the program.
pub(crate) fn program() -> Result<PathBuf> {
    in_path("redis-server").context("there is no redis-server in PATH (Debian: redis-server)")
}

/// One server, and its port.
pub(crate) fn commands(program: &Path, dir: &Path, ports: &[u16]) -> (Vec<Command>, Vec<u16>) {
    let mut command = Command::new(program);
    command.args(["--port", &ports[0].to_string(), "--bind", "127.0.0.1"]).arg("--dir").arg(dir);
    command.args(["--appendonly", "yes", "--appendfsync", "always", "--save", ""]);
    (vec![command], vec![ports[0]])
}

async fn connect(endpoint: &str, config: AsyncConnectionConfig) -> Result<MultiplexedConnection> {
    let client = Client::open(format!("redis://{endpoint}/?protocol=resp3"))?;
    let config = config.set_response_timeout(Some(TIMEOUT));
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

/// Whether the server answers.
pub(crate) async fn answers(endpoint: &str) -> Result<bool> {
    let mut connection = connect(endpoint, AsyncConnectionConfig::new()).await?;
    cmd("PING").exec_async(&mut connection).await?;
    Ok(true)
}

/// Opens a connection.
pub(crate) async fn line(endpoint: &str) -> Result<Arc<dyn Line>> {
    Ok(Arc::new(Connection(connect(endpoint, AsyncConnectionConfig::new()).await?)))
}

/// One connection that requests share.
struct Connection(MultiplexedConnection);

impl Line for Connection {
    fn request(&self, load: Load, node: u64) -> BoxFuture<'_, Result<()>> {
        let mut connection = self.0.clone();
        Box::pin(async move {
            match load {
                Load::Fill | Load::Write => {
                    Ok(cmd("SET").arg(path_of(node)).arg(value(node)).exec_async(&mut connection).await?)
                }
                Load::Lease | Load::Lock => bail!("there is nothing like it that lasts: not measured"),
                Load::Read | Load::LocalRead => {
                    let found: Option<Vec<u8>> = cmd("GET").arg(path_of(node)).query_async(&mut connection).await?;
                    ensure!(found.is_some(), "expected a value for node {node}, got none");
                    Ok(())
                }
            }
        })
    }
}

/// Nanoseconds per read through the client library's cache, which the server invalidates.
pub(crate) async fn cached_read_ns(endpoint: &str, threads: usize, nodes: u64, span: Duration) -> Result<f64> {
    let connection = connect(endpoint, AsyncConnectionConfig::new().set_cache_config(CacheConfig::new())).await?;
    let commands: Arc<[_]> = (0..nodes).map(|node| cmd("GET").arg(path_of(node)).to_owned()).collect();
    for command in commands.iter() {
        let found: Option<Vec<u8>> = command.query_async(&mut connection.clone()).await?;
        ensure!(found.is_some(), "expected a value for each node");
    }
    let misses = |connection: &MultiplexedConnection| connection.get_cache_statistics().map(|counts| counts.miss);
    let (before, shared) = (misses(&connection), connection.clone());
    let reader = move || {
        let (mut connection, commands) = (shared.clone(), Arc::clone(&commands));
        async move |at: usize| {
            let found: Option<Vec<u8>> = commands[at].query_async(&mut connection).await?;
            Ok(found.is_some())
        }
    };
    let ns = cached::read_ns(threads, nodes, span, reader).await?;
    ensure!(before == misses(&connection), "reads went to the server: expected all from memory");
    Ok(ns)
}
