//! Why copies went, so that a later miss can be counted by its cause. For a copy that no read has
//! followed since its grant, also the time of the grant.
//!
//! The memory is a table of fixed size with one entry for each value of some bits of the path's
//! code. A later copy with the same bits replaces an earlier one. A miss of a forgotten object
//! counts as its first. No rule depends on it.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering::Relaxed},
};

use leasehold_protocol::{object::ObjectKind, time::Instant};

/// The number of entries: 128 KiB.
const ENTRIES: usize = 1 << 13;

/// The lowest bits of an entry have the cause, the others are those of the path's code.
const CAUSE_BITS: u64 = 0b111;

/// Why a read found no copy that it could use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum MissCause {
    #[default]
    First,
    Capacity,
    Recalled,
    Written,
    Expired,
}

impl MissCause {
    pub(crate) const ALL: [Self; 5] = [Self::First, Self::Capacity, Self::Recalled, Self::Written, Self::Expired];
}

/// The causes of the copies that went last.
#[derive(Debug, Default)]
pub(crate) struct DroppedCopies {
    /// Allocated when the first copy goes.
    entries: OnceLock<Box<[DroppedCopy]>>,
}

/// The last copy that went, of those with one place.
#[derive(Debug, Default)]
struct DroppedCopy {
    cause: AtomicU64,
    /// The time of the first grant that no read has followed yet, in microseconds; 0 for none.
    granted_at: AtomicU64,
}

impl DroppedCopies {
    /// Remembers why the copy of this object went, and the first grant that no read has followed.
    pub(crate) fn note(&self, kind: ObjectKind, code: u64, cause: MissCause, granted: Option<Instant>) {
        let entries = self.entries.get_or_init(|| (0..ENTRIES).map(|_| DroppedCopy::default()).collect());
        let entry = &entries[place(kind, code)];
        entry.cause.store(code & !CAUSE_BITS | cause as u64, Relaxed);
        entry.granted_at.store(granted.map_or(0, Instant::as_micros), Relaxed);
    }

    /// Takes the first grant of a copy of this object that no read has followed.
    pub(crate) fn take_granted(&self, kind: ObjectKind, code: u64) -> Option<Instant> {
        let entry = &self.entries.get()?[place(kind, code)];
        if entry.cause.load(Relaxed) & !CAUSE_BITS != code & !CAUSE_BITS {
            return None;
        }
        match entry.granted_at.swap(0, Relaxed) {
            0 => None,
            micros => Some(Instant::from_micros(micros)),
        }
    }

    /// Why the copy of this object went: [`MissCause::First`] if that is not known.
    pub(crate) fn cause(&self, kind: ObjectKind, code: u64) -> MissCause {
        let entry = self.entries.get().map_or(0, |entries| entries[place(kind, code)].cause.load(Relaxed));
        let of_this = MissCause::ALL.into_iter().find(|cause| entry == code & !CAUSE_BITS | *cause as u64);
        of_this.unwrap_or(MissCause::First)
    }

    /// Forgets everything, because the session has ended.
    pub(crate) fn clear(&self) {
        self.entries.get().into_iter().flatten().for_each(|entry| {
            entry.cause.store(0, Relaxed);
            entry.granted_at.store(0, Relaxed);
        });
    }
}

/// The highest bits of the code, because those of the entry include the lowest.
fn place(kind: ObjectKind, code: u64) -> usize {
    let half = match kind {
        ObjectKind::Data => 0,
        ObjectKind::Children => ENTRIES / 2,
    };
    half + (code >> (u64::BITS - (ENTRIES / 2).trailing_zeros())) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cause_is_remembered_for_its_object_only() {
        let dropped = DroppedCopies::default();
        let code = 0x1234_5678_9abc_def0;
        assert_eq!(dropped.cause(ObjectKind::Data, code), MissCause::First);
        for cause in MissCause::ALL {
            dropped.note(ObjectKind::Data, code, cause, None);
            assert_eq!(dropped.cause(ObjectKind::Data, code), cause);
        }
        assert_eq!(dropped.cause(ObjectKind::Children, code), MissCause::First);
        assert_eq!(dropped.cause(ObjectKind::Data, code ^ 8), MissCause::First, "another object at its place");
        for code in [0, u64::MAX] {
            dropped.note(ObjectKind::Children, code, MissCause::Recalled, None);
            assert_eq!(dropped.cause(ObjectKind::Children, code), MissCause::Recalled);
        }
        dropped.clear();
        assert_eq!(dropped.cause(ObjectKind::Data, code), MissCause::First);
    }

    #[test]
    fn unread_grant_is_taken_once_and_by_its_object() {
        let dropped = DroppedCopies::default();
        let (code, granted) = (0x1234_5678_9abc_def0, Instant::from_micros(7));
        assert_eq!(dropped.take_granted(ObjectKind::Data, code), None);
        dropped.note(ObjectKind::Data, code, MissCause::Recalled, Some(granted));
        assert_eq!(dropped.take_granted(ObjectKind::Data, code ^ 8), None, "another object at its place");
        assert_eq!(dropped.take_granted(ObjectKind::Data, code), Some(granted));
        assert_eq!(dropped.take_granted(ObjectKind::Data, code), None);
        dropped.note(ObjectKind::Data, code, MissCause::Recalled, Some(granted));
        dropped.clear();
        assert_eq!(dropped.take_granted(ObjectKind::Data, code), None);
    }
}
