//! The limits of a volume as people write and read them: `1000`, `64MiB`, `none`.

use leasehold_protocol::quota::Quota;

/// The units of sizes, the largest first.
const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];

/// A limit, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QuotaLimit(pub(crate) Option<u64>);

/// A limit of leases, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeaseLimit(pub(crate) Option<u32>);

/// The error of a text that is not a limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("limit {got:?}: not {expected}, nor none")]
pub(crate) struct QuotaLimitError {
    got: String,
    expected: &'static str,
}

/// Parses a number of nodes, or `none`.
pub(crate) fn count(text: &str) -> Result<QuotaLimit, QuotaLimitError> {
    if text == "none" {
        return Ok(QuotaLimit(None));
    }
    let expected = "a number such as 1000";
    text.parse().map(|limit| QuotaLimit(Some(limit))).map_err(|_| QuotaLimitError { got: text.to_owned(), expected })
}

/// Parses a number of leases, or `none`.
pub(crate) fn leases(text: &str) -> Result<LeaseLimit, QuotaLimitError> {
    if text == "none" {
        return Ok(LeaseLimit(None));
    }
    let expected = "a number such as 1000, at most 4294967295";
    text.parse().map(|limit| LeaseLimit(Some(limit))).map_err(|_| QuotaLimitError { got: text.to_owned(), expected })
}

/// Parses a number of bytes, perhaps with a unit, or `none`.
pub(crate) fn size(text: &str) -> Result<QuotaLimit, QuotaLimitError> {
    if text == "none" {
        return Ok(QuotaLimit(None));
    }
    let (digits, unit) =
        UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit))).unwrap_or((text, 1));
    let bytes = digits.parse().ok().and_then(|number: u64| number.checked_mul(unit));
    let error =
        || QuotaLimitError { got: text.to_owned(), expected: "a number of bytes such as 4096, 64KiB, 10MiB or 1GiB" };
    bytes.map(|bytes| QuotaLimit(Some(bytes))).ok_or_else(error)
}

/// The number of nodes or bytes that a volume has, and its limit if there is one.
pub(crate) fn text(used: u64, limit: Option<u64>) -> String {
    limit.map_or_else(|| used.to_string(), |limit| format!("{used} of {limit}"))
}

/// `base` with the given limits.
pub(crate) fn changed(base: Quota, nodes: Option<QuotaLimit>, bytes: Option<QuotaLimit>) -> Quota {
    let limit = |given: Option<QuotaLimit>, base| given.map_or(base, |QuotaLimit(limit)| limit);
    Quota { nodes: limit(nodes, base.nodes), bytes: limit(bytes, base.bytes) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_parsed_with_their_units() {
        assert_eq!(count("1000"), Ok(QuotaLimit(Some(1000))));
        let sizes = ["0", "4096", "64KiB", "10MiB", "1GiB", "2TiB"];
        let bytes = [0, 4096, 64 << 10, 10 << 20, 1 << 30, 2 << 40];
        assert_eq!(sizes.map(size), bytes.map(|bytes| Ok(QuotaLimit(Some(bytes)))));
        assert_eq!((count("none"), size("none")), (Ok(QuotaLimit(None)), Ok(QuotaLimit(None))));
    }

    #[test]
    fn malformed_limit_is_refused_with_examples() {
        for text in ["", "-1", "1k", "many", "1.5"] {
            let error = count(text).expect_err(text).to_string();
            assert_eq!(error, format!("limit {text:?}: not a number such as 1000, nor none"));
        }
        for text in ["", "MiB", "1 MiB", "1mb", "99999999TiB"] {
            let error = size(text).expect_err(text).to_string();
            assert!(error.starts_with(&format!("limit {text:?}: not a number of bytes such as 4096")), "{error}");
        }
    }

    #[test]
    fn limits_that_are_not_given_stay() {
        let base = Quota { nodes: Some(1), bytes: Some(2) };
        assert_eq!(changed(base, None, None), base);
        assert_eq!(
            changed(base, Some(QuotaLimit(None)), Some(QuotaLimit(Some(3)))),
            Quota { nodes: None, bytes: Some(3) }
        );
        assert_eq!((text(7, None), text(7, Some(9))), ("7".to_owned(), "7 of 9".to_owned()));
    }
}
