//! How the waits of writes are found by what ends them: a consent, the end of a volume lease, or time. Follows from the waits.

use std::collections::BTreeSet;

use crate::{
    id::{Incarnation, SessionId, Stamp},
    path::Path,
    time::ClusterTime,
    work::{Counted, visit},
};

use super::writes::{Turn, Wait};

/// All waits. A write waits for one session at most once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Waits {
    by_stamp: BTreeSet<(SessionId, Stamp, Turn)>,
    by_lease: BTreeSet<(SessionId, Path, Incarnation, Turn)>,
    by_over: BTreeSet<(ClusterTime, SessionId, Turn)>,
}

impl Waits {
    pub(super) fn insert(&mut self, turn: Turn, session: SessionId, wait: &Wait) {
        visit(1 + wait.leases.len());
        self.by_stamp.insert((session, wait.stamp, turn));
        self.by_lease.extend(wait.leases.iter().map(|(volume, lease)| (session, volume.clone(), *lease, turn)));
        self.by_over.extend(wait.over.map(|over| (over, session, turn)));
    }

    pub(super) fn remove(&mut self, turn: Turn, session: SessionId, wait: &Wait) {
        visit(1 + wait.leases.len());
        self.by_stamp.remove(&(session, wait.stamp, turn));
        for (volume, lease) in &wait.leases {
            self.by_lease.remove(&(session, volume.clone(), *lease, turn));
        }
        if let Some(over) = wait.over {
            self.by_over.remove(&(over, session, turn));
        }
    }

    /// The writes that wait for the session.
    pub(super) fn of(&self, session: SessionId) -> Vec<Turn> {
        let (first, last) = (Stamp::default(), Stamp { epoch: crate::id::Epoch(u64::MAX), sequence: u64::MAX });
        let found = self.by_stamp.range((session, first, 0)..=(session, last, Turn::MAX)).counted();
        found.map(|(_, _, turn)| *turn).collect()
    }

    /// The writes that wait for the session's consent to this recall.
    pub(super) fn of_stamp(&self, session: SessionId, stamp: Stamp) -> Vec<Turn> {
        let found = self.by_stamp.range((session, stamp, 0)..=(session, stamp, Turn::MAX)).counted();
        found.map(|(_, _, turn)| *turn).collect()
    }

    /// The writes that wait for copies under the session's leases on the volume, those of today and earlier ones.
    pub(super) fn of_volume(&self, session: SessionId, volume: &Path) -> Vec<Turn> {
        let first = (session, volume.clone(), Incarnation(0), 0);
        let last = (session, volume.clone(), Incarnation(u64::MAX), Turn::MAX);
        self.by_lease.range(first..=last).counted().map(|(_, _, _, turn)| *turn).collect()
    }

    /// The waits for object leases that are over by now.
    pub(super) fn over(&self, now: ClusterTime) -> Vec<(SessionId, Turn)> {
        let over = self.by_over.iter().take_while(|(over, ..)| *over <= now).counted();
        over.map(|(_, session, turn)| (*session, *turn)).collect()
    }

    /// How many entries there are.
    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.by_stamp.len() + self.by_lease.len() + self.by_over.len()
    }
}
