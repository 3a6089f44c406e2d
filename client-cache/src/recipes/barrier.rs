//! Barriers: nobody goes on before so many have come.
//!
//! Who comes takes a place at the barrier's node (see `place`). Who finds N or more there opens it,
//! by a transaction that compares that N of them are still there and puts a node that says *open*;
//! all others watch only that node.
//!
//! # What it promises
//!
//! It opens at one moment in the order of all changes, and at that moment N stand there, each with
//! a lease that had not been found to be over. Who crashed or was cut off long enough before does
//! not count; who does so a moment later did come. All who stand there pass, also those who hear of
//! it when others have left already.
//!
//! # Why nobody waits in vain
//!
//! The number rises only by one who comes, and each who comes counts after that: whoever comes last
//! finds N. If it fails before it has opened the barrier, its place goes, by its own doing or with
//! its lease, and it has not come. An opening whose answer is lost changes nothing if it is done
//! again.
//!
//! A round of a double barrier ends when all have left, by themselves or with their leases. Nobody
//! comes while it is open, so the last one's leaving can be waited for; then whoever waits for it
//! removes the node that says *open*, and only that round's.
//!
//! # What it does not know
//!
//! Whether those who have passed are still alive: that is what [`BarrierGuard::over`] tells each of
//! itself. A barrier protects nothing, so there is no token.

use std::time::Duration;

use leasehold_protocol::{
    command::Condition,
    id::Revision,
    path::NodePath,
    transaction::{Compare, Operation, Transaction},
};
use tokio_util::sync::CancellationToken;

use super::{
    RecipeError,
    departures::put,
    party::{Party, PartyNode},
};
use crate::{
    client::Client,
    error::{WatchError, WriteError},
    write::DeleteOptions,
};

/// One comparison for each, and one for the barrier itself.
const PARTIES_MAX: u32 = Transaction::COMPARES_MAX as u32 - 1;

/// The node that says that a barrier is open. No place has such a name.
const OPEN: &str = "open";

/// Opens when so many have come, and stays open. See [`Client::barrier`].
#[derive(Debug, Clone)]
pub struct Barrier(PartyNode);

/// Opens when so many have come, and closes when all have left, again and again. See
/// [`Client::double_barrier`].
#[derive(Debug, Clone)]
pub struct DoubleBarrier(PartyNode);

/// So many have come. Dropping it leaves, and waits for nobody.
#[derive(Debug)]
#[must_use = "it leaves when this is dropped"]
pub struct BarrierGuard {
    gathering: PartyNode,
    place: Party,
    /// When the barrier opened.
    round: Revision,
}

impl Barrier {
    /// Waits until so many have come, this included. Dropping the future withdraws.
    ///
    /// # Errors
    ///
    /// [`RecipeError`]. It may have been counted, if others came before it had withdrawn.
    pub async fn wait(&self) -> Result<(), RecipeError> {
        let open = self.0.open()?;
        if self.0.client.get(&open).await?.is_some() {
            return Ok(());
        }
        self.0.wait_for_pending_releases().await?;
        let Some(place) = self.0.join(Some(&open)).await? else { return Ok(()) };
        place.run_until_lost(self.0.until_open(&place)).await.map(|_| ())
    }
}

impl DoubleBarrier {
    /// Waits until so many have come, this included; and before that, until all of the round before
    /// have left. Dropping the future withdraws.
    ///
    /// # Errors
    ///
    /// [`RecipeError`]. It may have been counted, if others came before it had withdrawn.
    pub async fn enter(&self) -> Result<BarrierGuard, RecipeError> {
        let open = self.0.open()?;
        loop {
            if let Some(entry) = self.0.client.get(&open).await? {
                self.0.until_all_have_left(entry.stat.create_revision).await?;
            }
            self.0.wait_for_pending_releases().await?;
            if let Some(place) = self.0.join(Some(&open)).await? {
                let round = place.run_until_lost(self.0.until_open(&place)).await?;
                return Ok(BarrierGuard { gathering: self.0.clone(), place, round });
            }
        }
    }
}

impl BarrierGuard {
    /// When the barrier opened: the same for all who came in together, and growing from round to
    /// round.
    pub fn round(&self) -> Revision {
        self.round
    }

    /// How long it is certain that the others count this one as inside, if nothing more is heard.
    pub fn remaining(&self) -> Duration {
        self.place.remaining()
    }

    /// Cancelled when others may go on without waiting for this one: by this client's own clock at
    /// the latest. Once for all.
    pub fn on_lost(&self) -> CancellationToken {
        self.place.on_lost()
    }

    /// Leaves, and waits until all others have left too.
    ///
    /// # Errors
    ///
    /// [`RecipeError`]; this one has left then, or does when somebody answers.
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

    /// Opens the barrier if so many stand there, or waits until somebody does. Returns when it
    /// opened.
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
                    // Somebody has opened it, or has left.
                    None => continue,
                }
            }
            match put(&self.client, &open, standing.revision).await {
                // Cut off for so long that it is not known who has come.
                Err(WatchError::Compacted { .. }) => {}
                opened => return Ok(opened?),
            }
        }
    }

    /// Opens the barrier if all of these are still there, and it is not open. Returns when it
    /// opened.
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

    /// Waits until all who came in at that revision have left, and closes the barrier for them.
    async fn until_all_have_left(&self, round: Revision) -> Result<(), RecipeError> {
        let open = self.open()?;
        loop {
            // Both as of one moment: those who stand there while it is open came before it was.
            let standing = self.client.parties(&self.path, Some(&open)).await?;
            if standing.mark != Some(round) {
                return Ok(());
            }
            let count = standing.nodes.len();
            match standing.until_fewer_than(1, count, &self.client).await {
                Err(WatchError::Compacted { .. }) => continue,
                left => left?,
            }
            // Nobody has come in the meantime: it is open.
            let options = DeleteOptions { condition: Condition::Revision(round), ..DeleteOptions::default() };
            return match self.client.delete(&open, options).await {
                Ok(_) | Err(WriteError::Refused(_)) => Ok(()),
                Err(error) => Err(error.into()),
            };
        }
    }
}

impl Client {
    /// A barrier for so many, 127 at most. All who use it have to give the same number, which is
    /// written to the node by the first; nodes below it are the barrier's. To close it again,
    /// remove it with all below.
    pub fn barrier(&self, path: &NodePath, parties: u32) -> Barrier {
        Barrier(self.gathering(path, parties))
    }

    /// A double barrier for so many, 127 at most: they go in together, and come out together.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let step = client.double_barrier(&"/computation/step".parse()?, 3);
    /// for _ in 0..10 {
    ///     let inside = step.enter().await?;
    ///     // What each of the three does in this step.
    ///     inside.leave().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn double_barrier(&self, path: &NodePath, parties: u32) -> DoubleBarrier {
        DoubleBarrier(self.gathering(path, parties))
    }

    fn gathering(&self, path: &NodePath, parties: u32) -> PartyNode {
        PartyNode { client: self.clone(), path: path.clone(), count: parties, most: PARTIES_MAX }
    }
}
