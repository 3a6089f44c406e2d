//! The trace of a run: always as a hash, and as text on demand.

use std::fmt::Write;

/// The trace of one run. Two runs of one seed have the same trace.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    hash: u64,
    keeps_lines: bool,
    lines: String,
}

impl Trace {
    pub(crate) fn new(keeps_lines: bool) -> Self {
        Self { keeps_lines, ..Self::default() }
    }

    /// Adds an event to the hash.
    pub(crate) fn mark(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.hash = (self.hash ^ number).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
        }
    }

    /// Adds a line of text for people. The text is made only if the trace keeps lines.
    pub(crate) fn say(&mut self, now: u64, words: impl FnOnce() -> String) {
        if self.keeps_lines {
            let _ = writeln!(self.lines, "{:>3}.{:06} {}", now / 1_000_000, now % 1_000_000, words());
        }
    }

    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    pub(crate) fn lines(&self) -> &str {
        &self.lines
    }
}
