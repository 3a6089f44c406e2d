//! What must hold in every situation. The rules' own checks, and what only those can see who see
//! everything:
//!
//! - no copy may be used, by its client's clock, that is not what was committed last (S2, in the
//!   form that needs no reader to come by; Gray and Cheriton 1989);
//! - a lease ends only when its client has stopped counting on it (T3, T5);
//! - cache and holder agree on each copy, and nothing is used without a volume lease (S1; Yin et
//!   al. 1999).
//!
//! Reads, writes and horizons are judged in `oracle`; what must hold where a path ends, in
//! `ending`.

use leasehold_protocol::{id::SessionId, path::NodePath};

use crate::run::Run;

impl Run<'_> {
    /// No copy that a client may use is old. A lease that ends makes it no truer: so it is looked
    /// at when a client has changed, or what is true.
    pub(crate) fn copies_are_true(&mut self, place: usize) {
        let client = &self.at.clients[place];
        let clock = self.world.client_clock(place, self.at.now);
        let mut wrong = None;
        for (object, copy) in &client.cache.copies {
            let current = self.at.truth.content(object);
            if *copy.content != current && client.may_use(object, clock, self.is_planted) {
                wrong = Some(format!(
                    "client {place} could still use its copy of {object}: {:?}; committed is {current:?}",
                    copy.content
                ));
            }
        }
        self.demand(wrong.map_or(Ok(()), Err));
    }

    /// A client's rules and its cache are sound, and agree.
    pub(crate) fn client_is_sound(&mut self, place: usize) {
        let clock = self.world.client_clock(place, self.at.now);
        let client = &self.at.clients[place];
        let mut held = client.holder.check(clock).map_err(|what| format!("client {place}: {what}"));
        for (object, copy) in &client.cache.copies {
            let by_cache = client.cache.holds(object, clock);
            let lease = client.cache.volumes.get(&copy.validity.volume).copied().unwrap_or_default();
            if by_cache && clock >= lease.until {
                held = held.and(Err(format!("client {place} uses {object} without a volume lease")));
            }
            if by_cache != client.holder.may_serve(object, clock) && !self.is_planted {
                held = held.and(Err(format!("client {place}: cache and rules differ on the copy of {object}")));
            }
        }
        self.demand(held);
    }

    /// A lease has ended: no client counts on it, by its own clock.
    pub(crate) fn nobody_counts_on(&mut self, session: SessionId, volume: &NodePath) {
        for place in 0..self.at.clients.len() {
            let client = &self.at.clients[place];
            let left = client.holder.volume_remaining(volume, self.world.client_clock(place, self.at.now));
            if client.is_open && client.holder.session() == Some(session) && !left.is_zero() {
                let what = format!("the lease of client {place} on {volume} has ended: it counts on it for {left:?}");
                self.demand(Err(what));
            }
        }
    }
}
