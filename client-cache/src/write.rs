//! Writes: their options, how a write waits for its outcome, and its error if none comes.

use std::time::Duration;

use futures::future::BoxFuture;
use leasehold_protocol::{
    command::{Attach, Condition, Write, Written},
    holder::{self, WriteId},
    id::Revision,
    lease_name::LeaseNameError,
    limits::Limits,
    object::Value,
    path::{NodePath, PathError},
};

use crate::{
    call::{GivenPath, given},
    client::Client,
    clock,
    driver::Driver,
    error::WriteError,
    lease_ref::{LeaseRef, given_lease},
};

/// A put that is about to be made: see [`Client::put`].
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let id = client.grant_lease(Duration::from_secs(60)).await?;
/// client.put("/services/web", "up").if_absent().lease(id).timeout(Duration::from_secs(5)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is written until this is awaited"]
pub struct PutBuilder<'a> {
    client: &'a Client,
    path: GivenPath,
    value: Value,
    condition: Condition,
    attach: Result<Attach, LeaseNameError>,
    timeout: Option<Duration>,
}

impl<'a> PutBuilder<'a> {
    pub(crate) fn new(client: &'a Client, path: GivenPath, value: Value) -> Self {
        Self { client, path, value, condition: Condition::Any, attach: Ok(Attach::Nothing), timeout: None }
    }

    /// Only if the node does not exist.
    pub fn if_absent(self) -> Self {
        self.condition(Condition::Absent)
    }

    /// Only if the value was last changed at this revision. Revision 0 is refused as
    /// [not read](WriteError::NotRead).
    pub fn if_revision(self, revision: Revision) -> Self {
        self.condition(Condition::Revision(revision))
    }

    /// Only under this condition. By default there is none.
    pub fn condition(mut self, condition: Condition) -> Self {
        self.condition = condition;
        self
    }

    /// Attaches the node to this key lease, which may be given by id or by [name](LeaseRef): the
    /// node is removed when the lease ends.
    pub fn lease(mut self, lease: impl TryInto<LeaseRef, Error: Into<LeaseNameError>>) -> Self {
        self.attach = given_lease(lease).map(Attach::from);
        self
    }

    /// The lease to attach the node to. By default none, even if the node was attached to one.
    pub fn attach(mut self, attach: Attach) -> Self {
        self.attach = Ok(attach);
        self
    }

    /// How long the put may take. By default, the client's timeout.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl<'a> IntoFuture for PutBuilder<'a> {
    type Output = Result<Written, WriteError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { client, path, value, condition, attach, timeout } = self;
        Box::pin(async move {
            let write = Write::Put { path: path?, value, condition, attach: attach? };
            client.write(write, timeout).await
        })
    }
}

/// A delete that is about to be made: see [`Client::delete`].
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// if let Some(node) = client.get("/config/web").await? {
///     client.delete("/config/web").recursive(true).if_revision(node.stat.modify_revision).await?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is removed until this is awaited"]
pub struct DeleteBuilder<'a> {
    client: &'a Client,
    path: GivenPath,
    recursive: bool,
    condition: Condition,
    timeout: Option<Duration>,
}

impl<'a> DeleteBuilder<'a> {
    pub(crate) fn new(client: &'a Client, path: GivenPath) -> Self {
        Self { client, path, recursive: false, condition: Condition::Any, timeout: None }
    }

    /// Whether to remove everything below, too. Otherwise, and by default, a node with children is
    /// not removed.
    pub fn recursive(mut self, recursive: bool) -> Self {
        self.recursive = recursive;
        self
    }

    /// Only if the value was last changed at this revision. Revision 0 is refused as
    /// [not read](WriteError::NotRead).
    pub fn if_revision(self, revision: Revision) -> Self {
        self.condition(Condition::Revision(revision))
    }

    /// Only under this condition. By default there is none.
    pub fn condition(mut self, condition: Condition) -> Self {
        self.condition = condition;
        self
    }

    /// How long the delete may take. By default, the client's timeout.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl<'a> IntoFuture for DeleteBuilder<'a> {
    type Output = Result<Written, WriteError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { client, path, recursive, condition, timeout } = self;
        Box::pin(async move { client.write(Write::Delete { path: path?, recursive, condition }, timeout).await })
    }
}

/// Cancels the write when nobody waits for it any longer.
struct WriteWait<'a> {
    driver: &'a Driver,
    write_id: WriteId,
}

impl Drop for WriteWait<'_> {
    fn drop(&mut self) {
        self.driver.cancel_write(self.write_id);
    }
}

impl Driver {
    /// Writes, and waits for the outcome for at most `timeout`.
    pub(crate) async fn execute_write(&self, write: Write, timeout: Duration) -> Result<Written, WriteError> {
        check(&write)?;
        let result = self.outcome_within(write, timeout).await;
        // A refused write has changed nothing.
        if !matches!(result, Err(WriteError::Refused(_))) {
            self.recent.note_write(clock::now());
        }
        result
    }

    async fn outcome_within(&self, write: Write, timeout: Duration) -> Result<Written, WriteError> {
        let path = write.path().cloned();
        let (write_id, mut outcome) = self.write(write);
        let wait = WriteWait { driver: self, write_id };
        if let Ok(outcome) = tokio::time::timeout(timeout, &mut outcome).await {
            return outcome.unwrap_or(Err(holder::WriteFailure::OutcomeUnknown)).map_err(|error| ended(error, path));
        }
        // This cancels the write, and the holder reports at once whether it was sent, unless the
        // outcome has just come. The holder refuses to cancel a write whose outcome it needs, such
        // as a downgrade: then there is no report.
        drop(wait);
        let outcome = outcome.try_recv().unwrap_or(Err(holder::WriteFailure::OutcomeUnknown));
        outcome.map_err(|error| match (error, self.status.unavailable()) {
            (holder::WriteFailure::Refused(refusal), _) => WriteError::Refused(refusal),
            (holder::WriteFailure::NotSent, Some(source)) => WriteError::Unavailable { path, after: timeout, source },
            (holder::WriteFailure::NotSent, None) => WriteError::NotSent { path, after: timeout },
            (holder::WriteFailure::OutcomeUnknown, _) => WriteError::TimedOut { path, after: timeout },
        })
    }
}

/// Refuses a write that no server accepts: it does not fit into a frame, or is invalid in any
/// state. Only the root can have revision 0, which is also the default of the type.
fn check(write: &Write) -> Result<(), WriteError> {
    if let Write::Put { path, condition, .. } | Write::Delete { path, condition, .. } = write
        && *condition == Condition::Revision(Revision(0))
        && !path.is_root()
    {
        return Err(WriteError::NotRead { path: path.clone() });
    }
    let widest = Limits { value_max_bytes: Limits::VALUE_MAX_BYTES, depth_max: Limits::DEPTH_MAX, ..Limits::default() };
    let too_large = |limit| WriteError::Limit { path: write.path().cloned(), limit };
    match write {
        Write::Put { value, .. } => widest.check_value(value).map_err(too_large),
        Write::Transaction(transaction) => {
            widest.check_transaction(transaction).map_err(too_large)?;
            transaction.check_overlaps().map_err(|refusal| WriteError::Refused(refusal.into()))
        }
        _ => Ok(()),
    }
}

/// The error of a write that ended before its time ran out.
pub(crate) fn ended(error: holder::WriteFailure, path: Option<NodePath>) -> WriteError {
    match error {
        holder::WriteFailure::Refused(refusal) => WriteError::Refused(refusal),
        holder::WriteFailure::NotSent => WriteError::SessionEnded { path },
        holder::WriteFailure::OutcomeUnknown => WriteError::OutcomeUnknown { path },
    }
}

impl Client {
    /// Sets a node's value. Creates the node and its missing ancestors. When this returns, no
    /// client reads the old value any longer. If this client has a lease on the volume, its next
    /// read of the node usually comes from memory.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let written = client.put("/config/web/port", "8080").await?;
    /// // Only if nobody has written the node since.
    /// client.put("/config/web/port", "9090").if_revision(written.revision).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`WriteError`], which says whether the write [may still
    /// happen](WriteError::may_still_happen).
    pub fn put(&self, path: impl TryInto<NodePath, Error: Into<PathError>>, value: impl AsRef<[u8]>) -> PutBuilder<'_> {
        PutBuilder::new(self, given(path), Value::copy_from_slice(value.as_ref()))
    }

    /// Removes a node.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// client.delete("/config/web").recursive(true).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`WriteError`], which says whether the write [may still
    /// happen](WriteError::may_still_happen).
    pub fn delete(&self, path: impl TryInto<NodePath, Error: Into<PathError>>) -> DeleteBuilder<'_> {
        DeleteBuilder::new(self, given(path))
    }

    /// Executes a write of any kind within `timeout`. `None`: the client's timeout. If the future
    /// is dropped after the write was sent, the write may still happen.
    pub(crate) async fn write(&self, write: Write, timeout: Option<Duration>) -> Result<Written, WriteError> {
        self.driver().execute_write(write, self.timeout(timeout)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn revision_of_no_node_is_refused_as_not_read() {
        let path = |text| NodePath::parse(text).expect("a path");
        let put = |at, revision| Write::Put {
            path: path(at),
            value: Value::new(),
            condition: Condition::Revision(Revision(revision)),
            attach: Attach::Nothing,
        };
        let delete =
            Write::Delete { path: path("/a"), recursive: false, condition: Condition::Revision(Revision::default()) };
        let refused = Err(WriteError::NotRead { path: path("/a") });
        assert_eq!((check(&put("/a", 0)), check(&delete)), (refused.clone(), refused));
        assert_eq!(
            (check(&put("/a", 1)), check(&put("/", 0))),
            (Ok(()), Ok(())),
            "a new cluster's root has revision 0"
        );
    }
}
