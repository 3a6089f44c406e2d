//! What the lessor has decided and not proposed yet, in order.

use std::collections::VecDeque;

use crate::command::Command;

use super::{PROPOSAL_BYTES_MAX, PROPOSAL_COMMANDS_MAX, Reason};

/// So many commands, or [`PROPOSAL_BYTES_MAX`], need not wait for the proposal before theirs: one write to the disk for so many is few enough,
/// and an entry with so many ends of leases is applied in 8 ms. (With 512, and four on their way, a million leases end a quarter later, and the
/// slowest of others' writes meanwhile take a quarter less.)
pub const PROPOSAL_COMMANDS_FULL: usize = 2048;

/// Commands that wait to be proposed, and why each was decided.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Outbox {
    waiting: VecDeque<(Command, Reason)>,
    /// What they weigh.
    bytes: usize,
    /// How many of them are ends of leases.
    ends: usize,
}

impl Outbox {
    pub(super) fn push(&mut self, command: Command, reason: Reason) {
        self.bytes += command.weight();
        self.ends += usize::from(matches!(reason, Reason::Expire(..)));
        self.waiting.push_back((command, reason));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether what waits gains nothing by waiting for more.
    pub(super) fn is_full(&self) -> bool {
        self.waiting.len() >= PROPOSAL_COMMANDS_FULL || self.bytes >= PROPOSAL_BYTES_MAX
    }

    /// How many ends of leases wait.
    pub(super) fn ends(&self) -> usize {
        self.ends
    }

    pub(super) fn reasons(&self) -> impl Iterator<Item = &Reason> {
        self.waiting.iter().map(|(_, reason)| reason)
    }

    /// The commands of the next proposal: the first ones, up to both bounds.
    pub(super) fn take(&mut self) -> (Vec<Command>, Vec<Reason>) {
        let mut bytes = 0;
        let fits = |(command, _): &&(Command, Reason)| {
            let fits = bytes < PROPOSAL_BYTES_MAX;
            bytes += command.weight();
            fits
        };
        let count = self.waiting.iter().take(PROPOSAL_COMMANDS_MAX).take_while(fits).count();
        let (commands, reasons): (Vec<Command>, Vec<Reason>) = self.waiting.drain(..count).unzip();
        self.bytes -= commands.iter().map(Command::weight).sum::<usize>();
        self.ends -= reasons.iter().filter(|reason| matches!(reason, Reason::Expire(..))).count();
        (commands, reasons)
    }

    #[cfg(test)]
    pub(super) fn commands(&self) -> impl Iterator<Item = &Command> {
        self.waiting.iter().map(|(command, _)| command)
    }

    /// Gives what waits another order: one that this lessor has no occasion to choose.
    #[cfg(test)]
    pub(super) fn reorder<R>(&mut self, order: impl FnOnce(&mut VecDeque<(Command, Reason)>) -> R) -> R {
        let ordered = order(&mut self.waiting);
        let waiting = std::mem::take(self).waiting;
        waiting.into_iter().for_each(|(command, reason)| self.push(command, reason));
        ordered
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        command::LeaseKey,
        id::{Incarnation, SessionId},
        time::ClusterTime,
    };

    fn end(session: u64) -> (Command, Reason) {
        let lease = LeaseKey::Session(SessionId(session));
        let (incarnation, horizon) = (Incarnation(session), ClusterTime::ZERO);
        let reason = Reason::Expire(lease.clone(), incarnation);
        (Command::Expire { lease, incarnation, horizon }, reason)
    }

    #[test]
    fn it_is_full_with_so_many_commands() {
        let mut outbox = Outbox::default();
        for session in 1..=PROPOSAL_COMMANDS_FULL as u64 {
            assert!(!outbox.is_full(), "{session}");
            let (command, reason) = end(session);
            outbox.push(command, reason);
        }
        assert!(outbox.is_full());
        assert_eq!(outbox.ends(), PROPOSAL_COMMANDS_FULL);
        assert_eq!(outbox.take().0.len(), PROPOSAL_COMMANDS_FULL);
        assert_eq!(outbox, Outbox::default());
    }

    #[test]
    fn it_is_full_with_so_many_bytes_of_few_commands() {
        let mut outbox = Outbox::default();
        let open = |bytes: usize| Command::OpenSession { name: "n".repeat(bytes) };
        outbox.push(open(PROPOSAL_BYTES_MAX - 2 * open(0).weight() - 1), Reason::Tick);
        assert!(!outbox.is_full());
        outbox.push(open(0), Reason::Tick);
        assert!(!outbox.is_full(), "a byte is missing");
        outbox.push(open(0), Reason::Tick);
        assert!(outbox.is_full());
        assert_eq!(outbox.take().0.len(), 3, "the last may go beyond the bound");
        assert_eq!(outbox, Outbox::default());
    }
}
