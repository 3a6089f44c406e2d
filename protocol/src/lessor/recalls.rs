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
/// them. It examines at most this many for each set. If none of these does, the sets are recalled
/// once more, which costs only a message. Recalls that share one set and differ in others are rare.
const CANDIDATES_MAX: usize = 16;

/// One session's stamps and recalls in one epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct RecallChannel {
    /// The session's latest registration with this epoch. While it is `None`, the lessor cannot
    /// send recalls, and refuses the session's requests.
    registration: Option<u64>,
    /// The sequence of the last stamp.
    sequence: u64,
    /// The sequence of the last grant's stamp. A write lease counts as a grant.
    last_grant: u64,
    /// The number of the last recall.
    recalls: u64,
    unanswered: BTreeMap<Stamp, UnansweredRecall>,
    /// The sets of the unanswered recalls. Single objects come before subtrees.
    by_set: BTreeSet<(ObjectSet, Stamp)>,
    /// The unanswered recalls, by the time when each was last sent. For a recall that was never
    /// sent, this is the time when it was made.
    by_sent: BTreeSet<(Instant, Stamp)>,
    /// The unanswered recalls from this stamp on were not sent since the latest registration.
    unsent_from: Stamp,
}

/// A recall to which the session has not consented. A delay notice does not answer it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct UnansweredRecall {
    recall: Recall,
    /// The newest write lease that existed when the recall was made. The recall does not cover
    /// write leases that began later.
    newest_write_lease: WriteLeaseId,
    since: Instant,
    sent: Instant,
    /// The volumes in whose counters the recall counts.
    volumes: Unhashed<Vec<NodePath>>,
    /// Why the session delays its consent, and when its last notice arrived. Only inspections use
    /// it.
    delay: Unhashed<Option<(DelayReason, Instant)>>,
}

/// A recall to make.
#[derive(Debug)]
pub(super) struct NewRecall {
    pub(super) sets: Vec<ObjectSet>,
    /// The volumes on which the session has the leases. The recall counts in their counters.
    pub(super) volumes: Vec<NodePath>,
    /// The client may ask for the next values ([`Recall::offers_next_values`]).
    pub(super) offers_next_values: bool,
    /// The newest of the session's write leases that the recall must cover.
    pub(super) write_lease: Option<WriteLeaseId>,
}

/// A recall to which the session has consented.
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

    /// The sequence of the last grant's stamp; 0 before any grant.
    pub(super) fn last_grant(&self) -> u64 {
        self.last_grant
    }

    /// Recalls the sets from the session. Returns no recall to send while the session is not
    /// registered, or while earlier recalls are unsent. If the lessor sent this one first, the
    /// client would see a gap in the numbers, and drop all its copies (S5).
    fn recall(
        &mut self,
        session: SessionId,
        epoch: Epoch,
        (NewRecall { sets, volumes, offers_next_values, .. }, newest_write_lease): (NewRecall, WriteLeaseId),
        now: Instant,
    ) -> (Stamp, Option<Recall>) {
        let waits = self.registration.is_none() || self.has_unsent();
        let stamp = self.stamp(epoch);
        self.recalls += 1;
        let recall = Recall { session, stamp, number: self.recalls, sets, offers_next_values };
        self.by_set.extend(recall.sets.iter().map(|set| (set.clone(), stamp)));
        self.by_sent.insert((now, stamp));
        let (since, sent, volumes, delay) = (now, now, Unhashed(volumes), Unhashed(None));
        let unanswered = UnansweredRecall { recall: recall.clone(), newest_write_lease, since, sent, volumes, delay };
        self.unanswered.insert(stamp, unanswered);
        if waits {
            return (stamp, None);
        }
        self.unsent_from = after(stamp);
        (stamp, Some(recall))
    }

    fn has_unsent(&self) -> bool {
        self.unanswered.range(self.unsent_from..).next().is_some()
    }

    /// The first recalls that were not sent since the latest registration, to send them now: at
    /// most `most`, in the order of stamps.
    fn take_unsent(&mut self, most: usize, now: Instant) -> Vec<Recall> {
        if self.registration.is_none() {
            return Vec::new();
        }
        let unsent = self.unanswered.range(self.unsent_from..).take(most).counted();
        let unsent: Vec<Stamp> = unsent.map(|(stamp, _)| *stamp).collect();
        if let Some(last) = unsent.last() {
            self.unsent_from = after(*last);
        }
        unsent.into_iter().filter_map(|stamp| self.resend(stamp, now)).collect()
    }

    /// An unanswered recall that is later than the last grant, includes all the sets, and covers
    /// the write lease. For each set, the function takes up to [`CANDIDATES_MAX`] recalls that
    /// include the set. It searches the shortest of these lists for a recall that includes all
    /// sets, the oldest first.
    fn unanswered_recall_of(&self, epoch: Epoch, NewRecall { sets, write_lease, .. }: &NewRecall) -> Option<Stamp> {
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
        let covers = |stamp: &Stamp| *write_lease <= self.recalled(*stamp).map(|(_, newest)| newest);
        candidates.into_iter().find(|stamp| covers(stamp) && sets.iter().all(|set| self.has(set, *stamp)))
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

    /// The sets of an unanswered recall, and the newest write lease that existed when it was made.
    pub(super) fn recalled(&self, stamp: Stamp) -> Option<(&[ObjectSet], WriteLeaseId)> {
        self.unanswered.get(&stamp).map(|unanswered| (&unanswered.recall.sets[..], unanswered.newest_write_lease))
    }

    /// Records a consent. Returns its recall, or `None` if the session has already consented (S2).
    pub(super) fn consent(&mut self, stamp: Stamp) -> Option<AnsweredRecall> {
        let UnansweredRecall { recall, since, sent, volumes, .. } = self.unanswered.remove(&stamp)?;
        self.by_sent.remove(&(sent, stamp));
        for set in &recall.sets {
            self.by_set.remove(&(set.clone(), stamp));
        }
        Some(AnsweredRecall { sets: recall.sets, since, volumes: volumes.0 })
    }

    /// Notes why the session delays its consent. Does nothing if the session has already consented.
    fn note_delay(&mut self, stamp: Stamp, reason: DelayReason, now: Instant) {
        if let Some(unanswered) = self.unanswered.get_mut(&stamp) {
            unanswered.delay = Unhashed(Some((reason, now)));
        }
    }

    /// The reason in the session's last delay notice. `at_most` is what remains of the time that
    /// the notice named.
    pub(super) fn delay(&self, stamp: Stamp, now: Instant) -> Option<DelayReason> {
        let (reason, noted) = self.unanswered.get(&stamp)?.delay.0?;
        Some(match reason {
            DelayReason::InUse { at_most } => DelayReason::InUse { at_most: at_most.saturating_sub(now.since(noted)) },
            DelayReason::Flushing => DelayReason::Flushing,
        })
    }

    /// Records a registration of the session. No recall was sent on its connection yet. Returns
    /// true if the number is higher than all earlier ones. If not, the request came late, on a
    /// connection that the client has left.
    pub(super) fn register(&mut self, registration: u64) -> bool {
        let is_later = self.registration.is_none_or(|last| last < registration);
        if is_later {
            self.registration = Some(registration);
            self.unsent_from = Stamp::default();
        }
        is_later
    }

    /// Whether a request belongs to the session's latest registration. Earlier requests, on a
    /// connection that the client has left, must have no effect: their repetitions may have been
    /// answered (S9).
    pub(super) fn is_current(&self, registration: u64) -> bool {
        self.registration == Some(registration)
    }

    /// The unanswered recalls to send now, at most `most`, in the order of stamps:
    ///
    /// - If some were not sent since the latest registration: the first of these, while fewer than
    ///   `most` sent ones are unanswered. If none can be sent: of the `most` lowest stamps, those
    ///   last sent at least `after` ago.
    /// - If none is unsent: those last sent at least `after` ago, the longest ago first.
    fn due(&mut self, now: Instant, after: Duration, most: usize) -> Vec<Recall> {
        if self.registration.is_none() {
            return Vec::new();
        }
        let is_overdue = |sent: Instant| now.since(sent) >= after;
        let mut overdue: Vec<Stamp> = if self.has_unsent() {
            // It sends unsent recalls only while fewer than `most` sent ones are unanswered. The
            // server drops recalls that do not fit into its queue, and the client sees each drop as
            // a gap.
            let sent = self.unanswered.range(..self.unsent_from).take(most).counted();
            let sent: Vec<(Stamp, Instant)> = sent.map(|(stamp, unanswered)| (*stamp, unanswered.sent)).collect();
            let unsent = self.take_unsent(most - sent.len(), now);
            if !unsent.is_empty() {
                return unsent;
            }
            sent.into_iter().filter(|(_, sent)| is_overdue(*sent)).map(|(stamp, _)| stamp).collect()
        } else {
            let overdue = self.by_sent.iter().take_while(|(sent, _)| is_overdue(*sent)).take(most).counted();
            overdue.map(|(_, stamp)| *stamp).collect()
        };
        overdue.sort_unstable();
        overdue.into_iter().filter_map(|stamp| self.resend(stamp, now)).collect()
    }

    /// The recall with this stamp, to send it again. `None` if the session has consented to it, or
    /// if it was not sent since the latest registration: then it must wait for its turn. If it were
    /// sent before an earlier one, the client would see a gap in the numbers (S5).
    pub(super) fn resend(&mut self, stamp: Stamp, now: Instant) -> Option<Recall> {
        if stamp >= self.unsent_from {
            return None;
        }
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
    /// Sends unanswered recalls: those that were not sent since the session registered, else those
    /// last sent at least `after` ago. It sends a bounded number of them.
    pub(super) fn resend_recalls(&mut self, session: SessionId, after: Duration, cx: &mut StepContext<'_>) {
        let (channel, most) = (self.recall_channels.entry(session).or_default(), self.config.bounds.recalls_again_max);
        let due = channel.due(cx.now, after, most);
        if due.len() == most {
            reached(Bound::RecallsAgain);
        }
        cx.effects.extend(due.into_iter().map(LessorEffect::Recall));
    }

    /// Recalls sets from a session. Returns the stamp to which the session must consent, and how
    /// many sets the new recall names. If an unanswered recall includes all the sets, and the
    /// lessor granted nothing to the session since, it makes no new recall, and returns 0.
    pub(super) fn recall_sets(
        &mut self,
        session: SessionId,
        epoch: Epoch,
        made: NewRecall,
        cx: &mut StepContext<'_>,
    ) -> (Stamp, usize) {
        let channel = self.recall_channels.entry(session).or_default();
        if let Some(stamp) = channel.unanswered_recall_of(epoch, &made) {
            return (stamp, 0);
        }
        let sets = made.sets.len();
        self.counters.0.note_recall(&made.volumes);
        let (stamp, recall) = channel.recall(session, epoch, (made, cx.state.last_write_lease()), cx.now);
        cx.effects.extend(recall.map(LessorEffect::Recall));
        (stamp, sets)
    }

    /// Handles the consent in a reply to a recall.
    pub(super) fn consent_in_reply(&mut self, consent: Consent, cx: &mut StepContext<'_>) {
        self.consent(consent, cx);
        self.send_next_recall(consent.session, cx);
    }

    /// Handles the reply to a recall with the notice that the session delays its consent. No rule
    /// depends on the notice.
    pub(super) fn note_delay(&mut self, notice: DelayNotice, cx: &mut StepContext<'_>) {
        if let Some(channel) = self.recall_channels.get_mut(&notice.session) {
            channel.note_delay(notice.stamp, notice.reason, cx.now);
        }
        self.send_next_recall(notice.session, cx);
    }

    /// Sends the next recall that was not sent since the session registered. The client has just
    /// replied to another, so its connection has room.
    fn send_next_recall(&mut self, session: SessionId, cx: &mut StepContext<'_>) {
        if let Some(channel) = self.recall_channels.get_mut(&session) {
            cx.effects.extend(channel.take_unsent(1, cx.now).into_iter().map(LessorEffect::Recall));
        }
    }

    /// Handles a consent: the session has dropped the sets of the recall with this stamp (S2). If
    /// there is no such unanswered recall, the consent has no effect. If recalled data is still
    /// under a write lease of the session, the consent counts only when that has ended (S10).
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

/// The lowest stamp above this one.
fn after(stamp: Stamp) -> Stamp {
    Stamp { sequence: stamp.sequence + 1, ..stamp }
}

#[cfg(test)]
mod tests;
