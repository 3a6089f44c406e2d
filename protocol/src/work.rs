//! How much a step looks at: counted in tests, nothing at all elsewhere.
//!
//! The work of a step of the rules is bounded by what the step answers, never by how many sessions,
//! leases, waits or changes exist (S10b). Loops and searches of [`lessor`](crate::lessor) and
//! [`state`](crate::state) whose length is not bounded by their input count here what they look at;
//! tests compare the counts of small and large worlds.

#[cfg(any(test, feature = "count-work"))]
mod counted {
    use std::cell::Cell;

    thread_local! {
        static VISITED: Cell<u64> = const { Cell::new(0) };
    }

    /// This many elements were looked at.
    pub(crate) fn visit(count: usize) {
        VISITED.with(|visited| visited.set(visited.get() + count as u64));
    }

    /// What was counted on this thread since the last call, from zero on.
    pub fn take_visited() -> u64 {
        VISITED.with(Cell::take)
    }
}

#[cfg(any(test, feature = "count-work"))]
pub use counted::take_visited;
#[cfg(any(test, feature = "count-work"))]
pub(crate) use counted::visit;

/// This many elements were looked at: counted in tests only.
#[cfg(not(any(test, feature = "count-work")))]
#[inline(always)]
pub(crate) fn visit(_count: usize) {}

/// Counts what an iterator is asked for.
pub(crate) trait CountVisits: Iterator + Sized {
    /// Counts each element as it is looked at.
    fn counted(self) -> impl Iterator<Item = Self::Item> {
        self.inspect(|_| visit(1))
    }
}

impl<I: Iterator> CountVisits for I {}
