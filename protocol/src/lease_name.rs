//! Names of key leases. [`LeaseName::parse`] checks a name once, so every [`LeaseName`] is valid.

use std::{convert::Infallible, fmt, str::FromStr};

use arcstr::ArcStr;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::reached::{Bound, reached};

/// The longest name of a key lease, in bytes.
pub const LEASE_NAME_MAX_BYTES: usize = 256;

/// The name of a key lease, which its client chose: 1 to [`LEASE_NAME_MAX_BYTES`] bytes of UTF-8
/// without control characters. At most one lease has the name at any time. Cheap to clone.
///
/// ```
/// use leasehold_protocol::lease_name::LeaseName;
///
/// assert_eq!(LeaseName::parse("server1Lease").expect("a name").as_str(), "server1Lease");
/// assert!(LeaseName::parse("").is_err());
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseName(ArcStr);

/// The reason why a text is not the name of a key lease.
#[derive(Debug, Clone, PartialEq, Eq, Hash, thiserror::Error)]
pub enum LeaseNameError {
    /// The name is empty or too long.
    #[error("lease name: {got} bytes; expected 1 to {most}")]
    Length {
        /// Its length in bytes.
        got: usize,
        /// The bound in bytes.
        most: usize,
    },
    /// The name has a control character.
    #[error("lease name {name:?}: control character; expected a name without any")]
    ControlCharacter {
        /// The text that was given.
        name: String,
    },
}

impl LeaseName {
    /// Parses a name.
    ///
    /// # Errors
    ///
    /// [`LeaseNameError`] with the problem and what was expected.
    pub fn parse(text: &str) -> Result<Self, LeaseNameError> {
        if text.is_empty() || text.len() > LEASE_NAME_MAX_BYTES {
            reached(Bound::LeaseNameMax);
            return Err(LeaseNameError::Length { got: text.len(), most: LEASE_NAME_MAX_BYTES });
        }
        if text.contains(char::is_control) {
            return Err(LeaseNameError::ControlCharacter { name: text.to_owned() });
        }
        Ok(Self(ArcStr::from(text)))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// In quotation marks, as errors show it.
impl fmt::Debug for LeaseName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl FromStr for LeaseName {
    type Err = LeaseNameError;

    fn from_str(text: &str) -> Result<Self, LeaseNameError> {
        Self::parse(text)
    }
}

impl TryFrom<&str> for LeaseName {
    type Error = LeaseNameError;

    fn try_from(text: &str) -> Result<Self, LeaseNameError> {
        Self::parse(text)
    }
}

impl TryFrom<String> for LeaseName {
    type Error = LeaseNameError;

    fn try_from(text: String) -> Result<Self, LeaseNameError> {
        Self::parse(&text)
    }
}

impl From<&LeaseName> for LeaseName {
    fn from(name: &LeaseName) -> Self {
        name.clone()
    }
}

/// A name that is parsed already never fails to convert.
impl From<Infallible> for LeaseNameError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl Serialize for LeaseName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for LeaseName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_names_are_refused_with_what_was_expected() {
        for good in ["a", "server1Lease", "two words", "/services/web", "ü", &"x".repeat(LEASE_NAME_MAX_BYTES)] {
            assert_eq!(LeaseName::parse(good).map(|name| name.to_string()), Ok(good.to_owned()));
        }
        let most = LEASE_NAME_MAX_BYTES;
        for got in [0, most + 1] {
            assert_eq!(LeaseName::parse(&"x".repeat(got)), Err(LeaseNameError::Length { got, most }));
        }
        // Each letter takes two bytes.
        assert_eq!(LeaseName::parse(&"ü".repeat(129)), Err(LeaseNameError::Length { got: 258, most }));
        for bad in ["a\nb", "\u{7f}", "\u{85}", "\0"] {
            let error = LeaseName::parse(bad).expect_err("a control character");
            assert!(error.to_string().ends_with("expected a name without any"), "{error}");
            assert!(!error.to_string().contains(char::is_control), "{error}");
        }
    }

    #[test]
    fn malformed_name_in_a_message_does_not_decode() {
        let encoded = |text: &str| postcard::to_allocvec(text).expect("encodes");
        let name = LeaseName::parse("server1Lease").expect("a name");
        assert_eq!(postcard::from_bytes(&encoded("server1Lease")), Ok(name));
        for bad in ["", "a\nb", &"x".repeat(LEASE_NAME_MAX_BYTES + 1)] {
            assert!(postcard::from_bytes::<LeaseName>(&encoded(bad)).is_err(), "{bad:?}");
        }
    }
}
