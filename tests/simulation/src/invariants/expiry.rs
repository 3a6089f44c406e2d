//! *A lease ends only when its client has stopped counting on it* (T3, T5; Gray and Cheriton 1989): by then its time has
//! passed on the client's own clock, whatever clocks, elections and pauses did in between. The complaints of etcd 9888, 12528;
//! consul 1172.

use leasehold_protocol::{command::LeaseKey, time::Instant};

use crate::client::Client;

/// The lease has just ended: looks at a client's own reading of it.
pub(crate) fn check(client: &Client, ended: &LeaseKey, now: Instant) -> Result<(), String> {
    let LeaseKey::Volume(session, volume) = ended else { return Ok(()) };
    let left = client.holder.certain_for(volume, now);
    if client.is_open && client.holder.session() == Some(*session) && !left.is_zero() {
        return Err(format!(
            "the lease of client {} on {volume} has ended: it counts on it for {left:?}",
            client.place
        ));
    }
    Ok(())
}
