//! A read that is about to be made, and its options.

use std::{
    future::{Future, IntoFuture},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use leasehold_protocol::{
    lease_policy::LeaseRequest,
    object::{Object, ObjectKind},
};

use super::Read;
use crate::{call::GivenPath, client::Client, error::ReadError};

/// A read that is about to be made: see [`Client::get`], [`Client::children`] and
/// [`Client::read`].
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_client_cache::ObjectKind;
/// use std::time::Duration;
///
/// let names = client.read("/services").kind(ObjectKind::Children).timeout(Duration::from_secs(1)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is read until this is awaited"]
pub struct ReadBuilder<'a, T> {
    client: &'a Client,
    path: GivenPath,
    kind: ObjectKind,
    timeout: Option<Duration>,
    lease: LeaseRequest,
    max_stale: Option<Duration>,
    convert: fn(Read) -> T,
}

impl<'a, T> ReadBuilder<'a, T> {
    pub(crate) fn new(client: &'a Client, path: GivenPath, kind: ObjectKind, convert: fn(Read) -> T) -> Self {
        Self { client, path, kind, timeout: None, lease: LeaseRequest::Implicit, max_stale: None, convert }
    }

    /// How long the read may take. By default, the client's timeout.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Whether the read asks for an object lease. By default, it gets one if the volume grants one
    /// to all readers. A client that reads a node only once should ask for none: a lease would only
    /// delay the next write of the node.
    ///
    /// It is a hint. Reads of one object at one time share a request, which asks for the most that
    /// any of them wants.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold_client_cache::LeaseRequest;
    ///
    /// let once = client.get("/import/batch-17").lease(LeaseRequest::Unwanted).await?;
    /// let often = client.get("/config/web/port").lease(LeaseRequest::Explicit).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lease(mut self, lease: LeaseRequest) -> Self {
        self.lease = lease;
        self
    }
}

/// Reads that accept an old answer.
impl<T> ReadBuilder<'_, T> {
    /// Accepts an answer from memory that was current at most this long ago, also if the leases
    /// have ended, or if the volume grants none. [`Read::age`] says how old it is. Without such an
    /// answer, a server is asked as usual.
    ///
    /// This is the weakest guarantee: an answer is used for a fixed time, as in most caches. The
    /// client still sees its own writes. A recall removes a copy, so an answer can only be old if
    /// it came without a lease, or if its leases have ended.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let read = client.read("/prices/eur").max_stale(Duration::from_secs(30)).await?;
    /// if let Some(age) = read.age {
    ///     println!("current {age:?} ago");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn max_stale(mut self, age: Duration) -> Self {
        self.max_stale = Some(age);
        self
    }
}

impl ReadBuilder<'_, Read> {
    /// Which of the node's objects to read. By default, its data.
    pub fn kind(mut self, kind: ObjectKind) -> Self {
        self.kind = kind;
        self
    }
}

impl<'a, T> IntoFuture for ReadBuilder<'a, T> {
    type Output = Result<T, ReadError>;
    type IntoFuture = ReadFuture<'a, T>;

    fn into_future(self) -> ReadFuture<'a, T> {
        ReadFuture { read: self, waiting: None }
    }
}

/// A read that has begun. It allocates only if a server has to answer.
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use futures::future::try_join_all;
///
/// let reads = ["/a", "/b", "/c"].map(|path| client.get(path).into_future());
/// println!("{:?}", try_join_all(reads).await?);
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is read until this is awaited"]
pub struct ReadFuture<'a, T> {
    read: ReadBuilder<'a, T>,
    /// Waits for a server.
    waiting: Option<BoxFuture<'a, Result<Read, ReadError>>>,
}

impl<T> Future for ReadFuture<'_, T> {
    type Output = Result<T, ReadError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let ReadFuture { read, waiting } = &mut *self;
        let waiting = match waiting {
            Some(waiting) => waiting,
            None => {
                let path = match &read.path {
                    Ok(path) => path,
                    Err(error) => return Poll::Ready(Err(ReadError::Path(error.clone()))),
                };
                let (kind, driver) = (read.kind, read.client.driver());
                // A loop that only reads from memory must let other tasks run, such as the one that
                // handles recalls.
                let budget = ready!(tokio::task::coop::poll_proceed(cx));
                if let Some(hit) = driver.cache.hit(kind, path) {
                    budget.made_progress();
                    return Poll::Ready(Ok((read.convert)(Read::from_memory(hit))));
                }
                let (object, after) = (Object { path: path.clone(), kind }, read.client.timeout(read.timeout));
                match read.max_stale {
                    None => waiting.insert(Box::pin(driver.miss(object, read.lease, after))),
                    Some(most) => {
                        if let Some(recent) = driver.recent_copy(&object, most) {
                            budget.made_progress();
                            return Poll::Ready(Ok((read.convert)(Read::recent(recent))));
                        }
                        waiting.insert(Box::pin(driver.miss_remembered(object, read.lease, after)))
                    }
                }
            }
        };
        waiting.poll_unpin(cx).map(|outcome| outcome.map(read.convert))
    }
}

impl<T> std::fmt::Debug for ReadFuture<'_, T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadFuture").field("path", &self.read.path).field("kind", &self.read.kind).finish()
    }
}
