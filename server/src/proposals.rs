//! The pipeline of proposals into the log.
//!
//! Once a proposal is applied, the next one takes all commands that the lessor has ready. So the
//! load decides how many commands share an fsync. A full proposal gains nothing by waiting. It
//! enters the log at once, and is written while the previous one is applied.
//!
//! # Refused proposals
//!
//! The lessor relies on the order of its proposals, and on the outcome of each. A leader that was
//! just elected, or has not heard from its followers for a while, refuses proposals for a moment.
//! The pipeline then resubmits each refused proposal, in order, one at a time, before any other.
//!
//! In two cases that is not possible. The lessor no longer knows what the log contains, and the
//! pipeline abandons it:
//!
//! - Raft took a proposal that was submitted behind a refused one.
//! - Raft refuses a proposal for too long, or the proposal failed for another reason.

use std::{collections::VecDeque, future, pin::Pin, sync::Arc, task::Poll};

use leasehold_protocol::command::Proposal;

use crate::{
    core::{LessorId, ServerCore},
    raft::{ProposeError, ProposedEntry, Replica},
};

/// The most proposals in flight: one is written, one is applied. With more, later commands would
/// wait longer.
const PROPOSALS_MAX: usize = 2;

type ProposalOutcome = Result<u64, ProposeError>;

/// The log that takes proposals: a [`Replica`].
pub(crate) trait ProposalLog: Send + Sync {
    /// A proposal in flight. It resolves once, when it has been applied or has failed.
    type Proposed: Future<Output = ProposalOutcome> + Send + Unpin;

    /// Submits a proposal, behind all others.
    fn submit(&self, proposal: Proposal) -> impl Future<Output = Result<Self::Proposed, ProposeError>> + Send;

    /// Submits a proposal again, after a pause, because it was refused with
    /// [`ProposeError::Retry`]. Fails if it was refused for too long.
    fn resubmit(&self, refused: Self::Proposed) -> impl Future<Output = Result<Self::Proposed, ProposeError>> + Send;
}

impl ProposalLog for Replica {
    type Proposed = ProposedEntry;

    async fn submit(&self, proposal: Proposal) -> Result<ProposedEntry, ProposeError> {
        self.submit(proposal).await
    }

    async fn resubmit(&self, refused: ProposedEntry) -> Result<ProposedEntry, ProposeError> {
        self.resubmit(refused).await
    }
}

/// Proposes what the lessors of this process have ready, until Raft has ended.
pub(crate) async fn propose_all<L: ProposalLog>(core: Arc<ServerCore>, log: L) {
    let mut pipeline = Pipeline { core, log, submitted: VecDeque::new(), refused: VecDeque::new() };
    // The replica reports the reason.
    while pipeline.advance().await.is_ok() {}
}

struct Submitted<P> {
    lessor_id: LessorId,
    proposed: P,
    /// The outcome, once known.
    outcome: Option<ProposalOutcome>,
    /// Whether it was refused before.
    is_again: bool,
}

impl<P: Future<Output = ProposalOutcome> + Unpin> Submitted<P> {
    async fn outcome(&mut self) -> ProposalOutcome {
        match self.outcome.take() {
            Some(outcome) => outcome,
            None => (&mut self.proposed).await,
        }
    }
}

/// The proposals in flight, in order.
struct Pipeline<L: ProposalLog> {
    core: Arc<ServerCore>,
    log: L,
    submitted: VecDeque<Submitted<L::Proposed>>,
    /// Proposals that were refused with [`ProposeError::Retry`], in order. They are resubmitted one
    /// at a time, while nothing else is in flight.
    refused: VecDeque<(LessorId, L::Proposed)>,
}

/// Raft has ended.
struct RaftEnded;

impl<L: ProposalLog> Pipeline<L> {
    /// Waits for the next event, and handles it: a proposal can be submitted, or one in flight has
    /// an outcome.
    async fn advance(&mut self) -> Result<(), RaftEnded> {
        if self.submitted.is_empty()
            && let Some((generation, proposed)) = self.refused.pop_front()
        {
            // No caller waits for the proposals of a lessor that has ended.
            if self.core.is_lessor_current(generation) {
                let submitted = self.log.resubmit(proposed).await;
                self.note(generation, submitted, true)?;
            }
            return Ok(());
        }
        let room = self.room();
        tokio::select! {
            // This branch comes first, so that nothing is submitted behind a known refusal.
            biased;
            () = settled(&mut self.submitted) => {}
            (generation, proposal) = next(&self.core, room) => {
                let submitted = self.log.submit(proposal).await;
                return self.note(generation, submitted, false);
            }
        }
        while self.submitted.front().is_some_and(|first| first.outcome.is_some())
            && let Some(mut first) = self.submitted.pop_front()
        {
            match first.outcome().await {
                Ok(_) => {}
                Err(ProposeError::Retry) if self.core.is_lessor_current(first.lessor_id) => {
                    self.requeue_refused(first).await?
                }
                Err(error) => self.failed(first.lessor_id, error)?,
            }
        }
        Ok(())
    }

    fn room(&self) -> PipelineRoom {
        let is_refused =
            |one: &Submitted<L::Proposed>| one.is_again || one.outcome.as_ref().is_some_and(Result::is_err);
        match self.submitted.len() {
            0 => PipelineRoom::ForAny,
            1..PROPOSALS_MAX if !self.submitted.iter().any(is_refused) => PipelineRoom::ForFull,
            _ => PipelineRoom::None,
        }
    }

    /// Handles a first proposal that was refused with [`ProposeError::Retry`]. Queues it for
    /// resubmission, with those behind it if they were refused as well.
    async fn requeue_refused(&mut self, first: Submitted<L::Proposed>) -> Result<(), RaftEnded> {
        let lessor_id = first.lessor_id;
        let mut refused = VecDeque::from([(lessor_id, first.proposed)]);
        while let Some(mut behind) = self.submitted.pop_front() {
            match behind.outcome().await {
                Err(ProposeError::Retry) => refused.push_back((lessor_id, behind.proposed)),
                Err(error) => return self.failed(lessor_id, error),
                Ok(_) => return self.failed(lessor_id, ProposeError::Unknown),
            }
        }
        refused.append(&mut self.refused);
        self.refused = refused;
        Ok(())
    }

    fn note(
        &mut self,
        lessor_id: LessorId,
        submitted: Result<L::Proposed, ProposeError>,
        is_again: bool,
    ) -> Result<(), RaftEnded> {
        match submitted {
            Ok(proposed) => {
                self.submitted.push_back(Submitted { lessor_id, proposed, outcome: None, is_again });
                Ok(())
            }
            Err(error) => self.failed(lessor_id, error),
        }
    }

    fn failed(&self, lessor_id: LessorId, error: ProposeError) -> Result<(), RaftEnded> {
        if let ProposeError::Fatal { reason } = error {
            tracing::error!(%reason, "Raft has ended: this replica takes no more writes");
            return Err(RaftEnded);
        }
        // The proposal may or may not be applied later, and the lessor cannot know.
        tracing::info!(%error, "a proposal was not confirmed: this leadership ends, and clients ask again");
        self.core.abandon_lessor(lessor_id);
        Ok(())
    }
}

/// Which proposals may be submitted now.
#[derive(Clone, Copy)]
enum PipelineRoom {
    ForAny,
    ForFull,
    None,
}

async fn next(core: &ServerCore, room: PipelineRoom) -> (LessorId, Proposal) {
    match room {
        PipelineRoom::ForAny => core.next_proposal().await,
        PipelineRoom::ForFull => core.next_full_proposal().await,
        PipelineRoom::None => future::pending().await,
    }
}

/// Waits until at least one more proposal has an outcome.
async fn settled<P: Future<Output = ProposalOutcome> + Unpin>(submitted: &mut VecDeque<Submitted<P>>) {
    future::poll_fn(|context| {
        let mut is_new = false;
        for one in submitted.iter_mut().filter(|one| one.outcome.is_none()) {
            if let Poll::Ready(outcome) = Pin::new(&mut one.proposed).poll(context) {
                one.outcome = Some(outcome);
                is_new = true;
            }
        }
        if is_new { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use std::{task::Context, time::Duration};

    use leasehold_protocol::{
        command::Command,
        lessor::{self, LessorBounds},
        limits::Limits,
        message::{Body, Request, RequestHeader},
        planted::Planted,
        time::DriftAllowance,
    };
    use tokio::{
        sync::{mpsc, oneshot},
        task::JoinHandle,
    };

    use super::*;
    use crate::{core::ConnectionId, raft::Machine};

    /// A submitted proposal, and the sender of its outcome.
    struct HandedOver {
        proposal: Proposal,
        is_again: bool,
        outcome: oneshot::Sender<ProposalOutcome>,
    }

    impl HandedOver {
        fn refuse(self, error: ProposeError) {
            self.outcome.send(Err(error)).expect("somebody waits for it");
        }
    }

    /// A log that is controlled by the test.
    struct Scripted(mpsc::UnboundedSender<HandedOver>);

    struct Waits {
        proposal: Proposal,
        outcome: oneshot::Receiver<ProposalOutcome>,
    }

    impl Scripted {
        fn hand_over(&self, proposal: Proposal, is_again: bool) -> Result<Waits, ProposeError> {
            let (sender, outcome) = oneshot::channel();
            let handed_over = HandedOver { proposal: proposal.clone(), is_again, outcome: sender };
            self.0.send(handed_over).map_err(|_| fatal())?;
            Ok(Waits { proposal, outcome })
        }
    }

    impl ProposalLog for Scripted {
        type Proposed = Waits;

        async fn submit(&self, proposal: Proposal) -> Result<Waits, ProposeError> {
            self.hand_over(proposal, false)
        }

        async fn resubmit(&self, refused: Waits) -> Result<Waits, ProposeError> {
            self.hand_over(refused.proposal, true)
        }
    }

    impl Future for Waits {
        type Output = ProposalOutcome;

        fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<ProposalOutcome> {
            Pin::new(&mut self.outcome).poll(context).map(|outcome| outcome.unwrap_or_else(|_| Err(fatal())))
        }
    }

    fn fatal() -> ProposeError {
        ProposeError::Fatal { reason: "the test is over".to_owned() }
    }

    struct World {
        core: Arc<ServerCore>,
        log: mpsc::UnboundedReceiver<HandedOver>,
        index: u64,
        proposing: JoinHandle<()>,
    }

    impl World {
        /// A leader whose epoch has begun, with a lease and the tick that follows from it. Then its
        /// clock stops, so that no other tick is due.
        async fn new() -> Self {
            let (core, _proofs) = ServerCore::new();
            let (sender, log) = mpsc::unbounded_channel();
            let proposing = tokio::spawn(propose_all(Arc::clone(&core), Scripted(sender)));
            let mut world = Self { core, log, index: 0, proposing };
            world.lead(1);
            let beginning = world.next().await;
            world.apply(beginning);
            let session = world.next_of(1).await;
            world.apply(session);
            let tick = world.next().await;
            assert!(matches!(tick.proposal.commands[..], [Command::Tick { .. }]), "{:?}", tick.proposal);
            world.apply(tick);
            crate::clock::tests::stop();
            world
        }

        fn lead(&self, attempt: u64) {
            let config = lessor::LessorConfig {
                replica: 1,
                attempt,
                drift: DriftAllowance::DEFAULT,
                limits: Limits::default(),
                bounds: LessorBounds::DEFAULT,
                planted: Planted::default(),
            };
            self.core.become_leader(config, Duration::ZERO);
        }

        /// Requests this many commands.
        fn ask(&self, commands: usize) {
            let (recalls, _) = mpsc::channel(1);
            for _ in 0..commands {
                let request =
                    Request { header: RequestHeader::default(), body: Body::Open { name: "test".to_owned() } };
                drop(self.core.request(request, ConnectionId(1), &recalls));
            }
        }

        /// The next submitted proposal.
        async fn next(&mut self) -> HandedOver {
            self.log.recv().await.expect("it goes on")
        }

        /// As [`next`](Self::next), after a request for this many commands.
        async fn next_of(&mut self, commands: usize) -> HandedOver {
            self.ask(commands);
            let next = self.next().await;
            assert_eq!((next.proposal.commands.len(), next.is_again), (commands, false));
            next
        }

        /// Checks that nothing is submitted, after every task on this thread has run many times.
        async fn expect_nothing(&mut self) {
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            assert!(self.log.try_recv().is_err());
        }

        fn apply(&mut self, handed_over: HandedOver) {
            self.index += 1;
            self.core.apply(self.index, &handed_over.proposal);
            handed_over.outcome.send(Ok(self.index)).expect("somebody waits for it");
        }
    }

    const FULL: usize = LessorBounds::DEFAULT.proposal_commands_full;

    #[tokio::test]
    async fn full_proposals_are_sent_in_order_up_to_in_flight_limit() {
        let mut world = World::new().await;
        let mut on_their_way = VecDeque::from([world.next_of(1).await]);
        while on_their_way.len() < PROPOSALS_MAX {
            on_their_way.push_back(world.next_of(FULL).await);
        }
        let numbers: Vec<u64> = on_their_way.iter().map(|one| one.proposal.number).collect();
        assert!(numbers.is_sorted());
        world.ask(FULL);
        world.expect_nothing().await;
        while let Some(first) = on_their_way.pop_front() {
            world.apply(first);
            let next = world.next().await;
            assert_eq!(next.proposal.commands.len(), FULL);
            world.ask(FULL);
            world.expect_nothing().await;
            if next.proposal.number < 10 {
                on_their_way.push_back(next);
            } else {
                break;
            }
        }
        assert!(world.core.is_serving());
    }

    #[tokio::test]
    async fn partial_proposal_waits_for_last_one_and_is_batched() {
        let mut world = World::new().await;
        let first = world.next_of(1).await;
        world.ask(FULL - 2);
        world.expect_nothing().await;
        world.ask(1);
        world.expect_nothing().await;
        world.apply(first);
        assert_eq!(world.next().await.proposal.commands.len(), FULL - 1);
    }

    #[tokio::test]
    async fn refused_proposals_are_resent_in_order_before_others() {
        let mut world = World::new().await;
        let refused = [world.next_of(FULL).await, world.next_of(FULL).await];
        let numbers = refused.each_ref().map(|one| one.proposal.number);
        refused.into_iter().for_each(|refused| refused.refuse(ProposeError::Retry));
        // The log refuses it again and again, while more commands arrive.
        let mut first = world.next().await;
        for _ in 0..3 {
            assert_eq!((first.proposal.number, first.is_again), (numbers[0], true));
            world.ask(FULL);
            world.expect_nothing().await;
            first.refuse(ProposeError::Retry);
            first = world.next().await;
        }
        world.apply(first);
        let second = world.next().await;
        assert_eq!((second.proposal.number, second.is_again), (numbers[1], true));
        world.expect_nothing().await;
        world.apply(second);
        assert_eq!(world.next().await.proposal.number, numbers[1] + 1);
        assert!(world.core.is_serving(), "the lessor is the same");
    }

    #[tokio::test]
    async fn proposal_refused_behind_one_in_flight_precedes_newer_ones() {
        let mut world = World::new().await;
        let first = world.next_of(FULL).await;
        let second = world.next_of(FULL).await;
        let number = second.proposal.number;
        second.refuse(ProposeError::Retry);
        world.expect_nothing().await;
        world.ask(FULL);
        world.expect_nothing().await;
        world.apply(first);
        let again = world.next().await;
        assert_eq!((again.proposal.number, again.is_again), (number, true));
        world.expect_nothing().await;
        world.apply(again);
        assert_eq!(world.next().await.proposal.number, number + 1);
        assert!(world.core.is_serving());
    }

    #[tokio::test]
    async fn lessor_ends_when_later_proposal_overtakes_refused_one() {
        let mut world = World::new().await;
        let first = world.next_of(FULL).await;
        let second = world.next_of(FULL).await;
        world.apply(second);
        assert!(world.core.is_serving());
        first.refuse(ProposeError::Retry);
        world.expect_nothing().await;
        assert!(!world.core.has_lessor());
    }

    #[tokio::test]
    async fn the_next_epoch_begins_when_all_of_the_last_is_settled() {
        let mut world = World::new().await;
        let first = world.next_of(FULL).await;
        let second = world.next_of(FULL).await;
        first.refuse(ProposeError::Unknown);
        world.expect_nothing().await;
        assert!(!world.core.has_lessor());
        world.lead(2);
        world.expect_nothing().await;
        second.refuse(ProposeError::Retry);
        let beginning = world.next().await;
        assert_eq!(
            beginning.proposal.commands,
            [Command::BeginEpoch { replica: 1, attempt: 2 }],
            "nobody waits for the second any more"
        );
        world.apply(beginning);
        assert!(world.core.is_serving());
    }

    #[tokio::test]
    async fn it_ends_with_raft() {
        let mut world = World::new().await;
        world.next_of(1).await.refuse(fatal());
        (&mut world.proposing).await.expect("it has ended by itself");
    }
}
