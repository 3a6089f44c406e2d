//! A content that the cache and its readers share.
//!
//! One allocation has the content and the cache's own data about it. If the copies do not fit into
//! the processor's caches, each allocation that a hit touches adds to its cost.

use std::{
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use leasehold_protocol::{id::Stamp, object::Content, path::NodePath, time::Instant};
use parking_lot::Mutex;

/// The content of an object. Cheap to clone: all clones share memory with the cache.
#[derive(Debug, Clone)]
pub struct SharedContent(Arc<ContentAllocation>);

/// The order matters: a hit touches the reference count, and the path and the flag right after it.
#[derive(Debug)]
#[repr(C)]
struct ContentAllocation {
    path: NodePath,
    /// Whether the copy answered a read since its lease was granted.
    was_read: AtomicBool,
    /// The time of the first grant that no read has followed yet, in microseconds; 0 if a read has
    /// followed each.
    granted_at: AtomicU64,
    content: Content,
    copy: Option<CopyRecord>,
}

/// The cache's data about a copy. Used under the driver's lock only.
#[derive(Debug)]
struct CopyRecord {
    /// The installation number, unique in this cache.
    installation: u64,
    stamp: Mutex<Stamp>,
    /// Whether the driver answered a read of the application with it, after a fetch or a
    /// validation.
    was_fetched: AtomicBool,
}

impl SharedContent {
    /// A content that is not in the cache.
    pub(crate) fn new(path: NodePath, content: Arc<Content>) -> Self {
        Self::allocate(path, content, None)
    }

    /// A content for the cache.
    pub(crate) fn copy(path: NodePath, content: Arc<Content>, installation: u64, stamp: Stamp) -> Self {
        let copy = Some(CopyRecord { installation, stamp: Mutex::new(stamp), was_fetched: AtomicBool::new(false) });
        Self::allocate(path, content, copy)
    }

    fn allocate(path: NodePath, content: Arc<Content>, copy: Option<CopyRecord>) -> Self {
        let content = Arc::unwrap_or_clone(content);
        Self(Arc::new(ContentAllocation {
            path,
            was_read: AtomicBool::new(false),
            granted_at: AtomicU64::new(0),
            content,
            copy,
        }))
    }

    /// Whether the content is of an object with this path. Compares the text only if the paths are
    /// not clones of each other.
    #[inline]
    pub(crate) fn is_of(&self, path: &NodePath) -> bool {
        self.0.path == *path
    }

    /// The number of the installation. `None` outside the cache.
    pub(crate) fn installation(&self) -> Option<u64> {
        self.0.copy.as_ref().map(|copy| copy.installation)
    }

    /// The stamp of the copy's grant. `None` outside the cache.
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        self.0.copy.as_ref().map(|copy| *copy.stamp.lock())
    }

    /// Records that the copy answered a read. Returns the time since the grant, if this is the
    /// first read that follows.
    #[inline]
    pub(crate) fn note_read(&self, at: Instant) -> Option<Duration> {
        if self.0.was_read.load(Relaxed) {
            return None;
        }
        self.0.was_read.store(true, Relaxed);
        self.take_granted().map(|granted| at.since(granted))
    }

    /// The time of the first grant that no read has followed yet. A read follows now.
    pub(crate) fn take_granted(&self) -> Option<Instant> {
        match self.0.granted_at.swap(0, Relaxed) {
            0 => None,
            micros => Some(Instant::from_micros(micros)),
        }
    }

    /// Records a grant, unless no read has followed an earlier one yet.
    pub(crate) fn note_granted(&self, at: Instant) {
        // If it fails, the copy keeps the earlier time.
        let _ = self.0.granted_at.compare_exchange(0, at.as_micros(), Relaxed, Relaxed);
    }

    /// Whether the copy answered a read since its lease was granted.
    pub(crate) fn was_read(&self) -> bool {
        self.0.was_read.load(Relaxed)
    }

    /// The same content. Records that the driver answers a read of the application with the copy.
    pub(crate) fn fetched(&self) -> Self {
        if let Some(copy) = &self.0.copy {
            copy.was_fetched.store(true, Relaxed);
        }
        self.clone()
    }

    /// Whether the application wanted the copy: a read asked for it, or it answered one since its
    /// lease was granted.
    pub(crate) fn was_wanted(&self) -> bool {
        self.was_read() || self.0.copy.as_ref().is_some_and(|copy| copy.was_fetched.load(Relaxed))
    }

    /// Replaces the stamp, when another grant makes the copy usable again.
    pub(crate) fn set_stamp(&self, stamp: Stamp) {
        self.0.was_read.store(false, Relaxed);
        if let Some(copy) = &self.0.copy {
            *copy.stamp.lock() = stamp;
        }
    }
}

impl Deref for SharedContent {
    type Target = Content;

    #[inline]
    fn deref(&self) -> &Content {
        &self.0.content
    }
}

impl PartialEq for SharedContent {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || **self == **other
    }
}

impl Eq for SharedContent {}

impl AsRef<Content> for SharedContent {
    fn as_ref(&self) -> &Content {
        self
    }
}
