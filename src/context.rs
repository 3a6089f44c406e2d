//! The environment of a command: one session, which the first command that needs it opens, and the
//! output.

use std::{
    pin::pin,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use leasehold_client_cache::{Client, Options};
use tokio::sync::OnceCell;

use crate::{
    arguments::Global, background::BackgroundTask, duration::rough, exit::CommandFailure, failure::connect_failure,
    output::Output,
};

/// Time limit for returning the leases at the end. After it they expire by themselves.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a connect waits in silence.
const SILENCE: Duration = Duration::from_secs(1);

/// One session and its environment.
#[derive(Debug)]
pub(crate) struct Context {
    global: Global,
    name: String,
    client: OnceCell<Client>,
    background_task: Mutex<Option<BackgroundTask>>,
    pub(crate) output: Output,
}

impl Context {
    /// A context. If a command needs a session, the session is named after `command`.
    pub(crate) fn new(global: &Global, output: Output, command: &str) -> Self {
        let host = nix::unistd::gethostname().unwrap_or_default();
        let name = format!("{command}@{}:{}", host.to_string_lossy(), std::process::id());
        Self { global: global.clone(), name, client: OnceCell::new(), background_task: Mutex::default(), output }
    }

    /// The session's client. The first call connects.
    pub(crate) async fn client(&self) -> Result<&Client, CommandFailure> {
        self.client.get_or_try_init(|| self.connect()).await
    }

    /// The session's client, if a command has needed it.
    pub(crate) fn connected(&self) -> Option<&Client> {
        self.client.get()
    }

    /// Sets the task that continues after the command's answer.
    pub(crate) fn set_background_task(&self, kept: BackgroundTask) {
        *self.background_task.lock().unwrap_or_else(PoisonError::into_inner) = Some(kept);
    }

    /// Takes the task that the last command has set, if any.
    pub(crate) fn take_background_task(&self) -> Option<BackgroundTask> {
        self.background_task.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    async fn connect(&self) -> Result<Client, CommandFailure> {
        let options = Options::new(self.endpoints()).name(self.name.as_str()).timeout(self.timeout());
        let mut connecting = pin!(Client::connect(options));
        let connected = match tokio::time::timeout(SILENCE, &mut connecting).await {
            Ok(connected) => connected,
            Err(_) => {
                if !self.output.json && self.timeout() > SILENCE {
                    let (endpoints, left) = (self.endpoints().join(", "), self.timeout().saturating_sub(SILENCE));
                    Output::notice(&format!("{endpoints}: no session yet, waiting at most {} longer", rough(left)));
                }
                connecting.await
            }
        };
        connected.map_err(|error| connect_failure(&error))
    }

    /// Time limit of one operation.
    pub(crate) fn timeout(&self) -> Duration {
        self.global.timeout
    }

    /// The addresses of the servers to try.
    pub(crate) fn endpoints(&self) -> &[String] {
        &self.global.endpoints
    }

    /// Returns all leases.
    pub(crate) async fn close(self) {
        if let Some(client) = self.client.into_inner() {
            // A timeout does no harm: the leases expire by themselves.
            let _ = tokio::time::timeout(CLOSE_TIMEOUT, client.close()).await;
        }
    }
}
