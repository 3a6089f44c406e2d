//! Who is alive: the nodes that go with leases, and those that lately did. For people: nothing depends on it.

use std::{collections::BTreeMap, time::Duration};

use crate::{
    change::{Event, EventKind, Reason},
    command::LeaseKey,
    id::Revision,
    message::{ServiceInfo, Services, Standing},
    object::Owner,
    path::Path,
    state::{Attachment, State},
};

use super::{Lessor, StepContext, inspect::ROWS_MAX, keeping::KEYS_BYTES_MAX};

/// The part of a lease that is left, at least, when it is renewed in time: clients renew after six tenths of it at the latest.
const LEFT_IN_TIME: u32 = 3;

/// The most nodes that one answer looks at: others wait meanwhile, and most nodes may be no services.
pub(super) const NODES_MAX: usize = 16 * ROWS_MAX;

/// What one answer is about: what lies at and below `top`, after `after`, and not after `through`, in the order of paths.
struct Part<'a> {
    top: &'a Path,
    after: Option<&'a Path>,
    /// None: to the end.
    through: Option<Path>,
}

impl Part<'_> {
    fn has(&self, path: &Path) -> bool {
        self.after.is_none_or(|after| path > after)
            && self.through.as_ref().is_none_or(|through| path <= through)
            && self.top.contains(path)
    }
}

/// What the remembered changes say of a node that went with a lease.
enum Past {
    /// It was put.
    There { owner: Owner, registered: Revision },
    /// It was removed.
    Gone { revision: Revision, reason: Reason, before: Option<(Owner, Revision)> },
}

impl Past {
    /// After one more event of the node. None: it is not known ever to have gone with a lease.
    fn after(past: Option<Self>, event: &Event, revision: Revision) -> Option<Self> {
        let before = match past {
            Some(Self::There { owner, registered }) => Some((owner, registered)),
            Some(Self::Gone { .. }) | None => None,
        };
        match &event.kind {
            EventKind::Put(data) => data.stat.owner.map(|owner| Self::There { owner, registered: revision }),
            // One that somebody removed and that is known to have gone with nothing, or is not known at all, is no service.
            EventKind::Delete if before.is_some() || event.reason != Reason::Request => {
                Some(Self::Gone { revision, reason: event.reason, before })
            }
            EventKind::Delete => None,
        }
    }
}

impl Lessor {
    /// Services at and below `top`, those that are there and those that are gone. What an answer costs is bounded, whatever the subtree
    /// has, but for one look through the history.
    pub(super) fn services(&self, top: &Path, after: Option<&Path>, turn: &StepContext<'_>) -> Services {
        let mut part = Part { top, after, through: None };
        let mut found = self.there(&mut part, turn.state);
        for (path, past) in past(&mut part, turn.state) {
            let Past::Gone { revision, reason, before } = past else { continue };
            found.entry(path.clone()).or_insert_with(|| {
                let standing = Standing::Gone { revision, reason };
                let registered = before.map(|(_, registered)| registered);
                let info = self.info_of(path, before.map(|(owner, _)| owner), turn.state);
                ServiceInfo { registered, standing, ..info }
            });
        }
        let mut services: Vec<ServiceInfo> = Vec::new();
        let mut bytes = 0;
        for (path, info) in found.into_iter().filter(|(path, _)| part.has(path)) {
            bytes += path.as_str().len();
            match services.last() {
                Some(last) if services.len() == ROWS_MAX || bytes > KEYS_BYTES_MAX => {
                    part.through = Some(last.path.clone());
                    break;
                }
                _ => services.push(info),
            }
        }
        Services { services, through: part.through }
    }

    /// Those that are there, as many as an answer has room for.
    fn there(&self, part: &mut Part<'_>, state: &State) -> BTreeMap<Path, ServiceInfo> {
        let mut found = BTreeMap::new();
        for (place, (path, node)) in state.nodes_in(part.top, part.after).enumerate() {
            if let Some(to) = &node.attachment {
                let (standing, remaining) = self.standing(to, state);
                let registered = Some(node.modify_revision);
                let info = self.info_of(path, to.owner(), state);
                found.insert(path.clone(), ServiceInfo { registered, standing, remaining, ..info });
            }
            if found.len() == ROWS_MAX || place + 1 == NODES_MAX {
                part.through = Some(path.clone());
                break;
            }
        }
        found
    }

    /// How a node stands that goes with the lease, or went with it and is still there; and what remains of the lease.
    fn standing(&self, to: &Attachment, state: &State) -> (Standing, Duration) {
        let lease = state.lease(&to.lease).filter(|lease| lease.incarnation == to.incarnation);
        let end = self.ends.get(&to.lease).filter(|end| end.incarnation == to.incarnation);
        let remaining = end.map_or(Duration::ZERO, |end| end.end.since(self.clock.ending()));
        let is_in_time = lease.is_some_and(|lease| remaining >= lease.term() / LEFT_IN_TIME);
        (if is_in_time { Standing::Live } else { Standing::Jeopardy }, remaining)
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

/// The nodes that went with leases, those that are gone and those that were put again, as far back as the changes are known. If they are
/// many, those that come first.
fn past<'a>(part: &mut Part<'_>, state: &'a State) -> BTreeMap<&'a Path, Past> {
    let mut known: BTreeMap<&Path, Past> = BTreeMap::new();
    let changes = state.events_after(state.history_start()).into_iter().flatten();
    let events =
        changes.flat_map(|(revision, events)| events.unwrap_or_default().iter().map(move |event| (revision, event)));
    for (revision, event) in events {
        if !part.has(&event.path) {
            continue;
        }
        let before = known.remove(&event.path);
        if let Some(past) = Past::after(before, event, revision) {
            known.insert(&event.path, past);
        }
        // What comes later than these is left to the next answer, and is kept no longer.
        if known.len() > 2 * ROWS_MAX
            && let Some(rest) = known.keys().nth(ROWS_MAX).copied()
        {
            known.split_off(rest);
            part.through = known.last_key_value().map(|(last, _)| (*last).clone());
        }
    }
    known
}

/// The lease that a node goes with.
fn key(owner: Owner, path: &Path, state: &State) -> LeaseKey {
    match owner {
        Owner::Lease(id) => LeaseKey::Key(id),
        Owner::Session(session) => LeaseKey::Volume(session, state.volume_of(path).0.clone()),
    }
}
