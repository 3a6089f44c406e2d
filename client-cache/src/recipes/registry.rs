//! A registry: members with a name, a value and an epoch, and the events of their arrival and
//! departure.
//!
//! A member is a [`Registration`]: a node that is attached to its session's lease on the volume. A
//! member that crashes or is cut off leaves the registry after the lease's term and the margin, and
//! never while [`Registration::remaining`] is above zero.
//!
//! Events are in order, but may be out of date when they arrive. So a request for a member names
//! its [epoch](Member::epoch), which grows with each registration of a name. The receiver refuses
//! an older epoch, or compares it with the node's create revision in a transaction.

use std::{
    collections::{BTreeMap, VecDeque},
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures::Stream;
use leasehold_protocol::{
    change::{Change, EventKind},
    id::{Revision, SessionId},
    object::{Data, NodeOwner, Value},
    path::{NodePath, PathError},
};
use tokio_util::sync::ReusableBoxFuture;

use super::RecipeError;
use crate::{
    call::{GivenPath, given},
    client::Client,
    error::WatchError,
    registration::Registration,
    watch::{Watch, WatchItem},
};

/// Members with names. See [`Client::registry`].
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let registry = client.registry("/services/web");
/// let registration = registry.join("host-1", "10.0.0.1:80").await?;
/// registration.on_lost().cancelled().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is sent until one of its methods is awaited"]
pub struct Registry {
    client: Client,
    path: GivenPath,
}

/// A registered member.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its name.
    pub name: String,
    /// The member's description of itself, usually an address.
    pub value: Value,
    /// The number of the registration, which updates do not change: the node's create revision
    /// ([`Registration::epoch`]).
    pub epoch: Revision,
    /// The session whose lease the node is attached to.
    pub session: SessionId,
}

/// A change among the members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberEvent {
    /// A member joined, or registered again. The epoch is larger than that of any earlier member
    /// with this name.
    Joined(Member),
    /// A member [updated](Registration::update) its value. The epoch is the same.
    Updated(Member),
    /// A member left, lost its lease, or was replaced.
    Left(Member),
}

/// The members of a registry, and their changes.
///
/// It is a [`Stream`], which goes on after errors, and ends when the client is closed.
/// [`Members::next`] is the same without the `Option`, and needs no import.
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_client_cache::recipes::MemberEvent;
///
/// let mut members = client.registry("/services/web").members().await?;
/// for member in members.current() {
///     println!("{} is at {:?}", member.name, member.value);
/// }
/// match members.next().await? {
///     MemberEvent::Joined(member) => println!("{} joined in epoch {}", member.name, member.epoch),
///     MemberEvent::Updated(member) => println!("{} is now at {:?}", member.name, member.value),
///     MemberEvent::Left(member) => println!("{} left", member.name),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "nothing is received until this is polled"]
pub struct Members {
    client: Client,
    path: NodePath,
    now: BTreeMap<String, Member>,
    watch: Watch,
    /// Reads the registry again, after a watch that fell behind.
    reading: Option<ReusableBoxFuture<'static, Result<MemberList, WatchError>>>,
    /// The events that are still to be reported.
    events: VecDeque<MemberEvent>,
    /// Whether the stream has returned its last error.
    has_ended: bool,
}

impl Registry {
    /// Registers under a name that nobody else has. Replaces an earlier registration of this client
    /// under that name.
    ///
    /// # Errors
    ///
    /// [`RecipeError`]. Refused if another session is registered under that name.
    pub async fn join(&self, name: &str, value: impl AsRef<[u8]>) -> Result<Registration, RecipeError> {
        let node = self.path()?.child(name)?;
        Ok(self.client.register(node, value).await?)
    }

    /// Lists the members, and follows the changes from then on.
    ///
    /// # Errors
    ///
    /// [`WatchError`].
    pub async fn members(&self) -> Result<Members, WatchError> {
        let path = self.path()?.clone();
        let (now, watch) = list(self.client.clone(), path.clone()).await?;
        Ok(Members {
            client: self.client.clone(),
            path,
            now,
            watch,
            reading: None,
            events: VecDeque::new(),
            has_ended: false,
        })
    }

    fn path(&self) -> Result<&NodePath, PathError> {
        self.path.as_ref().map_err(PathError::clone)
    }
}

impl Members {
    /// The members after the last event from [`Members::next`], in the order of names.
    pub fn current(&self) -> impl Iterator<Item = &Member> {
        self.now.values()
    }

    /// The next event. Each arrival and departure comes once, in order. Nothing is lost if the
    /// future is dropped.
    ///
    /// If the watch falls behind the history, this reads the registry again and reports the
    /// differences.
    ///
    /// # Errors
    ///
    /// [`WatchError`] if the watch has ended, or if no server answers in time.
    pub async fn next(&mut self) -> Result<MemberEvent, WatchError> {
        poll_fn(|cx| self.poll_event(cx)).await
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Result<MemberEvent, WatchError>> {
        loop {
            if let Some(event) = self.events.pop_front() {
                match &event {
                    MemberEvent::Joined(member) | MemberEvent::Updated(member) => {
                        self.now.insert(member.name.clone(), member.clone())
                    }
                    MemberEvent::Left(member) => self.now.remove(&member.name),
                };
                return Poll::Ready(Ok(event));
            }
            if let Some(reading) = &mut self.reading {
                let read = ready!(reading.poll(cx));
                self.reading = None;
                match read {
                    Ok((now, watch)) => {
                        self.watch = watch;
                        self.start_over(now);
                    }
                    Err(error) => {
                        self.read_again();
                        return Poll::Ready(Err(error));
                    }
                }
                continue;
            }
            match ready!(self.watch.poll_item(cx)) {
                Ok(WatchItem::Change(change)) => self.note(&change),
                Ok(WatchItem::Progress(_)) => {}
                Err(WatchError::Compacted { .. }) => self.read_again(),
                Err(error) => {
                    self.read_again();
                    return Poll::Ready(Err(error));
                }
            }
        }
    }

    /// The watch has ended.
    fn read_again(&mut self) {
        self.reading = Some(ReusableBoxFuture::new(list(self.client.clone(), self.path.clone())));
    }

    /// All earlier events were reported before, so `self.now` is the state before this change.
    fn note(&mut self, change: &Change) {
        for event in change.events.iter().filter(|event| self.path.is_parent_of(&event.path)) {
            let member = match &event.kind {
                EventKind::Put(data) => Member::of(&event.path, data),
                EventKind::Delete => None,
            };
            let known = event.path.name().and_then(|name| self.now.get(name));
            self.events.extend(became(known, member));
        }
    }

    fn start_over(&mut self, mut now: BTreeMap<String, Member>) {
        for known in self.now.values() {
            let found = now.remove(&known.name);
            if found.as_ref() != Some(known) {
                self.events.extend(became(Some(known), found));
            }
        }
        self.events.extend(now.into_values().map(MemberEvent::Joined));
    }
}

impl Stream for Members {
    type Item = Result<MemberEvent, WatchError>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.has_ended {
            return Poll::Ready(None);
        }
        let event = ready!(self.poll_event(cx));
        self.has_ended = event == Err(WatchError::Closed);
        Poll::Ready(Some(event))
    }
}

/// The events of a name, whose member was `known` and is `found` now.
fn became(known: Option<&Member>, found: Option<Member>) -> impl Iterator<Item = MemberEvent> {
    let is_update = matches!((known, &found), (Some(known), Some(found)) if found.is_same_registration(known));
    let left = known.filter(|_| !is_update).cloned().map(MemberEvent::Left);
    left.into_iter().chain(found.map(if is_update { MemberEvent::Updated } else { MemberEvent::Joined }))
}

impl Member {
    fn is_same_registration(&self, other: &Self) -> bool {
        (self.epoch, self.session) == (other.epoch, other.session)
    }

    /// `None` if the node is attached to no session's lease.
    fn of(path: &NodePath, data: &Data) -> Option<Self> {
        let Some(NodeOwner::Session(session)) = data.stat.owner else { return None };
        let (name, value) = (path.name()?.to_owned(), data.value.clone());
        Some(Self { name, value, epoch: data.stat.create_revision, session })
    }
}

/// The members, and a watch of the later changes.
type MemberList = (BTreeMap<String, Member>, Watch);

async fn list(client: Client, path: NodePath) -> Result<MemberList, WatchError> {
    let (subtree, watch) = client.list_and_watch(&path).await?;
    let right_below = subtree.nodes.iter().filter(|(node, _)| path.is_parent_of(node));
    let members = right_below.filter_map(|(node, data)| Member::of(node, data));
    Ok((members.map(|member| (member.name.clone(), member)).collect(), watch))
}

impl Client {
    /// A registry. Its nodes are the children of `path`. Sends nothing before somebody joins or
    /// lists.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let registry = client.registry("/services/web");
    /// let registration = registry.join("host-1", "10.0.0.1:80").await?;
    /// let mut members = registry.members().await?;
    /// println!("{} are there; this is epoch {}", members.current().count(), registration.epoch());
    /// println!("then: {:?}", members.next().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn registry(&self, path: impl TryInto<NodePath, Error: Into<PathError>>) -> Registry {
        Registry { client: self.clone(), path: given(path) }
    }
}
