//! The options of a client.

use std::time::Duration;

use leasehold_protocol::{holder::RenewalMode, time::DriftAllowance};

/// How a client connects, and how large its cache is. Only the endpoints have no default.
///
/// Some bounds are fixed. At most 65,536 reads and 65,536 writes of a client wait at a time, and at
/// most 256 MiB of writes. The client refuses one more as [busy](crate::Refusal::Busy), names the
/// limit, and does not send it. It does not refuse writes that release something, such as a lock.
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
#[must_use = "options do nothing until a client connects with them"]
pub struct Options {
    pub(crate) endpoints: Vec<String>,
    pub(crate) name: String,
    pub(crate) cache_capacity_bytes: u64,
    pub(crate) drift: DriftAllowance,
    pub(crate) timeout: Duration,
    pub(crate) is_lazy: bool,
    pub(crate) renewal: RenewalMode,
    pub(crate) consent_delay: Duration,
}

impl Options {
    /// The default size of the cache: 64 MiB.
    pub const CACHE_CAPACITY_DEFAULT_BYTES: u64 = 64 << 20;

    /// The default time that one operation may take: 15 s. It is longer than the default volume
    /// term and margin, so a write outlasts a client that died.
    pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(15);

    /// A client of the cluster that these servers belong to, each written `host:port`. The client
    /// tries them in this order. A server that answers names the leader.
    pub fn new<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Self {
        Self {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            name: "client".to_owned(),
            cache_capacity_bytes: Self::CACHE_CAPACITY_DEFAULT_BYTES,
            drift: DriftAllowance::DEFAULT,
            timeout: Self::TIMEOUT_DEFAULT,
            is_lazy: false,
            renewal: RenewalMode::Ahead,
            consent_delay: Duration::ZERO,
        }
    }

    /// A client of the servers in the environment variable `LEASEHOLD_ENDPOINTS`, as the command
    /// line has it: written `host:port`, with commas between them. Without the variable, a client
    /// of `127.0.0.1:7600`.
    ///
    /// ```
    /// use leasehold_client_cache::Options;
    ///
    /// let options = Options::from_env().name("billing");
    /// ```
    pub fn from_env() -> Self {
        Self::listed(std::env::var("LEASEHOLD_ENDPOINTS").as_deref().unwrap_or("127.0.0.1:7600"))
    }

    fn listed(endpoints: &str) -> Self {
        Self::new(endpoints.split(',').map(str::trim).filter(|endpoint| !endpoint.is_empty()))
    }

    /// The name of the session, shown in lists of lease holders and lock owners. Servers refuse
    /// names beyond their limit: 256 bytes unless configured.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How many bytes the cached copies may take. Each copy counts the lengths of its value, names
    /// and path, and [`ENTRY_OVERHEAD_BYTES`](crate::ENTRY_OVERHEAD_BYTES). The cache exceeds this
    /// for moments, while it finds what to evict. With 0, copies stay for moments only.
    pub fn cache_capacity_bytes(mut self, bytes: u64) -> Self {
        self.cache_capacity_bytes = bytes;
        self
    }

    /// How much faster or slower than true time this machine's clock may run: 0.1 % by default. The
    /// client shortens every lease by this allowance (T2 in docs/PROTOCOL.md). It must not be less
    /// than the servers' setting `drift_ppm`.
    ///
    /// ```no_run
    /// # fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold_client_cache::{DriftAllowance, Options};
    ///
    /// let options = Options::from_env().drift(DriftAllowance::from_ppm(500)?);
    /// # Ok(())
    /// # }
    /// ```
    pub fn drift(mut self, drift: DriftAllowance) -> Self {
        self.drift = drift;
        self
    }

    /// When the client renews its volume leases: before they end, unless set.
    ///
    /// ```
    /// use leasehold_client_cache::{Options, RenewalMode};
    ///
    /// // A program that reads its configuration once a minute, and may wait for a round trip then.
    /// let options = Options::from_env().renewal(RenewalMode::OnDemand);
    /// ```
    pub fn renewal(mut self, renewal: RenewalMode) -> Self {
        self.renewal = renewal;
        self
    }

    /// For how long the client goes on using a copy that a write recalls: not at all, unless set.
    /// The delay is at most half of the time that remains of the client's shortest volume lease.
    ///
    /// The write waits for this client meanwhile, so the copy is not stale. Use it if the program
    /// reads one copy very often, and writes need not be quick.
    ///
    /// ```
    /// use std::time::Duration;
    /// use leasehold_client_cache::Options;
    ///
    /// // Writes of what this program reads take 50 ms longer.
    /// let options = Options::from_env().consent_delay(Duration::from_millis(50));
    /// ```
    pub fn consent_delay(mut self, delay: Duration) -> Self {
        self.consent_delay = delay;
        self
    }

    /// Makes [`Client::connect`](crate::Client::connect) return at once. The client then opens its
    /// session in the background, and calls wait for it within their own timeouts.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use leasehold_client_cache::{Client, Options};
    ///
    /// // A program that starts before its servers do.
    /// let client = Client::connect(Options::from_env().connect_lazily()).await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn connect_lazily(mut self) -> Self {
        self.is_lazy = true;
        self
    }

    /// How long `connect` may take, and each call for which the program sets no other timeout.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_endpoints_are_split_at_commas() {
        assert_eq!(Options::listed("a:1, b:2,").endpoints, ["a:1", "b:2"]);
        assert_eq!(Options::listed("").endpoints, [""; 0]);
    }
}
