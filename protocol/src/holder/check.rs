//! The invariants of a holder, checked after each step in tests.

use super::{Holder, copies::CachedCopy, in_flight::Purpose, session::LinkState};
use crate::{object::Object, path::NodePath, planted::Bug, time::Instant};

impl Holder {
    /// Checks that the parts agree and obey the rules.
    ///
    /// # Errors
    ///
    /// A sentence that names the broken invariant and its subject.
    pub fn check(&self, now: Instant) -> Result<(), String> {
        if !self.effects.is_empty() {
            return Err("effects remain after a step".to_owned());
        }
        if self.session.is_none() && (self.link == LinkState::Registered || self.copies.iter().next().is_some()) {
            return Err("without a session, the holder has copies or is registered".to_owned());
        }
        self.copies.check()?;
        for (object, copy) in self.copies.iter() {
            self.check_copy(&object, copy, now)?;
        }
        self.volumes.check(self.writes.attaching_paths().collect())?;
        for (top, _) in self.volumes.iter() {
            self.check_volume(top, now)?;
        }
        self.in_flight.check()?;
        self.recalls.check(self.in_flight.oldest_granting())?;
        self.check_acquisitions()?;
        self.check_reads()?;
        self.check_delayed_consents()?;
        self.check_next_values()?;
        self.check_attachments()?;
        self.check_locks()?;
        self.check_write_leases()?;
        self.check_writes()?;
        self.check_watches()?;
        self.check_send_queue()
    }

    /// Checks that each queued read, write and watch still waits to be sent, and that no setbacks
    /// are remembered of a request that has ended.
    fn check_send_queue(&self) -> Result<(), String> {
        if let Some(purpose) = self.send_queue.iter().find(|purpose| !self.waits_to_be_sent(purpose)) {
            return Err(format!("{purpose:?} is queued, and nobody waits for it"));
        }
        let is_wanted = |purpose: &&Purpose| match purpose {
            Purpose::Read(object) => self.reads.has(object),
            Purpose::Write(write) => self.writes.is_pending(*write),
            Purpose::Watch(watch) => self.watches.has(*watch),
            Purpose::Acquire(top) => self.acquisitions.contains_key(top),
            Purpose::HolderReport(top) => self.holder_reports.contains_key(top),
            Purpose::Open => self.session.is_none(),
            Purpose::Register | Purpose::Close => self.session.is_some(),
            Purpose::Heartbeat | Purpose::KeepAlive | Purpose::AwaitLockStatus | Purpose::ReadNextValue(_) => false,
        };
        match self.send_queue.set_back().find(|purpose| !is_wanted(purpose)) {
            Some(purpose) => Err(format!("{purpose:?} has ended, and its setbacks are remembered")),
            None => Ok(()),
        }
    }

    fn check_copy(&self, object: &Object, copy: &CachedCopy, now: Instant) -> Result<(), String> {
        let validity = &copy.validity;
        let Some(volume) = self.volumes.get(&validity.volume) else {
            return Err(format!("the copy of {object} belongs to volume {}, which is unknown", validity.volume));
        };
        if !validity.volume.contains(&object.path) {
            return Err(format!(
                "the copy of {object} belongs to volume {}, which does not contain it",
                validity.volume
            ));
        }
        if validity.stamp.epoch > self.epoch {
            return Err(format!("the copy of {object} is stamped {} in epoch {}", validity.stamp, self.epoch));
        }
        if self.generation_is_mixed(copy) {
            return Err(format!("the copy of {object} is of an older generation of {}", validity.volume));
        }
        if let Some(lease) = &volume.lease
            && (validity.incarnation > lease.incarnation || copy.generation > lease.generation)
        {
            return Err(format!("the copy of {object} is newer than the lease on {}", validity.volume));
        }
        // Without a valid volume lease, no object lease permits the use of a copy.
        let has_leases = volume.live(now).is_some() && now < validity.until;
        if self.may_serve(object, now) && !has_leases && !self.config.planted.has(Bug::ServeAfterExpiry) {
            return Err(format!(
                "the copy of {object} may be used at {now}, after its end at {} or without a volume lease",
                validity.until
            ));
        }
        Ok(())
    }

    /// Whether a copy survived a change of its volume's borders.
    fn generation_is_mixed(&self, copy: &CachedCopy) -> bool {
        self.generation_of(&copy.validity.volume).is_none_or(|generation| generation != copy.generation)
    }

    fn check_volume(&self, top: &NodePath, now: Instant) -> Result<(), String> {
        let Some(volume) = self.volumes.get(top) else { return Ok(()) };
        if volume.validity_notified != self.validity_of(top) {
            return Err(format!(
                "volume {top}: the validity reported to the cache is {:?}, expected {:?}",
                volume.validity_notified,
                self.validity_of(top)
            ));
        }
        let Some(lease) = &volume.lease else { return Ok(()) };
        if lease.since > lease.incarnation {
            return Err(format!(
                "the lease on {top} makes copies valid from incarnation {}, but is incarnation {}",
                lease.since, lease.incarnation
            ));
        }
        if lease.until > now.after(lease.pace.term) {
            return Err(format!("the lease on {top} ends at {}, more than a term after {now}", lease.until));
        }
        let is_requested = self.acquisitions.get(top).is_some_and(|acquisition| acquisition.is_sent);
        if is_requested && self.volume_remaining(top, now) > std::time::Duration::ZERO {
            return Err(format!("a new lease on {top} is requested, and the old one still counts"));
        }
        Ok(())
    }
}
