//! The invariants of every state.
//!
//! A replica checks them for rows that come from a disk or another replica. Simulations check them
//! after every step.

use std::collections::{BTreeMap, BTreeSet};

use super::State;
use crate::{command::AnyLease, id::Revision, path::NodePath};

/// Counting never reaches this value. A counter beyond it was damaged, and could overflow.
const COUNTER_MAX: u64 = u64::MAX >> 1;

impl State {
    /// Checks that the parts of the state are consistent, in time proportional to its size.
    ///
    /// # Errors
    ///
    /// A description of the inconsistency.
    pub fn check(&self) -> Result<(), String> {
        self.check_meta()?;
        self.check_nodes()?;
        self.check_volumes()?;
        self.check_sessions()?;
        self.check_leases()?;
        self.check_lease_names()?;
        self.check_attachments()?;
        self.check_locks()?;
        self.check_history()
    }

    #[cfg(test)]
    pub(crate) fn sizes(&self) -> Vec<(&'static str, usize)> {
        let [locks, by_path, by_lease, by_token, write_leases] = self.locks.sizes();
        let [attached, orphaned, tombstones, closed] = self.attachments.sizes();
        let [sets, by_volume, nodes, above] = self.history.sizes();
        vec![
            ("nodes", self.nodes.len()),
            ("volumes", self.volumes.len()),
            ("sessions", self.sessions.len()),
            ("answers", self.sessions.values().map(|session| session.answers.len()).sum()),
            ("leases", self.leases.len()),
            ("names of leases", self.lease_names.len()),
            ("leases on volumes", self.volume_lease_holders.values().map(BTreeSet::len).sum()),
            ("ticks", self.tick_counts.len()),
            ("locks", locks),
            ("locks by path", by_path),
            ("locks by lease", by_lease),
            ("locks by token", by_token),
            ("write leases", write_leases),
            ("leases with nodes", attached),
            ("orphans", orphaned),
            ("tombstones", tombstones),
            ("leases of closed sessions", closed),
            ("changes", self.history.changes().len()),
            ("sets that changed", sets),
            ("sets by volume", by_volume),
            ("changed nodes", nodes),
            ("changes below nodes", above),
        ]
    }

    fn check_meta(&self) -> Result<(), String> {
        let meta = &self.meta;
        let (epoch, index) = (meta.epoch, meta.applied_index);
        ensure(epoch.0 <= index, || format!("epoch {epoch} began after the last applied entry, {index}"))?;
        let of_locks = [meta.last_lock_number, meta.last_write_lease.0];
        let others = [index, meta.revision.0, meta.next_session.0, meta.next_incarnation.0];
        for counter in others.into_iter().chain(of_locks) {
            ensure(counter <= COUNTER_MAX, || format!("a counter is at {counter}: expected at most {COUNTER_MAX}"))?;
        }
        Ok(())
    }

    fn check_nodes(&self) -> Result<(), String> {
        ensure(self.nodes.contains_key(&NodePath::root()), || "the root does not exist".to_owned())?;
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        let nodes = || self.nodes_from(&NodePath::root());
        for (path, _) in nodes().filter(|(path, _)| !path.is_root()) {
            let parent = parent_text(path);
            let above = self.nodes.get(parent).filter(|node| self.is_live(node));
            ensure(above.is_some(), || format!("node {path} exists, and its parent does not"))?;
            *counts.entry(parent).or_default() += 1;
        }
        for (path, node) in nodes() {
            let children = counts.get(path.as_str()).copied().unwrap_or_default();
            let count = node.child_count();
            ensure(count == children, || format!("node {path} counts {count} children: expected {children}"))?;
            let in_order = node.create_revision <= node.modify_revision
                && node.create_revision <= node.children_revision()
                && node.modify_revision.max(node.children_revision()) <= self.meta.revision;
            ensure(in_order, || {
                format!(
                    "node {path} was created at {}, modified at {}, and its children at {}: expected creation first, at most {}",
                    node.create_revision,
                    node.modify_revision,
                    node.children_revision(),
                    self.meta.revision
                )
            })?;
            // Each change of the value has a revision of its own.
            let newest = 1 + (node.modify_revision.0 - node.create_revision.0);
            ensure((1..=newest).contains(&node.version), || {
                format!("node {path} has version {}: expected 1 to {newest}", node.version)
            })?;
            // One change may add many children.
            let (least, newest) = (children.min(1), 1 + (node.children_revision().0 - node.create_revision.0));
            ensure((least..=newest).contains(&node.children_version()), || {
                format!("node {path} has children version {}: expected {least} to {newest}", node.children_version())
            })?;
        }
        Ok(())
    }

    fn check_volumes(&self) -> Result<(), String> {
        ensure(self.volumes.contains_key(&NodePath::root()), || "the root is not a volume".to_owned())?;
        let newest = self.meta.revision.0.saturating_add(1);
        for (top, volume) in &self.volumes {
            ensure(self.node(top).is_some(), || format!("volume {top} has no node"))?;
            ensure((1..=newest).contains(&volume.generation.0), || {
                format!("volume {top} has generation {}: expected 1 to {newest}", volume.generation)
            })?;
        }
        self.check_volume_index()
    }

    fn check_sessions(&self) -> Result<(), String> {
        let mut results = 0;
        for (id, session) in &self.sessions {
            let next = self.meta.next_session;
            ensure(*id < next, || format!("session {id} exists: expected ids below {next}"))?;
            ensure(self.leases.contains_key(&AnyLease::Session(*id)), || format!("session {id} has no lease"))?;
            let lowest = session.unanswered_from;
            let highest = lowest.window_end();
            results += session.results();
            for (sequence, answer) in &session.answers {
                ensure((lowest..=highest).contains(sequence), || {
                    format!("session {id} has an answer to request {sequence}: expected {lowest} to {highest}")
                })?;
                let made = answer.as_ref().map_or(Revision(0), |written| written.revision);
                ensure(made <= self.meta.revision, || {
                    format!(
                        "request {sequence} of session {id} made change {made}: expected at most {}",
                        self.meta.revision
                    )
                })?;
            }
        }
        let count = self.result_count;
        ensure(count == results, || format!("{count} remembered results are counted: expected {results}"))
    }

    fn check_leases(&self) -> Result<(), String> {
        let mut incarnations = BTreeSet::new();
        for (key, lease) in &self.leases {
            let is_open = key.session().is_none_or(|session| self.sessions.contains_key(&session));
            ensure(is_open, || format!("lease {key:?}: its session does not exist"))?;
            let attached_at = lease.attached_at;
            ensure(attached_at <= self.meta.revision, || {
                format!(
                    "lease {key:?} had a node attached by change {attached_at}: expected at most {}",
                    self.meta.revision
                )
            })?;
            if let AnyLease::Volume(_, top) = key {
                ensure(self.volumes.contains_key(top), || format!("lease {key:?}: its volume does not exist"))?;
            }
            let (incarnation, next) = (lease.incarnation, self.meta.next_incarnation);
            ensure(incarnation < next, || {
                format!("lease {key:?} has incarnation {incarnation}: expected one below {next}")
            })?;
            ensure(incarnations.insert(incarnation), || format!("two leases have incarnation {incarnation}"))?;
        }
        Ok(())
    }

    fn check_history(&self) -> Result<(), String> {
        self.history.check(self.meta.compacted_through)?;
        let count = self.history.changes().len() as u64;
        let most = self.meta.history_max;
        ensure((1..=Self::HISTORY_MAX as u64).contains(&most), || {
            format!("the history may have {most} changes: expected 1 to {}", Self::HISTORY_MAX)
        })?;
        ensure(count <= most, || format!("the history has {count} changes: expected at most {most}"))?;
        let (start, revision) = (self.meta.compacted_through, self.meta.revision);
        ensure(start.0.checked_add(count) == Some(revision.0), || {
            format!("the history has {count} changes after {start}: expected the last to be {revision}")
        })
    }
}

fn parent_text(path: &NodePath) -> &str {
    match path.as_str().rfind('/') {
        Some(end) if end > 0 => &path.as_str()[..end],
        _ => "/",
    }
}

fn ensure(condition: bool, error: impl FnOnce() -> String) -> Result<(), String> {
    if condition { Ok(()) } else { Err(error()) }
}
