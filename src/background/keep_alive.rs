//! The answer of `lease keep-alive`, printed at each renewal of a key lease.

use std::time::Duration;

use leasehold_client_cache::LeaseId;
use serde::Serialize;

use crate::{duration, lease_id::hex, output::Text};

/// A renewal.
#[derive(Debug, Serialize)]
pub(crate) struct KeepAliveAnswer {
    id: String,
    ttl_ms: u64,
    remaining_ms: u64,
    #[serde(skip)]
    ttl: Duration,
}

impl KeepAliveAnswer {
    pub(crate) fn new(id: LeaseId, ttl: Duration, remaining: Duration) -> Self {
        Self { id: hex(id), ttl_ms: duration::millis(ttl), remaining_ms: duration::millis(remaining), ttl }
    }
}

impl Text for KeepAliveAnswer {
    fn text(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(format!("lease {} keepalived with TTL({})\n", self.id, seconds(self.ttl)).as_bytes());
    }
}

/// Whole seconds as etcdctl prints them; other terms in milliseconds.
pub(crate) fn seconds(span: Duration) -> String {
    if span.subsec_nanos() == 0 { format!("{}", span.as_secs()) } else { format!("{}ms", span.as_millis()) }
}
