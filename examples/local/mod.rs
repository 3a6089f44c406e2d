//! What the examples share: a server in this process, with its data in a temporary folder.

// Each example uses a part of it.
#![allow(dead_code)]

use leasehold_client_cache::{Client, ConnectError, Options};
use leasehold_server::{Server, ServerConfig};
use tempfile::TempDir;

/// Any error that ends an example.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// A cluster of one server. Its data is removed when this is dropped.
pub struct LocalServer {
    server: Server,
    _folder: TempDir,
}

impl LocalServer {
    pub async fn start() -> Result<Self, Failure> {
        let folder = tempfile::tempdir()?;
        let (data, listen) = (folder.path().join("data"), "127.0.0.1:0".to_owned());
        let server = Server::start(ServerConfig { data, listen, ..ServerConfig::default() }).await?;
        Ok(Self { server, _folder: folder })
    }

    /// A new client of this server.
    pub async fn client(&self, name: &str) -> Result<Client, ConnectError> {
        Client::connect(Options::new([self.endpoint()]).name(name)).await
    }

    /// The address for clients in other processes.
    pub fn endpoint(&self) -> String {
        self.server.address().to_string()
    }

    pub async fn stop(self) -> Result<(), Failure> {
        Ok(self.server.stop().await?)
    }
}
