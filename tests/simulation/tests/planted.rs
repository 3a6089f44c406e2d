//! Tests the harness: each known mistake is put back, and must be found.
//!
//! Here the simulator finds it, in any seed. [`BY_RULE`] lists the mistakes that take the simulator
//! too long. A test of the rule finds these, and `planted::tests` in `leasehold-protocol` runs that
//! test with the mistake. `tests/mistakes` has more mistakes, as patches.

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
    counting_a_term_from_its_receipt_is_found: TermFromReceipt,
    ending_a_lease_without_its_margin_is_found: LeaseWithoutMargin,
    renewing_beyond_the_horizon_is_found: RenewBeyondHorizon,
    promising_by_the_ending_clock_is_found: PromiseByEndingClock,
    serving_after_expiry_is_found: ServeAfterExpiry,
    consenting_without_dropping_is_found: ConsentWithoutDrop,
    writing_beyond_the_consents_is_found: WriteBeyondConsents,
    exempting_the_writer_without_its_stamp_is_found: ExemptWriterWithoutStamp,
    granting_during_a_write_is_found: GrantDuringWrite,
    caching_an_overtaken_grant_is_found: CacheOvertakenGrant,
    promising_past_an_unanswered_recall_is_found: PromisePastUnansweredRecall,
    giving_any_answer_to_reads_that_joined_is_found: JoinedReadTakesAnyAnswer,
    forgetting_the_holders_of_an_old_leader_is_found: ForgetOldHolders,
    reviving_without_covering_is_found: ReviveWithoutCovering,
    sparing_what_lies_below_a_removed_node_is_found: DeleteSparesDescendants,
    leaving_outcomes_out_of_snapshots_is_found: OutcomesNotInSnapshots,
    keeping_a_token_is_found: TokenKeptByUpgrade,
    losing_what_is_dirty_in_silence_is_found: LostInSilence,
    writing_past_a_write_lease_is_found: WritePastWriteLease,
    watching_what_is_forgotten_is_found: CompactionUnnoticed,
}

#[test]
fn every_planted_bug_is_searched_for() {
    let searched_for = BY_SEEDS.iter().copied().chain(BY_RULE.iter().map(|(bug, _)| *bug));
    let count = searched_for.clone().count();
    assert_eq!(searched_for.collect::<BTreeSet<_>>(), BTreeSet::from(Bug::ALL));
    assert_eq!(count, Bug::ALL.len(), "each is looked for once");
}
