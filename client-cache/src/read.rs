//! Reads: their results, and how a miss waits for a server.

mod builder;

use std::{ops::Deref, time::Duration};

use leasehold_protocol::{
    holder::{self, ReadId},
    id::Revision,
    lease_policy::LeaseRequest,
    object::{Children, Content, Data, NodeOwner, Object, ObjectKind},
    path::{NodePath, PathError},
    time::Instant,
};

pub use builder::{ReadBuilder, ReadFuture};

use crate::{
    cache::{CacheHit, RecentCopy},
    call::given,
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
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// if let Some(children) = client.children("/services").await? {
///     println!("{} children, version {}", children.names.len(), children.version);
/// }
/// # Ok(())
/// # }
/// ```
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
    /// The last change of the list of children. If there was none, the creation of the node.
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

/// The source of a read's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadSource {
    /// The cache, without a request.
    Memory,
    /// A server. It may only have validated the copy in memory.
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

    /// As `get`, with this request for a lease.
    pub(crate) async fn get_with(
        &self,
        kind: ObjectKind,
        path: &NodePath,
        lease: LeaseRequest,
        after: Duration,
    ) -> Result<Read, ReadError> {
        match self.cache.hit(kind, path) {
            Some(hit) => {
                tokio::task::coop::consume_budget().await;
                Ok(Read::from_memory(hit))
            }
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
        let (sent, (cause, granted)) = (clock::now(), self.cache.miss(object.kind, &object.path));
        let answered = tokio::time::timeout(after, self.fetch(object.clone(), lease)).await;
        // Counted after the answer, because the first answer in a volume names the volume.
        self.count_miss(&object.path, cause, granted.map(|granted| sent.since(granted)));
        match answered {
            Ok(outcome) => {
                outcome.inspect(|read| self.recent.learn(&object, &read.content, read.valid_for.is_some(), sent))
            }
            Err(_) => Err(self.read_timed_out(object.path, after)),
        }
    }

    fn read_timed_out(&self, path: NodePath, after: Duration) -> ReadError {
        match self.status.unavailable() {
            Some(source) => ReadError::Unavailable { path, after, source },
            None => ReadError::TimedOut { path, after },
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
                    return Err(ReadError::Refused { path: object.path, refusal });
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
        let after = self.timeout(None);
        let read = tokio::time::timeout(after, self.stat_until_read(path, after)).await;
        read.unwrap_or_else(|_| Err(self.driver().read_timed_out(path.clone(), after)))
    }

    async fn stat_until_read(&self, path: &NodePath, after: Duration) -> Result<Option<NodeStat>, ReadError> {
        loop {
            let data = self.driver().get(ObjectKind::Data, path, after).await?;
            let Content::Data(Some(found)) = &*data.content else { return Ok(None) };
            let children = self.driver().get(ObjectKind::Children, path, after).await?;
            let again = self.driver().get(ObjectKind::Data, path, after).await?;
            if let (Content::Children(Some(children)), true) = (&*children.content, again.revision == data.revision) {
                return Ok(Some(NodeStat::new(found, children)));
            }
        }
    }
}
