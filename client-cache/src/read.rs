//! Reads: their results, and how a miss waits for a server.

use std::{
    future::Future,
    ops::Deref,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures::{FutureExt, future::BoxFuture};
use leasehold_protocol::{
    holder::{self, ReadId},
    id::Revision,
    lease_policy::LeaseRequest,
    object::{Children, Content, Data, NodeOwner, Object, ObjectKind},
    path::{NodePath, PathError},
    time::Instant,
};

use crate::{
    cache::{CacheHit, RecentCopy},
    call::{GivenPath, given},
    client::Client,
    clock,
    driver::{Driver, ReadOutcome},
    error::ReadError,
    shared_content::SharedContent,
    stats::count,
};

/// A node's value and stat. Cheap to clone: all clones share memory with the cache.
///
/// ```
/// # fn show(entry: leasehold_client_cache::NodeData) {
/// println!("{} bytes, last changed at revision {}", entry.value.len(), entry.stat.modify_revision);
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeData(SharedContent);

impl NodeData {
    /// `None` if the content is not the data of a node that exists.
    pub(crate) fn of(content: SharedContent) -> Option<Self> {
        matches!(*content, Content::Data(Some(_))).then_some(Self(content))
    }
}

impl Deref for NodeData {
    type Target = Data;

    fn deref(&self) -> &Data {
        match &*self.0 {
            Content::Data(Some(data)) => data,
            _ => unreachable!("an entry is made of the data of a node that exists, and contents do not change"),
        }
    }
}

/// The sorted names of a node's children. Cheap to clone: all clones share memory with the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listing(SharedContent);

impl Listing {
    /// `None` if the content is not the children of a node that exists.
    pub(crate) fn of(content: SharedContent) -> Option<Self> {
        matches!(*content, Content::Children(Some(_))).then_some(Self(content))
    }
}

impl Deref for Listing {
    type Target = Children;

    fn deref(&self) -> &Children {
        match &*self.0 {
            Content::Children(Some(children)) => children,
            _ => unreachable!("a listing is made of the children of a node that exists, and contents do not change"),
        }
    }
}

/// Everything about a node except its value, as of one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeStat {
    /// The change that created the node.
    pub create_revision: Revision,
    /// The last change of the value.
    pub modify_revision: Revision,
    /// How many times the value was written since the node was created: 1 for a new node.
    pub version: u64,
    /// The value's length in bytes.
    pub value_len: u64,
    /// The lease that the node is attached to, if any.
    pub owner: Option<NodeOwner>,
    /// How many changes of the list of children there were since the node was created.
    pub children_version: u64,
    /// The last change of the list of children.
    pub children_revision: Revision,
    /// The number of children.
    pub child_count: u64,
}

impl NodeStat {
    pub(crate) fn new(data: &Data, children: &Children) -> Self {
        let stat = &data.stat;
        Self {
            create_revision: stat.create_revision,
            modify_revision: stat.modify_revision,
            version: stat.version,
            value_len: stat.value_len,
            owner: stat.owner,
            children_version: children.version,
            children_revision: children.modify_revision,
            child_count: children.names.len() as u64,
        }
    }
}

/// A read that is about to be made: see [`Client::get`], [`Client::children`] and
/// [`Client::read`].
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
    /// This is the weak end of the scale: *a fixed time to live*, as in most caches. The client
    /// still sees its own writes. If the volume's writes recall copies, a changed copy is gone, and
    /// the answer is rarely older than an outage.
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
                if let Some(hit) = driver.cache.hit(kind, path) {
                    return Poll::Ready(Ok((read.convert)(Read::from_memory(hit))));
                }
                let (object, after) = (Object { path: path.clone(), kind }, read.client.timeout(read.timeout));
                match read.max_stale {
                    None => waiting.insert(Box::pin(driver.miss(object, read.lease, after))),
                    Some(most) => {
                        if let Some(recent) = driver.recent_copy(&object, most) {
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

/// The source of a read's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadSource {
    /// The cache, without a request.
    Memory,
    /// A server. It may have confirmed only that the copy in memory is still valid.
    Server,
}

/// The result of a read.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Read {
    /// The content, or that the node does not exist. Shared with the cache.
    pub content: SharedContent,
    /// The object's last change. `None` if the node does not exist.
    pub revision: Option<Revision>,
    /// Whether the cache or a server answered.
    pub source: ReadSource,
    /// How long, from now, the client may answer reads with this content from memory, even if no
    /// server answers. It is the remaining time of the leases by this client's clock. A recall can
    /// end it at any time. `None` without valid leases.
    pub valid_for: Option<Duration>,
    /// The lease that the node is attached to, if any.
    pub owner: Option<NodeOwner>,
    /// `None`: the content was current at a moment during the read. Otherwise it was current this
    /// long before, and may have changed since. Only reads with
    /// [`max_stale`](ReadBuilder::max_stale) return such a content.
    pub age: Option<Duration>,
}

impl Read {
    fn new(content: SharedContent, source: ReadSource, until: Option<Instant>, now: Instant) -> Self {
        let owner = match &*content {
            Content::Data(Some(data)) => data.stat.owner,
            _ => None,
        };
        let valid_for = until.filter(|until| now < *until).map(|until| until.since(now));
        Self { revision: content.modify_revision(), content, source, valid_for, owner, age: None }
    }

    fn recent(copy: RecentCopy) -> Self {
        let RecentCopy { content, age } = copy;
        Self { age: Some(age), ..Self::new(content, ReadSource::Memory, None, clock::now()) }
    }

    pub(crate) fn from_memory(hit: CacheHit) -> Self {
        Self::new(hit.content, ReadSource::Memory, Some(hit.until), hit.at)
    }
}

/// Cancels the read when nobody waits for it any longer.
struct ReadWait<'a> {
    driver: &'a Driver,
    read: ReadId,
}

impl Drop for ReadWait<'_> {
    fn drop(&mut self) {
        self.driver.cancel_read(self.read);
    }
}

impl Driver {
    /// Reads an object from memory, or else from a server within `after`.
    pub(crate) async fn get(&self, kind: ObjectKind, path: &NodePath, after: Duration) -> Result<Read, ReadError> {
        self.get_with(kind, path, LeaseRequest::Implicit, after).await
    }

    /// As `get`, with a request for a lease.
    pub(crate) async fn get_with(
        &self,
        kind: ObjectKind,
        path: &NodePath,
        lease: LeaseRequest,
        after: Duration,
    ) -> Result<Read, ReadError> {
        match self.cache.hit(kind, path) {
            Some(hit) => Ok(Read::from_memory(hit)),
            None => self.miss(Object { path: path.clone(), kind }, lease, after).await,
        }
    }

    /// The newest content of an object that was current at most `max_age` ago.
    fn recent_copy(&self, object: &Object, max_age: Duration) -> Option<RecentCopy> {
        let now = clock::now();
        let copy = self.cache.recent(object.kind, &object.path, max_age);
        // A write of this client may have changed the object since, without a recall of the copy.
        let copy = copy.filter(|copy| self.recent.is_after_writes(now.before(copy.age)));
        let answer = self.recent.get(object, max_age, now);
        let recent = [copy, answer].into_iter().flatten().min_by_key(|recent| recent.age);
        if recent.is_some() {
            count(&self.cache.counters.stale_hits);
        }
        recent
    }

    /// As `miss`. Remembers an answer without a lease for later reads that accept an old one.
    async fn miss_remembered(&self, object: Object, lease: LeaseRequest, after: Duration) -> Result<Read, ReadError> {
        self.recent.expect(&object);
        self.miss(object, lease, after).await
    }

    async fn miss(&self, object: Object, lease: LeaseRequest, after: Duration) -> Result<Read, ReadError> {
        count(&self.cache.counters.misses);
        let sent = clock::now();
        match tokio::time::timeout(after, self.fetch(object.clone(), lease)).await {
            Ok(outcome) => outcome.inspect(|read| self.recent.learn(&object, read, sent)),
            Err(_) => Err(match self.status.unavailable() {
                Some(source) => ReadError::Unavailable { after, source },
                None => ReadError::TimedOut { after },
            }),
        }
    }

    async fn fetch(&self, object: Object, lease: LeaseRequest) -> Result<Read, ReadError> {
        loop {
            let (read, answer) = self.read(object.clone(), lease);
            let _waiting = ReadWait { driver: self, read };
            match answer.await {
                Ok(ReadOutcome::Content { content, from_server, valid_until }) => {
                    let source = if from_server { ReadSource::Server } else { ReadSource::Memory };
                    return Ok(Read::new(content, source, valid_until, clock::now()));
                }
                Ok(ReadOutcome::CopyEvicted) => {}
                Ok(ReadOutcome::Failed(holder::ReadFailure::Refused(refusal))) => {
                    return Err(ReadError::Refused(refusal));
                }
                Ok(ReadOutcome::Failed(holder::ReadFailure::Closed)) | Err(_) => return Err(ReadError::Closed),
            }
        }
    }
}

impl Client {
    /// Reads a node's value and stat. `None` if the node does not exist.
    ///
    /// Linearizable: the read sees every write of any client that was acknowledged before the read
    /// began. If the cache has a copy that may be used, the read comes from memory, allocates
    /// nothing and does not wait. (A path that is given as text is allocated; a [`NodePath`] is
    /// not.)
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// if let Some(node) = client.get("/config/web/port").await? {
    ///     println!("{} bytes, written at revision {}", node.value.len(), node.stat.modify_revision);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ReadError`], only if the read needs a server, or if the path is bad.
    pub fn get(&self, path: impl TryInto<NodePath, Error: Into<PathError>>) -> ReadBuilder<'_, Option<NodeData>> {
        ReadBuilder::new(self, given(path), ObjectKind::Data, |read| NodeData::of(read.content))
    }

    /// Reads the names of a node's children. `None` if the node does not exist. Cached and
    /// linearizable as [`Client::get`] is.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// for name in client.children("/services").await?.iter().flat_map(|children| &children.names) {
    ///     println!("{name}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ReadError`], only if the read needs a server, or if the path is bad.
    pub fn children(&self, path: impl TryInto<NodePath, Error: Into<PathError>>) -> ReadBuilder<'_, Option<Listing>> {
        ReadBuilder::new(self, given(path), ObjectKind::Children, |read| Listing::of(read.content))
    }

    /// Reads as [`Client::get`] does, and also says whether a server answered, and how long the
    /// answer stays valid. [`ReadBuilder::kind`] reads the children instead of the data.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let read = client.read("/config/web/port").await?;
    /// println!("from {:?}, valid for {:?} without a message", read.source, read.valid_for);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ReadError`], only if the read needs a server, or if the path is bad.
    pub fn read(&self, path: impl TryInto<NodePath, Error: Into<PathError>>) -> ReadBuilder<'_, Read> {
        ReadBuilder::new(self, given(path), ObjectKind::Data, |read| read)
    }

    /// Reads a node's data from memory only. `None` if the cache has no copy that may be used now.
    /// [`Content::Data`]`(None)` if the copy says that the node does not exist. As linearizable as
    /// [`Client::get`], but needs no runtime, allocates nothing, does not wait and sends nothing.
    ///
    /// ```no_run
    /// # fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let port = "/config/web/port".parse()?;
    /// println!("a copy is in memory: {}", client.cached(&port).is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub fn cached(&self, path: &NodePath) -> Option<SharedContent> {
        self.driver().cache.hit(ObjectKind::Data, path).map(|hit| hit.content)
    }

    /// How long the cached copy of the node's data certainly stays valid. `None` if there is no
    /// copy that may be used now. A recall can end the copy earlier.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let port = "/config/web/port".parse()?;
    /// println!("no message for {:?}", client.cached_for(&port));
    /// # Ok(())
    /// # }
    /// ```
    pub fn cached_for(&self, path: &NodePath) -> Option<Duration> {
        self.driver().cache.usable_until(ObjectKind::Data, path).map(|until| until.since(clock::now()))
    }

    /// Reads everything about a node except its value, as of one moment. `None` if the node does
    /// not exist.
    ///
    /// Data and children are two objects. The client reads the data before the children and again
    /// after them. If the revision is the same, the data did not change in between, because
    /// revisions are never reused. Otherwise the client tries again, until its timeout.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// if let Some(stat) = client.stat("/config").await? {
    ///     println!("{} children, version {}", stat.child_count, stat.version);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ReadError`], only if the read needs a server, or if the path is bad.
    pub async fn stat(
        &self,
        path: impl TryInto<NodePath, Error: Into<PathError>>,
    ) -> Result<Option<NodeStat>, ReadError> {
        self.stat_of(&given(path)?).await
    }

    async fn stat_of(&self, path: &NodePath) -> Result<Option<NodeStat>, ReadError> {
        let (after, began) = (self.timeout(None), clock::now());
        loop {
            let left = after.saturating_sub(clock::now().since(began));
            let data = self.driver().get(ObjectKind::Data, path, left).await?;
            let Content::Data(Some(found)) = &*data.content else { return Ok(None) };
            let children = self.driver().get(ObjectKind::Children, path, left).await?;
            let again = self.driver().get(ObjectKind::Data, path, left).await?;
            if let (Content::Children(Some(children)), true) = (&*children.content, again.revision == data.revision) {
                return Ok(Some(NodeStat::new(found, children)));
            }
        }
    }
}
