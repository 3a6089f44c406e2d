//! Records which named bounds took effect. Only test builds record.
//!
//! A bound that no test reaches is untested. The code calls `reached` when a bound takes effect.
//! The simulation counts these calls in many worlds, and fails if a bound is never reached.

/// Makes the enum, the list of all variants, and their names.
macro_rules! bounds {
    ($($(#[$doc:meta])* $name:ident: $text:literal,)*) => {
        /// A named bound.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Bound {
            $($(#[$doc])* $name,)*
        }

        impl Bound {
            /// All bounds.
            pub const ALL: [Bound; [$(Bound::$name),*].len()] = [$(Bound::$name),*];

            /// The name of the bound in tallies.
            pub fn name(self) -> &'static str {
                match self {
                    $(Bound::$name => concat!("bound reached: ", $text),)*
                }
            }
        }
    };
}

bounds! {
    /// A field of [`LessorBounds`](crate::lessor::LessorBounds), like all up to [`Bound::Claims`].
    ProposalCommands: "proposal_commands_max",
    /// As above.
    ProposalBytes: "proposal_bytes_max",
    /// As above.
    ProposalFull: "proposal_commands_full",
    /// As above.
    Writes: "writes_max",
    /// As above.
    WritesBytes: "writes_bytes_max",
    /// As above.
    WriteRequesters: "write_requesters_max",
    /// As above.
    ContentBytes: "content_bytes_max",
    /// As above.
    Reads: "reads_max",
    /// As above.
    BlockedReads: "blocked_reads_max",
    /// As above.
    NextValuesWaiting: "next_values_max",
    /// As above.
    SessionNextValues: "session_next_values_max",
    /// As above.
    TickBytes: "tick_bytes_max",
    /// As above.
    RenewalsPerSecond: "renewals_per_second_max",
    /// As above.
    RenewalsWaiting: "renewals_waiting_max",
    /// As above.
    RenewalsAnswered: "renewals_answered_per_step",
    /// As above.
    ListBytes: "list_bytes_max",
    /// As above.
    Watches: "watches_max",
    /// As above.
    SessionWatches: "session_watches_max",
    /// As above.
    WatchScan: "watch_scan_max",
    /// As above.
    WatchesAnswered: "watch_events_per_step",
    /// As above.
    WatchBytes: "watch_bytes_in_flight_max",
    /// As above.
    SessionWatchBytes: "session_watch_bytes_in_flight_max",
    /// As above.
    Sweep: "sweep_max",
    /// As above.
    ExpiriesWaiting: "expiries_waiting_max",
    /// As above.
    ExpiryScan: "expiry_scan_max",
    /// As above.
    PurgeLeases: "purge_leases_max",
    /// As above.
    Purges: "purges_max",
    /// As above.
    PurgeSets: "purge_sets_max",
    /// As above.
    RevivalBytes: "revival_bytes_max",
    /// As above.
    Rows: "rows_max",
    /// As above.
    Scan: "scan_max",
    /// As above.
    InspectionBytes: "inspection_bytes_max",
    /// As above.
    Departed: "departed_max",
    /// As above.
    RecallSets: "recall_sets_max",
    /// As above.
    Claims: "claims_max",
    /// Checked by [`Request::check_lengths`](crate::message::Request::check_lengths), like all up
    /// to [`Bound::KeepAlives`] except [`Bound::AwaitLockStatusBytes`].
    Renewals: "RENEWALS_MAX",
    /// As above.
    Consents: "CONSENTS_MAX",
    /// As above.
    Returns: "RETURNS_MAX",
    /// As above.
    CachedReads: "CACHED_READS_MAX",
    /// As above.
    DroppedSets: "DROPPED_SETS_MAX",
    /// As above.
    ReportObjects: "REPORT_PART_OBJECTS_MAX",
    /// As above.
    AwaitLockStatus: "AWAIT_LOCK_STATUS_MAX",
    /// Bounds the requests that a holder makes.
    AwaitLockStatusBytes: "AWAIT_LOCK_STATUS_BYTES_MAX",
    /// Checked by `check_lengths`.
    KeepAlives: "KEEP_ALIVES_MAX",
    /// A field of [`HolderBounds`](crate::holder::HolderBounds), like all up to
    /// [`Bound::ReadWaits`].
    RecallsRemembered: "recalls_remembered_max",
    /// As above.
    Volumes: "volumes_max",
    /// As above.
    ReturnsWaiting: "returns_waiting_max",
    /// As above.
    ConsentsWaiting: "consents_waiting_max",
    /// As above.
    DelayedConsents: "delayed_consents_max",
    /// As above.
    OwnNextValues: "own_next_values_max",
    /// As above.
    WritesOut: "writes_out_max",
    /// As above.
    ReadWaits: "read_waits_max",
    /// A field of [`LessorBounds`](crate::lessor::LessorBounds), like all up to
    /// [`Bound::RecallsAgain`].
    RequestsWaiting: "requests_waiting_max",
    /// As above.
    Sessions: "sessions_max",
    /// As above.
    KeyLeases: "key_leases_max",
    /// As above.
    ObjectLeases: "object_leases_max",
    /// As above.
    Results: "results_max",
    /// As above.
    ReadsPerStep: "reads_per_step",
    /// As above.
    RecallsAgain: "recalls_again_max",
    /// A field of [`HolderBounds`](crate::holder::HolderBounds).
    FlushesOut: "flushes_out_max",
    /// A limit of [`Limits`](crate::limits::Limits), like all up to [`Bound::DelayMax`].
    ValueBytes: "value_max_bytes",
    /// As above.
    ComponentBytes: "component_max_bytes",
    /// As above.
    PathBytes: "path_max_bytes",
    /// As above.
    Depth: "depth_max",
    /// As above.
    SessionObjects: "session_objects_max",
    /// As above.
    SessionNameBytes: "session_name_max_bytes",
    /// As above.
    ValueMax: "VALUE_MAX_BYTES",
    /// As above.
    DepthMax: "DEPTH_MAX",
    /// As above.
    TtlMax: "TTL_MAX",
    /// As above.
    DelayMax: "DELAY_MAX",
    /// A bound of [`NodePath`](crate::path::NodePath), like the next one.
    ComponentMax: "COMPONENT_MAX_BYTES",
    /// As above.
    PathMax: "PATH_MAX_BYTES",
    /// The bound of [`LeaseName`](crate::lease_name::LeaseName).
    LeaseNameMax: "LEASE_NAME_MAX_BYTES",
    /// Of [`VolumeSettings`](crate::volume::VolumeSettings), like all up to [`Bound::TickMax`].
    TermMax: "TERM_MAX",
    /// As above.
    ObjectTermMax: "OBJECT_TERM_MAX",
    /// As above.
    WaitedTermMax: "WAITED_TERM_MAX",
    /// As above.
    SkewMarginMax: "SKEW_MARGIN_MAX",
    /// As above.
    TickMax: "TICK_MAX",
    /// Of [`Transaction`](crate::transaction::Transaction), like all up to [`Bound::MadePaths`].
    Compares: "COMPARES_MAX",
    /// As above.
    Operations: "OPERATIONS_MAX",
    /// As above.
    TransactionPaths: "PATHS_MAX_BYTES",
    /// As above.
    NodesMade: "NODES_MADE_MAX",
    /// As above.
    MadePaths: "MADE_PATHS_MAX_BYTES",
    /// A bound of [`Write`](crate::command::Write), like the next one.
    WriteBytes: "BYTES_MAX",
    /// As above.
    ConsentedBytes: "CONSENTED_BYTES_MAX",
    /// A bound on the sets of one write or change.
    Sets: "SETS_MAX",
    /// A bound of [drift supervision](crate::drift), like the next one.
    References: "REFERENCES_MAX",
    /// As above.
    ReferenceAge: "REFERENCE_AGE_MAX",
    /// A bound on one answer, like all up to [`Bound::ClockInfos`].
    WatchWait: "WATCH_WAIT_MAX",
    /// As above.
    ChangesBytes: "CHANGES_BYTES_MAX",
    /// As above.
    ListNodes: "LIST_NODES_MAX",
    /// As above.
    ClockInfos: "CLOCK_INFOS_MAX",
    /// A bound of the lessor, like the next one.
    Candidates: "CANDIDATES_MAX",
    /// As above.
    ClockStep: "STEP_MAX",
    /// A bound of the holder, like all up to [`Bound::AttemptsPerTerm`].
    Heartbeats: "HEARTBEATS_MAX",
    /// As above.
    PushWait: "PUSH_WAIT_MAX",
    /// As above.
    RemovalsRemembered: "REMOVALS_MAX",
    /// As above.
    SilenceMax: "SILENCE_MAX",
    /// As above.
    WaitMax: "WAIT_MAX",
    /// As above.
    AttemptsPerTerm: "ATTEMPTS_PER_TERM_MAX",
    /// A bound of the replicated [`State`](crate::state::State), like all that follow.
    Answers: "ANSWERS_MAX",
    /// As above.
    History: "HISTORY_MAX",
    /// As above.
    HistoryBytes: "HISTORY_BYTES_MAX",
    /// As above.
    ChangeBytes: "CHANGE_BYTES_MAX",
    /// As above.
    RemovedNodes: "REMOVED_NODES_MAX",
    /// As above.
    LocksPerNode: "LOCKS_PER_NODE_MAX",
    /// As above.
    LocksPerLease: "LOCKS_PER_LEASE_MAX",
    /// As above.
    SessionTermMax: "SESSION_TERM_MAX",
    /// The unanswered recalls of a session that gets object leases in a volume with a lease limit.
    Unanswered: "UNANSWERED_MAX",
    /// The [lease limit](crate::volume::VolumeSettings::lease_limit) of a volume.
    LeaseLimit: "lease_limit",
    /// The copies of a volume that are counted while it has no leases, because they do not pay.
    GhostLeases: "GHOST_LEASES_MAX",
    /// A limit of a volume's [`Quota`](crate::quota::Quota), like the next one.
    QuotaNodes: "quota_nodes",
    /// As above.
    QuotaBytes: "quota_bytes",
}

/// The bounds that the simulation need not reach, each with the unit test that reaches it. Most are
/// constants that are too high for a few clients. [`Bound::Sessions`] is here because a world
/// without room for a session recovers only when abandoned sessions expire. The simulation sets
/// every other bound low in some worlds, and must reach it.
pub const BY_TESTS_OF_RULES: &[(Bound, &str)] = &[
    (Bound::Sessions, "lessor::tests::bounds::sessions_beyond_the_bound_are_busy"),
    (Bound::CachedReads, "lessor::tests::headers::request_with_a_list_too_long_changes_nothing"),
    (Bound::Unanswered, "lessor::tests::lease_limits::session_that_answers_no_recall_gets_no_further_lease"),
    (Bound::OwnNextValues, "holder::tests::next_values::one_request_for_each_object_up_to_the_bound"),
    (Bound::NextValuesWaiting, "lessor::tests::next_values::next_values_beyond_the_bounds_are_busy"),
    (Bound::SessionNextValues, "lessor::tests::next_values::next_values_beyond_the_bounds_are_busy"),
    (
        Bound::GhostLeases,
        "lessor::terms_by_use::ghosts::tests::too_many_ghost_leases_become_a_sample_of_the_same_shares",
    ),
    (Bound::ValueBytes, "limits::tests::a_transaction_is_bounded_in_each_of_its_parts"),
    (Bound::ComponentBytes, "limits::tests::a_transaction_is_bounded_in_each_of_its_parts"),
    (Bound::PathBytes, "limits::tests::lengths_and_terms_beyond_their_limits_are_refused"),
    (Bound::Depth, "limits::tests::path_deeper_than_the_limit_is_refused_with_its_depth"),
    (Bound::SessionNameBytes, "limits::tests::lengths_and_terms_beyond_their_limits_are_refused"),
    (Bound::ValueMax, "limits::tests::lengths_and_terms_beyond_their_limits_are_refused"),
    (Bound::DepthMax, "limits::tests::path_deeper_than_the_limit_is_refused_with_its_depth"),
    (Bound::TtlMax, "limits::tests::lengths_and_terms_beyond_their_limits_are_refused"),
    (Bound::DelayMax, "limits::tests::lengths_and_terms_beyond_their_limits_are_refused"),
    (Bound::ComponentMax, "path::tests::malformed_paths_are_refused_with_what_was_expected"),
    (Bound::PathMax, "path::tests::malformed_paths_are_refused_with_what_was_expected"),
    (Bound::LeaseNameMax, "lease_name::tests::malformed_names_are_refused_with_what_was_expected"),
    (Bound::TermMax, "volume::tests::terms_and_margins_beyond_their_bounds_are_refused"),
    (Bound::WaitedTermMax, "lessor::tests::policies::object_term_longer_than_volume_term_needs_recalls"),
    (Bound::ObjectTermMax, "volume::tests::terms_and_margins_beyond_their_bounds_are_refused"),
    (Bound::SkewMarginMax, "volume::tests::terms_and_margins_beyond_their_bounds_are_refused"),
    (Bound::TickMax, "volume::tests::the_default_keeps_the_rule_under_the_default_drift"),
    (Bound::Compares, "limits::tests::a_transaction_is_bounded_in_each_of_its_parts"),
    (Bound::Operations, "limits::tests::a_transaction_is_bounded_in_each_of_its_parts"),
    (Bound::TransactionPaths, "limits::tests::a_transaction_is_bounded_in_each_of_its_parts"),
    (Bound::NodesMade, "lessor::tests::costs::transaction_that_makes_too_many_nodes_is_refused"),
    (Bound::MadePaths, "lessor::tests::costs::transaction_whose_new_paths_are_too_long_is_refused"),
    (Bound::WriteBytes, "lessor::tests::sizes::write_too_long_for_an_entry_is_refused"),
    (Bound::ConsentedBytes, "lessor::tests::sizes::footprint_too_long_for_a_command_becomes_one_subtree"),
    (Bound::Sets, "object::tests::many_sets_become_few_that_include_them"),
    (Bound::References, "drift::tests::references_are_few_and_their_ages_differ_by_powers"),
    (Bound::ReferenceAge, "drift::tests::reference_older_than_the_bound_is_dropped"),
    (Bound::WatchWait, "lessor::tests::watches::watch_wait_ends_with_progress_answer"),
    (Bound::WatchBytes, "lessor::tests::watch_reports::bounded_reports_reach_each_watcher_once_and_complete"),
    (Bound::SessionWatchBytes, "lessor::tests::watch_reports::session_whose_reports_are_not_taken_delays_no_other"),
    (Bound::Purges, "lessor::tests::rounds::rounds_begin_one_in_a_step_and_each_step_at_once"),
    (Bound::ChangesBytes, "lessor::tests::bounds::requested_sizes_are_cut_to_one_answer"),
    (Bound::ListNodes, "lessor::tests::bounds::requested_sizes_are_cut_to_one_answer"),
    (Bound::ClockInfos, "lessor::tests::drift::drifting_clients_are_all_counted_and_some_listed"),
    (Bound::Candidates, "lessor::recalls::tests::recall_of_sets_that_one_recall_includes_sends_nothing"),
    (Bound::AwaitLockStatusBytes, "holder::tests::locks::locks_with_long_paths_are_named_in_turn"),
    (Bound::Heartbeats, "holder::in_flight::tests::heartbeat_beyond_the_bound_abandons_the_oldest"),
    (Bound::PushWait, "holder::tests::next_values::next_value_is_awaited_for_a_limited_time"),
    (Bound::RemovalsRemembered, "holder::attachments::tests::removal_beyond_the_bound_forgets_the_earliest"),
    (Bound::Answers, "state::sessions::tests::window_forgets_answered_requests_and_is_bounded"),
    (Bound::History, "state::history::tests::history_is_bounded_and_reports_compacted_revisions"),
    (Bound::HistoryBytes, "state::history::tests::the_history_is_bounded_by_weight_too"),
    (Bound::ChangeBytes, "state::history::tests::watch_of_change_without_events_is_compacted"),
    (Bound::RemovedNodes, "lessor::tests::costs::delete_of_too_many_nodes_is_refused"),
    (Bound::LocksPerNode, "state::locks::tests::locks_on_a_node_are_bounded"),
    (Bound::LocksPerLease, "state::locks::tests::locks_under_a_lease_are_bounded"),
    (Bound::SessionTermMax, "state::sessions::tests::session_term_grows_with_the_sessions_and_stays"),
];

/// Constants that are named like bounds but never take effect: maximal lengths of encodings,
/// counts that nothing reaches, and numbers that only decide something.
pub const NOT_COUNTED: &[(&str, &str)] = &[
    ("HEAD_BYTES_MAX", "a part of BYTES_MAX: what a command has beside its write and its covers"),
    ("PUT_BYTES_MAX", "what a put of a change takes beside its value at most: weighs changes"),
    ("DELETE_BYTES_MAX", "what a removal of a change takes at most: weighs changes"),
    ("OPERATION_SETS_MAX", "a part of DROPPED_SETS_MAX: no footprint is cut to it without naming the subtree"),
    ("PUSH_REQUESTS_MAX", "the default of own_next_values_max, so no reply of a sound client has more"),
    ("REPORTED_READS_MAX", "a count that no correct client reports"),
    ("UNSAVED_PERCENT_MAX", "decides whether object terms get longer"),
    ("UNREAD_MAX", "decides which ghost leases are forgotten first"),
    ("SETS_SEARCHED_MAX", "a write of more sets counts as a write of the whole volume"),
    ("COPIES_MAX", "where the search for a number of copies ends"),
    ("CORRECTION_MAX", "how far an estimate is corrected by the counts"),
    ("COUNTER_MAX", "a check of invariants: no counter comes near it"),
];

#[cfg(any(test, feature = "count-work"))]
mod counted {
    use std::{cell::RefCell, collections::BTreeMap};

    use super::Bound;

    thread_local! {
        static REACHED: RefCell<BTreeMap<Bound, u64>> = const { RefCell::new(BTreeMap::new()) };
    }

    /// Records that the bound has taken effect.
    pub(crate) fn reached(bound: Bound) {
        #[cfg(test)]
        super::tests::expected(bound);
        REACHED.with_borrow_mut(|reached| *reached.entry(bound).or_default() += 1);
    }

    /// How often each bound was reached on this thread since the last call.
    pub fn take_reached() -> BTreeMap<Bound, u64> {
        REACHED.take()
    }
}

#[cfg(any(test, feature = "count-work"))]
pub(crate) use counted::reached;
#[cfg(any(test, feature = "count-work"))]
pub use counted::take_reached;

/// Records that the bound has taken effect, in test builds only.
#[cfg(not(any(test, feature = "count-work")))]
#[inline(always)]
pub(crate) fn reached(_bound: Bound) {}

#[cfg(test)]
mod tests;
