//! Recalls: the channel of each session with its stamps and numbered recalls, and the consents to
//! them (S2, S4, S5).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Lessor, LessorEffect, StepContext, counters::Unhashed};
use crate::{
    id::{Epoch, SessionId, Stamp, WriteLeaseId},
    message::{Consent, DelayNotice, DelayReason, Recall},
    object::ObjectSet,
    path::NodePath,
    reached::{Bound, reached},
    time::Instant,
    work::CountVisits,
};

/// When a request of the session arrives, the lessor sends an unanswered recall again, but at most
/// this often. A connection loses nothing, but a server may have dropped recalls that it could not
/// send.
pub const RECALL_RESEND_INTERVAL: Duration = Duration::from_millis(500);

/// Before the lessor recalls some sets, it looks for an unanswered recall that includes all of
/// them. It examines at most this many. If none of these does, the sets are recalled once more,
/// which costs only a message. Recalls that share one set and differ in others are rare.
const CANDIDATES_MAX: usize = 16;

/// One session's stamps and recalls in one epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct RecallChannel {
    /// The session's latest registration with this epoch. While it is `None`, the lessor cannot
    /// send recalls, and refuses the session's requests.
    registration: Option<u64>,
    /// The sequence of the last stamp.
    sequence: u64,
    /// The stamp of the last grant.
    last_grant: u64,
    /// The number of the last recall.
    recalls: u64,
    unanswered: BTreeMap<Stamp, UnansweredRecall>,
    /// The sets of the unanswered recalls. Single objects come before subtrees.
    by_set: BTreeSet<(ObjectSet, Stamp)>,
    /// The unanswered recalls, by the time when each was last sent.
    by_sent: BTreeSet<(Instant, Stamp)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct UnansweredRecall {
    recall: Recall,
    /// The newest write lease when the recall was made: it does not recall later write leases.
    through: WriteLeaseId,
    since: Instant,
    sent: Instant,
    /// The volumes in whose counters it counts.
    volumes: Unhashed<Vec<NodePath>>,
    /// Why the session delays its consent, and when its last notice arrived. Only inspections use
    /// it.
    delay: Unhashed<Option<(DelayReason, Instant)>>,
}

/// A recall to make.
#[derive(Debug)]
pub(super) struct NewRecall {
    pub(super) sets: Vec<ObjectSet>,
    /// The volumes on which the session has the leases, and in whose counters it counts.
    pub(super) volumes: Vec<NodePath>,
    /// The client may ask for the next values ([`Recall::updates`]).
    pub(super) updates: bool,
}

/// A recall that the session has answered.
#[derive(Debug)]
pub(super) struct AnsweredRecall {
    pub(super) sets: Vec<ObjectSet>,
    since: Instant,
    volumes: Vec<NodePath>,
}

impl RecallChannel {
    pub(super) fn stamp(&mut self, epoch: Epoch) -> Stamp {
        self.sequence += 1;
        Stamp { epoch, sequence: self.sequence }
    }

    /// The next stamp, for a grant.
    pub(super) fn stamp_grant(&mut self, epoch: Epoch) -> Stamp {
        let stamp = self.stamp(epoch);
        self.last_grant = stamp.sequence;
        stamp
    }

    /// The stamp of the last grant; 0 before any.
    pub(super) fn last_grant(&self) -> u64 {
        self.last_grant
    }

    /// Recalls the sets from the session. Returns no recall while the session is not registered.
    fn recall(
        &mut self,
        session: SessionId,
        epoch: Epoch,
        (NewRecall { sets, volumes, updates }, through): (NewRecall, WriteLeaseId),
        now: Instant,
    ) -> (Stamp, Option<Recall>) {
        let stamp = self.stamp(epoch);
        self.recalls += 1;
        let recall = Recall { session, stamp, number: self.recalls, sets, updates };
        self.by_set.extend(recall.sets.iter().map(|set| (set.clone(), stamp)));
        self.by_sent.insert((now, stamp));
        let (since, sent, volumes, delay) = (now, now, Unhashed(volumes), Unhashed(None));
        let unanswered = UnansweredRecall { recall: recall.clone(), through, since, sent, volumes, delay };
        self.unanswered.insert(stamp, unanswered);
        (stamp, self.registration.map(|_| recall))
    }

    /// The oldest unanswered recall that is later than the last grant and includes all the sets. It
    /// examines only the first [`CANDIDATES_MAX`] recalls of the set with the fewest recalls.
    fn unanswered_recall_of(&self, epoch: Epoch, sets: &[ObjectSet]) -> Option<Stamp> {
        let mut fewest: Option<Vec<Stamp>> = None;
        for set in sets {
            let stamps: Vec<Stamp> = self.stamps_of(epoch, set).take(CANDIDATES_MAX).collect();
            if stamps.is_empty() {
                return None;
            }
            if stamps.len() == CANDIDATES_MAX {
                reached(Bound::Candidates);
            }
            if fewest.as_ref().is_none_or(|fewest| stamps.len() < fewest.len()) {
                fewest = Some(stamps);
            }
        }
        let mut candidates = fewest?;
        candidates.sort_unstable();
        candidates.into_iter().find(|stamp| sets.iter().all(|set| self.has(set, *stamp)))
    }

    /// The unanswered recalls after the last grant that include the set.
    fn stamps_of<'a>(&'a self, epoch: Epoch, set: &ObjectSet) -> impl Iterator<Item = Stamp> + use<'a> {
        let first = Stamp { epoch, sequence: self.last_grant + 1 };
        let last = Stamp { epoch, sequence: u64::MAX };
        let found = self.including(set).flat_map(move |set| self.by_set.range((set.clone(), first)..=(set, last)));
        found.map(|(_, stamp)| *stamp).counted()
    }

    /// Whether this unanswered recall includes the set.
    fn has(&self, set: &ObjectSet, stamp: Stamp) -> bool {
        self.including(set).counted().any(|set| self.by_set.contains(&(set, stamp)))
    }

    /// The sets that include this one, and that an unanswered recall may name: the set itself, and
    /// the subtrees above it.
    fn including(&self, set: &ObjectSet) -> impl Iterator<Item = ObjectSet> + use<> {
        let (own, top) = match set {
            ObjectSet::One(object) => (Some(set.clone()), Some(object.path.clone())),
            ObjectSet::Subtree(top) => (None, Some(top.clone())),
        };
        let has_subtrees = matches!(self.by_set.last(), Some((ObjectSet::Subtree(_), _)));
        let tops = std::iter::successors(top.filter(|_| has_subtrees), |top| top.parent());
        own.into_iter().chain(tops.map(ObjectSet::Subtree))
    }

    /// The sets of an unanswered recall, and the newest write lease that it recalls.
    pub(super) fn recalled(&self, stamp: Stamp) -> Option<(&[ObjectSet], WriteLeaseId)> {
        self.unanswered.get(&stamp).map(|unanswered| (&unanswered.recall.sets[..], unanswered.through))
    }

    /// Records a consent. Returns its recall, or `None` if the recall was answered already (S2).
    pub(super) fn consent(&mut self, stamp: Stamp) -> Option<AnsweredRecall> {
        let UnansweredRecall { recall, since, sent, volumes, .. } = self.unanswered.remove(&stamp)?;
        self.by_sent.remove(&(sent, stamp));
        for set in &recall.sets {
            self.by_set.remove(&(set.clone(), stamp));
        }
        Some(AnsweredRecall { sets: recall.sets, since, volumes: volumes.0 })
    }

    /// Notes why the session delays its consent. A recall that is answered has no delay.
    fn note_delay(&mut self, stamp: Stamp, reason: DelayReason, now: Instant) {
        if let Some(unanswered) = self.unanswered.get_mut(&stamp) {
            unanswered.delay = Unhashed(Some((reason, now)));
        }
    }

    /// Why the session delays its consent, as it said last. The time that it named has run since
    /// then.
    pub(super) fn delay(&self, stamp: Stamp, now: Instant) -> Option<DelayReason> {
        let (reason, noted) = self.unanswered.get(&stamp)?.delay.0?;
        Some(match reason {
            DelayReason::InUse { at_most } => DelayReason::InUse { at_most: at_most.saturating_sub(now.since(noted)) },
            DelayReason::Flushing => DelayReason::Flushing,
        })
    }

    /// Records a registration of the session. Returns false unless the number is higher than all
    /// earlier ones: then the request came late, on a connection that the client has left.
    pub(super) fn register(&mut self, registration: u64) -> bool {
        let is_later = self.registration.is_none_or(|last| last < registration);
        if is_later {
            self.registration = Some(registration);
        }
        is_later
    }

    /// Whether a request belongs to the session's latest registration. Earlier requests, on a
    /// connection that the client has left, must have no effect: their repetitions may have been
    /// answered (S9).
    pub(super) fn is_current(&self, registration: u64) -> bool {
        self.registration == Some(registration)
    }

    /// The unanswered recalls to send again, in the order of stamps: those last sent at least
    /// `after` ago. If there are more than `most`, it takes those sent longest ago.
    pub(super) fn resend_overdue(&mut self, now: Instant, after: Duration, most: usize) -> Vec<Recall> {
        if self.registration.is_none() {
            return Vec::new();
        }
        let overdue = self.by_sent.iter().take_while(|(sent, _)| now.since(*sent) >= after).take(most).counted();
        let mut overdue: Vec<Stamp> = overdue.map(|(_, stamp)| *stamp).collect();
        overdue.sort_unstable();
        overdue.into_iter().filter_map(|stamp| self.resend(stamp, now)).collect()
    }

    /// The recall with this stamp, to send it again. `None` if it is answered.
    pub(super) fn resend(&mut self, stamp: Stamp, now: Instant) -> Option<Recall> {
        let unanswered = self.unanswered.get_mut(&stamp)?;
        self.by_sent.remove(&(unanswered.sent, stamp));
        self.by_sent.insert((now, stamp));
        unanswered.sent = now;
        Some(unanswered.recall.clone())
    }

    /// The number of unanswered recalls.
    pub(super) fn unanswered(&self) -> usize {
        self.unanswered.len()
    }

    /// When the oldest unanswered recall was made (S5).
    pub(super) fn unanswered_since(&self) -> Option<Instant> {
        self.unanswered.values().next().map(|unanswered| unanswered.since)
    }

    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 3] {
        [self.unanswered.len(), self.by_set.len(), self.by_sent.len()]
    }

    /// Checks that the tables list the same recalls.
    pub(super) fn check(&self) -> Result<(), String> {
        let sets = self
            .unanswered
            .iter()
            .flat_map(|(stamp, unanswered)| unanswered.recall.sets.iter().map(|set| (set.clone(), *stamp)));
        let sent = self.unanswered.iter().map(|(stamp, unanswered)| (unanswered.sent, *stamp));
        if sets.collect::<BTreeSet<_>>() != self.by_set || sent.collect::<BTreeSet<_>>() != self.by_sent {
            return Err(
                "the unanswered recalls are not those that are found by set, or by when they were sent".to_owned()
            );
        }
        Ok(())
    }
}

impl Lessor {
    /// Sends unanswered recalls again: those last sent at least `after` ago, a bounded number of
    /// them.
    pub(super) fn resend_recalls(&mut self, session: SessionId, after: Duration, cx: &mut StepContext<'_>) {
        let (channel, most) = (self.recall_channels.entry(session).or_default(), self.config.bounds.recalls_again_max);
        let overdue = channel.resend_overdue(cx.now, after, most);
        if overdue.len() == most {
            reached(Bound::RecallsAgain);
        }
        cx.effects.extend(overdue.into_iter().map(LessorEffect::Recall));
    }

    /// Recalls sets from a session. Returns the stamp to which the
    /// session must consent. If an unanswered recall includes all the sets, and the lessor granted
    /// nothing to the session since, it makes no new recall.
    pub(super) fn recall_sets(
        &mut self,
        session: SessionId,
        epoch: Epoch,
        made: NewRecall,
        cx: &mut StepContext<'_>,
    ) -> Stamp {
        let channel = self.recall_channels.entry(session).or_default();
        if let Some(stamp) = channel.unanswered_recall_of(epoch, &made.sets) {
            return stamp;
        }
        self.counters.0.note_recall(&made.volumes);
        let (stamp, recall) = channel.recall(session, epoch, (made, cx.state.last_write_lease()), cx.now);
        cx.effects.extend(recall.map(LessorEffect::Recall));
        stamp
    }

    /// Handles a notice that the session delays a consent. No rule depends on it.
    pub(super) fn note_delay(&mut self, notice: DelayNotice, now: Instant) {
        if let Some(channel) = self.recall_channels.get_mut(&notice.session) {
            channel.note_delay(notice.stamp, notice.reason, now);
        }
    }

    /// Handles a consent: the session has dropped the sets of the recall with this stamp (S2). If
    /// there is no such unanswered recall, the consent has no effect.
    pub(super) fn consent(&mut self, consent: Consent, cx: &mut StepContext<'_>) {
        let Consent { session, stamp } = consent;
        if let Some(write_leased) = self.write_leased_node(session, stamp, cx.state) {
            return self.note_early_consent(write_leased, consent, cx);
        }
        let Some(recall) = self.recall_channels.get_mut(&session).and_then(|channel| channel.consent(stamp)) else {
            return;
        };
        self.counters.0.note_consent(&recall.volumes, cx.now.since(recall.since));
        for set in &recall.sets {
            self.drop_older(session, set, stamp);
        }
        self.end_waits_consented(session, stamp);
    }

    /// Forgets the session's leases in the set with stamps up to this one. A later grant stays
    /// valid (S2). The stamp is that of a recall that the session consents to, or of a grant that
    /// it returns.
    pub(super) fn drop_older(&mut self, session: SessionId, set: &ObjectSet, stamp: Stamp) {
        if Some(stamp.epoch) == self.epoch {
            self.object_leases.drop_through(set, session, stamp.sequence);
        }
    }

    pub(super) fn recall_channel(&mut self, session: SessionId) -> &mut RecallChannel {
        self.recall_channels.entry(session).or_default()
    }

    pub(super) fn stamp(&mut self, session: SessionId) -> Stamp {
        let epoch = self.epoch.unwrap_or(Epoch(0));
        self.recall_channel(session).stamp(epoch)
    }

    pub(super) fn grant_stamp(&mut self, session: SessionId) -> Stamp {
        let epoch = self.epoch.unwrap_or(Epoch(0));
        self.recall_channel(session).stamp_grant(epoch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::Object;

    const NONE: WriteLeaseId = WriteLeaseId(0);

    fn set(text: &str) -> ObjectSet {
        ObjectSet::One(Object::data(NodePath::parse(text).expect("a path")))
    }

    /// A recall of these sets, unless an unanswered one includes them.
    fn recall(channel: &mut RecallChannel, sets: Vec<ObjectSet>, now: Instant) -> (Stamp, Option<Recall>) {
        let (session, epoch) = (SessionId(1), Epoch(5));
        match channel.unanswered_recall_of(epoch, &sets) {
            Some(stamp) => (stamp, None),
            None => {
                let made = NewRecall { sets, volumes: Vec::new(), updates: false };
                channel.recall(session, epoch, (made, NONE), now)
            }
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
    fn resend_overdue_returns_only_recalls_sent_long_ago() {
        let mut channel = RecallChannel { registration: Some(1), ..RecallChannel::default() };
        let at = |millis| Instant::from_micros(0).after(Duration::from_millis(millis));
        recall(&mut channel, vec![set("/a")], at(0));
        recall(&mut channel, vec![set("/b")], at(300));
        let numbers = |recalls: Vec<Recall>| recalls.iter().map(|recall| recall.number).collect::<Vec<_>>();
        assert_eq!(numbers(channel.resend_overdue(at(499), RECALL_RESEND_INTERVAL, 9)), [0u64; 0]);
        assert_eq!(numbers(channel.resend_overdue(at(500), RECALL_RESEND_INTERVAL, 9)), [1]);
        assert_eq!(numbers(channel.resend_overdue(at(900), RECALL_RESEND_INTERVAL, 9)), [2]);
        assert_eq!(numbers(channel.resend_overdue(at(1_100), Duration::ZERO, 9)), [1, 2]);
        assert_eq!(channel.check(), Ok(()));
    }

    #[test]
    fn recall_before_the_registration_is_sent_after_it() {
        let mut channel = RecallChannel::default();
        let now = Instant::from_micros(9);
        let (_, made) = recall(&mut channel, vec![set("/a")], now);
        assert_eq!(made, None, "the session is not registered");
        assert!(channel.register(1));
        assert_eq!(channel.resend_overdue(now, Duration::ZERO, 9).len(), 1);
        assert!(!channel.register(1), "a registration number counts once");
    }
}
