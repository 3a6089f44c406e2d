//! The numbers, stamps and sendings of recalls.

use super::*;
use crate::object::Object;

const NONE: WriteLeaseId = WriteLeaseId(0);

fn set(text: &str) -> ObjectSet {
    ObjectSet::One(Object::data(NodePath::parse(text).expect("a path")))
}

/// A recall of these sets, unless an unanswered one includes them.
fn recall(channel: &mut RecallChannel, sets: Vec<ObjectSet>, now: Instant) -> (Stamp, Option<Recall>) {
    let (session, epoch) = (SessionId(1), Epoch(5));
    let made = NewRecall { sets, volumes: Vec::new(), offers_next_values: false, write_lease: None };
    match channel.unanswered_recall_of(epoch, &made) {
        Some(stamp) => (stamp, None),
        None => channel.recall(session, epoch, (made, NONE), now),
    }
}

#[test]
fn recalls_are_numbered_without_gaps_and_answered_once() {
    let mut channel = RecallChannel { registration: Some(1), ..RecallChannel::default() };
    let (epoch, now) = (Epoch(5), Instant::from_micros(9));
    let (first, made) = recall(&mut channel, vec![set("/a")], now);
    assert_eq!(made.map(|recall| recall.number), Some(1));
    channel.stamp_grant(epoch);
    let (second, made) = recall(&mut channel, vec![set("/b")], now);
    assert_eq!(made.map(|recall| recall.number), Some(2));
    assert!(channel.consent(first).is_some());
    assert!(channel.consent(first).is_none());
    assert!(channel.consent(second).is_some());
}

#[test]
fn recall_of_a_recalled_set_sends_nothing() {
    let mut channel = RecallChannel { registration: Some(1), ..RecallChannel::default() };
    let now = Instant::from_micros(9);
    let (first, _) = recall(&mut channel, vec![ObjectSet::Subtree(NodePath::root())], now);
    assert_eq!(recall(&mut channel, vec![set("/a")], now), (first, None));
    assert_eq!(channel.check(), Ok(()));
}

#[test]
fn recall_of_sets_that_one_recall_includes_sends_nothing() {
    let mut channel = RecallChannel { registration: Some(1), ..RecallChannel::default() };
    let (epoch, now) = (Epoch(5), Instant::from_micros(9));
    let mut recall_of = |sets: &[&str]| {
        let sets = sets.iter().map(|text| set(text)).collect();
        recall(&mut channel, sets, now)
    };
    let first: Vec<Stamp> = (0..2 * CANDIDATES_MAX).map(|n| recall_of(&["/list", &format!("/{n}")]).0).collect();
    assert_eq!(recall_of(&["/list", "/9"]), (first[9], None), "only one recall has both sets");
    assert_eq!(recall_of(&["/list"]), (first[0], None), "each recall has the set: the oldest counts");
    assert!(!first.contains(&recall_of(&["/8", "/9"]).0), "no recall has both sets");
    channel.stamp_grant(epoch);
    let (second, _) = recall(&mut channel, vec![set("/9")], now);
    assert!(!first.contains(&second), "a recall before the last grant does not count");
    assert_eq!(channel.consent(second).map(|recall| recall.sets), Some(vec![set("/9")]));
    assert_eq!(channel.check(), Ok(()));
}

#[test]
fn only_unsent_recalls_and_those_sent_long_ago_are_due() {
    let mut channel = RecallChannel { registration: Some(1), ..RecallChannel::default() };
    let at = |millis| Instant::from_micros(0).after(Duration::from_millis(millis));
    recall(&mut channel, vec![set("/a")], at(0));
    recall(&mut channel, vec![set("/b")], at(300));
    let numbers = |recalls: Vec<Recall>| recalls.iter().map(|recall| recall.number).collect::<Vec<_>>();
    assert_eq!(numbers(channel.due(at(499), RECALL_RESEND_INTERVAL, 9)), [0u64; 0]);
    assert_eq!(numbers(channel.due(at(500), RECALL_RESEND_INTERVAL, 9)), [1]);
    assert_eq!(numbers(channel.due(at(900), RECALL_RESEND_INTERVAL, 9)), [2]);
    assert_eq!(numbers(channel.due(at(1_100), Duration::ZERO, 9)), [1, 2]);
    assert_eq!(channel.check(), Ok(()));
}

#[test]
fn recall_before_the_registration_is_sent_after_it() {
    let mut channel = RecallChannel::default();
    let now = Instant::from_micros(9);
    let (_, made) = recall(&mut channel, vec![set("/a")], now);
    assert_eq!(made, None, "the session is not registered");
    assert!(channel.register(1));
    assert_eq!(channel.due(now, Duration::ZERO, 9).len(), 1);
    assert!(!channel.register(1), "a registration number counts once");
}

/// Recalls that were made before the registration are sent in several parts. A recall that is
/// made meanwhile waits for its turn.
#[test]
fn recall_made_while_earlier_ones_are_unsent_waits() {
    let mut channel = RecallChannel::default();
    let now = Instant::from_micros(9);
    let made = |channel: &mut RecallChannel, number: u64| {
        recall(channel, vec![set(&format!("/{number}"))], now).1.map(|recall| recall.number)
    };
    let numbers = |recalls: Vec<Recall>| recalls.iter().map(|recall| recall.number).collect::<Vec<_>>();
    (1..=5).for_each(|number| assert_eq!(made(&mut channel, number), None));
    assert!(channel.register(1));
    assert_eq!(numbers(channel.due(now, Duration::ZERO, 2)), [1, 2]);
    assert_eq!(made(&mut channel, 6), None);
    let first: Vec<Stamp> = channel.unanswered.keys().take(4).copied().collect();
    assert_eq!(numbers(channel.due(now, RECALL_RESEND_INTERVAL, 2)), [0u64; 0], "two are unanswered");
    assert!(channel.consent(first[0]).is_some());
    assert_eq!(numbers(channel.due(now, RECALL_RESEND_INTERVAL, 2)), [3], "no interval before the first time");
    first[1..3].iter().for_each(|stamp| assert!(channel.consent(*stamp).is_some()));
    assert_eq!(numbers(channel.due(now, RECALL_RESEND_INTERVAL, 2)), [4, 5]);
    assert_eq!(numbers(channel.take_unsent(1, now)), [6]);
    assert_eq!(numbers(channel.take_unsent(1, now)), [0u64; 0]);
    assert_eq!(made(&mut channel, 7), Some(7));
    assert!(channel.register(2), "a connection that has lost what was sent on the first");
    assert_eq!(made(&mut channel, 8), None);
    assert_eq!(numbers(channel.due(now, Duration::ZERO, 9)), [4, 5, 6, 7, 8]);
    assert_eq!(channel.check(), Ok(()));
}

#[test]
fn unsent_recall_is_sent_only_in_its_turn() {
    let mut channel = RecallChannel::default();
    let now = Instant::from_micros(9);
    let [first, second] = ["/a", "/b"].map(|text| recall(&mut channel, vec![set(text)], now).0);
    let again = |channel: &mut RecallChannel, stamp| channel.resend(stamp, now).map(|recall| recall.number);
    let next = |channel: &mut RecallChannel| channel.take_unsent(1, now).first().map(|recall| recall.number);
    assert_eq!(again(&mut channel, second), None, "the session is not registered");
    assert!(channel.register(1));
    assert_eq!(again(&mut channel, second), None, "the client would see a gap");
    assert_eq!((next(&mut channel), again(&mut channel, second)), (Some(1), None));
    assert_eq!((again(&mut channel, first), next(&mut channel)), (Some(1), Some(2)));
    assert_eq!((again(&mut channel, second), next(&mut channel)), (Some(2), None));
    assert_eq!(channel.check(), Ok(()));
}
