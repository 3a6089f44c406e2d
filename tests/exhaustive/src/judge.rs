//! Invariants of every situation: the rules' own checks, and those that need the whole world.
//!
//! - No client, by its own clock, may use a copy that differs from the last committed content (S2,
//!   in the form that needs no read; Gray and Cheriton 1989).
//! - A lease ends only after its client stopped counting on it (T3, T5).
//! - The cache and the holder agree on each copy, and no copy is used without a volume lease (S1;
//!   Yin et al. 1999).
//!
//! `oracle` judges reads, writes and horizons. `ending` judges the end of a path.

use leasehold_protocol::{id::SessionId, path::NodePath};

use crate::run::Run;

impl Run<'_> {
    /// No client may use an old copy. The end of a lease cannot make a usable copy old. So this
    /// check runs when a client or the true state has changed.
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

    /// A client's holder and cache are sound, and agree.
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

    /// A volume lease has ended: no client counts on it, by its own clock.
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
