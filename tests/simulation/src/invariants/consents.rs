//! *A write takes effect only after each conflicting lease was given up, or had ended* (Gray and
//! Cheriton 1989; S2).
//!
//! In its strong form, which needs no reader to come by: at no moment may a copy be used by its
//! client's clock, whether or not that client is paused, that is not what was committed last.
//! Consents are gathered before a write is proposed, so that holds from the commit on, not only
//! from the acknowledgement.

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
