//! When a lease must be renewed, for any promise and any delay of the answer.

use super::{
    key_leases::{ONE, keep_alive_answer, named_leases, renewing, send_renewal},
    *,
};
use crate::{
    holder::{pace::Pace, tests::random::Numbers},
    id::LeaseId,
    message::{KeepAliveResult, KeyLeasePromise},
};

const ROUNDS: u64 = 100_000;

/// From a millisecond to about three hours. Short times are as frequent as long ones.
fn some_time(numbers: &mut Numbers) -> Duration {
    let most = 1_000 << numbers.below(24);
    Duration::from_micros(1_000 + numbers.below(most))
}

#[test]
fn renewals_are_half_a_term_apart_and_leave_half() {
    let mut numbers = Numbers(8);
    for round in 0..ROUNDS {
        let term = some_time(&mut numbers).max(Duration::from_millis(200));
        let is_full = numbers.below(2) == 0;
        let span = if is_full { term } else { term.mul_f64(numbers.below(1_001) as f64 / 1_000.0) };
        let (sent, took) = (at(1).after(some_time(&mut numbers)), some_time(&mut numbers));
        let now = sent.after(took);
        let spread = numbers.below(1_001) as u16;
        let is_first = numbers.below(2) == 0;
        let mut pace = Pace::new(at(0), Duration::ZERO, term, spread, at(0));
        match is_first {
            true => pace = Pace::new(sent, span, term, spread, now),
            false => pace.renewed(sent, span, term, now),
        }
        let case =
            format!("round {round}: {span:?} of {term:?} sent at {sent}, answered after {took:?}, {spread}: {pace:?}");
        // Counted from the sending: the promise does not include the delay of the answer.
        let interval = pace.due.since(sent);
        // Two attempts are always at least a sixteenth of a term apart.
        let is_late = pace.due == now.after((term / 16).max(Duration::from_micros(12_500)));
        let micro = Duration::from_micros(1);
        assert!(is_late || interval <= term / 2 + micro, "{case}");
        let left = span.saturating_sub(interval);
        assert!(
            is_late || left + micro >= (term / 2).min(span * 7 / 8),
            "half of the term remains for retries: {case}"
        );
        let least = if is_first { term / 4 } else { term / 2 };
        assert!(!is_full || interval + micro >= least, "more than two renewals in a term: {case}");
        assert!(pace.due > now, "the next renewal is due at once: {case}");
    }
}

#[test]
fn a_lease_ends_a_term_after_its_renewal_was_sent_or_earlier() {
    let mut numbers = Numbers(9);
    for _ in 0..1_000 {
        let (span, took) = (some_time(&mut numbers), some_time(&mut numbers));
        let mut client = Client::registered();
        let effects = client.step(HolderInput::KeepAlive(LeaseId(1)));
        let (sent, (send_id, _)) = (client.now, client.only(&effects));
        client.now = sent.after(took);
        let promise = KeyLeasePromise {
            id: LeaseId(1),
            incarnation: Incarnation(5),
            ttl: span,
            result: KeepAliveResult::Renewed(span),
        };
        let effects = client.answer(send_id, Answer::KeptAlive(vec![promise]));
        let until = effects.iter().find_map(|effect| match effect {
            HolderEffect::KeyLeaseRenewed { until, .. } => Some(*until),
            _ => None,
        });
        let until = until.unwrap_or_else(|| panic!("{span:?}, answered after {took:?}: {effects:?}"));
        assert!(until <= sent.after(span), "{span:?}, answered after {took:?}: {:?}", until.since(sent));
    }
}

/// The leader promises little more than what remains, for example without a quorum. The usual time
/// between two requests would be longer.
#[test]
fn key_lease_near_its_end_is_asked_for_again_before() {
    let mut client = renewing();
    let send_id = send_renewal(&mut client);
    client.now = at(111).after(Duration::from_millis(900));
    let left = Duration::from_millis(6_100);
    client.answer(send_id, keep_alive_answer(ONE, Some(left)));
    let until = at(112).after(Duration::from_millis(100));
    client.now = client.holder.next_deadline().expect("the key lease has a deadline");
    assert!(client.now < until, "{}", client.now);
    assert_eq!(named_leases(&client.timeout(&[])), [ONE]);
}
