//! Key leases: granted, kept alive, looked at, revoked; and nodes that show by a lease that
//! somebody lives.

use std::{sync::Arc, time::Duration};

use leasehold_protocol::{
    command::{Attach, Condition, Write, WriteRefusal, Written},
    id::{LeaseId, Revision},
    message::{Answer, Inspect, LeaseInfo, NodesAfter, Refusal, ServiceInfo},
    object::{NodeOwner, Value},
    path::NodePath,
    time::Instant,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    client::Client,
    clock,
    driver::Driver,
    error::{InspectError, LeaseError, WriteError},
    write::{DeleteOptions, PutOptions},
};

/// How to ask for a key lease.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseOptions {
    /// Its name; a new one unless told otherwise.
    pub id: Option<LeaseId>,
    /// How long the grant may take; as long as the client's operations do unless told otherwise.
    pub timeout: Option<Duration>,
}

/// What is known of a key lease that is kept alive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyLeaseState {
    /// It has been asked for.
    Asked,
    /// It is certain until then.
    Until(Instant),
    /// It is over, or can no longer be relied on.
    Lost,
}

/// What all handles of one key lease share.
#[derive(Debug)]
pub(crate) struct KeyLeaseShared {
    pub(crate) state: watch::Sender<KeyLeaseState>,
    pub(crate) lost: CancellationToken,
    pub(crate) handles: usize,
    /// Which keeping of the lease this is: one that has ended is not the next one's.
    pub(crate) number: u64,
}

impl KeyLeaseShared {
    pub(crate) fn new(number: u64) -> Self {
        Self { state: watch::Sender::new(KeyLeaseState::Asked), lost: CancellationToken::new(), handles: 0, number }
    }

    pub(crate) fn end(self) {
        self.state.send_replace(KeyLeaseState::Lost);
        self.lost.cancel();
    }
}

/// A key lease that this client keeps alive, until the last handle of it is dropped or the client
/// closed. Then it ends by itself after its term; [`KeyLease::revoke`] ends it at once.
///
/// It can be lost: if no server is heard of in time, or if somebody revokes it. [`KeyLease::over`]
/// is cancelled then, by this client's own clock at the latest and before any server counts the
/// lease as over: whoever acts on the strength of the lease stops in time by listening to that.
/// What is in the middle of an act then can be kept from doing harm only by whoever it acts on.
#[derive(Debug)]
pub struct KeyLease {
    client: Client,
    id: LeaseId,
    number: u64,
    state: watch::Receiver<KeyLeaseState>,
    lost: CancellationToken,
}

impl KeyLease {
    /// Its name.
    pub fn id(&self) -> LeaseId {
        self.id
    }

    /// How long it is certain to last if nothing more is heard: zero when it is over.
    pub fn remaining(&self) -> Duration {
        match *self.state.borrow() {
            KeyLeaseState::Until(until) => until.since(clock::now()),
            KeyLeaseState::Asked | KeyLeaseState::Lost => Duration::ZERO,
        }
    }

    /// Waits until more is known of how long the lease is certain to last, and says how long that
    /// is; none when it is over. Nothing is lost if the future is dropped.
    pub async fn renewed(&mut self) -> Option<Duration> {
        if self.state.changed().await.is_ok()
            && let KeyLeaseState::Until(until) = *self.state.borrow_and_update()
        {
            return Some(until.since(clock::now()));
        }
        // Whoever hears of the end here finds it there too.
        self.lost.cancelled().await;
        None
    }

    /// Cancelled when the lease is over, or can no longer be relied on; never before, and once for
    /// all.
    pub fn on_lost(&self) -> CancellationToken {
        self.lost.clone()
    }

    /// Ends the lease, and with it all nodes that go with it, at once.
    ///
    /// # Errors
    ///
    /// [`WriteError`]; refused if the lease is gone already.
    pub async fn revoke(self) -> Result<Written, WriteError> {
        let timeout = self.client.driver().options.timeout;
        self.client.driver().execute_write(Write::RevokeLease { id: self.id }, timeout).await
    }
}

impl Drop for KeyLease {
    fn drop(&mut self) {
        self.client.driver().stop_keep_alive(self.id, self.number);
    }
}

/// How to register.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegisterOptions {
    /// What must hold of the node; by default that nobody else is registered there.
    pub condition: RegisterCondition,
    /// How long it may take; as long as the client's operations do unless told otherwise.
    pub timeout: Option<Duration>,
}

/// What must hold of a node for a registration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RegisterCondition {
    /// It does not exist, or goes with this client's own session.
    #[default]
    Absent,
    /// Nothing: whoever is registered there is replaced.
    Any,
}

/// A node that goes with this session's lease on its volume: it is there for as long as the client
/// lives and is heard of (a service's liveness by heartbeat; ZooKeeper's ephemeral node).
///
/// Dropping it leaves the node where it is until the client closes or dies; [`Registration::leave`]
/// removes it.
#[derive(Debug)]
pub struct Registration {
    client: Client,
    path: NodePath,
    epoch: Revision,
    /// When the node was put last.
    revision: Revision,
    owner_lease: OwnerLease,
}

/// Knows when the lease is over that a node goes with.
#[derive(Debug)]
struct OwnerLease {
    driver: Arc<Driver>,
    number: u64,
    lost: CancellationToken,
}

impl Drop for OwnerLease {
    fn drop(&mut self) {
        self.driver.forget_owner_lease(self.number);
    }
}

impl Registration {
    /// The node.
    pub fn path(&self) -> &NodePath {
        &self.path
    }

    /// Which registration this is: it grows from one to the next, whoever registers (Kafka's
    /// registration epoch).
    pub fn epoch(&self) -> Revision {
        self.epoch
    }

    /// The change that last put the node's value: that of the registration, or of the last
    /// [`Registration::update`].
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Gives the node another value, unless it is another's by now. It stays registered: the epoch
    /// is as before.
    ///
    /// # Errors
    ///
    /// [`WriteError`]; refused if the node is gone, another's, or was written by other means than
    /// this. After an error whose write [may still happen](WriteError::may_still_happen), the next
    /// update and [`Registration::leave`] are refused if it did.
    pub async fn update(&mut self, value: impl Into<Value>) -> Result<Written, WriteError> {
        let condition = Condition::Revision(self.revision);
        let options = PutOptions { condition, attach: Attach::Session, ..PutOptions::default() };
        let written = self.client.put_with(&self.path, value, options).await?;
        self.revision = written.revision;
        Ok(written)
    }

    /// How long the lease that the node goes with is certain to last if nothing more is heard.
    pub fn remaining(&self) -> Duration {
        if self.owner_lease.lost.is_cancelled() { Duration::ZERO } else { self.client.volume_remaining(&self.path) }
    }

    /// Cancelled when the lease is over that the node went with, for good: as a server says, or
    /// when the session has expired. Before that this client's own clock may say that the lease is
    /// not certain any more ([`Registration::certain_for`] is zero, and the session in *jeopardy*,
    /// see [`Client::events`]); it may still be renewed then. (A node that somebody removes or
    /// replaces is another matter: that can be read.)
    pub fn on_lost(&self) -> CancellationToken {
        self.owner_lease.lost.clone()
    }

    /// Removes the node, unless it is another's by now.
    ///
    /// # Errors
    ///
    /// [`WriteError`]; refused if it is gone, another's, or was written by other means than
    /// [`Registration::update`].
    pub async fn leave(self) -> Result<Written, WriteError> {
        let options = DeleteOptions { condition: Condition::Revision(self.revision), ..DeleteOptions::default() };
        self.client.delete(&self.path, options).await
    }
}

impl Client {
    /// Grants a key lease, as etcd does: nodes can be [attached](PutOptions::attach) to it, and go
    /// when it ends. It ends after its term unless it is [kept alive](Client::keep_lease_alive), by
    /// anybody.
    ///
    /// # Errors
    ///
    /// [`WriteError`]; refused if the name is taken or the term is out of bounds (200 ms to 366
    /// days), and as [busy](leasehold_protocol::message::Refusal::Busy), with the limit, if the
    /// servers could not keep one more lease.
    pub async fn grant_lease(&self, ttl: Duration, options: LeaseOptions) -> Result<LeaseId, WriteError> {
        let written = self.write(Write::GrantLease { id: options.id, ttl }, options.timeout).await?;
        written.lease.map(|granted| granted.id).ok_or(WriteError::OutcomeUnknown)
    }

    /// Keeps a key lease alive from now on, for as long as the handle lives. All leases that one
    /// client keeps are renewed together.
    ///
    /// # Errors
    ///
    /// [`LeaseError`] if the lease is gone, or was not confirmed in time.
    pub async fn keep_lease_alive(&self, id: LeaseId) -> Result<KeyLease, LeaseError> {
        let after = self.driver().options.timeout;
        let (number, mut held, lost) = self.driver().start_keep_alive(id);
        let mut lease = KeyLease { client: self.clone(), id, number, state: held.clone(), lost };
        let answered = tokio::time::timeout(after, held.wait_for(|held| *held != KeyLeaseState::Asked)).await;
        let is_closed = self.driver().closed.is_cancelled();
        match answered.map(|held| held.map(|held| *held)) {
            Ok(Ok(KeyLeaseState::Until(_))) => {
                lease.state.mark_unchanged();
                Ok(lease)
            }
            _ if is_closed => Err(LeaseError::Closed),
            Ok(_) => Err(LeaseError::NotFound { id }),
            Err(_) => Err(match self.driver().status.unavailable() {
                Some(source) => LeaseError::Unavailable { after, source },
                None => LeaseError::TimedOut { after },
            }),
        }
    }

    /// Ends a key lease and removes all nodes that go with it, at once.
    ///
    /// # Errors
    ///
    /// [`WriteError`]; refused if there is no such lease.
    pub async fn revoke_lease(&self, id: LeaseId) -> Result<Written, WriteError> {
        self.write(Write::RevokeLease { id }, None).await
    }

    /// A key lease, with what remains of it by the leader's clock; none if there is none. Without
    /// its nodes: see [`Client::lease_with_keys`].
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn lease(&self, id: LeaseId) -> Result<Option<LeaseInfo>, InspectError> {
        self.lease_page(id, None).await
    }

    /// A key lease with all nodes that go with it, in the order of paths. They are fetched in
    /// several pieces if they are many, each as of its own moment.
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn lease_with_keys(&self, id: LeaseId) -> Result<Option<LeaseInfo>, InspectError> {
        let Some(mut whole) = self.lease_page(id, Some(NodesAfter::Nothing)).await? else { return Ok(None) };
        while let Some(last) = whole.keys.last() {
            match self.lease_page(id, Some(NodesAfter::Path(last.clone()))).await? {
                Some(page) if !page.keys.is_empty() => whole.keys.extend(page.keys),
                _ => break,
            }
        }
        Ok(Some(whole))
    }

    async fn lease_page(&self, id: LeaseId, keys_after: Option<NodesAfter>) -> Result<Option<LeaseInfo>, InspectError> {
        match self.inspect(Inspect::Lease { id, keys_after }).await? {
            Answer::Lease(lease) => Ok(lease),
            _ => Err(InspectError::UnexpectedAnswer),
        }
    }

    /// All key leases, in the order of their names, without their nodes. They are fetched in
    /// several pieces if they are many.
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn leases(&self) -> Result<Vec<LeaseInfo>, InspectError> {
        let mut all: Vec<LeaseInfo> = Vec::new();
        loop {
            let after = all.last().map(|lease| lease.id);
            match self.inspect(Inspect::Leases { after }).await? {
                Answer::Leases(page) if page.is_empty() => return Ok(all),
                Answer::Leases(page) => all.extend(page),
                _ => return Err(InspectError::UnexpectedAnswer),
            }
        }
    }

    /// The nodes at and below a path that go with leases, and those that did and are gone, as far
    /// as that is known: who is alive. In the order of paths, as the leader sees it. They are
    /// fetched in several pieces if they are many, each as of its own moment.
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn services(&self, path: &NodePath) -> Result<Vec<ServiceInfo>, InspectError> {
        let mut all: Vec<ServiceInfo> = Vec::new();
        let mut after = None;
        loop {
            let inspect = Inspect::Services { path: path.clone(), after: after.clone() };
            let Answer::Services(page) = self.inspect(inspect).await? else {
                return Err(InspectError::UnexpectedAnswer);
            };
            all.extend(page.services);
            match page.through {
                None => return Ok(all),
                // It would never end.
                Some(through) if after.as_ref().is_some_and(|after| through <= *after) => {
                    return Err(InspectError::UnexpectedAnswer);
                }
                through => after = through,
            }
        }
    }

    /// Puts a node that goes with this session's lease on its volume, which is kept alive from then
    /// on.
    ///
    /// A node at that path which goes with this session's own lease is replaced, whatever the
    /// options say: it is this client's, from a registration whose handle was dropped, or from an
    /// attempt whose outcome it did not learn.
    ///
    /// # Errors
    ///
    /// [`WriteError`]; refused if somebody else is registered there and the options do not allow
    /// for it, or if the node has children or is a volume.
    pub async fn register(
        &self,
        path: &NodePath,
        value: impl Into<Value>,
        options: RegisterOptions,
    ) -> Result<Registration, WriteError> {
        let value = value.into();
        // Before the node is there: whatever ends the lease from then on ends the registration.
        let (number, lost) = self.driver().watch_owner_lease(path);
        let owner_lease = OwnerLease { driver: self.shared_driver(), number, lost };
        let written = match options.condition {
            RegisterCondition::Absent => self.put_own(path, value, self.timeout(options.timeout)).await?,
            RegisterCondition::Any => {
                let options = PutOptions { attach: Attach::Session, timeout: options.timeout, ..PutOptions::default() };
                self.put_with(path, value, options).await?
            }
        };
        let revision = written.revision;
        Ok(Registration { client: self.clone(), path: path.clone(), epoch: revision, revision, owner_lease })
    }

    /// Puts a node that goes with the session, if there is none or if it is this session's own.
    async fn put_own(&self, path: &NodePath, value: Value, after: Duration) -> Result<Written, WriteError> {
        let (began, mut condition) = (clock::now(), Condition::Absent);
        loop {
            let left = after.saturating_sub(clock::now().since(began));
            let options = PutOptions { condition, attach: Attach::Session, timeout: Some(left) };
            let refused = match self.put_with(path, value.clone(), options).await {
                Err(error @ WriteError::Refused(Refusal::Write(_))) if !left.is_zero() => error,
                done => return done,
            };
            condition = match (&refused, condition) {
                (WriteError::Refused(Refusal::Write(WriteRefusal::Exists { .. })), _) => {
                    match self.own_revision(path, after.saturating_sub(clock::now().since(began))).await {
                        Some(revision) => Condition::Revision(revision),
                        None => return Err(refused),
                    }
                }
                // Whoever changed it came in between: it is this session's own no more, or gone.
                (
                    WriteError::Refused(Refusal::Write(
                        WriteRefusal::RevisionDiffers { .. } | WriteRefusal::NotFound { .. },
                    )),
                    Condition::Revision(_),
                ) => Condition::Absent,
                _ => return Err(refused),
            };
        }
    }

    /// The modify revision of a node that goes with this session; none if it does not, or if that
    /// is not known in time.
    async fn own_revision(&self, path: &NodePath, within: Duration) -> Option<Revision> {
        let node = self.get_within(path, within).await.ok()??;
        let own = self.session().map(NodeOwner::Session)?;
        (node.stat.owner == Some(own)).then_some(node.stat.modify_revision)
    }
}
