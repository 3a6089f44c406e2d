//! Who stands at a node, and waiting until they have left: without being woken by all who come and
//! go.
//!
//! Of any `keep` nodes one has gone when fewer than `keep` are left of a larger number. So it is
//! enough to watch any `keep` of them, and another in the place of each that goes: a node that goes
//! wakes those who watch it, which is about `keep` of those behind it, however many wait. (With
//! `keep` = 1 it is ZooKeeper's lock, where each watches the one before it.)

use std::collections::BTreeSet;

use futures::{StreamExt, stream::FuturesUnordered};
use leasehold_protocol::{
    change::EventKind,
    id::Revision,
    object::{Data, NodeOwner},
    path::NodePath,
};

use crate::{
    client::Client,
    error::WatchError,
    watch::{Watch, WatchItem, WatchOptions},
};

/// Up to so many nodes are watched one by one; else all at once, with everything that comes and
/// goes.
const WATCHED_EACH_MAX: usize = 8;

/// Those who stand at a node, as of one revision.
#[derive(Debug)]
pub(super) struct Parties {
    pub(super) revision: Revision,
    /// In the order in which they came.
    pub(super) nodes: Vec<NodePath>,
    /// Since when there is the node that was asked for too.
    pub(super) mark: Option<Revision>,
    /// What happens from there on.
    watch: Watch,
}

impl Client {
    /// Who stands at a node: has a node right below it that goes with a session. And whether there
    /// is a certain node that stays. Linearizable.
    pub(super) async fn parties(&self, top: &NodePath, mark: Option<&NodePath>) -> Result<Parties, WatchError> {
        let (subtree, watch) = self.list_and_watch(top).await?;
        let stands = |(path, data): &(&NodePath, &Data)| {
            top.is_parent_of(path) && matches!(data.stat.owner, Some(NodeOwner::Session(_)))
        };
        let mut nodes: Vec<(&NodePath, &Data)> = subtree.nodes.iter().filter(stands).collect();
        nodes.sort_by_key(|(_, data)| data.stat.create_revision);
        let nodes = nodes.into_iter().map(|(path, _)| path.clone()).collect();
        let mark = mark.and_then(|mark| subtree.nodes.get(mark)).map(|data| data.stat.create_revision);
        Ok(Parties { revision: subtree.revision, nodes, mark, watch })
    }
}

impl Parties {
    /// Waits until fewer than `keep` of the first `count` are left. [`WatchError::Compacted`] if
    /// that cannot be told from here any more.
    pub(super) async fn until_fewer_than(self, keep: usize, count: usize, client: &Client) -> Result<(), WatchError> {
        let Self { revision, mut nodes, watch, .. } = self;
        nodes.truncate(count);
        if keep > WATCHED_EACH_MAX {
            return until_fewer_by(watch, keep, nodes.into_iter().collect()).await;
        }
        // Else everybody would be woken by whoever comes.
        drop(watch);
        let mut watched = FuturesUnordered::new();
        let mut left = nodes.len();
        while left >= keep {
            let more = nodes.split_off(nodes.len() - nodes.len().min(keep - watched.len()));
            watched.extend(more.into_iter().map(|path| gone(client, path, revision)));
            if let Some(gone) = watched.next().await {
                gone?;
                left -= 1;
            }
        }
        Ok(())
    }
}

async fn gone(client: &Client, path: NodePath, after: Revision) -> Result<(), WatchError> {
    happens(client, &path, after, |kind| matches!(kind, EventKind::Delete)).await.map(|_| ())
}

/// The change at which a node was put, the first after that one.
pub(super) async fn put(client: &Client, path: &NodePath, after: Revision) -> Result<Revision, WatchError> {
    happens(client, path, after, |kind| matches!(kind, EventKind::Put(_))).await
}

async fn happens(
    client: &Client,
    path: &NodePath,
    after: Revision,
    is_it: impl Fn(&EventKind) -> bool,
) -> Result<Revision, WatchError> {
    let from = Some(Revision(after.0.saturating_add(1)));
    let options = WatchOptions { from, recursive: false, ..WatchOptions::default() };
    let mut watch = client.watch(path, options).await?;
    loop {
        if let WatchItem::Change(change) = watch.next().await?
            && change.events.iter().any(|event| is_it(&event.kind))
        {
            return Ok(change.revision);
        }
    }
}

async fn until_fewer_by(mut watch: Watch, keep: usize, mut nodes: BTreeSet<NodePath>) -> Result<(), WatchError> {
    while nodes.len() >= keep {
        if let WatchItem::Change(change) = watch.next().await? {
            for event in change.events.iter().filter(|event| matches!(event.kind, EventKind::Delete)) {
                nodes.remove(&event.path);
            }
        }
    }
    Ok(())
}
