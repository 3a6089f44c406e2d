//! Applications that watch: from now on, from an earlier bookmark, or from a list that they keep
//! current.

use std::collections::{BTreeMap, BTreeSet};

use leasehold_protocol::{
    change::{Changes, WatchScope},
    holder::{HolderInput, SendId, WatchFailure, WatchId},
    id::Revision,
    lessor::LessorBounds,
    message::{Answer, Body, CHANGES_BYTES_MAX, LIST_NODES_MAX, ListPage, Request, RequestHeader, Response},
    path::NodePath,
};

use crate::{
    event::Up,
    invariants::watches::{Tree, happen},
    profile::SECOND,
    world::World,
};

/// A watcher gets an answer at least this often: a little more than
/// [`WATCH_WAIT`](leasehold_protocol::holder::WATCH_WAIT).
const TOLD_WITHIN: u64 = 6 * SECOND;

/// The most watches that one client has open at once.
const WATCHES_MAX: usize = 4;

/// Send ids of requests that bypass the holder begin here.
const OWN_SEND_IDS: u64 = 1 << 48;

/// A watch of the application.
#[derive(Debug, Clone)]
pub(crate) struct OpenWatch {
    watched: WatchScope,
    /// It has reported all changes up to this revision. None until the watch knows where it begins.
    reported: Option<Revision>,
    /// The last acknowledged change when it began: its *now* is no earlier.
    acknowledged: Revision,
    /// It takes little at a time, and may be far behind. `reported_when_asked` is its progress when
    /// the final reads began.
    is_small: bool,
    reported_when_asked: Option<Revision>,
    /// It waits for more changes.
    waits: bool,
    /// When it last reported changes.
    reported_at: u64,
    mirror: Option<Mirror>,
}

/// A subtree that is kept current in memory.
#[derive(Debug, Clone)]
struct Mirror {
    top: NodePath,
    nodes: Tree,
    /// The last path of each page but the last, and the revision of the page.
    pages: Vec<(Option<NodePath>, Revision)>,
}

impl Mirror {
    /// The revision of the page whose range has the path.
    fn listed_at(&self, path: &NodePath) -> Revision {
        let page = self.pages.iter().find(|(last, _)| last.as_ref().is_none_or(|last| path <= last));
        page.map_or(Revision(0), |(_, revision)| *revision)
    }

    fn first(&self) -> Revision {
        self.pages.first().map_or(Revision(0), |(_, revision)| *revision)
    }

    fn last(&self) -> Revision {
        self.pages.last().map_or(Revision(0), |(_, revision)| *revision)
    }

    /// Applies only events that are later than the page with their path.
    fn follow(&mut self, changes: &Changes) {
        for change in &changes.changes {
            for event in change.events.iter() {
                if change.revision > self.listed_at(&event.path) {
                    happen(&mut self.nodes, event);
                }
            }
        }
    }
}

/// A list that is being read.
#[derive(Debug, Clone)]
pub(crate) struct Listing {
    send_id: SendId,
    acknowledged: Revision,
    mirror: Mirror,
}

/// The watches of a client's application.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    open: BTreeMap<WatchId, OpenWatch>,
    listing: Option<Listing>,
    /// Revisions that watches can be resumed from.
    bookmarks: BTreeSet<Revision>,
    /// When the present connection began, on which the holder sent all watches again.
    pub(crate) asked_at: u64,
    last_send_id: u64,
}

impl Watches {
    fn bookmark(&mut self, changes: &Changes) {
        self.bookmarks.extend(changes.changes.iter().map(|change| change.revision).chain([changes.through]));
        while self.bookmarks.len() > 16 {
            self.bookmarks.pop_first();
        }
    }
}

impl World {
    /// The application does something about its watches.
    pub(crate) fn watch_something(&mut self, place: usize) {
        let watches = &self.clients[place].watches;
        let slow = watches.open.iter().find(|(_, watch)| !watch.waits).map(|(id, _)| *id);
        let first = watches.open.keys().next().copied();
        match (self.rng.below(10), slow, first) {
            (0..=4, Some(slow), _) => self.watch_more(place, slow),
            (5, _, Some(first)) => self.give_up_watch(place, first),
            _ if self.clients[place].watches.open.len()
                >= self.swarm().map_or(WATCHES_MAX, |swarm| swarm.watches_max) => {}
            (6, ..) => self.begin_list(place),
            _ => self.begin_watch(place),
        }
    }

    fn begin_watch(&mut self, place: usize) {
        let path = self.rng.pick(&self.profile.objects).path.clone();
        let watched = if self.rng.chance(300) { WatchScope::Node(path) } else { WatchScope::Subtree(path) };
        let bookmarks: Vec<Revision> = self.clients[place].watches.bookmarks.iter().copied().collect();
        let after = match self.rng.below(10) {
            0..=2 => None,
            3 => Some(Revision(self.rng.below(self.oracle.truth.revision().0 + 4))),
            _ if bookmarks.is_empty() => None,
            _ => Some(*self.rng.pick(&bookmarks)),
        };
        self.watch(place, watched, after, None);
    }

    fn watch(&mut self, place: usize, watched: WatchScope, after: Option<Revision>, mirror: Option<Mirror>) {
        let bytes_max = *self.rng.pick(&[1, 200, CHANGES_BYTES_MAX]);
        let (acknowledged, reports_are_short) = (self.oracle.acknowledged, self.reports_are_short());
        let client = &mut self.clients[place];
        let watch = WatchId(client.shell.next_number());
        let open = OpenWatch {
            watched: watched.clone(),
            reported: after,
            acknowledged,
            is_small: bytes_max < CHANGES_BYTES_MAX || reports_are_short,
            reported_when_asked: None,
            waits: true,
            reported_at: self.now,
            mirror,
        };
        client.watches.open.insert(watch, open);
        self.tally.add("watches begun");
        self.step_holder(place, HolderInput::Watch { watch, watched, after, bytes_max });
    }

    /// Whether leaders report only a few changes at one time, whatever the watcher takes.
    fn reports_are_short(&self) -> bool {
        let most = |bounds: &LessorBounds| {
            [bounds.watch_scan_max, bounds.watch_bytes_in_flight_max, bounds.session_watch_bytes_in_flight_max]
        };
        self.swarm().is_some_and(|swarm| most(&swarm.bounds) != most(&LessorBounds::DEFAULT))
    }

    fn watch_more(&mut self, place: usize, watch: WatchId) {
        if let Some(open) = self.clients[place].watches.open.get_mut(&watch) {
            open.waits = true;
            self.step_holder(place, HolderInput::WatchMore(watch));
        }
    }

    fn give_up_watch(&mut self, place: usize, watch: WatchId) {
        self.clients[place].watches.open.remove(&watch);
        self.tally.add("watches given up");
        self.step_holder(place, HolderInput::CancelWatch(watch));
    }

    /// The application receives changes. Returns whether it wants more at once.
    pub(crate) fn changes_reported(&mut self, place: usize, watch: WatchId, changes: &Changes) -> bool {
        let wants_more = self.is_healing || self.rng.chance(700);
        self.tally.add_many("changes reported to watchers", changes.changes.len() as u64);
        if changes.changes.is_empty() {
            self.tally.add("progress marks");
        }
        let Some(open) = self.clients[place].watches.open.get_mut(&watch) else {
            self.complain(place, format!("it got changes of {watch:?}, which it does not watch"));
            return false;
        };
        let happened = &self.oracle.happened;
        let is_asked = std::mem::replace(&mut open.waits, wants_more);
        let held = match open.reported {
            _ if !is_asked => Err("changes were reported without a request".to_owned()),
            Some(after) => happened.check_reported(&open.watched, after, changes),
            None if changes.through < open.acknowledged || !changes.changes.is_empty() => {
                Err(format!("it begins with {changes:?}: expected no changes, and {} or later", open.acknowledged))
            }
            None => Ok(()),
        };
        (open.reported, open.reported_at) = (Some(changes.through), self.now);
        let mirrored = open.mirror.as_mut().map_or(Ok(()), |mirror| {
            mirror.follow(changes);
            let is_whole = changes.through >= mirror.last();
            if is_whole { happened.check_mirror(&mirror.top, &mirror.nodes, changes.through) } else { Ok(()) }
        });
        self.clients[place].watches.bookmark(changes);
        self.demand(held.and(mirrored).map_err(|what| format!("client {place}, {watch:?}: {what}")));
        wants_more
    }

    /// A watch of the application has ended.
    pub(crate) fn watch_lost(&mut self, place: usize, watch: WatchId, error: &WatchFailure) {
        let Some(open) = self.clients[place].watches.open.remove(&watch) else {
            return self.complain(place, format!("it loses {watch:?}, which it does not watch"));
        };
        let start = self.oracle.truth.compacted_through();
        match error {
            WatchFailure::Compacted { after, .. } if open.reported == Some(*after) && *after < start => {
                self.tally.add("watches that had to start over");
                self.clients[place].watches.bookmarks.retain(|revision| *revision >= start);
            }
            WatchFailure::Closed => {}
            error => self.complain(place, format!("it loses {open:?}: {error}, and all is known after {start}")),
        }
    }

    /// The application lists a subtree, to keep it current in memory from then on.
    pub(crate) fn begin_list(&mut self, place: usize) {
        let top = self.rng.pick(&self.profile.objects).path.clone();
        self.list_page(place, Mirror { top, nodes: Tree::new(), pages: Vec::new() });
    }

    fn list_page(&mut self, place: usize, mirror: Mirror) {
        let nodes_max = *self.rng.pick(&[1, 2, LIST_NODES_MAX]);
        let client = &mut self.clients[place];
        let Some(connection) = client.connection else { return };
        client.watches.last_send_id += 1;
        let send_id = SendId(OWN_SEND_IDS + client.watches.last_send_id);
        let after = mirror.pages.last().and_then(|(last, _)| last.clone());
        let body = Body::List { path: mirror.top.clone(), after, nodes_max };
        client.watches.listing = Some(Listing { send_id, acknowledged: self.oracle.acknowledged, mirror });
        self.send_up(connection, Up::Request(send_id, Box::new(Request { header: RequestHeader::default(), body })));
    }

    /// An answer to a request that bypassed the holder. Returns false if the holder must have it.
    pub(crate) fn handles_list_page(&mut self, place: usize, send_id: SendId, response: &Response) -> bool {
        if send_id.0 < OWN_SEND_IDS {
            return false;
        }
        let listing = self.clients[place].watches.listing.take_if(|listing| listing.send_id == send_id);
        if let (Some(listing), Ok(Answer::Listed(page))) = (listing, &response.result) {
            self.listed(place, listing, page);
        }
        true
    }

    fn listed(&mut self, place: usize, Listing { acknowledged, mut mirror, .. }: Listing, page: &ListPage) {
        self.tally.add("pages of lists");
        let after = mirror.pages.last().and_then(|(last, _)| last.clone());
        let held = self.oracle.happened.check_page((&mirror.top, after.as_ref()), acknowledged, page);
        let in_order = if page.revision < mirror.last() { Err("a later page is older".to_owned()) } else { Ok(()) };
        self.demand(held.and(in_order).map_err(|what| format!("client {place}: {what}")));
        mirror.nodes.extend(page.nodes.iter().cloned());
        mirror.pages.push((page.through.clone(), page.revision));
        if page.through.is_some() {
            self.list_page(place, mirror);
        } else if self.clients[place].shell.is_open && !self.is_healing {
            self.tally.add("mirrors");
            self.watch(place, WatchScope::Subtree(mirror.top.clone()), Some(mirror.first()), Some(mirror));
        }
    }

    /// Faults have stopped: every watcher waits for more.
    pub(crate) fn all_watch_on(&mut self, place: usize) {
        let watches = &self.clients[place].watches.open;
        let slow: Vec<WatchId> = watches.iter().filter(|(_, watch)| !watch.waits).map(|(id, _)| *id).collect();
        for watch in slow {
            self.watch_more(place, watch);
        }
    }

    /// The final reads begin. Records the progress of each watch.
    pub(crate) fn ask_watches(&mut self, place: usize) {
        for watch in self.clients[place].watches.open.values_mut() {
            watch.reported_when_asked = watch.reported;
        }
    }

    /// Checks that each watch has reported all changes up to `asked`, or makes progress. Then it
    /// ends all watches.
    pub(crate) fn judge_watches(&mut self, place: usize, asked: Revision) {
        // A small watch gets its changes in parts, and an answer without changes only at the end of
        // the wait (wide seed 1378). Each connection begins the wait anew (wide seed 398).
        let lately = self.now.saturating_sub(TOLD_WITHIN);
        let is_asked_anew = self.clients[place].watches.asked_at > lately;
        let moves_on = |watch: &OpenWatch| {
            watch.is_small && (watch.reported > watch.reported_when_asked || watch.reported_at > lately)
        };
        let late = |watch: &OpenWatch| {
            watch.reported.is_none_or(|reported| reported < asked) && !moves_on(watch) && !is_asked_anew
        };
        let client = &self.clients[place];
        // With low bounds a leader refuses some watches, whichever come first: those of ended
        // connections count for a while.
        let LessorBounds { session_watches_max, watches_max, .. } =
            self.swarm().map(|swarm| swarm.bounds).unwrap_or_default();
        let are_taken = session_watches_max == LessorBounds::DEFAULT.session_watches_max
            && watches_max == LessorBounds::DEFAULT.watches_max;
        let is_asked = client.shell.is_open && are_taken;
        let behind: Vec<&OpenWatch> = client.watches.open.values().filter(|watch| is_asked && late(watch)).collect();
        let held = match behind.first() {
            Some(watch) => Err(format!("client {place} has no report of revision {asked} in the end: {watch:?}")),
            None => Ok(()),
        };
        self.demand(held);
        while let Some(watch) = self.clients[place].watches.open.keys().next().copied() {
            self.give_up_watch(place, watch);
        }
    }
}
