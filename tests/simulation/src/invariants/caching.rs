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
    for (hold, kept) in client.kept_data.iter().filter(|_| client.is_open) {
        let Some(value) = client.holder.write_lease_value(*hold, clock) else { continue };
        let first = kept.first.as_ref().unwrap_or(value);
        let found = truth.node(&kept.path).map(|node| &node.value);
        let is_own = found.is_some_and(|found| found == first || kept.changes.iter().any(|(value, _)| value == found));
        if !is_own {
            return Err(format!(
                "client {} keeps {} to itself under hold {hold}, and {found:?} is there by now",
                client.place, kept.path
            ));
        }
        let object = Object::data(kept.path.clone());
        let may_use = |other: &&Client| {
            let clock = other.machine.clock.read(now);
            other.is_open && other.cache.may_use(&object, clock, &other.holder)
        };
        if let Some(other) = others.clone().find(may_use) {
            return Err(format!(
                "client {} keeps {} to itself under hold {hold}, and client {} could use a copy",
                client.place, kept.path, other.place
            ));
        }
    }
    Ok(())
}
