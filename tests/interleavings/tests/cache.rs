//! The models, and planted mistakes that they must find.

use std::panic::catch_unwind;

use leasehold_interleavings::models;
use leasehold_protocol::planted::{Bug, Planted};

/// A model with fewer orders than this no longer tests anything.
const ORDERS_MIN: usize = 10;

fn holds(model: impl FnOnce() -> usize) {
    let orders = model();
    println!("{orders} orders");
    assert!(orders >= ORDERS_MIN, "{orders} orders: the model shows nothing");
}

fn is_found(model: impl FnOnce() -> usize + std::panic::UnwindSafe) {
    let found = catch_unwind(model).expect_err("no order broke what the mistake breaks");
    let what = found.downcast_ref::<&str>().map(ToString::to_string).or(found.downcast_ref::<String>().cloned());
    assert!(what.is_some_and(|what| what.contains("a stale read")), "it failed for another reason");
}

#[test]
fn read_after_consent_never_serves_recalled_copy() {
    holds(|| models::a_recall_and_a_hit(Planted::default()));
}

#[test]
fn a_fill_that_meets_its_recall_leaves_nothing_stale() {
    holds(|| models::a_recall_and_a_fill(Planted::default()));
}

#[test]
fn no_read_is_served_after_the_lease_has_ended() {
    holds(models::the_end_of_a_lease_and_a_hit);
}

#[test]
fn copies_of_an_earlier_lease_are_not_served_under_the_next() {
    holds(models::another_lease_and_a_hit);
}

#[test]
fn dropped_copy_is_not_served_under_a_revived_lease() {
    holds(models::a_revival_and_a_hit);
}

#[test]
fn recalled_copy_is_not_served_while_its_successor_waits() {
    holds(models::an_installation_after_a_recall_and_a_hit);
}

#[test]
fn no_read_is_served_after_the_session_is_over() {
    holds(models::the_end_of_a_session_and_a_hit);
}

#[test]
fn consenting_without_dropping_is_found() {
    is_found(|| models::a_recall_and_a_hit(Planted::one(Bug::ConsentWithoutDrop)));
}

#[test]
fn caching_an_overtaken_grant_is_found() {
    is_found(|| models::a_recall_and_a_fill(Planted::one(Bug::CacheOvertakenGrant)));
}

#[test]
fn reading_the_clock_before_the_copy_is_found() {
    is_found(models::the_end_of_a_lease_and_a_hit_by_an_early_clock);
}

#[test]
fn a_border_between_leases_that_is_left_out_is_found() {
    is_found(models::another_lease_and_a_hit_without_a_border);
}

#[test]
fn reviving_copies_before_the_drop_is_found() {
    is_found(models::a_revival_before_the_drop_and_a_hit);
}
