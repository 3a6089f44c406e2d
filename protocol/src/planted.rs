//! Known mistakes that a test build can plant, to show that the tests find them.
//!
//! Unit tests, and builds with the feature `planted-bugs`, can plant one mistake at a time. Each is
//! one guarded expression in the code of the rule that it breaks. In a shipped build [`Planted`]
//! has no size, and [`Planted::has`] is constantly false.
//!
//! Each run of the tests plants each mistake, and must find it. Unit tests of the rules find the
//! mistakes of `BY_RULE`. The simulator finds the others (`tests/simulation/tests/planted.rs`).
//! More mistakes are patches: see `tests/mistakes/README.md`.
//!
//! Most variants name the rule of `docs/PROTOCOL.md` that they break, and a source:
//!
//! - *Model*: a random model of the rules failed without the rule.
//! - *Issue*: users or testers of another system reported the mistake in public.
//! - *Own*: this code had the mistake.
//! - *Mutation*: a mutation of this code was the mistake, and no test noticed it at first.
//! - *Review*: an adversarial review suggested the mistake.

use std::hash::{Hash, Hasher};

#[cfg(any(test, feature = "planted-bugs"))]
mod by_rule;
#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "planted-bugs"))]
pub use by_rule::BY_RULE;

/// Makes the enum and its list of all variants.
macro_rules! bugs {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A mistake of this or similar systems, or one that this system could make. Each breaks a
        /// rule.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Bug {
            $($(#[$doc])* $name,)*
        }

        impl Bug {
            /// All mistakes.
            pub const ALL: [Bug; [$(Bug::$name),*].len()] = [$(Bug::$name),*];
        }
    };
}

bugs! {
    /// The holder counts a term from the arrival of the answer, not from the sending of the request
    /// (T2). Model.
    TermFromReceipt,
    /// A lease is ended without its margin (T3). Model.
    LeaseWithoutMargin,
    /// The lessor waits for an object lease without drift and margin (T3). Model.
    ObjectLeaseWithoutMargin,
    /// Leases end by the clock that counts the leader's own pauses (T4). Issue: etcd 12528.
    PauseEndsLeases,
    /// A key lease is renewed although its end has been proposed (T5). Issue: etcd 12528.
    EndingLeaseRenewed,
    /// A lease is promised beyond its replicated horizon (T6). Review.
    RenewBeyondHorizon,
    /// A leader promises by the ending clock instead of the promising clock (T6). Model.
    PromiseByEndingClock,
    /// A delayed renewal is promised a whole term, but the lease ends with the shorter promise of
    /// its arrival (T6). Review.
    LongerPromiseNotCounted,
    /// A copy is served after its leases ended on the client's clock (S1). Issue: etcd 19091.
    ServeAfterExpiry,
    /// The holder consents to a recall, and keeps the copy (S2). Review.
    ConsentWithoutDrop,
    /// A write uses consents that were gathered in an earlier epoch (S2). Model.
    ConsentsOfEarlierEpoch,
    /// A write changes objects that its consents do not cover (S2). Model.
    WriteBeyondConsents,
    /// The writer is exempt from recall despite later grants to it (S2w). Model.
    ExemptWriterWithoutStamp,
    /// An object is leased while a write of it gathers consents (S3). Model.
    GrantDuringWrite,
    /// The holder installs a grant that a recall has overtaken (S4). Model. Issue: etcd 20704.
    CacheOvertakenGrant,
    /// A session with an unanswered recall is promised a full term (S5). Issue: nfs-ganesha 1382.
    PromisePastUnansweredRecall,
    /// A leader answers reads without a proof of leadership (S6). Model. Issue: etcd 20418.
    ReadWithoutProof,
    /// A read that joined a fetch in flight accepts an answer without a lease, which may be too
    /// old. Model.
    JoinedReadTakesAnyAnswer,
    /// A new leader does not treat sessions with a volume lease as covering holders (S7). Model.
    ForgetOldHolders,
    /// A returning session revives its copies, and is not tracked as covering (S7). Model.
    ReviveWithoutCovering,
    /// A write that waited changes the lease that now has the name of the intended one (S7b). Own.
    ReplacementTakenForIntended,
    /// The repeated answer to a grant renews and names a later lease with the same id (S7b). Own.
    GrantAnsweredWithReplacement,
    /// A recursive removal recalls only the topmost node (S8). Review.
    DeleteSparesDescendants,
    /// A request of an abandoned connection still takes effect (S2). Own.
    LateRequestHonoured,
    /// A Raft snapshot lacks the remembered outcomes (S9). Issue: zookeeper PR 2172.
    OutcomesNotInSnapshots,
    /// An upgraded lock has the token of the shared lock (S10). Review.
    TokenKeptByUpgrade,
    /// The holder drops dirty data when the lock ends, and reports no loss (S10).
    LostInSilence,
    /// A write is applied though another session has its data under a write lease (S10).
    WritePastWriteLease,
    /// A client that waits only for a write never probes its connection (`Body::AwaitRead` in
    /// docs/PROTOCOL.md). Own.
    NoProbe,
    /// A watch of a compacted revision begins with the oldest change of the history. Issue: etcd
    /// 20221.
    CompactionUnnoticed,
}

impl std::str::FromStr for Bug {
    type Err = String;

    /// The mistake with this name, as in the enum.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let names = || Self::ALL.map(|bug| format!("{bug:?}")).join(", ");
        let found = Self::ALL.into_iter().find(|bug| format!("{bug:?}") == name);
        found.ok_or_else(|| format!("there is no mistake {name}: expected one of {}", names()))
    }
}

/// The planted mistake. None in shipped builds. All values are equal, so that the rules' data are
/// compared without it.
#[derive(Debug, Clone, Copy)]
pub struct Planted {
    #[cfg(any(test, feature = "planted-bugs"))]
    bug: Option<Bug>,
}

impl PartialEq for Planted {
    fn eq(&self, _other: &Self) -> bool {
        true
    }
}

impl Eq for Planted {}

impl Hash for Planted {
    fn hash<H: Hasher>(&self, _hasher: &mut H) {}
}

impl Default for Planted {
    /// No mistake, or in this crate's unit tests the mistake that `LEASEHOLD_PLANT` names.
    fn default() -> Self {
        Self {
            #[cfg(test)]
            bug: tests::chosen(),
            #[cfg(all(not(test), feature = "planted-bugs"))]
            bug: None,
        }
    }
}

impl Planted {
    /// Plants one mistake.
    #[cfg(any(test, feature = "planted-bugs"))]
    pub fn one(bug: Bug) -> Self {
        Self { bug: Some(bug) }
    }

    /// Whether the mistake is planted.
    #[cfg(any(test, feature = "planted-bugs"))]
    pub fn has(self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Whether the mistake is planted: never, in this build.
    #[cfg(not(any(test, feature = "planted-bugs")))]
    #[inline(always)]
    pub fn has(self, _bug: Bug) -> bool {
        false
    }
}
