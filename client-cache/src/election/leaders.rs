//! The leaders of a node, one after the other.

use std::{
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures::Stream;
use leasehold_protocol::{change::EventKind, path::NodePath};
use tokio_util::sync::ReusableBoxFuture;

use super::ElectedLeader;
use crate::{
    call::GivenPath,
    client::Client,
    error::WatchError,
    list::Subtree,
    watch::{Watch, WatchItem},
};

/// The leaders of one node, one after the other. See [`Client::observe`].
///
/// It is a [`Stream`], which goes on after errors, and ends when the client is closed or if the
/// path is bad. [`ElectedLeaders::next`] is the same without the `Option`, and needs no import.
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let mut leaders = client.observe("/scheduler");
/// println!("{:?} leads", leaders.next().await?.value);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is received until this is polled"]
pub struct ElectedLeaders {
    client: Client,
    path: GivenPath,
    source: LeaderSource,
    /// The last leader that was reported.
    reported: Option<ElectedLeader>,
    /// Whether the stream has returned its last error.
    has_ended: bool,
}

/// Where the next leader comes from.
#[derive(Debug)]
enum LeaderSource {
    /// The node, which is read first, and again after a watch that fell behind.
    Node(Option<ReusableBoxFuture<'static, Result<(Subtree, Watch), WatchError>>>),
    /// The later changes.
    Changes(Watch),
}

impl ElectedLeaders {
    pub(super) fn new(client: Client, path: GivenPath) -> Self {
        Self { client, path, source: LeaderSource::Node(None), reported: None, has_ended: false }
    }

    /// Waits for the next leader, or the leader's next value. The first call returns the current
    /// leader, if any. Each comes once, in order. Nothing is lost if the future is dropped.
    ///
    /// If the watch falls behind the history ([`WatchError::Compacted`]), earlier leaders are left
    /// out.
    ///
    /// # Errors
    ///
    /// [`WatchError`] if the watch has ended, if no server answers in time, or if the path is bad.
    pub async fn next(&mut self) -> Result<ElectedLeader, WatchError> {
        poll_fn(|cx| self.poll_leader(cx)).await
    }

    fn poll_leader(&mut self, cx: &mut Context<'_>) -> Poll<Result<ElectedLeader, WatchError>> {
        let path = match &self.path {
            Ok(path) => path,
            Err(error) => return Poll::Ready(Err(error.clone().into())),
        };
        loop {
            let found = match &mut self.source {
                LeaderSource::Node(reading) => {
                    let reading = reading.get_or_insert_with(|| {
                        let (client, path) = (self.client.clone(), path.clone());
                        ReusableBoxFuture::new(async move { client.list_and_watch(path).await })
                    });
                    match ready!(reading.poll(cx)) {
                        Ok((subtree, watch)) => {
                            self.source = LeaderSource::Changes(watch);
                            subtree.nodes.get(path).and_then(ElectedLeader::of)
                        }
                        Err(error) => {
                            self.source = LeaderSource::Node(None);
                            return Poll::Ready(Err(error));
                        }
                    }
                }
                LeaderSource::Changes(watch) => match ready!(watch.poll_item(cx)) {
                    Ok(item) => elected_by(&item, path),
                    Err(WatchError::Compacted { .. }) => {
                        self.source = LeaderSource::Node(None);
                        None
                    }
                    Err(error) => {
                        // The watch has ended: read the node again at the next call.
                        self.source = LeaderSource::Node(None);
                        return Poll::Ready(Err(error));
                    }
                },
            };
            let is_news = |found: &ElectedLeader| {
                self.reported.as_ref().is_none_or(|reported| reported.revision < found.revision)
            };
            if let Some(leader) = found.filter(is_news) {
                self.reported = Some(leader.clone());
                return Poll::Ready(Ok(leader));
            }
        }
    }
}

impl Stream for ElectedLeaders {
    type Item = Result<ElectedLeader, WatchError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let leader = ready!(self.poll_leader(cx));
        self.has_ended = matches!(leader, Err(WatchError::Closed | WatchError::Path(_)));
        Poll::Ready(Some(leader))
    }
}

fn elected_by(item: &WatchItem, path: &NodePath) -> Option<ElectedLeader> {
    let WatchItem::Change(change) = item else { return None };
    // A change puts a node at most once.
    change.events.iter().filter(|event| event.path == *path).find_map(|event| match &event.kind {
        EventKind::Put(data) => ElectedLeader::of(data),
        EventKind::Delete => None,
    })
}
