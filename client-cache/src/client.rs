//! The client: the functions that applications call.

use std::{sync::Arc, time::Duration};

use leasehold_protocol::{
    command::{Write, Written},
    drift::Excess as ClockExcess,
    id::SessionId,
    message::{Answer, BlockedReadInfo, ClusterInfo, HolderInfo, Inspect, PendingWriteInfo, VolumeInfo},
    object::{Content, ObjectKind, Value},
    path::NodePath,
    volume::VolumeSettings,
};
use tokio::sync::watch;

use crate::{
    clock, connection,
    driver::Driver,
    error::{ConnectError, InspectError, ReadError, WriteError},
    options::Options,
    read::{Listing, NodeData, NodeStat, Read, ReadOptions},
    shared_content::SharedContent,
    stats::Stats,
    status::{ConnectionState, Events, ServerReach},
    write::{DeleteOptions, PutOptions},
};

/// A client of a cluster: its session, its leases, and the cache that the leases protect.
///
/// A `Client` is cheap to clone, and all clones are one client. Any task or thread may call its
/// methods at any time.
///
/// [`Client::close`] ends the session and its leases at once. Dropping the last clone stops all
/// tasks without a message to the servers, as a crash does. Writes of objects that were cached may
/// then wait for a volume term and a margin.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_client_cache::{Client, NodePath, Options};
///
/// let client = Client::connect(Options::new(["127.0.0.1:7600"]).name("docs")).await?;
/// let path: NodePath = "/services/web".parse()?;
/// client.put(&path, "up").await?;
/// let entry = client.get(&path).await?.expect("it was just written");
/// assert_eq!(&entry.value[..], b"up");
/// assert!(client.cached(&path).is_some(), "from now on it is read from memory, until somebody writes it");
/// client.close().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    handle: Arc<Handle>,
}

/// Ends the tasks when the last clone is dropped. The tasks share the driver, not this handle.
#[derive(Debug)]
struct Handle {
    driver: Arc<Driver>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.driver.closed.cancel();
    }
}

impl Client {
    /// Connects to a server and opens a session. The client's tasks run on the current tokio
    /// runtime, and end with the client.
    ///
    /// # Errors
    ///
    /// [`ConnectError`], with the reason, if there is no session within [the
    /// timeout](Options::timeout).
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with its timer and I/O enabled.
    pub async fn connect(options: Options) -> Result<Self, ConnectError> {
        if options.endpoints.is_empty() {
            return Err(ConnectError::NoEndpoints);
        }
        let after = options.timeout;
        let driver = Arc::new(Driver::new(options, rand::random_range(0..=1000)));
        let (mut state, mut reach) = (driver.status.state(), driver.status.reach());
        tokio::spawn(connection::keep_connected(Arc::clone(&driver)));
        tokio::spawn(Arc::clone(&driver).run_timer());
        let client = Self { handle: Arc::new(Handle { driver }) };
        let has_session = async {
            tokio::select! {
                _ = state.wait_for(|state| matches!(state, ConnectionState::Connected { .. })) => Ok(()),
                Ok(refused) = reach.wait_for(|reach| matches!(reach, ServerReach::Refused(_))) => Err(refused.clone()),
            }
        };
        match tokio::time::timeout(after, has_session).await {
            Ok(Err(ServerReach::Refused(refusal))) => Err(ConnectError::Refused(refusal)),
            Ok(_) => Ok(client),
            Err(_) => Err(match client.driver().status.unavailable() {
                Some(source) => ConnectError::Unavailable { after, source },
                None => ConnectError::TimedOut { after },
            }),
        }
    }

    pub(crate) fn shared_driver(&self) -> Arc<Driver> {
        Arc::clone(&self.handle.driver)
    }

    pub(crate) fn driver(&self) -> &Driver {
        &self.handle.driver
    }

    pub(crate) fn timeout(&self, given: Option<Duration>) -> Duration {
        given.unwrap_or(self.driver().options.timeout)
    }

    /// Reads a node's value and stat. `None` if the node does not exist.
    ///
    /// Linearizable: the read sees every write of any client that was acknowledged before the read
    /// began. If the cache has a copy that may be used, the read comes from memory, allocates
    /// nothing and does not wait.
    ///
    /// # Errors
    ///
    /// [`ReadError`], only if the read needs a server.
    pub async fn get(&self, path: &NodePath) -> Result<Option<NodeData>, ReadError> {
        self.get_within(path, self.timeout(None)).await
    }

    pub(crate) async fn get_within(&self, path: &NodePath, after: Duration) -> Result<Option<NodeData>, ReadError> {
        let read = self.driver().get(ObjectKind::Data, path, after).await?;
        Ok(NodeData::of(read.content))
    }

    /// Reads a node's data from memory only. `None` if the cache has no copy that may be used now.
    /// [`Content::Data`]`(None)` if the copy says that the node does not exist. As linearizable as
    /// [`Client::get`], but needs no runtime, allocates nothing, does not wait and sends nothing.
    pub fn cached(&self, path: &NodePath) -> Option<SharedContent> {
        self.driver().cache.hit(ObjectKind::Data, path).map(|hit| hit.content)
    }

    /// Reads a node's data. The result also says whether a server answered, and how long the answer
    /// stays valid. As linearizable as [`Client::get`].
    ///
    /// # Errors
    ///
    /// [`ReadError`], only if the read needs a server.
    pub async fn read(&self, path: &NodePath) -> Result<Read, ReadError> {
        self.read_with(path, ReadOptions::default()).await
    }

    /// Like [`Client::read`], with options: the node's children instead of its data, or a timeout.
    ///
    /// # Errors
    ///
    /// [`ReadError`], only if the read needs a server.
    pub async fn read_with(&self, path: &NodePath, options: ReadOptions) -> Result<Read, ReadError> {
        self.driver().get(options.kind, path, self.timeout(options.timeout)).await
    }

    /// Reads the names of a node's children. `None` if the node does not exist. Cached and
    /// linearizable as [`Client::get`] is.
    ///
    /// # Errors
    ///
    /// [`ReadError`], only if the read needs a server.
    pub async fn children(&self, path: &NodePath) -> Result<Option<Listing>, ReadError> {
        let read = self.driver().get(ObjectKind::Children, path, self.timeout(None)).await?;
        Ok(Listing::of(read.content))
    }

    /// Reads everything about a node except its value, as of one moment. `None` if the node does
    /// not exist.
    ///
    /// Data and children are two objects. The client reads the data before the children and again
    /// after them. If the revision is the same, the data did not change in between, because
    /// revisions are never reused. Otherwise the client tries again, until its timeout.
    ///
    /// # Errors
    ///
    /// [`ReadError`], only if the read needs a server.
    pub async fn stat(&self, path: &NodePath) -> Result<Option<NodeStat>, ReadError> {
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

    /// Sets a node's value. Creates the node and its missing ancestors. When this returns, no
    /// client reads the old value any longer. This client's next read of the node usually comes
    /// from memory.
    ///
    /// # Errors
    ///
    /// [`WriteError`], which says whether the write [may still
    /// happen](WriteError::may_still_happen).
    pub async fn put(&self, path: &NodePath, value: impl Into<Value>) -> Result<Written, WriteError> {
        self.put_with(path, value, PutOptions::default()).await
    }

    /// Like [`Client::put`], with a condition, a lease to attach the node to, or a timeout.
    ///
    /// # Errors
    ///
    /// [`WriteError`], which says whether the write [may still
    /// happen](WriteError::may_still_happen).
    pub async fn put_with(
        &self,
        path: &NodePath,
        value: impl Into<Value>,
        options: PutOptions,
    ) -> Result<Written, WriteError> {
        let change = Write::Put {
            path: path.clone(),
            value: value.into(),
            condition: options.condition,
            attach: options.attach,
        };
        self.write(change, options.timeout).await
    }

    /// Removes a node.
    ///
    /// # Errors
    ///
    /// [`WriteError`], which says whether the write [may still
    /// happen](WriteError::may_still_happen).
    pub async fn delete(&self, path: &NodePath, options: DeleteOptions) -> Result<Written, WriteError> {
        let DeleteOptions { recursive, condition, timeout } = options;
        self.write(Write::Delete { path: path.clone(), recursive, condition }, timeout).await
    }

    /// Makes the subtree at `path` a volume of its own. Creates the node if it does not exist.
    ///
    /// # Errors
    ///
    /// [`WriteError`]. Refused if the node is a volume already, or with
    /// [`VolumeError::SkewMargin`](crate::VolumeError::SkewMargin) if the margin is too small for
    /// the servers' drift allowance.
    pub async fn create_volume(&self, path: &NodePath, settings: VolumeSettings) -> Result<Written, WriteError> {
        self.write(Write::CreateVolume { path: path.clone(), settings }, None).await
    }

    /// Changes the settings of a volume.
    ///
    /// # Errors
    ///
    /// [`WriteError`]. Refused if the node is no volume, or as for [`Client::create_volume`].
    pub async fn set_volume(&self, path: &NodePath, settings: VolumeSettings) -> Result<Written, WriteError> {
        self.write(Write::SetVolume { path: path.clone(), settings }, None).await
    }

    /// Removes a volume. Its nodes stay, and belong to the volume above from then on.
    ///
    /// # Errors
    ///
    /// [`WriteError`]. Refused if the node is no volume, or is the root.
    pub async fn remove_volume(&self, path: &NodePath) -> Result<Written, WriteError> {
        self.write(Write::RemoveVolume { path: path.clone() }, None).await
    }

    /// Executes a write of any kind within `timeout`. `None`: the client's timeout.
    ///
    /// # Errors
    ///
    /// [`WriteError`], which says whether the write [may still
    /// happen](WriteError::may_still_happen). If the future is dropped after the write was sent,
    /// the write may still happen, too.
    pub async fn write(&self, change: Write, timeout: Option<Duration>) -> Result<Written, WriteError> {
        self.driver().execute_write(change, self.timeout(timeout)).await
    }

    /// Lists the sessions that hold leases on the node's objects, or may hold them, with the
    /// remaining time. The leader answers.
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn holders(&self, path: &NodePath) -> Result<Vec<HolderInfo>, InspectError> {
        match self.inspect(Inspect::Holders { path: path.clone() }).await? {
            Answer::Holders(holders) => Ok(holders),
            _ => Err(InspectError::UnexpectedAnswer),
        }
    }

    /// Lists the node's pending writes: what each waits for, and for how long at most. The leader
    /// answers.
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn pending_writes(&self, path: &NodePath) -> Result<Vec<PendingWriteInfo>, InspectError> {
        match self.inspect(Inspect::PendingWrites { path: path.clone() }).await? {
            Answer::PendingWrites(waits) => Ok(waits),
            _ => Err(InspectError::UnexpectedAnswer),
        }
    }

    /// Lists the blocked reads of the node, and blocked lists that begin there, with their longest
    /// wait. They wait until the owner of a write lease has flushed. The leader answers.
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn blocked_reads(&self, path: &NodePath) -> Result<Vec<BlockedReadInfo>, InspectError> {
        match self.inspect(Inspect::BlockedReads { path: path.clone() }).await? {
            Answer::BlockedReads(waits) => Ok(waits),
            _ => Err(InspectError::UnexpectedAnswer),
        }
    }

    /// Lists the volumes at and below the path. The leader answers.
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn volumes(&self, path: &NodePath) -> Result<Vec<VolumeInfo>, InspectError> {
        match self.inspect(Inspect::Volumes { path: path.clone() }).await? {
            Answer::Volumes(volumes) => Ok(volumes),
            _ => Err(InspectError::UnexpectedAnswer),
        }
    }

    /// Describes the cluster as the connected server sees it.
    /// [`server_status`](crate::server_status) asks any one server, and works without a quorum.
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn cluster(&self) -> Result<ClusterInfo, InspectError> {
        match self.inspect(Inspect::Cluster).await? {
            Answer::Cluster(info) => Ok(info),
            _ => Err(InspectError::UnexpectedAnswer),
        }
    }

    pub(crate) async fn inspect(&self, inspect: Inspect) -> Result<Answer, InspectError> {
        self.driver().inspect(inspect, self.timeout(None)).await
    }

    /// The latest state of the session. For each change exactly once, use [`Client::events`].
    pub fn connection_state(&self) -> watch::Receiver<ConnectionState> {
        self.driver().status.state()
    }

    /// Subscribes to the changes of the session's state: each change from now on, once and in
    /// order. When leases end by this client's own clock, the client reports that, even without a
    /// connection.
    pub fn events(&self) -> Events {
        self.driver().status.events()
    }

    /// How much the speeds of this machine's clock and the leader's differ beyond the drift
    /// allowances, as last measured. `None` while the clocks are within the allowances. Otherwise
    /// one of the two is wrong, and each read goes to a server. The deadlines of locks and key
    /// leases use this clock too: rely on fencing tokens.
    ///
    /// ```no_run
    /// # async fn show(client: leasehold_client_cache::Client) {
    /// let mut clock = client.clock_excess();
    /// while clock.changed().await.is_ok() {
    ///     if let Some(excess) = *clock.borrow_and_update() {
    ///         eprintln!("this clock is off by {} ppm: {excess}", excess.ppm());
    ///     }
    /// }
    /// # }
    /// ```
    pub fn clock_excess(&self) -> watch::Receiver<Option<ClockExcess>> {
        self.driver().status.clock()
    }

    /// How long this client's lease on the volume of `path` certainly lasts. Zero without a lease.
    /// The client may not know the innermost volume yet; then this is about a volume above it. A
    /// recall can end any cached copy earlier.
    pub fn volume_remaining(&self, path: &NodePath) -> Duration {
        self.driver().volume_remaining(path)
    }

    /// How long the cached copy of the node's data certainly stays valid. `None` if there is no
    /// copy that may be used now. A recall can end the copy earlier.
    pub fn cached_for(&self, path: &NodePath) -> Option<Duration> {
        self.driver().cache.usable_until(ObjectKind::Data, path).map(|until| until.since(clock::now()))
    }

    /// What the client has done so far.
    pub fn stats(&self) -> Stats {
        let cache = &self.driver().cache;
        cache.counters.read(cache.len() as u64)
    }

    /// The session, if there is one.
    pub fn session(&self) -> Option<SessionId> {
        self.driver().session()
    }

    /// Closes the session: drops all copies, ends all operations, releases all leases and locks,
    /// and stops all tasks. Waits for the server's answer, but no longer than the client's timeout.
    /// Later operations of all clones fail.
    pub async fn close(&self) {
        let driver = self.driver();
        driver.close();
        // Closed in any case. If no server answers in time, the leases end by themselves.
        let _ = tokio::time::timeout(self.timeout(None), driver.closed.cancelled()).await;
        driver.closed.cancel();
    }
}
