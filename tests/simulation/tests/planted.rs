//! The harness is tested too: each known mistake is put back, and must be found. Here by the simulator, which takes any seed that
//! breaks something; what it takes too long to find, by a test of the rule that fails with it:
//! `LEASEHOLD_PLANT=EndLowered cargo test -p leasehold-protocol --features planted-bugs --lib` shows which do.

use std::{collections::BTreeSet, fs, path::Path};

use leasehold_protocol::planted::Bug;
use leasehold_simulation::search;

/// Seeds that are searched for each: many times as many as each has ever taken.
const SEEDS: u64 = 3_000;

/// Puts one mistake back and looks for it.
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
    leaving_revived_copies_out_of_a_list_is_found: ListWithoutRevived,
    giving_any_answer_to_reads_that_joined_is_found: JoinedReadTakesAnyAnswer,
    keeping_the_writers_copy_when_sending_again_is_found: ResendKeepsCopy,
    numbering_a_write_when_it_is_sent_is_found: NumberedWhenSent,
    telling_what_is_unknown_as_not_sent_is_found: UnknownToldAsNotSent,
    granting_during_a_write_is_found: GrantDuringWrite,
    forgetting_the_holders_of_an_old_leader_is_found: ForgetOldHolders,
    reviving_without_covering_is_found: ReviveWithoutCovering,
    replacing_grants_by_a_list_is_found: ListReplaces,
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
    granting_past_one_that_waits_is_found: SharedHoldOvertakes,
    keeping_a_token_is_found: TokenKeptByUpgrade,
    lowering_a_hold_by_the_answer_is_found: LoweredByAnswer,
    counting_a_hold_without_a_clock_is_found: HoldWithoutClock,
    recalling_what_the_first_operation_changes_is_found: TransactionRecallsFirst,
    doing_the_branch_of_the_proposal_is_found: BranchOfProposal,
    doing_half_of_a_refused_transaction_is_found: TransactionHalfDone,
    looking_at_one_comparison_only_is_found: FirstCompareOnly,
    resuming_a_watch_one_change_too_far_is_found: WatchResumesPastNext,
    resuming_a_watch_where_it_began_is_found: WatchResumesFromStart,
    beginning_a_watch_anew_with_a_session_is_found: WatchEndsWithSession,
    waking_watchers_by_one_event_only_is_found: WatcherWokenByFirstEvent,
    marking_progress_beyond_what_was_told_is_found: MarkBeyondTold,
    cutting_a_change_is_found: ChangeCutByBound,
    watching_what_is_forgotten_is_found: CompactionUnnoticed,
    telling_nothing_of_what_lay_below_is_found: DescendantsGoUntold,
    writing_past_a_write_lease_is_found: WritePastWriteLease,
    comparing_past_a_write_lease_is_found: ComparePastWriteLease,
    a_write_lease_without_a_recall_is_found: WriteLeaseWithoutRecall,
    reading_past_a_write_lease_is_found: ReadPastWriteLease,
    forgetting_what_is_dirty_when_it_is_recalled_is_found: RecallDropsDirty,
    losing_what_is_dirty_in_silence_is_found: LostInSilence,
    handing_over_the_token_too_is_found: SuccessorKeepsToken,
    counting_on_what_is_handed_over_is_found: HandedOverByAnswer,
}

/// The mistakes that a test of the rule finds, and which: it fails when the mistake is put back.
const BY_RULE: &[(Bug, &str)] = &[
    (Bug::ConsentsOfEarlierEpoch, "state/mod.rs::a_proposal_of_another_epoch_changes_nothing_not_even_the_clock"),
    (Bug::GrantOfOldEpoch, "holder/tests/recalls.rs::a_grant_of_an_older_epoch_is_not_cached"),
    (Bug::GrantOfOldIncarnation, "holder/tests/mistakes.rs::a_grant_counts_only_under_the_lease_that_is_held"),
    (
        Bug::RecallGapIgnored,
        "holder/tests/recalls.rs::a_gap_in_the_numbers_drops_everything_and_what_came_is_consented_to",
    ),
    (
        Bug::RevisionFromAnyAnswer,
        "holder/tests/leases.rs::what_it_was_last_valid_at_comes_from_promises_and_grants_only",
    ),
    (Bug::PromiseOfOtherEpoch, "holder/tests/recalls.rs::a_grant_of_an_older_epoch_is_not_cached"),
    (
        Bug::WaitingReadTakenForQuick,
        "holder/tests/reads.rs::a_server_that_answers_is_not_taken_for_silent_while_a_read_waits",
    ),
    (Bug::NoProbe, "holder/tests/sessions.rs::a_write_does_not_wait_for_ever_on_a_connection_that_is_dead"),
    (Bug::ReadWithoutProof, "lessor/tests/reads.rs::a_read_waits_for_a_round_that_begins_after_it"),
    (Bug::JoinRoundUnderWay, "lessor/tests/reads.rs::a_read_waits_for_a_round_that_begins_after_it"),
    (
        Bug::ProofReusedAfterStepDown,
        "lessor/tests/mistakes.rs::a_proof_that_an_earlier_leadership_asked_for_proves_nothing",
    ),
    (Bug::ReadBeforeFirstEntry, "lessor/tests/mistakes.rs::a_read_is_not_answered_before_the_first_entry_of_the_epoch"),
    (Bug::OmitWritesUnderWay, "lessor/tests/leases.rs::a_returning_session_is_told_what_changed_and_what_is_about_to"),
    (
        Bug::ListOfOldCovering,
        "lessor/tests/failovers.rs::after_a_failover_every_session_with_a_volume_lease_is_asked_until_it_has_told_what_it_holds",
    ),
    (Bug::ListOfOldIncarnation, "lessor/tests/mistakes.rs::a_list_of_another_lease_or_covering_ends_nothing"),
    (Bug::ListPiecesMixed, "lessor/tests/failovers.rs::a_list_counts_for_the_registration_that_asked_for_it"),
    (Bug::ObjectLeaseWithoutMargin, "lessor/tests/mistakes.rs::an_object_lease_is_waited_for_with_drift_and_margin"),
    (Bug::LateRequestHonoured, "lessor/tests/failovers.rs::what_was_sent_before_the_latest_registration_has_no_effect"),
    (
        Bug::AnyEndFreesWrite,
        "lessor/tests/mistakes.rs::a_write_over_two_volumes_waits_for_both_leases_of_a_silent_holder",
    ),
    (Bug::RenewalWithoutIncarnation, "lessor/tests/mistakes.rs::a_renewal_of_another_incarnation_is_answered_expired"),
    (Bug::EndLowered, "lessor/ends/tests.rs::a_shorter_promise_lowers_no_end"),
    (Bug::PauseEndsLeases, "lessor/tests/mistakes.rs::a_pause_of_the_leader_ends_no_lease"),
    (Bug::ClockOfDeposedLeader, "state/mod.rs::a_proposal_of_another_epoch_changes_nothing_not_even_the_clock"),
    (Bug::TickWithoutLesserBound, "state/lease.rs::a_late_tick_counts_from_the_renewal"),
    (Bug::ExpireThoughHorizonMoved, "state/lease.rs::a_lease_expires_if_it_is_the_one_that_is_meant"),
    (Bug::MarginMadeSmaller, "state/lease.rs::a_lease_keeps_the_greatest_margin_that_its_volume_had"),
    (Bug::GenerationUsedAgain, "state/volume.rs::a_generation_is_never_used_again_for_the_same_top"),
    (Bug::ValidatedByOtherRevision, "state/node.rs::a_child_that_comes_or_goes_changes_the_list_and_not_the_data"),
    (
        Bug::AttachedUnasked,
        "state/attached/tests.rs::a_revocation_takes_nothing_along_that_was_attached_after_consents_were_gathered",
    ),
    (Bug::ReplacementTakenForMeant, "state/meant.rs::write_whose_lease_or_volume_was_replaced_changes_nothing"),
    (
        Bug::NodesLostWithNewLease,
        "state/attached/tests.rs::a_lease_that_carries_nodes_is_not_replaced_but_gets_more_time",
    ),
    (Bug::HoldTakenByAnyone, "state/hold/tests.rs::only_its_session_gives_a_hold_back"),
    (Bug::ListWithoutProof, "lessor/tests/watches.rs::a_list_comes_in_pages_each_at_one_revision"),
    (Bug::ReviveUnderWriteLease, "lessor/tests/caching.rs::a_returning_copy_is_not_good_again_while_its_data_is_kept"),
    (Bug::WriteLeaseWithoutClock, "holder/tests/caching.rs::what_the_clock_ends_is_lost_with_its_value_and_told_once"),
    (
        Bug::SuccessorPassedOver,
        "state/hold/tests.rs::a_hold_is_handed_over_past_those_in_front_by_one_entry_with_a_larger_token",
    ),
    (Bug::GrantOfWhatIsGone, "lessor/tests/removals.rs::a_put_whose_node_is_gone_with_the_same_entry_brings_no_lease"),
];

#[test]
fn every_planted_bug_is_looked_for() {
    let looked_for = BY_SEEDS.iter().copied().chain(BY_RULE.iter().map(|(bug, _)| *bug));
    let count = looked_for.clone().count();
    assert_eq!(looked_for.collect::<BTreeSet<_>>(), BTreeSet::from(Bug::ALL));
    assert_eq!(count, Bug::ALL.len(), "each is looked for once");
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../protocol/src");
    for (bug, test) in BY_RULE {
        let (file, name) = test.split_once("::").expect("a file and a test in it");
        let text = fs::read_to_string(rules.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(
            text.contains(&format!("#[test]\n    fn {name}(")) || text.contains(&format!("#[test]\nfn {name}(")),
            "{bug:?}: {test}"
        );
    }
}
