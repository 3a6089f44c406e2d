//! Snapshot reads: several nodes as of one moment.
//!
//! The client reads all nodes, and then reads all of them again (a *double collect*; Afek, Attiya,
//! Dolev, Gafni, Merritt, Shavit 1993). Suppose that each node was the same both times, and in
//! between. Then at each moment between the two collects, all nodes were as both collects found
//! them. These moments are within the call, so the snapshot read is linearizable.
//!
//! # Why the same both times means the same in between
//!
//! - If a node exists and has the same modify revision both times, it has not changed. Each change
//!   of its data gives it a new revision. Revisions are never reused, not even for a node that was
//!   removed and created again.
//! - An absence has no revision: the node may have been created and removed in between. Two
//!   absences are the same only if both reads found one copy, by its installation number. A new
//!   installation has a new number, so the copy was not dropped in between. A copy is dropped
//!   before a write that makes it stale takes effect (see `cache`). If its leases lapsed in
//!   between, a server revived the copy because nothing in it had changed (S7 in docs/PROTOCOL.md).
//! - Without a lease there is no copy. Then a transaction compares all nodes with what both
//!   collects found. If all are equal, they are so at the moment of the transaction. If they are
//!   too many for one transaction, it compares only the absent nodes without copies. A third
//!   collect shows that all others did not change from the second to the third, so also at the
//!   moment of the transaction.
//!
//! If all nodes are cached, both collects read from memory and send nothing. Otherwise all missing
//! nodes are requested at once. If a node has changed, the second collect becomes the first one of
//! the next try.

use std::{collections::BTreeMap, time::Duration};

use futures::future::{BoxFuture, try_join_all};
use leasehold_protocol::{
    id::Revision,
    lease_policy::LeaseRequest,
    object::ObjectKind,
    path::{NodePath, PathError},
    transaction::{Compare, Relation, Transaction},
};

use crate::{
    call::given,
    client::Client,
    clock,
    error::{ReadError, SnapshotError},
    read::{NodeData, Read},
};

/// The pause before another try if too many nodes are absent without a lease. A pending write may
/// be the reason that there is none.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Several nodes as of one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The nodes, in the order of the request. `None` for a node that did not exist.
    pub entries: Vec<Option<NodeData>>,
    /// The last change of any of the nodes. The existing ones did not change between this revision
    /// and the moment of the snapshot read.
    pub revision: Revision,
    /// The number of tries: 1 if nobody wrote in between.
    pub tries: u32,
}

/// A snapshot read that is about to be made: see [`Client::snapshot`].
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let both = client.snapshot(["/config", "/config-owner"]).timeout(Duration::from_secs(2)).await?;
/// println!("{:?}", both.entries[1].as_ref().map(|owner| &owner.value));
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "nothing is read until this is awaited"]
pub struct SnapshotReadBuilder<'a> {
    client: &'a Client,
    paths: Result<Vec<NodePath>, PathError>,
    timeout: Option<Duration>,
}

impl SnapshotReadBuilder<'_> {
    /// How long the snapshot read may take. By default, the client's timeout.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }
}

impl<'a> IntoFuture for SnapshotReadBuilder<'a> {
    type Output = Result<Snapshot, SnapshotError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { client, paths, timeout } = self;
        Box::pin(async move { client.snapshot_of(&paths?, client.timeout(timeout)).await })
    }
}

impl Client {
    /// Reads the values and stats of several nodes as of one moment within the call. If the cache
    /// has copies of all of them, this sends nothing. A [transaction](Client::transaction) is
    /// visible as a whole or not at all.
    ///
    /// ```no_run
    /// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let both = client.snapshot(["/config", "/config-owner"]).await?;
    /// println!("{} nodes at revision {}", both.entries.iter().flatten().count(), both.revision);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`SnapshotError`] if a read failed, or if the nodes kept changing until the timeout.
    /// [`SnapshotError::TooManyAbsent`] if, at the timeout, more than 128 of the nodes do not
    /// exist, and this client gets no lease on their absence.
    pub fn snapshot<P>(&self, paths: impl IntoIterator<Item = P>) -> SnapshotReadBuilder<'_>
    where
        P: TryInto<NodePath, Error: Into<PathError>>,
    {
        SnapshotReadBuilder { client: self, paths: paths.into_iter().map(given).collect(), timeout: None }
    }

    async fn snapshot_of(&self, paths: &[NodePath], after: Duration) -> Result<Snapshot, SnapshotError> {
        let began = clock::now();
        let (mut tries, mut too_many) = (0, None);
        let mut first = self.collect(paths, after).await?;
        loop {
            tries += 1;
            let left = after.saturating_sub(clock::now().since(began));
            if left.is_zero() {
                return Err(too_many.unwrap_or(SnapshotError::Contended { after, tries }));
            }
            let second = match (self.collect(paths, left).await, too_many.take()) {
                (Err(SnapshotError::Read(ReadError::TimedOut { .. })), Some(too_many)) => return Err(too_many),
                (second, _) => second?,
            };
            let left = || after.saturating_sub(clock::now().since(began));
            first = match undecided(&first, &second) {
                None => second,
                Some(undecided) if undecided.is_empty() => return Ok(Snapshot::of(second, tries)),
                Some(_) if paths.len() <= Transaction::COMPARES_MAX => {
                    if self.are_as_read(paths.iter().zip(&second), left()).await {
                        return Ok(Snapshot::of(second, tries));
                    }
                    second
                }
                // Some of them have a copy now. The next collect decides about those.
                Some(undecided) if undecided.iter().any(|index| second[*index].content.installation().is_some()) => {
                    second
                }
                Some(undecided) => {
                    let compared: BTreeMap<_, _> = undecided.iter().map(|it| (&paths[*it], &second[*it])).collect();
                    let (got, most) = (compared.len(), Transaction::COMPARES_MAX);
                    if got > most {
                        too_many = Some(SnapshotError::TooManyAbsent { got, most });
                        tokio::time::sleep(RETRY_AFTER.min(left())).await;
                        first = second;
                        continue;
                    }
                    // The transaction compares only these nodes. The third collect shows that the
                    // others did not change from before the transaction until after it.
                    let are_absent = self.are_as_read(compared.into_iter(), left()).await;
                    if left().is_zero() {
                        return Err(SnapshotError::Contended { after, tries });
                    }
                    let third = self.collect(paths, left()).await?;
                    let mut others = (0..paths.len()).filter(|index| undecided.binary_search(index).is_err());
                    if are_absent && others.all(|index| stood_still(&second[index], &third[index])) {
                        return Ok(Snapshot::of(second, tries));
                    }
                    third
                }
            };
        }
    }

    /// Reads each node once. Asks for leases, so that the next time only changed nodes are read.
    async fn collect(&self, paths: &[NodePath], after: Duration) -> Result<Vec<Read>, SnapshotError> {
        let read = |path| self.driver().get_with(ObjectKind::Data, path, LeaseRequest::Explicit, after);
        Ok(try_join_all(paths.iter().map(read)).await?)
    }

    /// Whether these nodes are as they were read, at one moment during the call: a transaction
    /// compares them, and changes nothing. This decides about nodes that do not exist, in a volume
    /// that grants no leases. Their absence has no revision, and no copy shows that nobody has made
    /// and removed them meanwhile.
    async fn are_as_read<'r>(
        &self,
        reads: impl Iterator<Item = (&'r NodePath, &'r Read)> + Send,
        after: Duration,
    ) -> bool {
        let compares = reads.map(|(path, read)| match read.revision {
            Some(revision) => Compare::modify_revision(path.clone(), Relation::Equal, revision),
            None => Compare::absent(path.clone()),
        });
        let transaction = compares.fold(Transaction::new(), Transaction::when);
        let outcome = self.transaction(transaction).timeout(after).await;
        // A failed transaction decides nothing. The caller tries again, within its time.
        outcome.is_ok_and(|outcome| outcome.failed.is_none())
    }
}

impl Snapshot {
    fn of(reads: Vec<Read>, tries: u32) -> Self {
        let revision = reads.iter().filter_map(|read| read.revision).max().unwrap_or_default();
        let entries = reads.into_iter().map(|read| NodeData::of(read.content)).collect();
        Self { entries, revision, tries }
    }
}

/// The indexes of the absent nodes that may have been created and removed between the two collects,
/// in order. `None` if the collects found different revisions.
fn undecided(first: &[Read], second: &[Read]) -> Option<Vec<usize>> {
    let pairs = || first.iter().zip(second);
    let is_equal = pairs().all(|(one, other)| one.revision == other.revision);
    let undecided = pairs().enumerate().filter(|(_, (one, other))| !stood_still(one, other));
    is_equal.then(|| undecided.map(|(index, _)| index).collect())
}

/// Whether the object did not change between two reads.
fn stood_still(one: &Read, other: &Read) -> bool {
    let is_same_copy = || {
        let installation = one.content.installation();
        installation.is_some() && installation == other.content.installation()
    };
    match (one.revision, other.revision) {
        (Some(one), Some(other)) => one == other,
        (None, None) => is_same_copy(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use leasehold_protocol::{
        id::{Epoch, Stamp},
        object::{Content, Data, Stat},
    };

    use super::*;
    use crate::{read::ReadSource, shared_content::SharedContent};

    fn read(content: Content, installation: Option<u64>) -> Read {
        let path = NodePath::root();
        let content = match installation {
            Some(installation) => {
                SharedContent::copy(path, Arc::new(content), installation, Stamp { epoch: Epoch(1), sequence: 1 })
            }
            None => SharedContent::new(path, Arc::new(content)),
        };
        Read {
            revision: content.modify_revision(),
            content,
            source: ReadSource::Server,
            valid_for: None,
            owner: None,
            age: None,
        }
    }

    fn found(revision: u64) -> Content {
        let modify_revision = Revision(revision);
        let stat = Stat { create_revision: Revision(1), modify_revision, version: 1, value_len: 0, owner: None };
        Content::Data(Some(Data { value: Default::default(), stat }))
    }

    #[test]
    fn snapshot_read_compares_by_revision_and_absence_by_copy() {
        let absent = |installation| read(Content::Data(None), installation);
        let cases = [
            (read(found(7), None), read(found(7), Some(1)), true),
            (read(found(7), Some(1)), read(found(8), Some(1)), false),
            (absent(Some(1)), absent(Some(1)), true),
            (absent(Some(1)), absent(Some(2)), false),
            (absent(None), absent(None), false),
            (absent(None), absent(Some(1)), false),
            (absent(Some(1)), read(found(7), Some(1)), false),
        ];
        for (one, other, expected) in cases {
            assert_eq!(stood_still(&one, &other), expected, "{one:?} {other:?}");
        }
    }
}
