//! Known mistakes that a test build can plant, to show that the tests find them.
//!
//! Unit tests, and builds with the feature `planted-bugs`, can plant one mistake at a time, in the
//! code of the rule that it breaks. In a shipped build [`Planted`] has no size, and
//! [`Planted::has`] is constantly false.
//!
//! Each run of the tests plants each mistake, and must find it. Unit tests of the rules find the
//! mistakes of `BY_RULE`. The simulator finds the others (`tests/simulation/tests/planted.rs`).
//!
//! Most variants name the rule of `docs/PROTOCOL.md` that they break, and a source:
//!
//! - *Model*: a random model of the rules failed without the rule.
//! - *Issue*: users or testers of another system reported the mistake in public.
//! - *Own*: this code had the mistake.
//! - *Mutation*: a mutation of this code was the mistake, and no test noticed it at first.
//! - *Review*: an adversarial review suggested the mistake.

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
    /// A copy is served after its leases ended on the client's clock (S1). Issue: etcd 19091.
    ServeAfterExpiry,
    /// The holder counts a term from the arrival of the answer, not from the sending of the request
    /// (T2). Model.
    TermFromReceipt,
    /// The holder consents to a recall before it drops the copy (S2). Review.
    ConsentBeforeDrop,
    /// The holder installs a grant that a recall has overtaken (S4). Model. Issue: etcd 20704.
    CacheOvertakenGrant,
    /// The holder installs a grant of an older epoch, unknown to the present leader (S4). Model.
    GrantOfOldEpoch,
    /// The holder installs a grant from before its present volume lease (S4). Model.
    GrantOfOldIncarnation,
    /// A recall drops only copies that may be used at the moment. A suspended copy is revived later
    /// (S4). Model.
    RecallSparesLapsedCopies,
    /// The holder ignores a gap in the numbers of recalls (S5). Issue: hazelcast 25304.
    RecallGapIgnored,
    /// A new volume lease revives a copy whose object lease has ended (S7). Model.
    ReviveEndedObjectLease,
    /// The holder takes the last valid revision from an answer without a promise (S7). Model,
    /// mutation.
    RevisionFromAnyAnswer,
    /// The holder serves copies while a requested lease may replace theirs (`Body::Acquire` in
    /// docs/PROTOCOL.md). Review.
    ServeWhileAcquiring,
    /// A holder report omits revived copies of earlier incarnations (S7). Review.
    ReportWithoutRevived,
    /// The holder accepts the promises of an epoch that it has left (T6). Mutation.
    PromiseOfOtherEpoch,
    /// A read that joined a fetch in flight accepts an answer without a lease, which may be too
    /// old. Model.
    JoinedReadTakesAnyAnswer,
    /// A repeated write claims that the client dropped its copy again, but the client has not
    /// (S2w). Review.
    ResendKeepsCopy,
    /// A write gets the next number at each sending, so that a repeated write has another number
    /// (S9). Review.
    NumberedWhenSent,
    /// The holder reports a sent and abandoned write as never sent (S9). Review.
    UnknownReportedAsNotSent,
    /// A client that waits only for a write never probes its connection (`Body::AwaitRead` in
    /// docs/PROTOCOL.md). Own.
    NoProbe,
    /// A leader answers reads without a proof of leadership (S6). Model. Issue: etcd 20418.
    ReadWithoutProof,
    /// A read joins a quorum round that is already in flight (S6). Model, mutation.
    JoinRoundUnderWay,
    /// A proof that an earlier leadership requested counts for the next one (S6). Review.
    ProofReusedAfterStepDown,
    /// A new leader answers reads before the first entry of its epoch is applied (S6). Review.
    ReadBeforeFirstEntry,
    /// A client with a blocked read counts its server as silent, though the server answers
    /// (`Body::AwaitRead` in docs/PROTOCOL.md). Own.
    BlockedReadTakenForSilence,
    /// An object is leased while a write of it gathers consents (S3). Model.
    GrantDuringWrite,
    /// A new leader does not treat sessions with a volume lease as covering holders (S7). Model.
    ForgetOldHolders,
    /// A returning session revives its copies, and is not tracked as covering (S7). Model.
    ReviveWithoutCovering,
    /// The list of changes for a returning session omits pending writes (S7). Model.
    OmitPendingWrites,
    /// The lessor ignores the covering's number in a holder report (S7). Model, mutation.
    ReportOfOldCovering,
    /// The lessor ignores the incarnation in a holder report (S7). Mutation.
    ReportOfOldIncarnation,
    /// A holder report replaces the grants made meanwhile, instead of adding to them (S7). Model.
    ReportReplaces,
    /// Parts of a report from an earlier registration count for the next report (S7). Review.
    ReportPartsMixed,
    /// A session with more object leases than the limit is not tracked as covering (S2). Review.
    TooManyForgotten,
    /// The lessor waits for an object lease without drift and margin (T3). Model.
    ObjectLeaseWithoutMargin,
    /// A consent to an earlier recall counts for all later ones of the session (S2). Model.
    ConsentWithoutStamp,
    /// A consent or a return ends a grant that is later than the named stamp (S2). Model.
    OlderReturnTaken,
    /// A request of an abandoned connection still takes effect (S9). Own.
    LateRequestHonoured,
    /// The writer is exempt from recall despite later grants to it (S2w). Model.
    ExemptWriterWithoutStamp,
    /// The lessor takes a covering writer's last grant from the known object leases only (S2w).
    /// Review.
    ExemptCoveringWriter,
    /// A write whose footprint has grown is proposed without recalls for the rest (S2). Review.
    CoverWithoutGathering,
    /// A write in two volumes proceeds when one of a lease holder's two leases has ended (S2).
    /// Review.
    AnyEndFreesWrite,
    /// A lease is promised beyond its replicated horizon (T6). Review.
    RenewBeyondHorizon,
    /// A delayed renewal is promised a whole term, but the lease ends with the shorter promise of
    /// its arrival (T6). Review.
    LongerPromiseNotCounted,
    /// A leader promises by the clamped clock instead of the promising clock (T6). Model.
    PromiseByClampedClock,
    /// A session with an unanswered recall is promised a full term (S5). Issue: nfs-ganesha 1382.
    PromisePastUnansweredRecall,
    /// A renewal succeeds even if it names another incarnation (T6). Model, mutation.
    RenewalWithoutIncarnation,
    /// A lease is renewed although its end has been proposed (T5). Issue: etcd 12528.
    EndingLeaseRenewed,
    /// A promise of zero length moves the end of the lease, which then never ends (S5). Own.
    EmptyPromiseMovesEnd,
    /// A shorter promise lowers the end that a longer promise has set (T6). Review.
    EndLowered,
    /// Each change of leader adds a full term to every lease (T6). Issue: etcd 9888.
    EndsBeginAnew,
    /// A lease is ended without its margin (T3). Model.
    LeaseWithoutMargin,
    /// Leases end by the clock that counts the leader's own pauses (T4). Issue: etcd 12528.
    PauseEndsLeases,
    /// Writes proceed when the leader counts a lease as ended, before that end is applied (T5).
    /// Model.
    EndedBeforeApplied,
    /// A delayed expiry ends the lease that has replaced the intended one (T5). Own.
    ExpiryEndsReplacement,
    /// The repeated answer to a write has a lease (S9). Model.
    LeaseWithReplayedAnswer,
    /// The lessor checks the condition of a repeated write before it looks up the first outcome
    /// (S9). Review.
    ConditionBeforeOutcome,
    /// A new epoch forgets the remembered outcomes (S9). Model.
    OutcomesForgottenByNextLeader,
    /// A Raft snapshot lacks the remembered outcomes (S9). Issue: zookeeper PR 2172.
    OutcomesNotInSnapshots,
    /// A write uses consents that were gathered in an earlier epoch (S2). Model.
    ConsentsOfEarlierEpoch,
    /// A new leadership reuses the last epoch, and numbers its stamps from 1 again (S4). Model.
    EpochOfLastLeader,
    /// A proposal of a deposed leader moves cluster time (T4). Review.
    ClockOfDeposedLeader,
    /// A late tick gives an abandoned lease a full term (T6). Model, mutation.
    TickWithoutLesserBound,
    /// A tick lowers a horizon up to which a leader has made promises (T6). Issue: etcd 9888.
    HorizonMovedBack,
    /// A lease is ended although its horizon has moved since the proposal (T5). Review.
    ExpireThoughHorizonMoved,
    /// A smaller margin counts at once for promises that were made under a greater one (T3). Own.
    MarginMadeSmaller,
    /// A write changes objects that its consents do not cover (S2). Model.
    WriteBeyondConsents,
    /// When a node is made, copies of its absence are not recalled (S8). Review.
    CreateSparesAbsence,
    /// When a child is added, the list of children is not recalled (S8). Review.
    CreateSparesChildren,
    /// When a child is removed, the list of children is not recalled (S8). Review.
    DeleteSparesChildren,
    /// A recursive removal recalls only the topmost node (S8). Review.
    DeleteSparesDescendants,
    /// The creation of a volume recalls nothing in it (S8). Review.
    VolumeMadeWithoutRecall,
    /// The removal of a volume recalls nothing in it (S8). Review.
    VolumeRemovedWithoutRecall,
    /// A volume that is made again reuses the generation of the removed one (S8). Issue:
    /// curator 911.
    GenerationUsedAgain,
    /// The history has only the first of the objects that a change changed (S7). Review.
    ChangeHalfRemembered,
    /// A list of children is validated by the revision of the node's data (`Body::Read` in
    /// docs/PROTOCOL.md). Review.
    ValidatedByOtherRevision,
    /// The removal of orphans recalls no copies of the nodes (S8). Review.
    RemovalSparesNodes,
    /// The removal of orphans does not recall their parents' lists of children (S8). Review.
    RemovalSparesLists,
    /// A revocation removes a node that was attached after consents were gathered (S2). Review.
    AttachedUnasked,
    /// A write that waited changes the lease or volume that now has the name of the intended one
    /// (S7b). Own.
    ReplacementTakenForIntended,
    /// The repeated answer to a grant renews and names a later lease with the same id (S7b). Own.
    GrantAnsweredWithReplacement,
    /// A revocation whose consents did not cover it does not delay puts that attach nodes, and may
    /// wait for ever (S7b). Own.
    AttachmentsPassRevocation,
    /// Copies of nodes are leased while their removal gathers consents (S3). Review.
    GrantDuringRemoval,
    /// The answer to a put has a lease, though the same entry has removed the node (S3). Own.
    GrantOfRemovedNode,
    /// A new lease replaces a lease with attached nodes, and so removes the nodes of a live session
    /// (the opposite of a zookeeper complaint). Own.
    NodesLostWithNewLease,
    /// A waiter whose session has lost its lease stays in the lock queue, and is granted the lock.
    /// Issue: Jepsen on etcd 3.4.3.
    DeadWaiterStays,
    /// A shared lock is granted before an earlier exclusive lock: writers starve. Review.
    SharedLockOvertakes,
    /// An upgraded lock has the token of the shared lock (S10). Review.
    TokenKeptByUpgrade,
    /// The owner counts a downgraded lock as exclusive until the answer arrives, though another
    /// session may already have the lock. Own.
    DowngradedByAnswer,
    /// Any session can release a lock. Review.
    LockReleasedByAnyone,
    /// The owner counts on a lock because a server says so, even if its lease is not certain on its
    /// own clock (S1). Issue: redlock.
    LockWithoutClock,
    /// A transaction recalls only the objects of its first operation (S2). Review.
    TransactionRecallsFirst,
    /// A transaction applies the branch for which it was proposed, though its comparisons now
    /// choose the other branch (S2). Review.
    BranchOfProposal,
    /// A transaction with a refused operation applies the operations before it. Review.
    TransactionHalfDone,
    /// A transaction checks only its first comparison. Review.
    FirstCompareOnly,
    /// A watch resumes after the change that follows the last reported one: an event is lost.
    /// Issue: etcd 18089.
    WatchResumesPastNext,
    /// A repeated watch resumes where it began: changes are reported twice. Review.
    WatchResumesFromStart,
    /// Under a new session, the watch begins again from the present revision. Review.
    WatchEndsWithSession,
    /// Only the first event of a change decides which watches are woken. Review.
    WatcherWokenByFirstEvent,
    /// The progress mark of a full answer claims that all changes were reported. Issue: etcd 17529.
    ProgressBeyondReported,
    /// If a change does not fit into an answer, its first event is reported as the whole change.
    /// Issue: etcd 17529.
    ChangeCutByBound,
    /// A watch of a compacted revision begins with the oldest change of the history. Issue:
    /// etcd 20221.
    CompactionUnnoticed,
    /// A recursive removal reports only the topmost node. Review.
    DescendantsNotReported,
    /// A page of a list is answered without a proof of leadership (S6). Review.
    ListWithoutProof,
    /// A write is applied though another session has its data under a write lease (S10).
    WritePastWriteLease,
    /// A transaction is applied though another session has the compared data under a write lease
    /// (S10).
    ComparePastWriteLease,
    /// A write lease begins without recalls of the node's copies (S2).
    WriteLeaseWithoutRecall,
    /// A read is answered though another session has the data under a write lease (S10).
    ReadPastWriteLease,
    /// A returning client revives a copy of data that another session has under a write lease (S7).
    ReviveUnderWriteLease,
    /// A recall drops dirty data (S10).
    RecallDropsDirty,
    /// The holder drops dirty data when the lock ends, and reports no loss (S10).
    LostInSilence,
    /// An owner reads and writes in memory after its lease may have ended (S10).
    WriteLeaseWithoutClock,
    /// A handed-over lock goes to the first waiter of the queue, not to the named one. Review.
    SuccessorPassedOver,
    /// The named waiter gets the token of the previous owner (S10). Review.
    SuccessorKeepsToken,
    /// The owner counts on a handed-over lock until the answer arrives, though another session may
    /// already have it. Review.
    HandedOverByAnswer,
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

/// The planted mistake. None in shipped builds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Planted {
    #[cfg(any(test, feature = "planted-bugs"))]
    bug: Option<Bug>,
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
