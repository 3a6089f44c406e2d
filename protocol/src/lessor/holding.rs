//! Holds: sessions that wait to be told how theirs stand.
//!
//! Holds are granted by the log, to whoever's turn it is, and are in the replicated state. A client that waits for one, or wants to know
//! whether somebody waits for its own, leaves a request here that is answered when one of its holds stands otherwise than it
//! says. So only those are woken whom it concerns, whichever leader they ask, and a lost answer is asked for again.

use std::collections::{BTreeMap, BTreeSet};

use crate::{
    command::LeaseKey,
    hold::HoldStatus,
    id::{HoldId, SessionId},
    message::{Answer, AwaitHold, HoldInfo, Refusal},
    path::Path,
    state::State,
    work::Counted,
};

use super::{Asker, Lessor, StepContext};

/// The requests that wait. Each session has one at most: a later one takes the place of an earlier.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub(super) struct Awaiting {
    requests: BTreeMap<SessionId, (Asker, Vec<AwaitHold>)>,
    by_path: BTreeSet<(Path, SessionId)>,
}

impl Awaiting {
    fn insert(&mut self, asker: Asker, holds: Vec<AwaitHold>) {
        self.by_path.extend(holds.iter().map(|hold| (hold.path.clone(), asker.session)));
        self.requests.insert(asker.session, (asker, holds));
    }

    /// The request of a session does not wait any more.
    pub(super) fn remove(&mut self, session: SessionId) -> Option<Asker> {
        let (asker, holds) = self.requests.remove(&session)?;
        for hold in holds {
            self.by_path.remove(&(hold.path, session));
        }
        Some(asker)
    }

    /// Everyone who waits.
    pub(super) fn askers(&self) -> impl Iterator<Item = &Asker> {
        self.requests.values().map(|(asker, _)| asker)
    }

    /// How many entries there are, of each table.
    #[cfg(test)]
    pub(super) fn sizes(&self) -> [usize; 2] {
        [self.requests.len(), self.by_path.len()]
    }

    /// Each is found by the nodes that it names, and by no others.
    pub(super) fn check(&self) -> Result<(), String> {
        let named = self
            .requests
            .iter()
            .flat_map(|(session, (_, holds))| holds.iter().map(|hold| (hold.path.clone(), *session)));
        if named.collect::<BTreeSet<_>>() == self.by_path {
            return Ok(());
        }
        Err("the nodes by which those are found who wait for news of holds are not the ones that they named".to_owned())
    }

    fn on(&self, path: &Path) -> impl Iterator<Item = SessionId> {
        self.by_path
            .range((path.clone(), SessionId(0))..=(path.clone(), SessionId(u64::MAX)))
            .counted()
            .map(|(_, id)| *id)
    }

    /// The holds of a session's request that stand otherwise than it says.
    fn changed(&self, session: SessionId, state: &State) -> Vec<(HoldId, HoldStatus)> {
        let holds = self.requests.get(&session).into_iter().flat_map(|(_, holds)| holds);
        changed(holds, state)
    }
}

fn changed<'a>(holds: impl IntoIterator<Item = &'a AwaitHold>, state: &State) -> Vec<(HoldId, HoldStatus)> {
    let now = holds.into_iter().map(|hold| (hold.hold, hold.known, state.hold_status(&hold.path, hold.hold)));
    now.filter(|(_, known, now)| known != now).map(|(hold, _, now)| (hold, now)).collect()
}

impl Lessor {
    /// A session waits to be told of its holds.
    pub(super) fn await_holds(&mut self, asker: Asker, holds: Vec<AwaitHold>, turn: &mut StepContext<'_>) {
        if let Some(earlier) = self.awaiting.remove(asker.session) {
            self.reply_bare(&earlier, Ok(Answer::Holds(Vec::new())), turn);
        }
        let changed = changed(&holds, turn.state);
        if changed.is_empty() {
            self.awaiting.insert(asker, holds);
        } else {
            self.reply(&asker, Ok(Answer::Holds(changed)), turn);
        }
    }

    /// Holds on these nodes have changed: those are told whom it concerns.
    pub(super) fn holds_changed(&mut self, paths: &BTreeSet<Path>, turn: &mut StepContext<'_>) {
        self.unpark(paths, turn);
        for path in paths {
            self.time_delays(path, turn.state);
            let waiting: Vec<SessionId> = self.awaiting.on(path).collect();
            for session in waiting {
                let changed = self.awaiting.changed(session, turn.state);
                if changed.is_empty() {
                    continue;
                }
                if let Some(asker) = self.awaiting.remove(session) {
                    self.reply(&asker, Ok(Answer::Holds(changed)), turn);
                }
            }
        }
    }

    /// A hold that was lost may keep its node for a while: from the entry on that says so.
    fn time_delays(&mut self, path: &Path, state: &State) {
        for (id, hold) in state.holds_on(path).filter(|(_, hold)| matches!(hold.lease, LeaseKey::Delay(_))) {
            let key = LeaseKey::Delay(id);
            if let Some(lease) = state.lease(&key).filter(|_| self.ends.get(&key).is_none()) {
                let end = self.clock.ending().after(hold.delay).min(lease.horizon);
                self.ends.insert(key, hold.incarnation, end, hold.delay);
            }
        }
    }

    /// Nobody waits any more for what the session wanted to know.
    pub(super) fn stop_awaiting(&mut self, session: SessionId, refusal: Refusal, turn: &mut StepContext<'_>) {
        if let Some(asker) = self.awaiting.remove(session) {
            self.reply_bare(&asker, Err(refusal), turn);
        }
    }

    /// The holds on a node, those that are held and those that wait, in the order of arrival.
    pub(super) fn hold_infos(&self, path: &Path, turn: &StepContext<'_>) -> Vec<HoldInfo> {
        let state = turn.state;
        let info = |(id, hold): (HoldId, &crate::state::Hold)| HoldInfo {
            hold: id,
            session: hold.session,
            name: state.session(hold.session).map(|session| session.name.clone()).unwrap_or_default(),
            mode: hold.mode,
            token: hold.token,
            is_upgrading: hold.is_upgrading,
            caches: hold.caches.is_some(),
            is_lost: matches!(hold.lease, LeaseKey::Delay(_)),
            remaining: self.remaining_of(&hold.lease, state),
        };
        self.few(state.holds_on(path).map(info))
    }
}
