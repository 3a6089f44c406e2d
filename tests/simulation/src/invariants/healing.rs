//! *When faults stop, everything heals*: every read and write ends, and every client reads the current values.
//! (Faults first, then liveness: TigerBeetle's VOPR.)

use crate::{client::Client, oracle::Oracle};

/// Nothing that was begun while there were faults is still under way.
pub(crate) fn check_nothing_waits(client: &Client) -> Result<(), String> {
    if client.is_open && !(client.reads.is_empty() && client.writes.is_empty()) {
        return Err(format!(
            "client {} still waits for reads {:?} and writes {:?}, long after the last fault",
            client.place, client.reads, client.writes
        ));
    }
    Ok(())
}

/// Every object was read since, and is what is true.
pub(crate) fn check_all_current(client: &Client, oracle: &Oracle) -> Result<(), String> {
    for object in oracle.versions.keys() {
        let current = oracle.truth.content(object);
        if client.last_read.get(object) != Some(&current) {
            return Err(format!(
                "client {} reads {:?} of {object} in the end: expected {current:?}",
                client.place,
                client.last_read.get(object)
            ));
        }
    }
    Ok(())
}
