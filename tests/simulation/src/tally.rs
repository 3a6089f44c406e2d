//! Counts of what happened. A simulator in which nothing happens finds nothing.

use std::collections::BTreeMap;

use leasehold_protocol::command::{AnyLease, Command, Outcome, Write};

/// Counts by name.
#[derive(Debug, Default, Clone)]
pub struct Tally(pub BTreeMap<&'static str, u64>);

impl Tally {
    pub(crate) fn add(&mut self, name: &'static str) {
        self.add_many(name, 1);
    }

    pub(crate) fn add_many(&mut self, name: &'static str, count: u64) {
        if count > 0 {
            *self.0.entry(name).or_default() += count;
        }
    }

    /// Adds the counts of another tally.
    pub fn merge(&mut self, other: &Tally) {
        for (name, count) in &other.0 {
            *self.0.entry(name).or_default() += count;
        }
    }
}

/// The tally's name for an outcome.
pub(crate) fn outcome_name(command: &Command, outcome: &Outcome) -> &'static str {
    match (outcome, command) {
        (Outcome::EpochBegun { .. }, _) => "epochs",
        (Outcome::VolumeAcquired { .. }, _) => "leases acquired",
        (Outcome::Expired, Command::Expire { lease: AnyLease::Session(_), .. }) => "sessions that expired",
        (Outcome::Expired, Command::Expire { lease: AnyLease::KeyLease(_), .. }) => "key leases that expired",
        (Outcome::Expired, Command::Expire { lease: AnyLease::LockDelay(_), .. }) => "lock delays ended",
        (Outcome::Expired, _) => "leases expired",
        (Outcome::HorizonMoved { .. }, _) => "expiries put off",
        (Outcome::LeaseNotFound, _) => "expiries of leases that have ended",
        (Outcome::Written(Ok(_)), Command::Write { write: Write::CreateVolume { .. }, .. }) => "volumes made",
        (Outcome::Written(Ok(_)), Command::Write { write: Write::SetVolume { .. }, .. }) => "volumes changed",
        (Outcome::Written(Ok(_)), Command::Write { write: Write::RemoveVolume { .. }, .. }) => "volumes removed",
        (Outcome::Written(Ok(_)), Command::Write { write: Write::GrantLease { .. }, .. }) => "key leases granted",
        (Outcome::Written(Ok(_)), Command::Write { write: Write::RevokeLease { .. }, .. }) => "key leases revoked",
        (Outcome::Written(Ok(_)), Command::Write { write: Write::RevokeLeaseNamed { .. }, .. }) => {
            "revocations by name done"
        }
        (Outcome::Written(Err(_)), Command::Write { write: Write::RevokeLeaseNamed { .. }, .. }) => {
            "revocations by name refused"
        }
        (Outcome::Written(Ok(_)), Command::Write { write: Write::Delete { .. }, .. }) => "nodes removed",
        (Outcome::Written(Ok(_)), Command::Write { write: Write::Lock { .. }, .. }) => "locks requested",
        (Outcome::Written(Ok(_)), Command::Write { write: Write::ChangeLockMode { .. }, .. }) => "lock modes changed",
        (Outcome::Written(Ok(_)), Command::Write { write: Write::Unlock { .. }, .. }) => "locks released",
        (Outcome::Written(Ok(_)), Command::Write { write: Write::HandOver { .. }, .. }) => "locks handed over",
        (Outcome::Written(Ok(written)), Command::Write { write: Write::Transaction(_), .. }) => {
            match &written.transaction {
                Some(transacted) if transacted.succeeded() => "transactions done",
                _ => "transactions that did the other thing",
            }
        }
        (Outcome::Written(Err(_)), Command::Write { write: Write::Transaction(_), .. }) => "transactions refused",
        (Outcome::Written(Ok(_)), _) => "writes done",
        (Outcome::Written(Err(_)), _) => "writes refused",
        (Outcome::Purged { nodes: 0 }, _) => "removals that came to nothing",
        (Outcome::Purged { .. }, _) => "removals of orphans",
        (Outcome::MissingConsents, Command::Write { write, .. }) if write.is_revocation() => "revocations not covered",
        (Outcome::MissingConsents, Command::Write { write: Write::Transaction(_), .. }) => "transactions not covered",
        (Outcome::MissingConsents, _) => "writes not covered",
        (Outcome::EpochEnded, _) => "commands of ended epochs",
        (Outcome::SessionOpened { .. }, _) => "sessions opened",
        (Outcome::SessionClosed, _) => "sessions closed",
        (Outcome::SessionNotFound, _) => "commands of ended sessions",
        (Outcome::BelowWindow { .. } | Outcome::BeyondWindow { .. }, _) => "writes outside of the window",
        (Outcome::Ticked, _) => "ticks",
    }
}
