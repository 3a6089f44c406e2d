//! Services, for inspection: the attached nodes that exist, and those that existed lately. No rule
//! depends on this module.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    change::{ChangeReason, Event, EventKind},
    command::AnyLease,
    id::Revision,
    message::{ServiceHealth, ServiceInfo, ServicePage},
    object::NodeOwner,
    path::NodePath,
    state::{Attachment, NodeRecord, State},
    time::ClusterTime,
    work::CountVisits,
};

use super::{Lessor, LessorBounds, StepContext};

/// If less than a third of a lease's term remains, the lease was not renewed in time. Clients renew
/// when half of the term remains.
const LEFT_IN_TIME: u32 = 3;

/// The range of one answer: nodes at and below `top`, after `after` and up to `through`, in the
/// order of paths.
struct PageRange<'a> {
    top: &'a NodePath,
    after: Option<&'a NodePath>,
    /// `None`: up to the last node.
    through: Option<NodePath>,
}

impl PageRange<'_> {
    fn has(&self, path: &NodePath) -> bool {
        self.after.is_none_or(|after| path > after)
            && self.through.as_ref().is_none_or(|through| path <= through)
            && self.top.contains(path)
    }

    /// Limits the range to the first `most` nodes. The others are for the next answer.
    fn end_with_the_first(&mut self, most: usize, found: &mut BTreeMap<&NodePath, PastRemoval>) {
        let beyond = found.keys().counted().nth(most).copied();
        if let Some(beyond) = beyond {
            found.split_off(beyond);
            self.through = found.last_key_value().map(|(last, _)| (*last).clone());
        }
    }
}

/// The last events of an attached node in the history.
enum PastRemoval {
    Present { owner: NodeOwner, registered: Revision },
    Removed { revision: Revision, reason: ChangeReason, before: Option<(NodeOwner, Revision)> },
}

impl PastRemoval {
    /// The result after one more event of the node. `None` if the history does not show that the
    /// node was ever attached.
    fn after(past: Option<Self>, event: &Event, revision: Revision) -> Option<Self> {
        let before = match past {
            Some(Self::Present { owner, registered }) => Some((owner, registered)),
            Some(Self::Removed { .. }) | None => None,
        };
        match &event.kind {
            EventKind::Put(data) => data.stat.owner.map(|owner| Self::Present { owner, registered: revision }),
            // If a request removed the node, and no attachment of it is known, it is no service.
            EventKind::Delete if before.is_some() || event.reason != ChangeReason::Request => {
                Some(Self::Removed { revision, reason: event.reason, before })
            }
            EventKind::Delete => None,
        }
    }
}

impl Lessor {
    /// Services at and below `top`, present and removed. One answer examines a bounded number of
    /// nodes, and scans the history once.
    pub(super) fn services(&self, top: &NodePath, after: Option<&NodePath>, cx: &StepContext<'_>) -> ServicePage {
        let bounds = &self.config.bounds;
        let mut part = PageRange { top, after, through: None };
        let present = present_nodes(&mut part, bounds, cx.state);
        let past = past(&mut part, bounds, cx.state);
        let removed =
            past.iter().filter(|(_, past)| matches!(past, PastRemoval::Removed { .. })).map(|(path, _)| *path);
        let paths: BTreeSet<&NodePath> = present.keys().copied().chain(removed).filter(|path| part.has(path)).collect();
        let mut services: Vec<ServiceInfo> = Vec::new();
        let mut bytes = 0;
        for path in paths {
            bytes += path.as_str().len();
            if let Some(last) = services.last()
                && (services.len() == bounds.rows_max || bytes > bounds.inspection_bytes_max)
            {
                part.through = Some(last.path.clone());
                break;
            }
            services.extend(match (present.get(path), past.get(path)) {
                (Some(node), _) => self.present(path, node, cx.state),
                (None, Some(past)) => self.absent(path, past, cx.state),
                (None, None) => None,
            });
        }
        ServicePage { services, through: part.through }
    }

    fn present(&self, path: &NodePath, node: &NodeRecord, state: &State) -> Option<ServiceInfo> {
        let to = node.attachment.as_ref()?;
        let (health, remaining) = self.health(to, state);
        let seen = self.leases.seen(&to.lease, Some(to.incarnation));
        let info = self.info_of(path, to.owner(), seen, state);
        Some(ServiceInfo { registered: Some(node.modify_revision), health, remaining, ..info })
    }

    fn absent(&self, path: &NodePath, past: &PastRemoval, state: &State) -> Option<ServiceInfo> {
        let PastRemoval::Removed { revision, reason, before } = *past else { return None };
        let owner = before.map(|(owner, _)| owner);
        let seen = owner.and_then(|owner| self.leases.seen(&key(owner, path, state), None));
        let info = self.info_of(path, owner, seen, state);
        let registered = before.map(|(_, registered)| registered);
        Some(ServiceInfo { registered, health: ServiceHealth::Removed { revision, reason }, ..info })
    }

    /// The health of a node that is attached to the lease, or is its orphan, and the remaining time
    /// of the lease.
    fn health(&self, to: &Attachment, state: &State) -> (ServiceHealth, Duration) {
        let lease = state.lease(&to.lease).filter(|lease| lease.incarnation == to.incarnation);
        let end = self.leases.get(&to.lease).filter(|end| end.incarnation == to.incarnation);
        let remaining = end.map_or(Duration::ZERO, |end| end.ends_at.since(self.clock.ending_time()));
        let is_in_time = lease.is_some_and(|lease| remaining >= lease.term() / LEFT_IN_TIME);
        (if is_in_time { ServiceHealth::Live } else { ServiceHealth::Jeopardy }, remaining)
    }

    /// The facts about a service that follow from its node's owner.
    fn info_of(
        &self,
        path: &NodePath,
        owner: Option<NodeOwner>,
        seen: Option<ClusterTime>,
        state: &State,
    ) -> ServiceInfo {
        let session = match owner {
            Some(NodeOwner::Session(session)) => state.session(session),
            Some(NodeOwner::Lease(_)) | None => None,
        };
        ServiceInfo {
            path: path.clone(),
            owner,
            name: session.map(|session| session.name.clone()).unwrap_or_default(),
            registered: None,
            health: ServiceHealth::Jeopardy,
            seen: seen.map(|seen| self.clock.ending_time().since(seen)),
            remaining: Duration::ZERO,
        }
    }
}

/// The attached nodes of the range that exist, up to the bounds of one answer.
fn present_nodes<'a>(
    part: &mut PageRange<'_>,
    bounds: &LessorBounds,
    state: &'a State,
) -> BTreeMap<&'a NodePath, &'a NodeRecord> {
    let mut present = BTreeMap::new();
    for (count, (path, node)) in (1..).zip(state.nodes_and_tombstones_in(part.top, part.after)) {
        present.extend(node.filter(|node| node.attachment.is_some()).map(|node| (path, node)));
        if present.len() == bounds.rows_max || count == bounds.scan_max {
            part.through = Some(path.clone());
            break;
        }
    }
    present
}

/// The nodes of the range that the history shows as attached or as removed, up to the bound of one
/// answer. If there are more, the later paths are for the next answer.
fn past<'a>(part: &mut PageRange<'_>, bounds: &LessorBounds, state: &'a State) -> BTreeMap<&'a NodePath, PastRemoval> {
    let mut found: BTreeMap<&NodePath, PastRemoval> = BTreeMap::new();
    for (revision, events) in state.events_after(state.compacted_through()).into_iter().flatten() {
        for event in events.unwrap_or_default().iter().counted().filter(|event| part.has(&event.path)) {
            let before = found.remove(&event.path);
            found.extend(PastRemoval::after(before, event, revision).map(|past| (&event.path, past)));
        }
        if found.len() > bounds.scan_max.max(bounds.rows_max) {
            part.end_with_the_first(bounds.rows_max, &mut found);
        }
    }
    part.end_with_the_first(bounds.rows_max, &mut found);
    found
}

/// The lease of a removed node. For a session, it is the session's lease on the path's present
/// volume, because the history does not record the volume.
fn key(owner: NodeOwner, path: &NodePath, state: &State) -> AnyLease {
    match owner {
        NodeOwner::Lease(id) => AnyLease::KeyLease(id),
        NodeOwner::Session(session) => AnyLease::Volume(session, state.volume_of(path).0.clone()),
    }
}
