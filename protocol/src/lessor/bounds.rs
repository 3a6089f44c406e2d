//! The bounds of a lessor's queues, tables and batches, and of the work of one step or one answer
//! (S10b). The three bounds of lease limits are constants in `lease_limits.rs`.

/// The bounds of one lessor. They are not replicated: each leader has its own, and a successor may
/// have others.
///
/// A server uses [`LessorBounds::DEFAULT`]. The simulation sets low bounds, so that worlds of a few
/// clients reach each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LessorBounds {
    /// The most commands in one proposal: an entry stays quick to apply.
    pub proposal_commands_max: usize,
    /// The most bytes that the encoded commands of one proposal have, so that an entry stays well
    /// below a frame. A longer command, of at most
    /// [`Command::BYTES_MAX`](crate::command::Command::BYTES_MAX), is proposed alone.
    pub proposal_bytes_max: usize,
    /// If this many commands are ready, or [`proposal_bytes_max`](Self::proposal_bytes_max) bytes,
    /// a proposal need not wait for the proposal before it. One disk write for 2,048 commands is
    /// cheap enough. An entry with 2,048 ends of leases is applied in 8 ms. (With a value of 512
    /// and four proposals in flight, a million leases take a quarter longer to end. The slowest
    /// writes of other clients take a quarter less.)
    pub proposal_commands_full: usize,
    /// The most requests to open or close a session, or to acquire a volume lease, that may wait to
    /// be proposed. Beyond it, further ones are refused as busy.
    pub requests_waiting_max: usize,
    /// The most sessions. Beyond it, further ones are refused as busy. Each takes memory until it
    /// expires, connected or not.
    pub sessions_max: usize,
    /// The most key leases. Beyond it, further ones are refused as busy. A key lease with a long
    /// TTL needs almost no renewals, so [`renewals_per_second_max`](Self::renewals_per_second_max)
    /// does not bound their number. By the sizes of its entries, a key lease takes about 400 bytes
    /// at the leader, or 700 with the longest name: 0.7 GB in all.
    pub key_leases_max: usize,
    /// The most object leases in memory, of all sessions: about a gigabyte. Beyond it, reads of
    /// further objects get no lease. If a holder report exceeds it, its session stays covering.
    pub object_leases_max: usize,
    /// The most results of transactions' operations in memory, with those that pending transactions
    /// may add: a quarter of a gigabyte. Beyond it, a transaction is refused as busy. The first
    /// unanswered request of a session is not, so each session makes progress.
    pub results_max: usize,
    /// The most pending writes. Beyond it, further ones are refused as busy, except flushes,
    /// because others wait for them.
    pub writes_max: usize,
    /// About the most bytes of memory of pending writes. Beyond it, further ones are refused as
    /// busy, except flushes.
    pub writes_bytes_max: usize,
    /// The most requests that may wait for the answer to one write: the first, and its retries.
    pub write_requesters_max: usize,
    /// The longest content of one answer, in bytes: the whole answer fits into a frame.
    pub content_bytes_max: usize,
    /// The most reads that may wait for a proof of leadership. Beyond it, further ones are refused
    /// as busy.
    pub reads_max: usize,
    /// The most reads of one quorum round that one step answers. It also stops after about
    /// [`content_bytes_max`](Self::content_bytes_max) bytes of content. Other requests are served
    /// between two steps.
    pub reads_per_step: usize,
    /// The most reads that may wait for a write lease to be flushed. Beyond it, further ones are
    /// refused as busy; other reads are not.
    pub blocked_reads_max: usize,
    /// The most reads of next values that are not answered yet: those that wait for writes, for a
    /// proof of leadership, or for their turn. Beyond it, further ones are refused as busy; other
    /// reads are not.
    pub next_values_max: usize,
    /// The most reads of next values of one session that are not answered yet. A client sends no
    /// more at a time.
    pub session_next_values_max: usize,
    /// The most unanswered recalls that are sent again with one request of their session. The next
    /// requests trigger the others.
    pub recalls_again_max: usize,
    /// About the most bytes of renewals in one tick: an entry stays quick to apply. With more, the
    /// next tick follows as soon as this one is applied.
    pub tick_bytes_max: usize,
    /// The most renewals in a second that all leases may need, if each is renewed once in its term.
    /// Beyond it, further leases and sessions are refused as busy. The bound allows 327,680 leases
    /// of 10 s. It is a choice, not the measured limit of a server. Clients renew twice in a term,
    /// or more often while renewals are answered at once. Even then all granted leases can be
    /// renewed (S10b).
    pub renewals_per_second_max: usize,
    /// The most leases that the waiting renew-only requests renew together. Beyond it, a request is
    /// answered at once, with what the horizon leaves.
    pub renewals_waiting_max: usize,
    /// About the most leases whose waiting renewals one step answers. Other requests are served
    /// between two steps.
    pub renewals_answered_per_step: usize,
    /// About the most bytes of nodes in one page of a list, so that a page fits into a frame. The
    /// first node may exceed it.
    pub list_bytes_max: usize,
    /// The most watches that may wait at one time. Beyond it, further ones are refused as busy.
    pub watches_max: usize,
    /// The most watches of one session that may wait. Beyond it, further ones are refused as busy.
    pub session_watches_max: usize,
    /// The most changes and events in one answer to a watch. The first change may have more. This
    /// takes milliseconds, and the lessor serves nothing else meanwhile.
    pub watch_scan_max: usize,
    /// The most events that one step reports to watchers, and the most watchers that it answers.
    /// The last watcher's events may exceed it. Other requests are served between two steps.
    pub watch_events_per_step: usize,
    /// About the most bytes of reports to watchers that may not have arrived. Further watches wait
    /// for their turn. The last report may exceed it, by at most
    /// [`State::CHANGE_BYTES_MAX`](crate::state::State::CHANGE_BYTES_MAX) and the memory of its
    /// events. Reports that are encoded, or wait for a connection, take this memory. One large
    /// change may have thousands of watchers.
    pub watch_bytes_in_flight_max: usize,
    /// About the most of these bytes to one session: a few reports of the largest size. So a few
    /// slow clients do not delay the others.
    pub session_watch_bytes_in_flight_max: usize,
    /// The most object leases that one tick examines to find ended ones: a step stays short.
    pub sweep_max: usize,
    /// The most ends of leases that wait to be proposed. A million leases that end at one time must
    /// not delay the writes of all clients. Further ends follow as soon as there is room. Waiting
    /// writes take no room from ends, because writes wait for ends (S2).
    pub expiries_waiting_max: usize,
    /// The most leases that one step examines to find ended ones. A million leases that were
    /// renewed at one moment are also examined at one moment, ended or not. During a long step the
    /// lessor serves nothing else, and the ending clock falls behind (T4). A timer starts the next
    /// step.
    pub expiry_scan_max: usize,
    /// The most leases whose orphans one command removes: they share one round of consents.
    pub purge_leases_max: usize,
    /// The most purges of one set of volumes that wait for consents or for the log at one time. One
    /// step begins at most one purge.
    pub purges_max: usize,
    /// The most lists of children that a purge names one by one for one lease. With more, the purge
    /// names one subtree in each volume, or a single one if these are too many too.
    pub purge_sets_max: usize,
    /// The most sets in one recall. With more, the recall names subtrees that include them. So a
    /// recall fits into a frame even with the longest paths.
    pub recall_sets_max: usize,
    /// About the most claims of one write. A claim is one set and one session that may hold an
    /// object of it. After a failover every session may hold everything, and a purge may change
    /// thousands of sets. With more claims, the lessor names a few subtrees that include the sets.
    pub claims_max: usize,
    /// The most bytes of paths in the list of changes for a returning session. With more, the
    /// lessor revives no copies: the client validates them one by one, which is cheaper.
    pub revival_bytes_max: usize,
    /// The most rows in one answer to an inspection, so that the answer stays well below a frame.
    pub rows_max: usize,
    /// The most nodes or entries that one inspection, or one page of a list, examines. Other
    /// requests wait meanwhile, and most nodes may yield no row: plain nodes, or purged ones.
    pub scan_max: usize,
    /// The most bytes of paths in one answer to an inspection, so that it stays well below a frame.
    pub inspection_bytes_max: usize,
    /// The number of ended leases whose last renewal is remembered, for inspection only.
    pub departed_max: usize,
}

impl LessorBounds {
    /// The bounds of a server.
    pub const DEFAULT: Self = Self {
        proposal_commands_max: 4096,
        proposal_bytes_max: 2 << 20,
        proposal_commands_full: 2048,
        requests_waiting_max: 1 << 16,
        sessions_max: 1 << 18,
        key_leases_max: 1 << 20,
        object_leases_max: 1 << 23,
        results_max: 1 << 22,
        writes_max: 1 << 16,
        writes_bytes_max: 256 << 20,
        write_requesters_max: 8,
        content_bytes_max: 8 << 20,
        reads_max: 1 << 16,
        reads_per_step: 1024,
        blocked_reads_max: 1 << 16,
        next_values_max: 1 << 16,
        session_next_values_max: 256,
        recalls_again_max: 1024,
        tick_bytes_max: 256 << 10,
        renewals_per_second_max: 1 << 15,
        renewals_waiting_max: 1 << 18,
        renewals_answered_per_step: 1 << 14,
        list_bytes_max: 1 << 20,
        watches_max: 1 << 17,
        session_watches_max: 1 << 14,
        watch_scan_max: 1 << 14,
        watch_events_per_step: 1 << 14,
        watch_bytes_in_flight_max: 256 << 20,
        session_watch_bytes_in_flight_max: 16 << 20,
        sweep_max: 4096,
        expiries_waiting_max: 2048,
        expiry_scan_max: 4096,
        purge_leases_max: 512,
        purges_max: 8,
        purge_sets_max: 512,
        recall_sets_max: 1024,
        claims_max: 1 << 16,
        revival_bytes_max: 256 << 10,
        rows_max: 1024,
        scan_max: 1 << 14,
        inspection_bytes_max: 1 << 20,
        departed_max: 1024,
    };
}

impl Default for LessorBounds {
    fn default() -> Self {
        Self::DEFAULT
    }
}
