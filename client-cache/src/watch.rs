//! Watches: the changes of a node or a subtree, each exactly once, complete and in order.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use futures::{Stream, stream};
use leasehold_protocol::{
    change::{Change, Changes, Watched},
    holder::{self, WatchId},
    id::Revision,
    message::CHANGES_BYTES_MAX,
    path::NodePath,
};
use tokio::sync::mpsc;

use crate::{client::Client, driver::Driver, error::WatchError};

/// The options of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchOptions {
    /// The first revision to report. It may be in the future. `None`, the default: from now on.
    pub from: Option<Revision>,
    /// Whether to watch the whole subtree, which is the default, or only the node.
    pub recursive: bool,
    /// About how many bytes of changes the client buffers. It requests more only after the
    /// application has taken those. A single change is buffered whole, whatever its size.
    pub buffer_bytes: u32,
    /// How long it may take to find the current revision. `None`: the client's timeout.
    pub timeout: Option<Duration>,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self { from: None, recursive: true, buffer_bytes: CHANGES_BYTES_MAX, timeout: None }
    }
}

/// The next revision. Saturates, because a server may send any number.
fn one_after(revision: Revision) -> Revision {
    Revision(revision.0.saturating_add(1))
}

/// What a watch reports.
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
/// A watch that the application does not read sends no requests and delays no writes.
#[derive(Debug)]
pub struct Watch {
    driver: Arc<Driver>,
    id: WatchId,
    receiver: mpsc::UnboundedReceiver<Result<Changes, holder::WatchFailure>>,
    /// The items of the last answer that the application has not taken.
    buffer: VecDeque<WatchItem>,
    next_revision: Revision,
    error: Option<WatchError>,
}

impl Watch {
    /// Waits for the next change, or for a progress mark. As long as a server answers, a mark comes
    /// every few seconds at least. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    ///
    /// [`WatchError::Compacted`] if the history no longer has the next change: read again and watch
    /// from there, as [`Client::list_and_watch`] does. Any other [`WatchError`] means that the
    /// watch has ended. Later calls return the same error.
    pub async fn next(&mut self) -> Result<WatchItem, WatchError> {
        loop {
            if let Some(told) = self.buffer.pop_front() {
                self.next_revision = one_after(told.revision());
                if self.buffer.is_empty() {
                    // The application has taken the whole answer: ask for more.
                    self.driver.watch_more(self.id);
                }
                return Ok(told);
            }
            if let Some(error) = &self.error {
                return Err(error.clone());
            }
            let driver = Arc::clone(&self.driver);
            let answer = tokio::select! {
                biased;
                answer = self.receiver.recv() => answer,
                () = driver.closed.cancelled() => None,
            };
            match answer {
                Some(Ok(Changes { changes, through })) => {
                    let is_told = changes.last().is_some_and(|last| last.revision == through);
                    self.buffer.extend(changes.into_iter().map(WatchItem::Change));
                    self.buffer.extend((!is_told).then_some(WatchItem::Progress(through)));
                }
                Some(Err(error)) => self.error = Some(error.into()),
                None => self.error = Some(WatchError::Closed),
            }
        }
    }

    /// The [`WatchOptions::from`] of a watch that continues after this one.
    pub fn resume_from(&self) -> Revision {
        self.next_revision
    }

    /// The watch as a stream. It ends after an error.
    pub fn into_stream(self) -> impl Stream<Item = Result<WatchItem, WatchError>> + Send {
        stream::unfold(Some(self), |watch| async {
            let mut watch = watch?;
            let told = watch.next().await;
            let rest = told.is_ok().then_some(watch);
            Some((told, rest))
        })
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
    /// # Errors
    ///
    /// [`WatchError`] if the current revision cannot be read. A watch from a given revision begins
    /// without a request.
    pub async fn watch(&self, path: &NodePath, options: WatchOptions) -> Result<Watch, WatchError> {
        let watched = if options.recursive { Watched::Subtree(path.clone()) } else { Watched::Node(path.clone()) };
        // The last change that is known already. Revision 1 is the first.
        let after = options.from.map(|from| Revision(from.0.saturating_sub(1)));
        let (id, receiver) = self.driver().watch(watched, after, options.buffer_bytes);
        let mut watch = Watch {
            driver: self.shared_driver(),
            id,
            receiver,
            buffer: VecDeque::new(),
            next_revision: options.from.unwrap_or_default(),
            error: None,
        };
        if after.is_some() {
            return Ok(watch);
        }
        let timeout = self.timeout(options.timeout);
        match tokio::time::timeout(timeout, watch.next()).await {
            Ok(began) => began.map(|_| watch),
            Err(_) => Err(self.late(timeout)),
        }
    }
}
