//! A registry: members with a name, a value and an epoch, and the events of their arrival and
//! departure.
//!
//! A member is a [`Registration`]: a node that is attached to its session's lease on the volume. A
//! member that crashes or is cut off leaves the registry after the lease's term and the margin, and
//! never while [`Registration::remaining`] is above zero.
//!
//! Events are in order, but may be out of date when they arrive. So a request for a member names
//! its [epoch](Member::epoch), which grows with each registration and update of a name. The
//! receiver refuses an older epoch, or compares it with the node's modify revision in a
//! transaction.

use std::collections::{BTreeMap, VecDeque};

use leasehold_protocol::{
    change::{Change, EventKind},
    id::{Revision, SessionId},
    object::{Data, NodeOwner, Value},
    path::NodePath,
};

use super::RecipeError;
use crate::{
    client::Client,
    error::WatchError,
    key_lease::{RegisterOptions, Registration},
    watch::{Watch, WatchItem},
};

/// Members with names. See [`Client::registry`].
#[derive(Debug, Clone)]
pub struct Registry {
    client: Client,
    path: NodePath,
}

/// A registered member.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its name.
    pub name: String,
    /// The member's description of itself, usually an address.
    pub value: Value,
    /// The node's modify revision ([`Registration::revision`]).
    pub epoch: Revision,
    /// The session whose lease the node is attached to.
    pub session: SessionId,
}

/// A change among the members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberEvent {
    /// A member joined, registered again or updated its value. The epoch is larger.
    Joined(Member),
    /// A member left, lost its lease, or was replaced. Also the first event of an update.
    Left(Member),
}

/// The members of a registry, and their changes.
#[derive(Debug)]
pub struct Members {
    client: Client,
    path: NodePath,
    now: BTreeMap<String, Member>,
    watch: Watch,
    /// The events that are still to be reported.
    events: VecDeque<MemberEvent>,
}

impl Registry {
    /// Registers under a name that nobody else has. Replaces an earlier registration of this client
    /// under that name.
    ///
    /// # Errors
    ///
    /// [`RecipeError`]. Refused if another session is registered under that name.
    pub async fn join(&self, name: &str, value: impl Into<Value>) -> Result<Registration, RecipeError> {
        let node = self.path.child(name)?;
        Ok(self.client.register(&node, value, RegisterOptions::default()).await?)
    }

    /// Lists the members, and follows the changes from then on.
    ///
    /// # Errors
    ///
    /// [`WatchError`].
    pub async fn members(&self) -> Result<Members, WatchError> {
        let (now, watch) = list(&self.client, &self.path).await?;
        Ok(Members { client: self.client.clone(), path: self.path.clone(), now, watch, events: VecDeque::new() })
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
        loop {
            if let Some(event) = self.events.pop_front() {
                match &event {
                    MemberEvent::Joined(member) => self.now.insert(member.name.clone(), member.clone()),
                    MemberEvent::Left(member) => self.now.remove(&member.name),
                };
                return Ok(event);
            }
            match self.watch.next().await {
                Ok(WatchItem::Change(change)) => self.note(&change),
                Ok(WatchItem::Progress(_)) => {}
                Err(WatchError::Compacted { .. }) => {
                    let (now, watch) = list(&self.client, &self.path).await?;
                    self.watch = watch;
                    self.start_over(now);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// All earlier events were reported before, so `self.now` is the state before this change.
    fn note(&mut self, change: &Change) {
        for event in change.events.iter().filter(|event| self.path.is_parent_of(&event.path)) {
            let member = match &event.kind {
                EventKind::Put(data) => Member::of(&event.path, data),
                EventKind::Delete => None,
            };
            let known = event.path.name().and_then(|name| self.now.get(name));
            self.events.extend(known.cloned().map(MemberEvent::Left));
            self.events.extend(member.map(MemberEvent::Joined));
        }
    }

    fn start_over(&mut self, now: BTreeMap<String, Member>) {
        let is_in = |all: &BTreeMap<String, Member>, member: &Member| all.get(&member.name) == Some(member);
        let left = self.now.values().filter(|member| !is_in(&now, member));
        self.events.extend(left.cloned().map(MemberEvent::Left));
        let joined = now.values().filter(|member| !is_in(&self.now, member));
        self.events.extend(joined.cloned().map(MemberEvent::Joined));
    }
}

impl Member {
    /// `None` if the node is attached to no session's lease.
    fn of(path: &NodePath, data: &Data) -> Option<Self> {
        let Some(NodeOwner::Session(session)) = data.stat.owner else { return None };
        let (name, value) = (path.name()?.to_owned(), data.value.clone());
        Some(Self { name, value, epoch: data.stat.modify_revision, session })
    }
}

async fn list(client: &Client, path: &NodePath) -> Result<(BTreeMap<String, Member>, Watch), WatchError> {
    let (subtree, watch) = client.list_and_watch(path).await?;
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
    /// let registry = client.registry(&"/services/web".parse()?);
    /// let registration = registry.join("host-1", "10.0.0.1:80").await?;
    /// let mut members = registry.members().await?;
    /// println!("{} are there; this is epoch {}", members.current().count(), registration.epoch());
    /// println!("then: {:?}", members.next().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn registry(&self, path: &NodePath) -> Registry {
        Registry { client: self.clone(), path: path.clone() }
    }
}
