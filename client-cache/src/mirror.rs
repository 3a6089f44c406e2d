//! A subtree that is kept in memory as it changes, for programs that want all of it at hand and
//! hear of each change.
//!
//! Unlike the cache, a mirror promises no more than that it shows what was there at one revision,
//! and that this grows: it may be behind. Reads of it ask nobody and wait for nobody. It needs no
//! leases, so nobody waits for it either.

use std::{sync::Arc, time::Duration};

use leasehold_protocol::{change::Change, id::Revision, object::Data, path::NodePath};
use parking_lot::RwLock;
use tokio::sync::{broadcast, watch};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::{
    client::Client,
    error::WatchError,
    list::Subtree,
    watch::{Watch, WatchItem},
};

/// Changes that are kept for a listener that is slow. One that is slower starts over.
const CHANGES_MAX: usize = 1024;

/// The pause before a mirror that has to start over tries again to read.
const PAUSE: Duration = Duration::from_millis(200);

/// What a mirror tells those who listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mirrored {
    /// The mirror has changed by this.
    Change(Arc<Change>),
    /// What happened up to this revision cannot be told one by one: what the mirror shows is to be
    /// looked at anew. Either the mirror itself had to start over, because it was cut off for so
    /// long that the servers have forgotten what it missed, or the listener was too slow.
    StartOver(Revision),
}

#[derive(Debug)]
struct MirrorShared {
    snapshot: RwLock<Subtree>,
    revision: watch::Sender<Revision>,
    told: broadcast::Sender<Mirrored>,
    over: CancellationToken,
}

impl MirrorShared {
    fn apply(&self, change: Change) {
        self.snapshot.write().apply(&change);
        self.revision.send_replace(change.revision);
        // Nobody may listen.
        let _ = self.told.send(Mirrored::Change(Arc::new(change)));
    }

    fn pass(&self, revision: Revision) {
        self.snapshot.write().revision = revision;
        self.revision.send_replace(revision);
    }

    fn start_over(&self, snapshot: Subtree) {
        let revision = snapshot.revision;
        *self.snapshot.write() = snapshot;
        self.revision.send_replace(revision);
        let _ = self.told.send(Mirrored::StartOver(revision));
    }
}

/// A subtree that is kept in memory as it changes. Dropping it ends that.
#[derive(Debug)]
pub struct Mirror {
    shared: Arc<MirrorShared>,
    _task: AbortOnDropHandle<()>,
}

impl Mirror {
    /// A node's data; none if it was not there.
    pub fn get(&self, path: &NodePath) -> Option<Data> {
        self.shared.snapshot.read().nodes.get(path).cloned()
    }

    /// The names of a node's children, in order.
    pub fn children(&self, path: &NodePath) -> Vec<String> {
        self.read(|snapshot| {
            let lower = path.prefix_below();
            let below = snapshot.nodes.keys().filter_map(|node| node.as_str().strip_prefix(&lower));
            below.filter(|name| !name.is_empty() && !name.contains('/')).map(str::to_owned).collect()
        })
    }

    /// Looks at all of it as of one revision. It stands still meanwhile: what takes long is better
    /// done with a [copy](Mirror::snapshot).
    pub fn read<T>(&self, look: impl FnOnce(&Subtree) -> T) -> T {
        look(&self.shared.snapshot.read())
    }

    /// A copy of all of it as of one revision. Values are shared, not copied.
    pub fn snapshot(&self) -> Subtree {
        self.shared.snapshot.read().clone()
    }

    /// The last change that it shows: everything up to it, and nothing after it.
    pub fn revision(&self) -> Revision {
        *self.shared.revision.borrow()
    }

    /// Waits until it shows the change of a revision, such as one of this program's own writes.
    /// True when it does, false if the client is closed before.
    pub async fn wait_for_revision(&self, revision: Revision) -> bool {
        let mut shown = self.shared.revision.subscribe();
        tokio::select! {
            biased;
            shown = shown.wait_for(|shown| *shown >= revision) => shown.is_ok(),
            () = self.shared.over.cancelled() => false,
        }
    }

    /// What the mirror shows now, and each change of it from there on, once, in order.
    pub fn changes(&self) -> (Subtree, MirrorChanges) {
        // Whoever changes it has let go of the lock before telling so: what is told twice is known
        // by its revision.
        let snapshot = self.shared.snapshot.read();
        let told = self.shared.told.subscribe();
        (snapshot.clone(), MirrorChanges { after: snapshot.revision, told, shared: Arc::clone(&self.shared) })
    }

    /// Cancelled when the mirror changes no more because the client is closed.
    pub fn on_closed(&self) -> CancellationToken {
        self.shared.over.clone()
    }
}

/// The changes of a mirror.
#[derive(Debug)]
pub struct MirrorChanges {
    /// Everything up to this has been told.
    after: Revision,
    told: broadcast::Receiver<Mirrored>,
    shared: Arc<MirrorShared>,
}

impl MirrorChanges {
    /// What happened next; none when the mirror changes no more. Nothing is lost if the future is
    /// dropped.
    pub async fn next(&mut self) -> Option<Mirrored> {
        loop {
            let told = tokio::select! {
                biased;
                told = self.told.recv() => told,
                () = self.shared.over.cancelled() => return None,
            };
            let told = match told {
                Ok(told) => told,
                Err(broadcast::error::RecvError::Lagged(_)) => {
                    self.told = self.told.resubscribe();
                    Mirrored::StartOver(self.shared.snapshot.read().revision)
                }
                Err(broadcast::error::RecvError::Closed) => return None,
            };
            let revision = match &told {
                Mirrored::Change(change) if change.revision <= self.after => continue,
                Mirrored::Change(change) => change.revision,
                Mirrored::StartOver(revision) => *revision,
            };
            self.after = revision;
            return Some(told);
        }
    }
}

impl Client {
    /// Keeps a node and all that lies below it in memory, as it changes, until the mirror is
    /// dropped. Returns when it is there: it has every write that was acknowledged before the call.
    /// It counts as a clone of the client, which goes on for as long.
    ///
    /// # Errors
    ///
    /// [`WatchError`] if it cannot be read.
    pub async fn mirror(&self, path: &NodePath) -> Result<Mirror, WatchError> {
        let (snapshot, watch) = self.list_and_watch(path).await?;
        let shared = Arc::new(MirrorShared {
            revision: watch::Sender::new(snapshot.revision),
            snapshot: RwLock::new(snapshot),
            told: broadcast::Sender::new(CHANGES_MAX),
            over: CancellationToken::new(),
        });
        let task = tokio::spawn(follow(self.clone(), path.clone(), watch, Arc::clone(&shared)));
        Ok(Mirror { shared, _task: AbortOnDropHandle::new(task) })
    }
}

/// Follows what happens, and starts over when that is not known any more. Ends with the client.
async fn follow(client: Client, path: NodePath, mut watch: Watch, shared: Arc<MirrorShared>) {
    loop {
        match watch.next().await {
            Ok(WatchItem::Change(change)) => shared.apply(change),
            Ok(WatchItem::Progress(revision)) => shared.pass(revision),
            Err(WatchError::Closed) => break,
            Err(error) => {
                tracing::warn!(%error, %path, "a mirror reads its subtree anew, because its watch has ended");
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
    shared.over.cancel();
}

/// None if the client is closed.
async fn read_anew(client: &Client, path: &NodePath) -> Option<(Subtree, Watch)> {
    loop {
        match client.list_and_watch(path).await {
            Ok(read) => return Some(read),
            Err(WatchError::Closed) => return None,
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}

/// What is shared with whoever listens is small.
const _: () = assert!(size_of::<Mirrored>() <= 24);

#[cfg(test)]
mod tests {
    use super::*;

    fn shared() -> Arc<MirrorShared> {
        Arc::new(MirrorShared {
            snapshot: RwLock::default(),
            revision: watch::Sender::new(Revision(0)),
            told: broadcast::Sender::new(4),
            over: CancellationToken::new(),
        })
    }

    fn change(revision: u64) -> Change {
        Change { revision: Revision(revision), events: Vec::new() }
    }

    #[tokio::test]
    async fn slow_mirror_listener_starts_over_and_continues() {
        let shared = shared();
        let told = shared.told.subscribe();
        let mut changes = MirrorChanges { after: Revision(0), told, shared: Arc::clone(&shared) };
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
