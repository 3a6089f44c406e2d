//! Object terms as people write and read them: `0`, `1h`, `infinite`, `adaptive:20%:10s:24h`.

use std::time::Duration;

use leasehold_protocol::{lease_policy::ObjectTerm, volume::VolumeSettings};

use crate::duration;

/// The bounds of an adaptive term that names none.
const ADAPTIVE_BOUNDS: (Duration, Duration) = (VolumeSettings::DEFAULT.longest_term(), Duration::from_secs(24 * 3600));

/// The error of a text that is not an object term.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "object term {got:?}: not a duration such as 10m, nor 0, infinite, adaptive or adaptive:PERCENT:LEAST:MOST, such \
     as adaptive:20%:10s:24h"
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
    if parts.next() != Some("adaptive") {
        return duration::parse(text).map(ObjectTerm::from).map_err(|_| error());
    }
    let percent = match parts.next() {
        None => ObjectTerm::ADAPTIVE_PERCENT,
        Some(percent) => percent.strip_suffix('%').unwrap_or(percent).parse().map_err(|_| error())?,
    };
    let bounds: Result<Vec<Duration>, _> = parts.map(duration::parse).collect();
    let (least, most) = match bounds.map_err(|_| error())?[..] {
        [] => ADAPTIVE_BOUNDS,
        [least, most] => (least, most),
        _ => return Err(error()),
    };
    Ok(ObjectTerm::Adaptive { percent, least, most })
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
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_term_is_parsed_back() {
        for written in ["0", "1h", "1500ms", "infinite", "adaptive:20%:10s:24h", "adaptive:1%:200ms:1h"] {
            assert_eq!(text(parse(written).expect(written)), written);
        }
        assert_eq!(parse("adaptive"), parse("adaptive:20%:10s:24h"));
        assert_eq!(parse("adaptive:50"), parse("adaptive:50%:10s:24h"));
    }

    #[test]
    fn malformed_object_term_is_refused_with_examples() {
        for written in ["", "forever", "10", "adaptive:", "adaptive:x", "adaptive:20:1h", "adaptive:20:1h:2h:3h"] {
            let error = parse(written).expect_err(written).to_string();
            assert!(error.contains(&format!("{written:?}")) && error.contains("adaptive:20%:10s:24h"), "{error}");
        }
    }
}
