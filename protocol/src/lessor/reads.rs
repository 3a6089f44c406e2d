//! Reads: each waits for a quorum round that begins after its arrival (S6).

use crate::{
    change::Changes,
    id::{Revision, SessionId},
    lease_policy::LeaseRequest,
    limits::LimitError,
    message::{Answer, LIST_NODES_MAX, ListPage, ReadAnswer, ReadGaps, Refusal},
    object::{Content, Data, Object},
    path::NodePath,
    planted::Bug,
    reached::{Bound, reached},
    state::State,
};

use super::{Lessor, LessorBounds, LessorEffect, ReadTarget, StepContext, WaitingRead, terms_by_use::AnsweredRead};

impl Lessor {
    /// Lets a read wait for a quorum round that begins after its arrival. If a round is in flight,
    /// the read waits for the next (S6).
    pub(super) fn read(&mut self, read: WaitingRead, cx: &mut StepContext<'_>) {
        let path = match &read.target {
            ReadTarget::Object { object, .. } => Some(&object.path),
            ReadTarget::List { path, .. } => Some(path),
            ReadTarget::CurrentRevision => None,
        };
        if let Some(Err(error)) = path.map(|path| self.config.limits.check_path(path)) {
            return self.reply(&read.requester, Err(error.into()), cx);
        }
        let count = self.proven_reads.len() + self.round_reads.len() + self.next_round_reads.len();
        let most = self.config.bounds.reads_max;
        if count >= most {
            reached(Bound::Reads);
            let refusal = Refusal::Busy { what: "reads".to_owned(), got: count, most };
            return self.reply_without_promises(&read.requester, Err(refusal), cx);
        }
        if self.planted(Bug::ReadWithoutProof) {
            return self.answer_read(&read, cx);
        }
        self.next_round_reads.push(read);
        self.begin_round(cx);
    }

    pub(super) fn begin_round(&mut self, cx: &mut StepContext<'_>) {
        let has_reads = !self.next_round_reads.is_empty() || self.next_values.may_begin_round();
        if self.round_reads.is_empty() && has_reads {
            self.round = self.round.wrapping_add(1);
            self.round_reads = std::mem::take(&mut self.next_round_reads);
            self.round_reads.extend(self.next_values.take_for_round(self.config.bounds.reads_per_step.max(1)));
            cx.effects.push(LessorEffect::Prove { round: self.round });
        }
    }

    pub(super) fn handle_proof(&mut self, round: u64, cx: &mut StepContext<'_>) {
        if round == self.round {
            for read in std::mem::take(&mut self.round_reads) {
                match read.target.is_next_value_read() {
                    true => self.next_values.add_proven(read),
                    false => self.proven_reads.push_back(read),
                }
            }
            self.answer_proven(cx);
            self.begin_round(cx);
        }
    }

    /// Answers reads whose round has succeeded, up to the bounds of one step. The next steps answer
    /// the others from the state as applied by then. The round began after all of them arrived, so
    /// it proves leadership for all. Reads of next values come last, because no application waits
    /// for them.
    pub(super) fn answer_proven(&mut self, cx: &mut StepContext<'_>) {
        let LessorBounds { reads_per_step, content_bytes_max, .. } = self.config.bounds;
        for _ in 0..reads_per_step.max(1) {
            let next = self.proven_reads.pop_front().or_else(|| self.next_values.next_proven());
            let Some(read) = next else { return };
            self.answer_read(&read, cx);
            if cx.read_bytes >= content_bytes_max {
                return;
            }
        }
        if !self.proven_reads.is_empty() || self.next_values.has_proven() {
            reached(Bound::ReadsPerStep);
        }
    }

    pub(super) fn handle_proof_failure(&mut self, round: u64, cx: &mut StepContext<'_>) {
        if round == self.round {
            for read in std::mem::take(&mut self.round_reads) {
                if read.target.is_next_value_read() {
                    self.next_values.note_end(read.requester.session);
                }
                self.reply_without_promises(&read.requester, Err(Refusal::Retry), cx);
            }
            self.begin_round(cx);
        }
    }

    pub(super) fn answer_read(&mut self, read: &WaitingRead, cx: &mut StepContext<'_>) {
        self.answer_freed(read, None, cx);
    }

    /// Answers a read. `freed` is the node whose write lease has ended, if the read waited for one.
    pub(super) fn answer_freed(&mut self, read: &WaitingRead, freed: Option<&NodePath>, cx: &mut StepContext<'_>) {
        let WaitingRead { requester, target } = read;
        let (object, known, request) = match target {
            ReadTarget::Object { object, .. }
                if freed != Some(&object.path) && self.is_under_write_lease(object, cx.state) =>
            {
                return self.defer_read(read, object, cx);
            }
            ReadTarget::Object { object, known, lease, .. } => (object, known, *lease),
            ReadTarget::List { path, after, nodes_max } => {
                let page = list(path, after.as_ref(), *nodes_max, &self.config.bounds, cx.state);
                cx.read_bytes += page.nodes.iter().map(|(_, data)| NODE_BYTES + data.value.len()).sum::<usize>();
                return self.answer_list(read, (page, freed), cx);
            }
            ReadTarget::CurrentRevision => {
                let changes = Changes { changes: Vec::new(), through: cx.state.revision() };
                return self.reply(requester, Ok(Answer::Changes(changes)), cx);
            }
        };
        let answer = self.read_object(requester.session, object, *known, request, cx);
        match &answer {
            Ok(answer) if !target.is_next_value_read() => {
                self.count_read(requester.session, (object, *known, request), answer, cx);
            }
            Ok(answer) if answer.grant.is_some() => self.terms_by_use.note_lease_found_by_write(&answer.volume),
            Ok(_) | Err(_) => {}
        }
        self.reply(requester, answer.map(Answer::Read), cx);
    }

    /// The content of the object and a lease on it, from the state that is applied now.
    ///
    /// # Errors
    ///
    /// The content is longer than one answer may be.
    pub(super) fn read_object(
        &mut self,
        session: SessionId,
        object: &Object,
        known: Option<Revision>,
        request: LeaseRequest,
        cx: &mut StepContext<'_>,
    ) -> Result<ReadAnswer, Refusal> {
        let is_unchanged = known.is_some() && known == cx.state.modify_revision(object);
        let content = match is_unchanged {
            true => Ok(None),
            false => self.content_of(object, cx).map(Some),
        };
        let content = content.inspect_err(|_| {
            reached(Bound::ContentBytes);
            // The lessor may have examined as many bytes as the longest answer has.
            cx.read_bytes += self.config.bounds.content_bytes_max;
        })?;
        cx.read_bytes += content.as_ref().map_or(0, Content::weight);
        let grant = self.grant(session, object, request, cx);
        let (volume, settings) = cx.state.volume_of(&object.path);
        let (volume, offer) = (volume.clone(), self.terms_by_use.present(volume, &settings.settings).offer());
        Ok(ReadAnswer { content, grant, volume, offer, applied: cx.state.revision() })
    }

    /// The content of the object, if one answer may be so long. A list may have very many purged
    /// nodes that are not reclaimed yet. They count as read bytes, and a step examines them once.
    fn content_of(&self, object: &Object, cx: &mut StepContext<'_>) -> Result<Content, LimitError> {
        if let Some(content) = cx.lists_with_purged.get(object) {
            return content.clone();
        }
        let mut purged = 0;
        let content = cx.state.content_within(object, self.config.bounds.content_bytes_max, &mut purged);
        if purged > 0 {
            cx.read_bytes += purged * NODE_BYTES;
            cx.lists_with_purged.insert(object.clone(), content.clone());
        }
        content
    }

    /// Counts an answered read, which named the copy `known`.
    pub(super) fn count_read(
        &mut self,
        session: SessionId,
        (object, known, request): (&Object, Option<Revision>, LeaseRequest),
        answer: &ReadAnswer,
        cx: &StepContext<'_>,
    ) {
        let (volume, validated) = (&answer.volume, known.map(|_| answer.content.is_none()));
        let object_leases = self.object_leases.totals_in(volume).entries;
        self.counters.0.note_read(volume, answer.grant.is_some(), validated, object_leases, cx.now);
        if let Some(record) = cx.state.volume(volume) {
            let wants_lease = record.settings.offer().is_open_to(request);
            let read = AnsweredRead { session, object, wants_lease, validated };
            self.terms_by_use.note_read(volume, &record.settings, read, cx.now);
        }
    }

    /// Counts reads that a client answered from memory, and the gaps before its reads.
    pub(super) fn count_cached_reads(
        &mut self,
        volume: &NodePath,
        (reads, gaps): (u64, &ReadGaps),
        cx: &StepContext<'_>,
    ) {
        if let Some(record) = cx.state.volume(volume) {
            self.counters.0.note_cached_reads(volume, reads, gaps);
            self.terms_by_use.note_reads_saved(volume, &record.settings, reads, cx.now);
        }
    }
}

/// A page of the nodes at and below a path: the first nodes, up to the bounds of a page.
pub(super) fn list(
    path: &NodePath,
    after: Option<&NodePath>,
    nodes_max: u32,
    bounds: &LessorBounds,
    state: &State,
) -> ListPage {
    if nodes_max > LIST_NODES_MAX {
        reached(Bound::ListNodes);
    }
    let most = nodes_max.clamp(1, LIST_NODES_MAX) as usize;
    let mut page = ListPage { nodes: Vec::new(), revision: state.revision(), through: None };
    let (mut bytes, mut through): (usize, Option<&NodePath>) = (0, None);
    // Tombstones count too, because examining them takes time.
    for (examined, (path, node)) in state.nodes_and_tombstones_in(path, after).enumerate() {
        bytes += node.map_or(0, |node| path.as_str().len() + node.value.len() + NODE_BYTES);
        let is_long = page.nodes.len() == most;
        let is_full = is_long || (bytes > bounds.list_bytes_max && !page.nodes.is_empty());
        if is_full || examined == bounds.scan_max {
            if !is_long {
                reached(if is_full { Bound::ListBytes } else { Bound::Scan });
            }
            page.through = through.cloned();
            break;
        }
        if let Some(node) = node {
            page.nodes.push((path.clone(), Data { value: node.value.clone(), stat: node.stat() }));
        }
        through = Some(path);
    }
    page
}

/// About how many bytes a node takes in a list in addition to its path and value.
const NODE_BYTES: usize = 64;
