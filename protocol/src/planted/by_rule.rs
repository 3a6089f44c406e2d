//! The mistakes that a unit test of the rule finds, with the name of the test.
//!
//! The simulator needs too long to find these, or cannot find them. `planted::tests` runs each test
//! of [`BY_RULE`] twice: it must pass without the mistake, and fail with it.

use super::Bug;

/// Each mistake with the test that finds it.
pub const BY_RULE: &[(Bug, &str)] = &[
    (Bug::ConsentsOfEarlierEpoch, "state::tests::proposal_of_other_epoch_changes_nothing_not_even_clock"),
    (Bug::GrantOfOldEpoch, "holder::tests::recalls::a_grant_of_an_older_epoch_is_not_cached"),
    (Bug::GrantOfOldIncarnation, "holder::tests::mistakes::a_grant_counts_only_under_the_lease_that_is_held"),
    (Bug::RecallGapIgnored, "holder::tests::recalls::recall_gap_drops_all_copies_and_consents_to_arrivals"),
    (Bug::RevisionFromAnyAnswer, "holder::tests::leases::last_valid_revision_comes_only_from_promises_and_grants"),
    (Bug::PromiseOfOtherEpoch, "holder::tests::recalls::a_grant_of_an_older_epoch_is_not_cached"),
    (Bug::BlockedReadTakenForSilence, "holder::tests::reads::answering_server_is_not_silent_while_read_is_blocked"),
    (Bug::NoProbe, "holder::tests::sessions::a_write_does_not_wait_for_ever_on_a_connection_that_is_dead"),
    (Bug::ReadWithoutProof, "lessor::tests::reads::a_read_waits_for_a_round_that_begins_after_it"),
    (Bug::JoinRoundUnderWay, "lessor::tests::reads::a_read_waits_for_a_round_that_begins_after_it"),
    (
        Bug::ProofReusedAfterStepDown,
        "lessor::tests::mistakes::a_proof_that_an_earlier_leadership_asked_for_proves_nothing",
    ),
    (Bug::ReadBeforeFirstEntry, "lessor::tests::mistakes::a_read_is_not_answered_before_the_first_entry_of_the_epoch"),
    (Bug::OmitPendingWrites, "lessor::tests::leases::returning_session_learns_past_and_pending_changes"),
    (Bug::ReportOfOldCovering, "lessor::tests::failovers::failover_asks_every_leased_session_until_its_holder_report"),
    (Bug::ReportOfOldIncarnation, "lessor::tests::mistakes::a_list_of_another_lease_or_covering_ends_nothing"),
    (Bug::ReportPartsMixed, "lessor::tests::failovers::a_list_counts_for_the_registration_that_asked_for_it"),
    (Bug::ObjectLeaseWithoutMargin, "lessor::tests::mistakes::an_object_lease_is_waited_for_with_drift_and_margin"),
    (Bug::LateRequestHonoured, "lessor::tests::failovers::what_was_sent_before_the_latest_registration_has_no_effect"),
    (Bug::AnyEndFreesWrite, "lessor::tests::mistakes::write_over_two_volumes_waits_for_both_leases_of_holder"),
    (Bug::RenewalWithoutIncarnation, "lessor::tests::mistakes::a_renewal_of_another_incarnation_is_answered_expired"),
    (Bug::LongerPromiseNotCounted, "lessor::tests::renewals::lease_promised_a_whole_term_by_the_tick_lasts_that_long"),
    (Bug::EndLowered, "lessor::lease_ends::tests::a_shorter_promise_lowers_no_end"),
    (Bug::PauseEndsLeases, "lessor::tests::mistakes::a_pause_of_the_leader_ends_no_lease"),
    (Bug::ClockOfDeposedLeader, "state::tests::proposal_of_other_epoch_changes_nothing_not_even_clock"),
    (Bug::TickWithoutLesserBound, "state::leases::tests::a_late_tick_counts_from_the_renewal"),
    (Bug::ExpireThoughHorizonMoved, "state::leases::tests::a_lease_expires_if_it_is_the_one_that_is_meant"),
    (Bug::MarginMadeSmaller, "state::leases::tests::a_lease_keeps_the_greatest_margin_that_its_volume_had"),
    (Bug::GenerationUsedAgain, "state::volumes::tests::a_generation_is_never_used_again_for_the_same_top"),
    (
        Bug::ValidatedByOtherRevision,
        "state::nodes::tests::a_child_that_comes_or_goes_changes_the_list_and_not_the_data",
    ),
    (Bug::AttachedUnasked, "state::attachments::tests::revocation_is_not_covered_if_nodes_were_attached_since"),
    (
        Bug::ReplacementTakenForIntended,
        "state::intended::tests::write_whose_lease_or_volume_was_replaced_changes_nothing",
    ),
    (Bug::GrantAnsweredWithReplacement, "lessor::tests::replaced::repeated_grant_is_about_the_lease_that_it_granted"),
    (Bug::AttachmentsPassRevocation, "lessor::tests::replaced::revocation_is_uncovered_twice_by_a_stream_at_most"),
    (Bug::NodesLostWithNewLease, "state::attachments::tests::lease_with_attached_nodes_is_extended_not_replaced"),
    (Bug::LockReleasedByAnyone, "state::locks::tests::only_its_session_gives_a_hold_back"),
    (Bug::ListWithoutProof, "lessor::tests::watches::a_list_comes_in_pages_each_at_one_revision"),
    (
        Bug::ReviveUnderWriteLease,
        "lessor::tests::write_leases::a_returning_copy_is_not_good_again_while_its_data_is_kept",
    ),
    (
        Bug::WriteLeaseWithoutClock,
        "holder::tests::write_leases::what_the_clock_ends_is_lost_with_its_value_and_told_once",
    ),
    (Bug::SuccessorPassedOver, "state::locks::tests::hand_over_skips_queue_in_one_entry_with_larger_token"),
    (Bug::GrantOfRemovedNode, "lessor::tests::removals::a_put_whose_node_is_gone_with_the_same_entry_brings_no_lease"),
];
