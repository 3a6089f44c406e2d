//! Tasks for the calls that have to wait, and for no others.

use futures::FutureExt;

/// Polls the call once, in place. A call that has to wait then gets a task of its own, so that a
/// consent never waits behind a write.
pub(crate) async fn spawn_if_slow(call: impl Future<Output = ()> + Send + 'static) {
    let mut call = Box::pin(call);
    if call.as_mut().now_or_never().is_none() {
        tokio::spawn(call);
    }
}
