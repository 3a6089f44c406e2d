//! The judges that a run can leave out, by name. Leaving one out shows what the others find in
//! rules that break it.

use crate::names::named;

named! {
    /// The judges by subject.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Judge {
        /// No write lacks consents again and again.
        Uncovered = "uncovered",
        /// The answer to a grant names the lease that its own entry granted.
        Grants = "grants",
        /// A key lease that its client renews in time does not end.
        RenewedKeyLeases = "renewed-key-leases",
        /// A revocation ends, however many nodes are attached meanwhile.
        Revocations = "revocations",
        /// Clients and servers agree which leases and registration nodes exist.
        Registrations = "registrations",
        /// A proposal is not larger than its shell accepts.
        Proposals = "proposals",
        /// Cluster time stands still until the epoch begins.
        Epochs = "epochs",
    }
}
