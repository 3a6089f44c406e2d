//! The quota of a volume: the most nodes and bytes that it may have.
//!
//! A write that would take its volume above the quota is refused with the figures. Deletes, and the
//! ends of leases, are never refused. If a volume is above its quota, only growth is refused.
//!
//! This module does not know how much of a quota is used. The [state](crate::state::State) counts
//! that.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a volume uses of its quota.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct VolumeUse {
    /// The number of its nodes, including its top. A node counts for the nearest volume at or above
    /// it. So the nodes of an inner volume count for that volume alone.
    pub nodes: u64,
    /// The sum over these nodes: the bytes of the path, and of the value. It is less than what a
    /// replica needs in memory or on disk, because each node has other fields too.
    pub bytes: u64,
}

impl VolumeUse {
    /// One node with this length of its path, and this length of its value.
    pub(crate) fn of_node(path_len: usize, value_len: usize) -> Self {
        Self { nodes: 1, bytes: path_len as u64 + value_len as u64 }
    }

    /// The number of nodes, or of bytes.
    pub fn figure(&self, figure: QuotaFigure) -> u64 {
        match figure {
            QuotaFigure::Nodes => self.nodes,
            QuotaFigure::Bytes => self.bytes,
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.nodes += other.nodes;
        self.bytes += other.bytes;
    }

    pub(crate) fn subtract(&mut self, other: Self) {
        self.nodes -= other.nodes;
        self.bytes -= other.bytes;
    }
}

/// The most nodes and bytes of a volume. `None` means that there is no limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Quota {
    /// The most nodes.
    pub nodes: Option<u64>,
    /// The most bytes, counted as in [`VolumeUse::bytes`].
    pub bytes: Option<u64>,
}

impl Quota {
    /// No limit.
    pub const NONE: Self = Self { nodes: None, bytes: None };

    /// Whether there is no limit.
    pub fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// The limit of one figure.
    pub fn limit(&self, figure: QuotaFigure) -> Option<u64> {
        match figure {
            QuotaFigure::Nodes => self.nodes,
            QuotaFigure::Bytes => self.bytes,
        }
    }

    /// The first figure that is above its limit in `after` and has grown since `before`, with its
    /// limit.
    ///
    /// ```
    /// use leasehold_protocol::quota::{Quota, QuotaFigure, VolumeUse};
    ///
    /// let quota = Quota { nodes: Some(2), bytes: None };
    /// let used = |nodes| VolumeUse { nodes, bytes: 7 * nodes };
    /// assert_eq!(quota.exceeded(used(1), used(2)), None);
    /// assert_eq!(quota.exceeded(used(2), used(3)), Some((QuotaFigure::Nodes, 2)));
    /// // The quota was set below the present use. What does not grow is accepted.
    /// assert_eq!(quota.exceeded(used(9), used(9)), None);
    /// ```
    pub fn exceeded(&self, before: VolumeUse, after: VolumeUse) -> Option<(QuotaFigure, u64)> {
        let limits = QuotaFigure::ALL.into_iter().filter_map(|figure| Some((figure, self.limit(figure)?)));
        let is_exceeded = |figure: QuotaFigure, most: u64| {
            after.figure(figure) > most && after.figure(figure) > before.figure(figure)
        };
        limits.into_iter().find(|(figure, most)| is_exceeded(*figure, *most))
    }
}

/// One of the two figures of a quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum QuotaFigure {
    /// The number of nodes.
    Nodes,
    /// The number of bytes.
    Bytes,
}

impl QuotaFigure {
    /// Both figures.
    pub const ALL: [Self; 2] = [Self::Nodes, Self::Bytes];
}

impl fmt::Display for QuotaFigure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nodes => "nodes",
            Self::Bytes => "bytes",
        })
    }
}

/// A number with a comma after each group of three digits: `1,048,576`.
pub(crate) struct Grouped(pub(crate) u64);

impl fmt::Display for Grouped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (place, digit) in digits.char_indices() {
            if place > 0 && (digits.len() - place).is_multiple_of(3) {
                f.write_str(",")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_thousands() {
        let written = [0, 999, 1_000, 12_345, 1_048_576, u64::MAX].map(|number| Grouped(number).to_string());
        assert_eq!(written, ["0", "999", "1,000", "12,345", "1,048,576", "18,446,744,073,709,551,615"]);
    }

    #[test]
    fn each_figure_has_its_own_limit() {
        let quota = Quota { nodes: Some(10), bytes: Some(100) };
        let used = |nodes, bytes| VolumeUse { nodes, bytes };
        assert_eq!(quota.exceeded(used(9, 99), used(10, 100)), None);
        assert_eq!(quota.exceeded(used(9, 99), used(11, 101)), Some((QuotaFigure::Nodes, 10)), "the first of both");
        // Above its limit in nodes only: writes that change no number of nodes are accepted.
        assert_eq!(quota.exceeded(used(20, 50), used(20, 60)), None);
        assert_eq!(quota.exceeded(used(20, 50), used(19, 101)), Some((QuotaFigure::Bytes, 100)));
        assert_eq!(Quota::NONE.exceeded(used(0, 0), used(u64::MAX, u64::MAX)), None);
    }
}
