//! What a command runs in: one session, opened when the first command needs it, and where its
//! output goes.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use leasehold_client_cache::{Client, ConnectError, Options};
use tokio::sync::OnceCell;

use crate::{cli::Global, commands::background::BackgroundTask, exit::CommandFailure, output::Output};

/// How long giving the leases back may take at the end. Otherwise they end by themselves.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// One session and its surroundings.
#[derive(Debug)]
pub(crate) struct Context {
    global: Global,
    name: String,
    client: OnceCell<Client>,
    background_task: Mutex<Option<BackgroundTask>>,
    /// Where answers go, and whether somebody watches.
    pub(crate) output: Output,
}

impl Context {
    /// A context whose session, if one is needed, is named after `command`.
    pub(crate) fn new(global: &Global, output: Output, command: &str) -> Self {
        let host = nix::unistd::gethostname().unwrap_or_default();
        let name = format!("{command}@{}:{}", host.to_string_lossy(), std::process::id());
        Self { global: global.clone(), name, client: OnceCell::new(), background_task: Mutex::default(), output }
    }

    /// The session's client.
    pub(crate) async fn client(&self) -> Result<&Client, CommandFailure> {
        self.client.get_or_try_init(|| self.connect()).await
    }

    /// The session's client, if any command has needed one.
    pub(crate) fn connected(&self) -> Option<&Client> {
        self.client.get()
    }

    /// What the command began is to go on after its answer.
    pub(crate) fn set_background_task(&self, kept: BackgroundTask) {
        *self.background_task.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
    }

    /// What the last command began that goes on.
    pub(crate) fn take_background_task(&self) -> Option<BackgroundTask> {
        self.background_task.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn connect(&self) -> Result<Client, CommandFailure> {
        let options = Options::new(self.endpoints()).name(self.name.as_str()).timeout(self.timeout());
        Client::connect(options).await.map_err(|error| match &error {
            ConnectError::NoEndpoints => CommandFailure::usage(&error),
            ConnectError::Refused(refusal) => CommandFailure::from_refusal(refusal),
            ConnectError::Unavailable { .. } | ConnectError::TimedOut { .. } => CommandFailure::unavailable(&error),
        })
    }

    /// How long one operation may take.
    pub(crate) fn timeout(&self) -> Duration {
        self.global.timeout
    }

    /// The servers to try.
    pub(crate) fn endpoints(&self) -> &[String] {
        &self.global.endpoints
    }

    /// Gives all leases back.
    pub(crate) async fn close(self) {
        if let Some(client) = self.client.into_inner() {
            // Too late is no harm: the leases end by themselves.
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, client.close()).await;
        }
    }
}
