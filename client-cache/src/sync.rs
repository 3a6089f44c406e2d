//! The primitives by which threads share data without the driver's lock.
//!
//! They are named in this one place so that a test can replace them. The test then explores every
//! order in which threads can use them (`tests/interleavings`).

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64};

pub(crate) use dashmap::{DashMap, Entry, mapref::one::Ref};
