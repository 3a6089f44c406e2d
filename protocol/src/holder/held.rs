//! What a client tells a leader that assumes it to hold everything (S7).
//!
//! The list is taken after registering, or after the answer that made the session covering, and sent in pieces, one after
//! the other's answer. It only ever adds, and is never a consent. A list that is interrupted is thrown away: the next leader
//! asks for its own.

use std::collections::VecDeque;

use super::{Holder, flights::Purpose, volumes::Ride};
use crate::{
    id::{CoveringNumber, Incarnation},
    message::{Body, Covering, HELD_PIECE_OBJECTS_MAX, HeldPiece},
    object::Object,
    path::Path,
    planted::Bug,
    time::Instant,
};

/// A list that is being told.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct HeldList {
    incarnation: Incarnation,
    covering: CoveringNumber,
    pieces: u32,
    /// Those that have not been answered.
    rest: VecDeque<Vec<Object>>,
}

impl HeldList {
    /// A list of what is held now. An empty one has one empty piece.
    fn new(incarnation: Incarnation, covering: CoveringNumber, objects: Vec<Object>) -> Self {
        let mut rest: VecDeque<_> = objects.chunks(HELD_PIECE_OBJECTS_MAX).map(<[Object]>::to_vec).collect();
        if rest.is_empty() {
            rest.push_back(Vec::new());
        }
        let pieces = u32::try_from(rest.len()).unwrap_or(u32::MAX);
        Self { incarnation, covering, pieces, rest }
    }

    /// The piece to be told next.
    fn piece(&self, volume: &Path) -> Option<HeldPiece> {
        let left = u32::try_from(self.rest.len()).unwrap_or(u32::MAX);
        Some(HeldPiece {
            volume: volume.clone(),
            incarnation: self.incarnation,
            covering: self.covering,
            piece: self.pieces - left,
            pieces: self.pieces,
            objects: self.rest.front()?.clone(),
        })
    }
}

impl Holder {
    /// Starts telling what is held under a lease, if the lease is still the one.
    pub(super) fn list_held(&mut self, covering: &Covering, now: Instant) {
        let Covering { volume: top, incarnation, number } = covering;
        let Some(lease) = self.volumes.get(top).and_then(|volume| volume.lease.as_ref()) else { return };
        if lease.incarnation != *incarnation {
            return;
        }
        let since = if self.planted(Bug::ListWithoutRevived) { lease.incarnation } else { lease.since };
        let copies = self.copies.below(top).filter(|(_, copy)| {
            let validity = &copy.validity;
            validity.volume == *top && validity.incarnation >= since && now < validity.until
        });
        let list = HeldList::new(*incarnation, *number, copies.map(|(object, _)| object).collect());
        self.held.insert(top.clone(), list);
        self.queue.push(Purpose::Held(top.clone()));
    }

    /// Sends the next piece.
    pub(super) fn send_held(&mut self, top: &Path, now: Instant) {
        if let Some(piece) = self.held.get(top).and_then(|list| list.piece(top)) {
            self.send(Purpose::Held(top.clone()), Body::Held(piece), Ride::Due, now);
        }
    }

    /// A piece has arrived.
    pub(super) fn held_noted(&mut self, top: &Path) {
        let Some(list) = self.held.get_mut(top) else { return };
        list.rest.pop_front();
        if list.rest.is_empty() {
            self.held.remove(top);
        } else {
            self.queue.push(Purpose::Held(top.clone()));
        }
    }
}
