//! The beginning and the end of a client: its tasks, their runtime, and closing.

use std::{future::Future, sync::Arc};

use leasehold_protocol::holder::HolderInput;
use tokio::task::JoinHandle;

use super::Driver;
use crate::connection;

impl Driver {
    /// Starts the two tasks that the client cannot do without.
    pub(crate) fn start(self: &Arc<Self>) {
        self.spawn(Arc::clone(self).run_vital(connection::keep_connected(Arc::clone(self))));
        self.spawn(Arc::clone(self).run_vital(Arc::clone(self).run_timer()));
    }

    /// Spawns a task on the client's runtime. The caller's own runtime may end before the task, or
    /// may run only while the caller waits for something.
    pub(crate) fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime.spawn(work)
    }

    /// Runs a task. If it ends before the client is closed (its runtime ends, or it panics), the
    /// client ends too. Otherwise operations and handles would wait for ever.
    async fn run_vital(self: Arc<Self>, task: impl Future<Output = ()>) {
        let _end = EndOnDrop(self);
        task.await;
    }

    /// The application closes the session.
    pub(crate) fn close(&self) {
        self.step(&mut self.core.lock(), HolderInput::Close);
    }

    /// Ends the session for this client at once, without an answer from a server. All operations
    /// end, and all handles report the end.
    pub(crate) fn end(&self) {
        let mut core = self.core.lock();
        core.orders = None;
        self.step(&mut core, HolderInput::Disconnected);
        self.step(&mut core, HolderInput::Close);
        self.closed.cancel();
    }
}

/// Ends the client when dropped.
struct EndOnDrop(Arc<Driver>);

impl Drop for EndOnDrop {
    fn drop(&mut self) {
        let driver = &self.0;
        if driver.closed.is_cancelled() {
            return;
        }
        if std::thread::panicking() {
            // The rules may be in any state, so this takes no step of them.
            return driver.closed.cancel();
        }
        tracing::warn!("the client is closed, because the runtime that it connected on has ended");
        driver.end();
    }
}
