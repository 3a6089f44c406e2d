//! What the leader says to one session unasked, and in which order (S4, S5).

use std::{collections::BTreeMap, time::Duration};

use crate::{
    id::{Epoch, SessionId, Stamp},
    message::Recall,
    object::ObjectSet,
    time::Instant,
};

/// A recall that goes unanswered is sent again with the session's requests, at most this often: a connection loses
/// nothing by itself, but a server may have dropped what it could not send.
pub const RECALL_AGAIN: Duration = Duration::from_millis(500);

/// One session's stamps and recalls in one epoch.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Channel {
    /// The session's latest registration with this epoch: recalls can be sent, and requests of it are dealt with.
    registration: Option<u64>,
    /// The last stamp given.
    sequence: u64,
    /// The stamp of the last grant.
    last_grant: u64,
    /// The number of the last recall.
    recalls: u64,
    unanswered: BTreeMap<Stamp, Unanswered>,
}

/// A recall that no consent has come for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Unanswered {
    recall: Recall,
    since: Instant,
    sent: Instant,
}

impl Channel {
    /// The next stamp.
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

    /// Recalls the sets from the session. If an unanswered recall has them all, and nothing was granted since, nothing new
    /// is asked: its consent is the one to wait for.
    pub(super) fn recall(
        &mut self,
        session: SessionId,
        epoch: Epoch,
        sets: Vec<ObjectSet>,
        now: Instant,
    ) -> (Stamp, Option<Recall>) {
        let has_all = |recall: &Recall| sets.iter().all(|set| recall.sets.iter().any(|one| one.includes(set)));
        let asked =
            self.unanswered.iter().find(|(stamp, one)| stamp.sequence > self.last_grant && has_all(&one.recall));
        if let Some((stamp, _)) = asked {
            return (*stamp, None);
        }
        let stamp = self.stamp(epoch);
        self.recalls += 1;
        let recall = Recall { session, stamp, number: self.recalls, sets };
        self.unanswered.insert(stamp, Unanswered { recall: recall.clone(), since: now, sent: now });
        (stamp, self.registration.map(|_| recall))
    }

    /// What an unanswered recall asks for.
    pub(super) fn recalled(&self, stamp: Stamp) -> &[ObjectSet] {
        self.unanswered.get(&stamp).map_or(&[], |unanswered| &unanswered.recall.sets)
    }

    /// Takes a consent. Returns what had been recalled, once (S2).
    pub(super) fn consent(&mut self, stamp: Stamp) -> Option<Recall> {
        self.unanswered.remove(&stamp).map(|unanswered| unanswered.recall)
    }

    /// The session has found this leader. False if it has registered later than this already: the request was sent on a
    /// connection that it has given up since.
    pub(super) fn register(&mut self, registration: u64) -> bool {
        let is_later = self.registration.is_none_or(|last| last < registration);
        if is_later {
            self.registration = Some(registration);
        }
        is_later
    }

    /// Whether a request belongs to the session's latest registration. What was sent before that, on a connection that the
    /// client has given up, must not have an effect any more: its repetition may have been answered (S9).
    pub(super) fn is_current(&self, registration: u64) -> bool {
        self.registration == Some(registration)
    }

    /// Recalls that were sent at least `after` ago and are unanswered, to be sent again.
    pub(super) fn again(&mut self, now: Instant, after: Duration) -> Vec<Recall> {
        let is_registered = self.registration.is_some();
        let late = self.unanswered.values_mut().filter(|one| is_registered && now.since(one.sent) >= after);
        late.map(|one| {
            one.sent = now;
            one.recall.clone()
        })
        .collect()
    }

    /// Since when the oldest unanswered recall has been so (S5).
    pub(super) fn unanswered_since(&self) -> Option<Instant> {
        self.unanswered.values().next().map(|unanswered| unanswered.since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{object::Object, path::Path};

    fn set(text: &str) -> ObjectSet {
        ObjectSet::One(Object::data(Path::parse(text).expect("a path")))
    }

    #[test]
    fn recalls_are_numbered_without_gaps_and_answered_once() {
        let mut channel = Channel { registration: Some(1), ..Channel::default() };
        let (session, epoch, now) = (SessionId(1), Epoch(5), Instant::from_micros(9));
        let (first, recall) = channel.recall(session, epoch, vec![set("/a")], now);
        assert_eq!(recall.map(|recall| recall.number), Some(1));
        channel.stamp_grant(epoch);
        let (second, recall) = channel.recall(session, epoch, vec![set("/b")], now);
        assert_eq!(recall.map(|recall| recall.number), Some(2));
        assert!(channel.consent(first).is_some());
        assert!(channel.consent(first).is_none());
        assert!(channel.consent(second).is_some());
    }

    #[test]
    fn what_is_recalled_already_is_not_asked_for_twice() {
        let mut channel = Channel { registration: Some(1), ..Channel::default() };
        let (session, epoch, now) = (SessionId(1), Epoch(5), Instant::from_micros(9));
        let (first, _) = channel.recall(session, epoch, vec![ObjectSet::Subtree(Path::root())], now);
        assert_eq!(channel.recall(session, epoch, vec![set("/a")], now), (first, None));
    }

    #[test]
    fn a_session_that_registers_is_told_what_it_missed() {
        let mut channel = Channel::default();
        let now = Instant::from_micros(9);
        let (_, recall) = channel.recall(SessionId(1), Epoch(5), vec![set("/a")], now);
        assert_eq!(recall, None, "there is nowhere to send it yet");
        assert!(channel.register(1));
        assert_eq!(channel.again(now, Duration::ZERO).len(), 1);
        assert!(!channel.register(1), "a repetition, or a straggler");
    }
}
