//! A mirror: a subtree in memory that a watch keeps up to date.
//!
//! Unlike the cache, a mirror may be behind the servers. It shows the subtree as of one revision,
//! which only grows. Reads of it send nothing and do not wait. It needs no leases, so no write
//! waits for it.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::Stream;
use leasehold_protocol::{
    change::Change,
    id::Revision,
    object::Data,
    path::{NodePath, PathError},
};
use parking_lot::RwLock;
use tokio::sync::{broadcast, watch};
use tokio_util::{
    sync::{CancellationToken, DropGuard, WaitForCancellationFutureOwned},
    task::AbortOnDropHandle,
};

use crate::{
    broadcast::PollReceiver,
    call::given,
    client::Client,
    error::WatchError,
    list::Subtree,
    watch::{Watch, WatchItem},
};

/// The changes that are buffered for a slow listener. A listener that is further behind starts
/// over.
const CHANGES_MAX: usize = 1024;

/// The pause between two attempts of a mirror to read its subtree again.
const PAUSE: Duration = Duration::from_millis(200);

/// What a mirror reports to its listeners.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mirrored {
    /// A change of the mirror.
    Change(Arc<Change>),
    /// The changes up to this revision cannot be reported one by one: look at the mirror again.
    /// Either the mirror itself read its subtree again, because changes that it missed are
    /// compacted, or the listener was too slow. The mirror may be further than this revision when
    /// the listener looks. Then later reports repeat changes that it has seen.
    StartOver(Revision),
}

#[derive(Debug)]
struct MirrorShared {
    /// Locked for moments only. A reader that needs longer takes the `Arc`.
    snapshot: RwLock<Arc<Subtree>>,
    revision: watch::Sender<Revision>,
    news: broadcast::Sender<Mirrored>,
    over: CancellationToken,
}

impl MirrorShared {
    /// Changes the snapshot. Only the mirror's task calls this. If a reader has the snapshot, this
    /// changes a copy, which it makes without the lock.
    fn update(&self, change: impl Fn(&mut Subtree)) {
        if let Some(snapshot) = Arc::get_mut(&mut self.snapshot.write()) {
            return change(snapshot);
        }
        let before = Arc::clone(&self.snapshot.read());
        let mut after = Subtree::clone(&before);
        change(&mut after);
        *self.snapshot.write() = Arc::new(after);
    }

    fn apply(&self, change: Change) {
        self.update(|snapshot| snapshot.apply(&change));
        self.revision.send_replace(change.revision);
        // There may be no listener.
        let _ = self.news.send(Mirrored::Change(Arc::new(change)));
    }

    fn pass(&self, revision: Revision) {
        self.update(|snapshot| snapshot.revision = revision);
        self.revision.send_replace(revision);
    }

    fn start_over(&self, snapshot: Subtree) {
        let revision = snapshot.revision;
        *self.snapshot.write() = Arc::new(snapshot);
        self.revision.send_replace(revision);
        let _ = self.news.send(Mirrored::StartOver(revision));
    }
}

/// A subtree in memory that follows the changes on the servers. Dropping this stops it.
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let features = client.mirror("/features").await?;
/// for name in features.children("/features") {
///     println!("{name}: {:?}", features.get(format!("/features/{name}")).map(|node| node.value));
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "the mirror stops when this is dropped"]
pub struct Mirror {
    shared: Arc<MirrorShared>,
    _task: AbortOnDropHandle<()>,
}

impl Mirror {
    /// A node's data. `None` if the node does not exist at the mirror's revision, or if `path` is
    /// no path.
    pub fn get(&self, path: impl AsRef<str>) -> Option<Data> {
        self.shared.snapshot.read().nodes.get(path.as_ref()).cloned()
    }

    /// The names of a node's children, in order. Empty if `path` is no path.
    pub fn children(&self, path: impl AsRef<str>) -> Vec<String> {
        let Ok(path) = NodePath::parse(path.as_ref()) else { return Vec::new() };
        self.read(|snapshot| {
            let lower = path.prefix_below();
            let below = snapshot.nodes.keys().filter_map(|node| node.as_str().strip_prefix(&lower));
            below.filter(|name| !name.is_empty() && !name.contains('/')).map(str::to_owned).collect()
        })
    }

    /// Reads the whole subtree as of one revision. `visit` does not see changes that arrive
    /// meanwhile. While it runs, each change copies the mirror's index of nodes, so keep it short.
    /// `visit` may call the mirror's other methods.
    ///
    /// ```no_run
    /// # fn example(mirror: leasehold_client_cache::Mirror) {
    /// let bytes: usize = mirror.read(|subtree| subtree.nodes.values().map(|node| node.value.len()).sum());
    /// # }
    /// ```
    pub fn read<T>(&self, visit: impl FnOnce(&Subtree) -> T) -> T {
        visit(&self.current())
    }

    /// A copy of the whole subtree as of one revision. Values are shared, not copied.
    pub fn snapshot(&self) -> Subtree {
        Arc::unwrap_or_clone(self.current())
    }

    /// The revision of the mirror: it shows all changes up to this one, and none after it.
    pub fn revision(&self) -> Revision {
        *self.shared.revision.borrow()
    }

    /// Waits until the mirror shows a revision, such as that of this program's own write. Returns
    /// false if the client is closed first.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let features = client.mirror("/features").await?;
    /// let written = client.put("/features/dark-mode", "on").await?;
    /// assert!(features.wait_for_revision(written.revision).await);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn wait_for_revision(&self, revision: Revision) -> bool {
        let mut shown = self.shared.revision.subscribe();
        tokio::select! {
            biased;
            shown = shown.wait_for(|shown| *shown >= revision) => shown.is_ok(),
            () = self.shared.over.cancelled() => false,
        }
    }

    /// The mirror's current content, and each later change exactly once, in order.
    pub fn changes(&self) -> (Subtree, MirrorChanges) {
        // The writer unlocks the mirror before it reports a change. So a change may be both in the
        // copy and in the channel. [`MirrorChanges::next`] skips it by its revision.
        let (snapshot, news) = {
            let snapshot = self.shared.snapshot.read();
            (Arc::clone(&snapshot), self.shared.news.subscribe())
        };
        let changes = MirrorChanges::new(snapshot.revision, news, Arc::clone(&self.shared));
        (Arc::unwrap_or_clone(snapshot), changes)
    }

    fn current(&self) -> Arc<Subtree> {
        Arc::clone(&self.shared.snapshot.read())
    }

    /// Cancelled when the mirror stops: the client is closed, or the mirror is dropped.
    pub fn on_closed(&self) -> CancellationToken {
        self.shared.over.clone()
    }
}

/// The changes of a mirror.
///
/// It is a [`Stream`]. [`MirrorChanges::next`] is the same, and needs no import.
///
/// ```no_run
/// # async fn example(mirror: leasehold_client_cache::Mirror) {
/// use leasehold_client_cache::Mirrored;
///
/// let (subtree, mut changes) = mirror.changes();
/// println!("{} nodes", subtree.nodes.len());
/// while let Some(report) = changes.next().await {
///     match report {
///         Mirrored::Change(change) => println!("{} events", change.events.len()),
///         Mirrored::StartOver(_) => println!("{} nodes", mirror.snapshot().nodes.len()),
///     }
/// }
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is received until this is polled"]
pub struct MirrorChanges {
    /// All changes up to this revision have been reported.
    after: Revision,
    news: PollReceiver<Mirrored>,
    shared: Arc<MirrorShared>,
    /// Ready when the mirror has stopped.
    over: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl MirrorChanges {
    fn new(after: Revision, news: broadcast::Receiver<Mirrored>, shared: Arc<MirrorShared>) -> Self {
        let over = Box::pin(shared.over.clone().cancelled_owned());
        Self { after, news: PollReceiver::new(news), shared, over }
    }

    /// The next change. `None` when the mirror has stopped. Nothing is lost if the future is
    /// dropped.
    pub async fn next(&mut self) -> Option<Mirrored> {
        poll_fn(|cx| self.poll_change(cx)).await
    }

    fn poll_change(&mut self, cx: &mut Context<'_>) -> Poll<Option<Mirrored>> {
        loop {
            let news = match self.news.poll_recv(cx) {
                Poll::Ready(Ok(news)) => news,
                Poll::Ready(Err(broadcast::error::RecvError::Lagged(_))) => {
                    self.news = PollReceiver::new(self.shared.news.subscribe());
                    Mirrored::StartOver(self.shared.snapshot.read().revision)
                }
                Poll::Ready(Err(broadcast::error::RecvError::Closed)) => return Poll::Ready(None),
                Poll::Pending => return self.over.as_mut().poll(cx).map(|()| None),
            };
            let revision = match &news {
                Mirrored::Change(change) if change.revision <= self.after => continue,
                Mirrored::Change(change) => change.revision,
                Mirrored::StartOver(revision) => *revision,
            };
            self.after = revision;
            return Poll::Ready(Some(news));
        }
    }
}

impl Stream for MirrorChanges {
    type Item = Mirrored;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Mirrored>> {
        self.poll_change(cx)
    }
}

impl Client {
    /// Mirrors a node and everything below it in memory, until the mirror is dropped. When this
    /// returns, the mirror has every write that was acknowledged before the call. A mirror counts
    /// as a clone of the client, so it keeps the client alive.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let features = client.mirror("/features").await?;
    /// println!("dark mode: {:?}", features.get("/features/dark-mode").map(|node| node.value));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`WatchError`] if the subtree cannot be read.
    pub async fn mirror(&self, path: impl TryInto<NodePath, Error: Into<PathError>>) -> Result<Mirror, WatchError> {
        self.mirror_of(given(path)?).await
    }

    async fn mirror_of(&self, path: NodePath) -> Result<Mirror, WatchError> {
        let (snapshot, watch) = self.list_and_watch(&path).await?;
        let shared = Arc::new(MirrorShared {
            revision: watch::Sender::new(snapshot.revision),
            snapshot: RwLock::new(Arc::new(snapshot)),
            news: broadcast::Sender::new(CHANGES_MAX),
            over: CancellationToken::new(),
        });
        let over = shared.over.clone().drop_guard();
        let task = self.driver().spawn(follow(self.clone(), path, watch, Arc::clone(&shared), over));
        Ok(Mirror { shared, _task: AbortOnDropHandle::new(task) })
    }
}

/// Follows the watch until the client is closed. Reads the subtree again if the watch ends.
///
/// Dropping `_over` ends the mirror's changes, even if this task never runs.
async fn follow(client: Client, path: NodePath, mut watch: Watch, shared: Arc<MirrorShared>, _over: DropGuard) {
    loop {
        match watch.next().await {
            Ok(WatchItem::Change(change)) => shared.apply(change),
            Ok(WatchItem::Progress(revision)) => shared.pass(revision),
            Err(WatchError::Closed) => break,
            Err(error) => {
                tracing::warn!(error = &error as &(dyn std::error::Error + 'static), %path, "a mirror reads its subtree anew, because its watch has ended");
                match read_anew(&client, &path).await {
                    Some((snapshot, anew)) => {
                        watch = anew;
                        shared.start_over(snapshot);
                    }
                    None => break,
                }
            }
        }
    }
}

/// `None` if the client is closed.
async fn read_anew(client: &Client, path: &NodePath) -> Option<(Subtree, Watch)> {
    loop {
        match client.list_and_watch(path).await {
            Ok(read) => return Some(read),
            Err(WatchError::Closed) => return None,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// The channel clones this for each listener, so it must be small.
const _: () = assert!(size_of::<Mirrored>() <= 24);

#[cfg(test)]
mod tests {
    use super::*;

    fn shared() -> Arc<MirrorShared> {
        Arc::new(MirrorShared {
            snapshot: RwLock::default(),
            revision: watch::Sender::new(Revision(0)),
            news: broadcast::Sender::new(4),
            over: CancellationToken::new(),
        })
    }

    fn change(revision: u64) -> Change {
        Change { revision: Revision(revision), events: [].into() }
    }

    #[tokio::test]
    async fn slow_mirror_listener_starts_over_and_continues() {
        let shared = shared();
        let news = shared.news.subscribe();
        let mut changes = MirrorChanges::new(Revision(0), news, Arc::clone(&shared));
        shared.apply(change(1));
        assert_eq!(changes.next().await, Some(Mirrored::Change(Arc::new(change(1)))));
        (2..=9).for_each(|revision| shared.apply(change(revision)));
        assert_eq!(changes.next().await, Some(Mirrored::StartOver(Revision(9))));
        shared.apply(change(10));
        assert_eq!(changes.next().await, Some(Mirrored::Change(Arc::new(change(10)))));
        shared.start_over(Subtree { revision: Revision(20), ..Subtree::default() });
        assert_eq!(changes.next().await, Some(Mirrored::StartOver(Revision(20))));
        shared.over.cancel();
        assert_eq!(changes.next().await, None);
    }
}
