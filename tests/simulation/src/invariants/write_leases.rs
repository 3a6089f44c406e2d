//! *While a session has a node's data under a write lease, no other client has a usable copy of it,
//! and none changes it* (S10). This holds at every true time, by each client's own clock. Later
//! readers see the owner's value, or the owner hears that it is lost: [`super::linearizability`]
//! judges that.

use leasehold_protocol::{object::Object, state::State};

use crate::client::Client;

/// Checks the data that one client has under write leases.
pub(crate) fn check<'a>(
    client: &Client,
    others: impl Iterator<Item = &'a Client> + Clone,
    truth: &State,
    now: u64,
) -> Result<(), String> {
    let clock = client.machine.clock.read(now);
    for (lock, write_lease) in client.write_leased.iter().filter(|_| client.shell.is_open) {
        let Some(value) = client.shell.holder.write_lease_value(*lock, clock) else { continue };
        let first = write_lease.first.as_ref().unwrap_or(value);
        let found = truth.node(&write_lease.path).map(|node| &node.value);
        let is_own =
            found.is_some_and(|found| found == first || write_lease.changes.iter().any(|(value, _)| value == found));
        if !is_own {
            return Err(format!(
                "it has a write lease on {} under lock {lock}, but the node has the value {found:?} of another client",
                write_lease.path
            ));
        }
        let object = Object::data(write_lease.path.clone());
        let may_use = |other: &&Client| {
            let clock = other.machine.clock.read(now);
            other.shell.is_open && other.shell.cache.may_use(&object, clock, &other.shell.holder)
        };
        if let Some(other) = others.clone().find(may_use) {
            return Err(format!(
                "it has a write lease on {} under lock {lock}, but client {} could use a copy",
                write_lease.path, other.place
            ));
        }
    }
    Ok(())
}
