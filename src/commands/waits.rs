//! Says for whom a write or a lock request waits.
//!
//! After a second of waiting, one line on standard error names the client, and for a write the time
//! that it may still take. If the time runs out, the error names them too. The answers are those of
//! `why` and `holders`. If the leader does not answer, nothing is said: these lines are a help, and
//! change no outcome.

use std::{fmt, pin::pin, time::Duration};

use leasehold_client_cache::{
    Client, LockError, LockInfo, NodePath, PendingWriteInfo, Refusal, SessionId, WriteError, WriteRefusal,
};
use tokio::time::{Instant, interval_at, timeout};

use super::inspect::session_text;
use crate::{
    context::Context,
    duration,
    exit::CommandFailure,
    failure::{lock_failure, write_failure},
    output::{Output, visible},
};

/// How long a request waits in silence.
const SILENCE: Duration = Duration::from_secs(1);

/// Time limit of a question to the leader after the request has failed.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);

/// The most paths of one write that are asked about.
const PATHS_MAX: usize = 8;

/// The lease holders that a write waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Blockers {
    session: SessionId,
    name: String,
    /// The number of further sessions.
    others: usize,
    /// The longest time that the write may still wait.
    at_most: Duration,
}

impl Blockers {
    /// The holders that `writer` waits for. A write that waits for earlier writes waits for their
    /// holders.
    fn of(writer: Option<SessionId>, rows: Vec<PendingWriteInfo>) -> Option<Self> {
        let is_waiting = rows.iter().any(|row| Some(row.writer) == writer);
        let own = rows.iter().any(|row| Some(row.writer) == writer && row.holder.is_some());
        let rows = rows.into_iter().filter(|row| is_waiting && (!own || Some(row.writer) == writer));
        let mut holders: Vec<(SessionId, String, Duration)> =
            rows.filter_map(|row| Some((row.holder?, row.holder_name, row.at_most))).collect();
        // First the holder that lasts longest.
        holders.sort_by_key(|(session, _, at_most)| (std::cmp::Reverse(*at_most), *session));
        holders.dedup_by_key(|(session, ..)| *session);
        let others = holders.len().saturating_sub(1);
        let (session, name, at_most) = holders.into_iter().next()?;
        Some(Self { session, name, others, at_most })
    }

    fn after(self, elapsed: Duration) -> Self {
        Self { at_most: self.at_most.saturating_sub(elapsed), ..self }
    }
}

impl fmt::Display for Blockers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let holder = session_text(self.session, &self.name);
        let others = others_text(self.others);
        write!(f, "waiting for {holder}{others}, at most {} longer", duration::rough(self.at_most))
    }
}

fn others_text(others: usize) -> String {
    match others {
        0 => String::new(),
        1 => " and 1 other".to_owned(),
        others => format!(" and {others} others"),
    }
}

/// Runs a write of these nodes. Says for whom it waits.
pub(crate) async fn write<T>(
    context: &Context,
    paths: &[&NodePath],
    write: impl IntoFuture<Output = Result<T, WriteError>>,
) -> Result<T, CommandFailure> {
    let client = context.client().await?;
    let Some(path) = paths.first() else { return write.await.map_err(|error| write_failure(&error)) };
    let mut write = pin!(write.into_future());
    let mut checks = interval_at(Instant::now() + SILENCE, SILENCE);
    let mut last: Option<(Blockers, Instant)> = None;
    let written = loop {
        let check = async {
            checks.tick().await;
            blockers(client, paths).await
        };
        tokio::select! {
            biased;
            written = &mut write => break written,
            found = check => {
                if let (Some(found), None) = (&found, &last) {
                    Output::notice(&format!("{}: {found}", visible(path.as_str())));
                }
                last = found.map(|found| (found, Instant::now())).or(last);
            }
        }
    };
    let error = match written {
        Ok(written) => return Ok(written),
        Err(error) => error,
    };
    let failure = write_failure(&error);
    if !matches!(error, WriteError::TimedOut { .. } | WriteError::NotSent { .. }) {
        return Err(failure);
    }
    let now = timeout(ANSWER_TIMEOUT, blockers(client, paths)).await.ok().flatten();
    let found = now.or_else(|| last.map(|(found, at)| found.after(at.elapsed())));
    let failure = failure.with_subject(path.as_str());
    Err(match found {
        Some(found) => failure.and(&format!("{found}; see leasehold why {path}")),
        None => failure,
    })
}

async fn blockers(client: &Client, paths: &[&NodePath]) -> Option<Blockers> {
    for path in paths.iter().take(PATHS_MAX) {
        let found = Blockers::of(client.session(), client.admin().pending_writes(*path).await.ok()?);
        if found.is_some() {
            return found;
        }
    }
    None
}

/// The lock owners that a request waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owners {
    session: SessionId,
    name: String,
    /// The number of further owners.
    others: usize,
    /// How long the lock delay lasts, if the owner has lost the lock.
    delay: Option<Duration>,
}

impl Owners {
    fn of(waiting: Option<SessionId>, locks: Vec<LockInfo>) -> Option<Self> {
        let mut owners = locks.into_iter().filter(|lock| lock.token.is_some() && Some(lock.session) != waiting);
        let first = owners.next()?;
        let delay = first.is_lost.then_some(first.remaining);
        Some(Self { session: first.session, name: first.name, others: owners.count(), delay })
    }
}

impl fmt::Display for Owners {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let owner = session_text(self.session, &self.name);
        match self.delay {
            Some(delay) => write!(f, "lost by {owner}; its lock delay lasts {} longer", duration::rough(delay)),
            None => write!(f, "locked by {owner}{}", others_text(self.others)),
        }
    }
}

/// Runs a request for a lock. Says for whom it waits.
pub(crate) async fn lock<T>(
    context: &Context,
    path: &NodePath,
    request: impl IntoFuture<Output = Result<T, LockError>>,
) -> Result<T, CommandFailure> {
    let client = context.client().await?;
    let owners = || async { Owners::of(client.session(), client.locks(path).await.ok()?) };
    let mut request = pin!(request.into_future());
    let mut checks = interval_at(Instant::now() + SILENCE, SILENCE);
    let mut is_told = false;
    let locked = loop {
        let check = async {
            checks.tick().await;
            owners().await
        };
        tokio::select! {
            biased;
            locked = &mut request => break locked,
            found = check, if !is_told => {
                if let Some(found) = found {
                    Output::notice(&format!("{}: waiting for the lock; {found}", visible(path.as_str())));
                    is_told = true;
                }
            }
        }
    };
    let error = match locked {
        Ok(locked) => return Ok(locked),
        Err(error) => error,
    };
    let failure = lock_failure(&error).with_subject(path.as_str());
    let is_locked = match &error {
        LockError::NotGranted { .. } | LockError::TimedOut { .. } => true,
        LockError::Write(WriteError::Refused(Refusal::Write(refusal))) => {
            matches!(refusal, WriteRefusal::Locked { .. })
        }
        _ => false,
    };
    if !is_locked {
        return Err(failure);
    }
    let found = timeout(ANSWER_TIMEOUT, owners()).await.ok().flatten();
    Err(match found {
        Some(found) => failure.and(&found.to_string()),
        None => failure,
    })
}

#[cfg(test)]
mod tests {
    use leasehold_client_cache::{LockId, LockMode, Token};

    use super::*;

    fn row(writer: u64, holder: Option<(u64, u64)>) -> PendingWriteInfo {
        PendingWriteInfo {
            path: NodePath::root(),
            writer: SessionId(writer),
            writer_name: String::new(),
            holder: holder.map(|(session, _)| SessionId(session)),
            holder_name: holder.map_or_else(String::new, |(session, _)| format!("shell@h:{session}")),
            since: Duration::ZERO,
            at_most: Duration::from_secs(holder.map_or(0, |(_, seconds)| seconds)),
            covering: None,
            delay: None,
        }
    }

    fn text(rows: Vec<PendingWriteInfo>) -> Option<String> {
        Blockers::of(Some(SessionId(1)), rows).map(|blockers| blockers.to_string())
    }

    #[test]
    fn write_names_the_holder_that_lasts_longest() {
        let rows = vec![row(1, Some((5, 3))), row(1, Some((6, 7))), row(2, Some((9, 9)))];
        let expected = "waiting for shell@h:6 (session 6) and 1 other, at most 7.0 s longer";
        assert_eq!(text(rows).as_deref(), Some(expected));
        assert_eq!(text(vec![row(2, Some((9, 9)))]), None, "another client's write");
    }

    #[test]
    fn write_behind_another_write_names_the_holder_of_that_write() {
        let rows = vec![row(2, Some((9, 4))), row(1, None)];
        assert_eq!(text(rows).as_deref(), Some("waiting for shell@h:9 (session 9), at most 4.0 s longer"));
        assert_eq!(text(vec![row(1, None)]), None, "it is being committed");
    }

    #[test]
    fn lock_request_names_owner_or_lock_delay() {
        let lock = |session, token, is_lost| LockInfo {
            lock: LockId(session),
            session: SessionId(session),
            name: "lock@h:1".to_owned(),
            mode: LockMode::Shared,
            token: Some(Token(token)).filter(|_| token > 0),
            is_upgrading: false,
            is_write_lease: false,
            is_lost,
            remaining: Duration::from_secs(2),
        };
        let text = |locks| Owners::of(Some(SessionId(1)), locks).map(|owners| owners.to_string());
        let locks = vec![lock(5, 7, false), lock(6, 8, false), lock(1, 0, false)];
        assert_eq!(text(locks).as_deref(), Some("locked by lock@h:1 (session 5) and 1 other"));
        let lost = text(vec![lock(5, 7, true)]);
        assert_eq!(lost.as_deref(), Some("lost by lock@h:1 (session 5); its lock delay lasts 2.0 s longer"));
        assert_eq!(text(vec![lock(1, 0, false)]), None);
    }
}
