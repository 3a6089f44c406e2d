//! The harness is tested too: each known mistake is put back, and must be found.

use leasehold_protocol::planted::Bug;
use leasehold_simulation::search;

/// Seeds that are searched for each.
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

        #[test]
        fn every_planted_bug_is_looked_for() {
            assert_eq!([$(Bug::$bug),*], Bug::ALL);
        }
    };
}

planted! {
    serving_after_expiry_is_found: ServeAfterExpiry,
    counting_a_term_from_its_receipt_is_found: TermFromReceipt,
    consenting_before_dropping_is_found: ConsentBeforeDrop,
    caching_an_overtaken_grant_is_found: CacheOvertakenGrant,
    forgetting_the_holders_of_an_old_leader_is_found: ForgetOldHolders,
    renewing_beyond_the_horizon_is_found: RenewBeyondHorizon,
    promising_by_the_clamped_clock_is_found: PromiseByClampedClock,
    exempting_the_writer_without_its_stamp_is_found: ExemptWriterWithoutStamp,
    reviving_without_covering_is_found: ReviveWithoutCovering,
    using_consents_of_an_earlier_epoch_is_found: ConsentsOfEarlierEpoch,
}
