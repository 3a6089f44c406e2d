//! Every small world is explored completely without a violation. Run worlds that take minutes with
//! the program:
//!
//! `cargo run --release -p leasehold-exhaustive -- NAME` explores one world, and prints a shortest
//! path to a violation.

use leasehold_exhaustive::{Search, all, explore, named};
use leasehold_model::threads::processors;

/// No world of a test has more situations.
const MOST: usize = 2_000_000;

fn explored(name: &str) {
    let world = named(name).unwrap_or_else(|| panic!("there is no world {name}"));
    let report = explore(&world, Search { bug: None, threads: processors(), most: MOST });
    println!("{name}: {report}");
    if let Some(violation) = report.violation {
        panic!("{}\n\nrepeat: cargo run --release -p leasehold-exhaustive -- {name}", violation.path);
    }
    assert!(report.is_complete, "{name} was not explored to its end: {} situations", report.situations);
    let least = world.least;
    assert!(report.situations >= least, "{name} has {} situations: expected at least {least}", report.situations);
    assert!(report.ends > 1, "{name} ends in {} ways: what is done in it never races", report.ends);
}

macro_rules! worlds {
    ($($test:ident: $name:literal,)*) => {
        $(
            #[test]
            fn $test() {
                explored($name);
            }
        )*

        #[test]
        fn every_world_is_explored() {
            let mut worlds: Vec<_> = all().iter().filter(|world| !world.is_large).map(|world| world.name).collect();
            let mut tested = vec![$($name),*];
            worlds.sort_unstable();
            tested.sort_unstable();
            assert_eq!(worlds, tested);
        }
    };
}

worlds! {
    reads_and_a_write_of_one_object: "read-write",
    misses_and_writes_that_overtake_each_other: "miss-write",
    two_writers_and_a_holder: "two-writers",
    a_writer_that_reads_what_it_writes: "writer-reads",
    a_copy_that_is_evicted_while_it_is_written: "evicted",
    a_copy_that_is_evicted_before_an_earlier_answer: "evicted-late",
    objects_that_nobody_keeps_track_of: "covering",
    a_transaction_whose_branch_another_changes: "transaction",
    a_leader_replaced_during_a_recall: "election-recall",
    a_leader_elected_again_with_entries_on_their_way: "reelection",
    reads_from_a_leader_that_was_replaced: "deposed-reads",
    promises_of_a_leader_that_was_replaced: "deposed-promises",
    an_object_without_leases: "polled",
    a_write_that_waits_for_a_live_client: "waited-out",
    a_write_that_waits_for_a_covering_holder: "waited-out-covering",
    a_client_that_comes_back_during_a_write: "lapse-return",
    an_object_lease_that_ends_first: "object-lapse",
    a_holder_that_dies: "dead-holder",
    a_session_about_to_end: "session-return",
    a_session_that_is_closed: "close",
    the_absence_of_a_node_that_is_made: "absence",
    a_list_of_children_that_changes: "children",
    a_volume_made_over_cached_paths: "volume-made",
    a_volume_removed_while_it_is_used: "volume-removed",
    a_subtree_that_is_removed: "subtree",
    a_lease_expired_and_reused_during_its_revocation: "lease-reused",
    a_lease_that_is_kept_while_it_is_replaced: "lease-kept",
    a_renewal_that_waits_for_a_tick: "renewal-waits",
    a_grant_whose_answer_is_lost: "grant-repeated",
    a_revocation_among_attachments: "attach-revoke",
    a_connection_that_breaks_during_a_write: "broken-write",
    a_recall_that_is_lost: "lost-recall",
    a_connection_that_goes_dead: "cut-holder",
}

/// Explorations with one thread and with three have equal counts.
#[test]
fn the_counts_do_not_depend_on_the_threads() {
    let world = named("children").expect("a world");
    let counts = |threads| {
        let report = explore(&world, Search { bug: None, threads, most: MOST });
        (report.situations, report.steps, report.ends, report.depth)
    };
    assert_eq!(counts(1), counts(3));
}
