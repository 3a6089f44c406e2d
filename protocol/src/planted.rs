//! Known mistakes that a test build can put back, to see that the tests catch them.
//!
//! In a shipped build [`Planted`] has no size and [`Planted::has`] is constantly false: the code
//! carries no trace of it. In unit tests, and with the feature `planted-bugs`, one mistake at a
//! time is made at the place of the rule that it breaks.
//!
//! Each mistake is put back and found whenever the tests run: those of `BY_RULE` by a test of the
//! rule, the others by the simulator (`tests/simulation/tests/planted.rs`).
//!
//! Sources: *traces* are what a model of the design ran into when a rule was left out; *elsewhere*
//! is what users of other systems complain about in public; *here* is a mistake that was made in
//! this code and found; *by hand* is a change of this code that no test had noticed; *read* is what
//! a hostile reading thought of.

#[cfg(any(test, feature = "planted-bugs"))]
mod by_rule;
#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "planted-bugs"))]
pub use by_rule::BY_RULE;

/// Makes the enum and the list of all of it from one list.
macro_rules! bugs {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// A mistake that systems like this one have made, or that this one could make. Each breaks
        /// a promise of the design: what is done wrong, which rule that breaks, and where it comes
        /// from is told at each.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Bug {
            $($(#[$doc])* $name,)*
        }

        impl Bug {
            /// All of them.
            pub const ALL: [Bug; [$(Bug::$name),*].len()] = [$(Bug::$name),*];
        }
    };
}

bugs! {
    /// The holder serves a copy after its leases ended on its clock (S1). Elsewhere: etcd 19091.
    ServeAfterExpiry,
    /// The holder counts a term from when the answer arrives instead of when the request was sent
    /// (T2). Traces.
    TermFromReceipt,
    /// The holder consents to a recall before it drops the copy (S2). Read.
    ConsentBeforeDrop,
    /// The holder installs a grant that a recall has overtaken (S4). Traces; elsewhere: etcd 20704.
    CacheOvertakenGrant,
    /// The holder installs a grant of a leader that it has left: the new one does not know of it
    /// (S4). Traces.
    GrantOfOldEpoch,
    /// The holder installs a grant from before the volume lease that it has now (S4). Traces.
    GrantOfOldIncarnation,
    /// A recall drops only copies that may be used at the moment: a suspended one is revived later
    /// (S4). Traces.
    RecallSparesLapsedCopies,
    /// The holder does not mind that the numbers of recalls have a gap (S5). Elsewhere:
    /// hazelcast 25304.
    RecallGapIgnored,
    /// A copy is good again under a new volume lease though its object lease has ended (section 5).
    /// Traces.
    ReviveEndedObjectLease,
    /// The last valid revision is taken from an answer that promised nothing (section 5). Traces;
    /// by hand.
    RevisionFromAnyAnswer,
    /// Copies are served while the lease that was asked for may replace theirs (section 5). Read.
    ServeWhileAcquiring,
    /// A list of what is held leaves out the copies of earlier incarnations that were revived (S7).
    /// Read.
    ReportWithoutRevived,
    /// The holder takes the promises of a leader that it has left (T6). By hand.
    PromiseOfOtherEpoch,
    /// A read that joined a fetch under way takes an answer without a lease (section 6). Traces.
    JoinedReadTakesAnyAnswer,
    /// A write that is sent again claims to have dropped the writer's copy anew, and has not (S2w).
    /// Read.
    ResendKeepsCopy,
    /// A write is sent under the number that is next, which is another when it is sent again (S9).
    /// Read.
    NumberedWhenSent,
    /// A write that was sent and given up is reported as never sent (S9). Read.
    UnknownReportedAsNotSent,
    /// A client that waits for a write alone never asks whether the connection still lives (section
    /// 2). Here.
    NoProbe,
    /// A leader answers reads without a proof that it still leads (S6). Traces; elsewhere:
    /// etcd 20418.
    ReadWithoutProof,
    /// A read joins a leadership round that is already under way (S6). Traces; by hand.
    JoinRoundUnderWay,
    /// A proof that an earlier leadership asked for counts for the next (S6). Read.
    ProofReusedAfterStepDown,
    /// A new leader answers reads before the first entry of its epoch is applied (S6). Read.
    ReadBeforeFirstEntry,
    /// A client that waits for another's write lease takes a server that answers for silent
    /// (section 2). Here.
    BlockedReadTakenForSilence,
    /// An object is leased while a write of it gathers consent (S3). Traces.
    GrantDuringWrite,
    /// A new leader does not treat sessions with a volume lease as covering holders (S7). Traces.
    ForgetOldHolders,
    /// A returning session revives its copies and is not tracked as covering (section 5). Traces.
    ReviveWithoutCovering,
    /// The list of changes for a returning session leaves out writes that gather consent (section
    /// 5). Traces.
    OmitPendingWrites,
    /// The covering's number in a list of what is held is ignored (S7). Traces; by hand.
    ReportOfOldCovering,
    /// The incarnation in a list of what is held is ignored (S7). By hand.
    ReportOfOldIncarnation,
    /// A list of what is held replaces what was granted meanwhile instead of adding to it (S7).
    /// Traces.
    ReportReplaces,
    /// Pieces of a list from an earlier registration count for the next list (S7). Read.
    ReportPartsMixed,
    /// A session with more objects than the limit is not tracked as covering: the rest is forgotten
    /// (section 5). Read.
    TooManyForgotten,
    /// The end of an object lease is not waited for with drift and margin (T3). Traces.
    ObjectLeaseWithoutMargin,
    /// A consent to an earlier recall is taken for all later ones of the session (S2). Traces.
    ConsentWithoutStamp,
    /// A consent or a return takes back a later grant than the one that it answers (S2). Traces.
    OlderReturnTaken,
    /// A request of a connection that the client has given up still takes effect (S9). Here.
    LateRequestHonoured,
    /// The writer is exempt from recall whatever it was granted since (S2w). Traces.
    ExemptWriterWithoutStamp,
    /// The last grant to a writer of whom not all is known is looked for among what is known (S2w).
    /// Read.
    ExemptCoveringWriter,
    /// A write that turned out to change more is proposed without asking those who hold the rest
    /// (S2). Read.
    CoverWithoutGathering,
    /// A write over two volumes goes on when one of a holder's two leases has ended (S2). Read.
    AnyEndFreesWrite,
    /// A lease is renewed beyond its replicated horizon (T6). Read.
    RenewBeyondHorizon,
    /// A renewal that waited for a tick is promised a whole term, and the lease ends when the
    /// shorter promise of its arrival does (T6). Read.
    LongerPromiseNotCounted,
    /// A leader promises by the clamped clock instead of all the time that has passed (T6). Traces.
    PromiseByClampedClock,
    /// A session that owes a consent is promised a full term all the same (S5). Elsewhere:
    /// nfs-ganesha 1382.
    PromisePastUnansweredRecall,
    /// A renewal is answered whatever incarnation it names (T6). Traces; by hand.
    RenewalWithoutIncarnation,
    /// A lease is renewed though its end has been proposed (T5). Elsewhere: etcd 12528.
    EndingLeaseRenewed,
    /// A promise of nothing moves the end of the lease: it never ends (S5). Here.
    EmptyPromiseMovesEnd,
    /// A shorter promise lowers the end that a longer one had set (T6). Read.
    EndLowered,
    /// Every lease gets a full term on top at each change of leader (T6). Elsewhere: etcd 9888.
    EndsBeginAnew,
    /// A lease is ended without waiting for the margin (T3). Traces.
    LeaseWithoutMargin,
    /// Leases end by the clock that counts the leader's own pauses (T4). Elsewhere: etcd 12528.
    PauseEndsLeases,
    /// Writes go on when the leader has counted a lease as over, before the log says so (T5).
    /// Traces.
    EndedBeforeApplied,
    /// An expiry that was put off ends the lease that has replaced the one it meant (T5). Here.
    ExpiryEndsReplacement,
    /// The answer to a write that is repeated brings a lease (S9). Traces.
    LeaseWithReplayedAnswer,
    /// A write that is sent again is judged by its condition anew, before its first outcome is
    /// looked for (S9). Read.
    ConditionBeforeOutcome,
    /// What was answered is forgotten when a new leadership begins (S9). Traces.
    OutcomesForgottenByNextLeader,
    /// A replica that is brought up by a snapshot does not know what was answered (S9). Elsewhere:
    /// zookeeper PR 2172.
    OutcomesNotInSnapshots,
    /// A write uses consents that were gathered in an earlier epoch (S2). Traces.
    ConsentsOfEarlierEpoch,
    /// A new leadership goes by the number of the last one and counts its stamps from the beginning
    /// (S4). Traces.
    EpochOfLastLeader,
    /// A proposal of a leader that was deposed moves cluster time (T4). Read.
    ClockOfDeposedLeader,
    /// A late tick gives a lease that nobody renews any more a full term (T6). Traces; by hand.
    TickWithoutLesserBound,
    /// A tick lowers a horizon within which a promise was made (T6). Elsewhere: etcd 9888.
    HorizonMovedBack,
    /// A lease is ended though its horizon has moved since that was proposed (T5). Read.
    ExpireThoughHorizonMoved,
    /// A smaller margin counts at once for what was promised under the greater one (T3). Here.
    MarginMadeSmaller,
    /// A write changes objects that its consents do not cover (S2). Traces.
    WriteBeyondConsents,
    /// The copies of the fact that a node does not exist are not recalled when it is made (S8).
    /// Read.
    CreateSparesAbsence,
    /// The list of children is not recalled when a child comes (S8). Read.
    CreateSparesChildren,
    /// The list of children is not recalled when a child goes (S8). Read.
    DeleteSparesChildren,
    /// A recursive removal recalls only the topmost node (S8). Read.
    DeleteSparesDescendants,
    /// Making a volume recalls nothing of what it covers (S8). Read.
    VolumeMadeWithoutRecall,
    /// Removing a volume recalls nothing of what it covered (S8). Read.
    VolumeRemovedWithoutRecall,
    /// A volume that is made anew gets the generation of the one that was removed (S8). Elsewhere:
    /// curator 911.
    GenerationUsedAgain,
    /// The history keeps only the first of the objects that a change changed (section 5). Read.
    ChangeHalfRemembered,
    /// A list of children is validated by the revision of the node's data (section 5). Read.
    ValidatedByOtherRevision,
    /// Nobody is asked for consent to the removal of nodes whose lease has ended (S8). Read.
    RemovalSparesNodes,
    /// Nobody is asked for consent to the change of the lists that nodes go from whose lease has
    /// ended (S8). Read.
    RemovalSparesLists,
    /// A revocation takes along a node that was attached after consents were gathered (S2). Read.
    AttachedUnasked,
    /// A write that waited is done to the lease or volume that has taken the name of the one it
    /// meant (S7b). Here.
    ReplacementTakenForIntended,
    /// The repeated answer to a grant renews and names the lease that has the name by now (S7b).
    /// Here.
    GrantAnsweredWithReplacement,
    /// A revocation that was found uncovered holds up no puts that attach nodes: it may wait for
    /// ever (S7b). Here.
    AttachmentsPassRevocation,
    /// Copies of nodes are leased while the removal of them gathers consents (S3). Read.
    GrantDuringRemoval,
    /// A put is answered with a lease though the same entry has removed its node (S3). Here.
    GrantOfRemovedNode,
    /// A new lease takes the place of one that carries nodes: those of a live session go
    /// (zookeeper's opposite complaint). Here.
    NodesLostWithNewLease,
    /// A waiter whose session has lost its lease stays in the queue, and is granted the node.
    /// Elsewhere: Jepsen on etcd 3.4.3.
    DeadWaiterStays,
    /// A shared hold is granted past one that waits to be alone: writers starve. Read.
    SharedLockOvertakes,
    /// A hold that is made exclusive keeps the token that it had shared (S10). Read.
    TokenKeptByUpgrade,
    /// A hold that is made shared counts as exclusive until the answer is here: others were granted
    /// it meanwhile. Here.
    DowngradedByAnswer,
    /// A hold is given back by whoever names it. Read.
    LockReleasedByAnyone,
    /// A hold counts as held from what a server says of it, whether or not its lease is certain on
    /// this clock (S1). Elsewhere: redlock.
    LockWithoutClock,
    /// A transaction recalls what its first operation changes, and nothing else (S2). Read.
    TransactionRecallsFirst,
    /// A transaction does the branch that it was proposed for, though its comparisons choose the
    /// other by then (S2). Read.
    BranchOfProposal,
    /// A transaction of which an operation is refused has done those before it. Read.
    TransactionHalfDone,
    /// Of a transaction's comparisons only the first is looked at. Read.
    FirstCompareOnly,
    /// A watch goes on behind the change that follows the last one told: an event is lost.
    /// Elsewhere: etcd 18089.
    WatchResumesPastNext,
    /// A watch that is sent again goes on from where it began: changes are told twice. Read.
    WatchResumesFromStart,
    /// A watch begins anew with a new session, at what is then now. Read.
    WatchEndsWithSession,
    /// Only the first event of a change is looked at for who has to be told. Read.
    WatcherWokenByFirstEvent,
    /// The progress mark of an answer that had no room for everything says that everything was
    /// told. Elsewhere: etcd 17529.
    ProgressBeyondReported,
    /// Of a change that does not fit into an answer any more the first event is told, as if it were
    /// all. Elsewhere: etcd 17529.
    ChangeCutByBound,
    /// A watch that begins before what the history remembers begins with what it remembers.
    /// Elsewhere: etcd 20221.
    CompactionUnnoticed,
    /// Of what is removed with a node only that node is told. Read.
    DescendantsNotReported,
    /// A page of a list is answered without a proof of leadership (S6). Read.
    ListWithoutProof,
    /// A write is applied though somebody keeps the data that it changes to itself.
    WritePastWriteLease,
    /// A transaction is applied though somebody keeps the data that it compares to itself.
    ComparePastWriteLease,
    /// Nobody is asked for consent when a holder begins to keep a node's data to itself (S2).
    WriteLeaseWithoutRecall,
    /// A read is answered though somebody keeps the data to itself.
    ReadPastWriteLease,
    /// A returning client's copy of what somebody keeps to itself by now is said to be good.
    ReviveUnderWriteLease,
    /// What a holder has not flushed is forgotten when a recall comes.
    RecallDropsDirty,
    /// What a holder has not flushed is forgotten when its hold is over, and nobody is told.
    LostInSilence,
    /// A holder goes on reading and writing in its memory when its lease may have ended.
    WriteLeaseWithoutClock,
    /// What is handed over goes to the first in the queue, not to whom it was handed over. Read.
    SuccessorPassedOver,
    /// One to whom a hold is handed over gets the token of the one before (S10). Read.
    SuccessorKeepsToken,
    /// A hold that is handed over counts as held until the answer is here: another was granted it
    /// meanwhile. Read.
    HandedOverByAnswer,
}

impl std::str::FromStr for Bug {
    type Err = String;

    /// The mistake of a name, as it is written here.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let names = || Self::ALL.map(|bug| format!("{bug:?}")).join(", ");
        let found = Self::ALL.into_iter().find(|bug| format!("{bug:?}") == name);
        found.ok_or_else(|| format!("there is no mistake {name}: expected one of {}", names()))
    }
}

/// Which mistakes are put back. None, unless a test build says otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Planted {
    #[cfg(any(test, feature = "planted-bugs"))]
    bug: Option<Bug>,
}

impl Default for Planted {
    /// None. Unit tests of this crate take the one that `LEASEHOLD_PLANT` names.
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
    /// One mistake put back.
    #[cfg(any(test, feature = "planted-bugs"))]
    pub fn one(bug: Bug) -> Self {
        Self { bug: Some(bug) }
    }

    /// Whether this mistake is put back.
    #[cfg(any(test, feature = "planted-bugs"))]
    pub fn has(self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// Whether this mistake is put back: never, in this build.
    #[cfg(not(any(test, feature = "planted-bugs")))]
    #[inline(always)]
    pub fn has(self, _bug: Bug) -> bool {
        false
    }
}
