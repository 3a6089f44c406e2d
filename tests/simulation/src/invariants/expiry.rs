//! *A lease ends only after its client stopped counting on it* (T3, T5; Gray and Cheriton 1989). By
//! then it has ended on the client's own clock, whatever clocks, elections and pauses did. See the
//! issues etcd 9888 and 12528, and consul 1172.

use std::time::Duration;

use leasehold_protocol::{command::LeaseKey, id::Incarnation, time::Instant};

use crate::client::Client;

/// A lease has just ended. Checks that the client, by its own clock, no longer counts on it.
pub(crate) fn check(
    client: &Client,
    (ended, incarnation): (&LeaseKey, Incarnation),
    now: Instant,
) -> Result<(), String> {
    let remaining = |id| match client.key_leases.get(id) {
        Some((meant, until)) if *meant == incarnation => until.since(now),
        _ => Duration::ZERO,
    };
    let (left, volume) = match ended {
        LeaseKey::Session(_) | LeaseKey::LockDelay(_) => return Ok(()),
        LeaseKey::Volume(session, _) if client.holder.session() != Some(*session) => return Ok(()),
        LeaseKey::Volume(_, volume) => (client.holder.volume_remaining(volume, now), volume.to_string()),
        LeaseKey::Key(id) => (remaining(id), format!("keys, {id}")),
    };
    if client.is_open && !left.is_zero() {
        return Err(format!(
            "the lease of client {} on {volume} has ended, but the client counts on the lease for another {left:?}",
            client.place
        ));
    }
    Ok(())
}
