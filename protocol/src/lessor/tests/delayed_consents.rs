//! Notices of clients that delay their consents. Only `why` shows them: no rule uses them.

use super::*;
use crate::{
    lock::LockMode,
    message::{DelayNotice, DelayReason},
};

const DELAY: Duration = Duration::from_secs(2);

impl World {
    /// A write of `/a` that waits for a holder, and the recall.
    fn recalled() -> (Self, Recall) {
        let mut world = Self::new();
        world.holder(&data("/a"));
        let recall = world.recalled_by_put();
        (world, recall)
    }

    /// Another session writes `/a`. Returns the recall.
    fn recalled_by_put(&mut self) -> Recall {
        let writer = self.session();
        let effects = self.write(writer, put("/a", b"1"));
        recalls(&effects).pop().expect("one holder")
    }

    /// The lessor gets a notice. It must be as if only the time had passed.
    fn note(&mut self, recall: &Recall, reason: DelayReason) {
        let mut before = self.lessor.clone();
        let notice = DelayNotice { session: recall.session, stamp: recall.stamp, reason };
        let effects = self.step(LessorInput::ConsentDelayed(notice));
        let none = LessorInput::NotProven { round: u64::MAX };
        assert_eq!(effects, before.step(none, &self.state, self.now), "a notice has no effect");
        assert_eq!(hash(&self.lessor), hash(&before), "no rule uses a notice");
    }

    /// Why the only blocker of `/a` delays its consent.
    fn delay(&mut self) -> Option<DelayReason> {
        let [wait] = self.waits("/a").try_into().expect("one blocker");
        wait.delay
    }
}

fn hash(lessor: &Lessor) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    lessor.hash(&mut hasher);
    hasher.finish()
}

fn in_use(at_most: Duration) -> DelayReason {
    DelayReason::InUse { at_most }
}

#[test]
fn notice_is_shown_with_what_remains_of_the_delay() {
    let (mut world, recall) = World::recalled();
    assert_eq!(world.delay(), None, "the holder has said nothing");
    world.note(&recall, in_use(DELAY));
    assert_eq!(world.delay(), Some(in_use(DELAY)));
    world.now = world.now.after(DELAY / 2);
    assert_eq!(world.delay(), Some(in_use(DELAY / 2)));
    world.note(&recall, in_use(DELAY / 4));
    assert_eq!(world.delay(), Some(in_use(DELAY / 4)), "the recall came again, and the last reply counts");
    world.now = world.now.after(DELAY);
    assert_eq!(world.delay(), Some(in_use(Duration::ZERO)), "its consent is on its way, or is lost");
    world.consent_to(&recall);
    assert!(matches!(answer(&world.commit()), Answer::Written { .. }));
    world.note(&recall, in_use(DELAY));
    assert_eq!(world.waits("/a"), [], "the notice came late");
}

#[test]
fn notice_of_another_recall_is_not_shown() {
    let (mut world, recall) = World::recalled();
    let other_stamp = Stamp { sequence: recall.stamp.sequence + 1, ..recall.stamp };
    world.note(&Recall { stamp: other_stamp, ..recall.clone() }, in_use(DELAY));
    let other_session = world.session();
    world.note(&Recall { session: other_session, ..recall.clone() }, in_use(DELAY));
    world.note(&Recall { session: SessionId(99), ..recall }, in_use(DELAY));
    assert_eq!(world.delay(), None);
}

/// A client that lies about its delay prolongs nothing, and `why` shows no time beyond its lease.
#[test]
fn notice_prolongs_no_wait() {
    let (mut world, recall) = World::recalled();
    world.note(&recall, in_use(Duration::MAX));
    let [wait] = world.waits("/a").try_into().expect("one blocker");
    let bound = TERM + VolumeSettings::DEFAULT.skew_margin();
    assert!(wait.at_most <= bound, "{wait:?}");
    assert_eq!(wait.delay, Some(in_use(wait.at_most)));
    let effects = world.pass(bound + 2 * clock::STEP_EVERY);
    assert!(matches!(answer(&effects), Answer::Written { .. }), "{effects:?}");
}

/// The new leader recalls anew. A notice that names the old recall is late.
#[test]
fn new_leader_forgets_the_notice() {
    let (mut world, recall) = World::recalled();
    world.note(&recall, in_use(DELAY));
    world.fail_over();
    world.request(recall.session, Body::Register);
    let next = world.recalled_by_put();
    assert!(next.stamp.epoch > recall.stamp.epoch);
    world.note(&recall, in_use(DELAY));
    assert_eq!(world.delay(), None);
    world.note(&next, in_use(DELAY));
    assert_eq!(world.delay(), Some(in_use(DELAY)));
}

/// A second write of the object waits for the same recall.
#[test]
fn writes_that_share_a_recall_share_its_notice() {
    let (mut world, recall) = World::recalled();
    world.note(&recall, in_use(DELAY));
    let writer = world.session();
    assert_eq!(recalls(&world.write(writer, put("/a", b"2"))), [], "the recall is unanswered");
    let delays: Vec<_> = world.waits("/a").into_iter().map(|wait| wait.delay).collect();
    assert_eq!(delays, [Some(in_use(DELAY)); 2]);
}

#[test]
fn owner_that_flushes_its_write_lease_is_shown() {
    let mut world = World::new();
    let owner = world.session();
    world.acquire(owner, None);
    world.write(owner, put("/a", b"old"));
    world.commit();
    let (mode, delay) = (LockMode::Exclusive, Duration::ZERO);
    world.write(owner, Write::Lock { path: path("/a"), mode, wait: false, delay });
    world.commit();
    let write = Write::TakeWriteLease { path: path("/a"), lock: crate::id::LockId(1) };
    let seen = Stamp { epoch: world.state.epoch(), sequence: 1000 };
    world.request(owner, Body::Write { write, dropped: vec![ObjectSet::One(data("/a"))], seen });
    world.commit();
    let recall = world.recalled_by_put();
    assert_eq!((recall.session, world.delay()), (owner, None));
    world.note(&recall, DelayReason::Flushing);
    assert_eq!(world.delay(), Some(DelayReason::Flushing));
}
