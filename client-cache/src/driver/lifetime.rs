//! The beginning and the end of a client: its tasks, their runtime, and closing (ADR 24).

use std::{future::Future, sync::Arc};

use leasehold_protocol::{
    holder::{Holder, HolderConfig, HolderInput},
    id::LockId,
};
use tokio::task::JoinHandle;

use super::{Driver, DriverCore, waiting::WaitingCalls};
use crate::{clock, connection, lost_change::LostChange, session_log, status::SessionState};

impl Driver {
    /// Starts the two tasks that the client cannot do without.
    pub(crate) fn start(self: &Arc<Self>) {
        self.spawn_vital(connection::keep_connected(Arc::clone(self)));
        self.spawn_vital(Arc::clone(self).run_timer());
    }

    /// Spawns a task. If it ends before the client is closed (its runtime ends, or it panics), the
    /// client ends too. Otherwise operations and handles would wait for ever.
    fn spawn_vital(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        // Made before the task and moved into it, so that it is dropped even if the task never
        // runs.
        let end = EndOnDrop(Arc::clone(self));
        self.spawn(async move {
            let _end = end;
            task.await;
        });
    }

    /// Spawns a task on the client's runtime. The caller's own runtime may end before the task, or
    /// may run only while the caller waits for something.
    pub(crate) fn spawn<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        self.runtime.spawn(work)
    }

    /// Reports a new state of the session to the application, and to the log.
    pub(super) fn report(&self, core: &DriverCore, state: SessionState) {
        let leases = core.leases.remaining(clock::now());
        session_log::log(&self.status.state().borrow(), &state, &leases);
        self.status.changed(state);
    }

    /// The application closes the session.
    pub(crate) fn close(&self) {
        let mut core = self.core.lock();
        self.step(&mut core, HolderInput::Close);
        // Nothing is renewed from now on.
        core.lose_all_leases();
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

    /// Ends the client after a step that panicked. First it ends the volume leases, so that no read
    /// uses a copy, even if the rest panics too.
    pub(super) fn end_after_panic(&self, core: &mut DriverCore) {
        core.leases.end_all();
        core.orders = None;
        tracing::warn!("the client is closed, because it panicked");
        core.discard_rules();
        core.lose_all_leases();
        self.closed.cancel();
        self.step_unguarded(core, HolderInput::Close);
    }
}

impl DriverCore {
    /// Replaces the rules after a step that panicked: they may be in any state.
    fn discard_rules(&mut self) {
        let rules = std::mem::replace(&mut self.holder, Holder::new(HolderConfig::new(String::new())));
        let locks: Vec<LockId> = self.locks.keys().copied().collect();
        for lock in locks {
            if let Some(value) = rules.unflushed_value(lock).cloned() {
                self.flush_lost(lock, |path| LostChange { path, value, may_be_written: true, refusal: None });
            }
        }
        self.locks.drain().for_each(|(_, (_, cell))| cell.end());
        self.release_writes.clear();
        self.waiting = WaitingCalls::default();
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
        tracing::warn!(
            "the client is closed, because the runtime that it connected on has ended, or the client panicked"
        );
        driver.end();
    }
}
