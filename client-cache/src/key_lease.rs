//! Key leases and registrations: nodes that are removed when their lease ends.

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

/// The options of a key lease's grant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeaseOptions {
    /// The id of the lease. `None`: the servers choose a new one.
    pub id: Option<LeaseId>,
    /// How long the grant may take. `None`: the client's timeout.
    pub timeout: Option<Duration>,
}

/// The state of a key lease that this client renews.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyLeaseState {
    /// No answer yet.
    Asked,
    /// The lease certainly lasts until then.
    Until(Instant),
    /// The lease has ended, or is no longer certain.
    Lost,
}

/// What all handles of one key lease share.
#[derive(Debug)]
pub(crate) struct KeyLeaseShared {
    pub(crate) state: watch::Sender<KeyLeaseState>,
    pub(crate) lost: CancellationToken,
    pub(crate) handles: usize,
    /// Distinguishes successive renewals of one id: a late handle does not stop a newer one.
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

/// A key lease that this client renews, until the last handle is dropped or the client is closed.
/// Then the lease ends by itself after its TTL. [`KeyLease::revoke`] ends it at once.
///
/// The lease is lost if no server answers in time, or if somebody revokes it. [`KeyLease::on_lost`]
/// is then cancelled: by this client's own clock at the latest, and before any server counts the
/// lease as expired. So an application that listens to it stops in time. If a request is already on
/// its way, only its receiver can refuse it.
#[derive(Debug)]
pub struct KeyLease {
    client: Client,
    id: LeaseId,
    number: u64,
    state: watch::Receiver<KeyLeaseState>,
    lost: CancellationToken,
}

impl KeyLease {
    /// The id of the lease.
    pub fn id(&self) -> LeaseId {
        self.id
    }

    /// For how long the lease certainly lasts, even if no server answers. Zero if it has ended.
    pub fn remaining(&self) -> Duration {
        match *self.state.borrow() {
            KeyLeaseState::Until(until) => until.since(clock::now()),
            KeyLeaseState::Asked | KeyLeaseState::Lost => Duration::ZERO,
        }
    }

    /// Waits for the next renewal, and returns for how long the lease certainly lasts. `None` if
    /// the lease has ended. Nothing is lost if the future is dropped.
    pub async fn renewed(&mut self) -> Option<Duration> {
        if self.state.changed().await.is_ok()
            && let KeyLeaseState::Until(until) = *self.state.borrow_and_update()
        {
            return Some(until.since(clock::now()));
        }
        // So a caller that gets `None` also sees the token cancelled.
        self.lost.cancelled().await;
        None
    }

    /// Cancelled when the lease has ended or is no longer certain, and never before. The lease does
    /// not become valid again.
    pub fn on_lost(&self) -> CancellationToken {
        self.lost.clone()
    }

    /// Ends the lease at once, and removes all attached nodes.
    ///
    /// # Errors
    ///
    /// [`WriteError`]. Refused if the lease has ended already.
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

/// The options of a registration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RegisterOptions {
    /// The condition on the node. By default, no other session may be registered there.
    pub condition: RegisterCondition,
    /// How long the registration may take. `None`: the client's timeout.
    pub timeout: Option<Duration>,
}

/// The condition on the node of a registration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RegisterCondition {
    /// The node does not exist, or is attached to a lease of this client's session.
    #[default]
    Absent,
    /// No condition: a registration of another session is replaced.
    Any,
}

/// A node that is attached to its session's lease on the node's volume, like ZooKeeper's ephemeral
/// nodes. It exists while the client lives and renews that lease.
///
/// Dropping this leaves the node until the client is closed or dies. [`Registration::leave`]
/// removes the node.
#[derive(Debug)]
pub struct Registration {
    client: Client,
    path: NodePath,
    epoch: Revision,
    /// The revision of the last put of the node.
    revision: Revision,
    owner_lease: OwnerLease,
}

/// Watches the lease that a node is attached to.
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

    /// The number of the registration. It grows with each registration of the node by any session
    /// (as Kafka's broker epoch does).
    pub fn epoch(&self) -> Revision {
        self.epoch
    }

    /// The revision of the node's value: that of the registration, or of the last
    /// [`Registration::update`].
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Replaces the node's value, unless another session has the node by now. The epoch stays the
    /// same.
    ///
    /// # Errors
    ///
    /// [`WriteError`]. Refused if the node was removed, belongs to another session, or was written
    /// in another way. If a failed update [may still happen](WriteError::may_still_happen) and did
    /// happen, later updates and [`Registration::leave`] are refused.
    pub async fn update(&mut self, value: impl Into<Value>) -> Result<Written, WriteError> {
        let condition = Condition::Revision(self.revision);
        let options = PutOptions { condition, attach: Attach::Session, ..PutOptions::default() };
        let written = self.client.put_with(&self.path, value, options).await?;
        self.revision = written.revision;
        Ok(written)
    }

    /// For how long the node's lease certainly lasts, even if no server answers.
    pub fn remaining(&self) -> Duration {
        if self.owner_lease.lost.is_cancelled() { Duration::ZERO } else { self.client.volume_remaining(&self.path) }
    }

    /// Cancelled when the node's lease has ended for good: a server says so, or the session has
    /// expired.
    ///
    /// Before that, this client's own clock may say that the lease is no longer certain. Then
    /// [`Registration::remaining`] is zero and the session is in *jeopardy* (see
    /// [`Client::events`]), but the lease may still be renewed. This does not report that somebody
    /// removes or replaces the node: read the node for that.
    pub fn on_lost(&self) -> CancellationToken {
        self.owner_lease.lost.clone()
    }

    /// Removes the node, unless another session has it by now.
    ///
    /// # Errors
    ///
    /// [`WriteError`]. Refused if the node was removed, belongs to another session, or was written
    /// in another way than by [`Registration::update`].
    pub async fn leave(self) -> Result<Written, WriteError> {
        let options = DeleteOptions { condition: Condition::Revision(self.revision), ..DeleteOptions::default() };
        self.client.delete(&self.path, options).await
    }
}

impl Client {
    /// Grants a key lease, as in etcd. Nodes that are [attached](PutOptions::attach) to it are
    /// removed when it ends. It ends after its TTL, unless some client
    /// [renews](Client::keep_lease_alive) it.
    ///
    /// # Errors
    ///
    /// [`WriteError`]. Refused if the id is taken, or if the TTL is out of bounds (200 ms to 366
    /// days). Refused as [busy](leasehold_protocol::message::Refusal::Busy), with the limit, if the
    /// servers could not renew one more lease in time.
    pub async fn grant_lease(&self, ttl: Duration, options: LeaseOptions) -> Result<LeaseId, WriteError> {
        let written = self.write(Write::GrantLease { id: options.id, ttl }, options.timeout).await?;
        written.lease.map(|granted| granted.id).ok_or(WriteError::OutcomeUnknown)
    }

    /// Renews a key lease from now on, for as long as the handle lives. All leases that one client
    /// renews share their requests.
    ///
    /// # Errors
    ///
    /// [`LeaseError`] if the lease has ended, or was not confirmed in time.
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

    /// Ends a key lease at once, and removes all attached nodes.
    ///
    /// # Errors
    ///
    /// [`WriteError`]. Refused if there is no such lease.
    pub async fn revoke_lease(&self, id: LeaseId) -> Result<Written, WriteError> {
        self.write(Write::RevokeLease { id }, None).await
    }

    /// A key lease, with its remaining time by the leader's clock. `None` if there is no such
    /// lease. [`Client::lease_with_keys`] also lists its nodes.
    ///
    /// # Errors
    ///
    /// [`InspectError`].
    pub async fn lease(&self, id: LeaseId) -> Result<Option<LeaseInfo>, InspectError> {
        self.lease_page(id, None).await
    }

    /// A key lease with all attached nodes, in the order of paths. Many nodes come in several
    /// pages, each as of its own moment.
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

    /// All key leases, in the order of their ids, without their nodes. Many leases come in several
    /// pages.
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

    /// The services at and below a path, as the leader sees them, in the order of paths. A service
    /// is an attached node. The list also has ended services, as long as the leader remembers them.
    /// Many services come in several pages, each as of its own moment.
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
                // Without progress, the pages would never end.
                Some(through) if after.as_ref().is_some_and(|after| through <= *after) => {
                    return Err(InspectError::UnexpectedAnswer);
                }
                through => after = through,
            }
        }
    }

    /// Registers a service: puts a node that is attached to this session's lease on its volume. The
    /// client renews that lease from then on.
    ///
    /// This always replaces a node that is attached to this session's own lease. Such a node comes
    /// from a registration with a dropped handle, or from an unanswered attempt.
    ///
    /// # Errors
    ///
    /// [`WriteError`]. Refused if another session is registered there and the options do not
    /// replace it, or if the node has children or is a volume.
    pub async fn register(
        &self,
        path: &NodePath,
        value: impl Into<Value>,
        options: RegisterOptions,
    ) -> Result<Registration, WriteError> {
        let value = value.into();
        // Watched before the put, so that this sees any end of the lease after the put.
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

    /// Puts an attached node if there is none, or if it is this session's own.
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
                // Somebody changed the node in between: it was removed, or is no longer this
                // session's own.
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

    /// The modify revision of a node that is attached to this session. `None` if it is not, or if
    /// no answer comes in time.
    async fn own_revision(&self, path: &NodePath, within: Duration) -> Option<Revision> {
        let node = self.get_within(path, within).await.ok()??;
        let own = self.session().map(NodeOwner::Session)?;
        (node.stat.owner == Some(own)).then_some(node.stat.modify_revision)
    }
}
