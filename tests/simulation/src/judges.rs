//! The judges that a run can leave out, by name. Leaving one out shows what the others find in
//! rules that break it.

/// The judges by subject.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Judge {
    /// No write lacks consents again and again.
    Uncovered,
    /// The answer to a grant names the lease that its own entry granted.
    Grants,
    /// A key lease that its client renews in time does not end.
    RenewedKeyLeases,
    /// A revocation ends, however many nodes are attached meanwhile.
    Revocations,
    /// Clients and servers agree which leases and registration nodes exist.
    Registrations,
    /// A proposal is not larger than its shell accepts.
    Proposals,
    /// Cluster time stands still until the epoch begins.
    Epochs,
}

impl Judge {
    /// All judges.
    pub const ALL: [Judge; 7] = [
        Judge::Uncovered,
        Judge::Grants,
        Judge::RenewedKeyLeases,
        Judge::Revocations,
        Judge::Registrations,
        Judge::Proposals,
        Judge::Epochs,
    ];

    /// The judge with this name; none if there is no such judge.
    pub fn of_name(name: &str) -> Option<Judge> {
        Self::ALL.into_iter().find(|judge| judge.name() == name)
    }

    /// The name in options and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uncovered => "uncovered",
            Self::Grants => "grants",
            Self::RenewedKeyLeases => "renewed-key-leases",
            Self::Revocations => "revocations",
            Self::Registrations => "registrations",
            Self::Proposals => "proposals",
            Self::Epochs => "epochs",
        }
    }
}
