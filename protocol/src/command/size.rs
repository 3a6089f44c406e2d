//! The encoded lengths of commands.
//!
//! The bound on an entry counts encoded bytes (S10b). Paths and values are only a small part of a
//! small transaction's encoding. So each length here is that of the encoding, not an estimate.

use serde::Serialize;

use super::{AnyLease, Command, Write};
use crate::object::ObjectSet;

/// The length of the encoding in bytes. Does not build the encoding.
fn encoded_bytes<T: Serialize>(value: &T) -> usize {
    postcard::serialize_with_flavor(value, postcard::ser_flavors::Size::default())
        .expect("plain data in memory always encodes")
}

impl Write {
    /// The longest encoding of a write that the lessor accepts, in bytes. With
    /// [`Self::CONSENTED_BYTES_MAX`] and the rest of its command it fits [`Command::BYTES_MAX`].
    pub const BYTES_MAX: usize = Command::BYTES_MAX - Self::CONSENTED_BYTES_MAX - Self::HEAD_BYTES_MAX;

    /// The longest encoding of the objects in the `consented` field of a write's command, in bytes.
    /// Above it the lessor names one subtree that contains them all. The largest case is the 512
    /// lists of children that a revocation may name.
    pub const CONSENTED_BYTES_MAX: usize = 2304 << 10;

    /// The longest encoding of the other fields of a write's command, in bytes. They are some
    /// numbers, and an incarnation for each operation of both branches of a transaction.
    const HEAD_BYTES_MAX: usize = 4 << 10;

    /// The length of the encoding in bytes.
    pub fn encoded_bytes(&self) -> usize {
        encoded_bytes(self)
    }
}

impl Command {
    /// The longest encoding of one command, in bytes. With the head of its proposal, which has at
    /// most 64 bytes, it fits the longest entry that Raft accepts.
    pub const BYTES_MAX: usize = (8 << 20) - 64;

    /// The length of the encoding in bytes.
    pub fn encoded_bytes(&self) -> usize {
        encoded_bytes(self)
    }
}

impl AnyLease {
    /// The longest encoding of a renewal of this lease, in bytes.
    pub(crate) fn renewal_bytes_max(&self) -> usize {
        // One byte for the variant, and three numbers of at most ten bytes each. A path adds two
        // bytes for its length.
        match self {
            Self::Session(_) | Self::KeyLease(_) | Self::LockDelay(_) => 31,
            Self::Volume(_, top) => 33 + top.as_str().len(),
        }
    }
}

/// The length of the encoding of these sets, in bytes.
pub(crate) fn encoded_bytes_of_sets(sets: &[ObjectSet]) -> usize {
    encoded_bytes(&sets)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        command::{Attach, Renewal},
        id::{Incarnation, LeaseId, SessionId},
        lease_name::{LEASE_NAME_MAX_BYTES, LeaseName},
        path::NodePath,
        time::ClusterTime,
        transaction::{Operation, Transaction},
    };
    use std::time::Duration;

    /// The bounds on pending writes and on entries count encoded bytes (S10b).
    #[test]
    fn name_of_a_lease_counts_with_all_its_bytes() {
        let name = |length: usize| LeaseName::parse(&"x".repeat(length)).expect("a name");
        let writes: [fn(LeaseName) -> Write; 3] = [
            |name| Write::GrantLease { id: None, name: Some(name), ttl: Duration::from_secs(60) },
            |name| Write::RevokeLeaseNamed { name },
            |name| {
                Write::Transaction(Transaction::new().then(Operation::Put {
                    path: NodePath::root(),
                    value: Default::default(),
                    attach: Attach::LeaseNamed(name),
                }))
            },
        ];
        for write in writes {
            let (short, long) = (write(name(1)), write(name(LEASE_NAME_MAX_BYTES)));
            // The length of the long name takes one byte more.
            assert_eq!(long.encoded_bytes(), short.encoded_bytes() + LEASE_NAME_MAX_BYTES, "{short:?}");
        }
    }

    #[test]
    fn renewal_of_any_lease_is_within_its_bound() {
        let long = NodePath::parse(&"/x".repeat(2048)).expect("a path");
        let keys = [
            AnyLease::Session(SessionId(u64::MAX)),
            AnyLease::KeyLease(LeaseId(u64::MAX)),
            AnyLease::Volume(SessionId(u64::MAX), long),
        ];
        for lease in keys {
            let most = lease.renewal_bytes_max();
            let renewed_at = ClusterTime::from_micros(u64::MAX);
            let renewal = Renewal { lease, incarnation: Incarnation(u64::MAX), renewed_at };
            assert_eq!(encoded_bytes(&renewal), most, "{renewal:?}");
            assert_eq!(encoded_bytes(&renewal), postcard::to_allocvec(&renewal).expect("encodes").len());
        }
    }
}
