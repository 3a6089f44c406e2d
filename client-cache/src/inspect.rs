//! Requests about the servers' state, for operators and for lists of nodes. Answers are not cached,
//! and a request needs no lease. If an answer is late, the client checks whether the server is
//! alive.

use std::time::{Duration, Instant};

use leasehold_protocol::message::{Answer, Body, ClusterInfo, Inspect, Refusal, Request, RequestHeader, Response};
use leasehold_wire::{ClusterId, LeaseholdClient, Role, client_connection};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::{
    clock,
    driver::Driver,
    error::{InspectError, Unavailable},
};

/// The pause after a server could not answer, before the client asks again.
const PAUSE: Duration = Duration::from_millis(50);

/// After this time without an answer, the rules check whether the server is silent. If it is, they
/// look for another server.
const PROBE_AFTER: Duration = Duration::from_secs(1);

impl Driver {
    /// Asks the connected server, again and again until it can answer, for at most `after`.
    pub(crate) async fn inspect(&self, inspect: Inspect, after: Duration) -> Result<Answer, InspectError> {
        self.ask(Body::Inspect(inspect), after).await
    }

    /// Like [`Self::inspect`], for any request that needs no session.
    pub(crate) async fn ask(&self, body: Body, after: Duration) -> Result<Answer, InspectError> {
        let until = clock::deadline(after);
        let asking = self.closed.run_until_cancelled(self.keep_asking(&body, until));
        match tokio::time::timeout(after, asking).await {
            Ok(Some(outcome)) => outcome.map_err(InspectError::Refused),
            Ok(None) => Err(InspectError::Closed),
            Err(_) => Err(match self.status.unavailable() {
                Some(source) => InspectError::Unavailable { after, source },
                None => InspectError::TimedOut { after },
            }),
        }
    }

    async fn keep_asking(&self, body: &Body, until: Instant) -> Result<Answer, Refusal> {
        let mut line = self.connection.subscribe();
        loop {
            let connection = line.wait_for(Option::is_some).await.map(|connection| connection.clone());
            // Cannot fail: the driver has the sender.
            let Ok(connection) = connection else { return std::future::pending().await };
            if let Some(connection) = connection
                && let Some(response) = self.ask_while_up(&connection, &mut line, body.clone(), until).await
            {
                match response.result {
                    Err(Refusal::NotLeader { .. } | Refusal::Retry | Refusal::Busy { .. }) => {}
                    outcome => return outcome,
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// `None` if the connection ended before the answer came, or if the server failed.
    async fn ask_while_up(
        &self,
        connection: &LeaseholdClient,
        line: &mut watch::Receiver<Option<LeaseholdClient>>,
        body: Body,
        until: Instant,
    ) -> Option<Response> {
        let mut asking = std::pin::pin!(ask(connection, body, until));
        loop {
            tokio::select! {
                response = &mut asking => return response,
                _ = line.changed() => return None,
                () = tokio::time::sleep(PROBE_AFTER) => self.probe(),
            }
        }
    }
}

/// `None` if the connection has ended, or the server failed.
async fn ask(connection: &LeaseholdClient, body: Body, until: Instant) -> Option<Response> {
    let mut context = tarpc::context::current();
    context.deadline = until;
    let request = Request { header: RequestHeader::default(), body };
    connection.call(context, request).await.ok()
}

/// One server's view of its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerStatus {
    /// The server's cluster. `None` while the server waits to join one.
    pub cluster: Option<ClusterId>,
    /// The members, the leader and the revision, as this server knows them.
    pub info: ClusterInfo,
}

/// Asks one server for its view of the cluster. The server need not lead, and the cluster needs no
/// quorum. Each call opens a connection of its own.
///
/// # Errors
///
/// [`InspectError`]: `Unavailable` if the server cannot be connected to.
///
/// # Examples
///
/// ```no_run
/// # use std::time::Duration;
/// # async fn example() -> Result<(), leasehold_client_cache::InspectError> {
/// let status = leasehold_client_cache::server_status("127.0.0.1:7600", Duration::from_secs(1)).await?;
/// let leads = status.info.leader == Some(status.info.replica);
/// println!("replica {} leads: {leads}", status.info.replica);
/// # Ok(())
/// # }
/// ```
pub async fn server_status(endpoint: &str, timeout: Duration) -> Result<ServerStatus, InspectError> {
    let until = clock::deadline(timeout);
    let unavailable = |reason: String| InspectError::Unavailable {
        after: timeout,
        source: Unavailable::NoServer { endpoints: vec![endpoint.to_owned()], reason },
    };
    let asking = async {
        let introduced = leasehold_wire::connect(endpoint, Role::Client, timeout).await;
        let introduced = introduced.map_err(|error| unavailable(error.to_string()))?;
        // No server recalls anything on a connection without a session.
        let (connection, _recalls, task) = client_connection(introduced.stream);
        let _task = AbortOnDropHandle::new(tokio::spawn(task));
        let response = ask(&connection, Body::Inspect(Inspect::Cluster), until).await;
        let response = response.ok_or_else(|| unavailable("the connection ended without an answer".to_owned()))?;
        Ok::<_, InspectError>((introduced.cluster, response))
    };
    let answered = tokio::time::timeout(timeout, asking).await;
    let (cluster, response) = answered.map_err(|_| InspectError::TimedOut { after: timeout })??;
    match response.result {
        Ok(Answer::Cluster(info)) => Ok(ServerStatus { cluster, info }),
        Ok(_) => Err(InspectError::UnexpectedAnswer),
        Err(refusal) => Err(InspectError::Refused(refusal)),
    }
}
