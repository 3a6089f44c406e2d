//! Answers to inspections by people (`Body::Inspect`). No rule depends on them.

use std::time::Duration;

use crate::{
    command::AnyLease,
    id::SessionId,
    message::{
        Answer, BlockedReadInfo, CoveringInfo, DelayReason, HolderInfo, Inspect, PendingWriteInfo, Refusal, VolumeInfo,
        VolumeStats,
    },
    object::Object,
    path::NodePath,
    reached::{Bound, reached},
    state::{LeaseRecord, State},
    time::ClusterTime,
    work::CountVisits,
};

use super::{
    Lessor, Requester, StepContext,
    lease_ends::margin,
    object_leases::CopyTracking,
    writes::{ConsentWait, PendingWrite},
};

impl Lessor {
    pub(super) fn answer_inspect(&self, inspect: &Inspect, cx: &StepContext<'_>) -> Option<Answer> {
        match inspect {
            Inspect::Holders { path } => Some(Answer::Holders(self.holder_infos(path, cx))),
            Inspect::PendingWrites { path } => Some(Answer::PendingWrites(self.wait_infos(path, cx))),
            Inspect::BlockedReads { path } => Some(Answer::BlockedReads(self.blocked_read_infos(path, cx))),
            Inspect::Volumes { path } => Some(Answer::Volumes(self.volume_infos(path, cx))),
            Inspect::VolumeStats { path } => Some(Answer::VolumeStats(self.volume_stats(path, cx).map(Box::new))),
            Inspect::Lease { id, nodes_after } => Some(Answer::Lease(self.lease_info(*id, nodes_after.as_ref(), cx))),
            Inspect::LeaseNamed { name, nodes_after } => {
                let info = |id| self.lease_info(id, nodes_after.as_ref(), cx);
                Some(Answer::Lease(cx.state.lease_named(name).and_then(info)))
            }
            Inspect::Locks { path, after } => Some(Answer::LockInfos(self.lock_page(path, *after, cx))),
            Inspect::Leases { after } => Some(Answer::Leases(self.lease_infos(*after, cx))),
            Inspect::Services { path, after } => Some(Answer::Services(self.services(path, after.as_ref(), cx))),
            Inspect::Cluster => None,
        }
    }

    pub(super) fn inspect(&self, requester: &Requester, inspect: &Inspect, cx: &mut StepContext<'_>) {
        match self.answer_inspect(inspect, cx) {
            Some(answer) => self.reply_without_promises(requester, Ok(answer), cx),
            // `Inspect::Cluster`: the server answers it, because only the server knows its peers.
            None => self.reply_without_promises(requester, Err(Refusal::Retry), cx),
        }
    }

    /// The sessions that have, or may have, leases on the objects at `path`.
    pub(super) fn holder_infos(&self, path: &NodePath, cx: &StepContext<'_>) -> Vec<HolderInfo> {
        let objects = [Object::data(path.clone()), Object::children(path.clone())];
        // Examined entries that have ended yield no row, so the rows alone do not bound the work.
        let most = self.config.bounds.scan_max;
        let rows = objects.into_iter().flat_map(|object| {
            let holders = self.object_leases.few_holders(&object, most, self.clock.ending_time(), cx.state);
            holders.into_iter().map(move |holder| HolderInfo {
                session: holder.session,
                name: name(holder.session, cx.state),
                object: object.clone(),
                is_covering: holder.is_covering,
                remaining: self.remaining(holder.session, &holder.volume, holder.expires_at, cx.state),
            })
        });
        self.few(rows)
    }

    /// The sessions that pending writes of `path` wait for.
    pub(super) fn wait_infos(&self, path: &NodePath, cx: &StepContext<'_>) -> Vec<PendingWriteInfo> {
        let rows = self.writes.about(path, self.config.bounds.rows_max).flat_map(|pending| {
            let row = move |waits_for: Option<(SessionId, &ConsentWait)>| PendingWriteInfo {
                path: pending.path().unwrap_or(path).clone(),
                writer: pending.client_write().map_or(SessionId(0), |request| request.session),
                writer_name: writer_name(pending, cx.state),
                holder: waits_for.map(|(holder, _)| holder),
                holder_name: waits_for.map(|(holder, _)| name(holder, cx.state)).unwrap_or_default(),
                since: cx.now.since(pending.since),
                at_most: waits_for.map_or(Duration::ZERO, |(of, wait)| self.at_most(of, wait, cx.state)),
                covering: waits_for.and_then(|(of, wait)| self.covering(of, wait)),
                delay: waits_for.and_then(|(of, wait)| self.delay(of, wait, cx)),
            };
            let waits = pending.waits.iter().map(move |(holder, wait)| row(Some((*holder, wait))));
            let commit = pending.waits.is_empty().then(|| row(None));
            waits.chain(commit)
        });
        self.few(rows)
    }

    /// The blocked reads of `path`, and the blocked lists that begin there.
    pub(super) fn blocked_read_infos(&self, path: &NodePath, cx: &StepContext<'_>) -> Vec<BlockedReadInfo> {
        let waiting = self.blocked_reads.about(path, self.config.bounds.scan_max);
        let rows = waiting.into_iter().filter_map(|(write_leased, (reads, since))| {
            let (_, record) = cx.state.write_leased_lock(write_leased)?;
            let holder = record.session;
            Some(BlockedReadInfo {
                path: write_leased.clone(),
                reads,
                holder,
                holder_name: name(holder, cx.state),
                since: cx.now.since(since),
                at_most: self.remaining_of(&record.lease, cx.state),
            })
        });
        self.few(rows)
    }

    pub(super) fn volume_infos(&self, path: &NodePath, cx: &StepContext<'_>) -> Vec<VolumeInfo> {
        let info = |path: &NodePath, volume: &crate::state::VolumeRecord| VolumeInfo {
            path: path.clone(),
            settings: volume.settings,
            generation: volume.generation,
            leases: self.object_leases.totals_in(path).tracks,
            present_object_term: self.terms_by_use.present(path, &volume.settings).object_term(),
            used: cx.state.volume_use(path),
        };
        self.few(cx.state.volumes_below(path).map(|(path, volume)| info(path, volume)))
    }

    fn volume_stats(&self, path: &NodePath, cx: &StepContext<'_>) -> Option<VolumeStats> {
        let settings = cx.state.volume(path)?.settings;
        let totals = self.object_leases.totals_in(path);
        let (counted_for, counts) = self.counters.0.counted(path, cx.now);
        Some(VolumeStats {
            path: path.clone(),
            settings,
            present_object_term: self.terms_by_use.present(path, &settings).object_term(),
            counted_for,
            volume_leases: totals.tracks,
            object_leases: totals.entries,
            covering_sessions: totals.coverings,
            lease_bytes: self.object_leases.bytes_in(path),
            counts,
        })
    }

    /// The first rows, as many as one answer may have.
    pub(super) fn few<T>(&self, rows: impl Iterator<Item = T>) -> Vec<T> {
        let most = self.config.bounds.rows_max;
        let rows: Vec<T> = rows.take(most).collect();
        if rows.len() == most {
            reached(Bound::Rows);
        }
        rows
    }

    /// An upper bound on the remaining wait for this holder. The wait ends when its volume leases
    /// and their margins have ended, or when its object leases have ended.
    fn at_most(&self, holder: SessionId, wait: &ConsentWait, state: &State) -> Duration {
        let volumes = wait.leases.keys().counted().map(|volume| self.remaining(holder, volume, None, state));
        let longest = volumes.max().unwrap_or_default();
        wait.expires_at.map_or(longest, |expires_at| longest.min(expires_at.since(self.clock.ending_time())))
    }

    /// The highest of the wait's volumes in which the holder is covering.
    fn covering(&self, holder: SessionId, wait: &ConsentWait) -> Option<CoveringInfo> {
        wait.leases.keys().counted().find_map(|volume| {
            let mode = &self.object_leases.track(volume, holder)?.tracking;
            let is_unreported = matches!(mode, CopyTracking::AwaitingReport { .. });
            (*mode != CopyTracking::Exact).then(|| CoveringInfo { volume: volume.clone(), is_unreported })
        })
    }

    /// The reason why the holder delays its consent, if it has sent one. Its time is at most that
    /// of its leases.
    fn delay(&self, holder: SessionId, wait: &ConsentWait, cx: &StepContext<'_>) -> Option<DelayReason> {
        Some(match self.recall_channels.get(&holder)?.delay(wait.stamp?, cx.now)? {
            DelayReason::InUse { at_most } => {
                DelayReason::InUse { at_most: at_most.min(self.at_most(holder, wait, cx.state)) }
            }
            DelayReason::Flushing => DelayReason::Flushing,
        })
    }

    fn remaining(
        &self,
        session: SessionId,
        volume: &NodePath,
        expires_at: Option<ClusterTime>,
        state: &State,
    ) -> Duration {
        let end = self.remaining_of(&AnyLease::Volume(session, volume.clone()), state);
        expires_at.map_or(end, |expires_at| expires_at.since(self.clock.ending_time()).min(end))
    }

    /// The remaining time of a lease, including its margin.
    pub(super) fn remaining_of(&self, key: &AnyLease, state: &State) -> Duration {
        let now = self.clock.ending_time();
        let margin = |lease: &LeaseRecord| margin(key, lease, state, self.config.drift);
        let margin = state.lease(key).map_or(Duration::ZERO, margin);
        self.leases.get(key).map_or(Duration::ZERO, |end| end.ends_at.after(margin).since(now))
    }
}

fn name(session: SessionId, state: &State) -> String {
    state.session(session).map(|session| session.name.clone()).unwrap_or_default()
}

/// The name of the writer. A purge has no writer.
fn writer_name(pending: &PendingWrite, state: &State) -> String {
    match pending.client_write() {
        Some(request) => name(request.session, state),
        None => format!("the purge of the nodes of {} leases", pending.purged_leases().len()),
    }
}
