//! The judges that can be left out of a run, by name: to see what others find in rules that are
//! known to break one of them.

/// What is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Judge {
    /// No write is found uncovered again and again.
    Uncovered,
    /// The answer to a grant is about the lease that its own entry granted.
    Grants,
    /// A key lease that is kept in time does not end.
    Kept,
    /// A revocation ends, however much is attached meanwhile.
    Revocations,
    /// Clients and servers agree on what lives.
    Lives,
    /// What a lessor wants proposed is not larger than its shell proposes.
    Proposals,
    /// Cluster time does not run before the epoch begins.
    Epochs,
}

impl Judge {
    /// All of them.
    pub const ALL: [Judge; 7] = [
        Judge::Uncovered,
        Judge::Grants,
        Judge::Kept,
        Judge::Revocations,
        Judge::Lives,
        Judge::Proposals,
        Judge::Epochs,
    ];

    /// The judge of a name.
    pub fn of_name(name: &str) -> Option<Judge> {
        Self::ALL.into_iter().find(|judge| judge.name() == name)
    }

    /// What it is called in options and in what it says.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uncovered => "uncovered",
            Self::Grants => "grants",
            Self::Kept => "kept",
            Self::Revocations => "revocations",
            Self::Lives => "lives",
            Self::Proposals => "proposals",
            Self::Epochs => "epochs",
        }
    }
}
