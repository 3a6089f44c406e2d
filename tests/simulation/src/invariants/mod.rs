//! The invariants, one file for each, with its source. A violation is a sentence that says what
//! does not hold.

pub(crate) mod agreement;
pub(crate) mod attachments;
pub(crate) mod elections;
pub(crate) mod epochs;
pub(crate) mod grants;
pub(crate) mod healing;
pub(crate) mod horizons;
pub(crate) mod linearizability;
pub(crate) mod locks;
pub(crate) mod named_revocations;
pub(crate) mod once;
pub(crate) mod owners;
pub(crate) mod prolonging;
pub(crate) mod proposals;
pub(crate) mod quotas;
pub(crate) mod registrations;
pub(crate) mod renewed_key_leases;
pub(crate) mod replicas;
pub(crate) mod transactions;
pub(crate) mod uncovered;
pub(crate) mod waits;
pub(crate) mod watches;
pub(crate) mod write_leases;
