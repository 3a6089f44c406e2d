//! The mistakes that a unit test of the rule finds, with the name of the test.
//!
//! The simulator needs too long to find these, or cannot find them. `planted::tests` runs each test
//! of [`BY_RULE`] twice: it must pass without the mistake, and fail with it.

use super::Bug;

/// Each mistake with the test that finds it.
pub const BY_RULE: &[(Bug, &str)] = &[
    (Bug::ConsentsOfEarlierEpoch, "state::tests::proposal_of_other_epoch_changes_nothing_not_even_clock"),
    (Bug::EndingLeaseRenewed, "lessor::tests::outages::key_lease_whose_end_is_not_applied_is_not_gone"),
    (Bug::NoProbe, "holder::tests::sessions::a_write_does_not_wait_for_ever_on_a_connection_that_is_dead"),
    (Bug::ReadWithoutProof, "lessor::tests::reads::a_read_waits_for_a_round_that_begins_after_it"),
    (Bug::ObjectLeaseWithoutMargin, "lessor::tests::mistakes::an_object_lease_is_waited_for_with_drift_and_margin"),
    (Bug::LateRequestHonoured, "lessor::tests::failovers::request_before_the_latest_registration_has_no_effect"),
    (Bug::LongerPromiseNotCounted, "lessor::tests::renewals::lease_promised_a_whole_term_by_the_tick_lasts_that_long"),
    (Bug::PauseEndsLeases, "lessor::tests::mistakes::a_pause_of_the_leader_ends_no_lease"),
    (
        Bug::ReplacementTakenForIntended,
        "state::intended::tests::write_whose_lease_or_volume_was_replaced_changes_nothing",
    ),
    (Bug::GrantAnsweredWithReplacement, "lessor::tests::replaced::repeated_grant_is_about_the_lease_that_it_granted"),
];
