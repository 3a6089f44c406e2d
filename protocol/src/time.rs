//! Time as a value.
//!
//! Nothing in this crate reads a clock (T7). Two kinds of time are inputs, and have different
//! types:
//!
//! - [`Instant`] is a reading of one machine's own clock, which counts suspended time (T1).
//! - [`ClusterTime`] is a time of the replicated clock, in which replicated leases end (T4).
//!
//! Only durations are on the wire between clients and servers. All arithmetic saturates, so no
//! remaining time can be negative or wrap around.

use std::{fmt, time::Duration};

use serde::{Deserialize, Serialize};

macro_rules! time {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        pub struct $name(u64);

        impl $name {
            /// The origin of the clock.
            pub const ZERO: Self = Self(0);

            /// The time that is `micros` microseconds after the origin.
            pub const fn from_micros(micros: u64) -> Self {
                Self(micros)
            }

            /// Microseconds since the origin.
            pub const fn as_micros(self) -> u64 {
                self.0
            }

            /// The time `span` later, at most the greatest possible time.
            #[must_use]
            pub fn after(self, span: Duration) -> Self {
                Self(self.0.saturating_add(micros(span)))
            }

            /// The time `span` earlier, at least the origin.
            #[must_use]
            pub fn before(self, span: Duration) -> Self {
                Self(self.0.saturating_sub(micros(span)))
            }

            /// The time from `earlier` to this time. Zero if `earlier` is later.
            pub fn since(self, earlier: Self) -> Duration {
                Duration::from_micros(self.0.saturating_sub(earlier.0))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}.{:06}s", self.0 / 1_000_000, self.0 % 1_000_000)
            }
        }
    };
}

time! {
    /// A reading of this machine's own clock, in microseconds. The clock counts the time during
    /// which the machine is suspended (`CLOCK_BOOTTIME` on Linux). The code never compares readings
    /// of two machines (T1).
    Instant
}

time! {
    /// A time of the replicated clock, in microseconds. The clock runs only while there is a leader
    /// (T4; LogCabin's cluster clock).
    ClusterTime
}

/// A length of time in whole microseconds, at most `u64::MAX`. It takes half the memory of a
/// [`Duration`], which matters because there may be millions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(crate) struct Span(u64);

impl Span {
    /// Rounds down to microseconds.
    pub(crate) const fn of(span: Duration) -> Self {
        match span.as_micros() {
            micros if micros > u64::MAX as u128 => Self(u64::MAX),
            micros => Self(micros as u64),
        }
    }

    pub(crate) const fn duration(self) -> Duration {
        Duration::from_micros(self.0)
    }
}

impl From<Duration> for Span {
    /// Rounds down to microseconds.
    fn from(span: Duration) -> Self {
        Self(micros(span))
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

/// How far a machine's clock may differ from true time, in parts per million. The bound is the same
/// in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct DriftAllowance {
    ppm: u32,
}

/// The requested drift allowance is too large.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error, Serialize, Deserialize)]
#[error("drift allowance {got_ppm} ppm: exceeds the limit of {} ppm", DriftAllowance::MAX_PPM)]
pub struct DriftError {
    /// The requested allowance, in parts per million.
    pub got_ppm: u32,
}

impl Default for DriftAllowance {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl DriftAllowance {
    /// A tenth: no usable clock is worse.
    pub const MAX_PPM: u32 = 100_000;

    /// 0.1 %: ten times the drift of ordinary crystals.
    pub const DEFAULT: Self = Self { ppm: 1_000 };

    /// Makes an allowance from parts per million.
    ///
    /// # Errors
    ///
    /// [`DriftError`] above [`DriftAllowance::MAX_PPM`].
    pub fn from_ppm(ppm: u32) -> Result<Self, DriftError> {
        if ppm > Self::MAX_PPM { Err(DriftError { got_ppm: ppm }) } else { Ok(Self { ppm }) }
    }

    /// The allowance in parts per million.
    pub fn ppm(self) -> u32 {
        self.ppm
    }

    /// How far one clock can differ from true time after `span`, rounded up.
    pub fn over(self, span: Duration) -> Duration {
        let micros = span.as_micros().saturating_mul(u128::from(self.ppm)).div_ceil(1_000_000);
        Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }

    /// The term, shortened by the allowance, as a client counts it (T2).
    pub fn shorten(self, term: Duration) -> Duration {
        term.saturating_sub(self.over(term))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        assert_eq!(Instant::from_micros(5).before(Duration::from_secs(1)), Instant::ZERO);
        assert_eq!(Instant::from_micros(u64::MAX).after(Duration::MAX), Instant::from_micros(u64::MAX));
        assert_eq!(Instant::ZERO.since(Instant::from_micros(9)), Duration::ZERO);
    }

    #[test]
    fn a_client_counts_a_term_short() {
        let drift = DriftAllowance::from_ppm(10_000).expect("within bounds");
        assert_eq!(drift.shorten(Duration::from_secs(10)), Duration::from_millis(9_900));
        assert_eq!(drift.over(Duration::from_micros(1)), Duration::from_micros(1), "rounded up");
        assert_eq!(DriftAllowance::from_ppm(100_001), Err(DriftError { got_ppm: 100_001 }));
    }
}
