//! Several nodes as of one moment.
//!
//! All are read, then all are read again (a *double collect*; Afek, Attiya, Dolev, Gafni, Merritt,
//! Shavit 1993). If each was found to be the same both times, and was the same all the time in
//! between, then any moment between the two collects is one at which all of them were as they were
//! found. It lies between the call and its return: the snapshot is linearizable.
//!
//! # Why the same both times means the same in between
//!
//! - A node that exists and has the same modify revision both times has not changed: each change of
//!   its data gives it a new revision, and revisions are never used again, not even for a node that
//!   was removed and made anew.
//! - That a node does *not* exist has no revision: it may have come and gone. It counts only if it
//!   was the same copy both times, by the number of its installation. The copy was not dropped in
//!   between, since what is installed anew has another number; and a copy is dropped before
//!   anything takes effect that makes it stale (`cache`). A copy whose leases were over for a while
//!   is good again only if the server says that nothing has changed since they held (DESIGN section
//!   5), which is after the first collect.
//!
//! With all nodes in the cache both collects are reads from memory, and no message is sent. Else
//! what is missing is asked for, all of it at the same time. If something has changed, the second
//! collect is the first of another try.

use std::time::Duration;

use futures::future::try_join_all;
use leasehold_protocol::{id::Revision, object::ObjectKind, path::NodePath};

use crate::{
    client::Client,
    clock,
    error::SnapshotError,
    read::{NodeData, Read},
};

/// Nodes as they were at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// The nodes, in the order that they were asked for; none for one that did not exist.
    pub entries: Vec<Option<NodeData>>,
    /// The last change of any of them. Those that exist have not changed from this revision to the
    /// moment of the snapshot.
    pub revision: Revision,
    /// How many times it was tried: 1 if nobody wrote in between.
    pub tries: u32,
}

impl Client {
    /// Several nodes' values and stats as of one moment between the call and its return. From
    /// memory, without any message, if the cache has copies of all of them.
    ///
    /// Whatever a [transaction](Client::transaction) writes is in it whole or not at all.
    ///
    /// # Errors
    ///
    /// [`SnapshotError`]: a read that was not answered, or nodes that did not stand still for long enough within the client's timeout.
    pub async fn snapshot(&self, paths: &[NodePath]) -> Result<Snapshot, SnapshotError> {
        self.snapshot_with(paths, None).await
    }

    /// [`Client::snapshot`], within `timeout` or else the client's.
    ///
    /// # Errors
    ///
    /// As those of [`Client::snapshot`].
    pub async fn snapshot_with(
        &self,
        paths: &[NodePath],
        timeout: Option<Duration>,
    ) -> Result<Snapshot, SnapshotError> {
        let (after, began) = (self.timeout(timeout), clock::now());
        let mut tries = 0;
        let mut first = self.collect(paths, after).await?;
        loop {
            tries += 1;
            let left = after.saturating_sub(clock::now().since(began));
            if left.is_zero() {
                return Err(SnapshotError::Contended { after, tries });
            }
            let second = self.collect(paths, left).await?;
            if first.iter().zip(&second).all(|(one, other)| stood_still(one, other)) {
                let revision = second.iter().filter_map(|read| read.revision).max().unwrap_or_default();
                let entries = second.into_iter().map(|read| NodeData::of(read.content)).collect();
                return Ok(Snapshot { entries, revision, tries });
            }
            first = second;
        }
    }

    /// Reads each once.
    async fn collect(&self, paths: &[NodePath], after: Duration) -> Result<Vec<Read>, SnapshotError> {
        let reads = paths.iter().map(|path| self.driver().get(ObjectKind::Data, path, after));
        Ok(try_join_all(reads).await?)
    }
}

/// Whether an object was the same from one read of it to the other.
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
        Read { revision: content.modify_revision(), content, source: ReadSource::Server, valid_for: None, owner: None }
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
