//! The end of a path: faults stop, all messages arrive, and time passes. Then every read and write
//! must have ended, and no lease of a departed client may be left.

use leasehold_protocol::{command::AnyLease, lessor::LessorInput, planted::Bug};

use crate::{action::Action, run::Run, situation::Situation, world::World};

/// The step of time: as often as lessors want to be called.
const STEP: u64 = 50_000;
/// More steps than needed. They cover a term and its margin, and waits that double up to a second.
/// They also cover a probe of a dead connection and its end, each after 3 s if the client has no
/// lease.
const STEPS_MAX: usize = 300;

/// Nothing more happens by itself. Lets time pass, and reports what does not end.
pub(crate) fn end(world: &World, bug: Option<Bug>, situation: &Situation) -> Result<(), String> {
    if is_quiet(situation) {
        return Ok(());
    }
    let mut run = Run::new(world, bug, situation.clone(), false);
    run.end()
}

/// No client waits for a request, and no departed client has left a lease.
fn is_quiet(situation: &Situation) -> bool {
    let is_owned = |key: &AnyLease| {
        let open = |session| {
            situation
                .clients
                .iter()
                .any(|client| client.shell.is_open && client.shell.holder.session() == Some(session))
        };
        !matches!(key, AnyLease::Volume(session, _) if !open(*session))
    };
    let waits = |situation: &Situation| {
        situation.clients.iter().any(|client| !client.shell.reads.is_empty() || !client.shell.writes.is_empty())
    };
    !waits(situation) && situation.truth.leases().all(|(key, _)| is_owned(key))
}

impl Run<'_> {
    /// Lets time pass without faults.
    pub(crate) fn end(&mut self) -> Result<(), String> {
        self.at.left = Default::default();
        for _ in 0..STEPS_MAX {
            // Applications start their remaining operations as soon as they can.
            self.settle(|action| matches!(action, Action::Begin { .. } | Action::ClientTimer { .. }))?;
            if is_quiet(&self.at) {
                return Ok(());
            }
            self.at.now += STEP;
            self.step_lessor(self.at.leader, LessorInput::Timeout);
            self.verdict()?;
        }
        let waiting: Vec<_> =
            self.at.clients.iter().map(|client| (client.shell.reads.keys(), client.shell.writes.keys())).collect();
        let leases: Vec<_> = self.at.truth.leases().map(|(key, _)| key).collect();
        Err(format!("in the end these operations still wait: {waiting:?}; and these leases still exist: {leases:?}"))
    }
}
