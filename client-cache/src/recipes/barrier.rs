//! Barriers: nobody passes before N parties have arrived.
//!
//! Each party has a node below the barrier's node (see `party`). A party that finds N or more there
//! opens the barrier by a transaction. The transaction compares that N of them still exist, and
//! puts the node `open`. All other parties watch only that node.
//!
//! # Guarantees
//!
//! A barrier opens at one point in the order of all changes. At that point N parties exist, and the
//! log has not ended the lease of any of them. A party whose lease ended before does not count. A
//! party that crashes a moment later does count. All N parties pass, even those that learn of the
//! opening after others have left.
//!
//! # Why no party waits in vain
//!
//! Only arrivals increase the number of parties, and each party reads it after its own arrival. So
//! the last party finds N. If it fails before it opens the barrier, it removes its node, or its
//! lease ends. If the answer to an opening is lost, opening again has no effect.
//!
//! A round of a double barrier ends when all parties have left or their leases have ended. No party
//! enters while the barrier is open, so a party can wait until the last one leaves. Then it removes
//! the node `open`, if that is still the node of the same round.
//!
//! # What it does not know
//!
//! A barrier does not know whether the parties that passed are still alive.
//! [`BarrierGuard::on_lost`] reports only the end of its own party. A barrier protects no resource,
//! so it has no token.

use std::time::Duration;

use leasehold_protocol::{
    id::Revision,
    path::{NodePath, PathError},
    transaction::{Compare, Operation, Transaction},
};
use tokio_util::sync::CancellationToken;

use super::{
    RecipeError,
    departures::put,
    party::{Party, PartyNode, PartyPlace},
};
use crate::{
    call::given,
    client::Client,
    error::{WatchError, WriteError},
};

/// A transaction has one comparison for each party, and one for the barrier itself.
const PARTIES_MAX: u32 = Transaction::COMPARES_MAX as u32 - 1;

/// The name of the node that opens a barrier. No party has that name.
const OPEN: &str = "open";

/// Opens when the given number of parties have arrived, and stays open. See [`Client::barrier`].
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let barrier = client.barrier("/computation/all-are-there", 3);
/// barrier.wait().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is sent until one of its methods is awaited"]
pub struct Barrier(PartyPlace);

/// Opens when the given number of parties have arrived, and closes when all have left, again and
/// again. See [`Client::double_barrier`].
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let inside = client.double_barrier("/computation/step", 3).enter().await?;
/// println!("three parties are in round {}", inside.round());
/// inside.leave().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is sent until one of its methods is awaited"]
pub struct DoubleBarrier(PartyPlace);

/// A party of an open round. Dropping it leaves, without waiting.
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let inside = client.double_barrier("/computation/step", 3).enter().await?;
/// tokio::select! {
///     () = inside.on_lost().cancelled_owned() => println!("the others may have gone on"),
///     () = async { /* what each party does in this step */ } => inside.leave().await?,
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "it leaves when this is dropped"]
pub struct BarrierGuard {
    gathering: PartyNode,
    place: Party,
    /// The revision at which the barrier opened.
    round: Revision,
}

impl Barrier {
    /// Waits until the given number of parties have arrived, including this one. Dropping the
    /// future leaves.
    ///
    /// # Errors
    ///
    /// [`RecipeError`]. The party may have been counted, if the others arrived before it had left.
    pub async fn wait(&self) -> Result<(), RecipeError> {
        let node = self.0.node()?;
        let open = node.open()?;
        if node.client.get(&open).await?.is_some() {
            return Ok(());
        }
        node.wait_for_pending_releases().await?;
        let Some(place) = node.join(Some(&open)).await? else { return Ok(()) };
        place.run_until_lost(node.until_open(&place)).await.map(|_| ())
    }
}

impl DoubleBarrier {
    /// Waits until all parties of the previous round have left, and then until the given number of
    /// parties have arrived, including this one. Dropping the future leaves.
    ///
    /// # Errors
    ///
    /// [`RecipeError`]. The party may have been counted, if the others arrived before it had left.
    pub async fn enter(&self) -> Result<BarrierGuard, RecipeError> {
        let node = self.0.node()?;
        let open = node.open()?;
        loop {
            if let Some(entry) = node.client.get(&open).await? {
                node.until_all_have_left(entry.stat.create_revision).await?;
            }
            node.wait_for_pending_releases().await?;
            if let Some(place) = node.join(Some(&open)).await? {
                let round = place.run_until_lost(node.until_open(&place)).await?;
                return Ok(BarrierGuard { gathering: node.clone(), place, round });
            }
        }
    }
}

impl BarrierGuard {
    /// The revision at which the barrier opened. It is the same for all parties of a round, and
    /// grows with each round.
    pub fn round(&self) -> Revision {
        self.round
    }

    /// How long the other parties certainly count this one, even if no server answers.
    pub fn remaining(&self) -> Duration {
        self.place.remaining()
    }

    /// Cancelled when others may pass without this party: by this client's own clock at the latest.
    /// The party does not count again.
    pub fn on_lost(&self) -> CancellationToken {
        self.place.on_lost()
    }

    /// Leaves, and waits until all others have left too.
    ///
    /// # Errors
    ///
    /// [`RecipeError`]. The party has left then, or leaves when a server answers.
    pub async fn leave(self) -> Result<(), RecipeError> {
        let Self { gathering, place, round } = self;
        place.leave().await?;
        gathering.until_all_have_left(round).await
    }
}

impl PartyNode {
    fn open(&self) -> Result<NodePath, RecipeError> {
        Ok(self.path.child(OPEN)?)
    }

    /// Opens the barrier if enough parties have arrived, or waits until another party opens it.
    /// Returns the revision at which it opened.
    async fn until_open(&self, place: &Party) -> Result<Revision, RecipeError> {
        let open = self.open()?;
        loop {
            let standing = self.client.parties(&self.path, Some(&open)).await?;
            if let Some(opened) = standing.mark {
                return Ok(opened);
            }
            if !standing.nodes.contains(place.node()) {
                return Err(place.lost_error().into());
            }
            if let Some(first) = standing.nodes.get(..self.count as usize) {
                match self.open_for(&open, first).await? {
                    Some(opened) => return Ok(opened),
                    // Another party has opened it, or has left.
                    None => continue,
                }
            }
            match put(&self.client, &open, standing.revision).await {
                // The watch is compacted, so this client does not know who has arrived.
                Err(WatchError::Compacted { .. }) => {}
                opened => return Ok(opened?),
            }
        }
    }

    /// Opens the barrier if all of these nodes exist and it is not open. Returns the revision at
    /// which it opened.
    async fn open_for(&self, open: &NodePath, nodes: &[NodePath]) -> Result<Option<Revision>, RecipeError> {
        let there = nodes.iter().cloned().map(Compare::exists);
        let transaction = Transaction {
            compares: there.chain([Compare::absent(open.clone())]).collect(),
            then: vec![Operation::put(open.clone(), "")],
            otherwise: Vec::new(),
        };
        let outcome = self.client.transaction(transaction).await?;
        Ok(outcome.succeeded().then_some(outcome.revision))
    }

    /// Waits until all parties of a round have left, and then closes the barrier.
    async fn until_all_have_left(&self, round: Revision) -> Result<(), RecipeError> {
        let open = self.open()?;
        loop {
            // Read as of one moment: a party that exists while the barrier is open arrived before
            // it opened.
            let standing = self.client.parties(&self.path, Some(&open)).await?;
            if standing.mark != Some(round) {
                return Ok(());
            }
            let count = standing.nodes.len();
            match standing.until_fewer_than(1, count, &self.client).await {
                Err(WatchError::Compacted { .. }) => continue,
                left => left?,
            }
            // Nobody has arrived meanwhile, because the barrier is open.
            return match self.client.delete(&open).if_revision(round).await {
                Ok(_) | Err(WriteError::Refused(_)) => Ok(()),
                Err(error) => Err(error.into()),
            };
        }
    }
}

impl Client {
    /// A barrier for 1 to 127 parties. All users must give the same number: the first writes it to
    /// the node. The nodes below belong to the barrier. To close it again, remove the node
    /// recursively. Sends nothing before somebody waits.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// client.barrier("/computation/all-are-there", 3).wait().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn barrier(&self, path: impl TryInto<NodePath, Error: Into<PathError>>, parties: u32) -> Barrier {
        Barrier(PartyPlace::new(self, given(path), parties, PARTIES_MAX))
    }

    /// A double barrier for 1 to 127 parties: they enter together, and leave together.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let step = client.double_barrier("/computation/step", 3);
    /// for _ in 0..10 {
    ///     let inside = step.enter().await?;
    ///     // What each of the three does in this step.
    ///     inside.leave().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn double_barrier(&self, path: impl TryInto<NodePath, Error: Into<PathError>>, parties: u32) -> DoubleBarrier {
        DoubleBarrier(PartyPlace::new(self, given(path), parties, PARTIES_MAX))
    }
}
