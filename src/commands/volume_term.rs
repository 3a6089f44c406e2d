//! Volume terms as people write and read them: `10s`, `adaptive`, `adaptive:10s:60s:100`.

use std::time::Duration;

use leasehold_protocol::volume::{VolumeSettings, VolumeTerm};

use crate::duration;

/// The bounds of an adaptive term that names none: a volume's usual term, and the longest of
/// Chubby's.
const ADAPTIVE_BOUNDS: (Duration, Duration) = (VolumeSettings::DEFAULT.longest_term(), Duration::from_secs(60));

/// The error of a text that is not a volume term.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "volume term {got:?}: not a duration such as 10s, nor adaptive, adaptive:LEAST:MOST or \
     adaptive:LEAST:MOST:RENEWALS_PER_SECOND, such as adaptive:10s:60s:100"
)]
pub(crate) struct VolumeTermError {
    got: String,
}

/// Parses a volume term. The server checks its bounds.
pub(crate) fn parse(text: &str) -> Result<VolumeTerm, VolumeTermError> {
    let error = || VolumeTermError { got: text.to_owned() };
    let Some(rest) = text.strip_prefix("adaptive") else {
        return duration::parse(text).map(VolumeTerm::from).map_err(|_| error());
    };
    let parts: Vec<&str> = rest.split(':').collect();
    let (bounds, rate) = match parts[..] {
        [""] => (None, None),
        ["", least, most] => (Some((least, most)), None),
        ["", least, most, rate] => (Some((least, most)), Some(rate)),
        _ => return Err(error()),
    };
    let parse = |bound| duration::parse(bound).map_err(|_| error());
    let (least, most) = match bounds {
        None => ADAPTIVE_BOUNDS,
        Some((least, most)) => (parse(least)?, parse(most)?),
    };
    let rate = rate.map(|rate| rate.parse().map_err(|_| error())).transpose()?;
    let renewals_per_second = rate.unwrap_or(VolumeTerm::RENEWALS_PER_SECOND);
    Ok(VolumeTerm::Adaptive { least, most, renewals_per_second })
}

/// Formats a volume term. [`parse`] reads it back if its durations have whole milliseconds.
pub(crate) fn text(term: VolumeTerm) -> String {
    match term {
        VolumeTerm::Fixed(term) => duration::exact(term),
        VolumeTerm::Adaptive { least, most, renewals_per_second } => {
            format!("adaptive:{}:{}:{renewals_per_second}", duration::exact(least), duration::exact(most))
        }
    }
}

/// The margin of a volume that gets another term and is given no margin: it keeps its share of the
/// longest term. Two clocks drift apart in proportion to the term (T3).
pub(crate) fn margin(base: &VolumeSettings, term: VolumeTerm) -> Duration {
    let [margin, old, new] = [base.skew_margin(), base.longest_term(), term.longest()].map(|span| span.as_micros());
    let micros = (margin * new).div_ceil(old.max(1));
    Duration::from_micros(u64::try_from(micros).unwrap_or(u64::MAX)).min(VolumeSettings::SKEW_MARGIN_MAX)
}

#[cfg(test)]
mod tests {
    use leasehold_protocol::{lease_policy::ObjectTerm, time::DriftAllowance, volume::Tracking};

    use super::*;

    #[test]
    fn margin_that_follows_the_term_is_accepted_for_each_term() {
        let (base, drift) = (VolumeSettings::DEFAULT, DriftAllowance::DEFAULT);
        let margin_of = |term: VolumeTerm| {
            let margin = margin(&base, term);
            let settings = VolumeSettings::new(term, ObjectTerm::Zero, margin, Tracking::Objects, drift);
            assert_eq!(settings.map(|settings| self::margin(&settings, base.term())), Ok(base.skew_margin()));
            margin
        };
        for (term, millis) in [("200ms", 2), ("5s", 50), ("10s", 100), ("1h", 36_000), ("adaptive:10s:60s:100", 600)] {
            assert_eq!(margin_of(parse(term).expect(term)), Duration::from_millis(millis), "{term}");
        }
        for seconds in 1..=86_400 {
            margin_of(Duration::from_secs(seconds).into());
        }
    }

    #[test]
    fn margin_that_follows_the_term_is_bounded() {
        let day = VolumeTerm::Fixed(VolumeSettings::TERM_MAX);
        let drift = DriftAllowance::DEFAULT;
        let second = Duration::from_secs(1);
        let wide = VolumeSettings::new(second, ObjectTerm::Zero, second, Tracking::Objects, drift).expect("valid");
        assert_eq!(margin(&wide, day), VolumeSettings::SKEW_MARGIN_MAX);
    }

    #[test]
    fn volume_term_is_parsed_back() {
        for written in ["10s", "1500ms", "adaptive:10s:1m:100", "adaptive:200ms:24h:1"] {
            assert_eq!(text(parse(written).expect(written)), written);
        }
        assert_eq!(parse("adaptive"), parse("adaptive:10s:60s:100"));
        assert_eq!(parse("adaptive:5s:20s"), parse("adaptive:5s:20s:100"));
    }

    #[test]
    fn malformed_volume_term_is_refused_with_examples() {
        let malformed = ["", "forever", "10", "adaptive:", "adaptive:10s", "adaptive:x:60s", "adaptivex:1s:2s"];
        for written in malformed.into_iter().chain(["adaptive:1s:2s:-1", "adaptive:1s:2s:3:4", "adaptive:1s:2s:"]) {
            let error = parse(written).expect_err(written).to_string();
            assert!(error.contains(&format!("{written:?}")) && error.contains("adaptive:10s:60s:100"), "{error}");
        }
    }
}
