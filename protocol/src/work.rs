//! Counts the elements that a step examines. Only test builds count.
//!
//! The size of its answers bounds the work of a step. The number of sessions, leases, waits or
//! changes does not matter (S10b). In [`lessor`](crate::lessor), [`state`](crate::state) and
//! [`holder`](crate::holder), loops and searches whose length their input does not bound count the
//! elements that they examine. Tests compare the counts of small and large worlds.

#[cfg(any(test, feature = "count-work"))]
mod counted {
    use std::cell::Cell;

    thread_local! {
        static VISITED: Cell<u64> = const { Cell::new(0) };
    }

    /// Counts `count` examined elements.
    pub(crate) fn visit(count: usize) {
        VISITED.with(|visited| visited.set(visited.get() + count as u64));
    }

    /// The count of this thread since the last call. Resets it.
    pub fn take_visited() -> u64 {
        VISITED.with(Cell::take)
    }
}

#[cfg(any(test, feature = "count-work"))]
pub use counted::take_visited;
#[cfg(any(test, feature = "count-work"))]
pub(crate) use counted::visit;

/// Counts examined elements, in test builds only.
#[cfg(not(any(test, feature = "count-work")))]
#[inline(always)]
pub(crate) fn visit(_count: usize) {}

/// Counts the elements that an iterator yields.
pub(crate) trait CountVisits: Iterator + Sized {
    /// Counts each element as it is examined.
    fn counted(self) -> impl Iterator<Item = Self::Item> {
        self.inspect(|_| visit(1))
    }
}

impl<I: Iterator> CountVisits for I {}
