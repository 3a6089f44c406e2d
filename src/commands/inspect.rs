//! Shows the lease holders of a node and its locks, as the leader sees them now.

use clap::Args;
use leasehold_protocol::{id::SessionId, lock::LockMode, message::LockInfo, object::ObjectKind, path::NodePath};
use serde::Serialize;

use crate::{
    arguments,
    context::Context,
    duration,
    exit::CommandFailure,
    failure::inspect_failure,
    output::{Table, Text, visible},
};

/// `holders PATH`
#[derive(Debug, Args)]
pub(crate) struct HoldersArgs {
    /// Node to inspect
    #[arg(value_parser = arguments::path)]
    pub(crate) path: NodePath,
}

/// The lease holders of a node's objects, and the sessions that own its lock or wait for it.
#[derive(Debug, Serialize)]
pub(crate) struct HoldersAnswer {
    path: NodePath,
    holders: Vec<HolderRow>,
    /// Granted and waiting, in the order of arrival.
    locks: Vec<LockRow>,
}

/// A lock of the node, or a request for it.
#[derive(Debug, Serialize)]
struct LockRow {
    lock: u64,
    session: u64,
    name: String,
    mode: LockMode,
    /// `None` while it waits.
    token: Option<u64>,
    upgrading: bool,
    write_lease: bool,
    /// Whether its session has lost it. The node stays taken for the lock delay.
    lost: bool,
    remaining_ms: u64,
    #[serde(skip)]
    remaining: String,
}

impl LockRow {
    fn of(info: LockInfo) -> Self {
        Self {
            lock: info.lock.0,
            session: info.session.0,
            name: info.name,
            mode: info.mode,
            token: info.token.map(|token| token.0),
            upgrading: info.is_upgrading,
            write_lease: info.is_write_lease,
            lost: info.is_lost,
            remaining_ms: duration::millis(info.remaining),
            remaining: duration::rough(info.remaining),
        }
    }

    fn state_text(&self) -> String {
        let mode = match self.mode {
            LockMode::Shared => "shared",
            LockMode::Exclusive => "exclusive",
        };
        match self.token {
            None => format!("waits, {mode}"),
            Some(token) if self.lost => format!("lost, token {token}"),
            Some(token) if self.upgrading => format!("{mode}, token {token}, waits for its upgrade"),
            Some(token) if self.write_lease => format!("write lease, token {token}"),
            Some(token) => format!("{mode}, token {token}"),
        }
    }
}

/// An object lease.
#[derive(Debug, Serialize)]
struct HolderRow {
    session: u64,
    name: String,
    path: NodePath,
    object: &'static str,
    covering: bool,
    remaining_ms: u64,
    #[serde(skip)]
    remaining: String,
}

impl Text for HoldersAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        if self.holders.is_empty() && self.locks.is_empty() {
            out.extend_from_slice(format!("no leases or locks on {}\n", visible(self.path.as_str())).as_bytes());
        }
        if !self.holders.is_empty() {
            self.write_leases(out);
        }
        if !self.locks.is_empty() {
            let mut table = Table::new(&["LOCK", "SESSION", "NAME", "STATE", "REMAINING"]);
            for lock in &self.locks {
                let (id, session) = (lock.lock.to_string(), lock.session.to_string());
                table.row([id, session, visible(&lock.name), lock.state_text(), lock.remaining.clone()]);
            }
            table.write(out);
        }
    }
}

impl HoldersAnswer {
    fn write_leases(&self, out: &mut Vec<u8>) {
        let mut table = Table::new(&["SESSION", "NAME", "OBJECT", "LEASE", "REMAINING"]);
        for holder in &self.holders {
            table.row([
                holder.session.to_string(),
                visible(&holder.name),
                format!("{} ({})", visible(holder.path.as_str()), holder.object),
                if holder.covering { "assumed (covering)" } else { "granted" }.to_owned(),
                holder.remaining.clone(),
            ]);
        }
        table.write(out);
    }
}

impl HoldersArgs {
    pub(crate) async fn run(self, context: &Context) -> Result<HoldersAnswer, CommandFailure> {
        let client = context.client().await?;
        let holders = client.admin().holders(&self.path).await.map_err(|error| inspect_failure(&error))?;
        let locks = client.locks(&self.path).await.map_err(|error| inspect_failure(&error))?;
        let holders = holders.into_iter().map(|info| HolderRow {
            session: info.session.0,
            name: info.name,
            path: info.object.path,
            object: match info.object.kind {
                ObjectKind::Data => "data",
                ObjectKind::Children => "children",
            },
            covering: info.is_covering,
            remaining_ms: duration::millis(info.remaining),
            remaining: duration::rough(info.remaining),
        });
        let locks = locks.into_iter().map(LockRow::of).collect();
        Ok(HoldersAnswer { holders: holders.collect(), locks, path: self.path })
    }
}

/// A session for display. An ended session has no name, but its writes may still take effect.
pub(super) fn session_text(session: SessionId, name: &str) -> String {
    let name = if name.is_empty() { "a closed client".to_owned() } else { visible(name) };
    format!("{name} (session {session})")
}
