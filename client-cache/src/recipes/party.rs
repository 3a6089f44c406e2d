//! A party: one user of a recipe. Parties are ordered by their arrival at the recipe's node.
//!
//! A party has a node of its own below the recipe's node, and a lock on that node. Others see the
//! node, and nobody else requests the lock. The node's create revision is the party's rank. A
//! transaction that compares the lock puts the node, and attaches it to the session's lease on the
//! volume. The lock lives under the same lease, so both end together. When that lease has ended by
//! this client's own clock, the client counts on neither. If a volume was made between the two
//! requests, they have different leases. Then the client leaves. It joins again, if nobody can have
//! counted it. After a suspension, the clock may have ended the lock although the servers still
//! have the lease. Then the client removes the node.
//!
//! # Why no node is left behind
//!
//! The node of a party that has left would block everybody for ever.
//!
//! - If a client crashes or is cut off, the node ends with the lease.
//! - If a live party leaves, it requests the removal until that is confirmed or the session has
//!   ended, even if nobody waits.
//! - If it is unknown whether the node was put, the client first releases the lock. After that the
//!   node can no longer be put, so the client can remove the node. Each name is new, so a late
//!   request never concerns another party's node.

use std::time::Duration;

use leasehold_protocol::{
    command::{Attach, Condition, Write, WriteRefusal},
    id::{Revision, Token},
    message::Refusal,
    object::Value,
    path::{NodePath, PathError},
    transaction::{Compare, Operation, Relation, Transaction},
};
use tokio::{sync::oneshot, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use super::RecipeError;
use crate::{
    call::GivenPath,
    client::Client,
    driver::WriteOutcome,
    error::{LockError, WriteError},
    lock::{LockGuard, LockWait},
};

/// A recipe's node, if its path is valid.
#[derive(Debug, Clone)]
pub(super) struct PartyPlace(Result<PartyNode, PathError>);

impl PartyPlace {
    pub(super) fn new(client: &Client, path: GivenPath, count: u32, most: u32) -> Self {
        Self(path.map(|path| PartyNode { client: client.clone(), path, count, most }))
    }

    pub(super) fn node(&self) -> Result<&PartyNode, PathError> {
        self.0.as_ref().map_err(PathError::clone)
    }
}

/// What all parties at a node agree on.
#[derive(Debug, Clone)]
pub(super) struct PartyNode {
    pub(super) client: Client,
    pub(super) path: NodePath,
    /// The number of parties, or of permits.
    pub(super) count: u32,
    /// The largest number.
    pub(super) most: u32,
}

#[derive(Debug)]
pub(super) struct Party {
    client: Client,
    /// `None` once it is released.
    lock: Option<LockGuard>,
    node: NodePath,
    lost: CancellationToken,
    /// Whether the node is known to exist.
    is_put: bool,
    /// Cancelled when the party leaves or is dropped.
    dropped: CancellationToken,
}

impl PartyNode {
    /// Joins the parties. `None` if there is a node at `unless`.
    pub(super) async fn join(&self, unless: Option<&NodePath>) -> Result<Option<Party>, RecipeError> {
        if !(1..=self.most).contains(&self.count) {
            return Err(RecipeError::InvalidCount { path: self.path.clone(), got: self.count, most: self.most });
        }
        let mut place = self.lock_new_node().await?;
        loop {
            let transaction = self.transaction(&place, unless);
            let outcome = self.client.transaction(transaction).await?;
            match outcome.failed.map(|failed| failed.index) {
                None => {
                    place.is_put = true;
                    if place.has_one_lease(outcome.revision) {
                        place.leave_when_over();
                        return Ok(Some(place));
                    }
                    // Somebody made a volume meanwhile, so the node could be removed before the
                    // lock ends. Or the lease of both has ended.
                    let lost = place.lost_error();
                    place.leave().await?;
                    if unless.is_some() {
                        // Others may have counted this party, and have gone on.
                        return Err(lost.into());
                    }
                    place = self.lock_new_node().await?;
                }
                Some(0) => self.agree().await?,
                Some(1) => return Err(place.lost_error().into()),
                Some(_) => return Ok(None),
            }
        }
    }

    /// Locks the node of a new party. The node does not exist yet.
    async fn lock_new_node(&self) -> Result<Party, RecipeError> {
        let name = format!("{:016x}", rand::random::<u64>());
        let node = self.path.child(&name)?;
        let lock = self.client.lock(&node).shared().wait(LockWait::No).await?;
        Ok(Party::new(self.client.clone(), node, lock))
    }

    /// Waits until the servers have confirmed that earlier parties of this client have left. Until
    /// then, they count like the parties of other clients.
    pub(super) async fn wait_for_pending_releases(&self) -> Result<(), RecipeError> {
        Ok(self.client.wait_for_pending_releases(&self.path).await?)
    }

    fn transaction(&self, place: &Party, unless: Option<&NodePath>) -> Transaction {
        let put = Operation::Put {
            path: place.node.clone(),
            value: Value::from(self.client.driver().options.name.clone()),
            attach: Attach::Session,
        };
        let agreed = Compare::value(self.path.clone(), Relation::Equal, self.count.to_string());
        let transaction =
            Transaction::new().when(agreed).when(Compare::locked(place.node.clone(), place.token())).then(put);
        match unless {
            Some(path) => transaction.when(Compare::absent(path.clone())),
            None => transaction,
        }
    }

    /// Writes the number to the node, unless another user has written one.
    async fn agree(&self) -> Result<(), RecipeError> {
        let count = self.count.to_string();
        let mut found = String::new();
        self.client
            .update(&self.path, |entry| {
                found = entry.map(|entry| String::from_utf8_lossy(&entry.value).into_owned()).unwrap_or_default();
                found.is_empty().then(|| Value::from(count.clone()))
            })
            .await?;
        if found.is_empty() || found == count {
            return Ok(());
        }
        Err(RecipeError::CountMismatch { path: self.path.clone(), expected: count, found })
    }
}

impl Party {
    fn new(client: Client, node: NodePath, lock: LockGuard) -> Self {
        let lost = lock.on_lost();
        let dropped = CancellationToken::new();
        Self { client, lock: Some(lock), node, lost, is_put: false, dropped }
    }

    /// Starts a task that removes the node when the lock is lost. Without it, the node could
    /// remain: its lease may still be renewed, and the application may never drop the party.
    fn leave_when_over(&self) {
        let (client, at, removal) = (self.client.clone(), self.recipe_path(), removal(&self.node));
        let (over, dropped) = (self.on_lost(), self.dropped.clone());
        self.client.driver().spawn(async move {
            tokio::select! {
                biased;
                () = dropped.cancelled() => {}
                () = over.cancelled() => drop(client.driver().begin_pending_release(&at, removal)),
            }
        });
    }

    /// Whether the node and the lock end with the same lease. `put` is the revision of the node.
    fn has_one_lease(&self, put: Revision) -> bool {
        let lock = self.lock.as_ref().map(LockGuard::id);
        lock.is_some_and(|lock| self.client.driver().is_attached_with_lock(&self.node, put, lock))
    }

    pub(super) fn node(&self) -> &NodePath {
        &self.node
    }

    /// Zero once the lock has ended.
    pub(super) fn token(&self) -> Token {
        self.lock.as_ref().map_or(Token(0), LockGuard::token)
    }

    pub(super) fn remaining(&self) -> Duration {
        self.lock.as_ref().map_or(Duration::ZERO, LockGuard::remaining)
    }

    pub(super) fn on_lost(&self) -> CancellationToken {
        self.lost.child_token()
    }

    pub(super) fn lost_error(&self) -> LockError {
        LockError::Lost { path: self.node.clone() }
    }

    /// Runs `work`, until the party is lost.
    pub(super) async fn run_until_lost<T>(
        &self,
        work: impl Future<Output = Result<T, RecipeError>>,
    ) -> Result<T, RecipeError> {
        tokio::select! {
            biased;
            () = self.lost.cancelled() => Err(self.lost_error().into()),
            done = work => done,
        }
    }

    /// Gets a new token, higher than all earlier ones.
    pub(super) async fn renew_token(&mut self) -> Result<Token, LockError> {
        let lost = self.lost_error();
        // Cannot wait: nobody else requests this lock.
        match &mut self.lock {
            Some(lock) => lock.upgrade(LockWait::No).await,
            None => Err(lost),
        }
    }

    /// Removes the node after the lock was released, even if nobody waits for it. In the other
    /// order, another client could get the permit while a transaction that compares the token of
    /// this lock still succeeds. `confirm` gets the outcome of the release.
    fn remove_after(
        &self,
        released: oneshot::Receiver<WriteOutcome>,
        confirm: Option<oneshot::Sender<WriteOutcome>>,
    ) -> JoinHandle<Option<WriteOutcome>> {
        let (client, at, removal) = (self.client.clone(), self.recipe_path(), removal(&self.node));
        let pending_release = client.driver().pending_releases.begin(&at);
        self.client.driver().spawn(async move {
            // If the session has ended, so has the node.
            if let (Ok(outcome), Some(confirm)) = (released.await, confirm) {
                // If the caller has timed out, nobody receives this.
                let _ = confirm.send(outcome);
            }
            let removed = client.driver().begin_pending_release(&at, removal).await.ok();
            drop(pending_release);
            removed
        })
    }

    /// The recipe's node.
    fn recipe_path(&self) -> NodePath {
        self.node.parent().unwrap_or_else(NodePath::root)
    }

    /// Leaves, and waits for the answer.
    pub(super) async fn leave(mut self) -> Result<(), LockError> {
        self.dropped.cancel();
        let Some(mut lock) = self.lock.take() else { return Ok(()) };
        let after = self.client.driver().options.timeout;
        self.lost.cancel();
        let (confirm, released) = oneshot::channel();
        let removed = self.remove_after(lock.begin_release(), Some(confirm));
        let released = lock.confirmed(released).await;
        let path = Some(self.node.clone());
        match tokio::time::timeout(after, removed).await {
            Ok(removed) => removed_or(removed.ok().flatten(), path)?,
            Err(_) => return Err(LockError::Write(WriteError::TimedOut { path, after })),
        }
        released
    }
}

/// The result of a removal. A node that no longer existed counts as removed.
fn removed_or(removed: Option<WriteOutcome>, path: Option<NodePath>) -> Result<(), LockError> {
    use leasehold_protocol::holder::WriteFailure as Ended;
    match removed {
        Some(Ok(_) | Err(Ended::Refused(Refusal::Write(WriteRefusal::NotFound { .. })))) => Ok(()),
        Some(Err(error)) => Err(LockError::Write(crate::write::ended(error, path))),
        None => Err(LockError::Write(WriteError::SessionEnded { path })),
    }
}

fn removal(node: &NodePath) -> Write {
    Write::Delete { path: node.clone(), recursive: false, condition: Condition::Any }
}

impl Drop for Party {
    fn drop(&mut self) {
        self.dropped.cancel();
        let Some(mut lock) = self.lock.take() else { return };
        let released = lock.begin_release();
        drop(self.remove_after(released, None));
    }
}
