//! Why the settings of a volume are refused.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::lease_policy::ObjectTerm;

/// The reason why settings are refused, with the numbers.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
pub enum VolumeError {
    /// The volume term is out of bounds.
    #[error("volume term {got:?}: out of range; expected {least:?} to {most:?}")]
    Term {
        /// The requested term.
        got: Duration,
        /// The lower bound.
        least: Duration,
        /// The upper bound.
        most: Duration,
    },
    /// The lower bound of an adaptive volume term is above its upper bound.
    #[error("adaptive volume term of {least:?} to {most:?}: expected the shorter term first")]
    TermOrder {
        /// The shortest term.
        least: Duration,
        /// The longest term.
        most: Duration,
    },
    /// The bounds of an adaptive volume term are too far apart.
    #[error("adaptive volume term of {least:?} to {most:?}: expected at most {times} times the shorter term")]
    TermSpread {
        /// The shortest term.
        least: Duration,
        /// The longest term.
        most: Duration,
        /// How many times the shortest term the longest may be.
        times: u32,
    },
    /// An adaptive volume term allows no renewals.
    #[error("adaptive volume term of 0 renewals in a second: expected at least 1")]
    RenewalRate,
    /// The object term is out of bounds.
    #[error("object term {got:?}: out of range; expected {least:?} to {most:?}")]
    ObjectTerm {
        /// The requested term.
        got: Duration,
        /// The lower bound.
        least: Duration,
        /// The upper bound.
        most: Duration,
    },
    /// Writes wait for the end of object leases, and these could outlast a volume lease.
    #[error("object term {got}: out of range for writes that send no recall; expected {least:?} to {most:?}")]
    WaitTooLong {
        /// The requested term.
        got: ObjectTerm,
        /// The lower bound.
        least: Duration,
        /// The upper bound: the shortest volume term, or less.
        most: Duration,
    },
    /// The share of an adaptive object term is out of bounds.
    #[error("adaptive object term of {got} %: out of range; expected 1 to 100 % of an object's age")]
    Share {
        /// The requested share, in percent.
        got: u32,
    },
    /// The lower bound of an adaptive object term, or of one by use, is above its upper bound.
    #[error("object term of {least:?} to {most:?}: expected the shorter term first")]
    AdaptiveOrder {
        /// The shortest term.
        least: Duration,
        /// The longest term.
        most: Duration,
    },
    /// The term of a first lease is out of bounds.
    #[error("first object term {got:?}: out of range; expected {least:?} to {most:?}")]
    FirstTerm {
        /// The requested term.
        got: Duration,
        /// The lower bound.
        least: Duration,
        /// The upper bound.
        most: Duration,
    },
    /// The margin does not cover the drift of two clocks (T3), or is too long.
    #[error(
        "skew margin {got:?}: out of range; expected more than {least:?} and at most {most:?}; \
         two clocks that each drift by {drift_ppm} ppm differ by {least:?} after a term and a \
         tick, {over:?}"
    )]
    SkewMargin {
        /// The requested margin.
        got: Duration,
        /// The margin must be greater than this.
        least: Duration,
        /// The upper bound.
        most: Duration,
        /// The drift allowance of each clock, in parts per million.
        drift_ppm: u32,
        /// The time over which the clocks drift: the longest volume term and a tick.
        over: Duration,
    },
}
