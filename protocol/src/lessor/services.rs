//! Who is alive: the nodes that go with leases, and those that lately did. For people: nothing depends on it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    change::{Event, EventKind, Reason},
    command::LeaseKey,
    id::Revision,
    message::{ServiceInfo, Services, Standing},
    object::Owner,
    path::Path,
    state::{Attachment, Node, State},
    time::ClusterTime,
    work::Counted,
};

use super::{Bounds, Lessor, StepContext};

/// A lease with less than this part left was not renewed in time: clients renew when half of it is left.
const LEFT_IN_TIME: u32 = 3;

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

    /// Leaves to the next answer what comes after the first of these, if they are more than one has room for.
    fn end_with_the_first(&mut self, most: usize, known: &mut BTreeMap<&Path, Past>) {
        let beyond = known.keys().counted().nth(most).copied();
        if let Some(beyond) = beyond {
            known.split_off(beyond);
            self.through = known.last_key_value().map(|(last, _)| (*last).clone());
        }
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
    /// Services at and below `top`, those that are there and those that are gone. An answer looks at so many nodes at most, and once
    /// through the history.
    pub(super) fn services(&self, top: &Path, after: Option<&Path>, turn: &StepContext<'_>) -> Services {
        let bounds = &self.config.bounds;
        let mut part = Part { top, after, through: None };
        let there = there(&mut part, bounds, turn.state);
        let past = past(&mut part, bounds, turn.state);
        let gone = past.iter().filter(|(_, past)| matches!(past, Past::Gone { .. })).map(|(path, _)| *path);
        let paths: BTreeSet<&Path> = there.keys().copied().chain(gone).filter(|path| part.has(path)).collect();
        let mut services: Vec<ServiceInfo> = Vec::new();
        let mut bytes = 0;
        for path in paths {
            bytes += path.as_str().len();
            if let Some(last) = services.last()
                && (services.len() == bounds.rows_max || bytes > bounds.keys_bytes_max)
            {
                part.through = Some(last.path.clone());
                break;
            }
            services.extend(match (there.get(path), past.get(path)) {
                (Some(node), _) => self.present(path, node, turn.state),
                (None, Some(past)) => self.absent(path, past, turn.state),
                (None, None) => None,
            });
        }
        Services { services, through: part.through }
    }

    /// One that is there.
    fn present(&self, path: &Path, node: &Node, state: &State) -> Option<ServiceInfo> {
        let to = node.attachment.as_ref()?;
        let (standing, remaining) = self.standing(to, state);
        let seen = self.ends.seen(&to.lease, Some(to.incarnation));
        let info = self.info_of(path, to.owner(), seen, state);
        Some(ServiceInfo { registered: Some(node.modify_revision), standing, remaining, ..info })
    }

    /// One that is gone.
    fn absent(&self, path: &Path, past: &Past, state: &State) -> Option<ServiceInfo> {
        let Past::Gone { revision, reason, before } = *past else { return None };
        let owner = before.map(|(owner, _)| owner);
        let seen = owner.and_then(|owner| self.ends.seen(&key(owner, path, state), None));
        let info = self.info_of(path, owner, seen, state);
        let registered = before.map(|(_, registered)| registered);
        Some(ServiceInfo { registered, standing: Standing::Gone { revision, reason }, ..info })
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
    fn info_of(&self, path: &Path, owner: Option<Owner>, seen: Option<ClusterTime>, state: &State) -> ServiceInfo {
        let session = match owner {
            Some(Owner::Session(session)) => state.session(session),
            Some(Owner::Lease(_)) | None => None,
        };
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

/// The nodes that go with leases, as many as an answer has room for.
fn there<'a>(part: &mut Part<'_>, bounds: &Bounds, state: &'a State) -> BTreeMap<&'a Path, &'a Node> {
    let mut there = BTreeMap::new();
    for (count, (path, node)) in (1..).zip(state.places_in(part.top, part.after)) {
        there.extend(node.filter(|node| node.attachment.is_some()).map(|node| (path, node)));
        if there.len() == bounds.rows_max || count == bounds.places_max {
            part.through = Some(path.clone());
            break;
        }
    }
    there
}

/// The nodes that went with leases, those that are gone and those that were put again, as far back as the changes are known; as many as
/// an answer has room for. What comes after those is passed over as soon as there are more.
fn past<'a>(part: &mut Part<'_>, bounds: &Bounds, state: &'a State) -> BTreeMap<&'a Path, Past> {
    let mut known: BTreeMap<&Path, Past> = BTreeMap::new();
    for (revision, events) in state.events_after(state.history_start()).into_iter().flatten() {
        for event in events.unwrap_or_default().iter().counted().filter(|event| part.has(&event.path)) {
            let before = known.remove(&event.path);
            known.extend(Past::after(before, event, revision).map(|past| (&event.path, past)));
        }
        if known.len() > bounds.places_max.max(bounds.rows_max) {
            part.end_with_the_first(bounds.rows_max, &mut known);
        }
    }
    part.end_with_the_first(bounds.rows_max, &mut known);
    known
}

/// The lease that a node went with which is gone: of a session, its lease on the volume that the path is in today. The changes do not say
/// on which volume it was.
fn key(owner: Owner, path: &Path, state: &State) -> LeaseKey {
    match owner {
        Owner::Lease(id) => LeaseKey::Key(id),
        Owner::Session(session) => LeaseKey::Volume(session, state.volume_of(path).0.clone()),
    }
}
