//! Lists: all nodes of a subtree as of one revision, and a watch of the later changes.
//!
//! # Why a list in pages is consistent
//!
//! Each page shows one part of the subtree as of its own revision. That revision was the current
//! one at a moment after the client requested the page. Later pages can have later revisions. So
//! all pages together may show a state that never existed. A watch that begins after the *first*
//! page's revision gets every later change. A change applies to a node only if it is later than the
//! node's page.
//!
//! When the watch reaches the revision of the last page, every node is as of that revision. From
//! there on, every change applies.

use std::{collections::BTreeMap, time::Duration};

use leasehold_protocol::{
    change::{Change, Event, EventKind},
    id::Revision,
    message::{Answer, Body, LIST_NODES_MAX, ListPage},
    object::Data,
    path::{NodePath, PathError},
};

use crate::{
    call::given,
    client::Client,
    error::{InspectError, WatchError},
    watch::{Watch, WatchItem},
};

/// A subtree as of one revision.
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_client_cache::WatchItem;
///
/// let (mut subtree, mut watch) = client.list_and_watch("/config").await?;
/// if let WatchItem::Change(change) = watch.next().await? {
///     subtree.apply(&change);
/// }
/// println!("{} nodes at revision {}", subtree.nodes.len(), subtree.revision);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Subtree {
    /// The last change that is included.
    pub revision: Revision,
    /// The nodes with their data, in the order of paths. The topmost node is included.
    pub nodes: BTreeMap<NodePath, Data>,
}

impl Subtree {
    /// Applies a change. It must be the subtree's next one.
    pub fn apply(&mut self, change: &Change) {
        self.revision = change.revision;
        change.events.iter().for_each(|event| happen(&mut self.nodes, event));
    }
}

fn happen(nodes: &mut BTreeMap<NodePath, Data>, event: &Event) {
    match &event.kind {
        EventKind::Put(data) => nodes.insert(event.path.clone(), data.clone()),
        EventKind::Delete => nodes.remove(&event.path),
    };
}

/// The pages of a list, and later changes applied to them.
#[derive(Debug, Default)]
struct ListPages {
    nodes: BTreeMap<NodePath, Data>,
    /// For each page: the path up to which it is complete (`None` for the last page), and its
    /// revision.
    ends: Vec<(Option<NodePath>, Revision)>,
}

impl ListPages {
    /// Adds a page. Returns the path after which the next page begins, if there is one.
    fn add(&mut self, page: ListPage) -> Option<NodePath> {
        self.nodes.extend(page.nodes);
        self.ends.push((page.through.clone(), page.revision));
        page.through
    }

    fn first(&self) -> Revision {
        self.ends.first().map_or(Revision(0), |(_, revision)| *revision)
    }

    fn last(&self) -> Revision {
        self.ends.last().map_or(Revision(0), |(_, revision)| *revision)
    }

    /// The revision of the page whose range includes the path.
    fn listed_at(&self, path: &NodePath) -> Revision {
        let after = self.ends.partition_point(|(last, _)| last.as_ref().is_some_and(|last| last < path));
        self.ends.get(after).map_or(Revision(0), |(_, revision)| *revision)
    }

    fn apply(&mut self, change: &Change) {
        for event in change.events.iter() {
            if change.revision > self.listed_at(&event.path) {
                happen(&mut self.nodes, event);
            }
        }
    }
}

impl Client {
    /// Lists all nodes at and below a path with their data, as of one revision, and watches all
    /// later changes. Linearizable: the list has every write, of any client, that was acknowledged
    /// before the call. Nothing is cached.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let (subtree, mut watch) = client.list_and_watch("/config").await?;
    /// println!("{} nodes at revision {}", subtree.nodes.len(), subtree.revision);
    /// println!("then: {:?}", watch.next().await?);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`WatchError`] if a page, or a change up to the revision of the last page, does not come
    /// within the client's timeout, or is refused.
    pub async fn list_and_watch(
        &self,
        path: impl TryInto<NodePath, Error: Into<PathError>>,
    ) -> Result<(Subtree, Watch), WatchError> {
        self.list_then_watch(&given(path)?).await
    }

    async fn list_then_watch(&self, path: &NodePath) -> Result<(Subtree, Watch), WatchError> {
        let mut pages = ListPages::default();
        let mut after = None;
        loop {
            after = pages.add(self.list_page(path, after).await?);
            if after.is_none() {
                break;
            }
        }
        let mut watch = self.watch(path).from(Revision(pages.first().0.saturating_add(1))).await?;
        let mut revision = pages.first();
        while revision < pages.last() {
            let item = self.within(watch.next()).await?;
            if let WatchItem::Change(change) = &item {
                pages.apply(change);
            }
            revision = item.revision();
        }
        Ok((Subtree { revision, nodes: pages.nodes }, watch))
    }

    async fn within(&self, next: impl Future<Output = Result<WatchItem, WatchError>>) -> Result<WatchItem, WatchError> {
        let after = self.timeout(None);
        match tokio::time::timeout(after, next).await {
            Ok(item) => item,
            Err(_) => Err(self.late(after)),
        }
    }

    pub(crate) fn late(&self, after: Duration) -> WatchError {
        match self.driver().status.unavailable() {
            Some(source) => WatchError::Unavailable { after, source },
            None => WatchError::TimedOut { after },
        }
    }

    async fn list_page(&self, path: &NodePath, after: Option<NodePath>) -> Result<ListPage, WatchError> {
        let body = Body::List { path: path.clone(), after, nodes_max: LIST_NODES_MAX };
        match self.driver().ask(body, self.timeout(None)).await? {
            Answer::Listed(page) => Ok(page),
            _ => Err(InspectError::UnexpectedAnswer.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use leasehold_protocol::{change::ChangeReason, object::Stat};

    use super::*;

    fn path(text: &str) -> NodePath {
        NodePath::parse(text).expect("a path")
    }

    fn data(revision: u64) -> Data {
        let revision = Revision(revision);
        let stat = Stat { create_revision: revision, modify_revision: revision, version: 1, value_len: 0, owner: None };
        Data { value: Default::default(), stat }
    }

    fn page(nodes: &[(&str, u64)], revision: u64, through: Option<&str>) -> ListPage {
        let nodes = nodes.iter().map(|(at, revision)| (path(at), data(*revision))).collect();
        ListPage { nodes, revision: Revision(revision), through: through.map(path) }
    }

    fn change(revision: u64, events: &[(&str, bool)]) -> Change {
        let kind = |is_put| if is_put { EventKind::Put(data(revision)) } else { EventKind::Delete };
        let event =
            |(at, is_put): &(&str, bool)| Event { path: path(at), kind: kind(*is_put), reason: ChangeReason::Request };
        Change { revision: Revision(revision), events: events.iter().map(event).collect() }
    }

    #[test]
    fn a_node_is_changed_only_by_what_happened_after_it_was_listed() {
        let mut pages = ListPages::default();
        // Change 11 made /b and removed /y, 12 made /x and /bb, 13 removed /a.
        assert_eq!(pages.add(page(&[("/a", 1), ("/c", 2)], 10, Some("/d"))), Some(path("/d")));
        assert_eq!(pages.add(page(&[("/x", 12), ("/z", 3)], 12, None)), None);
        assert_eq!((pages.first(), pages.last()), (Revision(10), Revision(12)));
        for change in [
            change(11, &[("/b", true), ("/y", false)]),
            change(12, &[("/bb", true), ("/x", true)]),
            change(13, &[("/a", false)]),
        ] {
            pages.apply(&change);
        }
        let expected = [("/b", 11), ("/bb", 12), ("/c", 2), ("/x", 12), ("/z", 3)];
        assert!(pages.nodes.into_iter().eq(expected.map(|(at, revision)| (path(at), data(revision)))));
    }
}
