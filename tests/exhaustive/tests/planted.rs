//! Known mistakes (`protocol/src/planted.rs`), put back one at a time. The exploration finds each
//! in the named world, by a shortest path of this many steps. Every world finds one: otherwise it
//! would check nothing.
//!
//! `cargo run --release -p leasehold-exhaustive --features planted-bugs -- WORLD --plant NAME`
//! shows the path.

use leasehold_exhaustive::{Search, all, explore, named};
use leasehold_model::threads::{processors, spread};
use leasehold_protocol::planted::Bug;

/// Each mistake, a world that finds it, and the length of the shortest path.
const FOUND: &[(Bug, &str, usize)] = &[
    (Bug::ServeAfterExpiry, "session-return", 3),
    (Bug::ServeAfterExpiry, "dead-holder", 8),
    (Bug::ServeAfterExpiry, "pause", 7),
    (Bug::TermFromReceipt, "slow-answer", 9),
    (Bug::ConsentWithoutDrop, "read-write", 5),
    (Bug::ConsentWithoutDrop, "lost-recall", 5),
    (Bug::ConsentWithoutDrop, "close", 5),
    (Bug::CacheOvertakenGrant, "miss-write", 9),
    (Bug::CacheOvertakenGrant, "evicted-late", 9),
    (Bug::CacheOvertakenGrant, "covering", 11),
    (Bug::JoinedReadTakesAnyAnswer, "evicted", 10),
    (Bug::GrantDuringWrite, "two-writers", 8),
    (Bug::ForgetOldHolders, "election-recall", 11),
    (Bug::ForgetOldHolders, "deposed-reads", 15),
    (Bug::ReviveWithoutCovering, "lapse-return", 8),
    (Bug::ReviveWithoutCovering, "broken-return", 8),
    (Bug::ObjectLeaseWithoutMargin, "object-lapse", 5),
    (Bug::LateRequestHonoured, "broken-return", 15),
    (Bug::ExemptWriterWithoutStamp, "writer-reads", 13),
    (Bug::RenewBeyondHorizon, "reelection", 3),
    (Bug::PromiseByEndingClock, "deposed-promises", 14),
    (Bug::LeaseWithoutMargin, "cut-holder", 3),
    (Bug::NoProbe, "cut-holder", 7),
    (Bug::ConsentsOfEarlierEpoch, "reelection", 16),
    (Bug::WriteBeyondConsents, "children", 11),
    (Bug::DeleteSparesDescendants, "subtree", 7),
    (Bug::ReplacementTakenForIntended, "lease-reused", 14),
    (Bug::EndingLeaseRenewed, "lease-kept", 8),
    (Bug::LongerPromiseNotCounted, "renewal-waits", 11),
    (Bug::GrantAnsweredWithReplacement, "grant-repeated", 17),
    (Bug::ConsentWithoutDrop, "broken-write", 5),
    (Bug::ConsentWithoutDrop, "absence", 5),
    (Bug::ConsentWithoutDrop, "volume-made", 5),
    (Bug::ConsentWithoutDrop, "volume-removed", 5),
    (Bug::ConsentWithoutDrop, "transaction", 5),
    (Bug::ConsentWithoutDrop, "attach-revoke", 9),
    (Bug::GrantDuringWrite, "broken-write", 9),
    (Bug::GrantDuringWrite, "absence", 8),
    (Bug::GrantDuringWrite, "volume-made", 8),
    (Bug::GrantDuringWrite, "volume-removed", 8),
    (Bug::GrantDuringWrite, "transaction", 8),
    (Bug::GrantDuringWrite, "attach-revoke", 12),
    (Bug::JoinedReadTakesAnyAnswer, "polled", 9),
    (Bug::ObjectLeaseWithoutMargin, "waited-out", 5),
    (Bug::GrantDuringWrite, "waited-out", 10),
    (Bug::GrantDuringWrite, "waited-out-covering", 10),
];

/// More situations than needed to find any of them.
const MOST: usize = 400_000;

fn complaint((bug, name, depth): (Bug, &str, usize)) -> Option<String> {
    let world = named(name).unwrap_or_else(|| panic!("there is no world {name}"));
    let report = explore(&world, Search { bug: Some(bug), threads: 1, most: MOST });
    println!("{bug:?} in {name}: {report}");
    match report.violation {
        Some(violation) if violation.depth == depth => None,
        Some(violation) => Some(format!("{bug:?} shows in {name} after {} steps: expected {depth}", violation.depth)),
        None => Some(format!("{bug:?} does not show in {name}: {} situations", report.situations)),
    }
}

#[test]
fn every_mistake_of_the_table_is_found_by_a_shortest_path() {
    let complaints = spread(processors(), 0..FOUND.len() as u64, |own: &mut Vec<String>, row| {
        own.extend(complaint(FOUND[row as usize]));
        true
    });
    let complaints = complaints.concat();
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

#[test]
fn every_world_finds_something() {
    let blind: Vec<_> =
        all().iter().map(|world| world.name).filter(|world| FOUND.iter().all(|(_, name, _)| name != world)).collect();
    assert!(blind.is_empty(), "nothing is known to show in {blind:?}");
}
