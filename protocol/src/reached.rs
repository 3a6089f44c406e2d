//! Which named bounds were reached: counted in tests, nothing at all elsewhere.
//!
//! A bound that no test reaches is one that nobody has tried. Where a bound takes effect, the code says so here; the simulation
//! counts over many worlds, and fails if one is never reached.

/// Makes the enum, the list of all of it, and the names from one list.
macro_rules! bounds {
    ($($(#[$doc:meta])* $name:ident: $text:literal,)*) => {
        /// A named bound.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Bound {
            $($(#[$doc])* $name,)*
        }

        impl Bound {
            /// All of them.
            pub const ALL: [Bound; [$(Bound::$name),*].len()] = [$(Bound::$name),*];

            /// What tallies call it.
            pub fn name(self) -> &'static str {
                match self {
                    $(Bound::$name => concat!("bound reached: ", $text),)*
                }
            }
        }
    };
}

bounds! {
    /// Of [`lessor::Bounds`](crate::lessor::Bounds), as all up to [`Bound::Departed`].
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
    WriteAskers: "write_askers_max",
    /// As above.
    ContentBytes: "content_bytes_max",
    /// As above.
    Reads: "reads_max",
    /// As above.
    Parked: "parked_max",
    /// As above.
    TickBytes: "tick_bytes_max",
    /// As above.
    RenewalsPerSecond: "renewals_per_second_max",
    /// As above.
    ListBytes: "list_bytes_max",
    /// As above.
    Watches: "watches_max",
    /// As above.
    SessionWatches: "session_watches_max",
    /// As above.
    WatchLooks: "watch_looks_max",
    /// As above.
    WatchTold: "watch_told_per_step",
    /// As above.
    Sweep: "sweep_max",
    /// As above.
    ExpiriesWaiting: "expiries_waiting_max",
    /// As above.
    ExpiryLooks: "expiry_looks_per_step",
    /// As above.
    RemovalLeases: "removal_leases_per_round",
    /// As above.
    RemovalRounds: "removal_rounds_max",
    /// As above.
    RemovalSets: "removal_sets_max",
    /// As above.
    RevivalBytes: "revival_bytes_max",
    /// As above.
    Rows: "rows_max",
    /// As above.
    Places: "places_max",
    /// As above.
    KeysBytes: "keys_bytes_max",
    /// As above.
    Departed: "departed_max",
    /// Of [`Request::check_lengths`](crate::message::Request::check_lengths), as all up to [`Bound::KeepLeases`].
    Renewals: "RENEWALS_MAX",
    /// As above.
    Consents: "CONSENTS_MAX",
    /// As above.
    Returns: "RETURNS_MAX",
    /// As above.
    DroppedSets: "DROPPED_SETS_MAX",
    /// As above.
    HeldObjects: "HELD_PIECE_OBJECTS_MAX",
    /// As above.
    AwaitHolds: "AWAIT_HOLDS_MAX",
    /// As above.
    KeepLeases: "KEEP_LEASES_MAX",
    /// Of [`holder::Bounds`](crate::holder::Bounds), as all that follow.
    RecallsRemembered: "recalls_remembered_max",
    /// As above.
    Volumes: "volumes_max",
    /// As above.
    ReturnsWaiting: "returns_waiting_max",
    /// As above.
    WritesOut: "writes_out_max",
    /// As above.
    ReadWaits: "read_waits_max",
}

#[cfg(any(test, feature = "count-work"))]
mod counted {
    use std::{cell::RefCell, collections::BTreeMap};

    use super::Bound;

    thread_local! {
        static REACHED: RefCell<BTreeMap<Bound, u64>> = const { RefCell::new(BTreeMap::new()) };
    }

    /// This bound has taken effect.
    pub(crate) fn reached(bound: Bound) {
        REACHED.with_borrow_mut(|reached| *reached.entry(bound).or_default() += 1);
    }

    /// How often each was reached on this thread since the last call.
    pub fn take_reached() -> BTreeMap<Bound, u64> {
        REACHED.take()
    }
}

#[cfg(any(test, feature = "count-work"))]
pub(crate) use counted::reached;
#[cfg(any(test, feature = "count-work"))]
pub use counted::take_reached;

/// This bound has taken effect: counted in tests only.
#[cfg(not(any(test, feature = "count-work")))]
#[inline(always)]
pub(crate) fn reached(_bound: Bound) {}
