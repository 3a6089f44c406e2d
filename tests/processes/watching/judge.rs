//! Judges what watchers were notified of, by the six properties of etcd's robustness tests. Changes
//! are *ordered*, each is *unique* and whole (*atomic*), and none is left out (*reliable*). That
//! holds from wherever a watch resumes (*resumable*), also from a progress mark (*bookmarkable*).
//!
//! The reference is what one watcher of everything is notified of at the end. It is judged by what
//! the writers know. Each deed that a writer knows to be done is there, at its revision, whole and
//! once. No refused deed is there. The nodes are the result of the changes, version by version. The
//! notes of the other watchers are compared with the reference.

use std::collections::BTreeMap;

use leasehold_client_cache::{Change, ChangeReason, Data, Event, EventKind, NodePath};

use super::{
    watcher::Said,
    writer::{self, Deed},
};

/// All changes, by revision.
#[derive(Debug, Default)]
pub(super) struct Happened(BTreeMap<u64, Vec<Event>>);

/// The progress of one watch.
#[derive(Debug, Default)]
pub(super) struct Stream {
    watched: Option<(NodePath, bool)>,
    /// The watcher was notified of everything before this revision.
    pub(super) next: u64,
    pub(super) changes: u64,
    pub(super) marks: u64,
    /// How often it was begun.
    pub(super) begun: u64,
    pub(super) lists: u64,
}

impl Happened {
    /// Takes what one watcher of the root was notified of, from the first revision on.
    pub(super) fn of(changes: impl IntoIterator<Item = Change>) -> Result<Self, String> {
        let mut happened = Self::default();
        let mut nodes = BTreeMap::new();
        for Change { revision, events } in changes {
            if happened.last() >= revision.0 {
                return Err(format!("{revision} after {}", happened.last()));
            }
            for event in events.iter() {
                apply(&mut nodes, event, Some(revision.0))?;
            }
            happened.0.insert(revision.0, events.to_vec());
        }
        Ok(happened)
    }

    /// The revision of the last change.
    pub(super) fn last(&self) -> u64 {
        self.0.last_key_value().map_or(0, |(revision, _)| *revision)
    }

    /// All nodes at a revision.
    pub(super) fn at(&self, revision: u64) -> BTreeMap<NodePath, Data> {
        let mut nodes = BTreeMap::new();
        for event in self.0.range(..=revision).flat_map(|(_, events)| events) {
            apply(&mut nodes, event, None).expect("it has been looked at");
        }
        nodes
    }

    /// The events of a node.
    pub(super) fn of_node(&self, path: &NodePath) -> Vec<&Event> {
        self.0.values().flatten().filter(|event| event.path == *path).collect()
    }

    /// The first change of what is watched, from a revision on.
    fn next(&self, (top, is_recursive): &(NodePath, bool), from: u64) -> Option<(u64, Vec<&Event>)> {
        let is_watched = |event: &&Event| event.path == *top || (*is_recursive && top.contains(&event.path));
        let mut changes = self.0.range(from..).map(|(revision, events)| (*revision, events.iter().filter(is_watched)));
        changes.find_map(|(revision, events)| {
            let events: Vec<&Event> = events.collect();
            (!events.is_empty()).then_some((revision, events))
        })
    }

    /// Compares the changes with a writer's notes. Returns how many of its deeds it knows to be
    /// done, and how many others were done.
    pub(super) fn check_writer(&self, notes: &[writer::Note]) -> Result<(u64, u64), String> {
        let mut begun = BTreeMap::new();
        let (mut known, mut others) = (0, 0);
        for note in notes {
            match note {
                writer::Note::Begun { number, then, otherwise } => {
                    begun.insert(*number, (then, otherwise));
                }
                writer::Note::Done { number, revision, is_then } => {
                    let (then, otherwise) = begun.remove(number).ok_or("what is done was begun")?;
                    let (done, other) = if *is_then { (then, otherwise) } else { (otherwise, then) };
                    self.check_deed(done, Some(*revision))?;
                    self.check_not_done(other)?;
                    known += 1;
                }
                writer::Note::Refused { number } => {
                    let (then, otherwise) = begun.remove(number).ok_or("what is refused was begun")?;
                    self.check_not_done(then)?;
                    self.check_not_done(otherwise)?;
                }
                writer::Note::Unknown { .. } => {}
            }
        }
        // One of the two may have been done.
        for (then, otherwise) in begun.into_values() {
            let done = [then, otherwise].map(|deed| self.found(deed).next().is_some());
            if done == [true, true] {
                return Err(format!("both were done: {then:?} and {otherwise:?}"));
            }
            for deed in [then, otherwise].into_iter().zip(done).filter(|(_, is_done)| *is_done).map(|(deed, _)| deed) {
                self.check_deed(deed, None)?;
                others += 1;
            }
        }
        Ok((known, others))
    }

    /// The changes that put the deed's value.
    fn found(&self, deed: &Deed) -> impl Iterator<Item = u64> {
        let puts = |event: &Event| matches!(&event.kind, EventKind::Put(data) if data.value == deed.value.as_bytes());
        let puts = move |(_, events): &(&u64, &Vec<Event>)| !deed.value.is_empty() && events.iter().any(puts);
        self.0.iter().filter(puts).map(|(revision, _)| *revision)
    }

    fn check_not_done(&self, deed: &Deed) -> Result<(), String> {
        match self.found(deed).next() {
            None => Ok(()),
            Some(revision) => Err(format!("{deed:?} was not done, and is there at {revision}")),
        }
    }

    /// Checks that a deed is one change, at this revision if it is known.
    fn check_deed(&self, deed: &Deed, at: Option<u64>) -> Result<(), String> {
        let found: Vec<u64> = self.found(deed).collect();
        let expected: Vec<u64> = at.filter(|_| !deed.puts.is_empty()).into_iter().collect();
        if at.map_or(found.len() != 1, |_| found != expected) {
            return Err(format!("{deed:?} at {at:?} is there at {found:?}: expected once, and there"));
        }
        let Some(revision) = at.or(found.first().copied()) else { return Ok(()) };
        let none = Vec::new();
        let events = self.0.get(&revision).unwrap_or(&none);
        let puts = events.iter().filter(|event| matches!(&event.kind, EventKind::Put(data) if !data.value.is_empty()));
        let mut puts: Vec<&str> = puts.map(|event| event.path.as_str()).collect();
        let mut expected: Vec<&str> = deed.puts.iter().map(String::as_str).collect();
        puts.sort_unstable();
        expected.sort_unstable();
        let is_removed = |path: &NodePath| deed.removals.iter().any(|top| crate::path(top).contains(path));
        let mut removed = events.iter().filter(|event| event.kind == EventKind::Delete);
        let all_removed = deed
            .removals
            .iter()
            .all(|top| events.iter().any(|event| event.path.as_str() == top && event.kind == EventKind::Delete));
        let are_asked_for = events.iter().all(|event| event.reason == ChangeReason::Request);
        if puts != expected || !all_removed || !removed.all(|event| is_removed(&event.path)) || !are_asked_for {
            return Err(format!("{deed:?} is {events:?} at {revision}"));
        }
        Ok(())
    }
}

/// Applies an event to the nodes. With the revision of its change, also checks that it can follow.
fn apply(nodes: &mut BTreeMap<NodePath, Data>, event: &Event, at: Option<u64>) -> Result<(), String> {
    let before = nodes.remove(&event.path);
    if let EventKind::Put(data) = &event.kind {
        nodes.insert(event.path.clone(), data.clone());
    }
    let Some(revision) = at else { return Ok(()) };
    let fits = match (&event.kind, &before) {
        (EventKind::Delete, before) => before.is_some(),
        (EventKind::Put(data), None) => (data.stat.version, data.stat.create_revision.0) == (1, revision),
        (EventKind::Put(data), Some(before)) => {
            let expected = (before.stat.version + 1, before.stat.create_revision);
            (data.stat.version, data.stat.create_revision) == expected
        }
    };
    let is_of_it = match &event.kind {
        EventKind::Put(data) => data.stat.modify_revision.0 == revision,
        EventKind::Delete => true,
    };
    if fits && is_of_it { Ok(()) } else { Err(format!("{event:?} at {revision} after {before:?}")) }
}

impl Stream {
    /// Checks the watcher's next note on this watch.
    pub(super) fn hear(&mut self, said: &Said, happened: &Happened) -> Result<(), String> {
        match said {
            Said::From { top, is_recursive, revision } => {
                if self.watched.is_some() && self.next != revision.0 {
                    return Err(format!("it goes on from {revision}: expected {}", self.next));
                }
                (self.watched, self.next) = (Some((top.clone(), *is_recursive)), revision.0);
                self.begun += 1;
            }
            Said::Change(change) => {
                self.changes += 1;
                let watched = self.watched.as_ref().ok_or("it is told something though it does not watch")?;
                let expected = happened.next(watched, self.next);
                let told = (change.revision.0, change.events.iter().collect::<Vec<_>>());
                if expected.as_ref() != Some(&told) {
                    return Err(format!("after {} it is told {told:?}: expected {expected:?}", self.next - 1));
                }
                self.next = change.revision.0 + 1;
            }
            Said::Mark(revision) => {
                self.marks += 1;
                let watched = self.watched.as_ref().ok_or("it is told something though it does not watch")?;
                let left_out = happened.next(watched, self.next).filter(|(left_out, _)| *left_out <= revision.0);
                if left_out.is_some() || revision.0 + 1 < self.next {
                    return Err(format!("a mark at {revision} after {}: left out {left_out:?}", self.next - 1));
                }
                self.next = revision.0 + 1;
            }
            Said::Listed { top, revision, nodes } => {
                self.lists += 1;
                let mut expected = happened.at(revision.0);
                expected.retain(|path, _| top.contains(path));
                if !nodes.iter().map(|(path, data)| (path, data)).eq(&expected) {
                    return Err(format!("a list at {revision} is {nodes:?}: expected {expected:?}"));
                }
                // The watch begins anew.
                self.watched = None;
            }
            Said::Failed(why) => return Err(format!("it could not go on: {why}")),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use leasehold_client_cache::{Revision, Stat};

    use super::*;
    use crate::path;

    fn put(at: &str, value: &str, (created, version, modified): (u64, u64, u64)) -> Event {
        let stat = Stat {
            create_revision: Revision(created),
            modify_revision: Revision(modified),
            version,
            value_len: value.len() as u64,
            owner: None,
        };
        let kind = EventKind::Put(Data { value: value.to_owned().into(), stat });
        Event { path: path(at), kind, reason: ChangeReason::Request }
    }

    fn delete(at: &str) -> Event {
        Event { path: path(at), kind: EventKind::Delete, reason: ChangeReason::Request }
    }

    fn change(revision: u64, events: Vec<Event>) -> Change {
        Change { revision: Revision(revision), events: events.into() }
    }

    /// Two puts at once. Then one node is removed, and the other is put again.
    fn changes() -> [Change; 3] {
        [
            change(2, vec![put("/n/a", "w:1", (2, 1, 2)), put("/n/b", "w:1", (2, 1, 2))]),
            change(4, vec![delete("/n/b")]),
            change(5, vec![put("/n/a", "w:3", (2, 2, 5))]),
        ]
    }

    fn happened() -> Happened {
        Happened::of(changes()).expect("it can happen")
    }

    fn from(top: &str, is_recursive: bool, revision: u64) -> Said {
        Said::From { top: path(top), is_recursive, revision: Revision(revision) }
    }

    fn told(said: Vec<Said>) -> Result<Stream, String> {
        let mut stream = Stream::default();
        said.iter().try_for_each(|said| stream.hear(said, &happened())).map(|()| stream)
    }

    #[test]
    fn what_is_told_as_it_happened_is_right_wherever_it_goes_on() {
        let [first, second, third] = changes().map(Said::Change);
        let [whole, mark] = [from("/n", true, 1), Said::Mark(Revision(4))];
        let told_all =
            vec![whole, first.clone(), mark.clone(), from("/n", true, 5), third.clone(), Said::Mark(Revision(9))];
        let missed = told(told_all).expect_err("the second is left out");
        assert!(missed.contains("left out"), "{missed}");
        let stream = told(vec![from("/n", true, 1), first, second, mark, from("/n", true, 5), third.clone()]);
        assert_eq!(stream.map(|stream| (stream.next, stream.begun)), Ok((6, 2)));
        let of_node = change(2, vec![put("/n/a", "w:1", (2, 1, 2))]);
        assert!(told(vec![from("/n/a", false, 1), Said::Change(of_node), Said::Mark(Revision(4)), third]).is_ok());
    }

    #[test]
    fn what_is_left_out_doubled_torn_or_out_of_order_is_found() {
        let [first, second, third] = changes().map(Said::Change);
        let torn = Said::Change(change(2, vec![put("/n/a", "w:1", (2, 1, 2))]));
        let turned = Said::Change(change(2, changes()[0].events.iter().rev().cloned().collect()));
        for wrong in [
            vec![first.clone(), third.clone()],
            vec![first.clone(), first.clone()],
            vec![torn],
            vec![turned],
            vec![first.clone(), second.clone(), third.clone(), second.clone()],
            vec![first.clone(), Said::Mark(Revision(1))],
            vec![first.clone(), from("/n", true, 2)],
            vec![first.clone(), from("/n", true, 4)],
            vec![first.clone(), Said::Failed("no server".to_owned())],
        ] {
            let all: Vec<Said> = [from("/n", true, 1)].into_iter().chain(wrong).collect();
            assert!(told(all.clone()).is_err(), "{all:?}");
        }
    }

    #[test]
    fn a_list_that_was_never_there_is_found() {
        let nodes = |revision| happened().at(revision).into_iter().collect();
        let list = |revision, nodes| vec![Said::Listed { top: path("/n"), revision: Revision(revision), nodes }];
        assert!(told(list(3, nodes(2))).is_ok());
        assert!(told(list(4, nodes(3))).is_err());
    }

    #[test]
    fn changes_that_cannot_follow_each_other_are_found() {
        let [first, second, third] = changes();
        assert!(Happened::of([first.clone(), third.clone()]).is_ok(), "of other nodes");
        for wrong in
            [vec![second.clone()], vec![third.clone()], vec![first.clone(), second.clone(), second], vec![third, first]]
        {
            assert!(Happened::of(wrong.clone()).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn what_a_writer_knows_to_be_otherwise_is_found() {
        let deed = |value: &str, puts: &[&str], removals: &[&str]| Deed {
            value: value.to_owned(),
            puts: puts.iter().map(|at| (*at).to_owned()).collect(),
            removals: removals.iter().map(|at| (*at).to_owned()).collect(),
        };
        let (both, none) = (deed("w:1", &["/n/a", "/n/b"], &[]), Deed::default());
        let removal = deed("", &[], &["/n/b"]);
        let begun = |number, then: &Deed| writer::Note::Begun { number, then: then.clone(), otherwise: none.clone() };
        let done = |number, revision| writer::Note::Done { number, revision, is_then: true };
        let check = |notes: &[writer::Note]| happened().check_writer(notes);
        assert_eq!(check(&[begun(1, &both), done(1, 2), begun(2, &removal), done(2, 4)]), Ok((2, 0)));
        assert_eq!(check(&[begun(1, &both), writer::Note::Unknown { number: 1 }]), Ok((0, 1)));
        assert_eq!(check(&[begun(7, &deed("w:7", &["/n/a"], &[])), writer::Note::Unknown { number: 7 }]), Ok((0, 0)));
        let half = deed("w:1", &["/n/a"], &[]);
        for wrong in [
            vec![begun(1, &both), done(1, 3)],
            vec![begun(1, &both), writer::Note::Refused { number: 1 }],
            vec![begun(1, &half), done(1, 2)],
            vec![begun(1, &half)],
            vec![begun(2, &removal), done(2, 5)],
            vec![begun(7, &deed("w:7", &["/n/a"], &[])), done(7, 5)],
        ] {
            assert!(check(&wrong).is_err(), "{wrong:?}");
        }
    }
}
