//! What a client is told when it is made.

use std::time::Duration;

use leasehold_protocol::time::DriftAllowance;

/// How a client connects, and how much it keeps. Everything has a default but the endpoints.
///
/// Some bounds are fixed. A client has at most 65,536 reads and 65,536 writes waiting, and 256 MiB
/// of writes; one more is refused as [busy](crate::Refusal::Busy), with the limit, and never sent.
/// Writes that give something back, such as a lock, are not refused.
///
/// ```
/// use leasehold_client_cache::Options;
/// use std::time::Duration;
///
/// let options = Options::new(["10.0.0.1:7600", "10.0.0.2:7600", "10.0.0.3:7600"])
///     .name("billing")
///     .cache_capacity_bytes(256 << 20)
///     .timeout(Duration::from_secs(2));
/// ```
#[derive(Debug, Clone)]
pub struct Options {
    pub(crate) endpoints: Vec<String>,
    pub(crate) name: String,
    pub(crate) cache_capacity_bytes: u64,
    pub(crate) drift: DriftAllowance,
    pub(crate) timeout: Duration,
}

impl Options {
    /// What a cache may take unless told otherwise: 64 MiB.
    pub const CACHE_CAPACITY_DEFAULT_BYTES: u64 = 64 << 20;

    /// How long one operation may take unless told otherwise: 5 s.
    pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

    /// A client of the cluster that these servers belong to, each written `host:port`. They are
    /// tried in this order; one that answers tells where the leader is.
    pub fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            name: "client".to_owned(),
            cache_capacity_bytes: Self::CACHE_CAPACITY_DEFAULT_BYTES,
            drift: DriftAllowance::DEFAULT,
            timeout: Self::TIMEOUT_DEFAULT,
        }
    }

    /// What the session calls itself, for people who ask who holds a lease. Servers refuse names
    /// beyond their limit, 256 bytes unless configured.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How many bytes the cached copies may take, counted as the lengths of values, names and paths
    /// and [`ENTRY_OVERHEAD_BYTES`](crate::ENTRY_OVERHEAD_BYTES) for each copy. It is exceeded for
    /// moments, while what has to go is being found. 0 keeps nothing for long.
    #[must_use]
    pub fn cache_capacity_bytes(mut self, bytes: u64) -> Self {
        self.cache_capacity_bytes = bytes;
        self
    }

    /// How far this machine's clock may run from true time; 0.1 % by default. Every lease is
    /// counted shorter by it (T2). It must not be less than what the servers were told about
    /// clients' clocks.
    #[must_use]
    pub fn drift(mut self, drift: DriftAllowance) -> Self {
        self.drift = drift;
        self
    }

    /// How long connecting, and any operation that is not told otherwise, may take.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}
