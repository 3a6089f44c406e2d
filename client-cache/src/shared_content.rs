//! A content that the cache and its readers share, in one allocation with what the cache has to
//! know of it.
//!
//! One allocation, and not a pointer to the content beside a pointer to the rest: with more copies
//! than a processor's cache holds, each place in memory that a hit touches is what it costs.

use std::{ops::Deref, sync::Arc};

use leasehold_protocol::{id::Stamp, object::Content, path::NodePath};
use parking_lot::Mutex;

/// What a read found. Cheap to clone: all clones, and the cache, share one memory.
#[derive(Debug, Clone)]
pub struct SharedContent(Arc<ContentAllocation>);

/// In this order: a hit touches the count of pointers and the path, which follows it.
#[derive(Debug)]
#[repr(C)]
struct ContentAllocation {
    path: NodePath,
    content: Content,
    copy: Option<CopyRecord>,
}

/// What is asked of a copy when it goes or changes; under the driver's lock only.
#[derive(Debug)]
struct CopyRecord {
    /// Which installation it is, among all of this cache.
    installation: u64,
    stamp: Mutex<Stamp>,
}

impl SharedContent {
    /// What an object was found to be, outside the cache.
    pub(crate) fn new(path: NodePath, content: Arc<Content>) -> Self {
        Self(Arc::new(ContentAllocation { path, content: Arc::unwrap_or_clone(content), copy: None }))
    }

    /// A copy for the cache.
    pub(crate) fn copy(path: NodePath, content: Arc<Content>, installation: u64, stamp: Stamp) -> Self {
        let copy = Some(CopyRecord { installation, stamp: Mutex::new(stamp) });
        Self(Arc::new(ContentAllocation { path, content: Arc::unwrap_or_clone(content), copy }))
    }

    /// Whether it is of an object of this path. Does not look at the text if the paths are clones
    /// of each other.
    #[inline]
    pub(crate) fn is_of(&self, path: &NodePath) -> bool {
        self.0.path == *path
    }

    /// The number that the copy was installed with.
    pub(crate) fn installation(&self) -> Option<u64> {
        self.0.copy.as_ref().map(|copy| copy.installation)
    }

    /// The copy's grant.
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        self.0.copy.as_ref().map(|copy| *copy.stamp.lock())
    }

    /// The copy is good again by this grant.
    pub(crate) fn set_stamp(&self, stamp: Stamp) {
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
