//! The sessions of the demo: its own and those of its clients.

use std::time::Duration;

use leasehold_client_cache::{Client, ConnectError, Options};

/// The cache capacity: enough for all files of the demo.
const CAPACITY_BYTES: u64 = 256 << 20;

/// Time limit of one operation: longer than any outage that the demo causes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Opens a session.
pub(crate) async fn connect(endpoints: &[String], name: &str) -> Result<Client, ConnectError> {
    let options = Options::new(endpoints).name(name).timeout(TIMEOUT).cache_capacity_bytes(CAPACITY_BYTES);
    Client::connect(options).await
}
