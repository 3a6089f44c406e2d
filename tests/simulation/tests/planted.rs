//! Tests the harness: each known mistake is put back, and must be found.
//!
//! Here the simulator finds it, in any seed. [`BY_RULE`] lists the mistakes that take the simulator
//! too long. A test of the rule finds these, and `planted::tests` in `leasehold-protocol` runs that
//! test with the mistake.

use std::collections::BTreeSet;

use leasehold_protocol::planted::{BY_RULE, Bug};
use leasehold_simulation::search;

/// Seeds to search for each mistake: many times as many as any has needed.
const SEEDS: u64 = 3_000;

/// Puts one mistake back, and searches for it.
fn is_found(bug: Bug) {
    match search(0..SEEDS, Some(bug)).broken {
        Some((seed, report)) => println!("{bug:?}: seed {seed}, {}", report.violation.unwrap_or_default()),
        None => panic!("{bug:?} was not found in {SEEDS} seeds"),
    }
}

macro_rules! planted {
    ($($name:ident: $bug:ident,)*) => {
        $(
            #[test]
            fn $name() {
                is_found(Bug::$bug);
            }
        )*

        /// The mistakes that the simulator finds.
        const BY_SEEDS: &[Bug] = &[$(Bug::$bug),*];
    };
}

planted! {
    serving_after_expiry_is_found: ServeAfterExpiry,
    counting_a_term_from_its_receipt_is_found: TermFromReceipt,
    consenting_before_dropping_is_found: ConsentBeforeDrop,
    caching_an_overtaken_grant_is_found: CacheOvertakenGrant,
    sparing_lapsed_copies_a_recall_is_found: RecallSparesLapsedCopies,
    reviving_copies_whose_object_lease_has_ended_is_found: ReviveEndedObjectLease,
    serving_while_a_new_lease_is_asked_for_is_found: ServeWhileAcquiring,
    leaving_revived_copies_out_of_a_list_is_found: ReportWithoutRevived,
    giving_any_answer_to_reads_that_joined_is_found: JoinedReadTakesAnyAnswer,
    keeping_the_writers_copy_when_sending_again_is_found: ResendKeepsCopy,
    numbering_a_write_when_it_is_sent_is_found: NumberedWhenSent,
    telling_what_is_unknown_as_not_sent_is_found: UnknownReportedAsNotSent,
    granting_during_a_write_is_found: GrantDuringWrite,
    forgetting_the_holders_of_an_old_leader_is_found: ForgetOldHolders,
    reviving_without_covering_is_found: ReviveWithoutCovering,
    replacing_grants_by_a_list_is_found: ReportReplaces,
    forgetting_what_is_too_much_is_found: TooManyForgotten,
    taking_a_consent_for_another_is_found: ConsentWithoutStamp,
    taking_an_older_return_for_a_newer_is_found: OlderReturnTaken,
    exempting_the_writer_without_its_stamp_is_found: ExemptWriterWithoutStamp,
    exempting_a_covering_writer_is_found: ExemptCoveringWriter,
    covering_more_without_gathering_is_found: CoverWithoutGathering,
    renewing_beyond_the_horizon_is_found: RenewBeyondHorizon,
    promising_by_the_clamped_clock_is_found: PromiseByClampedClock,
    promising_past_an_unanswered_recall_is_found: PromisePastUnansweredRecall,
    renewing_a_lease_that_ends_is_found: EndingLeaseRenewed,
    moving_an_end_by_promising_nothing_is_found: EmptyPromiseMovesEnd,
    beginning_all_leases_anew_is_found: EndsBeginAnew,
    ending_a_lease_without_its_margin_is_found: LeaseWithoutMargin,
    counting_a_lease_as_ended_before_that_is_applied_is_found: EndedBeforeApplied,
    ending_the_lease_that_replaced_the_one_meant_is_found: ExpiryEndsReplacement,
    leasing_with_a_replayed_answer_is_found: LeaseWithReplayedAnswer,
    judging_a_repeated_write_anew_is_found: ConditionBeforeOutcome,
    forgetting_outcomes_with_the_leader_is_found: OutcomesForgottenByNextLeader,
    leaving_outcomes_out_of_snapshots_is_found: OutcomesNotInSnapshots,
    using_an_epoch_again_is_found: EpochOfLastLeader,
    moving_a_horizon_back_is_found: HorizonMovedBack,
    writing_beyond_the_consents_is_found: WriteBeyondConsents,
    sparing_an_absence_when_a_node_is_made_is_found: CreateSparesAbsence,
    sparing_the_list_that_a_child_comes_into_is_found: CreateSparesChildren,
    sparing_the_list_that_a_child_goes_from_is_found: DeleteSparesChildren,
    sparing_what_lies_below_a_removed_node_is_found: DeleteSparesDescendants,
    making_a_volume_without_recall_is_found: VolumeMadeWithoutRecall,
    removing_a_volume_without_recall_is_found: VolumeRemovedWithoutRecall,
    remembering_half_of_a_change_is_found: ChangeHalfRemembered,
    removing_nodes_unasked_is_found: RemovalSparesNodes,
    changing_lists_unasked_is_found: RemovalSparesLists,
    granting_during_a_removal_is_found: GrantDuringRemoval,
    keeping_a_dead_waiter_is_found: DeadWaiterStays,
    granting_past_one_that_waits_is_found: SharedLockOvertakes,
    keeping_a_token_is_found: TokenKeptByUpgrade,
    lowering_a_hold_by_the_answer_is_found: DowngradedByAnswer,
    counting_a_hold_without_a_clock_is_found: LockWithoutClock,
    recalling_what_the_first_operation_changes_is_found: TransactionRecallsFirst,
    doing_the_branch_of_the_proposal_is_found: BranchOfProposal,
    doing_half_of_a_refused_transaction_is_found: TransactionHalfDone,
    looking_at_one_comparison_only_is_found: FirstCompareOnly,
    resuming_a_watch_one_change_too_far_is_found: WatchResumesPastNext,
    resuming_a_watch_where_it_began_is_found: WatchResumesFromStart,
    beginning_a_watch_anew_with_a_session_is_found: WatchEndsWithSession,
    waking_watchers_by_one_event_only_is_found: WatcherWokenByFirstEvent,
    marking_progress_beyond_what_was_told_is_found: ProgressBeyondReported,
    cutting_a_change_is_found: ChangeCutByBound,
    watching_what_is_forgotten_is_found: CompactionUnnoticed,
    telling_nothing_of_what_lay_below_is_found: DescendantsNotReported,
    writing_past_a_write_lease_is_found: WritePastWriteLease,
    comparing_past_a_write_lease_is_found: ComparePastWriteLease,
    a_write_lease_without_a_recall_is_found: WriteLeaseWithoutRecall,
    reading_past_a_write_lease_is_found: ReadPastWriteLease,
    forgetting_what_is_dirty_when_it_is_recalled_is_found: RecallDropsDirty,
    losing_what_is_dirty_in_silence_is_found: LostInSilence,
    handing_over_the_token_too_is_found: SuccessorKeepsToken,
    counting_on_what_is_handed_over_is_found: HandedOverByAnswer,
}

#[test]
fn every_planted_bug_is_looked_for() {
    let looked_for = BY_SEEDS.iter().copied().chain(BY_RULE.iter().map(|(bug, _)| *bug));
    let count = looked_for.clone().count();
    assert_eq!(looked_for.collect::<BTreeSet<_>>(), BTreeSet::from(Bug::ALL));
    assert_eq!(count, Bug::ALL.len(), "each is looked for once");
}
