//! `health`: whether the asked servers answer and know a leader, for service managers and load
//! balancers. It asks each endpoint and no other member, and it needs no session.

use futures::future::join_all;
use serde::Serialize;

use super::cluster::ask;
use crate::{
    context::Context,
    exit::CliStatus,
    output::{Text, visible},
};

/// The health of the endpoints, each by its own answer.
#[derive(Debug, Serialize)]
pub(crate) struct HealthAnswer {
    /// Whether all are.
    healthy: bool,
    servers: Vec<ServerHealth>,
}

#[derive(Debug, Serialize)]
struct ServerHealth {
    endpoint: String,
    /// Whether it answers and knows a leader.
    healthy: bool,
    /// `None` if it does not answer.
    replica: Option<u64>,
    /// Its leader. `None` if it knows none or does not answer.
    leader: Option<u64>,
    /// Why it does not answer.
    error: Option<String>,
}

impl ServerHealth {
    fn problem(&self) -> String {
        self.error.as_deref().map_or_else(|| "no leader is known".to_owned(), visible)
    }
}

impl Text for HealthAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        for server in &self.servers {
            let health = match (server.replica, server.leader) {
                (Some(replica), Some(leader)) if replica == leader => format!("healthy: replica {replica}, leader"),
                (Some(replica), Some(leader)) => format!("healthy: replica {replica}, follows replica {leader}"),
                _ => format!("unhealthy: {}", server.problem()),
            };
            out.extend_from_slice(format!("{} is {health}\n", server.endpoint).as_bytes());
        }
    }

    fn status(&self) -> CliStatus {
        if self.healthy { CliStatus::Done } else { CliStatus::Unavailable }
    }
}

/// Asks the endpoints.
pub(crate) async fn run(context: &Context) -> HealthAnswer {
    let servers = join_all(context.endpoints().iter().map(|endpoint| async move {
        let (info, error) = match ask(context, endpoint).await {
            Ok(status) => (Some(status.info), None),
            Err(error) => (None, Some(error)),
        };
        let leader = info.as_ref().and_then(|info| info.leader);
        let replica = info.map(|info| info.replica);
        ServerHealth { endpoint: endpoint.clone(), healthy: leader.is_some(), replica, leader, error }
    }));
    let servers = servers.await;
    HealthAnswer { healthy: servers.iter().all(|server| server.healthy), servers }
}
