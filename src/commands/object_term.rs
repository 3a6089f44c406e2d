//! Object terms as people write and read them: `0`, `1h`, `infinite`, `adaptive:20%:10s:24h`,
//! `by-use:10s:24h`.

use std::time::Duration;

use leasehold_protocol::{lease_policy::ObjectTerm, volume::VolumeSettings};

use crate::duration;

/// The bounds of a term that adapts and names none.
const ADAPTIVE_BOUNDS: (Duration, Duration) = (VolumeSettings::DEFAULT.longest_term(), Duration::from_secs(24 * 3600));

/// The error of a text that is not an object term.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "object term {got:?}: not a duration such as 10m, nor 0, infinite, adaptive or adaptive:PERCENT:LEAST:MOST, such \
     as adaptive:20%:10s:24h, nor by-use or by-use:LEAST:MOST, such as by-use:10s:24h"
)]
pub(crate) struct ObjectTermError {
    got: String,
}

/// Parses an object term. The server checks its bounds.
pub(crate) fn parse(text: &str) -> Result<ObjectTerm, ObjectTermError> {
    let error = || ObjectTermError { got: text.to_owned() };
    match text {
        "0" => return Ok(ObjectTerm::Zero),
        "infinite" => return Ok(ObjectTerm::Infinite),
        _ => {}
    }
    let mut parts = text.split(':');
    match parts.next() {
        Some("adaptive") => {}
        Some("by-use") => {
            let (least, most) = bounds(parts).ok_or_else(error)?;
            return Ok(ObjectTerm::ByUse { least, most });
        }
        _ => return duration::parse(text).map(ObjectTerm::from).map_err(|_| error()),
    }
    let percent = match parts.next() {
        None => ObjectTerm::ADAPTIVE_PERCENT,
        Some(percent) => percent.strip_suffix('%').unwrap_or(percent).parse().map_err(|_| error())?,
    };
    let (least, most) = bounds(parts).ok_or_else(error)?;
    Ok(ObjectTerm::Adaptive { percent, least, most })
}

/// The two bounds of a term that adapts, or the usual ones if there are none.
fn bounds<'a>(parts: impl Iterator<Item = &'a str>) -> Option<(Duration, Duration)> {
    let bounds: Vec<Duration> = parts.map(|part| duration::parse(part).ok()).collect::<Option<_>>()?;
    match bounds[..] {
        [] => Some(ADAPTIVE_BOUNDS),
        [least, most] => Some((least, most)),
        _ => None,
    }
}

/// Formats an object term. [`parse`] reads it back if its durations have whole milliseconds.
pub(crate) fn text(term: ObjectTerm) -> String {
    match term {
        ObjectTerm::Zero => "0".to_owned(),
        ObjectTerm::Fixed(term) => duration::exact(term),
        ObjectTerm::Infinite => "infinite".to_owned(),
        ObjectTerm::Adaptive { percent, least, most } => {
            format!("adaptive:{percent}%:{}:{}", duration::exact(least), duration::exact(most))
        }
        ObjectTerm::ByUse { least, most } => format!("by-use:{}:{}", duration::exact(least), duration::exact(most)),
    }
}

/// The term, and the present one if it follows the use of the volume.
pub(crate) fn with_present(term: ObjectTerm, present: ObjectTerm) -> String {
    match (term, present) {
        (ObjectTerm::ByUse { .. }, ObjectTerm::Zero) => format!("{} (now none)", text(term)),
        (ObjectTerm::ByUse { .. }, now) => format!("{} (now {})", text(term), text(now)),
        _ => text(term),
    }
}

/// The longest term in milliseconds; `None` if it is infinite.
pub(crate) fn millis(term: ObjectTerm) -> Option<u64> {
    (term != ObjectTerm::Infinite).then(|| duration::millis(term.longest()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_term_is_parsed_back() {
        for written in ["0", "1h", "1500ms", "infinite", "adaptive:20%:10s:24h", "by-use:200ms:1h"] {
            assert_eq!(text(parse(written).expect(written)), written);
        }
        assert_eq!(parse("adaptive"), parse("adaptive:20%:10s:24h"));
        assert_eq!(parse("adaptive:50"), parse("adaptive:50%:10s:24h"));
        assert_eq!(parse("by-use"), parse("by-use:10s:24h"));
    }

    #[test]
    fn term_by_use_is_shown_with_the_present_one() {
        let by_use = parse("by-use:1s:1m").expect("valid");
        assert_eq!(with_present(by_use, ObjectTerm::Zero), "by-use:1s:1m (now none)");
        assert_eq!(with_present(by_use, ObjectTerm::Fixed(Duration::from_secs(4))), "by-use:1s:1m (now 4s)");
        assert_eq!(with_present(ObjectTerm::Infinite, ObjectTerm::Infinite), "infinite");
    }

    #[test]
    fn malformed_object_term_is_refused_with_examples() {
        let malformed = [
            "",
            "forever",
            "10",
            "adaptive:",
            "adaptive:x",
            "adaptive:20:1h",
            "adaptive:20:1h:2h:3h",
            "by-use:1h",
            "by-use:x",
        ];
        for written in malformed {
            let error = parse(written).expect_err(written).to_string();
            assert!(error.contains(&format!("{written:?}")) && error.contains("by-use:10s:24h"), "{error}");
        }
    }
}
