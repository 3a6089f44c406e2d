//! Tasks for the calls that have to wait, and for no others.

use std::future::{Ready, ready};

use futures::FutureExt;

/// Polls the call once, in place. A call that has to wait then gets a task of its own, so that a
/// consent never waits behind a write.
///
/// This is no async function, because its future would include the call, which is large. The call
/// would be copied more often on its way to the heap.
pub(crate) fn spawn_if_slow(call: impl Future<Output = ()> + Send + 'static) -> Ready<()> {
    let mut call = Box::pin(call);
    if call.as_mut().now_or_never().is_none() {
        tokio::spawn(call);
    }
    ready(())
}
