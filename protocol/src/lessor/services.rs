//! Who is alive: the nodes that go with leases, and those that lately did. For people: nothing depends on it.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Unbounded},
    time::Duration,
};

use crate::{
    change::{EventKind, Reason},
    command::LeaseKey,
    id::{Incarnation, Revision},
    message::{ServiceInfo, Standing},
    object::Owner,
    path::Path,
    state::State,
};

use super::{Lessor, StepContext, inspect::ROWS_MAX, keeping::KEYS_BYTES_MAX};

/// The part of a lease that is left, at least, when it is renewed in time: clients renew after six tenths of it at the latest.
const LEFT_IN_TIME: u32 = 3;

impl Lessor {
    /// The services at and below `top`, those that are there and those that are gone, in the order of paths.
    pub(super) fn services(&self, top: &Path, after: Option<&Path>, turn: &StepContext<'_>) -> Vec<ServiceInfo> {
        let mut found = self.gone(top, turn.state);
        let leases = turn.state.leases().map(|(_, lease)| lease.incarnation);
        for incarnation in leases.chain(turn.state.orphaned()) {
            let paths = turn.state.carried(incarnation).filter(|path| top.contains(path));
            let there = paths.filter_map(|path| self.service(path, incarnation, turn.state));
            found.extend(there.map(|info| (info.path.clone(), info)));
        }
        let from = after.map_or(Unbounded, Excluded);
        let mut bytes = 0;
        let fits = |path: &Path| {
            bytes += path.as_str().len();
            bytes <= KEYS_BYTES_MAX
        };
        page(&found, from, fits)
    }

    /// A node that goes with the lease of this incarnation, or went with it and is still there.
    fn service(&self, path: &Path, incarnation: Incarnation, state: &State) -> Option<ServiceInfo> {
        let stat = state.node(path)?.stat();
        let key = key(stat.owner?, path, state);
        let lease = state.lease(&key).filter(|lease| lease.incarnation == incarnation);
        let end = self.ends.get(&key).filter(|end| end.incarnation == incarnation);
        let remaining = end.map_or(Duration::ZERO, |end| end.end.since(self.clock.ending()));
        let is_in_time = lease.is_some_and(|lease| remaining >= lease.term() / LEFT_IN_TIME);
        let standing = if is_in_time { Standing::Live } else { Standing::Jeopardy };
        let info = self.info_of(path, stat.owner, state);
        Some(ServiceInfo { registered: Some(stat.modify_revision), standing, remaining, ..info })
    }

    /// The nodes that went with leases and are gone, as far back as the changes are known.
    fn gone(&self, top: &Path, state: &State) -> BTreeMap<Path, ServiceInfo> {
        let mut there: BTreeMap<&Path, (Owner, Revision)> = BTreeMap::new();
        let mut gone: BTreeMap<Path, ServiceInfo> = BTreeMap::new();
        let changes = state.events_after(state.history_start()).into_iter().flatten();
        let events = changes
            .flat_map(|(revision, events)| events.unwrap_or_default().iter().map(move |event| (revision, event)));
        for (revision, event) in events.filter(|(_, event)| top.contains(&event.path)) {
            let before = there.remove(&event.path);
            gone.remove(&event.path);
            match &event.kind {
                EventKind::Put(data) => {
                    there.extend(data.stat.owner.map(|owner| (&event.path, (owner, revision))));
                }
                // One that somebody removed and that is known to have gone with nothing, or is not known at all, is no service.
                EventKind::Delete if before.is_some() || event.reason != Reason::Request => {
                    let info = self.info_of(&event.path, before.map(|(owner, _)| owner), state);
                    let standing = Standing::Gone { revision, reason: event.reason };
                    let registered = before.map(|(_, registered)| registered);
                    gone.insert(event.path.clone(), ServiceInfo { registered, standing, ..info });
                }
                EventKind::Delete => {}
            }
        }
        gone
    }

    /// What is known of a service by what its node goes with, or did.
    fn info_of(&self, path: &Path, owner: Option<Owner>, state: &State) -> ServiceInfo {
        let session = match owner {
            Some(Owner::Session(session)) => state.session(session),
            Some(Owner::Lease(_)) | None => None,
        };
        let seen = owner.and_then(|owner| self.ends.seen(&key(owner, path, state)));
        ServiceInfo {
            path: path.clone(),
            owner,
            name: session.map(|session| session.name.clone()).unwrap_or_default(),
            registered: None,
            standing: Standing::Jeopardy,
            seen: seen.map(|seen| self.clock.ending().since(seen)),
            remaining: Duration::ZERO,
        }
    }
}

/// The lease that a node goes with.
fn key(owner: Owner, path: &Path, state: &State) -> LeaseKey {
    match owner {
        Owner::Lease(id) => LeaseKey::Key(id),
        Owner::Session(session) => LeaseKey::Volume(session, state.volume_of(path).0.clone()),
    }
}

/// Some of them, in order.
fn page(
    found: &BTreeMap<Path, ServiceInfo>,
    from: std::ops::Bound<&Path>,
    mut fits: impl FnMut(&Path) -> bool,
) -> Vec<ServiceInfo> {
    let rows = found.range::<Path, _>((from, Unbounded)).take(ROWS_MAX);
    rows.take_while(|(path, _)| fits(path)).map(|(_, info)| info.clone()).collect()
}
