//! A semaphore: up to N permits at a time, in the order of arrival.
//!
//! Each user joins with a party (see `party`): a node attached to the session's lease. The oldest N
//! parties have permits; when one leaves, the next gets one. No server counts permits: the order of
//! the log decides.
//!
//! # Why there are never more than N
//!
//! New nodes are younger, so the number of nodes older than a party's own only falls. Once that
//! number is below N, it stays below N. At each index of the log, at most N of the existing nodes
//! have fewer than N older ones.
//!
//! The owner of a permit has seen fewer than N nodes older than its own. Its own node is removed
//! only when the owner leaves or its lease ends. The lease ends by the owner's own clock before the
//! servers end it (T2 and T3 in docs/PROTOCOL.md).
//!
//! # Lost answers
//!
//! A lost answer has no effect: a party that may have joined leaves again (see `party`), and none
//! joins twice.
//!
//! # Late requests
//!
//! Only a fencing token stops a request that was sent under a permit and arrives after its end. The
//! order of tokens does not help, because permits overlap: one with a lower token may last longer.
//! So a resource asks whether the token is current. [`Compare::locked`] with the semaphore's path
//! does that, in the transaction that writes. With a single permit, the order of tokens is enough,
//! as for a mutex.

use std::time::Duration;

#[cfg(doc)]
use leasehold_protocol::transaction::Compare;
use leasehold_protocol::{
    id::Token,
    path::{NodePath, PathError},
};
use tokio_util::sync::CancellationToken;

use super::{
    RecipeError,
    party::{Party, PartyPlace},
};
use crate::{
    call::given,
    client::Client,
    error::{LockError, WatchError},
};

/// The most permits of a semaphore. Each waiter lists the parties, and longer lists would be slow.
const PERMITS_MAX: u32 = 1 << 16;

/// Permits for up to N clients at a time. See [`Client::semaphore`].
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let licences = client.semaphore("/licences", 4);
/// match licences.acquire_timeout(Duration::from_secs(10)).await? {
///     Some(permit) => permit.release().await?,
///     None => println!("four other clients have the licences"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is sent until one of its methods is awaited"]
pub struct Semaphore(PartyPlace);

/// A permit, until it is dropped, [released](Permit::release) or lost ([`Permit::on_lost`]).
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let permit = client.semaphore("/licences", 4).acquire().await?;
/// println!("token {}, {:?} remain", permit.token(), permit.remaining());
/// permit.release().await?;
/// # Ok(())
/// # }
/// ```
///
/// # Guarantees
///
/// At most N clients have permits, if each counts on its own only while [`Permit::remaining`] is
/// above zero. [`Permit::on_lost`] is cancelled by the owner's own clock, before another client can
/// get the permit (after a suspension of the machine, up to a second later).
#[derive(Debug)]
#[must_use = "the permit is released when this is dropped"]
pub struct Permit {
    place: Party,
    token: Token,
}

impl Semaphore {
    /// Waits for a permit. Dropping the future leaves the queue.
    ///
    /// # Errors
    ///
    /// [`RecipeError`].
    pub async fn acquire(&self) -> Result<Permit, RecipeError> {
        let place = self.arrive().await?;
        place.run_until_lost(self.wait_for_permit(&place)).await?;
        permit(place).await
    }

    /// Takes a permit if one is free, or else returns `None`. Parties that arrive meanwhile may
    /// wait until this call has ended.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// if let Some(permit) = client.semaphore("/licences", 4).try_acquire().await? {
    ///     permit.release().await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`RecipeError`].
    pub async fn try_acquire(&self) -> Result<Option<Permit>, RecipeError> {
        let node = self.0.node()?;
        node.wait_for_pending_releases().await?;
        // Usually answered from memory, so a failed attempt costs no request.
        let children = node.client.children(&node.path).await?;
        if children.is_some_and(|children| children.names.len() >= node.count as usize) {
            return Ok(None);
        }
        let place = self.arrive().await?;
        let ahead = place.run_until_lost(async {
            let standing = node.client.parties(&node.path, None).await?;
            Ok(standing.nodes.iter().position(|node| node == place.node()))
        });
        match ahead.await? {
            Some(ahead) if ahead < node.count as usize => permit(place).await.map(Some),
            Some(_) => Ok(None),
            None => Err(place.lost_error().into()),
        }
    }

    /// Waits for a permit for at most `most`. `None` if there was none.
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
        match self.0.node()?.join(None).await? {
            Some(place) => Ok(place),
            None => unreachable!("nothing stands in the way of a place"),
        }
    }

    /// Waits until fewer than N older parties are left.
    async fn wait_for_permit(&self, place: &Party) -> Result<(), RecipeError> {
        let node = self.0.node()?;
        let count = node.count as usize;
        loop {
            let standing = node.client.parties(&node.path, None).await?;
            let Some(ahead) = standing.nodes.iter().position(|node| node == place.node()) else {
                return Err(place.lost_error().into());
            };
            match standing.until_fewer_than(count, ahead, &node.client).await {
                // The watch is compacted, so this client does not know who has left.
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
    /// The fencing token. It grows in the order in which permits are granted, and stays readable
    /// when this permit has ended.
    pub fn token(&self) -> Token {
        self.token
    }

    /// The node of the permit's party.
    pub fn path(&self) -> &NodePath {
        self.place.node()
    }

    /// For how long the permit certainly lasts, even if no server answers. Zero if it has ended.
    pub fn remaining(&self) -> Duration {
        self.place.remaining()
    }

    /// Cancelled when the permit has ended or is no longer certain: by this client's own clock at
    /// the latest. The permit does not become valid again.
    pub fn on_lost(&self) -> CancellationToken {
        self.place.on_lost()
    }

    /// Releases the permit, and waits for the answer. From the call on, the client does not have
    /// it, whatever the result.
    ///
    /// # Errors
    ///
    /// [`LockError::Lost`] if the permit had ended already. [`LockError::Write`] if no server
    /// answered in time: then the release continues, or the permit ends with the client's lease.
    pub async fn release(self) -> Result<(), LockError> {
        self.place.leave().await
    }
}

impl Client {
    /// A semaphore of 1 to 65,536 permits. All users must give the same number: the first writes it
    /// to the node. The nodes below belong to the semaphore. Sends nothing before a permit is
    /// requested.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let licences = client.semaphore("/licences", 4);
    /// let permit = licences.acquire().await?;
    /// tokio::select! {
    ///     () = permit.on_lost().cancelled_owned() => println!("stopped in time"),
    ///     () = async { /* what at most four do at a time */ } => permit.release().await?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn semaphore(&self, path: impl TryInto<NodePath, Error: Into<PathError>>, permits: u32) -> Semaphore {
        Semaphore(PartyPlace::new(self, given(path), permits, PERMITS_MAX))
    }
}
