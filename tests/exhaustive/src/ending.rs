//! How a path ends: faults are over, everybody is heard again, and time goes by. Then every read
//! and write has ended, and no lease is left of a client that has gone.

use leasehold_protocol::{command::LeaseKey, lessor::LessorInput, planted::Bug};

use crate::{action::Action, run::Run, situation::Situation, world::World};

/// From moment to moment: how often lessors want to be called.
const STEP: u64 = 50_000;
/// More than it takes: a term and its margin; for a connection that went dead to be asked for a
/// sign of life and then given up, each after 3 s for a client that holds nothing; for waits that
/// double up to a second.
const STEPS_MAX: usize = 300;

/// Nothing more may happen by itself. Lets time go by, and says what does not end.
pub(crate) fn end(world: &World, bug: Option<Bug>, situation: &Situation) -> Result<(), String> {
    if is_quiet(situation) {
        return Ok(());
    }
    let mut run = Run::new(world, bug, situation.clone(), false);
    run.end()
}

/// Nobody waits for anything, and nobody has gone and left a lease behind.
fn is_quiet(situation: &Situation) -> bool {
    let is_owned = |key: &LeaseKey| {
        let open =
            |session| situation.clients.iter().any(|client| client.is_open && client.holder.session() == Some(session));
        !matches!(key, LeaseKey::Volume(session, _) if !open(*session))
    };
    let waits = |situation: &Situation| {
        situation.clients.iter().any(|client| !client.reads.is_empty() || !client.writes.is_empty())
    };
    !waits(situation) && situation.truth.leases().all(|(key, _)| is_owned(key))
}

impl Run<'_> {
    /// Time goes by, and nothing goes wrong any more.
    pub(crate) fn end(&mut self) -> Result<(), String> {
        self.at.left = Default::default();
        for _ in 0..STEPS_MAX {
            // What applications have not done yet they do as soon as they can.
            self.settle(|action| matches!(action, Action::Begin { .. } | Action::ClientTimer { .. }))?;
            if is_quiet(&self.at) {
                return Ok(());
            }
            self.at.now += STEP;
            self.step_lessor(self.at.leader, LessorInput::Timeout);
            self.verdict()?;
        }
        let waiting: Vec<_> =
            self.at.clients.iter().map(|client| (client.reads.keys(), client.writes.keys())).collect();
        let leases: Vec<_> = self.at.truth.leases().map(|(key, _)| key).collect();
        Err(format!("in the end these still wait: {waiting:?}; and these leases are left: {leases:?}"))
    }
}
