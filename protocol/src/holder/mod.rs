//! The client's half of the rules.

mod effect;
mod input;
pub mod validity;

use std::time::Duration;

pub use effect::{Connection, Effect, ReadError, WriteError};
pub use input::{Config, Input, ReadId, Ticket, WriteId};

use crate::{object::Object, path::Path, time::Instant};

/// The pure state machine of one client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    config: Config,
}

impl Holder {
    /// A client that has no session yet.
    pub fn new(config: Config) -> Self {
        Self { config }
    }

    /// Takes one input and says what to do about it, in order. `now` is read from this client's own clock right
    /// before, and never runs backwards.
    pub fn step(&mut self, _input: Input, _now: Instant) -> Vec<Effect> {
        Vec::new()
    }

    /// When [`Input::Timeout`] is wanted.
    pub fn next_deadline(&self) -> Option<Instant> {
        None
    }

    /// Whether the object's copy may be used now (S1).
    pub fn may_serve(&self, _object: &Object, _now: Instant) -> bool {
        false
    }

    /// How long the volume's lease is certain to hold on this client's clock.
    pub fn certain_for(&self, _volume: &Path, _now: Instant) -> Duration {
        Duration::ZERO
    }

    /// Checks that the holder's parts agree with each other.
    ///
    /// # Errors
    ///
    /// Says which invariant does not hold, and of what.
    pub fn check(&self, _now: Instant) -> Result<(), String> {
        Ok(())
    }
}
