//! Volumes: subtrees whose objects share volume leases. A volume's term bounds how long a failed
//! client delays a write (Yin et al. 1999).
//!
//! The lease policy of a volume is in [`lease_policy`](crate::lease_policy).

mod error;
mod object_term;
mod term;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{
    lease_policy::{GrantPolicy, LeaseOffer, LeaseRequest, ObjectTerm, OnWrite},
    quota::Quota,
    reached::{Bound, reached},
    time::{DriftAllowance, Span},
};

pub use error::VolumeError;
use term::PackedTerm;
pub use term::VolumeTerm;

/// How a server tracks the object leases of sessions in a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Tracking {
    /// One by one, up to a bound for each session.
    Objects,
    /// Not at all. The server assumes that each session with a volume lease holds every object of
    /// the volume. So its memory does not grow with the number of objects (as in Gray and
    /// Cheriton's one lease for many installed files).
    Covering,
}

/// The settings of a volume. Every value of this type has passed the checks of its bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "RawSettings", into = "RawSettings")]
pub struct VolumeSettings {
    term: PackedTerm,
    object_term: ObjectTerm,
    skew_margin: Span,
    tracking: Tracking,
    on_write: OnWrite,
    grants: GrantPolicy,
    /// [`NO_LEASE_LIMIT`] if there is none. An `Option` would take more memory, and each value of
    /// the type `Write` has room for settings.
    lease_limit: u32,
    quota: Quota,
}

/// More leases than any leader records.
const NO_LEASE_LIMIT: u32 = u32::MAX;

#[derive(Clone, Copy, Serialize, Deserialize)]
struct RawSettings {
    term: VolumeTerm,
    object_term: ObjectTerm,
    skew_margin: Duration,
    tracking: Tracking,
    on_write: OnWrite,
    grants: GrantPolicy,
    lease_limit: Option<u32>,
    quota: Quota,
}

impl VolumeSettings {
    /// The shortest volume term. A tick is a tenth of it, and must be longer than a usual commit.
    pub const TERM_MIN: Duration = Duration::from_millis(200);
    /// The longest volume term. It bounds how long a dead client can delay a write.
    pub const TERM_MAX: Duration = Duration::from_secs(24 * 3600);
    /// The longest object term. The shortest is [`VolumeSettings::TERM_MIN`]. An object term may be
    /// shorter than the volume term. Then the end of the object lease bounds a write's wait.
    pub const OBJECT_TERM_MAX: Duration = Duration::from_secs(366 * 24 * 3600);
    /// The longest object term if writes wait for the end of object leases. Writes that wait take
    /// room in the leader's memory (S10b).
    pub const WAITED_TERM_MAX: Duration = Duration::from_secs(60);
    /// The largest margin.
    pub const SKEW_MARGIN_MAX: Duration = Duration::from_secs(3600);

    /// Volume leases of 10 s with a margin of 100 ms (Gray and Cheriton's conclusion and their ε),
    /// and object leases of an hour.
    pub const DEFAULT: Self = Self {
        term: VolumeTerm::Fixed(Duration::from_secs(10)).pack(),
        object_term: ObjectTerm::Fixed(Duration::from_secs(3600)),
        skew_margin: Span::of(Duration::from_millis(100)),
        tracking: Tracking::Objects,
        on_write: OnWrite::Recall,
        grants: GrantPolicy::All,
        lease_limit: NO_LEASE_LIMIT,
        quota: Quota::NONE,
    };

    /// Makes settings, and checks them against the cluster's drift allowance (T3).
    ///
    /// The margin must exceed twice the allowance over the longest volume term and a tick. The
    /// object term needs no greater margin, even if it is much longer than the volume term: for
    /// object leases the server waits [`VolumeSettings::object_wait`].
    ///
    /// Every read gets an object lease, and writes recall them. [`VolumeSettings::with_policy`]
    /// changes that.
    ///
    /// # Errors
    ///
    /// [`VolumeError`] with the given number and the bounds.
    pub fn new(
        term: impl Into<VolumeTerm>,
        object_term: impl Into<ObjectTerm>,
        skew_margin: Duration,
        tracking: Tracking,
        drift: DriftAllowance,
    ) -> Result<Self, VolumeError> {
        let (term, object_term, skew_margin) = (term.into().pack(), object_term.into(), Span::of(skew_margin));
        let settings = Self { term, object_term, skew_margin, tracking, ..Self::DEFAULT };
        settings.check_bounds()?;
        settings.check_drift(drift)?;
        Ok(settings)
    }

    /// These settings with another lease policy.
    ///
    /// ```
    /// use std::time::Duration;
    /// use leasehold_protocol::lease_policy::{GrantPolicy, ObjectTerm, OnWrite};
    /// use leasehold_protocol::volume::VolumeSettings;
    ///
    /// // Polling: each read asks a server, and no write waits.
    /// let usual = VolumeSettings::DEFAULT;
    /// let polling = usual.with_policy(ObjectTerm::Zero, OnWrite::Recall, GrantPolicy::All)?;
    /// assert_eq!(polling.term(), usual.term());
    /// // An object lease that may outlast the volume lease would delay writes for longer.
    /// let hour = ObjectTerm::Fixed(Duration::from_secs(3600));
    /// assert!(usual.with_policy(hour, OnWrite::Wait, GrantPolicy::All).is_err());
    /// # Ok::<_, leasehold_protocol::volume::VolumeError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`VolumeError`] with the given term and the bounds.
    pub fn with_policy(
        self,
        object_term: impl Into<ObjectTerm>,
        on_write: OnWrite,
        grants: GrantPolicy,
    ) -> Result<Self, VolumeError> {
        let settings = Self { object_term: object_term.into(), on_write, grants, ..self };
        settings.check_bounds()?;
        Ok(settings)
    }

    /// These settings with another tracking. Every tracking is valid with all other settings.
    #[must_use]
    pub fn with_tracking(self, tracking: Tracking) -> Self {
        Self { tracking, ..self }
    }

    /// These settings with another [limit of object leases](Self::lease_limit). Every limit is valid
    /// with all other settings; `Some(u32::MAX)` is as good as none.
    #[must_use]
    pub fn with_lease_limit(self, lease_limit: Option<u32>) -> Self {
        Self { lease_limit: lease_limit.unwrap_or(NO_LEASE_LIMIT), ..self }
    }

    /// These settings with another quota. Every quota is valid, also one below the present use.
    #[must_use]
    pub fn with_quota(self, quota: Quota) -> Self {
        Self { quota, ..self }
    }

    /// Checks the margin against a drift allowance (T3).
    ///
    /// # Errors
    ///
    /// [`VolumeError::SkewMargin`] if two clocks within the allowance could differ by the margin,
    /// or if the margin is too long.
    pub fn check_drift(&self, drift: DriftAllowance) -> Result<(), VolumeError> {
        let over = self.longest_term() + self.tick();
        let least = drift.over(over) * 2;
        let got = self.skew_margin();
        if got <= least || got > Self::SKEW_MARGIN_MAX {
            if got > Self::SKEW_MARGIN_MAX {
                reached(Bound::SkewMarginMax);
            }
            return Err(VolumeError::SkewMargin {
                got,
                least,
                most: Self::SKEW_MARGIN_MAX,
                drift_ppm: drift.ppm(),
                over,
            });
        }
        Ok(())
    }

    fn check_bounds(&self) -> Result<(), VolumeError> {
        self.term().check()?;
        self.check_object_term()?;
        self.check_grants()
    }

    fn check_grants(&self) -> Result<(), VolumeError> {
        let GrantPolicy::Returning { first } = self.grants else { return Ok(()) };
        let most = self.object_term.longest();
        if self.has_object_leases() && (first < Self::TERM_MIN || first > most) {
            return Err(VolumeError::FirstTerm { got: first, least: Self::TERM_MIN, most });
        }
        Ok(())
    }

    /// The term of volume leases.
    pub const fn term(&self) -> VolumeTerm {
        self.term.unpack()
    }

    /// The shortest term of a lease on the volume.
    pub const fn shortest_term(&self) -> Duration {
        self.term().shortest()
    }

    /// The longest term of a lease on the volume.
    pub const fn longest_term(&self) -> Duration {
        self.term().longest()
    }

    /// The term of object leases.
    pub fn object_term(&self) -> ObjectTerm {
        self.object_term
    }

    /// What a write does about object leases.
    pub fn on_write(&self) -> OnWrite {
        self.on_write
    }

    /// Which reads get an object lease.
    pub fn grants(&self) -> GrantPolicy {
        self.grants
    }

    /// Whether any session may have an object lease.
    pub fn has_object_leases(&self) -> bool {
        self.object_term != ObjectTerm::Zero
    }

    /// Which reads of the volume get an object lease, as its readers need to know it.
    pub fn offer(&self) -> LeaseOffer {
        match (self.object_term, self.grants) {
            (ObjectTerm::Zero, _) => LeaseOffer::Nobody,
            (_, GrantPolicy::OnRequest) => LeaseOffer::OnRequest,
            (_, GrantPolicy::All | GrantPolicy::Returning { .. }) => LeaseOffer::Everybody,
        }
    }

    /// The term of the object lease that a read gets; `None` if it gets none. `age` gives the time
    /// since the object last changed, if it exists.
    pub fn granted_term(&self, request: LeaseRequest, age: impl FnOnce() -> Option<Duration>) -> Option<Duration> {
        if !self.offer().is_open_to(request) {
            return None;
        }
        match (self.grants, request) {
            (GrantPolicy::Returning { first }, LeaseRequest::Implicit) => Some(first),
            _ => self.object_term.after(age),
        }
    }

    /// When the time of a volume lease has passed, the server waits for this time longer before it
    /// counts the lease as ended (ε).
    pub const fn skew_margin(&self) -> Duration {
        self.skew_margin.duration()
    }

    /// The most object leases that clients may keep in the volume, all sessions together; `None`
    /// for no limit. (Cao and Liu 1998 bound the state of a server in this way.)
    ///
    /// Beyond the limit, the leader recalls the leases that end first. The recalled ones take
    /// memory until their holders have consented. With [`Tracking::Covering`] the leader records no
    /// object leases, so the limit has no effect.
    pub fn lease_limit(&self) -> Option<u32> {
        (self.lease_limit != NO_LEASE_LIMIT).then_some(self.lease_limit)
    }

    /// The most nodes and bytes of the volume.
    pub fn quota(&self) -> Quota {
        self.quota
    }

    /// How the server tracks object leases.
    pub fn tracking(&self) -> Tracking {
        self.tracking
    }

    /// The time from the grant of an object lease with this term until the server counts the lease
    /// as ended (T3). It is the sum of three spans: the term, the
    /// [margin](VolumeSettings::margin_with), and the drift of two clocks over the time by which
    /// the term exceeds the longest volume term. The margin exceeds their drift over the longest
    /// volume term.
    pub fn object_wait(&self, term: Duration, drift: DriftAllowance) -> Duration {
        let beyond = drift.over(term.saturating_sub(self.longest_term())).saturating_mul(2);
        term.saturating_add(beyond).saturating_add(self.margin_with(drift))
    }

    /// The margin that the server waits: the volume's, or more if clocks may drift further apart in
    /// a term and a tick. The allowance may have been raised since the volume got its margin, and
    /// nothing checks the margin of the root volume of a new cluster.
    pub fn margin_with(&self, drift: DriftAllowance) -> Duration {
        self.skew_margin().max(margin_of_drift(self.longest_term(), self.tick(), drift))
    }

    /// As [`VolumeSettings::object_wait`], for a lease whose term is unknown: the longest one.
    pub fn longest_object_wait(&self, drift: DriftAllowance) -> Duration {
        self.object_wait(self.object_term.longest(), drift)
    }

    /// The longest interval of ticks that this volume allows. The cluster uses the shortest of all
    /// its volumes ([`State::tick`](crate::state::State::tick)).
    pub fn tick(&self) -> Duration {
        let tick = self.shortest_term() / TICKS_PER_TERM;
        if tick > TICK_MAX {
            reached(Bound::TickMax);
        }
        tick.min(TICK_MAX)
    }
}

/// The least margin of a volume lease with this term (T3): more than two clocks can drift apart in
/// a term and a tick.
pub fn margin_of_drift(term: Duration, tick: Duration, drift: DriftAllowance) -> Duration {
    drift.over(term.saturating_add(tick)).saturating_mul(2) + Duration::from_micros(1)
}

/// A tick is a tenth of the shortest term (T6), but at most [`TICK_MAX`]. The horizon of an
/// abandoned lease is at most two ticks after its end.
pub const TICKS_PER_TERM: u32 = 10;

/// The longest tick. So a change of leader prolongs an abandoned lease by at most 0.85 s, whatever
/// the terms of the volumes are, plus the time without a leader. The 0.85 s are three ticks, and
/// two steps of the clock of 50 ms (T4 in `docs/PROTOCOL.md`).
///
/// A cluster with leases writes an entry for each tick: four in a second if it is idle. A shorter
/// tick would cost more commits (`docs/adr/0011-a-tick-is-a-quarter-of-a-second-at-most.md`).
pub const TICK_MAX: Duration = Duration::from_millis(250);

impl From<VolumeSettings> for RawSettings {
    fn from(settings: VolumeSettings) -> Self {
        let VolumeSettings { object_term, tracking, on_write, grants, quota, .. } = settings;
        let (term, skew_margin) = (settings.term(), settings.skew_margin());
        let lease_limit = settings.lease_limit();
        Self { term, object_term, skew_margin, tracking, on_write, grants, lease_limit, quota }
    }
}

impl TryFrom<RawSettings> for VolumeSettings {
    type Error = VolumeError;

    /// Checks the bounds only. The server that receives the settings knows the drift allowance, and
    /// checks the margin.
    fn try_from(raw: RawSettings) -> Result<Self, VolumeError> {
        let RawSettings { term, object_term, skew_margin, tracking, on_write, grants, lease_limit, quota } = raw;
        let (term, skew_margin) = (term.pack(), Span::of(skew_margin));
        let lease_limit = lease_limit.unwrap_or(NO_LEASE_LIMIT);
        let settings = Self { term, object_term, skew_margin, tracking, on_write, grants, lease_limit, quota };
        settings.check_bounds()?;
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn margin_that_two_clocks_can_outrun_is_refused_with_numbers() {
        let drift = DriftAllowance::from_ppm(10_000).expect("within bounds");
        let hour = Duration::from_secs(3600);
        let settings = |margin| VolumeSettings::new(Duration::from_secs(10), hour, margin, Tracking::Objects, drift);
        let error = settings(Duration::from_millis(205)).expect_err("twice 1 % of 10.25 s is 205 ms");
        assert!(error.to_string().contains("205ms") && error.to_string().contains("10000 ppm"), "{error}");
        settings(Duration::from_millis(206)).expect("more than that is enough");
    }

    #[test]
    fn the_default_keeps_the_rule_under_the_default_drift() {
        VolumeSettings::DEFAULT.check_drift(DriftAllowance::DEFAULT).expect("valid");
    }

    #[test]
    fn object_term_out_of_bounds_or_order_is_refused() {
        let (second, least) = (Duration::from_secs(1), VolumeSettings::TERM_MIN);
        let new = |object_term: ObjectTerm| {
            VolumeSettings::new(second, object_term, second, Tracking::Objects, DriftAllowance::DEFAULT)
        };
        new(least.into()).expect("it may be shorter than the volume term");
        let error = new((least - Duration::from_millis(1)).into()).expect_err("too short");
        assert_eq!(error.to_string(), "object term 199ms: out of range; expected 200ms to 31622400s");
        let error = new(ObjectTerm::ByUse { least: second * 3600, most: second }).expect_err("in the wrong order");
        let expected = "object term of 3600s to 1s: expected the shorter term first";
        assert_eq!(error.to_string(), expected);
    }

    /// Gray and Cheriton's ε (T2, T3). The client counts from its request, on the slowest allowed
    /// clock. The leader counts on the fastest allowed clock. The client's lease still ends first.
    #[test]
    fn client_is_over_before_the_server_counts_it_over() {
        const MILLION: u128 = 1_000_000;
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut between = |least: u64, most: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            least + random % (most - least + 1)
        };
        let micros = |span: Duration| span.as_micros();
        let (term_min, term_max) = (200_000, 24 * 3600 * 1_000_000);
        let (mut accepted, mut tight) = (0, 0);
        for _ in 0..200_000 {
            let ppm = between(0, u64::from(DriftAllowance::MAX_PPM));
            let drift = DriftAllowance::from_ppm(u32::try_from(ppm).expect("small")).expect("within bounds");
            let term = Duration::from_micros(match between(0, 2) {
                0 => between(term_min, 1_000_000),
                1 => between(term_min, 60_000_000),
                _ => between(term_min, term_max),
            });
            let object_term = term + Duration::from_micros(between(0, 1_000_000_000));
            let margin = drift.over(term * 11 / 10) * 2 + Duration::from_micros(between(0, 2));
            let Ok(settings) = VolumeSettings::new(term, object_term, margin, Tracking::Objects, drift) else {
                continue;
            };
            accepted += 1;
            // The true time, in millionths of a microsecond, after which a slow clock has counted
            // `span`.
            let slow = |span: Duration| micros(span) * MILLION * MILLION / (MILLION - u128::from(ppm));
            let fast = |span: Duration| micros(span) * MILLION * MILLION / (MILLION + u128::from(ppm));
            // The request takes no time. That is the worst case, because the client counts from the
            // sending.
            let promised = term + settings.tick();
            let spare = fast(promised + margin).checked_sub(slow(drift.shorten(promised)));
            assert!(spare.is_some(), "{settings:?} at {ppm} ppm");
            for object_term in [object_term, term, term / 3] {
                let wait = fast(settings.object_wait(object_term, drift));
                let objects = wait.checked_sub(slow(drift.shorten(object_term)));
                assert!(objects.is_some(), "objects of {object_term:?}: {settings:?} at {ppm} ppm");
            }
            // If clocks drift, a third of the margin is not enough.
            tight += u32::from(fast(promised + margin / 3) < slow(drift.shorten(promised)));
        }
        assert!(accepted > 100_000 && tight * 10 > accepted * 9, "{accepted} accepted, {tight} tight");
    }

    #[test]
    fn terms_and_margins_beyond_their_bounds_are_refused() {
        let (second, hour) = (Duration::from_secs(1), Duration::from_secs(3600));
        let (term, object_term, margin) =
            (VolumeSettings::TERM_MAX, VolumeSettings::OBJECT_TERM_MAX, VolumeSettings::SKEW_MARGIN_MAX);
        let new = |term, object_term, margin| {
            VolumeSettings::new(term, object_term, margin, Tracking::Objects, DriftAllowance::DEFAULT)
        };
        assert!(new(term, object_term, margin).is_ok());
        assert!(matches!(new(term + second, object_term, margin), Err(VolumeError::Term { .. })));
        assert!(matches!(new(term, object_term + second, margin), Err(VolumeError::ObjectTerm { .. })));
        assert!(matches!(new(hour, hour, margin + second), Err(VolumeError::SkewMargin { .. })));
    }
}
