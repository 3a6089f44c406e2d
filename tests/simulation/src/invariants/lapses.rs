//! *A lapsed volume lease makes every copy under it unusable until it is validated again* (Yin,
//! Alvisi, Dahlin, Lin 1999). The cache decides by itself, and must decide as the holder does.

use crate::client::Client;
use leasehold_protocol::time::Instant;

/// Checks that the cache and the holder agree on every copy.
pub(crate) fn check(client: &Client, now: Instant, is_planted: bool) -> Result<(), String> {
    client.holder.check(now)?;
    for (object, copy) in &client.cache.copies {
        let lease = client.cache.volumes.get(&copy.validity.volume).copied().unwrap_or_default();
        let by_cache = client.cache.holds(object, now);
        if by_cache && now >= lease.until {
            return Err(format!("the copy of {object} is used without a volume lease"));
        }
        if by_cache != client.holder.may_serve(object, now) && !is_planted {
            return Err(format!("client {}: cache and rules differ on the copy of {object}", client.place));
        }
    }
    Ok(())
}
