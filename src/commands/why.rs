//! Shows what the reads, writes and lock requests of a node wait for, as the leader sees it now.

use std::time::Duration;

use clap::Args;
use leasehold_protocol::{
    id::SessionId,
    lock::LockMode,
    message::{BlockedReadInfo, CoveringInfo, DelayReason, LockInfo, PendingWriteInfo},
    path::NodePath,
};
use serde::Serialize;

use super::inspect::session_text;
use crate::{
    arguments,
    context::Context,
    duration,
    exit::CommandFailure,
    failure::inspect_failure,
    output::{Text, visible},
};

/// `why PATH`
#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// Node to inspect
    #[arg(value_parser = arguments::path)]
    pub(crate) path: NodePath,
}

/// The waits of a node's writes, reads and lock requests.
#[derive(Debug, Serialize)]
pub(crate) struct WhyAnswer {
    path: NodePath,
    writes: Vec<WaitRow>,
    reads: Vec<BlockedReadRow>,
    /// In the order of arrival.
    locks: Vec<LockWaitRow>,
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
    /// Present if the holder has said that it delays its consent.
    delay: Option<DelayRow>,
    #[serde(skip)]
    sentence: String,
}

/// A volume in which the leader does not know the holder's object leases.
#[derive(Debug, Serialize)]
struct CoveringRow {
    volume: NodePath,
    /// `not_reported`: the holder has not sent its holder report to this leader yet. `not_tracked`:
    /// its object leases are not tracked.
    reason: &'static str,
}

impl From<CoveringInfo> for CoveringRow {
    fn from(CoveringInfo { volume, is_unreported }: CoveringInfo) -> Self {
        Self { volume, reason: if is_unreported { "not_reported" } else { "not_tracked" } }
    }
}

/// Why a holder delays its consent, as it says itself.
#[derive(Debug, Serialize)]
struct DelayRow {
    /// `in_use`: it still uses its copy. `flushing`: it flushes its write lease first.
    reason: &'static str,
    /// How long it still uses its copy, at most.
    at_most_ms: Option<u64>,
}

impl From<DelayReason> for DelayRow {
    fn from(reason: DelayReason) -> Self {
        match reason {
            DelayReason::InUse { at_most } => Self { reason: "in_use", at_most_ms: Some(duration::millis(at_most)) },
            DelayReason::Flushing => Self { reason: "flushing", at_most_ms: None },
        }
    }
}

/// The reads that wait for one owner of a write lease.
#[derive(Debug, Serialize)]
struct BlockedReadRow {
    path: NodePath,
    /// The number of reads.
    count: u64,
    owner: u64,
    owner_name: String,
    since_ms: u64,
    at_most_ms: u64,
    #[serde(skip)]
    sentence: String,
}

/// A request for a lock, and the owners that it waits for.
#[derive(Debug, Serialize)]
struct LockWaitRow {
    lock: u64,
    session: u64,
    name: String,
    mode: LockMode,
    owners: Vec<LockOwnerRow>,
    #[serde(skip)]
    sentence: String,
}

/// The owner of a lock. After a loss, its lock delay remains.
#[derive(Debug, Serialize)]
struct LockOwnerRow {
    session: u64,
    name: String,
    token: u64,
    lost: bool,
    remaining_ms: u64,
}

impl LockWaitRow {
    /// The requests that wait, of all locks of a node.
    fn all(path: &NodePath, locks: &[LockInfo]) -> Vec<Self> {
        let waiting = locks.iter().filter(|lock| lock.token.is_none() || lock.is_upgrading);
        waiting.map(|waiting| Self::of(path, waiting, locks)).collect()
    }

    fn of(path: &NodePath, waiting: &LockInfo, locks: &[LockInfo]) -> Self {
        let others = locks.iter().filter(|lock| lock.lock != waiting.lock);
        let owners: Vec<LockOwnerRow> = others.filter_map(LockOwnerRow::of).collect();
        let texts: Vec<String> = owners.iter().map(LockOwnerRow::text).collect();
        let what = if waiting.is_upgrading { "upgrade of a lock" } else { "lock" };
        let request =
            format!("{what} of {} by {}", visible(path.as_str()), session_text(waiting.session, &waiting.name));
        let sentence = match texts.is_empty() {
            true => format!("{request} waits for its turn"),
            false => format!("{request} waits for {}", texts.join(", ")),
        };
        Self {
            lock: waiting.lock.0,
            session: waiting.session.0,
            name: waiting.name.clone(),
            mode: waiting.mode,
            owners,
            sentence,
        }
    }
}

impl LockOwnerRow {
    /// `None` for a request that waits itself.
    fn of(info: &LockInfo) -> Option<Self> {
        Some(Self {
            session: info.session.0,
            name: info.name.clone(),
            token: info.token?.0,
            lost: info.is_lost,
            remaining_ms: duration::millis(info.remaining),
        })
    }

    fn text(&self) -> String {
        let owner = session_text(SessionId(self.session), &self.name);
        let remaining = duration::rough(Duration::from_millis(self.remaining_ms));
        match self.lost {
            true => format!("the lock delay of {owner}, {remaining} longer"),
            false => format!("{owner}, which has token {} and a lease for {remaining}", self.token),
        }
    }
}

impl Text for WhyAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        if self.writes.is_empty() && self.reads.is_empty() && self.locks.is_empty() {
            let path = visible(self.path.as_str());
            out.extend_from_slice(format!("no read, write or lock of {path} waits\n").as_bytes());
        }
        let (reads, locks) = (self.reads.iter(), self.locks.iter());
        let sentences = reads.map(|wait| &wait.sentence).chain(locks.map(|wait| &wait.sentence));
        for sentence in self.writes.iter().map(|wait| &wait.sentence).chain(sentences) {
            out.extend_from_slice(format!("{sentence}\n").as_bytes());
        }
    }
}

impl WhyArgs {
    pub(crate) async fn run(self, context: &Context) -> Result<WhyAnswer, CommandFailure> {
        let client = context.client().await?;
        let writes = client.admin().pending_writes(&self.path).await.map_err(|error| inspect_failure(&error))?;
        let reads = client.admin().blocked_reads(&self.path).await.map_err(|error| inspect_failure(&error))?;
        let locks = client.locks(&self.path).await.map_err(|error| inspect_failure(&error))?;
        let (writes, reads) = (writes.into_iter().map(WaitRow::from), reads.into_iter().map(BlockedReadRow::from));
        let locks = LockWaitRow::all(&self.path, &locks);
        Ok(WhyAnswer { writes: writes.collect(), reads: reads.collect(), locks, path: self.path })
    }
}

impl From<BlockedReadInfo> for BlockedReadRow {
    fn from(info: BlockedReadInfo) -> Self {
        Self {
            sentence: read_sentence(&info),
            path: info.path,
            count: info.reads,
            owner: info.holder.0,
            owner_name: info.holder_name,
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
            delay: info.delay.map(DelayRow::from),
        }
    }
}

fn sentence(info: &PendingWriteInfo) -> String {
    let write = format!(
        "write of {} by {} has waited {}",
        visible(info.path.as_str()),
        session_text(info.writer, &info.writer_name),
        duration::rough(info.since)
    );
    match info.holder {
        Some(holder) => {
            let (holder, at_most) = (session_text(holder, &info.holder_name), duration::rough(info.at_most));
            let assumed = info.covering.as_ref().map(assumed).unwrap_or_default();
            let comma = if assumed.is_empty() { "," } else { "" };
            let delay = info.delay.map(delay_text).unwrap_or_default();
            format!("{write} for {holder}{assumed}{comma} at most {at_most} longer{delay}")
        }
        None => format!("{write} for earlier writes or for its commit"),
    }
}

/// What the leader assumes about a covering holder, and why.
fn assumed(covering: &CoveringInfo) -> String {
    let volume = visible(covering.volume.as_str());
    let why = match covering.is_unreported {
        true => "its holder report has not arrived",
        false => "its object leases are not tracked",
    };
    format!(", a covering holder of volume {volume} ({why}),")
}

/// Why the holder has not consented yet, as it says itself.
fn delay_text(reason: DelayReason) -> String {
    match reason {
        DelayReason::InUse { at_most } => format!("; it still uses its copy, for {} at most", duration::rough(at_most)),
        DelayReason::Flushing => "; it flushes its write lease first".to_owned(),
    }
}

fn read_sentence(info: &BlockedReadInfo) -> String {
    let (path, since) = (visible(info.path.as_str()), duration::rough(info.since));
    let reads = match info.reads {
        1 => format!("1 read of {path} has waited {since}"),
        more => format!("{more} reads of {path} have waited, the first {since}"),
    };
    let owner = session_text(info.holder, &info.holder_name);
    format!("{reads}, for {owner} to flush its write lease, at most {} longer", duration::rough(info.at_most))
}

#[cfg(test)]
mod tests {
    use leasehold_protocol::id::{LockId, Token};

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
        let flush = "for edit@h:2 (session 3) to flush its write lease, at most 6.9 s longer";
        assert_eq!(read_sentence(&info), format!("3 reads of /a have waited, the first 3.2 s, {flush}"));
        let one = BlockedReadInfo { reads: 1, ..info };
        assert_eq!(read_sentence(&one), format!("1 read of /a has waited 3.2 s, {flush}"));
    }

    #[test]
    fn waiting_lock_request_names_owner_and_token() {
        let path = NodePath::parse("/a").expect("a valid path");
        let lock = |id, token, is_lost| LockInfo {
            lock: LockId(id),
            session: SessionId(id + 10),
            name: format!("lock@h:{id}"),
            mode: LockMode::Exclusive,
            token,
            is_upgrading: false,
            is_write_lease: false,
            is_lost,
            remaining: Duration::from_millis(3_200),
        };
        let sentences = |locks: &[LockInfo]| -> Vec<String> {
            LockWaitRow::all(&path, locks).into_iter().map(|row| row.sentence).collect()
        };
        let waits = "lock of /a by lock@h:2 (session 12) waits for";
        let owned = sentences(&[lock(1, Some(Token(7)), false), lock(2, None, false)]);
        assert_eq!(owned, [format!("{waits} lock@h:1 (session 11), which has token 7 and a lease for 3.2 s")]);
        let lost = sentences(&[lock(1, Some(Token(7)), true), lock(2, None, false)]);
        assert_eq!(lost, [format!("{waits} the lock delay of lock@h:1 (session 11), 3.2 s longer")]);
        assert_eq!(sentences(&[lock(2, None, false)]), [format!("{waits} its turn")]);
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
            delay: None,
        };
        let write = "write of /a by put@h:1 (session 4) has waited 3.2 s for shell@h:2 (session 3)";
        assert_eq!(sentence(&info), format!("{write}, at most 6.9 s longer"));
        let covered = |is_unreported| {
            let covering = Some(CoveringInfo { volume: NodePath::root(), is_unreported });
            sentence(&PendingWriteInfo { covering, ..info.clone() })
        };
        let unreported = ", a covering holder of volume / (its holder report has not arrived)";
        assert_eq!(covered(true), format!("{write}{unreported}, at most 6.9 s longer"));
        let untracked = ", a covering holder of volume / (its object leases are not tracked)";
        assert_eq!(covered(false), format!("{write}{untracked}, at most 6.9 s longer"));
        let delayed = |reason| sentence(&PendingWriteInfo { delay: Some(reason), ..info.clone() });
        let in_use = delayed(DelayReason::InUse { at_most: Duration::from_millis(1_900) });
        assert_eq!(in_use, format!("{write}, at most 6.9 s longer; it still uses its copy, for 1.9 s at most"));
        let flushing = "; it flushes its write lease first";
        assert_eq!(delayed(DelayReason::Flushing), format!("{write}, at most 6.9 s longer{flushing}"));
    }
}
