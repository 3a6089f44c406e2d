//! Bounds of a lessor's queues, tables and batches: what one leader holds at a time, and what one
//! step or one answer does.

/// The bounds of one lessor. They are not replicated: each leader has its own, and a successor may
/// have others.
///
/// A server uses [`LessorBounds::DEFAULT`]. The simulation sets them low, so that worlds of a few
/// clients reach each of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LessorBounds {
    /// The most commands in one proposal: an entry stays quick to apply.
    pub proposal_commands_max: usize,
    /// The most bytes that the commands of one proposal have when encoded: an entry stays well
    /// below a frame. A longer command, of at most
    /// [`Command::BYTES_MAX`](crate::command::Command::BYTES_MAX), is proposed alone.
    pub proposal_bytes_max: usize,
    /// With this many commands ready, or [`proposal_bytes_max`](Self::proposal_bytes_max), a
    /// proposal need not wait for the one before it: the cost of one disk write for that many is
    /// low enough, and an entry with that many ends of leases is applied in 8 ms. (With 512, and
    /// four proposals in flight, a million leases end a quarter later, and the slowest of others'
    /// writes meanwhile take a quarter less.)
    pub proposal_commands_full: usize,
    /// The most requests to open or close a session, or for a volume lease, that may wait to be
    /// proposed; one more is refused as busy.
    pub requests_waiting_max: usize,
    /// The most sessions; one more is refused as busy. Each takes memory for as long as it is
    /// remembered, connected or not.
    pub sessions_max: usize,
    /// The most object leases in memory, of all sessions: a gigabyte or so. Beyond it an object
    /// that its reader has no lease on is read without one, and a session whose list of what it
    /// holds goes beyond it stays covering.
    pub object_leases_max: usize,
    /// The most results of operations that are remembered with the outcomes of transactions, or are
    /// to be: a quarter of a gigabyte. One more transaction is refused as busy, unless it is the
    /// first of its session that is not answered: each session goes on.
    pub results_max: usize,
    /// The most writes that may wait at one time; one more is refused as busy. Flushes are not
    /// refused: others wait for them.
    pub writes_max: usize,
    /// About the most bytes of memory that waiting writes may take; with more, one more is refused
    /// as busy.
    pub writes_bytes_max: usize,
    /// The most requests that may want one write's answer: a client has one, and some of its
    /// retries.
    pub write_requesters_max: usize,
    /// The longest content of one answer, in bytes: with the rest of the answer it fits into a
    /// frame.
    pub content_bytes_max: usize,
    /// The most reads that may wait for a proof of leadership; one more is refused as busy.
    pub reads_max: usize,
    /// The most reads of one quorum round that one step answers, and about the most bytes of
    /// content that it answers them with is [`content_bytes_max`](Self::content_bytes_max): others
    /// are served between two steps.
    pub reads_per_step: usize,
    /// The most reads that may wait for holders to flush; one more is refused as busy, and no other
    /// read is.
    pub blocked_reads_max: usize,
    /// The most unanswered recalls that are sent again with one request of their session; the
    /// others follow with its next ones.
    pub recalls_again_max: usize,
    /// About the most bytes of renewals in one tick: an entry stays quick to apply. With more, the
    /// next tick follows as soon as this one is applied.
    pub tick_bytes_max: usize,
    /// The most renewals in a second that keeping all leases may take, if each is renewed once in
    /// its term: a lease, a session too, that would need more is refused as busy. So all that are
    /// granted can be kept (S10b), though clients renew twice in a term, and more often while
    /// renewals are answered at once. A choice, not the measured limit of a server: 327,680 leases
    /// of 10 s.
    pub renewals_per_second_max: usize,
    /// The most leases that the waiting renew-only requests renew together. With more, a request is
    /// answered at once, with what the horizon leaves.
    pub renewals_waiting_max: usize,
    /// About the most leases whose waiting renewals one step answers. Other requests are served
    /// between two steps.
    pub renewals_answered_per_step: usize,
    /// About the most bytes of nodes in one page of a list, but for the first node: a page fits
    /// into a frame.
    pub list_bytes_max: usize,
    /// The most watches that may wait at one time; one more is refused as busy.
    pub watches_max: usize,
    /// The most watches of one session that may wait; one more is refused as busy.
    pub session_watches_max: usize,
    /// The most changes and events that are looked at for one answer to a watch: nobody else is
    /// served for those milliseconds.
    pub watch_looks_max: usize,
    /// The most events that watchers are told of in one step, and the most watchers that are told,
    /// but for the last watcher's events: others are served between two steps.
    pub watch_events_per_step: usize,
    /// The most object leases that one tick examines for being over: a step stays short.
    pub sweep_max: usize,
    /// The most ends of leases that wait to be proposed: a million leases that end at one time must
    /// not stand before everyone's writes. The others follow as soon as there is room. Writes that
    /// wait take no room from them: writes wait for ends (S2).
    pub expiries_waiting_max: usize,
    /// The most leases that one step examines because they may be over. A million that were renewed
    /// in the same moment come up in the same moment too, whether or not they are over; meanwhile
    /// nobody is served, and the clock is held back (T4). The next step follows as soon as a timer
    /// can.
    pub expiry_looks_per_step: usize,
    /// The most leases whose orphans are removed by one command: they share one round of consents.
    pub purge_leases_max: usize,
    /// The most removals of orphans that wait for consents or for the log at one time. One step
    /// begins one of them.
    pub purges_max: usize,
    /// The most lists of children of one lease's nodes that a removal names one by one; of more it
    /// names the subtree that they share.
    pub purge_sets_max: usize,
    /// The most sets in one recall. With more, the recall names subtrees that include them. So a
    /// recall fits into a frame even with the longest paths.
    pub recall_sets_max: usize,
    /// About the most claims of one write. A claim is one set and one session that may hold an
    /// object of it. After a failover every session may hold everything, and a removal may change
    /// thousands of sets. With more claims, the lessor names a few subtrees that include the sets.
    pub claims_max: usize,
    /// The most bytes of paths in the list of changes for a returning session; with more, it
    /// revives nothing: revalidating copies one by one is cheaper.
    pub revival_bytes_max: usize,
    /// The most rows in one answer for people: it stays well below a frame.
    pub rows_max: usize,
    /// The most places that one answer for people, or one page of a list, examines: others wait
    /// meanwhile, and most places may be plain nodes, or orphans that are not removed yet.
    pub scan_max: usize,
    /// The most bytes of paths in one answer for people: it stays well below a frame.
    pub keys_bytes_max: usize,
    /// The number of ended leases whose last renewal is remembered, for people only.
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
        object_leases_max: 1 << 23,
        results_max: 1 << 22,
        writes_max: 1 << 16,
        writes_bytes_max: 256 << 20,
        write_requesters_max: 8,
        content_bytes_max: 8 << 20,
        reads_max: 1 << 16,
        reads_per_step: 1024,
        blocked_reads_max: 1 << 16,
        recalls_again_max: 1024,
        tick_bytes_max: 256 << 10,
        renewals_per_second_max: 1 << 15,
        renewals_waiting_max: 1 << 18,
        renewals_answered_per_step: 1 << 14,
        list_bytes_max: 1 << 20,
        watches_max: 1 << 17,
        session_watches_max: 1 << 14,
        watch_looks_max: 1 << 14,
        watch_events_per_step: 1 << 14,
        sweep_max: 4096,
        expiries_waiting_max: 2048,
        expiry_looks_per_step: 4096,
        purge_leases_max: 512,
        purges_max: 8,
        purge_sets_max: 512,
        recall_sets_max: 1024,
        claims_max: 1 << 16,
        revival_bytes_max: 256 << 10,
        rows_max: 1024,
        scan_max: 1 << 14,
        keys_bytes_max: 1 << 20,
        departed_max: 1024,
    };
}

impl Default for LessorBounds {
    fn default() -> Self {
        Self::DEFAULT
    }
}
