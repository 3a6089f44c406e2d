//! Shows the lease holders of a node, its locks, and what its reads and writes wait for, as the
//! leader sees it now.

use clap::Args;
use leasehold_protocol::{
    id::SessionId,
    lock::LockMode,
    message::{BlockedReadInfo, CoveringInfo, LockInfo, PendingWriteInfo},
    object::ObjectKind,
    path::NodePath,
};
use serde::Serialize;

use super::inspect_failure;
use crate::{
    cli,
    context::Context,
    duration,
    exit::CommandFailure,
    output::{Table, Text, visible},
};

/// `holders PATH`
#[derive(Debug, Args)]
pub(crate) struct HoldersArgs {
    /// Node to inspect
    #[arg(value_parser = cli::path)]
    pub(crate) path: NodePath,
}

/// The lease holders of a node's objects, and the sessions that own its lock or wait for it.
#[derive(Debug, Serialize)]
pub(crate) struct HoldersAnswer {
    path: NodePath,
    holders: Vec<HolderRow>,
    /// In the order of arrival.
    holds: Vec<LockRow>,
}

/// A lock of the node, or a request for it.
#[derive(Debug, Serialize)]
struct LockRow {
    hold: u64,
    session: u64,
    name: String,
    mode: LockMode,
    /// `None` while it waits.
    token: Option<u64>,
    upgrading: bool,
    /// Whether it is a write lease.
    caches: bool,
    /// Whether its session has lost it. The node stays taken for the lock delay.
    lost: bool,
    remaining_ms: u64,
    #[serde(skip)]
    remaining: String,
}

impl LockRow {
    fn of(info: LockInfo) -> Self {
        Self {
            hold: info.lock.0,
            session: info.session.0,
            name: info.name,
            mode: info.mode,
            token: info.token.map(|token| token.0),
            upgrading: info.is_upgrading,
            caches: info.is_write_lease,
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
            Some(token) if self.upgrading => format!("{mode}, token {token}, waits to be alone"),
            Some(token) if self.caches => format!("write lease, token {token}"),
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
        if self.holders.is_empty() {
            out.extend_from_slice(format!("nobody holds a lease on {}\n", visible(self.path.as_str())).as_bytes());
        } else {
            self.write_leases(out);
        }
        if !self.holds.is_empty() {
            let mut table = Table::new(&["HOLD", "SESSION", "NAME", "STANDING", "REMAINING"]);
            for hold in &self.holds {
                let (id, session) = (hold.hold.to_string(), hold.session.to_string());
                table.row([id, session, visible(&hold.name), hold.state_text(), hold.remaining.clone()]);
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
        let holds = client.locks(&self.path).await.map_err(|error| inspect_failure(&error))?;
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
        let holds = holds.into_iter().map(LockRow::of).collect();
        Ok(HoldersAnswer { holders: holders.collect(), holds, path: self.path })
    }
}

/// `why PATH`
#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// Node to inspect
    #[arg(value_parser = cli::path)]
    pub(crate) path: NodePath,
}

/// The waits of a node's writes and reads.
#[derive(Debug, Serialize)]
pub(crate) struct WhyAnswer {
    path: NodePath,
    waits: Vec<WaitRow>,
    reads: Vec<BlockedReadRow>,
}

/// A pending write and one lease holder that it waits for.
#[derive(Debug, Serialize)]
struct WaitRow {
    path: NodePath,
    writer: u64,
    writer_name: String,
    holder: Option<u64>,
    holder_name: Option<String>,
    since_ms: u64,
    at_most_ms: Option<u64>,
    /// Present if the holder is a covering holder: the write waits for it even if it has no copy.
    covering: Option<CoveringRow>,
    #[serde(skip)]
    sentence: String,
}

/// A volume in which the leader does not know the holder's object leases.
#[derive(Debug, Serialize)]
struct CoveringRow {
    volume: NodePath,
    /// `not_listed`: the holder has not sent its holder report to this leader yet. `not_tracked`:
    /// its object leases are not tracked.
    reason: &'static str,
}

impl From<CoveringInfo> for CoveringRow {
    fn from(CoveringInfo { volume, is_unreported }: CoveringInfo) -> Self {
        Self { volume, reason: if is_unreported { "not_listed" } else { "not_tracked" } }
    }
}

/// The reads that wait for one owner of a write lease.
#[derive(Debug, Serialize)]
struct BlockedReadRow {
    path: NodePath,
    /// The number of reads.
    reads: u64,
    holder: u64,
    holder_name: String,
    since_ms: u64,
    at_most_ms: u64,
    #[serde(skip)]
    sentence: String,
}

impl Text for WhyAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        if self.waits.is_empty() && self.reads.is_empty() {
            out.extend_from_slice(format!("no read or write of {} waits\n", visible(self.path.as_str())).as_bytes());
        }
        let writes = self.waits.iter().map(|wait| &wait.sentence);
        for sentence in writes.chain(self.reads.iter().map(|wait| &wait.sentence)) {
            out.extend_from_slice(format!("{sentence}\n").as_bytes());
        }
    }
}

impl WhyArgs {
    pub(crate) async fn run(self, context: &Context) -> Result<WhyAnswer, CommandFailure> {
        let client = context.client().await?;
        let waits = client.admin().pending_writes(&self.path).await.map_err(|error| inspect_failure(&error))?;
        let reads = client.admin().blocked_reads(&self.path).await.map_err(|error| inspect_failure(&error))?;
        let (waits, reads) = (waits.into_iter().map(WaitRow::from), reads.into_iter().map(BlockedReadRow::from));
        Ok(WhyAnswer { waits: waits.collect(), reads: reads.collect(), path: self.path })
    }
}

impl From<BlockedReadInfo> for BlockedReadRow {
    fn from(info: BlockedReadInfo) -> Self {
        Self {
            sentence: read_sentence(&info),
            path: info.path,
            reads: info.reads,
            holder: info.holder.0,
            holder_name: info.holder_name,
            since_ms: duration::millis(info.since),
            at_most_ms: duration::millis(info.at_most),
        }
    }
}

impl From<PendingWriteInfo> for WaitRow {
    fn from(info: PendingWriteInfo) -> Self {
        Self {
            sentence: sentence(&info),
            path: info.path,
            writer: info.writer.0,
            writer_name: info.writer_name,
            holder: info.holder.map(|holder| holder.0),
            holder_name: info.holder.map(|_| info.holder_name),
            since_ms: duration::millis(info.since),
            // Only the wait for a holder is bounded by a lease.
            at_most_ms: info.holder.map(|_| duration::millis(info.at_most)),
            covering: info.covering.map(CoveringRow::from),
        }
    }
}

/// A session for display. An ended session has no name, but its writes may still take effect.
fn who(session: SessionId, name: &str) -> String {
    let name = if name.is_empty() { "a client that has gone".to_owned() } else { visible(name) };
    format!("{name} (session {session})")
}

fn sentence(info: &PendingWriteInfo) -> String {
    let write = format!(
        "write of {} by {} has waited {}",
        visible(info.path.as_str()),
        who(info.writer, &info.writer_name),
        duration::rough(info.since)
    );
    match info.holder {
        Some(holder) => {
            let (holder, at_most) = (who(holder, &info.holder_name), duration::rough(info.at_most));
            let assumed = info.covering.as_ref().map(assumed).unwrap_or_default();
            format!("{write} for {holder}{assumed}, at most {at_most} longer")
        }
        None => format!("{write} for its turn, or to be committed"),
    }
}

/// What the leader assumes about a covering holder, and why.
fn assumed(covering: &CoveringInfo) -> String {
    let volume = visible(covering.volume.as_str());
    let why = match covering.is_unreported {
        true => "it has not told this leader yet what it holds",
        false => "its leases there are not tracked one by one",
    };
    format!(", which may hold anything in {volume} ({why})")
}

fn read_sentence(info: &BlockedReadInfo) -> String {
    let reads = match info.reads {
        1 => "1 read".to_owned(),
        more => format!("{more} reads"),
    };
    format!(
        "{reads} of {}, the first for {}: waiting for {} to flush what it has under a write lease, at most {} longer",
        visible(info.path.as_str()),
        duration::rough(info.since),
        who(info.holder, &info.holder_name),
        duration::rough(info.at_most)
    )
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn reads_that_wait_are_counted_by_the_holder_that_they_wait_for() {
        let info = BlockedReadInfo {
            path: NodePath::parse("/a").expect("a valid path"),
            reads: 3,
            holder: SessionId(3),
            holder_name: "edit@h:2".to_owned(),
            since: Duration::from_millis(3_200),
            at_most: Duration::from_millis(6_900),
        };
        let expected = "3 reads of /a, the first for 3.2 s: waiting for edit@h:2 (session 3) to flush what it has under a write \
                        lease, at most 6.9 s longer";
        assert_eq!(read_sentence(&info), expected);
    }

    #[test]
    fn a_wait_names_the_client_and_the_seconds_left() {
        let info = PendingWriteInfo {
            path: NodePath::parse("/a").expect("a valid path"),
            writer: SessionId(4),
            writer_name: "put@h:1".to_owned(),
            holder: Some(SessionId(3)),
            holder_name: "shell@h:2".to_owned(),
            since: Duration::from_millis(3_200),
            at_most: Duration::from_millis(6_900),
            covering: None,
        };
        let write = "write of /a by put@h:1 (session 4) has waited 3.2 s for shell@h:2 (session 3)";
        assert_eq!(sentence(&info), format!("{write}, at most 6.9 s longer"));
        let covered = |is_unreported| {
            let covering = Some(CoveringInfo { volume: NodePath::root(), is_unreported });
            sentence(&PendingWriteInfo { covering, ..info.clone() })
        };
        let unlisted = ", which may hold anything in / (it has not told this leader yet what it holds)";
        assert_eq!(covered(true), format!("{write}{unlisted}, at most 6.9 s longer"));
        let untracked = ", which may hold anything in / (its leases there are not tracked one by one)";
        assert_eq!(covered(false), format!("{write}{untracked}, at most 6.9 s longer"));
    }
}
