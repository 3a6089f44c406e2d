//! The term of a volume's leases: fixed, or adapted to the number of its holders ([`VolumeTerm`]).

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{VolumeError, VolumeSettings};
use crate::{
    reached::{Bound, reached},
    time::Span,
};

/// How long the leases on a volume last.
///
/// A client renews each lease in use at least once in its term. So if very many clients have short
/// terms, the leader has many requests. An adaptive term grows with the number of leases on the
/// volume, and holds their renewals at a rate. Under load, Chubby lengthens its session leases from
/// 12 s to 60 s (Burrows 2006). Duvvuri, Shenoy and Tewari (2000) adapt terms to the state of a
/// server.
///
/// Every replica computes the same term from the replicated leases. A lease gets the present term
/// when it is granted and with each renewal. A shorter term never shortens an earlier promise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum VolumeTerm {
    /// Each lease lasts this long.
    Fixed(Duration),
    /// The leases on the volume share a rate of renewals: the term is their number divided by the
    /// rate, within bounds.
    Adaptive {
        /// The shortest term, for few leases.
        least: Duration,
        /// The longest term. It bounds how long a dead client can delay a write.
        most: Duration,
        /// The renewals of all leases together in a second, if each is renewed once in its term. At
        /// least 1.
        renewals_per_second: u32,
    },
}

impl VolumeTerm {
    /// The longest adaptive term is at most this many times the shortest. A client tries to renew a
    /// lease at intervals of at least a sixteenth of the term that it knows. So it notices a much
    /// shorter term in time.
    pub const SPREAD: u32 = 10;

    /// The rate of an adaptive term that names none.
    pub const RENEWALS_PER_SECOND: u32 = 100;

    /// The term if there are this many leases on the volume.
    ///
    /// ```
    /// use std::time::Duration;
    /// use leasehold_protocol::volume::VolumeTerm;
    ///
    /// let seconds = Duration::from_secs;
    /// let (least, most) = (seconds(12), seconds(60));
    /// let chubby = VolumeTerm::Adaptive { least, most, renewals_per_second: 100 };
    /// assert_eq!(chubby.for_leases(1_000), seconds(12));
    /// assert_eq!(chubby.for_leases(3_000), seconds(30));
    /// assert_eq!(chubby.for_leases(90_000), seconds(60));
    /// ```
    pub fn for_leases(self, leases: u64) -> Duration {
        match self {
            Self::Fixed(term) => term,
            Self::Adaptive { least, most, renewals_per_second } => {
                let micros = leases.saturating_mul(1_000_000) / u64::from(renewals_per_second.max(1));
                Duration::from_micros(micros).max(least).min(most)
            }
        }
    }

    /// Checks the bounds of the term.
    pub(super) fn check(self) -> Result<(), VolumeError> {
        let (least, most) = (VolumeSettings::TERM_MIN, VolumeSettings::TERM_MAX);
        if self.longest() > most {
            reached(Bound::TermMax);
        }
        if self.shortest() < least || self.longest() > most {
            let got = if self.shortest() < least { self.shortest() } else { self.longest() };
            return Err(VolumeError::Term { got, least, most });
        }
        match self {
            Self::Adaptive { least, most, .. } if least > most => Err(VolumeError::TermOrder { least, most }),
            Self::Adaptive { least, most, .. } if most > least * Self::SPREAD => {
                Err(VolumeError::TermSpread { least, most, times: Self::SPREAD })
            }
            Self::Adaptive { renewals_per_second: 0, .. } => Err(VolumeError::RenewalRate),
            Self::Adaptive { .. } | Self::Fixed(_) => Ok(()),
        }
    }

    /// The shortest term of any lease on the volume.
    pub const fn shortest(self) -> Duration {
        match self {
            Self::Fixed(term) => term,
            Self::Adaptive { least, .. } => least,
        }
    }

    /// The longest term of any lease on the volume.
    pub const fn longest(self) -> Duration {
        match self {
            Self::Fixed(term) => term,
            Self::Adaptive { most, .. } => most,
        }
    }
}

/// A [`VolumeTerm`] that takes little memory. It has whole microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct PackedTerm {
    least: Span,
    most: Span,
    /// `None` for a fixed term.
    renewals_per_second: Option<u32>,
}

impl VolumeTerm {
    pub(super) const fn pack(self) -> PackedTerm {
        let renewals_per_second = match self {
            Self::Fixed(_) => None,
            Self::Adaptive { renewals_per_second, .. } => Some(renewals_per_second),
        };
        PackedTerm { least: Span::of(self.shortest()), most: Span::of(self.longest()), renewals_per_second }
    }
}

impl PackedTerm {
    pub(super) const fn unpack(self) -> VolumeTerm {
        let (least, most) = (self.least.duration(), self.most.duration());
        match self.renewals_per_second {
            None => VolumeTerm::Fixed(least),
            Some(renewals_per_second) => VolumeTerm::Adaptive { least, most, renewals_per_second },
        }
    }
}

impl From<Duration> for VolumeTerm {
    fn from(term: Duration) -> Self {
        Self::Fixed(term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{lease_policy::OnWrite, time::DriftAllowance, volume::Tracking};

    const SECOND: Duration = Duration::from_secs(1);

    fn adaptive(least: u64, most: u64, renewals_per_second: u32) -> VolumeTerm {
        VolumeTerm::Adaptive { least: Duration::from_secs(least), most: Duration::from_secs(most), renewals_per_second }
    }

    fn settings(term: VolumeTerm) -> Result<VolumeSettings, VolumeError> {
        let drift = DriftAllowance::DEFAULT;
        VolumeSettings::new(term, Duration::from_secs(3600), SECOND, Tracking::Objects, drift)
    }

    #[test]
    fn renewals_stay_at_the_rate_between_the_bounds() {
        let term = adaptive(10, 60, 100);
        for leases in 0..=10_000 {
            let now = term.for_leases(leases);
            let rate = leases as f64 / now.as_secs_f64();
            match now.as_secs() {
                10 => assert!(rate <= 110.0, "{leases} leases: {rate}"),
                60 => assert!(rate >= 100.0, "{leases} leases: {rate}"),
                _ => assert!((rate - 100.0).abs() < 0.1, "{leases} leases: {rate}"),
            }
        }
        assert_eq!(term.for_leases(u64::MAX), Duration::from_secs(60));
    }

    #[test]
    fn bounds_of_adaptive_terms_are_checked() {
        assert!(settings(adaptive(10, 60, 1)).is_ok());
        assert!(matches!(settings(adaptive(60, 10, 1)), Err(VolumeError::TermOrder { .. })));
        assert!(matches!(settings(adaptive(0, 10, 1)), Err(VolumeError::Term { got: Duration::ZERO, .. })));
        let day = 24 * 3600;
        assert!(matches!(settings(adaptive(10, day + 1, 1)), Err(VolumeError::Term { .. })));
        assert!(matches!(settings(adaptive(10, 60, 0)), Err(VolumeError::RenewalRate)));
        assert!(settings(adaptive(10, 100, 1)).is_ok());
        assert!(matches!(settings(adaptive(10, 101, 1)), Err(VolumeError::TermSpread { .. })));
    }

    #[test]
    fn margin_covers_the_drift_over_the_longest_term() {
        let (drift, hour) = (DriftAllowance::DEFAULT, Duration::from_secs(3600));
        let term = adaptive(360, 3600, 1);
        let least = (drift.over(hour + VolumeSettings::DEFAULT.tick())) * 2;
        let new = |margin| VolumeSettings::new(term, hour, margin, Tracking::Objects, drift);
        assert!(matches!(new(least), Err(VolumeError::SkewMargin { .. })));
        assert!(new(least + Duration::from_micros(1)).is_ok());
    }

    #[test]
    fn waited_object_terms_stay_within_the_shortest_term() {
        let usual = settings(adaptive(10, 60, 1)).expect("valid");
        let with = |seconds| usual.with_policy(seconds * SECOND, OnWrite::Wait, usual.grants());
        assert!(with(10).is_ok());
        assert!(matches!(with(11), Err(VolumeError::WaitTooLong { .. })));
    }

    #[test]
    fn tick_follows_the_shortest_term() {
        let term = adaptive(1, 10, 1);
        assert_eq!(settings(term).expect("valid").tick(), SECOND / 10);
    }
}
