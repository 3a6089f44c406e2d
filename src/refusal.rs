//! The texts of refusals. Those of the protocol show durations in Rust's notation, such as
//! `86400s`.

use std::time::Duration;

use leasehold_protocol::{limits::LimitError, volume::VolumeError};

use crate::{commands::object_term, duration::duration_text};

/// The text of a limit, with durations such as `24h`.
pub(crate) fn limit_text(error: &LimitError) -> String {
    match error {
        LimitError::Ttl { got, least, most } => {
            let [got, least, most] = [got, least, most].map(|span| duration_text(*span));
            format!("TTL {got} of a key lease: out of range; expected {least} to {most}")
        }
        LimitError::LockDelay { path, got, most } => {
            format!("{path}: lock delay {} exceeds the limit of {}", duration_text(*got), duration_text(*most))
        }
        error => error.to_string(),
    }
}

/// The text of wrong settings of a volume, with durations such as `24h`.
pub(crate) fn volume_text(error: &VolumeError) -> String {
    let range = |what: &str, [got, least, most]: [&Duration; 3]| {
        let [got, least, most] = [got, least, most].map(|span| duration_text(*span));
        format!("{what} {got}: out of range; expected {least} to {most}")
    };
    let order = |what: &str, least, most, rest: &str| {
        format!("{what} term of {} to {}: expected {rest}", duration_text(least), duration_text(most))
    };
    match error {
        VolumeError::Term { got, least, most } => range("volume term", [got, least, most]),
        VolumeError::ObjectTerm { got, least, most } => range("object term", [got, least, most]),
        VolumeError::FirstTerm { got, least, most } => range("first object term", [got, least, most]),
        VolumeError::TermOrder { least, most } => order("adaptive volume", *least, *most, "the shorter term first"),
        VolumeError::AdaptiveOrder { least, most } => order("object", *least, *most, "the shorter term first"),
        VolumeError::TermSpread { least, most, times } => {
            order("adaptive volume", *least, *most, &format!("at most {times} times the shorter term"))
        }
        VolumeError::WaitTooLong { got, least, most } => {
            let (got, least, most) = (object_term::text(*got), duration_text(*least), duration_text(*most));
            format!("object term {got}: out of range for writes that send no recall; expected {least} to {most}")
        }
        VolumeError::SkewMargin { got, least, most, drift_ppm, over } => {
            let [got, least, most, over] = [got, least, most, over].map(|span| duration_text(*span));
            format!(
                "skew margin {got}: out of range; expected more than {least} and at most {most}; two clocks that each \
                 drift by {drift_ppm} ppm differ by {least} after a term and a tick, {over}"
            )
        }
        VolumeError::RenewalRate | VolumeError::Share { .. } => error.to_string(),
    }
}
