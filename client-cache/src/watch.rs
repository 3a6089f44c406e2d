//! Watches: what happens to a node or a subtree, each change once, whole, in order, none left out.

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

/// What to watch, and from where on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WatchOptions {
    /// The first change that is to be told; it may be one that is still to come. None, the default:
    /// from now on.
    pub from: Option<Revision>,
    /// Everything below the node too. The default.
    pub recursive: bool,
    /// About how many bytes of changes are held for the application at one time: no more is asked
    /// for before it has taken those. One change is held in any case, whole.
    pub buffer_bytes: u32,
    /// How long it may take to find out what *now* is; as long as the client's operations do unless
    /// told otherwise.
    pub timeout: Option<Duration>,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self { from: None, recursive: true, buffer_bytes: CHANGES_BYTES_MAX, timeout: None }
    }
}

/// The one after. What a server says need not be where counting gets.
fn one_after(revision: Revision) -> Revision {
    Revision(revision.0.saturating_add(1))
}

/// What a watcher is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WatchItem {
    /// A change, with all its events that are watched.
    Change(Change),
    /// A progress mark: everything up to this revision has been told.
    Progress(Revision),
}

impl WatchItem {
    /// Everything up to this has been told.
    pub fn revision(&self) -> Revision {
        match self {
            Self::Change(change) => change.revision,
            Self::Progress(through) => *through,
        }
    }
}

/// A watch. It goes on whatever becomes of connections, leaders and sessions, until it is dropped,
/// the client is closed, or it is so far behind that what it has yet to hear is not known any more
/// ([`WatchError::Compacted`]).
///
/// A watch that nobody reads from asks for nothing and costs the servers nothing; it holds up
/// nobody.
#[derive(Debug)]
pub struct Watch {
    driver: Arc<Driver>,
    id: WatchId,
    receiver: mpsc::UnboundedReceiver<Result<Changes, holder::WatchFailure>>,
    /// What the application has yet to take of the last answer.
    buffer: VecDeque<WatchItem>,
    next_revision: Revision,
    error: Option<WatchError>,
}

impl Watch {
    /// What happened next. Waits until something has, or until it is known that nothing has: a
    /// progress mark comes every few seconds at least, as long as a server answers. Nothing is lost
    /// if the future is dropped.
    ///
    /// # Errors
    ///
    /// [`WatchError::Compacted`] if it is not known any more: read anew and watch from there, as
    /// [`Client::list_and_watch`] does. [`WatchError`] otherwise if there is nothing to wait for;
    /// then and from then on.
    pub async fn next(&mut self) -> Result<WatchItem, WatchError> {
        loop {
            if let Some(told) = self.buffer.pop_front() {
                self.next_revision = one_after(told.revision());
                if self.buffer.is_empty() {
                    // Taken: this is the moment to ask for more.
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

    /// Where a watch goes on that is begun after this one: [`WatchOptions::from`].
    pub fn resume_from(&self) -> Revision {
        self.next_revision
    }

    /// The same as a stream. It ends after an error.
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
    /// Watches a node and all that lies below it, or the node alone: every change from a revision
    /// on, or from now on, once, whole, in order.
    ///
    /// *Now* is a moment between the call and its return: what was acknowledged before the call is
    /// not told, and what is begun after it has returned is. Any number of watches can be open at
    /// one time; they share the client's connection.
    ///
    /// # Errors
    ///
    /// [`WatchError`] if it cannot be found out what *now* is. A watch from a given revision on is
    /// begun without asking anybody.
    pub async fn watch(&self, path: &NodePath, options: WatchOptions) -> Result<Watch, WatchError> {
        let watched = if options.recursive { Watched::Subtree(path.clone()) } else { Watched::Node(path.clone()) };
        // The last change that is known. From the first on is from the origin on.
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
