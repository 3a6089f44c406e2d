//! `services PATH`: the services at and below a node and their health, as the leader sees them now.

use std::time::Duration;

use clap::Args;
use leasehold_client_cache::{ChangeReason, NodeOwner, NodePath, ServiceHealth, ServiceInfo};
use serde::Serialize;

use crate::{
    arguments,
    context::Context,
    duration,
    exit::CommandFailure,
    failure::inspect_failure,
    lease_id::hex,
    output::{Table, Text, visible},
};

/// `services PATH`
#[derive(Debug, Args)]
pub(crate) struct ServicesArgs {
    /// Topmost node
    #[arg(value_parser = arguments::path)]
    pub(crate) path: NodePath,
}

/// Nodes that are or were attached to leases.
#[derive(Debug, Serialize)]
pub(crate) struct ServicesAnswer {
    path: NodePath,
    /// In the order of paths.
    services: Vec<ServiceRow>,
}

/// A service.
#[derive(Debug, Serialize)]
struct ServiceRow {
    path: NodePath,
    /// `live`, `jeopardy` or `gone`.
    state: &'static str,
    /// Why it is gone: `left`, `expired` or `revoked`.
    reason: Option<&'static str>,
    session: Option<u64>,
    lease: Option<String>,
    name: Option<String>,
    /// The revision at which it was last written.
    revision: Option<u64>,
    /// The revision at which it was removed.
    gone_revision: Option<u64>,
    /// How long ago its lease was last renewed, if known.
    last_seen_ms: Option<u64>,
    /// The remaining time of its lease, if the node exists.
    remaining_ms: Option<u64>,
    #[serde(skip)]
    seen: Option<Duration>,
    #[serde(skip)]
    remaining: Duration,
}

impl ServiceRow {
    fn of(info: ServiceInfo) -> Self {
        let (state, gone) = match info.health {
            ServiceHealth::Live => ("live", None),
            ServiceHealth::Jeopardy => ("jeopardy", None),
            ServiceHealth::Removed { revision, reason } => ("gone", Some((revision, reason))),
        };
        let reason = gone.map(|(_, reason)| match reason {
            ChangeReason::Request => "left",
            ChangeReason::Expired => "expired",
            ChangeReason::Revoked => "revoked",
        });
        let (session, lease) = match info.owner {
            Some(NodeOwner::Session(session)) => (Some(session.0), None),
            Some(NodeOwner::Lease(lease)) => (None, Some(hex(lease))),
            None => (None, None),
        };
        Self {
            path: info.path,
            state,
            reason,
            session,
            lease,
            name: Some(info.name).filter(|name| !name.is_empty()),
            revision: info.registered.map(|revision| revision.0),
            gone_revision: gone.map(|(revision, _)| revision.0),
            last_seen_ms: info.seen.map(duration::millis),
            remaining_ms: gone.is_none().then(|| duration::millis(info.remaining)),
            seen: info.seen,
            remaining: info.remaining,
        }
    }

    fn cells(&self) -> [String; 5] {
        let state = self.reason.map_or(self.state.to_owned(), |reason| format!("{} ({reason})", self.state));
        let by = match (&self.session, &self.lease) {
            (Some(session), _) => {
                format!("session {session} {}", self.name.as_deref().map(visible).unwrap_or_default())
            }
            (_, Some(lease)) => format!("lease {lease}"),
            _ => "-".to_owned(),
        };
        let seen = self.seen.map_or("-".to_owned(), |seen| format!("{} ago", duration::rough(seen)));
        let remaining = self.remaining_ms.map_or("-".to_owned(), |_| duration::rough(self.remaining));
        [visible(self.path.as_str()), state, by.trim_end().to_owned(), seen, remaining]
    }
}

impl Text for ServicesAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        if self.services.is_empty() {
            let path = visible(self.path.as_str());
            return out.extend_from_slice(format!("no services at or below {path}\n").as_bytes());
        }
        let mut table = Table::new(&["PATH", "STATE", "BY", "LAST SEEN", "REMAINING"]);
        self.services.iter().for_each(|service| table.row(service.cells()));
        table.write(out);
    }
}

impl ServicesArgs {
    pub(crate) async fn run(self, context: &Context) -> Result<ServicesAnswer, CommandFailure> {
        let found =
            context.client().await?.admin().services(&self.path).await.map_err(|error| inspect_failure(&error))?;
        Ok(ServicesAnswer { path: self.path, services: found.into_iter().map(ServiceRow::of).collect() })
    }
}

#[cfg(test)]
mod tests {
    use leasehold_client_cache::{LeaseId, Revision, SessionId};

    use super::*;

    #[test]
    fn a_line_says_how_it_stands_and_why() {
        let info = |owner, health, seen| ServiceInfo {
            path: NodePath::root(),
            owner,
            name: "web".to_owned(),
            registered: Some(Revision(3)),
            health,
            seen,
            remaining: Duration::from_secs(4),
        };
        let line = |owner, standing, seen| ServiceRow::of(info(owner, standing, seen)).cells().join(" | ");
        let session = Some(NodeOwner::Session(SessionId(7)));
        let seen = Some(Duration::from_secs(2));
        assert_eq!(line(session, ServiceHealth::Live, seen), "/ | live | session 7 web | 2.0 s ago | 4.0 s");
        let gone = ServiceHealth::Removed { revision: Revision(9), reason: ChangeReason::Request };
        assert_eq!(line(None, gone, None), "/ | gone (left) | - | - | -");
        let lease = Some(NodeOwner::Lease(LeaseId(10)));
        assert!(line(lease, ServiceHealth::Jeopardy, None).starts_with("/ | jeopardy | lease "));
    }
}
