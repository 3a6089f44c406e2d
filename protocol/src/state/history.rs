//! The last changes: what a client missed while it was away.

use std::collections::{BTreeSet, VecDeque};

use super::{RowKey, State};
use crate::{id::Revision, object::ObjectSet, path::Path, planted::Bug};

/// What each of the last changes changed, oldest first. Revisions have no gaps, so that the place says which it was: the
/// first is the one after [`Meta::history_start`](super::Meta).
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct History {
    pub(super) changes: VecDeque<Vec<ObjectSet>>,
}

impl State {
    /// What changed in the subtree at `volume` after `revision`: each set once, in order.
    ///
    /// None if that is not known: the history does not reach back that far, or the revision is still to come. A set
    /// may reach beyond the subtree; none of them lies wholly outside.
    pub fn changed_since(&self, revision: Revision, volume: &Path) -> Option<Vec<ObjectSet>> {
        if revision > self.meta.revision {
            return None;
        }
        let known = revision.0.checked_sub(self.meta.history_start.0)?;
        let subtree = ObjectSet::Subtree(volume.clone());
        let changes = self.history.changes.range(usize::try_from(known).ok()?..);
        let changed: BTreeSet<&ObjectSet> = changes.flatten().filter(|set| set.overlaps(&subtree)).collect();
        Some(changed.into_iter().cloned().collect())
    }

    /// Notes what the change that has just been made changed, and forgets the oldest if there are too many.
    pub(super) fn note_change(&mut self, mut sets: Vec<ObjectSet>, touched: &mut BTreeSet<RowKey>) {
        if self.mistake.is(Bug::ChangeHalfRemembered) {
            sets.truncate(1);
        }
        self.history.changes.push_back(sets);
        touched.insert(RowKey::Change(self.meta.revision));
        if self.history.changes.len() > Self::HISTORY_MAX {
            self.history.changes.pop_front();
            self.meta.history_start = self.meta.history_start.next();
            touched.insert(RowKey::Change(self.meta.history_start));
        }
    }

    /// What the change of this revision changed, if that is still known.
    pub(super) fn change(&self, revision: Revision) -> Option<&Vec<ObjectSet>> {
        let place = revision.0.checked_sub(self.meta.history_start.0)?.checked_sub(1)?;
        self.history.changes.get(usize::try_from(place).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::*, *};
    use crate::{
        command::{Command, Proposal},
        id::{Sequence, SessionId},
    };

    #[test]
    fn what_changed_since_is_told_once_and_for_the_subtree_only() {
        let mut fixture = Fixture::new();
        let session = fixture.open();
        fixture.put(session, "/a/x", "1");
        fixture.put(session, "/b", "1");
        fixture.put(session, "/a/x", "2");
        fixture.put(session, "/a/x", "3");
        fixture.write(session, create_volume("/a/v", 5)).expect("new");
        let since = |revision, at: &str| fixture.state.changed_since(Revision(revision), &path(at));
        assert_eq!(since(1, "/a"), Some(vec![children("/a"), data("/a/x"), subtree("/a/v")]));
        assert_eq!(since(4, "/a/v/deep"), Some(vec![subtree("/a/v")]), "it covers what is asked for");
        assert_eq!(since(1, "/b"), Some(vec![data("/b"), children("/b")]));
        assert_eq!(since(5, "/"), Some(vec![]));
        assert_eq!(since(6, "/"), None, "still to come");
    }

    #[test]
    fn the_history_is_bounded_and_says_when_it_does_not_reach_back() {
        let mut state = State::new(crate::volume::VolumeSettings::DEFAULT);
        let mut index = 0;
        let mut apply = |state: &mut State, command| {
            index += 1;
            let epoch = state.epoch();
            state.apply(index, &Proposal { epoch, number: index, time: Default::default(), commands: vec![command] })
        };
        apply(&mut state, Command::BeginEpoch { replica: 1, attempt: 1 });
        apply(&mut state, Command::OpenSession { name: String::new() });
        let most = State::HISTORY_MAX as u64;
        let mut last = None;
        for number in 1..=most + 2 {
            let write = Command::Write {
                session: SessionId(1),
                sequence: Sequence(number),
                unanswered_from: Sequence(number),
                write: put("/a", "x"),
                covers: everything(),
                carried: Revision(u64::MAX),
            };
            last = Some(apply(&mut state, write));
        }
        let touched = last.expect("a write").touched;
        assert!(
            touched.contains(&RowKey::Change(Revision(2))) && touched.contains(&RowKey::Change(Revision(most + 2)))
        );
        assert_eq!(state.row(&RowKey::Change(Revision(2))), None);
        assert!(state.row(&RowKey::Change(Revision(3))).is_some());
        assert_eq!(state.changed_since(Revision(1), &Path::root()), None, "change 2 is forgotten");
        assert_eq!(state.changed_since(Revision(2), &Path::root()), Some(vec![data("/a")]));
        assert_eq!(state.check(), Ok(()));
        assert_eq!(State::from_rows(state.rows()), Ok(state));
    }
}
