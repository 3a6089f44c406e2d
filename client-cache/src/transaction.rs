//! Several nodes at once: transactions, and reading, changing and writing one node until nobody
//! comes in between.

use std::time::Duration;

use leasehold_protocol::{
    command::{Attach, Condition, Write, WriteRefusal, Written},
    id::Revision,
    message::Refusal,
    object::Value,
    path::NodePath,
    transaction::{Branch, FailedCompare, OperationResult, Transaction},
};

use crate::{
    client::Client,
    clock,
    error::{UpdateError, WriteError},
    read::NodeData,
    write::PutOptions,
};

/// The least and the greatest bound of the random time that an update waits before it tries again:
/// the least is about a write on a fast disk, the greatest lets some tens of writers in turn.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(2), Duration::from_millis(250));

/// What a transaction did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct TransactionOutcome {
    /// The one change that it was. If the branch that was chosen has no operations it changed
    /// nothing, and this is the last change that the comparisons saw.
    pub revision: Revision,
    /// The first comparison that did not hold, and what was there instead; none if all held.
    pub failed: Option<FailedCompare>,
    /// What each operation of the chosen branch did, in their order.
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

/// How to update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpdateOptions {
    /// The lease that the node goes with from then on; the one that it goes with already unless
    /// told otherwise.
    pub attach: Attach,
    /// How long it may take with all its tries; as long as the client's operations do unless told
    /// otherwise.
    pub timeout: Option<Duration>,
}

impl Default for UpdateOptions {
    fn default() -> Self {
        Self { attach: Attach::Unchanged, timeout: None }
    }
}

/// An update that is done.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Updated {
    /// The write that took effect; none if there was nothing to be changed.
    pub written: Option<Written>,
    /// How many times it was tried: 1 if nobody came in between.
    pub tries: u32,
}

impl Client {
    /// Compares, and does one thing or the other, at one moment for everybody: all of it as one
    /// change, or none of it. When it returns, no client will read any of what was there before any
    /// more.
    ///
    /// It brings no leases: the next read here of something that it wrote asks a server.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold_client_cache::{Compare, Operation, Path, Relation, Transaction};
    ///
    /// let (config, owner): (Path, Path) = ("/config".parse()?, "/config-owner".parse()?);
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
    /// [`WriteError`], which says whether it [may still happen](WriteError::may_still_happen).
    /// Refused, with the operation that is to blame, if one of the chosen branch cannot be done, or
    /// if two of a branch [depend on each other](leasehold_protocol::transaction). Comparisons that
    /// do not hold are no error.
    pub async fn transaction(&self, transaction: Transaction) -> Result<TransactionOutcome, WriteError> {
        self.transaction_with(transaction, None).await
    }

    /// [`Client::transaction`], within `timeout` or else the client's.
    ///
    /// # Errors
    ///
    /// As those of [`Client::transaction`].
    pub async fn transaction_with(
        &self,
        transaction: Transaction,
        timeout: Option<Duration>,
    ) -> Result<TransactionOutcome, WriteError> {
        let written = self.write(Write::Transaction(transaction), timeout).await?;
        let revision = written.revision;
        let done = written.transaction.map(|done| *done).unwrap_or_default();
        Ok(TransactionOutcome { revision, failed: done.failed, results: done.results })
    }

    /// Reads a node, lets `change` say what it is to become, and writes that if nobody has written
    /// it since; else begins anew.
    ///
    /// `change` is given none if the node does not exist, and gives none to leave it as it is. It
    /// is called once for each try. Between tries it waits for a random time, longer with each.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let path: leasehold_client_cache::Path = "/visitors".parse()?;
    /// let updated = client
    ///     .update(&path, |entry| {
    ///         let count: u64 = entry.and_then(|entry| std::str::from_utf8(&entry.value).ok()?.parse().ok()).unwrap_or(0);
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
    /// [`UpdateError`], which says how often it was tried, and whether the last write [may still
    /// happen](UpdateError::may_still_happen).
    pub async fn update(
        &self,
        path: &NodePath,
        change: impl FnMut(Option<&NodeData>) -> Option<Value>,
    ) -> Result<Updated, UpdateError> {
        self.update_with(path, UpdateOptions::default(), change).await
    }

    /// [`Client::update`], with a lease that the node goes with, or a timeout.
    ///
    /// # Errors
    ///
    /// As those of [`Client::update`].
    pub async fn update_with(
        &self,
        path: &NodePath,
        options: UpdateOptions,
        mut change: impl FnMut(Option<&NodeData>) -> Option<Value>,
    ) -> Result<Updated, UpdateError> {
        let (after, began) = (self.timeout(options.timeout), clock::now());
        let left = || after.saturating_sub(clock::now().since(began));
        let mut tries = 0;
        loop {
            tries += 1;
            let entry = self.get_within(path, left()).await.map_err(|source| UpdateError::Read { tries, source })?;
            let Some(value) = change(entry.as_ref()) else { return Ok(Updated { written: None, tries }) };
            let condition = entry.map_or(Condition::Absent, |entry| Condition::Revision(entry.stat.modify_revision));
            let put = PutOptions { condition, attach: options.attach, timeout: Some(left()) };
            match self.put_with(path, value, put).await {
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

/// Whether a put was refused because somebody has written, made or removed the node.
fn came_between(refusal: &WriteRefusal, path: &NodePath) -> bool {
    match refusal {
        WriteRefusal::RevisionDiffers { .. } | WriteRefusal::Exists { .. } => true,
        WriteRefusal::NotFound { path: missing } => missing == path,
        _ => false,
    }
}

/// How long to wait before the next try.
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
