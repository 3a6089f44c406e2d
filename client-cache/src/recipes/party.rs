//! A place among those who stand at a node, in the order in which they came.
//!
//! It is two things: a node of its own below that node, which shows it to others and whose create
//! revision is its rank; and a hold on it, which nobody else asks for. The node is put by a
//! transaction that compares the hold, and goes with the session's lease on the volume. Under that
//! lease the hold lives too: so both end together, and by the hold this client's own clock says
//! when. If the lease lives on when the clock has said so, because the client stood still and the
//! servers have waited, the node is removed.
//!
//! # Why nobody is left standing
//!
//! A place of whoever is gone would be in everybody's way for ever. Whoever crashes or is cut off
//! takes it along with the lease. Whoever lives and gives up removes it: the removal is asked for
//! until it is known to be done or the session is over, not only while somebody waits. If it is not
//! known whether the node was put, the hold is given back first: once that is done the node can be
//! put no more, and what is there then can be removed. The name is new each time, so nothing that
//! comes late is another's.

use std::time::Duration;

use leasehold_protocol::{
    command::{Attach, Condition, Write, WriteRefusal},
    id::Token,
    lock::LockMode,
    message::Refusal,
    object::Value,
    path::NodePath,
    transaction::{Compare, Operation, Relation, Transaction},
};
use tokio::{runtime::Handle, sync::oneshot};
use tokio_util::sync::CancellationToken;

use super::RecipeError;
use crate::{
    client::Client,
    driver::WriteOutcome,
    error::{LockError, WriteError},
    lock::{LockGuard, LockOptions, LockWait},
};

/// What all who stand at a node agree on.
#[derive(Debug, Clone)]
pub(super) struct PartyNode {
    pub(super) client: Client,
    pub(super) path: NodePath,
    /// How many they are to be, or may be.
    pub(super) count: u32,
    /// The most that it can be.
    pub(super) most: u32,
}

#[derive(Debug)]
pub(super) struct Party {
    client: Client,
    /// None once it has been given back.
    lock: Option<LockGuard>,
    node: NodePath,
    lost: CancellationToken,
    /// The node is known to be there.
    is_put: bool,
    runtime: Handle,
    /// Cancelled when it is dropped.
    dropped: CancellationToken,
}

impl PartyNode {
    /// Takes a place. None if there is a node at `unless`.
    pub(super) async fn join(&self, unless: Option<&NodePath>) -> Result<Option<Party>, RecipeError> {
        if !(1..=self.most).contains(&self.count) {
            return Err(RecipeError::InvalidCount { path: self.path.clone(), got: self.count, most: self.most });
        }
        let name = format!("{:016x}", rand::random::<u64>());
        let node = self.path.child(&name)?;
        let options = LockOptions { mode: LockMode::Shared, wait: LockWait::No, ..LockOptions::default() };
        let hold = self.client.lock(&node, options).await?;
        let mut place = Party::new(self.client.clone(), node, hold);
        loop {
            let transaction = self.transaction(&place, unless);
            let outcome = self.client.transaction(transaction).await?;
            match outcome.failed.map(|failed| failed.index) {
                None => {
                    place.is_put = true;
                    place.leave_when_over();
                    return Ok(Some(place));
                }
                Some(0) => self.agree().await?,
                Some(1) => return Err(place.lost_error().into()),
                Some(_) => return Ok(None),
            }
        }
    }

    /// Waits until the places that this client has given up before are gone. They would be counted
    /// as if they were somebody else's.
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

    /// Writes down how many there are to be, if nobody has yet.
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
    fn new(client: Client, node: NodePath, hold: LockGuard) -> Self {
        let lost = hold.on_lost();
        let dropped = CancellationToken::new();
        Self { client, lock: Some(hold), node, lost, is_put: false, runtime: Handle::current(), dropped }
    }

    /// Has the node removed when the place is over, though nobody drops it: the lease that the node
    /// goes with may live on.
    fn leave_when_over(&self) {
        let (client, at, removal) = (self.client.clone(), self.recipe_path(), removal(&self.node));
        let (over, dropped) = (self.on_lost(), self.dropped.clone());
        self.runtime.spawn(async move {
            tokio::select! {
                () = over.cancelled() => drop(client.driver().begin_release(&at, removal)),
                () = dropped.cancelled() => {}
            }
        });
    }

    pub(super) fn node(&self) -> &NodePath {
        &self.node
    }

    /// Zero once it is over.
    pub(super) fn token(&self) -> Token {
        self.lock.as_ref().map_or(Token(0), LockGuard::token)
    }

    pub(super) fn remaining(&self) -> Duration {
        self.lock.as_ref().map_or(Duration::ZERO, LockGuard::remaining)
    }

    pub(super) fn on_lost(&self) -> CancellationToken {
        self.lost.clone()
    }

    pub(super) fn lost_error(&self) -> LockError {
        LockError::Lost { path: self.node.clone() }
    }

    /// Does something that is of use only as long as the place lasts.
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

    /// Has a new token from now on, larger than all that there have been.
    pub(super) async fn renew_token(&mut self) -> Result<Token, LockError> {
        let lost = self.lost_error();
        // Nobody else holds the node, or waits for it.
        match &mut self.lock {
            Some(hold) => hold.upgrade(LockWait::No).await,
            None => Err(lost),
        }
    }

    fn remove(&self) -> oneshot::Receiver<WriteOutcome> {
        self.client.driver().begin_release(&self.recipe_path(), removal(&self.node))
    }

    /// Where it is a place.
    fn recipe_path(&self) -> NodePath {
        self.node.parent().unwrap_or_else(NodePath::root)
    }

    /// Gives it back, and waits for the server to know.
    pub(super) async fn leave(mut self) -> Result<(), LockError> {
        let Some(hold) = self.lock.take() else { return Ok(()) };
        let after = self.client.driver().options.timeout;
        let removed = self.remove();
        let released = hold.release().await;
        match tokio::time::timeout(after, removed).await {
            Ok(removed) => removed_or(removed.ok())?,
            Err(_) => return Err(LockError::Write(WriteError::TimedOut { after })),
        }
        released
    }
}

/// A node that has gone by itself is gone.
fn removed_or(removed: Option<WriteOutcome>) -> Result<(), LockError> {
    use leasehold_protocol::holder::WriteFailure as Ended;
    match removed {
        Some(Ok(_) | Err(Ended::Refused(Refusal::Write(WriteRefusal::NotFound { .. })))) => Ok(()),
        Some(Err(error)) => Err(LockError::Write(crate::write::ended(error))),
        None => Err(LockError::Write(WriteError::SessionEnded)),
    }
}

fn removal(node: &NodePath) -> Write {
    Write::Delete { path: node.clone(), recursive: false, condition: Condition::Any }
}

impl Drop for Party {
    fn drop(&mut self) {
        self.dropped.cancel();
        let Some(mut hold) = self.lock.take() else { return };
        let released = hold.begin_release();
        if self.is_put {
            drop(self.remove());
            return;
        }
        let (client, at, removal) = (self.client.clone(), self.recipe_path(), removal(&self.node));
        let withdrawal = client.driver().pending_releases.begin(&at);
        self.runtime.spawn(async move {
            // If the session is over, so is the node.
            let _ = released.await;
            let _ = client.driver().begin_release(&at, removal).await;
            drop(withdrawal);
        });
    }
}
