//! The leases and the volume that a write intends (S7b in docs/PROTOCOL.md).
//!
//! While a write waits for consents, a key lease can end, and a new one can be granted under its id
//! or its name. A session can get another lease on a volume. A volume can be removed and created
//! again. The write intends the leases and the volume of its arrival, which [`State::intended`]
//! finds at that time. When the write is applied, each name must still stand for the same lease or
//! volume.
//!
//! Other names need no such check. Sessions, locks, tokens and revisions are never reused. A path
//! stands for the node that exists when the write is applied, unless a condition says otherwise.

use super::State;
use crate::{
    command::{AnyLease, Attach, IntendedLeases, Write, WriteRefusal},
    id::{LeaseId, SessionId},
    path::NodePath,
    planted::Bug,
    transaction::Operation,
};

impl State {
    /// The leases and the volume that the names in the write stand for now, in both branches of a
    /// transaction. The lessor calls this when the request arrives.
    pub fn intended(&self, writer: SessionId, write: &Write) -> IntendedLeases {
        let leases = leases_named_by(write).into_iter().filter_map(|named| {
            let key = match named {
                NamedLease::Revoked => self.revoked_lease(write).map(AnyLease::KeyLease),
                NamedLease::Attached(path, attach) => self.named_lease(writer, path, attach),
            };
            key.and_then(|key| self.lease(&key)).map(|lease| lease.incarnation)
        });
        let volume = match write {
            Write::SetVolume { path, .. } | Write::RemoveVolume { path } => self.volume(path),
            _ => None,
        };
        IntendedLeases { leases: leases.collect(), volume: volume.map(|volume| volume.create_generation) }
    }

    /// The key of the lease to which a put attaches its node. The lease need not exist.
    pub(super) fn named_lease(&self, writer: SessionId, path: &NodePath, attach: &Attach) -> Option<AnyLease> {
        match attach {
            Attach::Nothing | Attach::Unchanged => None,
            Attach::Lease(id) => Some(AnyLease::KeyLease(*id)),
            Attach::LeaseNamed(name) => self.lease_named(name).map(AnyLease::KeyLease),
            Attach::Session => Some(AnyLease::Volume(writer, self.volume_of(path).0.clone())),
        }
    }

    /// The refusal of an attachment to a lease that does not exist.
    pub(super) fn no_lease_refusal(&self, path: &NodePath, attach: &Attach) -> WriteRefusal {
        match attach {
            Attach::Lease(id) => WriteRefusal::LeaseNotFound { id: *id },
            Attach::LeaseNamed(name) => WriteRefusal::LeaseNameNotFound { name: name.clone() },
            Attach::Nothing | Attach::Unchanged | Attach::Session => {
                WriteRefusal::NoVolumeLease { path: path.clone(), volume: self.volume_of(path).0.clone() }
            }
        }
    }

    /// The key lease that the write revokes. `None` if the write is no revocation, or if no lease
    /// has the id and the incarnation, or the name, that it names.
    pub fn revoked_lease(&self, write: &Write) -> Option<LeaseId> {
        match write {
            Write::RevokeLease { id, incarnation } => {
                let lease = self.lease(&AnyLease::KeyLease(*id))?;
                incarnation.is_none_or(|incarnation| lease.incarnation == incarnation).then_some(*id)
            }
            Write::RevokeLeaseNamed { name } => self.lease_named(name),
            _ => None,
        }
    }

    /// Checks that the lease that a put names is the intended one.
    ///
    /// # Errors
    ///
    /// [`WriteRefusal`] if there is no such lease, or another lease has its name by now.
    pub(super) fn check_intended(
        &self,
        writer: SessionId,
        path: &NodePath,
        attach: &Attach,
        intended: &IntendedLeases,
    ) -> Result<(), WriteRefusal> {
        match self.named_lease(writer, path, attach) {
            Some(key) if !self.is_intended(&key, intended) => Err(self.no_lease_refusal(path, attach)),
            _ => Ok(()),
        }
    }

    /// Whether a lease with this key exists and is intended.
    pub(super) fn is_intended(&self, key: &AnyLease, intended: &IntendedLeases) -> bool {
        let lease = self.lease(key);
        lease.is_some_and(|lease| {
            intended.leases.contains(&lease.incarnation) || self.planted.has(Bug::ReplacementTakenForIntended)
        })
    }

    /// Whether a volume with this top exists and is intended.
    pub(super) fn is_volume_intended(&self, top: &NodePath, intended: &IntendedLeases) -> bool {
        self.volume(top).is_some_and(|volume| intended.volume == Some(volume.create_generation))
    }
}

/// A lease that a write names.
enum NamedLease<'a> {
    /// [`State::revoked_lease`] finds it.
    Revoked,
    /// Named by the node of a put or a lock request, and by the kind of attachment.
    Attached(&'a NodePath, &'a Attach),
}

fn leases_named_by<'a>(write: &'a Write) -> Vec<NamedLease<'a>> {
    match write {
        Write::RevokeLease { .. } | Write::RevokeLeaseNamed { .. } => vec![NamedLease::Revoked],
        Write::Put { path, attach, .. } => vec![NamedLease::Attached(path, attach)],
        Write::Lock { path, .. } => vec![NamedLease::Attached(path, &Attach::Session)],
        Write::Transaction(transaction) => {
            let put = |operation: &'a Operation| match operation {
                Operation::Put { path, attach, .. } => Some(NamedLease::Attached(path, attach)),
                Operation::Delete { .. } => None,
            };
            transaction.operations().filter_map(put).collect()
        }
        Write::Delete { .. }
        | Write::CreateVolume { .. }
        | Write::SetVolume { .. }
        | Write::RemoveVolume { .. }
        | Write::GrantLease { .. }
        | Write::ChangeLockMode { .. }
        | Write::Unlock { .. }
        | Write::TakeWriteLease { .. }
        | Write::Flush { .. }
        | Write::HandOver { .. } => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::*, *};
    use crate::{
        command::{Command, Condition, Outcome},
        id::{Incarnation, LeaseId},
        lock::LockMode,
        object::Value,
        transaction::{Compare, Transaction},
        volume::VolumeSettings,
    };
    use std::time::Duration;

    const ONE: LeaseId = LeaseId(100);
    const MINUTE: Duration = Duration::from_secs(60);

    fn to(at: &str, attach: Attach) -> Write {
        Write::Put { path: path(at), value: Value::from_static(b"v"), condition: Condition::Any, attach }
    }

    fn grant() -> Write {
        Write::GrantLease { id: Some(ONE), name: None, ttl: MINUTE }
    }

    fn lock(at: &str) -> Write {
        Write::Lock { path: path(at), mode: LockMode::Exclusive, wait: true, delay: Duration::ZERO }
    }

    fn operation(at: &str, attach: Attach) -> Operation {
        Operation::Put { path: path(at), value: Value::from_static(b"v"), attach }
    }

    /// A state with a key lease, and a volume on which the session has a lease.
    fn fixture() -> (Fixture, SessionId) {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        fixture.write(session, grant()).expect("new");
        fixture.write(session, create_volume("/v", 5)).expect("new");
        fixture.acquire(session, "/v");
        (fixture, session)
    }

    /// Replaces everything that has a reusable name.
    fn replace(fixture: &mut Fixture, session: SessionId) {
        fixture.write(session, Write::RevokeLease { id: ONE, incarnation: None }).expect("revoked");
        fixture.write(session, grant()).expect("a new lease");
        fixture.write(session, Write::RemoveVolume { path: path("/v") }).expect("removed");
        fixture.write(session, create_volume("/v", 5)).expect("a new volume");
        fixture.acquire(session, "/v");
    }

    #[test]
    fn write_whose_lease_or_volume_was_replaced_changes_nothing() {
        let no_lease = || WriteRefusal::LeaseNotFound { id: ONE };
        let no_volume_lease = || WriteRefusal::NoVolumeLease { path: path("/v/x"), volume: path("/v") };
        let replaced = || WriteRefusal::VolumeReplaced { path: path("/v") };
        let settings = VolumeSettings::DEFAULT;
        let cases = [
            (Write::RevokeLease { id: ONE, incarnation: None }, no_lease()),
            (to("/x", Attach::Lease(ONE)), no_lease()),
            (to("/v/x", Attach::Session), no_volume_lease()),
            (lock("/v/x"), no_volume_lease()),
            (Write::SetVolume { path: path("/v"), settings }, replaced()),
            (Write::RemoveVolume { path: path("/v") }, replaced()),
        ];
        for (write, refusal) in cases {
            let (mut fixture, session) = fixture();
            let command = fixture.command(session, write.clone());
            replace(&mut fixture, session);
            let before = fixture.state.revision();
            assert_eq!(fixture.run(command), Outcome::Written(Err(refusal)), "{write:?}");
            assert_eq!(fixture.state.revision(), before);
            assert!(fixture.write(session, write).is_ok(), "a new request intends the new lease");
        }
    }

    #[test]
    fn transaction_whose_lease_was_replaced_changes_nothing() {
        for is_there in [true, false] {
            let (mut fixture, session) = fixture();
            let compare = if is_there { Compare::exists(path("/")) } else { Compare::absent(path("/")) };
            let transaction = Transaction::new().when(compare);
            let transaction = transaction.then(operation("/x", Attach::Lease(ONE)));
            let transaction = transaction.otherwise(operation("/v/x", Attach::Session));
            let command = fixture.command(session, Write::Transaction(transaction));
            replace(&mut fixture, session);
            let outcome = fixture.run(command);
            assert!(matches!(outcome, Outcome::Written(Err(WriteRefusal::Operation { .. }))), "{outcome:?}");
            assert!(fixture.state.node(&path("/x")).is_none() && fixture.state.node(&path("/v/x")).is_none());
        }
    }

    #[test]
    fn lease_id_unused_at_arrival_intends_no_later_lease() {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        let revoke = fixture.command(session, Write::RevokeLease { id: ONE, incarnation: None });
        let remove = fixture.command(session, Write::RemoveVolume { path: path("/v") });
        fixture.write(session, grant()).expect("new");
        fixture.write(session, create_volume("/v", 5)).expect("new");
        assert_eq!(fixture.run(revoke), Outcome::Written(Err(WriteRefusal::LeaseNotFound { id: ONE })));
        assert_eq!(fixture.run(remove), Outcome::Written(Err(WriteRefusal::VolumeReplaced { path: path("/v") })));
    }

    #[test]
    fn revocation_by_incarnation_spares_every_other_lease_of_the_id() {
        let (mut fixture, session) = fixture();
        let lease = fixture.state.lease(&AnyLease::KeyLease(ONE)).expect("granted").incarnation;
        let revoke = Write::RevokeLease { id: ONE, incarnation: Some(lease) };
        replace(&mut fixture, session);
        let refusal = WriteRefusal::LeaseNotFound { id: ONE };
        let intended = fixture.state.intended(session, &revoke);
        assert_eq!((intended.leases, fixture.state.revoked_lease(&revoke)), (std::collections::BTreeSet::new(), None));
        assert_eq!(fixture.write(session, revoke).expect_err("another lease"), refusal);
        let present = fixture.state.lease(&AnyLease::KeyLease(ONE)).expect("still there").incarnation;
        let revoke = Write::RevokeLease { id: ONE, incarnation: Some(present) };
        fixture.write(session, revoke).expect("revoked");
        assert!(fixture.state.lease(&AnyLease::KeyLease(ONE)).is_none());
    }

    #[test]
    fn changed_volume_is_still_the_intended_one() {
        let (mut fixture, session) = fixture();
        let set = Write::SetVolume { path: path("/v"), settings: VolumeSettings::DEFAULT };
        let (first, second) = (fixture.command(session, set.clone()), fixture.command(session, set));
        let remove = fixture.command(session, Write::RemoveVolume { path: path("/v") });
        let attach = fixture.command(session, to("/v/x", Attach::Session));
        for command in [first, second, remove] {
            let outcome = fixture.run(command);
            assert!(matches!(outcome, Outcome::Written(Ok(_))), "{outcome:?}");
        }
        fixture.acquire(session, "/");
        let refusal = WriteRefusal::NoVolumeLease { path: path("/v/x"), volume: path("/") };
        assert_eq!(fixture.run(attach), Outcome::Written(Err(refusal)), "the request intended the lease on the volume");
    }

    #[test]
    fn unchanged_orphan_is_not_attached_to_the_new_lease() {
        let (mut fixture, session) = fixture();
        fixture.write(session, to("/x", Attach::Lease(ONE))).expect("attached");
        let lease = fixture.state.lease(&AnyLease::KeyLease(ONE)).expect("granted").clone();
        let (incarnation, horizon) = (lease.incarnation, lease.horizon);
        fixture.run(Command::Expire { lease: AnyLease::KeyLease(ONE), incarnation, horizon });
        fixture.write(session, grant()).expect("a new lease");
        fixture.write(session, to("/x", Attach::Unchanged)).expect("an orphan");
        let new = fixture.state.lease(&AnyLease::KeyLease(ONE)).expect("granted");
        assert_eq!((new.attached_at.0, new.incarnation > incarnation), (0, true));
        assert_eq!(fixture.state.attached_nodes(incarnation).count(), 1);
        assert_eq!(fixture.state.attached_nodes(Incarnation(new.incarnation.0)).count(), 0);
    }
}
