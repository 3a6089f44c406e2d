//! A semaphore: up to so many at a time, in the order in which they came.
//!
//! Who wants a permit takes a place at the semaphore's node (see `place`): a node of its own, which
//! goes with the session's lease. The oldest N places have permits; when one goes, the next has it.
//! No server counts anything: what decides is the order of the log.
//!
//! # Why there are never more than N
//!
//! A place keeps the node that it was made with until it goes, so the number of older ones only
//! falls: once it is below N, it stays so. At each index of the log at most N of the nodes that are
//! there have fewer than N older ones. Whoever has a permit has seen that of its own, and its node
//! is there for as long as it counts on it: it is removed only when its holder has given it back or
//! its lease has ended, which the holder's own clock says first, by the volume's skew margin at
//! least (T2, T3).
//!
//! # What is lost if answers are
//!
//! Nothing: a place of which it is not known whether it was taken is given back (see `place`), and
//! none is taken twice.
//!
//! # What only the token can
//!
//! Keep out what was sent under a permit and arrives after its end. With a semaphore it cannot be
//! told by the order of tokens, since permits overlap: one with a smaller token may well last
//! longer. A resource asks whether the token is good: [`Compare::held`] with the semaphore's path
//! does, in the transaction that writes. (With one permit the order of tokens is enough, as with a
//! mutex.)

use std::time::Duration;

#[cfg(doc)]
use leasehold_protocol::transaction::Compare;
use leasehold_protocol::{id::Token, path::NodePath};
use tokio_util::sync::CancellationToken;

use super::{
    RecipeError,
    party::{Party, PartyNode},
};
use crate::{
    client::Client,
    error::{LockError, WatchError},
};

/// The most permits of a semaphore: more than can be told apart by listing who has them.
const PERMITS_MAX: u32 = 1 << 16;

/// Up to so many clients at a time. See [`Client::semaphore`].
#[derive(Debug, Clone)]
pub struct Semaphore(PartyNode);

/// A permit, until it is dropped or [released](Permit::release), or [`Permit::over`] says that it
/// is over.
///
/// # What it promises
///
/// No more than N have permits while each counts on its own only as long as [`Permit::certain_for`]
/// says more than zero. By [`Permit::over`] its holder learns of its end by its own clock, before
/// another can have it.
#[derive(Debug)]
#[must_use = "the permit is given back when this is dropped"]
pub struct Permit {
    place: Party,
    token: Token,
}

impl Semaphore {
    /// Waits for a permit. Dropping the future gives the place in the line back.
    ///
    /// # Errors
    ///
    /// [`RecipeError`].
    pub async fn acquire(&self) -> Result<Permit, RecipeError> {
        let place = self.arrive().await?;
        place.run_until_lost(self.wait_for_permit(&place)).await?;
        permit(place).await
    }

    /// None if there is none to be had now. (Others who come in this moment may wait for the
    /// answer.)
    ///
    /// # Errors
    ///
    /// [`RecipeError`].
    pub async fn try_acquire(&self) -> Result<Option<Permit>, RecipeError> {
        self.0.wait_for_pending_releases().await?;
        // As a rule this is read from memory, and nobody is disturbed.
        let children = self.0.client.children(&self.0.path).await?;
        if children.is_some_and(|children| children.names.len() >= self.0.count as usize) {
            return Ok(None);
        }
        let place = self.arrive().await?;
        let ahead = place.run_until_lost(async {
            let standing = self.0.client.parties(&self.0.path, None).await?;
            Ok(standing.nodes.iter().position(|node| node == place.node()))
        });
        match ahead.await? {
            Some(ahead) if ahead < self.0.count as usize => permit(place).await.map(Some),
            Some(_) => Ok(None),
            None => Err(place.lost_error().into()),
        }
    }

    /// None if there was none to be had within this time.
    ///
    /// # Errors
    ///
    /// [`RecipeError`].
    pub async fn acquire_timeout(&self, most: Duration) -> Result<Option<Permit>, RecipeError> {
        match tokio::time::timeout(most, self.acquire()).await {
            Ok(acquired) => acquired.map(Some),
            Err(_) => Ok(None),
        }
    }

    async fn arrive(&self) -> Result<Party, RecipeError> {
        match self.0.join(None).await? {
            Some(place) => Ok(place),
            None => unreachable!("nothing stands in the way of a place"),
        }
    }

    /// Waits until fewer than N older places are left.
    async fn wait_for_permit(&self, place: &Party) -> Result<(), RecipeError> {
        let count = self.0.count as usize;
        loop {
            let standing = self.0.client.parties(&self.0.path, None).await?;
            let Some(ahead) = standing.nodes.iter().position(|node| node == place.node()) else {
                return Err(place.lost_error().into());
            };
            match standing.until_fewer_than(count, ahead, &self.0.client).await {
                // Cut off for so long that it is not known who has left.
                Err(WatchError::Compacted { .. }) => {}
                turn => return Ok(turn?),
            }
        }
    }
}

async fn permit(mut place: Party) -> Result<Permit, RecipeError> {
    let token = place.renew_token().await?;
    Ok(Permit { place, token })
}

impl Permit {
    /// The fencing token: it grows from permit to permit, in the order in which they are granted,
    /// and stays the same when this is over.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The node that stands for it.
    pub fn path(&self) -> &NodePath {
        self.place.node()
    }

    /// How long it is certain if nothing more is heard; zero if it is over.
    pub fn remaining(&self) -> Duration {
        self.place.remaining()
    }

    /// Cancelled when it is over, or can no longer be relied on: by this client's own clock at the
    /// latest. Once for all.
    pub fn on_lost(&self) -> CancellationToken {
        self.place.on_lost()
    }

    /// Gives it back, and waits for the server to know. It is not held any more from the call on,
    /// whatever comes of it.
    ///
    /// # Errors
    ///
    /// [`LockError::CopyEvicted`] if it was over already; [`LockError::Write`] if nobody answered
    /// in time: it is still given back when somebody does, or ends with the client's lease.
    pub async fn release(self) -> Result<(), LockError> {
        self.place.leave().await
    }
}

impl Client {
    /// A semaphore of so many permits. All who use it have to give the same number, which is
    /// written to the node by the first; nodes below it are the semaphore's. Nothing is asked
    /// before a permit is.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let licences = client.semaphore(&"/licences".parse()?, 4);
    /// let permit = licences.acquire().await?;
    /// tokio::select! {
    ///     () = permit.over().cancelled_owned() => println!("stopped in time"),
    ///     () = async { /* what at most four do at a time */ } => permit.release().await?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn semaphore(&self, path: &NodePath, permits: u32) -> Semaphore {
        Semaphore(PartyNode { client: self.clone(), path: path.clone(), count: permits, most: PERMITS_MAX })
    }
}
