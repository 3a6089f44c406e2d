//! The proposal queue: commands that the lessor has decided on and not yet proposed, in order.

use std::collections::VecDeque;

use crate::{
    command::Command,
    reached::{Bound, reached},
};

use super::{LessorBounds, ProposalReason};

/// Commands that wait to be proposed, each with its reason.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct ProposalQueue {
    waiting: VecDeque<(Command, ProposalReason)>,
    /// The length of each command's encoding, in bytes.
    lengths: VecDeque<usize>,
    /// The sum of `lengths`.
    bytes: usize,
    /// How many commands are ends of leases.
    ends: usize,
    /// How many commands open or close sessions, or acquire volume leases.
    requests: usize,
}

fn is_end(reason: &ProposalReason) -> bool {
    matches!(reason, ProposalReason::Expire(..))
}

fn is_request(reason: &ProposalReason) -> bool {
    matches!(reason, ProposalReason::Open(_) | ProposalReason::Close(_) | ProposalReason::Acquire(..))
}

impl ProposalQueue {
    pub(super) fn push(&mut self, command: Command, reason: ProposalReason) {
        let bytes = command.encoded_bytes();
        self.bytes += bytes;
        self.lengths.push_back(bytes);
        self.ends += usize::from(is_end(&reason));
        self.requests += usize::from(is_request(&reason));
        self.waiting.push_back((command, reason));
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 4] {
        [self.waiting.len(), self.lengths.len(), self.bytes, self.ends]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether the next proposal gains nothing by waiting for more commands.
    pub(super) fn is_full(&self, bounds: &LessorBounds) -> bool {
        let is_full = self.waiting.len() >= bounds.proposal_commands_full;
        if is_full {
            reached(Bound::ProposalFull);
        }
        is_full || self.bytes >= bounds.proposal_bytes_max
    }

    pub(super) fn ends(&self) -> usize {
        self.ends
    }

    pub(super) fn requests(&self) -> usize {
        self.requests
    }

    pub(super) fn reasons(&self) -> impl Iterator<Item = &ProposalReason> {
        self.waiting.iter().map(|(_, reason)| reason)
    }

    /// The commands of the next proposal: the first ones, up to both bounds, and at least one. Each
    /// fits into an entry by itself ([`Command::BYTES_MAX`]).
    pub(super) fn take(&mut self, bounds: &LessorBounds) -> (Vec<Command>, Vec<ProposalReason>) {
        let mut bytes = 0;
        let fits = |length: &&usize| {
            let is_first = bytes == 0;
            bytes += **length;
            is_first || bytes <= bounds.proposal_bytes_max
        };
        let count = self.lengths.iter().take(bounds.proposal_commands_max).take_while(fits).count();
        if count < self.waiting.len() {
            let is_many = count == bounds.proposal_commands_max;
            reached(if is_many { Bound::ProposalCommands } else { Bound::ProposalBytes });
        }
        let (commands, reasons): (Vec<Command>, Vec<ProposalReason>) = self.waiting.drain(..count).unzip();
        self.bytes -= self.lengths.drain(..count).sum::<usize>();
        self.ends -= reasons.iter().filter(|reason| is_end(reason)).count();
        self.requests -= reasons.iter().filter(|reason| is_request(reason)).count();
        (commands, reasons)
    }

    #[cfg(test)]
    pub(super) fn commands(&self) -> impl Iterator<Item = &Command> {
        self.waiting.iter().map(|(command, _)| command)
    }

    /// Reorders the waiting commands, for tests: the lessor itself never does.
    #[cfg(test)]
    pub(super) fn reorder<R>(&mut self, order: impl FnOnce(&mut VecDeque<(Command, ProposalReason)>) -> R) -> R {
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
        command::AnyLease,
        id::{Incarnation, SessionId},
        time::ClusterTime,
    };

    const BOUNDS: LessorBounds = LessorBounds::DEFAULT;

    fn end(session: u64) -> (Command, ProposalReason) {
        let lease = AnyLease::Session(SessionId(session));
        let (incarnation, horizon) = (Incarnation(session), ClusterTime::ZERO);
        let reason = ProposalReason::Expire(lease.clone(), incarnation);
        (Command::Expire { lease, incarnation, horizon }, reason)
    }

    #[test]
    fn proposal_is_full_at_its_bound_of_commands() {
        let mut queue = ProposalQueue::default();
        for session in 1..=BOUNDS.proposal_commands_full as u64 {
            assert!(!queue.is_full(&BOUNDS), "{session}");
            let (command, reason) = end(session);
            queue.push(command, reason);
        }
        assert!(queue.is_full(&BOUNDS));
        assert_eq!(queue.ends(), BOUNDS.proposal_commands_full);
        assert_eq!(queue.take(&BOUNDS).0.len(), BOUNDS.proposal_commands_full);
        assert_eq!(queue, ProposalQueue::default());
    }

    #[test]
    fn proposal_is_full_at_its_bound_of_bytes() {
        let mut queue = ProposalQueue::default();
        let open = |bytes: usize| Command::OpenSession { name: "n".repeat(bytes) };
        let around_name = open(1 << 20).encoded_bytes() - (1 << 20);
        queue.push(open(BOUNDS.proposal_bytes_max - around_name - open(0).encoded_bytes() - 1), ProposalReason::Tick);
        assert!(!queue.is_full(&BOUNDS));
        queue.push(open(0), ProposalReason::Tick);
        assert!(!queue.is_full(&BOUNDS), "one byte less does not fit");
        queue.push(open(0), ProposalReason::Tick);
        assert!(queue.is_full(&BOUNDS));
        assert_eq!(queue.take(&BOUNDS).0.len(), 2, "the third would go beyond the bound");
        assert_eq!(queue.take(&BOUNDS).0.len(), 1);
        assert_eq!(queue, ProposalQueue::default());
    }

    #[test]
    fn command_above_the_bound_is_proposed_alone() {
        let mut queue = ProposalQueue::default();
        let open = |bytes: usize| Command::OpenSession { name: "n".repeat(bytes) };
        [1, BOUNDS.proposal_bytes_max, 1].into_iter().for_each(|bytes| queue.push(open(bytes), ProposalReason::Tick));
        assert_eq!([(); 3].map(|()| queue.take(&BOUNDS).0.len()), [1, 1, 1]);
        assert_eq!(queue, ProposalQueue::default());
    }
}
