//! *When faults stop, everything heals*: every read and write ends, and every client reads the current values.
//! (Faults first, then liveness: TigerBeetle's VOPR.)

use crate::{client::Client, oracle::Oracle};

/// Nothing that was begun while there were faults, which were over in step `healed_in`, is still under way.
pub(crate) fn check_nothing_waits(client: &Client, healed_in: u64) -> Result<(), String> {
    let waits = client.writes.values().any(|open| open.since <= healed_in) || !client.reads.is_empty();
    if client.is_open && waits {
        return Err(format!(
            "client {} still waits for reads {:?} and writes {:?}, long after the last fault",
            client.place, client.reads, client.writes
        ));
    }
    Ok(())
}

/// Every object was read since, and what was found is what was true when the read began, or later: a lease can be lost on a slow network
/// at any time, and what goes with it goes.
pub(crate) fn check_all_current(client: &Client, oracle: &Oracle) -> Result<(), String> {
    for (object, versions) in &oracle.versions {
        let since = oracle.asked.get(object).copied().unwrap_or_default();
        let found = client.last_read.get(object);
        if !versions[since..].iter().any(|version| Some(&version.content) == found) {
            let current = oracle.truth.content(object);
            return Err(format!(
                "client {} reads {found:?} of {object} in the end: expected {current:?}",
                client.place
            ));
        }
    }
    Ok(())
}
