//! Key leases: grant, keep-alive, timetolive, revoke, list. Commands and output are those of
//! etcdctl.

use std::time::Duration;

use clap::{Args, Subcommand};
use leasehold_client_cache::{Client, LeaseId, LeaseInfo, LeaseName, LeaseRef, NodePath};
use serde::Serialize;

use super::boxed;
use crate::{
    background::{
        BackgroundTask,
        keep_alive::{KeepAliveAnswer, seconds},
    },
    context::Context,
    duration,
    exit::CommandFailure,
    failure::{inspect_failure, lease_failure, write_failure},
    lease_id::{self, hex},
    output::{CommandAnswer, Text, visible},
};

/// `lease …`
#[derive(Debug, Subcommand)]
pub(crate) enum LeaseCommand {
    /// Grant a lease; nodes that are put with it are removed when it ends
    Grant(GrantArgs),
    /// Renew a lease until stopped (in the shell: until the shell ends)
    KeepAlive(KeepAliveArgs),
    /// Show the remaining time of a lease
    Timetolive(TimeToLiveArgs),
    /// Revoke a lease; its attached nodes are removed at once
    Revoke(LeaseArgs),
    /// List all leases
    List,
}

/// `lease grant TTL`
#[derive(Debug, Args)]
pub(crate) struct GrantArgs {
    /// How long the lease lasts after its grant and after each renewal: seconds, or 500ms, 10s, 2m,
    /// 1h
    #[arg(value_parser = duration::seconds, allow_negative_numbers = true, required_unless_present = "until")]
    ttl: Option<Duration>,
    /// Instead of TTL: a point in time, such as 2026-12-24T18:00:00Z. The TTL is the time until
    /// then, by this machine's clock
    #[arg(long, value_name = "TIME", value_parser = duration::until, conflicts_with = "ttl")]
    until: Option<Duration>,
    /// Id in hexadecimal [default: an unused id]
    #[arg(long, value_name = "ID", value_parser = lease_id::parse)]
    id: Option<LeaseId>,
    /// Name, of 1 to 256 bytes without control characters; refused while another lease has it
    #[arg(long)]
    name: Option<LeaseName>,
}

/// `lease keep-alive ID`
#[derive(Debug, Args)]
pub(crate) struct KeepAliveArgs {
    #[command(flatten)]
    lease: LeaseArgs,
    /// Renew it once and exit
    #[arg(long)]
    once: bool,
}

/// `lease timetolive ID`
#[derive(Debug, Args)]
pub(crate) struct TimeToLiveArgs {
    #[command(flatten)]
    lease: LeaseArgs,
    /// Also show the attached nodes
    #[arg(long)]
    keys: bool,
}

/// A lease: by its id, or by its name.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(crate) struct LeaseArgs {
    /// The lease, in hexadecimal
    #[arg(value_parser = lease_id::parse)]
    id: Option<LeaseId>,
    /// The lease that has this name
    #[arg(long)]
    name: Option<LeaseName>,
}

impl LeaseArgs {
    /// The lease. The parser has checked that one of the two is given.
    fn reference(&self) -> Option<LeaseRef> {
        self.id.map(LeaseRef::Id).or_else(|| self.name.clone().map(LeaseRef::Name))
    }

    fn required(&self) -> Result<LeaseRef, CommandFailure> {
        self.reference().ok_or_else(|| CommandFailure::usage("neither the id nor the name of a lease is given"))
    }
}

/// Like [`seconds`], but always with the unit.
fn with_unit(span: Duration) -> String {
    if span.subsec_nanos() == 0 { format!("{}s", span.as_secs()) } else { seconds(span) }
}

/// A granted lease.
#[derive(Debug, Serialize)]
struct GrantAnswer {
    id: String,
    name: Option<LeaseName>,
    ttl_ms: u64,
    #[serde(skip)]
    ttl: Duration,
}

impl Text for GrantAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("lease {} granted with TTL({})\n", self.id, with_unit(self.ttl)).as_bytes());
    }
}

/// The state of a lease.
#[derive(Debug, Serialize)]
struct LeaseAnswer {
    id: String,
    name: Option<LeaseName>,
    ttl_ms: u64,
    remaining_ms: u64,
    /// `None` without `--keys`.
    keys: Option<Vec<NodePath>>,
    #[serde(skip)]
    ttl: Duration,
    #[serde(skip)]
    remaining: Duration,
}

impl LeaseAnswer {
    fn new(info: LeaseInfo, with_nodes: bool) -> Self {
        Self {
            id: hex(info.id),
            name: info.name,
            ttl_ms: duration::millis(info.ttl),
            remaining_ms: duration::millis(info.remaining),
            keys: with_nodes.then_some(info.nodes),
            ttl: info.ttl,
            remaining: info.remaining,
        }
    }

    /// Truncated to whole seconds, as in etcd, if the term has whole seconds.
    fn remaining(&self) -> String {
        match self.ttl.subsec_nanos() {
            0 => format!("{}s", self.remaining.as_secs()),
            _ => format!("{}ms", self.remaining.as_millis()),
        }
    }
}

impl Text for LeaseAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        let (ttl, remaining) = (with_unit(self.ttl), self.remaining());
        let mut line = format!("lease {} granted with TTL({ttl}), remaining({remaining})", self.id);
        if let Some(keys) = &self.keys {
            let keys: Vec<String> = keys.iter().map(|path| visible(path.as_str())).collect();
            line.push_str(&format!(", attached keys([{}])", keys.join(" ")));
        }
        line.push('\n');
        out.extend_from_slice(line.as_bytes());
    }
}

/// A revoked lease.
#[derive(Debug, Serialize)]
struct RevokeAnswer {
    /// `None` if the lease was given by its name.
    id: Option<String>,
    /// `None` if the lease was given by its id.
    name: Option<LeaseName>,
    revision: u64,
    removed: u64,
    #[serde(skip)]
    lease: LeaseRef,
}

impl RevokeAnswer {
    fn new(lease: LeaseRef, revision: u64, removed: u64) -> Self {
        let (id, name) = match &lease {
            LeaseRef::Id(id) => (Some(hex(*id)), None),
            LeaseRef::Name(name) => (None, Some(name.clone())),
        };
        Self { id, name, revision, removed, lease }
    }
}

impl Text for RevokeAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("lease {} revoked\n", self.lease).as_bytes());
    }
}

#[derive(Debug, Serialize)]
struct LeaseListAnswer {
    leases: Vec<ListedLease>,
}

#[derive(Debug, Serialize)]
struct ListedLease {
    id: String,
    name: Option<LeaseName>,
    ttl_ms: u64,
    remaining_ms: u64,
}

impl Text for LeaseListAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("found {} leases\n", self.leases.len()).as_bytes());
        for lease in &self.leases {
            let name = lease.name.as_ref().map(|name| format!(" {}", visible(name.as_str()))).unwrap_or_default();
            out.extend_from_slice(format!("{}{name}\n", lease.id).as_bytes());
        }
    }
}

impl LeaseCommand {
    /// The subject of this command's errors.
    pub(crate) fn subject(&self) -> String {
        let lease = match self {
            Self::List => None,
            Self::Grant(GrantArgs { id, name, .. }) => {
                id.map(LeaseRef::Id).or_else(|| name.clone().map(LeaseRef::Name))
            }
            Self::KeepAlive(KeepAliveArgs { lease, .. })
            | Self::Timetolive(TimeToLiveArgs { lease, .. })
            | Self::Revoke(lease) => lease.reference(),
        };
        lease.map_or_else(|| "lease".to_owned(), |lease| format!("lease {lease}"))
    }

    pub(crate) async fn run(self, context: &Context) -> Result<Box<dyn CommandAnswer>, CommandFailure> {
        let client = context.client().await?;
        match self {
            Self::Grant(GrantArgs { ttl, until, id, name }) => {
                let ttl = ttl.or(until).unwrap_or_default();
                boxed(grant(client, ttl, id, name).await)
            }
            Self::KeepAlive(KeepAliveArgs { lease, once }) => boxed(keep_alive(context, lease.required()?, once).await),
            Self::Timetolive(TimeToLiveArgs { lease, keys }) => {
                let lease = lease.required()?;
                let info = client.lease(lease.clone());
                let info = if keys { info.with_nodes().await } else { info.await };
                let info = info.map_err(|error| inspect_failure(&error))?;
                boxed(
                    info.map(|info| LeaseAnswer::new(info, keys)).ok_or_else(|| CommandFailure::lease_not_found(lease)),
                )
            }
            Self::Revoke(lease) => {
                let lease = lease.required()?;
                let written = client.revoke_lease(lease.clone()).await.map_err(|error| write_failure(&error))?;
                boxed(Ok(RevokeAnswer::new(lease, written.revision.0, written.removed)))
            }
            Self::List => {
                let leases = client.admin().leases().await.map_err(|error| inspect_failure(&error))?;
                let leases = leases.into_iter().map(|info| ListedLease {
                    id: hex(info.id),
                    name: info.name,
                    ttl_ms: duration::millis(info.ttl),
                    remaining_ms: duration::millis(info.remaining),
                });
                boxed(Ok(LeaseListAnswer { leases: leases.collect() }))
            }
        }
    }
}

async fn grant(
    client: &Client,
    ttl: Duration,
    id: Option<LeaseId>,
    name: Option<LeaseName>,
) -> Result<GrantAnswer, CommandFailure> {
    let mut grant = client.grant_lease(ttl);
    if let Some(id) = id {
        grant = grant.id(id);
    }
    if let Some(name) = &name {
        grant = grant.name(name);
    }
    let id = grant.await.map_err(|error| write_failure(&error))?;
    Ok(GrantAnswer { id: hex(id), name, ttl_ms: duration::millis(ttl), ttl })
}

async fn keep_alive(context: &Context, lease: LeaseRef, once: bool) -> Result<KeepAliveAnswer, CommandFailure> {
    let client = context.client().await?;
    let info = client.lease(lease.clone()).await.map_err(|error| inspect_failure(&error))?;
    let LeaseInfo { ttl, .. } = info.ok_or_else(|| CommandFailure::lease_not_found(lease.clone()))?;
    let lease = client.keep_lease_alive(lease).await.map_err(|error| lease_failure(&error))?;
    let renewal = KeepAliveAnswer::new(lease.id(), ttl, lease.remaining());
    if !once {
        context.set_background_task(BackgroundTask::Lease { lease, ttl });
    }
    Ok(renewal)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(answer: &dyn Text) -> String {
        let mut out = Vec::new();
        answer.text(&mut out);
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn lines_are_those_of_etcdctl() {
        let id = LeaseId(0x694d_8141_7acd_4754);
        let (ttl, remaining) = (Duration::from_secs(60), Duration::from_millis(58_900));
        let granted = GrantAnswer { id: hex(id), name: None, ttl_ms: 60_000, ttl };
        assert_eq!(text(&granted), "lease 694d81417acd4754 granted with TTL(60s)\n");
        let renewed = KeepAliveAnswer::new(id, ttl, remaining);
        assert_eq!(text(&renewed), "lease 694d81417acd4754 keepalived with TTL(60)\n");
        let nodes = ["/a", "/b"].map(|node| NodePath::parse(node).expect("a valid path")).to_vec();
        let (name, incarnation) = (Some(LeaseName::parse("server1Lease").expect("a name")), Default::default());
        let info = LeaseInfo { id, name: name.clone(), incarnation, ttl, remaining, nodes };
        let line = "lease 694d81417acd4754 granted with TTL(60s), remaining(58s)";
        assert_eq!(text(&LeaseAnswer::new(info.clone(), false)), format!("{line}\n"));
        assert_eq!(text(&LeaseAnswer::new(info, true)), format!("{line}, attached keys([/a /b])\n"));
        assert_eq!(text(&RevokeAnswer::new(id.into(), 7, 1)), "lease 694d81417acd4754 revoked\n");
        let by_name = RevokeAnswer::new(name.clone().expect("it has one").into(), 7, 1);
        assert_eq!(text(&by_name), "lease \"server1Lease\" revoked\n");
        let listed = |name| ListedLease { id: hex(id), name, ttl_ms: 60_000, remaining_ms: 58_900 };
        let list = LeaseListAnswer { leases: vec![listed(None), listed(name)] };
        assert_eq!(text(&list), "found 2 leases\n694d81417acd4754\n694d81417acd4754 server1Lease\n");
    }

    #[test]
    fn a_term_below_a_second_is_not_cut_to_nothing() {
        let (id, ttl) = (LeaseId(1), Duration::from_millis(1_500));
        let (remaining, incarnation) = (Duration::from_millis(900), Default::default());
        let info = LeaseInfo { id, name: None, incarnation, ttl, remaining, nodes: Vec::new() };
        let line = "lease 0000000000000001 granted with TTL(1500ms), remaining(900ms)\n";
        assert_eq!(text(&LeaseAnswer::new(info, false)), line);
        let renewed = KeepAliveAnswer::new(id, ttl, ttl);
        assert_eq!(text(&renewed), "lease 0000000000000001 keepalived with TTL(1500ms)\n");
    }
}
