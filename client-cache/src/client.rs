//! The client: what applications call.

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

/// A client of a cluster: a session, its leases, and the cache that they keep valid.
///
/// Cheap to clone; all clones are one client. All methods can be called from any task or thread at
/// any time.
///
/// [`Client::close`] gives everything back. Dropping the last clone stops all tasks at once and
/// tells nobody, as a crash would: writes of what was cached may then have to wait for a volume
/// term.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_client_cache::{Client, Options, Path};
///
/// let client = Client::connect(Options::new(["127.0.0.1:7600"]).name("docs")).await?;
/// let path: Path = "/services/web".parse()?;
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

/// Ends the tasks when the last clone is dropped: they share the driver, not this.
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
    /// Connects, and opens a session. Its tasks run on the current tokio runtime, and end with the
    /// client.
    ///
    /// # Errors
    ///
    /// [`ConnectError`] if there is no session within the options' timeout, with what was found
    /// instead.
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

    /// A node's value and stat; none if it does not exist. From memory if the cache has a copy that
    /// may be used; then it allocates nothing and waits for nobody.
    ///
    /// The read is linearizable: it sees every write that was acknowledged to anybody before it
    /// began.
    ///
    /// # Errors
    ///
    /// [`ReadError`]; only for reads that need a server.
    pub async fn get(&self, path: &NodePath) -> Result<Option<NodeData>, ReadError> {
        self.get_within(path, self.timeout(None)).await
    }

    pub(crate) async fn get_within(&self, path: &NodePath, after: Duration) -> Result<Option<NodeData>, ReadError> {
        let read = self.driver().get(ObjectKind::Data, path, after).await?;
        Ok(NodeData::of(read.content))
    }

    /// A node's data, if the cache has a copy that may be used now; [`Content::Data`]`(None)` if
    /// that says that the node does not exist. As linearizable as [`Client::get`], and not bound to
    /// any runtime: allocates nothing, waits for nobody, asks nobody.
    pub fn cached(&self, path: &NodePath) -> Option<SharedContent> {
        self.driver().cache.hit(ObjectKind::Data, path).map(|hit| hit.content)
    }

    /// A node's data, with everything that is known about the answer: who gave it, and how long it
    /// stays valid. As linearizable as [`Client::get`].
    ///
    /// # Errors
    ///
    /// [`ReadError`]; only for reads that need a server.
    pub async fn read(&self, path: &NodePath) -> Result<Read, ReadError> {
        self.read_with(path, ReadOptions::default()).await
    }

    /// [`Client::read`] of either of a node's objects, or with a timeout.
    ///
    /// # Errors
    ///
    /// [`ReadError`]; only for reads that need a server.
    pub async fn read_with(&self, path: &NodePath, options: ReadOptions) -> Result<Read, ReadError> {
        self.driver().get(options.kind, path, self.timeout(options.timeout)).await
    }

    /// The names of a node's children; none if the node does not exist. Cached and linearizable as
    /// [`Client::get`] is.
    ///
    /// # Errors
    ///
    /// [`ReadError`]; only for reads that need a server.
    pub async fn children(&self, path: &NodePath) -> Result<Option<Listing>, ReadError> {
        let read = self.driver().get(ObjectKind::Children, path, self.timeout(None)).await?;
        Ok(Listing::of(read.content))
    }

    /// Everything about a node but its value, as of one moment; none if the node does not exist.
    ///
    /// Data and children are two objects. The data is read before the children and again after
    /// them: if it has not been modified in between, it was the same at the moment when the
    /// children were read. (Revisions are never used again, so it has not been removed and made
    /// anew either.) Otherwise it begins anew, until the client's timeout.
    ///
    /// # Errors
    ///
    /// [`ReadError`]; only for reads that need a server.
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

    /// Sets a node's value; makes the node, and those above it, if they do not exist. When it
    /// returns, no client will read the value from before any more; the next read of the node here
    /// comes from memory, as a rule.
    ///
    /// # Errors
    ///
    /// [`WriteError`], which says whether the write [may still
    /// happen](WriteError::may_still_happen).
    pub async fn put(&self, path: &NodePath, value: impl Into<Value>) -> Result<Written, WriteError> {
        self.put_with(path, value, PutOptions::default()).await
    }

    /// [`Client::put`], with a condition, a lease that the node goes with, or a timeout.
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

    /// Makes the subtree at `path` a volume of its own; its node too if it does not exist.
    ///
    /// # Errors
    ///
    /// [`WriteError`]; refused if it is a volume already, or if the servers' clocks cannot keep
    /// what the settings promise.
    pub async fn create_volume(&self, path: &NodePath, settings: VolumeSettings) -> Result<Written, WriteError> {
        self.write(Write::CreateVolume { path: path.clone(), settings }, None).await
    }

    /// Changes what a volume promises.
    ///
    /// # Errors
    ///
    /// [`WriteError`]; refused if it is no volume, or if the servers' clocks cannot keep what the
    /// settings promise.
    pub async fn set_volume(&self, path: &NodePath, settings: VolumeSettings) -> Result<Written, WriteError> {
        self.write(Write::SetVolume { path: path.clone(), settings }, None).await
    }

    /// Lets the subtree belong to the volume above again. The nodes stay.
    ///
    /// # Errors
    ///
    /// [`WriteError`]; refused if it is no volume, or the root.
    pub async fn remove_volume(&self, path: &NodePath) -> Result<Written, WriteError> {
        self.write(Write::RemoveVolume { path: path.clone() }, None).await
    }

    /// Any write, within `timeout` or else the client's.
    ///
    /// # Errors
    ///
    /// [`WriteError`], which says whether the write [may still
    /// happen](WriteError::may_still_happen). Dropping the future gives the write up: if it had
    /// been sent, it may still happen.
    pub async fn write(&self, change: Write, timeout: Option<Duration>) -> Result<Written, WriteError> {
        self.driver().execute_write(change, self.timeout(timeout)).await
    }

    /// The sessions that hold leases on the node's objects, or may, with what remains of them. From
    /// the leader.
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

    /// What writes of the node wait for right now, and at most how much longer. From the leader.
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

    /// Which reads of the node wait right now until holders of write leases have flushed, and lists
    /// that begin there; and at most how much longer. From the leader.
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

    /// The volumes at and below the path. From the leader.
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

    /// The cluster as the server sees it that the client is connected to. For the view of another
    /// server, or without a quorum, see [`server_status`](crate::server_status).
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

    /// The state of the session, always the latest. For each change once, see [`Client::events`].
    pub fn connection_state(&self) -> watch::Receiver<ConnectionState> {
        self.driver().status.state()
    }

    /// Each change of the session's state from now on, once, in order; told by this client's own
    /// clock, at the latest when a lease ends there, whatever the connection does.
    pub fn events(&self) -> Events {
        self.driver().status.events()
    }

    /// Whether this machine's clock and the leading server's are known to differ by more than they
    /// are allowed to, always the latest; none while they are not. While they do, no read is served
    /// from memory: each goes to the server. One of the two clocks is wrong. Deadlines of locks and
    /// key leases are by this clock too: rely on fencing tokens.
    ///
    /// ```no_run
    /// # async fn show(client: leasehold_client_cache::Client) {
    /// let mut clock = client.clock();
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

    /// How long the cached copies of a volume, that which the path is believed to belong to, are
    /// certain to stay valid as far as its lease goes, if nothing more is heard: zero without a
    /// lease. A recall can end any one of them before.
    pub fn volume_remaining(&self, path: &NodePath) -> Duration {
        self.driver().volume_remaining(path)
    }

    /// How long reads of the node's data will be answered from memory if nothing more is heard;
    /// none if they are not now.
    pub fn cached_for(&self, path: &NodePath) -> Option<Duration> {
        self.driver().cache.usable_until(ObjectKind::Data, path).map(|until| until.since(clock::now()))
    }

    /// What the client has done so far.
    pub fn stats(&self) -> Stats {
        let cache = &self.driver().cache;
        cache.counters.read(cache.len() as u64)
    }

    /// The session; none while there is none.
    pub fn session(&self) -> Option<SessionId> {
        self.driver().session()
    }

    /// Closes the session: drops all copies, ends what is under way, gives everything back to the
    /// server, and stops all tasks. Waits for the server to know, but no longer than an operation
    /// may take. Every later operation of any clone says that the client is closed.
    pub async fn close(&self) {
        let driver = self.driver();
        driver.close();
        // Closed in any case: if nobody answers in time, the leases end by themselves.
        let _ = tokio::time::timeout(self.timeout(None), driver.closed.cancelled()).await;
        driver.closed.cancel();
    }
}
