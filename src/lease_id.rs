//! Lease ids as etcdctl writes them: 16 hexadecimal digits.

use std::num::NonZeroU64;

use leasehold_client_cache::{Attach, LeaseId, LeaseName};

/// The error of a text that is not a lease id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("lease id {got:?}: not 1 to 16 hexadecimal digits, or all 0; write it as 694d81417acd4754")]
pub(crate) struct IdError {
    got: String,
}

/// Parses a lease id as etcdctl does.
pub(crate) fn parse(text: &str) -> Result<LeaseId, IdError> {
    let is_digits = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u64::from_str_radix(text, 16).ok().filter(|_| is_digits).and_then(NonZeroU64::new);
    number.map(|number| LeaseId(number.get())).ok_or_else(|| IdError { got: text.to_owned() })
}

/// The lease of a put: that of `--lease` or that of `--lease-name`. By default none.
pub(crate) fn attach(id: Option<LeaseId>, name: Option<LeaseName>) -> Attach {
    let by_name = name.map_or(Attach::Nothing, Attach::LeaseNamed);
    id.map_or(by_name, Attach::Lease)
}

/// Formats a lease id as etcdctl does.
pub(crate) fn hex(id: LeaseId) -> String {
    format!("{id:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_hexadecimal_as_etcdctl_prints_and_takes_them() {
        for (taken, printed) in [("694d81417acd4754", "694d81417acd4754"), ("7B", "000000000000007b")] {
            assert_eq!(hex(parse(taken).expect(taken)), printed);
        }
        for wrong in ["", "0", "0000000000000000", "xyz", "+1", "-1", "0x7b", "1694d81417acd4754"] {
            let error = parse(wrong).expect_err(wrong).to_string();
            assert!(error.contains("hexadecimal digits"), "{error}");
        }
    }
}
