//! The calls of the recipes: mutexes, reader-writer locks, semaphores and barriers.

use leasehold_client_cache::{Client, recipes::DoubleBarrier};

use super::{Caller, keep};

impl Caller {
    pub(super) async fn call_lock(&mut self, name: &str) -> Option<()> {
        let (path, most) = (self.draw.path(), self.draw.duration());
        let (mutex, rw_lock) = (self.client.mutex(&path), self.client.rw_lock(&path));
        match name {
            "Mutex::lock" => keep(&mut self.held.mutex_guards, mutex.lock().await.ok()?),
            "Mutex::try_lock" => keep(&mut self.held.mutex_guards, mutex.try_lock().await.ok()??),
            "Mutex::lock_timeout" => keep(&mut self.held.mutex_guards, mutex.lock_timeout(most).await.ok()??),
            "MutexGuard::release" => drop(self.held.mutex_guards.pop()?.release().await),
            "RwLock::read" => keep(&mut self.held.read_guards, rw_lock.read().await.ok()?),
            "RwLock::try_read" => keep(&mut self.held.read_guards, rw_lock.try_read().await.ok()??),
            "RwLock::read_timeout" => keep(&mut self.held.read_guards, rw_lock.read_timeout(most).await.ok()??),
            "RwLock::write" => keep(&mut self.held.write_guards, rw_lock.write().await.ok()?),
            "RwLock::try_write" => keep(&mut self.held.write_guards, rw_lock.try_write().await.ok()??),
            "RwLock::write_timeout" => keep(&mut self.held.write_guards, rw_lock.write_timeout(most).await.ok()??),
            "ReadGuard::upgrade" => match self.held.read_guards.pop()?.upgrade(self.draw.wait()).await {
                Ok(guard) => keep(&mut self.held.write_guards, guard),
                Err((guard, _)) => keep(&mut self.held.read_guards, guard),
            },
            "ReadGuard::contended" => self.held.read_guards.last_mut()?.contended().await,
            "ReadGuard::release" => drop(self.held.read_guards.pop()?.release().await),
            "WriteGuard::downgrade" => {
                let guard = self.held.write_guards.pop()?.downgrade().await.ok()?;
                keep(&mut self.held.read_guards, guard);
            }
            "WriteGuard::contended" => self.held.write_guards.last_mut()?.contended().await,
            "WriteGuard::release" => drop(self.held.write_guards.pop()?.release().await),
            _ => panic!("{name} is listed and cannot be made"),
        }
        Some(())
    }

    pub(super) async fn call_gathering(&mut self, name: &str) -> Option<()> {
        let (path, count, most) = (self.draw.path(), self.draw.count(), self.draw.duration());
        let semaphore = self.client.semaphore(&path, count);
        let double = |client: &Client| -> DoubleBarrier { client.double_barrier(&path, count) };
        match name {
            "Semaphore::acquire" => keep(&mut self.held.permits, semaphore.acquire().await.ok()?),
            "Semaphore::try_acquire" => keep(&mut self.held.permits, semaphore.try_acquire().await.ok()??),
            "Semaphore::acquire_timeout" => {
                keep(&mut self.held.permits, semaphore.acquire_timeout(most).await.ok()??);
            }
            "Permit::token" => drop(self.held.permits.last()?.token()),
            "Permit::path" => drop(self.held.permits.last()?.path().clone()),
            "Permit::remaining" => drop(self.held.permits.last()?.remaining()),
            "Permit::on_lost" => drop(self.held.permits.last()?.on_lost()),
            "Permit::release" => drop(self.held.permits.pop()?.release().await),
            "Barrier::wait" => drop(self.client.barrier(&path, count).wait().await),
            "DoubleBarrier::enter" => {
                let inside = double(&self.client).enter().await.ok()?;
                keep(&mut self.held.insides, inside);
            }
            "BarrierGuard::round" => drop(self.held.insides.last()?.round()),
            "BarrierGuard::remaining" => drop(self.held.insides.last()?.remaining()),
            "BarrierGuard::on_lost" => drop(self.held.insides.last()?.on_lost()),
            "BarrierGuard::leave" => drop(self.held.insides.pop()?.leave().await),
            _ => panic!("{name} is listed and cannot be made"),
        }
        Some(())
    }
}
