//! What threads share without the driver's lock, and by what: named in this one place, because a
//! test puts other primitives here and explores every order in which threads can use them
//! (`tests/interleavings`).

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64};

pub(crate) use dashmap::DashMap;
