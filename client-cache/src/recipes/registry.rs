//! A registry: who is there, each with a name, a value and an epoch; and who comes and goes.
//!
//! A member is a [`Registration`]: a node that goes with its session's lease on the volume. A
//! member that crashes or is cut off is gone from the registry after its term and the margin, never
//! while it may count on being there ([`Registration::certain_for`]).
//!
//! What is told is what was there at one moment after the other, and may be over by the time that
//! it is heard. Whoever acts for a member names its [epoch](Member::epoch), which grows from
//! registration to registration under one name; whoever it acts on refuses an older one, or
//! compares the node's modify revision with it in a transaction.

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

/// Somebody who is registered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Member {
    /// Its name.
    pub name: String,
    /// What it says of itself: an address, as a rule.
    pub value: Value,
    /// Which registration this is: [`Registration::epoch`].
    pub epoch: Revision,
    /// The session that it goes with.
    pub session: SessionId,
}

/// What happens among members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemberEvent {
    /// Somebody is there, or is there anew with a larger epoch.
    Joined(Member),
    /// Somebody has left, is gone with its lease, or has been replaced.
    Left(Member),
}

/// The members of a registry, as they come and go.
#[derive(Debug)]
pub struct Members {
    client: Client,
    path: NodePath,
    now: BTreeMap<String, Member>,
    watch: Watch,
    /// What has yet to be told.
    events: VecDeque<MemberEvent>,
}

impl Registry {
    /// Registers under a name that nobody else has. What this client has registered under that name
    /// before is replaced.
    ///
    /// # Errors
    ///
    /// [`RecipeError`]; refused if somebody else is registered under that name.
    pub async fn join(&self, name: &str, value: impl Into<Value>) -> Result<Registration, RecipeError> {
        let node = self.path.child(name)?;
        Ok(self.client.register(&node, value, RegisterOptions::default()).await?)
    }

    /// Who is there, and from then on who comes and goes.
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
    /// Who was there when [`Members::next`] returned last, or in the beginning; in the order of
    /// names.
    pub fn current(&self) -> impl Iterator<Item = &Member> {
        self.now.values()
    }

    /// What happens next: each who comes, and each who goes, once and in order. If that is not
    /// known any more, since this was cut off for too long, what has become of it all is told as if
    /// it happened now. Nothing is lost if the future is dropped.
    ///
    /// # Errors
    ///
    /// [`WatchError`] if there is nothing to wait for, or nobody who answers in time.
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

    /// What is told has been told before anything else is noted: who is known is who was there
    /// before.
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
    /// None if the node is nobody's.
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
    /// A registry. Its nodes are right below the path. Nothing is asked before somebody joins or
    /// looks.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let registry = client.registry(&"/services/web".parse()?);
    /// let registration = registry.join("host-1", "10.0.0.1:80").await?;
    /// let mut members = registry.members().await?;
    /// println!("{} are there; this is epoch {}", members.now().count(), registration.epoch());
    /// println!("then: {:?}", members.next().await?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn registry(&self, path: &NodePath) -> Registry {
        Registry { client: self.clone(), path: path.clone() }
    }
}
