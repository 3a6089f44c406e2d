//! A client's cached copies, and the validity by which it may use them. As simple as possible.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use leasehold_protocol::{
    holder::{
        Holder, HolderEffect, HolderInput,
        validity::{CopyValidity, VolumeValidity, may_use},
    },
    object::{Content, Object},
    path::NodePath,
    time::Instant,
};

/// One cached copy.
#[derive(Debug, Clone, Hash)]
pub struct Copy {
    /// Its content.
    pub content: Arc<Content>,
    /// Until when it may be used, and under which leases.
    pub validity: CopyValidity,
}

/// All cached copies of one client.
#[derive(Debug, Clone, Default, Hash)]
pub struct Cache {
    /// The copies.
    pub copies: BTreeMap<Object, Copy>,
    /// The validity of each volume's copies.
    pub volumes: BTreeMap<NodePath, VolumeValidity>,
    /// Volumes whose copies served reads since the holder last received this list.
    pub used: BTreeSet<NodePath>,
    /// The holder has a planted mistake. The cache then asks the holder itself.
    pub asks_holder: bool,
}

impl Cache {
    /// The validity of a volume's copies: none if the holder never reported it.
    pub fn volume(&self, volume: &NodePath) -> VolumeValidity {
        self.volumes.get(volume).copied().unwrap_or_default()
    }

    /// Whether both leases of the copy hold (S1).
    pub fn holds(&self, object: &Object, now: Instant) -> bool {
        let copy = self.copies.get(object);
        copy.is_some_and(|copy| may_use(copy.validity.lease(), &self.volume(&copy.validity.volume), now))
    }

    /// Whether this cache would serve a read of the object.
    pub fn may_use(&self, object: &Object, now: Instant, holder: &Holder) -> bool {
        if self.asks_holder {
            self.copies.contains_key(object) && holder.may_serve(object, now)
        } else {
            self.holds(object, now)
        }
    }

    /// Carries out an effect about copies; other effects change nothing. Returns the holder's input
    /// that follows.
    pub fn carry_out(&mut self, effect: HolderEffect) -> Option<HolderInput> {
        match effect {
            HolderEffect::Install { object, content, validity } => {
                self.copies.insert(object, Copy { content, validity });
            }
            HolderEffect::CopyValidated { object, validity } => match self.copies.get_mut(&object) {
                Some(copy) => copy.validity = validity,
                None => return Some(HolderInput::Evicted { object, stamp: validity.stamp }),
            },
            // As if each copy that may be used has served a read.
            HolderEffect::SelectWanted(objects) => return Some(HolderInput::ReadNextValues(objects)),
            HolderEffect::Drop(objects) => self.copies.retain(|object, _| !objects.contains(object)),
            HolderEffect::DropAll => (self.copies, self.volumes) = Default::default(),
            HolderEffect::VolumeValidityChanged { volume, validity } => drop(self.volumes.insert(volume, validity)),
            _ => {}
        }
        None
    }

    /// Forgets all copies and volumes.
    pub fn clear(&mut self) {
        *self = Self { asks_holder: self.asks_holder, ..Self::default() };
    }
}
