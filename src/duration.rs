//! Durations as people write and read them: `500ms`, `10s`, `2m`, `1h`.

use std::time::{Duration, SystemTime};

/// The error of a text that is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("duration {got:?}: not a whole number with a unit, such as 500ms, 10s, 2m or 1h")]
pub(crate) struct DurationError {
    got: String,
}

const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

/// Parses a duration.
pub(crate) fn parse(text: &str) -> Result<Duration, DurationError> {
    let error = || DurationError { got: text.to_owned() };
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(error)?;
    let (number, unit) = text.split_at(digits);
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(error)?;
    let millis = number.parse::<u64>().ok().and_then(|number| number.checked_mul(*factor)).ok_or_else(error)?;
    Ok(Duration::from_millis(millis))
}

/// The error of a text that is neither a number of seconds nor a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("term {got:?}: not a whole number of seconds, nor of another unit, such as 60, 500ms, 2m or 1h")]
pub(crate) struct SecondsError {
    got: String,
}

/// Parses a duration. A number without a unit is in seconds, as in etcd.
pub(crate) fn seconds(text: &str) -> Result<Duration, SecondsError> {
    let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let read = if is_number { parse(&format!("{text}s")) } else { parse(text) };
    read.map_err(|DurationError { got: _ }| SecondsError { got: text.to_owned() })
}

/// The error of a text that is not a time to come.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UntilError {
    #[error("time {got:?}: not a time in UTC, such as 2026-12-24T18:00:00Z")]
    Format { got: String },
    #[error("time {got:?}: has passed, expected a time to come")]
    Passed { got: String },
}

/// Parses a time in UTC (RFC 3339), and returns the time until then by this machine's wall clock.
/// Servers and clients only ever exchange the duration (T1 in docs/PROTOCOL.md).
pub(crate) fn until(text: &str) -> Result<Duration, UntilError> {
    until_from(text, SystemTime::now())
}

fn until_from(text: &str, now: SystemTime) -> Result<Duration, UntilError> {
    let time = humantime::parse_rfc3339(text).map_err(|_| UntilError::Format { got: text.to_owned() })?;
    let left = time.duration_since(now).ok().filter(|left| *left >= Duration::from_millis(1));
    let left = left.ok_or_else(|| UntilError::Passed { got: text.to_owned() })?;
    // In whole milliseconds, as all durations that people write.
    Ok(Duration::from_millis(u64::try_from(left.as_millis()).unwrap_or(u64::MAX)))
}

/// Formats a duration exactly. [`parse`] reads it back if it has whole milliseconds.
pub(crate) fn exact(span: Duration) -> String {
    if !span.subsec_nanos().is_multiple_of(1_000_000) {
        return format!("{span:?}");
    }
    let millis = span.as_millis();
    let fits = |factor: u64| millis > 0 && millis.is_multiple_of(u128::from(factor));
    let (unit, factor) = UNITS.into_iter().rev().find(|(_, factor)| fits(*factor)).unwrap_or(("ms", 1));
    format!("{}{unit}", millis / u128::from(factor))
}

/// Formats a duration for errors, as `1h`, `90s`, `2.5s` or `200ms`.
pub(crate) fn duration_text(span: Duration) -> String {
    let is_whole = |unit: u64| span.subsec_nanos() == 0 && span.as_secs() > 0 && span.as_secs().is_multiple_of(unit);
    match span.as_secs() {
        hours if is_whole(3_600) => format!("{}h", hours / 3_600),
        minutes if is_whole(60) => format!("{}m", minutes / 60),
        _ => format!("{span:?}"),
    }
}

/// Formats a duration approximately, with about three digits.
pub(crate) fn rough(span: Duration) -> String {
    match span.as_secs_f64() {
        seconds if seconds < 1.0 => format!("{:.0} ms", seconds * 1e3),
        seconds if seconds < 60.0 => format!("{seconds:.1} s"),
        seconds if seconds < 7200.0 => format!("{:.1} min", seconds / 60.0),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}

/// Like [`rough`], and also with three digits below ten milliseconds.
pub(crate) fn short(span: Duration) -> String {
    match span.as_secs_f64() * 1e3 {
        millis if millis < 10.0 => format!("{millis:.2} ms"),
        _ => rough(span),
    }
}

/// Whole milliseconds, for JSON.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn until_is_the_time_that_is_left() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        assert_eq!(until_from("1970-01-01T00:17:40Z", now), Ok(Duration::from_secs(60)));
        assert_eq!(until_from("1970-01-01T00:16:40.5Z", now), Ok(Duration::from_millis(500)));
        for passed in ["1970-01-01T00:16:40Z", "1970-01-01T00:00:00Z"] {
            assert_eq!(until_from(passed, now), Err(UntilError::Passed { got: passed.to_owned() }));
        }
        for wrong in ["", "60", "18:00", "1970-01-01", "1970-01-01T00:17:40", "1970-01-01T00:17:40+01:00"] {
            assert_eq!(until_from(wrong, now), Err(UntilError::Format { got: wrong.to_owned() }), "{wrong}");
        }
    }

    #[test]
    fn exact_duration_is_parsed_back() {
        for text in ["0ms", "500ms", "1500ms", "10s", "90s", "2m", "1h", "36h"] {
            assert_eq!(exact(parse(text).expect(text)), text);
        }
        assert_eq!(parse("120m"), parse("2h"));
    }

    #[test]
    fn duration_in_an_error_has_the_largest_whole_unit() {
        let seconds = Duration::from_secs;
        for (span, text) in [
            (seconds(8_784 * 3_600), "8784h"),
            (seconds(120), "2m"),
            (seconds(90), "90s"),
            (Duration::from_millis(2_500), "2.5s"),
            (Duration::from_millis(200), "200ms"),
            (Duration::from_micros(20_500), "20.5ms"),
            (Duration::ZERO, "0ns"),
        ] {
            assert_eq!(duration_text(span), text);
        }
    }

    #[test]
    fn a_term_is_in_seconds_unless_it_says_otherwise() {
        assert_eq!(seconds("60"), Ok(Duration::from_secs(60)));
        assert_eq!(seconds("500ms"), Ok(Duration::from_millis(500)));
        for text in ["", "-1", "1.5", "60x", "s", "99999999999999999999"] {
            let error = seconds(text).expect_err(text).to_string();
            assert!(error.contains(&format!("term {text:?}: not")) && error.contains("such as 60"), "{error}");
        }
    }

    #[test]
    fn malformed_duration_is_refused_with_examples() {
        for text in
            ["", "10", "s", "1.5s", "-1s", "10 s", "10d", "1h30m", "99999999999999999999s", "9999999999999999999h"]
        {
            let error = parse(text).expect_err(text).to_string();
            assert!(error.contains(&format!("{text:?}")) && error.contains("500ms"), "{error}");
        }
    }
}
