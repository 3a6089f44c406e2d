//! A client's cached copies, and the validity by which it may use them. As simple as possible.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use leasehold_protocol::{
    holder::{
        Holder,
        validity::{CopyValidity, VolumeValidity, may_use},
    },
    object::{Content, Object},
    path::NodePath,
    time::Instant,
};

/// One cached copy.
#[derive(Debug, Clone)]
pub(crate) struct Copy {
    pub(crate) content: Arc<Content>,
    pub(crate) validity: CopyValidity,
}

/// All cached copies of one client.
#[derive(Debug, Default)]
pub(crate) struct Cache {
    pub(crate) copies: BTreeMap<Object, Copy>,
    pub(crate) volumes: BTreeMap<NodePath, VolumeValidity>,
    /// Volumes whose copies served reads since the holder last received this list.
    pub(crate) used: BTreeSet<NodePath>,
    /// The holder has a planted mistake. The cache then asks the holder itself.
    pub(crate) asks_holder: bool,
}

impl Cache {
    /// Whether both leases of the copy hold (S1).
    pub(crate) fn holds(&self, object: &Object, now: Instant) -> bool {
        self.copies.get(object).is_some_and(|copy| {
            let volume = self.volumes.get(&copy.validity.volume).copied().unwrap_or_default();
            may_use(copy.validity.lease(), &volume, now)
        })
    }

    /// Whether this cache would serve a read of the object.
    pub(crate) fn may_use(&self, object: &Object, now: Instant, holder: &Holder) -> bool {
        if self.asks_holder {
            self.copies.contains_key(object) && holder.may_serve(object, now)
        } else {
            self.holds(object, now)
        }
    }
}
