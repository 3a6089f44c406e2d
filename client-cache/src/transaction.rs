//! Transactions, and updates. An update reads a node, changes its value and writes it, and repeats
//! that until no other write comes in between.

use std::{fmt, time::Duration};

use futures::future::BoxFuture;
use leasehold_protocol::{
    command::{Attach, Condition, Write, WriteRefusal, Written},
    id::Revision,
    message::Refusal,
    object::Value,
    path::{NodePath, PathError},
    transaction::{Branch, FailedCompare, OperationResult, Transaction},
};

use crate::{
    call::{GivenPath, given},
    client::Client,
    clock,
    error::{UpdateError, WriteError},
    read::NodeData,
};

/// The bounds of the random pauses between tries of an update. The first number is about the time
/// of one write on a fast disk. The pause before the second try is at most twice that. The bound
/// doubles with each try, up to the second number, which is enough for some tens of writers.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(250));

/// The result of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransactionOutcome {
    /// The revision of the change. If the chosen branch has no operations, nothing changed, and
    /// this is the last change that the comparisons saw.
    pub revision: Revision,
    /// The first comparison that did not hold, and what was found instead. `None` if all held.
    pub failed: Option<FailedCompare>,
    /// The results of the chosen branch's operations, in their order.
    pub results: Vec<OperationResult>,
}

impl TransactionOutcome {
    /// Whether all comparisons held, so that the operations of [`Branch::Then`] were done.
    pub fn succeeded(&self) -> bool {
        self.failed.is_none()
    }

    /// The branch that was chosen.
    pub fn branch(&self) -> Branch {
        if self.succeeded() { Branch::Then } else { Branch::Otherwise }
    }
}

/// The result of an update.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Updated {
    /// The write that took effect. `None` if there was nothing to change.
    pub written: Option<Written>,
    /// The number of tries: 1 if nobody wrote in between.
    pub tries: u32,
}

/// A transaction that is about to be made: see [`Client::transaction`].
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_client_cache::{Compare, NodePath, Operation, Transaction};
/// use std::time::Duration;
///
/// let path: NodePath = "/config".parse()?;
/// let create = Transaction::new().when(Compare::absent(path.clone())).then(Operation::put(path, "new"));
/// let outcome = client.transaction(create).timeout(Duration::from_secs(5)).await?;
/// println!("created: {}", outcome.succeeded());
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is written until this is awaited"]
pub struct TransactionBuilder<'a> {
    client: &'a Client,
    transaction: Transaction,
    timeout: Option<Duration>,
}

impl TransactionBuilder<'_> {
    /// How long the transaction may take. By default, the client's timeout.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl<'a> IntoFuture for TransactionBuilder<'a> {
    type Output = Result<TransactionOutcome, WriteError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let written = self.client.write(Write::Transaction(self.transaction), self.timeout).await?;
            let revision = written.revision;
            let done = written.transaction.map(|done| *done).unwrap_or_default();
            Ok(TransactionOutcome { revision, failed: done.failed, results: done.results })
        })
    }
}

/// An update that is about to be made: see [`Client::update`].
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold_client_cache::Attach;
/// use std::time::Duration;
///
/// let update = client.update("/leader", |node| node.is_none().then(|| "host-1".into()));
/// let updated = update.attach(Attach::Session).timeout(Duration::from_secs(5)).await?;
/// println!("written: {}", updated.written.is_some());
/// # Ok(())
/// # }
/// ```
#[must_use = "nothing is written until this is awaited"]
pub struct UpdateBuilder<'a, F> {
    client: &'a Client,
    path: GivenPath,
    change: F,
    attach: Attach,
    timeout: Option<Duration>,
}

impl<F> UpdateBuilder<'_, F> {
    /// The lease to attach the node to. By default the lease does not change.
    pub fn attach(mut self, attach: Attach) -> Self {
        self.attach = attach;
        self
    }

    /// How long all tries together may take. By default, the client's timeout.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl<'a, F> IntoFuture for UpdateBuilder<'a, F>
where
    F: FnMut(Option<&NodeData>) -> Option<Value> + Send + 'a,
{
    type Output = Result<Updated, UpdateError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { client, path, mut change, attach, timeout } = self;
        let after = client.timeout(timeout);
        Box::pin(async move { client.keep_updating(&path?, &mut change, attach, after).await })
    }
}

impl<F> fmt::Debug for UpdateBuilder<'_, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpdateBuilder").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Client {
    /// Compares nodes, then executes one branch of operations, as one change or not at all. When
    /// this returns, no client reads the old values any longer.
    ///
    /// A transaction grants no leases: this client's next read of a written node asks a server.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold_client_cache::{Compare, NodePath, Operation, Relation, Transaction};
    ///
    /// let (config, owner): (NodePath, NodePath) = ("/config".parse()?, "/config-owner".parse()?);
    /// let outcome = client
    ///     .transaction(
    ///         Transaction::new()
    ///             .when(Compare::value(owner.clone(), Relation::Equal, "me"))
    ///             .then(Operation::put(config, "new"))
    ///             .then(Operation::delete(owner)),
    ///     )
    ///     .await?;
    /// if let Some(failed) = outcome.failed {
    ///     println!("somebody else is the owner: {:?}", failed.found);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`WriteError`], which says whether the transaction [may still
    /// happen](WriteError::may_still_happen). Refused if an operation of the chosen branch cannot
    /// be done, or if two of a branch [depend on each other](leasehold_protocol::transaction). The
    /// refusal names the operation. A comparison that does not hold is no error.
    pub fn transaction(&self, transaction: Transaction) -> TransactionBuilder<'_> {
        TransactionBuilder { client: self, transaction, timeout: None }
    }

    /// Reads a node, calls `change` for its new value, and writes that value if nobody has written
    /// the node meanwhile. Otherwise it tries again.
    ///
    /// `change` gets `None` if the node does not exist, and returns `None` to leave the node as it
    /// is. It is called once for each try. The random pauses between tries get longer.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let updated = client
    ///     .update("/visitors", |node| {
    ///         let count: u64 = node.and_then(|node| std::str::from_utf8(&node.value).ok()?.parse().ok()).unwrap_or(0);
    ///         Some((count + 1).to_string().into())
    ///     })
    ///     .await?;
    /// println!("counted after {} tries", updated.tries);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`UpdateError`], which has the number of tries, and says whether the last write [may still
    /// happen](UpdateError::may_still_happen).
    pub fn update<F>(&self, path: impl TryInto<NodePath, Error: Into<PathError>>, change: F) -> UpdateBuilder<'_, F>
    where
        F: FnMut(Option<&NodeData>) -> Option<Value> + Send,
    {
        UpdateBuilder { client: self, path: given(path), change, attach: Attach::Unchanged, timeout: None }
    }

    async fn keep_updating(
        &self,
        path: &NodePath,
        change: &mut (dyn FnMut(Option<&NodeData>) -> Option<Value> + Send),
        attach: Attach,
        after: Duration,
    ) -> Result<Updated, UpdateError> {
        let began = clock::now();
        let left = || after.saturating_sub(clock::now().since(began));
        let mut tries = 0;
        loop {
            tries += 1;
            let entry = self.get(path).timeout(left()).await.map_err(|source| UpdateError::Read { tries, source })?;
            let Some(value) = change(entry.as_ref()) else { return Ok(Updated { written: None, tries }) };
            let condition = entry.map_or(Condition::Absent, |entry| Condition::Revision(entry.stat.modify_revision));
            let put = Write::Put { path: path.clone(), value, condition, attach: attach.clone() };
            match self.write(put, Some(left())).await {
                Ok(written) => return Ok(Updated { written: Some(written), tries }),
                Err(WriteError::Refused(Refusal::Write(refusal))) if came_between(&refusal, path) => {}
                Err(source) => return Err(UpdateError::Write { tries, source }),
            }
            let pause = pause(tries);
            if pause >= left() {
                return Err(UpdateError::Contended { path: path.clone(), after, tries });
            }
            tokio::time::sleep(pause).await;
        }
    }
}

/// Whether a put was refused because somebody wrote, created or removed the node.
fn came_between(refusal: &WriteRefusal, path: &NodePath) -> bool {
    match refusal {
        WriteRefusal::RevisionDiffers { .. } | WriteRefusal::Exists { .. } => true,
        WriteRefusal::NotFound { path: missing } => missing == path,
        _ => false,
    }
}

/// The pause before the next try.
fn pause(tries: u32) -> Duration {
    let (least, most) = BACKOFF;
    let bound = least.saturating_mul(1 << tries.min(16)).min(most);
    bound.mul_f64(rand::random_range(0.0..1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_are_bounded() {
        for tries in [1, 5, 30, u32::MAX] {
            let most = (0..200).map(|_| pause(tries)).max().expect("some");
            let bound = BACKOFF.0.saturating_mul(1 << tries.min(16)).min(BACKOFF.1);
            assert!(most <= bound && most > bound / 2, "{most:?} of {bound:?}");
        }
    }
}
