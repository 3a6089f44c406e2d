//! How calls refer to key leases: by id, or by name.

use std::fmt;

use leasehold_protocol::{
    command::Attach,
    id::LeaseId,
    lease_name::{LeaseName, LeaseNameError},
};

/// A key lease as a call refers to it: by its id, or by the name that
/// [`GrantLeaseBuilder::name`](crate::GrantLeaseBuilder::name) gave it. Calls take either directly.
/// A text is always a name, even if it looks like an id.
///
/// A name means the lease that has it when the request arrives at the leader. If that lease has
/// ended when the request takes effect, nothing changes, even if another lease has the name by
/// then.
///
/// ```no_run
/// # async fn example(client: leasehold_client_cache::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
///
/// let id = client.grant_lease(Duration::from_secs(60)).name("server1Lease").await?;
/// client.put("/servers/1", "10.0.0.1:80").lease("server1Lease").await?;
/// assert_eq!(client.lease("server1Lease").await?, client.lease(id).await?);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum LeaseRef {
    /// The lease with this id.
    Id(LeaseId),
    /// The lease with this name.
    Name(LeaseName),
}

/// A reference as the application gave it. The call reports a bad name, so that a builder cannot
/// fail.
pub(crate) type GivenLease = Result<LeaseRef, LeaseNameError>;

/// Parses a reference. This is the only part of a call that is compiled once for each type.
pub(crate) fn given_lease(lease: impl TryInto<LeaseRef, Error: Into<LeaseNameError>>) -> GivenLease {
    lease.try_into().map_err(Into::into)
}

/// As errors name the lease: the id in hexadecimal, or the name in quotation marks.
impl fmt::Display for LeaseRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => write!(f, "{id:016x}"),
            Self::Name(name) => write!(f, "{name:?}"),
        }
    }
}

impl From<LeaseRef> for Attach {
    fn from(lease: LeaseRef) -> Self {
        match lease {
            LeaseRef::Id(id) => Self::Lease(id),
            LeaseRef::Name(name) => Self::LeaseNamed(name),
        }
    }
}

impl From<LeaseId> for LeaseRef {
    fn from(id: LeaseId) -> Self {
        Self::Id(id)
    }
}

impl From<LeaseName> for LeaseRef {
    fn from(name: LeaseName) -> Self {
        Self::Name(name)
    }
}

impl From<&LeaseName> for LeaseRef {
    fn from(name: &LeaseName) -> Self {
        Self::Name(name.clone())
    }
}

impl TryFrom<&str> for LeaseRef {
    type Error = LeaseNameError;

    fn try_from(name: &str) -> Result<Self, LeaseNameError> {
        LeaseName::parse(name).map(Self::Name)
    }
}

impl TryFrom<String> for LeaseRef {
    type Error = LeaseNameError;

    fn try_from(name: String) -> Result<Self, LeaseNameError> {
        Self::try_from(name.as_str())
    }
}

impl TryFrom<&String> for LeaseRef {
    type Error = LeaseNameError;

    fn try_from(name: &String) -> Result<Self, LeaseNameError> {
        Self::try_from(name.as_str())
    }
}
