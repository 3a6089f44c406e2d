//! Known mistakes that a test build can put back, to see that the tests catch them.
//!
//! Without the feature `planted-bugs`, [`Planted`] has no size and [`Planted::has`] is constantly false: the shipped
//! code carries no trace of it.

/// A mistake that systems like this one have made. Each breaks a rule of the design; what then goes wrong is
/// told at each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Bug {
    /// The holder serves a copy after its leases ended on its clock (S1).
    ServeAfterExpiry,
    /// The holder counts a term from when the answer arrives instead of when the request was sent (T2).
    TermFromReceipt,
    /// The holder consents to a recall before it drops the copy (S2).
    ConsentBeforeDrop,
    /// The holder installs a grant that a recall has overtaken (S4).
    CacheOvertakenGrant,
    /// A new leader does not treat sessions with a volume lease as covering holders (S7).
    ForgetOldHolders,
    /// The leader renews a lease beyond its replicated horizon (T6).
    RenewBeyondHorizon,
    /// The leader promises by the clamped clock instead of all the time that has passed (T6).
    PromiseByClampedClock,
    /// The leader exempts the writer from recall without looking at its stamp (S2w).
    ExemptWriterWithoutStamp,
    /// The leader lets a returning session revive its copies without tracking it as covering (section 5).
    ReviveWithoutCovering,
    /// A write uses consents that were gathered in an earlier epoch (S2).
    ConsentsOfEarlierEpoch,
}

impl Bug {
    /// All of them.
    pub const ALL: [Bug; 10] = [
        Bug::ServeAfterExpiry,
        Bug::TermFromReceipt,
        Bug::ConsentBeforeDrop,
        Bug::CacheOvertakenGrant,
        Bug::ForgetOldHolders,
        Bug::RenewBeyondHorizon,
        Bug::PromiseByClampedClock,
        Bug::ExemptWriterWithoutStamp,
        Bug::ReviveWithoutCovering,
        Bug::ConsentsOfEarlierEpoch,
    ];
}

/// Which mistakes are put back. None, unless a test build says otherwise.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Planted {
    #[cfg(feature = "planted-bugs")]
    bug: Option<Bug>,
}

impl Planted {
    /// One mistake put back.
    #[cfg(feature = "planted-bugs")]
    pub fn one(bug: Bug) -> Self {
        Self { bug: Some(bug) }
    }

    /// Whether this mistake is put back.
    #[cfg(feature = "planted-bugs")]
    pub fn has(self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Whether this mistake is put back: never, in this build.
    #[cfg(not(feature = "planted-bugs"))]
    #[inline(always)]
    pub fn has(self, _bug: Bug) -> bool {
        false
    }
}
