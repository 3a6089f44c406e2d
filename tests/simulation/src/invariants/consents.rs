//! *A write takes effect only after each conflicting lease was given up, or had ended* (Gray and
//! Cheriton 1989; S2).
//!
//! This is its strong form, which needs no read. A usable copy must equal the last committed
//! content, by its client's clock, also while the client is paused. The lessor gathers consents
//! before it proposes a write. So this holds from the commit on, not only from the acknowledgement.

use leasehold_protocol::state::State;

use crate::client::Client;

/// Checks the copies of one client.
pub(crate) fn check(client: &Client, truth: &State, now: u64) -> Result<(), String> {
    let clock = client.machine.clock.read(now);
    for (object, copy) in &client.cache.copies {
        if !client.cache.may_use(object, clock, &client.holder) {
            continue;
        }
        let current = truth.content(object);
        if *copy.content != current {
            return Err(format!(
                "client {} could still use its copy of {object}: {:?}, {:?}; committed is {current:?}",
                client.place, copy.content, copy.validity
            ));
        }
    }
    Ok(())
}
