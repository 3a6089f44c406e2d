//! *When faults stop, everything heals*: every read and write ends, and every client reads the
//! current values. (Faults first, then liveness: TigerBeetle's VOPR.)

use leasehold_model::client::OpenWrite;
use leasehold_protocol::command::Write;

use crate::{client::Client, oracle::Oracle};

/// No request that began while there were faults is still in flight. Faults stopped in step
/// `healed_in`.
///
/// With a low limit on leases, a grant is refused as busy for as long as all leases are renewed
/// (wide seed 313).
pub(crate) fn check_nothing_waits(client: &Client, healed_in: u64, are_few: bool) -> Result<(), String> {
    let has_no_room = |open: &OpenWrite| are_few && matches!(open.change, Write::GrantLease { .. });
    let mut writes = client.shell.writes.values().filter(|open| !has_no_room(open));
    let waits = writes.any(|open| open.since <= healed_in) || !client.shell.reads.is_empty();
    if client.shell.is_open && waits {
        return Err(format!(
            "client {} still waits for reads {:?} and writes {:?}, long after the last fault",
            client.place, client.shell.reads, client.shell.writes
        ));
    }
    Ok(())
}

/// Every object was read since. The read found the content that was current when it began, or a
/// later one: on a slow network a lease can be lost at any time, and its nodes with it.
///
/// If leaders refuse long contents, some objects may not have been read.
pub(crate) fn check_all_current(client: &Client, oracle: &Oracle, are_short: bool) -> Result<(), String> {
    for (object, versions) in oracle.versions.all() {
        let since = oracle.asked.get(object).copied().unwrap_or_default();
        let found = client.last_read.get(object);
        if found.is_none() && are_short {
            continue;
        }
        if !versions[since..].iter().any(|version| Some(version) == found) {
            let current = oracle.truth.content(object);
            return Err(format!(
                "client {} reads {found:?} of {object} in the end: expected {current:?}",
                client.place
            ));
        }
    }
    Ok(())
}
