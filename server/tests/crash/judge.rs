//! Compares the stores after a crash with what was acknowledged.

use std::path::Path;

use leasehold_server::store::store_identity;
use openraft::{
    RaftLogReader,
    storage::{RaftLogStorage, RaftStateMachine},
};

use super::{
    calls::{REPLICA, Stores, founded},
    history::{Entry, Expected, Step, afterwards, replayed},
};

/// The content that the log has.
struct Found {
    purged: Option<super::history::LogId>,
    last: Option<super::history::LogId>,
    vote: Option<super::history::Vote>,
    entries: Vec<Entry>,
}

impl Found {
    fn is(&self, expected: &Expected) -> bool {
        self.vote == expected.vote
            && self.purged == expected.purged
            && self.last == expected.last.max(expected.purged)
            && self.entries == expected.kept()
    }
}

/// Opens the stores after a history of which `acknowledged` steps were acknowledged. Compares them,
/// and continues from there.
pub(crate) async fn judge(dir: &Path, steps: &[Step], acknowledged: usize, seed: u64) -> Result<(), String> {
    let expected = found_content(dir, steps, acknowledged).await?;
    let Some(expected) = expected else { return Ok(()) };
    let mut stores = Stores::open(dir).map_err(|error| format!("opened once, not twice: {error}"))?;
    let mut before = expected.clone();
    let steps = afterwards(seed, expected.clone());
    for step in &steps {
        let done = match step {
            Step::Reopen => {
                stores.close().await.map_err(|error| format!("afterwards: {error}"))?;
                stores = Stores::open(dir).map_err(|error| format!("afterwards: {error}"))?;
                Ok(())
            }
            step => stores.carry_out(dir, &before, step).await,
        };
        done.map_err(|error| format!("afterwards: {step:?}: {error}"))?;
        before = before.after(step);
    }
    compare(&mut stores, &[before]).await.map_err(|difference| format!("afterwards: {difference}"))?;
    stores.close().await.map_err(|error| format!("afterwards: {error}"))
}

/// Compares the log after the crash with what a restarted server had found in it before.
pub(crate) async fn judge_restart(dir: &Path, restarted: &str) -> Result<(), String> {
    let stores = Stores::open(dir).map_err(|error| format!("refused after a restart and a crash: {error}"))?;
    let found = stores.content();
    stores.close().await.map_err(|error| error.to_string())?;
    if found == restarted {
        Ok(())
    } else {
        Err(format!("a restarted server had {restarted}; after the crash: {found}"))
    }
}

/// The content found; `None` if there is none, where that is allowed.
async fn found_content(dir: &Path, steps: &[Step], acknowledged: usize) -> Result<Option<Expected>, String> {
    let before = steps[..acknowledged].iter().fold(Expected::default(), |expected, step| expected.after(step));
    let possible = match steps.get(acknowledged) {
        Some(step) => before.during(step),
        None => vec![before.clone()],
    };
    let identity =
        if dir.exists() { store_identity::load(dir, REPLICA).map_err(|error| error.to_string())? } else { None };
    if identity.is_none() && before.has_begun {
        return Err("the store identity is gone".to_owned());
    }
    if identity.is_some_and(|identity| identity != founded()) {
        return Err(format!("the store identity is {identity:?}"));
    }
    std::fs::create_dir_all(dir).map_err(|error| error.to_string())?;
    let mut stores = Stores::open(dir).map_err(|error| format!("refused: {error}"))?;
    if !before.has_begun {
        let has_log = stores.log.last_and_vote() != (None, None);
        let is_complete = !has_log && (identity.is_some() || !stores.has_state);
        stores.close().await.map_err(|error| error.to_string())?;
        return if is_complete { Ok(None) } else { Err("a part is there without the store identity".to_owned()) };
    }
    let found = compare(&mut stores, &possible).await?;
    stores.close().await.map_err(|error| error.to_string())?;
    Ok(Some(found))
}

/// Compares the stores with the possible contents. Returns the one that fits, after applying all
/// committed entries.
async fn compare(stores: &mut Stores, possible: &[Expected]) -> Result<Expected, String> {
    let state = stores.log.get_log_state().await.map_err(|error| error.to_string())?;
    let entries = stores.log.try_get_log_entries(..).await.map_err(|error| error.to_string())?;
    let vote = stores.log.read_vote().await.map_err(|error| error.to_string())?;
    let found = Found { purged: state.last_purged_log_id, last: state.last_log_id, vote, entries };
    let (header, membership) = stores.machine.applied_state().await.map_err(|error| error.to_string())?;
    let applied = header.map(|applied| applied.index);
    let mut reasons = Vec::new();
    for one in possible {
        if !found.is(one) {
            let ids = found.entries.iter().map(|entry| entry.log_id.to_string()).collect::<Vec<_>>().join(" ");
            reasons.push(format!(
                "the log: found vote {:?}, purged {:?}, last {:?}, {ids}; expected vote {:?}, purged {:?}, last {:?}, {:?}",
                found.vote,
                found.purged,
                found.last,
                one.vote,
                one.purged,
                one.last,
                one.kept().first().map(|entry| entry.log_id).zip(one.kept().last().map(|entry| entry.log_id))
            ));
            continue;
        }
        match compare_state(stores, one, applied, &membership) {
            Ok(()) => return catch_up(stores, one.clone(), applied).await,
            Err(reason) => reasons.push(reason),
        }
    }
    Err(reasons.join("\n  or "))
}

fn compare_state(
    stores: &Stores,
    expected: &Expected,
    applied: Option<u64>,
    membership: &super::history::StoredMembership,
) -> Result<(), String> {
    if applied < expected.persisted || applied > expected.applied {
        let (persisted, most) = (expected.persisted, expected.applied);
        return Err(format!("the state has applied {applied:?}: expected {persisted:?} to {most:?}"));
    }
    if applied < expected.purged.map(|purged| purged.index) {
        return Err(format!("the state has applied {applied:?}, the log is purged up to {:?}", expected.purged));
    }
    let (state, members) = replayed(&expected.entries, applied);
    stores.keeper.0.lock().check().map_err(|broken| format!("the state: {broken}"))?;
    if *stores.keeper.0.lock() != state {
        return Err(format!("the state after {applied:?} is not what its entries make"));
    }
    if *membership != members {
        return Err(format!("the membership is {membership:?}: expected {members:?}"));
    }
    Ok(())
}

/// Does what Raft does at its start: purges entries that a snapshot has, and applies committed
/// ones.
async fn catch_up(stores: &mut Stores, mut found: Expected, applied: Option<u64>) -> Result<Expected, String> {
    if let Some(applied) = applied
        && found.last.is_none_or(|last| last.index < applied)
    {
        let upto = found.entries[&applied].log_id;
        stores.log.purge(upto).await.map_err(|error| error.to_string())?;
        (found.purged, found.last) = (Some(upto), Some(upto));
    }
    if let Some(committed) = found.applied
        && applied != found.applied
    {
        let from = Expected { applied, ..found.clone() };
        let caught_up = stores.carry_out(Path::new(""), &from, &Step::Apply(committed)).await;
        caught_up.map_err(|error| format!("applying what is committed: {error}"))?;
        let (state, _) = replayed(&found.entries, found.applied);
        if *stores.keeper.0.lock() != state {
            return Err(format!("the state after {committed} is not what its entries make"));
        }
    }
    // Closing fsyncs it.
    found.persisted = found.applied;
    Ok(found)
}
