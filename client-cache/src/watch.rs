//! Watches: the changes of a node or a subtree, each exactly once, complete and in order.

use std::{
    collections::VecDeque,
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::{Stream, future::BoxFuture};
use leasehold_protocol::{
    change::{Change, Changes, WatchScope},
    holder::{self, WatchId},
    id::Revision,
    message::CHANGES_BYTES_MAX,
    path::{NodePath, PathError},
};
use tokio::sync::mpsc;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::{
    call::{GivenPath, given},
    client::Client,
    driver::Driver,
    error::WatchError,
};

/// A watch that is about to begin: see [`Client::watch`].
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_client_cache::Revision;
///
/// let watch = client.watch("/config/web/port").from(Revision(7)).recursive(false).buffer_bytes(1 << 20).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is watched until this is awaited"]
pub struct WatchBuilder<'a> {
    client: &'a Client,
    path: GivenPath,
    from: Option<Revision>,
    recursive: bool,
    buffer_bytes: u32,
    timeout: Option<Duration>,
}

impl WatchBuilder<'_> {
    /// The first revision to report. It may be in the future. By default, from now on.
    pub fn from(mut self, revision: Revision) -> Self {
        self.from = Some(revision);
        self
    }

    /// Whether to watch the whole subtree, which is the default, or only the node.
    pub fn recursive(mut self, recursive: bool) -> Self {
        self.recursive = recursive;
        self
    }

    /// About how many bytes of changes the client buffers. It requests more only after the
    /// application has taken those. More than 1 MiB has no effect. A single change is buffered
    /// whole, up to 8 MiB.
    pub fn buffer_bytes(mut self, bytes: u32) -> Self {
        self.buffer_bytes = bytes;
        self
    }

    /// How long it may take to find the current revision. By default, the client's timeout.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    async fn begin(self) -> Result<Watch, WatchError> {
        let Self { client, path, from, recursive, buffer_bytes, timeout } = self;
        let path = path?;
        let watched = if recursive { WatchScope::Subtree(path) } else { WatchScope::Node(path) };
        // A watch reports what comes after a revision, so it starts one before `from`.
        let after = from.map(|from| Revision(from.0.saturating_sub(1)));
        let (id, receiver) = client.driver().watch(watched, after, buffer_bytes);
        let driver = client.shared_driver();
        let mut watch = Watch {
            closed: Box::pin(driver.closed.clone().cancelled_owned()),
            driver,
            id,
            receiver,
            buffer: VecDeque::new(),
            next_revision: from.unwrap_or_default(),
            error: None,
            has_ended: false,
        };
        if after.is_some() {
            return Ok(watch);
        }
        let timeout = client.timeout(timeout);
        match tokio::time::timeout(timeout, watch.next()).await {
            Ok(began) => began.map(|_| watch),
            Err(_) => Err(client.late(timeout)),
        }
    }
}

impl<'a> IntoFuture for WatchBuilder<'a> {
    type Output = Result<Watch, WatchError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.begin())
    }
}

/// The next revision. Saturates, because a server may send any number.
fn one_after(revision: Revision) -> Revision {
    Revision(revision.0.saturating_add(1))
}

/// What a watch reports.
///
/// ```no_run
/// # async fn example(mut watch: leasehold_client_cache::Watch) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_client_cache::{EventKind, WatchItem};
///
/// let WatchItem::Change(change) = watch.next().await? else { return Ok(()) };
/// for event in change.events.iter() {
///     match &event.kind {
///         EventKind::Put(data) => println!("{} is now {:?}", event.path, data.value),
///         EventKind::Delete => println!("{} was removed", event.path),
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchItem {
    /// A change, with all its events that are watched.
    Change(Change),
    /// A progress mark: everything up to this revision has been reported.
    Progress(Revision),
}

impl WatchItem {
    /// Everything up to this revision has been reported.
    pub fn revision(&self) -> Revision {
        match self {
            Self::Change(change) => change.revision,
            Self::Progress(through) => *through,
        }
    }
}

/// A watch. It survives lost connections, changes of leader and expired sessions. It ends when it
/// is dropped, when the client is closed, or when the history no longer has its next change
/// ([`WatchError::Compacted`]).
///
/// A watch that the application does not read sends at most one request, and delays no writes.
///
/// It is a [`Stream`], which ends after its first error. [`Watch::next`] is the same without the
/// `Option`, and needs no import.
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let mut watch = client.watch("/config").await?;
/// println!("{:?}", watch.next().await?);
/// // Later, or in another process: continue with the next change.
/// let watch = client.watch("/config").from(watch.resume_from()).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the watch ends when this is dropped"]
pub struct Watch {
    driver: Arc<Driver>,
    id: WatchId,
    receiver: mpsc::UnboundedReceiver<Result<Changes, holder::WatchFailure>>,
    /// The items of the last answer that the application has not taken.
    buffer: VecDeque<WatchItem>,
    next_revision: Revision,
    error: Option<WatchError>,
    /// Whether the stream has returned the error.
    has_ended: bool,
    /// Ready when the client is closed.
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Watch {
    /// Waits for the next change, or for a progress mark. As long as a server answers, one of them
    /// comes every few seconds at least. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    ///
    /// [`WatchError::Compacted`] if the history no longer has the next change: read again and watch
    /// from there, as [`Client::list_and_watch`] does. After any error the watch has ended, and
    /// later calls return the same error.
    pub async fn next(&mut self) -> Result<WatchItem, WatchError> {
        poll_fn(|cx| self.poll_item(cx)).await
    }

    pub(crate) fn poll_item(&mut self, cx: &mut Context<'_>) -> Poll<Result<WatchItem, WatchError>> {
        loop {
            if let Some(item) = self.buffer.pop_front() {
                self.next_revision = one_after(item.revision());
                if self.buffer.is_empty() {
                    // The application has taken the whole answer: ask for more.
                    self.driver.watch_more(self.id);
                }
                return Poll::Ready(Ok(item));
            }
            if let Some(error) = &self.error {
                return Poll::Ready(Err(error.clone()));
            }
            let answer = match self.receiver.poll_recv(cx) {
                Poll::Ready(answer) => answer,
                Poll::Pending => {
                    ready!(self.closed.as_mut().poll(cx));
                    None
                }
            };
            match answer {
                Some(Ok(Changes { changes, through })) => {
                    let is_reported = changes.last().is_some_and(|last| last.revision == through);
                    self.buffer.extend(changes.into_iter().map(WatchItem::Change));
                    self.buffer.extend((!is_reported).then_some(WatchItem::Progress(through)));
                }
                Some(Err(error)) => self.error = Some(error.into()),
                None => self.error = Some(WatchError::Closed),
            }
        }
    }

    /// The revision to give to [`WatchBuilder::from`], so that a new watch continues where this one
    /// stopped.
    pub fn resume_from(&self) -> Revision {
        self.next_revision
    }
}

impl Stream for Watch {
    type Item = Result<WatchItem, WatchError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let item = ready!(self.poll_item(cx));
        self.has_ended = item.is_err();
        Poll::Ready(Some(item))
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.driver.cancel_watch(self.id);
    }
}

impl Client {
    /// Watches a node and everything below it, or only the node. Reports every change from a
    /// revision on, or from now on, exactly once, complete and in order.
    ///
    /// *Now* is a moment within the call. Changes that were acknowledged before the call are not
    /// reported, and changes that begin after its return are. A client may have any number of
    /// watches, which share its connection.
    ///
    /// A program that reads and then watches uses [`Client::list_and_watch`], or
    /// [`Client::mirror`]: no change can come in between.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use futures::TryStreamExt;
    ///
    /// let mut watch = client.watch("/config").await?;
    /// while let Some(item) = watch.try_next().await? {
    ///     println!("everything up to revision {}: {item:?}", item.revision());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`WatchError`] if the current revision cannot be read. A watch from a given revision begins
    /// without a request.
    pub fn watch(&self, path: impl TryInto<NodePath, Error: Into<PathError>>) -> WatchBuilder<'_> {
        WatchBuilder {
            client: self,
            path: given(path),
            from: None,
            recursive: true,
            buffer_bytes: CHANGES_BYTES_MAX,
            timeout: None,
        }
    }
}
