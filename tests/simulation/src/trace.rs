//! What happened, as a hash always and as lines on demand.

use std::fmt::Write;

/// The trace of one run. Two runs of one seed have the same.
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

    /// Something happened, said in numbers.
    pub(crate) fn mark(&mut self, numbers: &[u64]) {
        for number in numbers {
            self.hash = (self.hash ^ number).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(29);
        }
    }

    /// Something happened, said in words for people. The words are made only if they are kept.
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
