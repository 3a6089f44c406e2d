//! *All replicas have equal state at equal index* (state machine replication, Schneider 1990;
//! issues etcd 12651, 11689), and the rows on disk are the state.

use leasehold_protocol::state::State;

/// Compares a replica that just applied an entry with the true state, if that is at the same entry.
pub(crate) fn check(place: usize, replica: &State, truth: &State) -> Result<(), String> {
    if replica.applied_index() == truth.applied_index() && replica != truth {
        return Err(format!("server {place} differs from the others at entry {}", truth.applied_index()));
    }
    Ok(())
}

/// Checks that the state can be read back from its rows.
pub(crate) fn check_rows(place: usize, replica: &State) -> Result<(), String> {
    match State::from_rows(replica.rows()) {
        Ok(read) if read == *replica => Ok(()),
        Ok(_) => Err(format!("server {place} reads another state from its rows")),
        Err(error) => Err(format!("server {place} cannot read its rows: {error}")),
    }
}
