//! What this client does not want any more, and the servers may still count: requests for holds that nobody waits for, holds and places in a
//! line that were dropped.
//!
//! Dropping waits for nothing, so what is given up leaves the servers later, and requests overtake each other on the way. Whoever asked for the
//! same node again before that would find it taken by this client's own ghost: a lock that was dropped could not be tried for again. So
//! whoever asks waits until all that was given up there before is gone.

use std::{
    collections::{HashMap, hash_map::Entry},
    sync::Arc,
};

use leasehold_protocol::path::Path;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

/// The nodes where something is being withdrawn, how many times, and who tells when all of it is gone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Withdrawals(Arc<Mutex<HashMap<Path, (usize, CancellationToken)>>>);

/// Something that is being withdrawn until this is dropped.
#[derive(Debug)]
pub(crate) struct Withdrawal {
    all: Withdrawals,
    path: Path,
}

impl Withdrawals {
    /// Something at the node is not wanted any more from now on.
    pub(crate) fn begin(&self, path: &Path) -> Withdrawal {
        self.0.lock().entry(path.clone()).or_default().0 += 1;
        Withdrawal { all: self.clone(), path: path.clone() }
    }

    /// Waits until nothing is being withdrawn at the node.
    pub(crate) async fn gone(&self, path: &Path) {
        let gone = || self.0.lock().get(path).map(|(_, gone)| gone.clone());
        while let Some(gone) = gone() {
            gone.cancelled().await;
        }
    }
}

impl Drop for Withdrawal {
    fn drop(&mut self) {
        if let Entry::Occupied(mut entry) = self.all.0.lock().entry(self.path.clone()) {
            entry.get_mut().0 -= 1;
            if entry.get().0 == 0 {
                entry.remove().1.cancel();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[test]
    fn whoever_asks_waits_until_all_is_gone_at_that_node() {
        let path = |text: &str| Path::parse(text).expect("valid");
        let withdrawals = Withdrawals::default();
        let is_gone = |text: &str| withdrawals.gone(&path(text)).now_or_never().is_some();
        assert!(is_gone("/a"));
        let (first, second) = (withdrawals.begin(&path("/a")), withdrawals.begin(&path("/a")));
        assert!(!is_gone("/a") && is_gone("/b") && is_gone("/a/b"));
        drop(first);
        assert!(!is_gone("/a"));
        let top = path("/a");
        let mut waiting = Box::pin(withdrawals.gone(&top));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(second);
        assert!(waiting.now_or_never().is_some() && is_gone("/a"));
        assert!(withdrawals.0.lock().is_empty(), "nothing is kept of it");
    }
}
