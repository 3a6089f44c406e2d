//! The parties at a node, and how to wait until some leave, with few wake-ups.
//!
//! Suppose that a client waits until fewer than `keep` older nodes are left. While any `keep` of
//! them exist, it must wait. So it watches only `keep` of them, and a new one for each that is
//! removed. A removal wakes about `keep` clients, however many wait. With `keep` = 1 this is
//! ZooKeeper's lock recipe, where each waiter watches the one before it.

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
    watch::{Watch, WatchItem},
};

/// Up to this number, each node has a watch of its own. Above it, one watch reports all arrivals
/// and departures.
const WATCHED_EACH_MAX: usize = 8;

/// The parties at a node, as of one revision.
#[derive(Debug)]
pub(super) struct Parties {
    pub(super) revision: Revision,
    /// In the order of arrival.
    pub(super) nodes: Vec<NodePath>,
    /// The create revision of the marker node, if that exists.
    pub(super) mark: Option<Revision>,
    /// The changes after `revision`.
    watch: Watch,
}

impl Client {
    /// The parties at a node: its children that are attached to a session's lease. Also says
    /// whether the node `mark` exists. Linearizable.
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
    /// Waits until fewer than `keep` of the first `count` nodes are left. [`WatchError::Compacted`]
    /// if the history no longer shows that.
    pub(super) async fn until_fewer_than(self, keep: usize, count: usize, client: &Client) -> Result<(), WatchError> {
        let Self { revision, mut nodes, watch, .. } = self;
        nodes.truncate(count);
        if keep > WATCHED_EACH_MAX {
            return until_fewer_by(watch, keep, nodes.into_iter().collect()).await;
        }
        // Otherwise each arrival would wake everybody.
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

/// The revision of the first put of a node after `after`.
pub(super) async fn put(client: &Client, path: &NodePath, after: Revision) -> Result<Revision, WatchError> {
    happens(client, path, after, |kind| matches!(kind, EventKind::Put(_))).await
}

async fn happens(
    client: &Client,
    path: &NodePath,
    after: Revision,
    is_it: impl Fn(&EventKind) -> bool,
) -> Result<Revision, WatchError> {
    let mut watch = client.watch(path).from(Revision(after.0.saturating_add(1))).recursive(false).await?;
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
