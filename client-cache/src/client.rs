//! The client: the functions that applications call.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use leasehold_protocol::{
    drift::Excess as ClockExcess,
    id::SessionId,
    message::{Answer, Inspect},
    path::NodePath,
};
use tokio::sync::watch;

use crate::{
    cache_counters::VolumeCacheStats,
    driver::Driver,
    error::{ConnectError, InspectError},
    options::Options,
    stats::Stats,
    status::{Events, ServerReach, SessionState},
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
/// use leasehold_client_cache::{Client, Options};
///
/// let client = Client::connect(Options::new(["127.0.0.1:7600"]).name("docs")).await?;
/// client.put("/services/web", "up").await?;
/// // From memory, until somebody writes the node.
/// let node = client.get("/services/web").await?.ok_or("just written")?;
/// assert_eq!(&node.value[..], b"up");
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
    /// runtime, and end with the client. Calls may come from any thread and any runtime. When the
    /// runtime of the client's tasks ends, the client is closed.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold_client_cache::{Client, Options};
    ///
    /// let client = Client::connect(Options::new(["10.0.0.1:7600", "10.0.0.2:7600"]).name("billing")).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`ConnectError`], with the reason, if there is no session within [the
    /// timeout](Options::timeout). [`Options::connect_lazily`] does not wait for the session.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime with its timer and I/O enabled.
    pub async fn connect(options: Options) -> Result<Self, ConnectError> {
        if options.endpoints.is_empty() {
            return Err(ConnectError::NoEndpoints);
        }
        let (after, is_lazy) = (options.timeout, options.is_lazy);
        let driver = Arc::new(Driver::new(options, rand::random_range(0..=1000)));
        let (mut state, mut reach) = (driver.status.state(), driver.status.reach());
        driver.start();
        let client = Self { handle: Arc::new(Handle { driver }) };
        if is_lazy {
            return Ok(client);
        }
        let has_session = async {
            tokio::select! {
                _ = state.wait_for(|state| matches!(state, SessionState::Connected { .. })) => Ok(()),
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

    /// A client without tasks, whose server is the test.
    #[cfg(test)]
    pub(crate) fn of(driver: Arc<Driver>) -> Self {
        Self { handle: Arc::new(Handle { driver }) }
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

    pub(crate) async fn inspect(&self, inspect: Inspect) -> Result<Answer, InspectError> {
        self.driver().inspect(inspect, self.timeout(None)).await
    }

    /// The latest state of the session. For each change exactly once, use [`Client::events`].
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold_client_cache::SessionState;
    ///
    /// let is_connected = |state: &SessionState| matches!(state, SessionState::Connected { .. });
    /// client.session_state().wait_for(is_connected).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn session_state(&self) -> watch::Receiver<SessionState> {
        self.driver().status.state()
    }

    /// Subscribes to the changes of the session's state: each change from now on, once and in
    /// order. When leases end by this client's own clock, the client reports that, even without a
    /// connection.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use futures::TryStreamExt;
    ///
    /// let mut events = client.events();
    /// while let Some(state) = events.try_next().await? {
    ///     println!("{state:?}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
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
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let path = "/config".parse()?;
    /// println!("copies below /config last for {:?}", client.volume_remaining(&path));
    /// # Ok(())
    /// # }
    /// ```
    pub fn volume_remaining(&self, path: &NodePath) -> Duration {
        self.driver().volume_remaining(path)
    }

    /// What the client has done so far.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("{} reads from memory", client.stats().hits);
    /// # Ok(())
    /// # }
    /// ```
    pub fn stats(&self) -> Stats {
        let cache = &self.driver().cache;
        cache.counters.read(self.driver().cache_counters.hits(), cache.len() as u64)
    }

    /// What the cache has done so far in each volume: hits, misses by their cause, and recalled
    /// copies. It has the volumes that this client has read in, at most some hundred. If there are
    /// more, it forgets volumes without copies. It also forgets removed volumes.
    /// [`Admin::volume_stats`](crate::Admin::volume_stats) has what the leader counted for all
    /// clients.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// for (volume, stats) in client.volume_stats() {
    ///     println!("{volume}: {} hits, {} recalls in vain", stats.hits, stats.copies_recalled_unread);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn volume_stats(&self) -> BTreeMap<NodePath, VolumeCacheStats> {
        self.driver().cache_counters.read()
    }

    /// The session, if there is one.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// println!("session {:?}", client.session());
    /// # Ok(())
    /// # }
    /// ```
    pub fn session(&self) -> Option<SessionId> {
        self.driver().session()
    }

    /// Closes the session: drops all copies, ends all operations, releases the session's leases and
    /// locks, stops the renewal of key leases, and stops all tasks. Waits for the server's answer,
    /// but no longer than the client's timeout. Later operations of all clones fail.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// client.close().await;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn close(&self) {
        let driver = self.driver();
        driver.close();
        // Closed in any case. If no server answers in time, the leases end by themselves.
        let _ = tokio::time::timeout(self.timeout(None), driver.closed.cancelled()).await;
        driver.end();
    }
}
