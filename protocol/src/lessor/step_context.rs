//! What one step of the lessor has at hand, and what it has done so far.

use std::collections::BTreeMap;

use crate::{
    limits::LimitError,
    object::{Content, Object},
    state::State,
    time::Instant,
};

use super::LessorEffect;

/// The replicated state, the time and the effects of one step, and the counts that bound it (S10b).
pub(super) struct StepContext<'a> {
    pub(super) state: &'a State,
    pub(super) now: Instant,
    pub(super) effects: Vec<LessorEffect>,
    /// About how many bytes of content this step has sent as answers to reads.
    pub(super) read_bytes: usize,
    /// How many reads this step has answered that came along with requests for volume leases.
    pub(super) first_reads: usize,
    /// How many watches this step has answered, and how many events it has reported to them.
    pub(super) watch_events: usize,
    /// The lists that this step has read, of those with purged nodes.
    pub(super) lists_with_purged: BTreeMap<Object, Result<Content, LimitError>>,
}

impl<'a> StepContext<'a> {
    pub(super) fn new(state: &'a State, now: Instant) -> Self {
        let effects = Vec::new();
        Self { state, now, effects, read_bytes: 0, first_reads: 0, watch_events: 0, lists_with_purged: BTreeMap::new() }
    }
}
